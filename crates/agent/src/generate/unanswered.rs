//! Calls that nobody answered.

use std::sync::Arc;

use serde_json::json;

use crate::{
    ledger::parked_output,
    message::{Message, Part, Role},
};

/// The conversation as a model is shown it: each call has an output, since models refuse one without.
/// A user who says something else instead of answering an interrupt leaves such calls.
pub(super) fn answered(messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
    let mut shown = Vec::with_capacity(messages.len());
    let mut messages = messages.iter().peekable();
    while let Some(message) = messages.next() {
        shown.push(message.clone());
        if message.role != Role::Model || message.tool_requests().next().is_none() {
            continue;
        }
        let answers = messages.next_if(|next| next.role == Role::Tool);
        let missing = missing(message, answers.map(|answers| &**answers));
        shown.extend(match (answers, missing.is_empty()) {
            (Some(answers), true) => Some(answers.clone()),
            (None, true) => None,
            (answers, false) => {
                let mut all = answers
                    .map_or_else(|| Message::new(Role::Tool, Vec::new()), |all| (**all).clone());
                all.content.extend(missing);
                Some(Arc::new(all))
            }
        });
    }
    shown
}

/// An output for each call of `message` that has none in `answers`.
fn missing(message: &Message, answers: Option<&Message>) -> Vec<Part> {
    let mut left: Vec<_> = answers.into_iter().flat_map(Message::tool_responses).collect();
    let mut missing = Vec::new();
    for (part, request) in message.tool_requests() {
        let given = left
            .iter()
            .position(|(_, response)| request.is_call(&response.name, response.id.as_deref()));
        match given {
            Some(index) => drop(left.remove(index)),
            None => {
                let output = part.metadata_entry("pendingOutput").or_else(|| parked_output(part));
                let unanswered = || json!({ "error": "nobody answered the call" });
                let output = output.cloned().unwrap_or_else(unanswered);
                missing.push(Part::tool_response(request.name.clone(), request.id.clone(), output));
            }
        }
    }
    missing
}
