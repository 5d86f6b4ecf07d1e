//! The WebSocket driver against a server in the test's hands, on paused time over pipes in memory.

mod deadlines;
mod faults;
mod opening;
mod talking;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{
    Capabilities, ConnectRequest, Connector, Frame, Handshake, LiveCommand, LiveConfig,
    LiveConnection, LiveError, LiveEvent, Outbox, Resumption, Secrets, Transport, WireProtocol,
    acceptor::{Acceptor, AcceptorOptions, Answer, Request, ServerSocket},
    websocket::{self, WebSocketOptions},
};
use antiphon_types::AudioFormat;
use async_trait::async_trait;
use futures_util::StreamExt;
use secrecy::SecretString;
use tokio::{
    io::{AsyncReadExt, DuplexStream},
    sync::mpsc,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// A dialect in a few lines: it says `hello`, is ready at `ready`, and tells all else as ignored
/// events. `refuse` is an error of its own; `busy` closes mean that it should be tried again.
#[derive(Default)]
pub(crate) struct Plain {
    /// Asked to be woken every so often.
    pub(crate) every: Option<Duration>,
    next: Option<Instant>,
}

impl WireProtocol for Plain {
    fn provider(&self) -> &str {
        "plain"
    }

    fn handshake(
        &self,
        config: &LiveConfig,
        secrets: &Secrets,
        _: Option<&Resumption>,
    ) -> Result<Handshake, LiveError> {
        Ok(Handshake {
            url: config.endpoint.clone().unwrap_or_else(|| "ws://localhost/v1?model=m".into()),
            headers: secrets.bearer.iter().map(|key| ("Authorization", key.clone())).collect(),
            subprotocols: Vec::new(),
        })
    }

    fn opened(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        self.next = self.every.map(|every| now + every);
        out.frames.push_back(Frame::Text("hello".into()));
        Ok(())
    }

    fn command(
        &mut self,
        command: LiveCommand,
        _: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        match command {
            LiveCommand::Text { text, .. } => out.frames.push_back(Frame::Text(text.into())),
            LiveCommand::AppendAudio(frame) => out.frames.push_back(Frame::Binary(frame.data)),
            _ => {}
        }
        Ok(())
    }

    fn frame(&mut self, frame: Frame, _: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let ignored = |kind: &str| LiveEvent::Ignored { kind: kind.into() };
        let event = match frame {
            Frame::Text(text) => match text.as_str() {
                "ready" => LiveEvent::Ready { capabilities: capabilities() },
                "refuse" => return Err(LiveError::Unauthorized("not you".into())),
                "ask" => {
                    out.frames.push_back(Frame::Text("answer".into()));
                    return Ok(());
                }
                other => ignored(other),
            },
            Frame::Binary(bytes) => ignored(&format!("{} bytes", bytes.len())),
            Frame::Close(Some((_, reason))) if reason == "busy" => {
                return Err(LiveError::RateLimited { message: reason, retry_after: None });
            }
            _ => return Ok(()),
        };
        out.events.push_back(event);
        Ok(())
    }

    fn timeout(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        self.next = self.every.map(|every| now + every);
        out.events.push_back(LiveEvent::Ignored { kind: "tick".into() });
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.next
    }
}

fn capabilities() -> Arc<Capabilities> {
    let format = AudioFormat::pcm16(24_000);
    let mut capabilities = Capabilities::audio_only(format, format);
    capabilities.text_input = true;
    Arc::new(capabilities)
}

/// Dials end at the test.
pub(crate) struct Pipe {
    dials: mpsc::UnboundedSender<DuplexStream>,
    /// Bytes that wait in either direction.
    capacity: usize,
}

#[async_trait]
impl Connector for Pipe {
    async fn connect(&self, _: &str) -> std::io::Result<Box<dyn Transport>> {
        let (near, far) = tokio::io::duplex(self.capacity);
        self.dials.send(far).map_err(std::io::Error::other)?;
        Ok(Box::new(near))
    }
}

pub(crate) fn pipe() -> (Pipe, mpsc::UnboundedReceiver<DuplexStream>) {
    let (dials, far_ends) = mpsc::unbounded_channel();
    (Pipe { dials, capacity: 64 * 1024 }, far_ends)
}

pub(crate) async fn connect(
    connector: &dyn Connector,
) -> Result<Box<dyn LiveConnection>, LiveError> {
    connect_with(Plain::default(), connector, LiveConfig::new()).await
}

pub(crate) async fn connect_with(
    protocol: Plain,
    connector: &dyn Connector,
    config: LiveConfig,
) -> Result<Box<dyn LiveConnection>, LiveError> {
    let request = ConnectRequest::new(Arc::new(config));
    let secrets = Secrets { bearer: Some(SecretString::from("Bearer key")) };
    websocket::connect(protocol, &request, secrets, connector, &WebSocketOptions::default()).await
}

/// The server's end of the next dial, upgraded.
async fn server(far_ends: &mut mpsc::UnboundedReceiver<DuplexStream>) -> ServerSocket {
    // A server that neither pings nor gives up by itself.
    let mut options = AcceptorOptions::default();
    options.ping_interval = Duration::from_secs(86_400);
    options.silence_limit = Duration::from_secs(86_400);
    let gate = |_: &Request| Answer::upgrade();
    let stream = Box::new(far_ends.recv().await.unwrap());
    let accepted = Acceptor::new(options).accept(stream, &gate).await.unwrap().unwrap();
    assert_eq!(accepted.request.header("authorization"), Some("Bearer key"));
    assert_eq!(accepted.request.parameter("model").as_deref(), Some("m"));
    accepted.socket
}

/// A connection that is ready, and the server's end of it.
async fn open() -> (Box<dyn LiveConnection>, ServerSocket) {
    open_with(Plain::default()).await
}

async fn open_with(protocol: Plain) -> (Box<dyn LiveConnection>, ServerSocket) {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut socket = server(&mut far_ends).await;
        assert_eq!(next_text(&mut socket).await, "hello");
        socket.send(text("ready")).await.unwrap();
        socket
    };
    let connecting = connect_with(protocol, &connector, LiveConfig::new());
    let (connection, socket) = tokio::join!(connecting, server);
    let mut connection = connection.unwrap();
    let first = connection.next().await.unwrap().unwrap();
    assert!(matches!(first, LiveEvent::Ready { .. }), "{first:?}");
    (connection, socket)
}

fn text(text: &str) -> Frame {
    Frame::Text(text.into())
}

fn say(text: &str) -> LiveCommand {
    LiveCommand::Text { text: text.into(), reply: true }
}

async fn next_text(socket: &mut ServerSocket) -> String {
    match socket.recv().await.unwrap().unwrap() {
        Frame::Text(text) => text.as_str().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// The kind of the next event, which must be an ignored one.
async fn next_kind(connection: &mut Box<dyn LiveConnection>) -> String {
    match connection.next().await.unwrap().unwrap() {
        LiveEvent::Ignored { kind } => kind.to_string(),
        other => panic!("{other:?}"),
    }
}

/// How the connection ended; it must have nothing to say after that.
async fn end(connection: &mut Box<dyn LiveConnection>) -> LiveError {
    let error = loop {
        match connection.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(connection.next().await.is_none());
    assert!(connection.next().await.is_none());
    error
}

/// Reads a request to its end.
async fn read_head(stream: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Reads a handshake; gives the answer that accepts it.
async fn upgrade_by_hand(stream: &mut DuplexStream) -> String {
    let head = read_head(stream).await;
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim())
    });
    let accept = derive_accept_key(key.unwrap().as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}
