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

/// The output that a request at the end of a conversation has: what the model was given of one that
/// [waits](parked_request), or of one that is done and whose output waits for those beside it.
pub fn parked_output(request: &Part) -> Option<&Value> {
    if let Some(output) = request.metadata_entry("pendingOutput") {
        return Some(output);
    }
    waiting_key(request)?;
    request.metadata_entry(LEDGER)?.get("waiting")
}

/// The outputs of the requests at the end of a conversation, for whoever goes on with another turn. Of
/// those that [wait](parked_request): that of a call that has `ended` since, and else that it waits; from
/// then on such a call lives on in its record alone. Of others: the output that is there, or that
/// nobody gave one. `None` where the conversation does not end with requests.
pub fn close_parked(messages: &Messages, ended: &[CallRecord]) -> Option<Message> {
    let last = messages.last().filter(|last| last.role == Role::Model)?;
    let outputs = last.tool_requests().map(|(part, request)| {
        let reference: Arc<str> = request.id.clone().unwrap_or_default();
        match waiting_key(part) {
            Some(key) => match ended.iter().find(|record| *record.key == *key) {
                Some(record) => told_as(record, &reference).1,
                None => waiting_output(part, request, key),
            },
            None => {
                let output = part.metadata_entry("pendingOutput").cloned();
                let output = output.unwrap_or_else(|| json!({ "error": unanswered(part) }));
                Part::tool_response(request.name.clone(), request.id.clone(), output)
            }
        }
    });
    let outputs: Vec<_> = outputs.collect();
    (!outputs.is_empty()).then(|| Message::new(Role::Tool, outputs))
}

/// What a model is told of a request that nobody answered.
pub fn unanswered(request: &Part) -> &'static str {
    match request.is_interrupt() {
        true => "nobody answered what the call waits for: it was not done",
        false => "nobody answered the call: whether the tool ran is not known",
    }
}

/// How a call is that waits.
pub(super) const WAITING: &str = "waiting";

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
