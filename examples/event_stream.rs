//! A session seen only through its events: each as one line of JSON, with what it cost at the end.
//! Lines from standard input go to the agent.
//!
//! `OPENAI_API_KEY=... cargo run --example event_stream`

use std::{error::Error, sync::Arc, time::Duration};

use antiphon::{
    live::LiveConfig,
    providers::openai::OpenAi,
    session::{AgentSession, EventKind, IdleConfig},
};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let session = AgentSession::builder(Arc::new(OpenAi::new())).build()?;
    // Subscribed before the start, it misses nothing; any number may listen.
    let mut events = session.events();
    let consumer = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match serde_json::to_string(&event) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("{error}"),
            }
            if let EventKind::SessionEnded { reason, stats } = event.kind {
                eprintln!("{reason}; {} turns, usage {:?}", stats.turns, stats.usage);
            }
        }
    });

    let config = LiveConfig::new().api_key(std::env::var("OPENAI_API_KEY")?);
    let idle = IdleConfig::new(Some(Duration::from_secs(60)), Some(Duration::from_secs(120)));
    session.start(config, idle).await?;
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if !line.trim().is_empty() {
            session.send_text(line)?;
        }
    }
    session.shutdown(Duration::from_secs(5)).await?;
    consumer.await?;
    Ok(())
}
