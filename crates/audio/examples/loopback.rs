//! Plays on the loudspeaker what the microphone hears, half a second later.
//!
//! `cargo run -p antiphon-audio --features devices --example loopback -- [seconds]`

use std::{
    collections::VecDeque,
    future::poll_fn,
    process::ExitCode,
    task::Poll,
    time::{Duration, Instant},
};

use antiphon_audio::{
    AudioError, AudioSink, Generation, SinkError,
    device::{Loudspeaker, LoudspeakerOptions, Microphone, MicrophoneOptions, devices},
};

const RATE_HZ: u32 = 16_000;
const DELAY_FRAMES: usize = 25;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    match echo(Duration::from_secs(seconds)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn echo(length: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let report = devices();
    println!("{}: {:?} -> {:?}", report.host, report.input, report.output);
    let mut microphone = Microphone::open(MicrophoneOptions::default().sample_rate_hz(RATE_HZ))?;
    let mut loudspeaker = Loudspeaker::open(LoudspeakerOptions::default().sample_rate_hz(RATE_HZ))?;
    println!("open: {} -> {}", microphone.info(), loudspeaker.info());

    let started = Instant::now();
    let mut waiting = VecDeque::new();
    while started.elapsed() < length {
        let frame = match microphone.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(error.into()),
            None => return Err(AudioError::NoDevice("the microphone ended".into()).into()),
        };
        waiting.push_back(frame);
        if waiting.len() > DELAY_FRAMES {
            let frame = waiting.pop_front().ok_or("no frame")?;
            match loudspeaker.write(Generation(1), &frame, Instant::now()) {
                // A machine that was busy: what did not fit is lost.
                Ok(()) | Err(SinkError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Progress is looked at so that a lost loudspeaker is noticed.
        poll_fn(|cx| match loudspeaker.poll_progress(cx, Instant::now()) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await?;
    }
    println!("heard {:?}", loudspeaker.position(Instant::now()));
    println!("{:?} {:?}", microphone.stats(), loudspeaker.stats());
    Ok(())
}
