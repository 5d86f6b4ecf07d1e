//! Calls of turns that no snapshot holds, and what the history says of them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    CallChange, CallLedger, CallRecord, CallState, LEDGER, in_order,
    tail::{close_parked, tells_outcome, waiting_key},
};
use crate::{
    InvocationContext, Message, Messages, Part, Role, RuntimeError, state::SessionSnapshot,
    store::SessionStore, tool::Effects,
};

/// What a model is told of a call whose outcome is not known.
const UNKNOWN: &str = "The outcome of this call is not known: it was cut off while the tool ran. \
                       It may have taken effect. Do not take it for done, nor for not done.";
/// Snapshots that are looked at to find out whether a call belongs to a conversation.
const MAX_LINEAGE: usize = 100_000;
/// Snapshots so much older than a call were there before it: clocks are no further apart.
const CLOCKS_APART: SignedDuration = SignedDuration::from_hours(24);
/// Calls told as unknown, or as waiting, of which it is looked up whether they still are; the newest.
const MAX_UNKNOWN: usize = 256;

/// The calls of a conversation that no snapshot of it holds: of a turn that was lost with its
/// process, or undone, and such that waited for a person and have ended since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lost {
    /// Those made first first.
    pub(crate) calls: Vec<CallRecord>,
    /// The keys of others, which the conversation tells of although their records are still there.
    pub(crate) told: Vec<Arc<str>>,
    /// The keys of calls of the conversation that wait for a person, or run for one who approved them.
    pub(crate) waiting: HashSet<Arc<str>>,
    /// All calls of the conversation of which nobody knows how they ended, those made first first: of
    /// `calls`, and of before.
    pub(crate) unknown: Vec<CallRecord>,
}

impl Lost {
    /// Looks for those that happened after `tip`, or beside the conversation up to there.
    pub(crate) async fn find(
        store: &Arc<dyn SessionStore>,
        cx: &InvocationContext,
        session_id: &str,
        tip: Option<&SessionSnapshot>,
        messages: &Messages,
        now: Timestamp,
    ) -> Result<Self, RuntimeError> {
        let mut lost = Self::default();
        let Some(ledger) = store.call_ledger() else { return Ok(lost) };
        let open = ledger.open_calls(cx, Some(session_id)).await?;
        let told = told_of(messages);
        let mut line = Line::new(store, cx, tip, messages.len());
        let mut waits = waiting_in(messages, &told);
        for record in open {
            waits.retain(|key| *key != record.key);
            let record = expired_if_due(ledger, cx, record, now).await?;
            if record.is_waiting() || record.is_running(now) {
                // Somebody has yet to decide, or is at work on it.
                if record.approval.is_some() && line.concerns(&record).await? {
                    lost.waiting.insert(record.key);
                }
                continue;
            }
            match told.get(&record.key) {
                // The outcome came after all.
                Some(Told::Unknown) if !record.is_lost(now) => lost.calls.push(record),
                Some(_) => lost.told.push(record.key),
                None if line.concerns(&record).await? => {
                    let after = line.messages_before(&record).await?;
                    match !is_open(&record, now) && is_told(&record, messages, after) {
                        true => lost.told.push(record.key),
                        false => lost.calls.push(record),
                    }
                }
                None => {}
            }
        }
        // Another line of the conversation may have told how they ended; this one has not.
        for key in waits {
            let record = ledger.call(cx, &key).await?;
            let record = record.filter(|it| !it.is_waiting() && !it.is_running(now));
            lost.calls.extend(record);
        }
        in_order(&mut lost.calls);
        let calls = lost.calls.len();
        let unknown = lost.newly_unknown().filter(|call| call.followed_by.is_none());
        lost.unknown = unknown.cloned().collect();
        if calls > 0 {
            let unknown = lost.unknown.len();
            tracing::warn!(
                session_id,
                calls,
                unknown,
                "the history tells of tool calls that no snapshot holds"
            );
        }
        lost.find_unknown(ledger, cx, messages, &told, now).await?;
        Ok(lost)
    }

    /// Those of `calls` of which nobody knows how they ended.
    pub(crate) fn newly_unknown(&self) -> impl Iterator<Item = &CallRecord> {
        self.calls.iter().filter(|call| !matches!(call.state, CallState::Ended { .. }))
    }

