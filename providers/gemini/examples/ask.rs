//! Asks a server that speaks Gemini Live in writing, and prints what it says.
//!
//! `GEMINI_API_KEY=... cargo run -p antiphon-gemini --example ask -- "Are you open?" [URL]`

use std::error::Error;

use antiphon_gemini::Gemini;
use antiphon_live::{ConnectRequest, LiveCommand, LiveConfig, LiveEvent, LiveProvider, TextUpdate};
use futures_util::{SinkExt, StreamExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let text = arguments.next().unwrap_or_else(|| "Hello!".into());
    let mut config = LiveConfig::new().api_key(std::env::var("GEMINI_API_KEY")?);
    config.endpoint = arguments.next();
    let mut connection = Gemini::new().connect(ConnectRequest::new(config.into())).await?;
    connection.send(LiveCommand::Text { text, reply: true }).await?;
    while let Some(event) = connection.next().await {
        match event? {
            LiveEvent::OutputTranscript { text: TextUpdate::Delta(words), .. }
            | LiveEvent::OutputText { text: TextUpdate::Delta(words), .. } => print!("{words}"),
            LiveEvent::ReplyDone { outcome, usage, .. } => {
                println!("\n{outcome:?}, {usage:?}");
                break;
            }
            LiveEvent::Error(error) => eprintln!("{}: {}", error.code, error.message),
            _ => {}
        }
    }
    connection.close().await?;
    Ok(())
}
