//! Prompts, and agents over them.

mod agents;
mod files;
mod render;

use antiphon_agent::{Prompt, RenderedPrompt};
use serde_json::{Value, json};

/// What a model would see: role and text of each message.
pub fn seen(rendered: &RenderedPrompt) -> Vec<(String, String)> {
    let messages = rendered.messages.iter();
    messages.map(|message| (role(message), message.joined_text())).collect()
}

pub fn role(message: &antiphon_agent::Message) -> String {
    json!(message.role).as_str().unwrap().to_owned()
}

pub fn render(prompt: &Prompt, input: Value) -> RenderedPrompt {
    let cx = antiphon_agent::InvocationContext::new();
    prompt.render(&cx, &input, &Default::default()).unwrap()
}
