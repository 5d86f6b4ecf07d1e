//! Networks that are gone without a word: what is sent is taken for long, and nobody gets it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use antiphon::{
    audio::AudioFrame,
    live::{Connector, LiveConfig, LiveProvider, Transport, websocket::WebSocketOptions},
    providers::{gemini::Gemini, openai::OpenAi},
    session::*,
};
use antiphon_testkit::{gemini, openai};
use async_trait::async_trait;
use base64_simd::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{murmur, restored};
use crate::rig::{MS, SECOND, now};

/// The network is gone.
const GONE: u8 = 1;
/// It is back, and nobody knows of the connection any more.
const RESET: u8 = 2;

/// A network whose first connection can be made to lead nowhere.
struct Network<C> {
    to: C,
    gone: Arc<AtomicU8>,
    used: AtomicBool,
}

impl<C: Connector> Network<C> {
    fn new(to: C) -> (Self, Arc<AtomicU8>) {
        let gone = Arc::new(AtomicU8::new(0));
        (Self { to, gone: gone.clone(), used: AtomicBool::new(false) }, gone)
    }
}

#[async_trait]
impl<C: Connector> Connector for Network<C> {
    async fn connect(&self, url: &str) -> io::Result<Box<dyn Transport>> {
        let inner = self.to.connect(url).await?;
        let first = !self.used.swap(true, Ordering::SeqCst);
        let gone = if first { self.gone.clone() } else { Arc::default() };
        Ok(Box::new(Line { inner, gone }))
    }
}

/// Once the network is gone it takes all that is sent, as a kernel does, and gives nothing.
struct Line {
    inner: Box<dyn Transport>,
    gone: Arc<AtomicU8>,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.gone.load(Ordering::SeqCst) {
            GONE => Poll::Pending,
            RESET => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => Pin::new(&mut self.inner).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.gone.load(Ordering::SeqCst) {
            0 => Pin::new(&mut self.inner).poll_write(cx, buf),
            _ => Poll::Ready(Ok(buf.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// What came of a talk whose network was gone after three seconds.
struct Talk {
    wav: Vec<i16>,
    /// What each of the two connections was sent.
    heard: [Vec<i16>; 2],
    lost: usize,
    /// Samples of half a second and somewhat more: so often the server says what it has read.
    step: usize,
}

/// Somebody talks for so long. Where the network is back after so many frames, it knows nothing.
async fn talk(
    provider: impl LiveProvider,
    gone: Arc<AtomicU8>,
    back_after: Option<usize>,
    time: Duration,
    audio: impl Fn() -> Vec<(u32, String)>,
) -> Talk {
    let config = LiveConfig::new().api_key("test");
    let format = provider.capabilities(&config).unwrap().input;
    let rate = format.sample_rate_hz() as usize;
    let session = AgentSession::builder(Arc::new(provider)).build().unwrap();
    let mut events = session.events();
    session.start(config, IdleConfig::OFF).await.unwrap();
    let wav = murmur(rate * time.as_secs() as usize);
    for (number, frame) in wav.chunks(rate / 50).enumerate() {
        session.send_audio(AudioFrame::from_pcm16(rate as u32, frame)).unwrap();
        tokio::time::sleep(20 * MS).await;
        if number == 150 {
            gone.store(GONE, Ordering::SeqCst);
        }
        if back_after == Some(number) {
            gone.store(RESET, Ordering::SeqCst);
        }
    }
    tokio::time::sleep(5 * SECOND).await;
    let told = restored(&now(&mut events).await);
    assert_eq!(told.len(), 1, "{told:?}");
    let lost = told[0].1 as usize * rate / 1_000;
    let of = |connection| {
        let pieces = audio().into_iter().filter(|(of, _)| *of == connection);
        let bytes: Vec<u8> =
            pieces.flat_map(|(_, data)| STANDARD.decode_to_vec(data).unwrap()).collect();
        bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
    };
    Talk { wav, heard: [of(1), of(2)], lost, step: rate * 6 / 10 }
}

impl Talk {
    /// All of it was heard, or is known to be lost, and of it next to nothing twice.
    fn assert_whole(&self) {
        let [first, second] = &self.heard;
        assert!(self.wav.starts_with(first) && self.wav.ends_with(second), "in order");
        let known = first.len() + second.len() + self.lost;
        let twice = known.checked_sub(self.wav.len());
        let told = (first.len(), second.len(), self.lost, self.wav.len());
        assert!(twice.is_some_and(|twice| twice <= self.step), "{told:?}");
    }
}

fn options(silence: Duration) -> WebSocketOptions {
    let mut options = WebSocketOptions::default();
    options.silence_limit = silence;
    options
}

fn of_gemini(server: &gemini::Server) -> Vec<(u32, String)> {
    let of_client =
        server.records().into_iter().filter(|record| record.from == gemini::Side::Client);
    let audio = |frame: &Value| frame["realtimeInput"]["audio"]["data"].as_str().map(Into::into);
    of_client.filter_map(|record| Some((record.connection, audio(&record.frame)?))).collect()
}

fn of_openai(server: &openai::Server) -> Vec<(u32, String)> {
    let of_client =
        server.records().into_iter().filter(|record| record.from == openai::Side::Client);
    let appends = of_client.filter(|record| record.frame["type"] == "input_audio_buffer.append");
    appends
        .filter_map(|record| Some((record.connection, record.frame["audio"].as_str()?.to_owned())))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_network_took_is_said_again_to_gemini() {
    let server = gemini::Server::new(gemini::Script::auto());
    let (network, gone) = Network::new(server.connector());
    let provider = Gemini::new().connector(network).websocket(options(20 * SECOND));
    let talk = talk(provider, gone, None, 40 * SECOND, || of_gemini(&server)).await;
    talk.assert_whole();
    assert_eq!(talk.lost, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_network_took_is_said_again_to_openai() {
    let server = openai::Server::new(openai::Script::auto());
    let (network, gone) = Network::new(server.connector());
    let provider = OpenAi::new().connector(network).websocket(options(20 * SECOND));
    let talk = talk(provider, gone, None, 40 * SECOND, || of_openai(&server)).await;
    talk.assert_whole();
    assert_eq!(talk.lost, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_network_took_and_is_too_old_is_told_as_lost() {
    let server = gemini::Server::new(gemini::Script::auto());
    let (network, gone) = Network::new(server.connector());
    // Nothing is noticed for a minute; half of that is kept.
    let provider = Gemini::new().connector(network);
    let talk = talk(provider, gone, None, 90 * SECOND, || of_gemini(&server)).await;
    talk.assert_whole();
    let seconds = talk.lost / 16_000;
    assert!((29..=33).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn what_a_network_took_that_was_gone_for_seconds_is_said_again() {
    // Four seconds without an answer to the pings, and then a reset.
    let server = gemini::Server::new(gemini::Script::auto());
    let (network, gone) = Network::new(server.connector());
    let provider = Gemini::new().connector(network);
    let to_gemini = talk(provider, gone, Some(350), 20 * SECOND, || of_gemini(&server)).await;
    let server = openai::Server::new(openai::Script::auto());
    let (network, gone) = Network::new(server.connector());
    let provider = OpenAi::new().connector(network);
    let to_openai = talk(provider, gone, Some(350), 20 * SECOND, || of_openai(&server)).await;
    for talk in [to_gemini, to_openai] {
        talk.assert_whole();
        assert_eq!(talk.lost, 0);
    }
}