    /// Adds those that the history told as unknown before, and that still are.
    async fn find_unknown(
        &mut self,
        ledger: &dyn CallLedger,
        cx: &InvocationContext,
        messages: &Messages,
        told: &HashMap<Arc<str>, Told>,
        now: Timestamp,
    ) -> Result<(), RuntimeError> {
        let newest_first = messages.iter_back().flat_map(|message| outcomes(message));
        let unknown = newest_first.filter(|(key, _)| told.get(key) == Some(&Told::Unknown));
        let mut keys: Vec<Arc<str>> = Vec::new();
        for (key, _) in unknown {
            if !keys.contains(&key) {
                keys.push(key);
            }
            if keys.len() == MAX_UNKNOWN {
                break;
            }
        }
        for key in &keys {
            let record = ledger.call(cx, key).await?;
            let record = record.filter(|it| it.is_lost(now) && it.followed_by.is_none());
            self.unknown.extend(record);
        }
        in_order(&mut self.unknown);
        Ok(())
    }

    /// What the history says of them after `messages`: a round of tools, and before it the outputs of
    /// calls that waited for a person at the end of the conversation.
    pub(crate) fn messages(&self, messages: &Messages) -> Vec<Message> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let tail = close_parked(messages, &self.calls);
        let closed: HashSet<_> = tail.iter().flat_map(outcomes).map(|(key, _)| key).collect();
        let told = told_of(messages);
        let mut references = HashSet::new();
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        for record in self.calls.iter().filter(|record| !closed.contains(&record.key)) {
            // A call that waited, or was unknown, stands in the history under its own id, with another
            // output.
            let stands = record.approval.is_some() || told.contains_key(&record.key);
            let taken = record.call_id.is_empty() || !references.insert(record.call_id.clone());
            let reference = if stands || taken { &record.key } else { &record.call_id };
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

/// How a conversation tells of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Outcome,
    Unknown,
}

/// The keys of calls that a conversation tells of, and how it does in the end.
fn told_of(messages: &Messages) -> HashMap<Arc<str>, Told> {
    let tools = messages.iter().filter(|message| message.role == Role::Tool);
    tools.flat_map(|message| outcomes(message)).collect()
}

/// A call that waited for too long is over, unless a session lives that says so.
async fn expired_if_due(
    ledger: &dyn CallLedger,
    cx: &InvocationContext,
    record: CallRecord,
    now: Timestamp,
) -> Result<CallRecord, RuntimeError> {
    let Some(ended) = record.expired(now) else { return Ok(record) };
    let attended = record.approval.as_ref().and_then(|approval| approval.attended_until);
    if attended.is_some_and(|until| until > now) {
        return Ok(record);
    }
    let update = |record: Option<&CallRecord>| {
        Ok(match record {
            // Else somebody decided in this moment.
            Some(record) if record.is_waiting() => {
                CallChange::Write(Box::new(CallRecord { state: ended.clone(), ..record.clone() }))
            }
            _ => CallChange::Keep,
        })
    };
    Ok(ledger.save_call(cx, &record.key, &update).await?.unwrap_or(record))
}

/// The keys of calls of which a conversation tells that they wait for a person, and no more; the newest.
fn waiting_in(messages: &Messages, told: &HashMap<Arc<str>, Told>) -> Vec<Arc<str>> {
    let mut keys: Vec<Arc<str>> = Vec::new();
    let parts = messages.iter_back().flat_map(|message| message.content.iter());
    for key in parts.filter_map(waiting_key) {
        if !told.contains_key(key) && !keys.iter().any(|known| **known == *key) {
            keys.push(key.into());
        }
        if keys.len() == MAX_UNKNOWN {
            break;
        }
    }
    keys
}

/// The calls of whose outcomes a message tells.
fn outcomes(message: &Message) -> impl Iterator<Item = (Arc<str>, Told)> {
    let parts = message.content.iter().filter(|part| tells_outcome(part));
    parts.filter_map(|part| {
        let note = part.metadata_entry(LEDGER)?;
        let told = if note["outcome"] == "unknown" { Told::Unknown } else { Told::Outcome };
        Some((note["key"].as_str()?.into(), told))
    })
}

/// The snapshots that a conversation went through, as far as they were looked for.
struct Line<'a> {
    store: &'a Arc<dyn SessionStore>,
    cx: &'a InvocationContext,
    tip: Option<&'a SessionSnapshot>,
    /// When they were made.
    known: HashMap<Arc<str>, Timestamp>,
    /// The oldest of those that are known.
    oldest: Option<Timestamp>,
    /// The one before those that are known.
    next: Option<Arc<str>>,
    steps: usize,
    /// How many messages there were with a snapshot.
    counts: HashMap<Arc<str>, usize>,
}

