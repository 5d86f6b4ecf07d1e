//! The dialects: what each says on the wire, and what its servers may say.

mod fuzz;
mod rows;
mod settings;

use antiphon_live::{LiveConfig, LiveEvent};
use antiphon_openai::{Client, wire::Dialect};
use antiphon_types::ToolDefinition;
use serde_json::{Value, json};

use super::client::talk::Talk;

/// A configuration with what the dialect cannot do without.
pub fn config(dialect: Dialect) -> LiveConfig {
    let mut config = LiveConfig::new().api_key("sk-test");
    config.provider_options.insert("dialect".into(), json!(dialect));
    let address = match dialect {
        Dialect::Azure | Dialect::AzurePreview => "https://res.openai.azure.com",
        Dialect::VoiceLive => "https://res.services.ai.azure.com",
        _ => return config,
    };
    config.endpoint = Some(address.into());
    config.model = Some("dep 1".into());
    config
}

pub fn client(config: &LiveConfig) -> Client {
    Client::new(config, None).unwrap().session_id("s1")
}

/// The session that is asked for.
pub fn session(config: &LiveConfig) -> Value {
    let mut talk = Talk::opened(client(config));
    talk.server(json!({"type": "session.created", "session": {}}));
    talk.sent_one()["session"].take()
}

/// After the set-up.
pub fn ready(config: &LiveConfig) -> Talk {
    let mut talk = Talk::opened(client(config));
    talk.server(json!({"type": "session.created", "session": {}}));
    talk.server(json!({"type": "session.updated", "session": {}}));
    assert!(matches!(talk.out.events.pop_front(), Some(LiveEvent::Ready { .. })));
    talk.out.frames.clear();
    talk
}

pub fn with(mut config: LiveConfig, options: &[(&str, Value)]) -> LiveConfig {
    for (id, value) in options {
        config.provider_options.insert((*id).to_owned(), value.clone());
    }
    config
}

pub fn clock() -> ToolDefinition {
    let mut tool = ToolDefinition::new("clock", "The time.");
    tool.input_schema = Some(json!({"type": "object"}).into());
    tool
}
