//! What a caller may send.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    RuntimeError,
    ledger::waiting_key,
    message::{Message, Messages, Part, Role, ToolRequest},
    protocol::{AgentInput, ToolResume},
};

/// Errs where a resume names a tool request that is not pending, so that no caller can run a tool
/// that the model never asked for. A restart must have the input that the model gave.
///
/// Only the last message of the model is looked at: its requests are those that a resume settles,
/// and the same name and id may have come up in earlier turns. Entries that are no tool parts are
/// passed over.
///
/// Agents over a prompt do this by themselves. An agent function that hands on
/// [`AgentInput::resume`] of callers it does not trust does it first.
pub fn validate_resume_against_history(
    resume: &ToolResume,
    history: &Messages,
) -> Result<(), RuntimeError> {
    let mut model = history.iter_back().filter(|message| message.role == Role::Model);
    let last = model.next();
    let earlier: Vec<_> = model.collect();
    let find = |name: &str, id: Option<&Arc<str>>| -> Result<&ToolRequest, RuntimeError> {
        if let Some(request) = last.and_then(|message| request_of(message, name, id)) {
            return Ok(request);
        }
        let which = format!("tool {name:?} with ref {:?}", id.map_or("", |id| id));
        let waits = |message: &&Arc<Message>| {
            let mut requests = message.tool_requests();
            requests.any(|(part, it)| {
                it.is_call(name, id.map(|id| &**id)) && waiting_key(part).is_some()
            })
        };
        Err(RuntimeError::InvalidArgument(
            match earlier.iter().any(|message| request_of(message, name, id).is_some()) {
                true if earlier.iter().any(waits) => format!(
                    "the request of {which} is from an earlier turn, no longer pending: use approvals"
                ),
                true => {
                    format!("the request of {which} is from an earlier turn, no longer pending")
                }
                false => format!("there is no request of {which} in the last message of the model"),
            },
        ))
    };
    for restart in resume.restart.iter().filter_map(Part::as_tool_request) {
        let request = find(&restart.name, restart.id.as_ref())?;
        if !same_json(given(&request.input), given(&restart.input)) {
            return Err(RuntimeError::InvalidArgument(format!(
                "the restart of tool {:?} changes its input: it must be the one that the model gave",
                restart.name
            )));
        }
    }
    for response in resume.respond.iter().filter_map(Part::as_tool_response) {
        find(&response.name, response.id.as_ref())?;
    }
    Ok(())
}

/// Errs where an input of a prompt-backed agent makes no sense: its message is not the user's or
/// holds tool parts, or it has nothing to say and there is no conversation to go on with. `history`
/// is the conversation before the input's message.
pub fn validate_input(input: &AgentInput, history: &Messages) -> Result<(), RuntimeError> {
    let Some(message) = &input.message else {
        let resumes = input
            .resume
            .as_ref()
            .is_some_and(|resume| !(resume.respond.is_empty() && resume.restart.is_empty()));
        if !resumes && history.is_empty() {
            return Err(RuntimeError::InvalidArgument(
                "the input has neither message nor resume, and there is no conversation to go on \
                 with: send a message"
                    .to_owned(),
            ));
        }
        return Ok(());
    };
    if message.role != Role::User {
        return Err(RuntimeError::InvalidArgument(
            "the message of an input is the user's: its role must be user".to_owned(),
        ));
    }
    if message.tool_requests().next().is_some() || message.tool_responses().next().is_some() {
        return Err(RuntimeError::InvalidArgument(
            "the message of an input holds tool parts: send those as resume".to_owned(),
        ));
    }
    Ok(())
}

/// The newest request of the message with this name and id.
fn request_of<'a>(
    message: &'a Message,
    name: &str,
    id: Option<&Arc<str>>,
) -> Option<&'a ToolRequest> {
    let mut requests = message.content.iter().rev().filter_map(Part::as_tool_request);
    requests.find(|request| request.is_call(name, id.map(|id| &**id)))
}

fn given(input: &Option<Value>) -> &Value {
    input.as_ref().unwrap_or(&Value::Null)
}

/// Whether two values are the same JSON: `1` and `1.0` are.
fn same_json(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64()
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same_json(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len()
                && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| same_json(x, y)))
        }
        _ => a == b,
    }
}
