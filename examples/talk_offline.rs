//! A session with a tool and a hook, without a network. The user writes; the answer is a WAV file.
//!
//! `cargo run --example talk_offline --features offline`

use std::{error::Error, sync::Arc, time::Instant};

use antiphon::{
    agent::FuncTool,
    audio::TimelineSink,
    live::LiveConfig,
    providers::cascade::offline::{self, OfflineOptions},
    session::{AgentSession, DeniedCall, EventKind, IdleConfig, LifecycleHooks, SessionContext},
    types::{JsonObject, ToolCall, ToolSpeech},
};
use serde_json::json;

/// The host decides over every tool call, before anything runs.
struct OnlyTheGarden;

impl LifecycleHooks for OnlyTheGarden {
    fn authorize_tool_call(
        &self,
        _: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        match call.args["which"].as_str() {
            Some("garden") => Ok(call.args.clone()),
            _ => Err(DeniedCall("only the garden door may be opened".into())),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let schema = json!({
        "type": "object",
        "properties": {"which": {"enum": ["garden", "cellar"]}},
        "required": ["which"],
    });
    let door =
        FuncTool::new("open_door", "Opens a door.", schema, |_, args| async move { Ok(args) })
            .speech(
                ToolSpeech::phrases(["open the {which} door"]).answer("The {which} door is open."),
            );

    let provider = offline::provider(OfflineOptions::default()).await?;
    let session = AgentSession::builder(Arc::new(provider))
        .tool(door)
        .hooks(OnlyTheGarden)
        .sink(TimelineSink::create("answers.wav", 24_000, Instant::now())?)
        .build()?;
    let mut events = session.events();
    session.start(LiveConfig::new(), IdleConfig::default()).await?;

    let mut questions = ["open the garden door", "open the cellar door"].into_iter();
    while let Some(event) = events.next().await {
        println!("{:?}", event.kind);
        if matches!(event.kind, EventKind::SessionStarted { .. } | EventKind::TurnFinished { .. }) {
            match questions.next() {
                Some(question) => session.send_text(question)?,
                None => session.stop(),
            }
        }
    }
    Ok(())
}
