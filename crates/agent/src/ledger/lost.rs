//! Calls of turns that no snapshot holds, and what the history says of them.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    CallRecord, CallState, LEDGER,
    tail::{close_parked, tells_outcome},
};
use crate::{
    InvocationContext, Message, Messages, Part, Role, RuntimeError, state::SessionSnapshot,
    store::SessionStore,
};

/// What a model is told of a call whose outcome is not known.
const UNKNOWN: &str = "The outcome of this call is not known: its process ended while the tool ran. \
                       It may have taken effect. Do not take it for done, nor for not done.";
/// Snapshots that are looked at to find out whether a call belongs to a conversation.
const MAX_LINEAGE: usize = 100_000;

/// The calls of a conversation that no snapshot of it holds: of a turn that was lost with its
/// process, or undone, and such that waited for a person and have ended since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lost {
    /// Those made first first.
    pub(crate) calls: Vec<CallRecord>,
    /// The keys of others, which the conversation tells of although their records are still there.
    pub(crate) told: Vec<Arc<str>>,
}

impl Lost {
    /// Looks for those that happened after `tip`, or beside the conversation up to there.
    pub(crate) async fn find(
        store: &Arc<dyn SessionStore>,
        cx: &InvocationContext,
        session_id: &str,
        tip: Option<&SessionSnapshot>,
        messages: &Messages,
    ) -> Result<Self, RuntimeError> {
        let mut lost = Self::default();
        let Some(ledger) = store.call_ledger() else { return Ok(lost) };
        let mut open = ledger.open_calls(cx, Some(session_id)).await?;
        open.retain(|record| !record.is_waiting());
        if open.is_empty() {
            return Ok(lost);
        }
        let mut line = Line { store, cx, tip, known: HashSet::new(), next: None, steps: 0 };
        if let Some(tip) = tip {
            line.known.insert(tip.snapshot_id.clone());
            line.next = tip.parent_id.clone();
        }
        let told = told_keys(messages);
        for record in open {
            if told.contains(&record.key) {
                lost.told.push(record.key);
            } else if let Some(committed) = line.concerns(&record).await? {
                // A turn that was committed holds its calls, but for those that went on after it.
                match committed && is_told(&record, messages) {
                    true => lost.told.push(record.key),
                    false => lost.calls.push(record),
                }
            }
        }
        let (calls, unknown) = (lost.calls.len(), lost.unknown().count());
        if calls > 0 {
            tracing::warn!(
                session_id,
                calls,
                unknown,
                "the history tells of tool calls that no snapshot holds"
            );
        }
        Ok(lost)
    }

    /// Those of which nobody knows how they ended.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &CallRecord> {
        self.calls.iter().filter(|call| !matches!(call.state, CallState::Ended { .. }))
    }

    /// What the history says of them after `messages`: a round of tools, and before it the outputs of
    /// calls that waited for a person at the end of the conversation.
    pub(crate) fn messages(&self, messages: &Messages) -> Vec<Message> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let tail = close_parked(messages, &self.calls);
        let closed: HashSet<_> = tail.iter().flat_map(outcome_keys).collect();
        let mut references = HashSet::new();
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        for record in self.calls.iter().filter(|record| !closed.contains(&record.key)) {
            let parked = record.approval.is_some();
            let taken = record.call_id.is_empty() || !references.insert(record.call_id.clone());
            // A call that waited stands in the history under its own id, with another output.
            let reference = if parked || taken { &record.key } else { &record.call_id };
            let (request, response) = told_as(record, reference);
            requests.push(request);
            responses.push(response);
        }
        let mut all: Vec<_> = tail.into_iter().collect();
        if !requests.is_empty() {
            all.extend([Message::new(Role::Model, requests), Message::new(Role::Tool, responses)]);
        }
        all
    }
}

/// The request and the output by which the history tells of a call.
pub(crate) fn told_as(record: &CallRecord, reference: &Arc<str>) -> (Part, Part) {
    let (output, outcome) = match &record.state {
        CallState::Ended { outcome, output, .. } => {
            (output.clone(), serde_json::to_value(outcome).unwrap_or_default())
        }
        _ => (json!({ "error": UNKNOWN }), json!("unknown")),
    };
    let note = json!({ "key": record.key, "outcome": outcome });
    let (input, tool) = (Value::Object(record.arguments.clone()), record.tool.clone());
    let request = Part::tool_request(tool.clone(), Some(reference.clone()), input);
    let response = Part::tool_response(tool, Some(reference.clone()), output);
    let noted = |part: Part| part.with_metadata_entry(LEDGER, note.clone());
    (noted(request), noted(response))
}

/// The keys of calls that a conversation tells of.
fn told_keys(messages: &Messages) -> HashSet<Arc<str>> {
    let tools = messages.iter().filter(|message| message.role == Role::Tool);
    tools.flat_map(|message| outcome_keys(message)).collect()
}

/// The keys of calls of whose outcomes a message tells.
fn outcome_keys(message: &Message) -> impl Iterator<Item = Arc<str>> {
    let parts = message.content.iter().filter(|part| tells_outcome(part));
    parts.filter_map(|part| Some(part.metadata_entry(LEDGER)?["key"].as_str()?.into()))
}

/// The snapshots that a conversation went through, as far as they were looked for.
struct Line<'a> {
    store: &'a Arc<dyn SessionStore>,
    cx: &'a InvocationContext,
    tip: Option<&'a SessionSnapshot>,
    known: HashSet<Arc<str>>,
    /// The one before those that are known.
    next: Option<Arc<str>>,
    steps: usize,
}

impl Line<'_> {
    /// Whether the snapshot of the call's turn was written; `None` where the call did not happen in
    /// this conversation.
    async fn concerns(&mut self, record: &CallRecord) -> Result<Option<bool>, RuntimeError> {
        let committed = match &record.snapshot_id {
            Some(id) => self.store.read_metadata(self.cx, id).await?.is_some(),
            None => false,
        };
        let concerns = match (&record.snapshot_id, &record.parent_id) {
            (Some(id), _) if committed => self.holds(id).await?,
            (_, Some(parent)) => self.holds(parent).await?,
            (_, None) => self.tip.is_none(),
        };
        Ok(concerns.then_some(committed))
    }

    async fn holds(&mut self, id: &Arc<str>) -> Result<bool, RuntimeError> {
        while !self.known.contains(id) {
            let Some(next) = self.next.take().filter(|_| self.steps < MAX_LINEAGE) else {
                return Ok(false);
            };
            self.steps += 1;
            let row = self.store.read_metadata(self.cx, &next).await?;
            self.known.insert(next);
            self.next = row.and_then(|row| row.parent_id);
        }
        Ok(true)
    }
}

/// Whether a conversation holds an output of the call; of one that waited for a person, the outcome.
fn is_told(record: &CallRecord, messages: &Messages) -> bool {
    if record.approval.is_some() {
        return false;
    }
    messages.iter_back().flat_map(|message| message.tool_responses()).any(|(_, response)| {
        response.name == record.tool && response.id.as_deref() == Some(&*record.call_id)
    })
}