impl<'a> Line<'a> {
    fn new(
        store: &'a Arc<dyn SessionStore>,
        cx: &'a InvocationContext,
        tip: Option<&'a SessionSnapshot>,
        messages: usize,
    ) -> Self {
        Self {
            store,
            cx,
            tip,
            known: tip.iter().map(|tip| (tip.snapshot_id.clone(), tip.created_at)).collect(),
            oldest: tip.map(|tip| tip.created_at),
            next: tip.and_then(|tip| tip.parent_id.clone()),
            steps: 0,
            counts: tip.iter().map(|tip| (tip.snapshot_id.clone(), messages)).collect(),
        }
    }

    /// Whether the call happened in this conversation.
    async fn concerns(&mut self, record: &CallRecord) -> Result<bool, RuntimeError> {
        let since = record.created_at.saturating_sub(CLOCKS_APART).unwrap_or(Timestamp::MIN);
        let committed = match &record.snapshot_id {
            Some(id) => self.store.read_metadata(self.cx, id).await?.is_some(),
            None => false,
        };
        match (&record.snapshot_id, &record.parent_id) {
            (Some(id), _) if committed => self.holds(id, since).await,
            (_, Some(parent)) => self.holds(parent, since).await,
            // Nothing of the session was on the disk: it is the beginning of what was after it.
            (_, None) => self.begins_after(record.created_at, since).await,
        }
    }

    /// How many messages of the conversation were there before the call, as far as that is known.
    async fn messages_before(&mut self, record: &CallRecord) -> Result<usize, RuntimeError> {
        let Some(parent) = &record.parent_id else { return Ok(0) };
        if let Some(count) = self.counts.get(parent) {
            return Ok(*count);
        }
        let row = self.store.get_snapshot(self.cx, parent).await?;
        let count = row.and_then(|row| row.state).map_or(0, |state| state.messages.len());
        self.counts.insert(parent.clone(), count);
        Ok(count)
    }

    /// Whether the snapshot is one of these. One that is not found among those made `since` is none.
    async fn holds(&mut self, id: &Arc<str>, since: Timestamp) -> Result<bool, RuntimeError> {
        while !self.known.contains_key(id) {
            if self.oldest.is_some_and(|oldest| oldest < since) || !self.step().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the first snapshot was made after that time; `true` where there is none.
    async fn begins_after(
        &mut self,
        time: Timestamp,
        since: Timestamp,
    ) -> Result<bool, RuntimeError> {
        if self.tip.is_none() {
            return Ok(true);
        }
        loop {
            if self.oldest.is_some_and(|oldest| oldest < since) {
                return Ok(false);
            }
            if !self.step().await? {
                let begins = self.next.is_none() && self.steps < MAX_LINEAGE;
                return Ok(begins && self.oldest.is_none_or(|oldest| oldest >= time));
            }
        }
    }

    /// Looks at one snapshot more; `false` where there is none.
    async fn step(&mut self) -> Result<bool, RuntimeError> {
        if self.steps >= MAX_LINEAGE {
            return Ok(false);
        }
        let Some(next) = self.next.take() else { return Ok(false) };
        self.steps += 1;
        let row = self.store.read_metadata(self.cx, &next).await?;
        let Some(row) = row else { return Ok(false) };
        self.known.insert(next, row.created_at);
        self.oldest = Some(self.oldest.map_or(row.created_at, |oldest| oldest.min(row.created_at)));
        self.next = row.parent_id;
        Ok(true)
    }
}

/// Whether what came of the call is still not known. What the conversation has for an output of it then
/// says that it was cut off: that is no outcome.
fn is_open(record: &CallRecord, now: Timestamp) -> bool {
    let changes = record.effects != Effects::ReadOnly;
    record.is_lost(now) && changes && record.followed_by.is_none()
}

/// Whether a conversation holds an output of the call after so many messages; of one that waited for
/// a person, the outcome.
fn is_told(record: &CallRecord, messages: &Messages, after: usize) -> bool {
    if record.approval.is_some() {
        return false;
    }
    let new = messages.len().saturating_sub(after);
    let new = messages.iter_back().take(new);
    new.flat_map(|message| message.tool_responses()).any(|(_, response)| {
        response.name == record.tool && response.id.as_deref() == Some(&*record.call_id)
    })
}
