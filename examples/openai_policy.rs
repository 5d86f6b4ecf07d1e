//! What the model may do: a policy that refuses a large transfer and has a small one read back,
//! guards over what is said, and a hook that hears of everything.
//!
//! `OPENAI_API_KEY=... cargo run --example openai_policy`

use std::{error::Error, sync::Arc};

use antiphon::{
    agent::FuncTool,
    live::LiveConfig,
    policy::{
        RulePolicy,
        guards::{PersonalData, Phrases},
    },
    providers::openai::OpenAi,
    session::{
        AgentSession, EventKind, IdleConfig, InputGuard, LifecycleHooks, OutputGuard,
        SessionContext,
    },
    types::{ToolCall, ToolResponse},
};
use async_trait::async_trait;
use serde_json::json;

const POLICY: &str = r#"{
  "default": "deny",
  "rules": [
    {
      "tool": "send_money",
      "action": "deny",
      "when": {"properties": {"amount": {"exclusiveMinimum": 100}}},
      "reason": "more than 100 euros is for a person to send"
    },
    {"tool": "send_money", "action": "confirm", "read_back": "Send {amount} euros to {to}?"}
  ]
}"#;

/// A book of what was asked and done.
struct Book;

#[async_trait]
impl LifecycleHooks for Book {
    async fn on_tool_call(&self, _: &SessionContext, call: &ToolCall) {
        println!("runs: {} {:?}", call.name, call.args);
    }
    async fn on_tool_result(&self, _: &SessionContext, call: &ToolCall, result: &ToolResponse) {
        println!("done: {} {:?}", call.name, result);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let schema = json!({
        "type": "object",
        "properties": {"to": {"type": "string"}, "amount": {"type": "number", "minimum": 0.01}},
        "required": ["to", "amount"],
    });
    let send_money =
        FuncTool::new("send_money", "Sends euros to a person.", schema, |_, args| async move {
            Ok(args)
        });
    let session = AgentSession::builder(Arc::new(OpenAi::new()))
        .tool(send_money)
        .authorize(RulePolicy::parse("the policy", POLICY)?)
        // No number of a card or an account is read out; and nobody is helped to get around the rules.
        .output_guard(OutputGuard::new(PersonalData::default()))
        .input_guard(InputGuard::new(Phrases::new(["ignore all rules"])))
        .hooks(Book)
        .build()?;
    let mut events = session.events();
    let config = LiveConfig::new().api_key(std::env::var("OPENAI_API_KEY")?);
    session.start(config, IdleConfig::default()).await?;

    let said = ["Send nine hundred euros to Alice.", "Then send her twenty.", "Yes, do that."];
    let mut said = said.into_iter();
    while let Some(event) = events.next().await {
        match &event.kind {
            EventKind::SessionStarted { .. } | EventKind::TurnFinished { .. } => {
                match said.next() {
                    Some(text) => session.send_text(text)?,
                    None => session.stop(),
                }
            }
            EventKind::ToolDenied { name, .. } => println!("denied: {name}"),
            EventKind::ReplyDenied { reason, .. } | EventKind::WordsDenied { reason } => {
                println!("not said, or not heard: {reason}");
            }
            EventKind::AgentMessage { text, .. } => println!("agent: {text}"),
            _ => {}
        }
    }
    Ok(())
}
