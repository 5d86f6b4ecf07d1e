//! Push to talk, on the default microphone and loudspeaker: Enter begins your turn, Enter ends it.
//!
//! `OPENAI_API_KEY=... cargo run --example push_to_talk --features devices`

use std::{error::Error, sync::Arc};

use antiphon::{
    audio::device::{Loudspeaker, LoudspeakerOptions, Microphone, MicrophoneOptions},
    live::{LiveConfig, VoiceActivity},
    providers::openai::OpenAi,
    session::{AgentSession, EventKind, IdleConfig},
};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let session = AgentSession::builder(Arc::new(OpenAi::new()))
        .sink(Loudspeaker::open(LoudspeakerOptions::default())?)
        .build()?;
    let mut microphone = Microphone::open(MicrophoneOptions::default())?;
    let mut enter = BufReader::new(stdin()).lines();
    let mut events = session.events();
    let config = LiveConfig::new()
        .api_key(std::env::var("OPENAI_API_KEY")?)
        .voice_activity(VoiceActivity::Manual);
    session.start(config, IdleConfig::default()).await?;
    println!("Enter: speak; Enter again: listen; Ctrl-D: end");

    let mut talking = false;
    loop {
        tokio::select! {
            frame = microphone.next() => match frame {
                Some(frame) if talking => session.send_audio(frame?)?,
                Some(_) => {}
                None => session.stop(),
            },
            line = enter.next_line() => match line? {
                // The first Enter also silences an answer that is still being spoken.
                Some(_) if !talking => {
                    session.activity_start()?;
                    talking = true;
                }
                Some(_) => {
                    session.activity_end()?;
                    talking = false;
                }
                None => session.stop(),
            },
            event = events.next() => match event.map(|event| event.kind) {
                Some(EventKind::UserMessage { text, .. }) => println!("you: {text}"),
                Some(EventKind::AgentMessage { text, .. }) => println!("agent: {text}"),
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}
