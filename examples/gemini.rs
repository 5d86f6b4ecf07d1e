//! The quick start of the README with Gemini Live: a question in writing, the answer aloud, in
//! `answer.wav`.
//!
//! `GEMINI_API_KEY=... cargo run --example gemini --features gemini`

use std::{error::Error, sync::Arc, time::Instant};

use antiphon::{
    agent::FuncTool,
    audio::TimelineSink,
    live::LiveConfig,
    providers::gemini::Gemini,
    session::{AgentSession, EventKind, IdleConfig},
    types::JsonObject,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let weather = FuncTool::new("weather", "Today's weather.", None, |_, _| async {
        Ok(JsonObject::from_iter([("celsius".to_owned(), 18.into())]))
    });
    let session = AgentSession::builder(Arc::new(Gemini::new()))
        .tool(weather)
        .sink(TimelineSink::create("answer.wav", 24_000, Instant::now())?)
        .build()?;
    let mut events = session.events();
    let config = LiveConfig::new().api_key(std::env::var("GEMINI_API_KEY")?).voice("Puck");
    session.start(config, IdleConfig::default()).await?;
    session.send_text("Shall I take a coat?")?;
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::AgentMessage { text, .. } => println!("agent: {text}"),
            EventKind::TurnFinished { .. } => session.stop(),
            _ => {}
        }
    }
    Ok(())
}
