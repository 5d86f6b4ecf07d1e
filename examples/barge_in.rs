//! An interruption from end to end, without a network or a microphone: the agent tells a story, the
//! user says "mhm" into it, and then "stop". Two files hold what was to be heard.
//!
//! `cargo run --example barge_in --features offline`
//!
//! `heard.wav` is the time line of the agent's voice: it pauses for the "mhm" and goes on at the
//! same sample, and it ends where the user stopped it. `user.wav` is the user's side.

use std::{error::Error, sync::Arc, time::Duration};

use antiphon::{
    audio::{TimelineSink, WavAudio},
    live::LiveConfig,
    providers::cascade::{
        SpeechRequest, Synthesizer,
        offline::{self, OfflineOptions, OfflineSpeech},
    },
    session::{AgentSession, BargeIn, EventKind, Heard, IdleConfig, ResumeCause, SpeechJudge},
};
use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until};

const STORY: &str = "Once upon a time there was a lighthouse. It stood on a rock far out in the sea. \
                     Every night its keeper lit the lamp. And every morning he put it out again.";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The user's side is made by the same voice, for want of a person.
    let mouth = OfflineSpeech::load(OfflineOptions::default()).await?.synthesizer;
    let user = user_side(&*mouth, &[(2_500, "mhm"), (7_000, "please stop it now")]).await?;
    user.save("user.wav")?;

    let start = Instant::now();
    let provider = offline::provider(OfflineOptions::default()).await?;
    let session = AgentSession::builder(Arc::new(provider))
        .sink(TimelineSink::create("heard.wav", 24_000, start.into_std())?)
        .barge_in(BargeIn::Judged(SpeechJudge::default()))
        .build()?;
    let mut events = session.events();
    session.start(LiveConfig::new(), IdleConfig::OFF).await?;
    session.say(STORY)?;

    let talking = session.clone();
    tokio::spawn(async move { speak(&talking, &user).await });
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::PlaybackPaused => println!("{:>6} ms  the agent pauses", event.t_ms),
            EventKind::PlaybackResumed { cause } => {
                println!("{:>6} ms  and goes on: {}", event.t_ms, because(cause));
            }
            EventKind::Interrupted => println!("{:>6} ms  the agent is interrupted", event.t_ms),
            EventKind::AgentMessage { text, interrupted, heard, .. } => {
                println!("{:>6} ms  agent: {text}", event.t_ms);
                if let Some(heard) = heard {
                    println!("           {}", amount(heard));
                }
                if interrupted {
                    session.stop();
                }
            }
            EventKind::UserMessage { text } => println!("{:>6} ms  user: {text}", event.t_ms),
            _ => {}
        }
    }
    Ok(())
}

/// How much of a reply was heard, in words.
fn amount(heard: Heard) -> String {
    let seconds = |ms: u32| f64::from(ms) / 1_000.0;
    let (heard_s, all_s) = (seconds(heard.heard_ms), seconds(heard.generated_ms));
    if heard.heard_ms >= heard.generated_ms {
        return format!("(all {all_s:.1} s of it were heard)");
    }
    format!("({heard_s:.1} of the {all_s:.1} s that were made of it were heard)")
}

fn because(cause: ResumeCause) -> &'static str {
    match cause {
        ResumeCause::Noise => "it was only a noise",
        ResumeCause::Backchannel => "the user only said that they listen",
        ResumeCause::TooFewWords => "too few words to interrupt",
        _ => "the user did not mean to interrupt",
    }
}

/// Silence, with these words at these milliseconds.
async fn user_side(
    mouth: &dyn Synthesizer,
    words: &[(usize, &str)],
) -> Result<WavAudio, Box<dyn Error>> {
    let sample_rate_hz = mouth.sample_rate_hz();
    let per_ms = sample_rate_hz as usize / 1_000;
    let mut samples = Vec::new();
    for (at_ms, text) in words {
        samples.resize(samples.len().max(at_ms * per_ms), 0);
        let mut frames = mouth.synthesize(SpeechRequest::new(*text)).await?;
        while let Some(frame) = frames.next().await {
            let data = frame?.data;
            samples.extend(data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])));
        }
    }
    samples.resize(samples.len() + 3_000 * per_ms, 0);
    Ok(WavAudio { sample_rate_hz, samples })
}

/// Sends the user's side as a microphone would.
async fn speak(session: &AgentSession, user: &WavAudio) {
    let whole = user.frame();
    let per_frame = user.sample_rate_hz as usize / 50;
    let mut next = Instant::now();
    for at in (0..whole.samples()).step_by(per_frame) {
        next += Duration::from_millis(20);
        sleep_until(next).await;
        // An error says that the session is over.
        if session.send_audio(whole.slice(at, at + per_frame)).is_err() {
            return;
        }
    }
}
