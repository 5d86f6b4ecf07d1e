//! Requests that wait for a person at the end of a conversation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{CallRecord, LEDGER, lost::told_as};
use crate::message::{Message, Messages, Part, Role, ToolRequest};

/// The request of a call that was parked, for the end of a conversation: it waits there as an
/// interrupt does, and a turn that resumes it runs the tool. `key` is that of its record, `question`
/// what a person is told, `waiting` the output that the model was given meanwhile.
pub fn parked_request(request: Part, key: &str, question: &Value, waiting: Value) -> Part {
    let question = if question.is_object() { question.clone() } else { Value::Bool(true) };
    let note = json!({ "key": key, "outcome": WAITING, "waiting": waiting });
    request.with_metadata_entry("interrupt", question).with_metadata_entry(LEDGER, note)
}

/// The output that the model was given of a request that [waits](parked_request).
pub fn parked_output(request: &Part) -> Option<&Value> {
    waiting_key(request)?;
    request.metadata_entry(LEDGER)?.get("waiting")
}

/// The outputs of the requests that [wait](parked_request) at the end of a conversation, for whoever
/// goes on with another turn: those of calls that have `ended` since, and else that they wait. `None`
/// where none waits. From then on the calls live on in their records alone.
pub fn close_parked(messages: &Messages, ended: &[CallRecord]) -> Option<Message> {
    let last = messages.last().filter(|last| last.role == Role::Model)?;
    let mut outputs = Vec::new();
    for (part, request) in last.tool_requests() {
        let key = waiting_key(part)?;
        let reference: Arc<str> = request.id.clone().unwrap_or_default();
        outputs.push(match ended.iter().find(|record| *record.key == *key) {
            Some(record) => told_as(record, &reference).1,
            None => waiting_output(part, request, key),
        });
    }
    (!outputs.is_empty()).then(|| Message::new(Role::Tool, outputs))
}

/// How a call is that waits.
const WAITING: &str = "waiting";

/// The key of the record of a request that waits for a person.
pub(crate) fn waiting_key(part: &Part) -> Option<&str> {
    let note = part.metadata_entry(LEDGER).filter(|note| note["outcome"] == WAITING)?;
    note["key"].as_str()
}

/// Whether a part tells how a call ended.
pub(super) fn tells_outcome(part: &Part) -> bool {
    part.metadata_entry(LEDGER).is_some_and(|note| note["outcome"] != WAITING)
}

fn waiting_output(part: &Part, request: &ToolRequest, key: &str) -> Part {
    let waiting = part.metadata_entry(LEDGER).map(|note| note["waiting"].clone());
    let note = json!({ "key": key, "outcome": WAITING });
    Part::tool_response(request.name.clone(), request.id.clone(), waiting.unwrap_or_default())
        .with_metadata_entry(LEDGER, note)
}
