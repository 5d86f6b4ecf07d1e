//! What a whole session adds: `cargo bench --bench session`.
//!
//! A server in this process sends frames of a voice over TCP, one each 20 ms, with the time in the
//! first samples; sessions receive them, and their sinks look at the clock. Printed is the time
//! from the server's send to the sink. What processor time a session takes beside a raw client is
//! measured by `benches/peers/run.py`, in processes of their own.

mod shared;

use std::{
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use antiphon::{
    audio::{AudioFormat, ClockedSink},
    live::{Frame, LiveConfig, acceptor::ServerSocket},
    providers::openai::OpenAi,
    session::{AgentSession, IdleConfig},
};
use base64_simd::STANDARD;

use self::shared::{Error, at, serve};

/// A frame of 20 ms at 24 kHz, in bytes.
const FRAME_BYTES: usize = 960;
const INTERVAL: Duration = Duration::from_millis(20);
/// Frames of each session: ten seconds.
const FRAMES: u32 = 500;
/// Marks a frame whose first samples hold a time.
const MAGIC: [u8; 8] = *b"antiphon";

fn main() -> Result<(), Error> {
    println!("frame in to sink, {FRAMES} frames of 20 ms per session");
    for sessions in [1, 50] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let mut delays = runtime.block_on(measure(sessions))?;
        delays.sort_unstable();
        println!(
            "{sessions:4} sessions: p50 {:>8.1?}  p99 {:>8.1?}  worst {:>8.1?}  ({} frames)",
            at(&delays, 0.5),
            at(&delays, 0.99),
            at(&delays, 1.0),
            delays.len(),
        );
    }
    Ok(())
}

async fn measure(sessions: usize) -> Result<Vec<Duration>, Error> {
    let epoch = Instant::now();
    let url = serve(move |socket| speak(socket, epoch)).await?;

    let (told, delays) = mpsc::channel();
    let told = Arc::new(Mutex::new(told));
    let provider = Arc::new(OpenAi::new());
    let mut running = Vec::new();
    for _ in 0..sessions {
        let told = told.lock().expect("nothing panics under it").clone();
        let sink = ClockedSink::new(AudioFormat::pcm16(24_000)).observed_by(move |frame, _| {
            if frame.data.len() >= 16 && frame.data[8..16] == MAGIC {
                let sent = u64::from_le_bytes(frame.data[..8].try_into().expect("eight bytes"));
                let _ = told.send(epoch.elapsed().saturating_sub(Duration::from_nanos(sent)));
            }
        });
        let session = AgentSession::builder(provider.clone()).sink(sink).build()?;
        let mut config = LiveConfig::new().api_key("x");
        config.endpoint = Some(url.clone());
        session.start(config, IdleConfig::OFF).await?;
        running.push(session);
    }
    drop(told);
    tokio::time::sleep(INTERVAL * FRAMES + Duration::from_secs(1)).await;
    for session in running {
        session.shutdown(Duration::from_secs(1)).await?;
    }
    Ok(delays.try_iter().collect())
}

/// Speaks at the pace of a voice.
async fn speak(mut socket: ServerSocket, epoch: Instant) -> Result<(), Error> {
    let text = |text: String| Frame::Text(text.into());
    let begun = r#"{"type":"response.created","event_id":"e3","response":{"id":"resp_1"}}"#;
    socket.send(text(begun.to_owned())).await?;

    let mut pcm = vec![0; FRAME_BYTES];
    pcm[8..16].copy_from_slice(&MAGIC);
    let mut ticks = tokio::time::interval(INTERVAL);
    for _ in 0..FRAMES {
        ticks.tick().await;
        pcm[..8].copy_from_slice(&(epoch.elapsed().as_nanos() as u64).to_le_bytes());
        let delta = STANDARD.encode_to_string(&pcm);
        socket
            .send(text(format!(
                r#"{{"type":"response.output_audio.delta","event_id":"e4","response_id":"resp_1","item_id":"item_1","output_index":0,"content_index":0,"delta":"{delta}"}}"#
            )))
            .await?;
    }
    while socket.recv().await.is_some() {}
    Ok(())
}
