//! What the quick starts do with their providers: a question in writing, a tool for its answer, and the
//! answer aloud, in `answer.wav`.

use std::{error::Error, sync::Arc, time::Instant};

use antiphon::{
    agent::FuncTool,
    audio::TimelineSink,
    live::{LiveConfig, LiveProvider},
    session::{AgentSession, EventKind, IdleConfig, SessionBuilder},
    types::JsonObject,
};

/// Asks a provider about the weather.
#[allow(dead_code)] // each example uses one of these
pub async fn ask(provider: impl LiveProvider, config: LiveConfig) -> Result<(), Box<dyn Error>> {
    ask_in(AgentSession::builder(Arc::new(provider)), config).await
}

/// Asks in a session that is built so.
pub async fn ask_in(builder: SessionBuilder, config: LiveConfig) -> Result<(), Box<dyn Error>> {
    let weather = FuncTool::new("weather", "Today's weather.", None, |_, _| async {
        Ok(JsonObject::from_iter([("celsius".to_owned(), 18.into())]))
    });
    let session = builder
        .tool(weather)
        .sink(TimelineSink::create("answer.wav", 24_000, Instant::now())?)
        .build()?;
    let mut events = session.events();
    session.start(config, IdleConfig::default()).await?;
    session.send_text("Shall I take a coat?")?;
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::SessionStarted { provider, model, .. } => println!("{provider}: {model}"),
            EventKind::AgentMessage { text, .. } => println!("agent: {text}"),
            EventKind::TurnFinished { .. } => session.stop(),
            _ => {}
        }
    }
    Ok(())
}
