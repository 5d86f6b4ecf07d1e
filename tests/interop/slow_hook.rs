//! A session whose hooks block their thread for a while, for run.py to listen to.
//!
//! `slow_hook OUT.wav MS`: asks for something, in real time, with hooks that take MS milliseconds
//! each; what the agent says goes to OUT.wav.

use std::{
    error::Error,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use antiphon::{
    agent::FuncTool,
    audio::TimelineSink,
    live::LiveConfig,
    providers::cascade::offline::{self, OfflineOptions},
    session::{AgentSession, EventKind, IdleConfig, LifecycleHooks, SessionContext},
    types::{JsonObject, ToolCall, ToolResponse, ToolSpeech},
};
use async_trait::async_trait;
use serde_json::json;

struct Slow(Duration);

#[async_trait]
impl LifecycleHooks for Slow {
    async fn on_user_message(&self, _: &SessionContext, _: &str) {
        // Blocking the thread is the worst that a hook can do.
        thread::sleep(self.0);
    }

    async fn on_tool_result(&self, _: &SessionContext, _: &ToolCall, _: &ToolResponse) {
        thread::sleep(self.0);
    }

    async fn on_agent_message(&self, _: &SessionContext, _: &str, _: bool) {
        thread::sleep(self.0);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(out), Some(ms)) = (arguments.next(), arguments.next()) else {
        return Err("usage: slow_hook OUT.wav MS".into());
    };
    let hooks = Slow(Duration::from_millis(ms.parse()?));

    let nothing = json!({"type": "object", "properties": {}});
    let tell = FuncTool::new("tell", "Tells a story.", nothing, |_, _| async {
        Ok(JsonObject::new())
    })
    .speech(ToolSpeech::phrases(["tell me a story"]).answer(
        "Once upon a time there was a miller who had three sons. The youngest of them was given \
         nothing but a cat. The cat asked for a pair of boots, and that is how it all began.",
    ));
    let provider = offline::provider(OfflineOptions::default()).await?;
    let session = AgentSession::builder(Arc::new(provider))
        .tool(tell)
        .hooks(hooks)
        .sink(TimelineSink::create(out, 24_000, Instant::now())?)
        .build()?;
    let mut events = session.events();
    session.start(LiveConfig::new(), IdleConfig::default()).await?;
    session.send_text("tell me a story")?;
    while let Some(event) = events.next().await {
        if matches!(event.kind, EventKind::TurnFinished { .. }) {
            session.stop();
        }
    }
    Ok(())
}
