//! What is recorded of a call.

use std::sync::Arc;

use antiphon_types::{JsonObject, ToolCall};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{canonical_hash, lease::Lease};
use crate::{Caller, InvocationContext, Outcome, VerifiedLevel, tool::Effects};

/// A tool call that a store keeps account of.
///
/// It is there from before the call runs, or waits for a person, until a snapshot holds how it ended.
/// A call that waited for a person stays for good, settled, and so does one whose outcome is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CallRecord {
    /// The key of the record, unlike any other, and what a person who approves the call names.
    pub key: Arc<str>,
    /// The idempotency key that the tool is given, where it is not `key`: that of an earlier call like
    /// this one whose outcome is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Arc<str>>,
    /// The session.
    pub session_id: Arc<str>,
    /// The agent whose session it is.
    pub agent: Arc<str>,
    /// The snapshot that the turn of the call was to become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Arc<str>>,
    /// The last snapshot of the session that was on the disk then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<Arc<str>>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// The id of the call. Others may have the same.
    pub call_id: Arc<str>,
    /// The tool.
    pub tool: Arc<str>,
    /// The approved arguments.
    #[serde(with = "as_text")]
    pub arguments: JsonObject,
    /// Their [`canonical_hash`].
    pub arguments_hash: Arc<str>,
    /// What the tool says that it changes.
    pub effects: Effects,
    /// In whose name it is made: limits count it as theirs, whoever approves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<CalledBy>,
    /// When the record was made.
    pub created_at: Timestamp,
    /// How far the call is.
    pub state: CallState,
    /// What there is to a call that waits for a person, or did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// A snapshot holds how it ended, or that this is not known: there is nothing left to be told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// The call that was made in the place of this one, whose outcome is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed_by: Option<Arc<str>>,
}

/// In whose name a call is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CalledBy {
    /// The caller's id; empty where nobody knows it.
    pub id: Arc<str>,
    /// The tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Arc<str>>,
    /// What the host knew of the caller.
    #[serde(with = "as_text", default, skip_serializing_if = "JsonObject::is_empty")]
    pub claims: JsonObject,
    /// How surely the host knew who called: see [`VerifiedLevel`].
    #[serde(default)]
    pub verified: u8,
}

impl CalledBy {
    pub(crate) fn of(cx: &InvocationContext) -> Option<Self> {
        let verified = VerifiedLevel::of(cx).0;
        if cx.caller().is_none() && verified == 0 {
            return None;
        }
        let Caller { id, scope, claims } = cx.caller().cloned().unwrap_or_default();
        Some(Self { id, scope, claims, verified })
    }
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum CallState {
    /// It waits for a person.
    Waiting,
    /// It runs. Where its process is gone, nobody knows how it ended.
    Running {
        /// Since then.
        since: Timestamp,
        /// That a process works on it; `None` where none does any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<Lease>,
    },
    /// It has its outcome.
    Ended {
        /// When.
        at: Timestamp,
        /// How.
        outcome: Outcome,
        /// What the tool gave; `{"error": text}` for failures.
        #[serde(with = "as_text")]
        output: Value,
        /// More, for the host's records.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
}

/// What there is to a call that waits for a person, or did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Approval {
    /// Who wants it.
    pub asked_by: AskedBy,
    /// What the person is told of it: the data of the tool's interrupt, or `{"reason": text}`.
    #[serde(with = "as_text")]
    pub question: Value,
    /// When it began to wait.
    pub requested_at: Timestamp,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The caller confirmed the call before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The agent that asked for it, where the conversation had been handed over to another than the one
    /// whose session it is: only with its tools it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<Arc<str>>,
    /// The caller whose memory the tool sees, where it is not that of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_of: Option<Arc<str>>,
    /// The provider of the session runs it, and not a tool here: it can be approved only while that session
    /// lives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_provider: bool,
    /// A session lives until then that will tell the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attended_until: Option<Timestamp>,
    /// What was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// Who wants a person to decide over a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AskedBy {
    /// The tool, which ran up to its interrupt and runs again with the answer.
    Tool,
    /// The policy: the tool has not run.
    Policy,
    /// The ledger: a call like this one may have happened before.
    Ledger,
}

/// What a person decided over a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Decision {
    /// Whether the call may run.
    pub approved: bool,
    /// Who decided, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// When.
    pub at: Timestamp,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the tool is told: an object, or `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// Tells it from any other decision, also by the same person at the same time.
    pub nonce: Arc<str>,
}

impl CallRecord {
    /// A record of a call that begins to run at `now`. What belongs to a turn of an agent is to be
    /// filled in.
    pub fn new(
        key: impl Into<Arc<str>>,
        session_id: impl Into<Arc<str>>,
        call: &ToolCall,
        now: Timestamp,
    ) -> Self {
        Self {
            key: key.into(),
            idempotency_key: None,
            session_id: session_id.into(),
            agent: Arc::default(),
            snapshot_id: None,
            parent_id: None,
            turn: 0,
            call_id: call.id.clone(),
            tool: call.name.clone(),
            arguments: call.args.clone(),
            arguments_hash: canonical_hash(&call.args).unwrap_or_default().into(),
            effects: Effects::default(),
            caller: None,
            created_at: now,
            state: CallState::Running { since: now, lease: None },
            approval: None,
            settled: false,
            followed_by: None,
        }
    }

    /// Whether it waits for a person.
    pub fn is_waiting(&self) -> bool {
        self.state == CallState::Waiting
    }

    /// Whether a session lives that is going to tell how it ended.
    pub fn is_attended(&self, now: Timestamp) -> bool {
        let until = self.approval.as_ref().and_then(|approval| approval.attended_until);
        until.is_some_and(|until| until > now)
    }

    /// Whether it runs, as far as can be seen from here at `now`: its process is there, or said that it
    /// would be.
    pub fn is_running(&self, now: Timestamp) -> bool {
        match &self.state {
            CallState::Running { lease: Some(lease), .. } => lease.stands(&self.key, now),
            _ => false,
        }
    }

    /// Whether nobody knows how it ended: it is recorded as running, and nobody works on it.
    pub fn is_lost(&self, now: Timestamp) -> bool {
        matches!(self.state, CallState::Running { .. }) && !self.is_running(now)
    }

    /// How it ended, where it waits at `now` and has done so for too long.
    pub(crate) fn expired(&self, now: Timestamp) -> Option<CallState> {
        let until = self.approval.as_ref().and_then(|approval| approval.expires_at)?;
        (self.is_waiting() && until <= now).then(|| CallState::Ended {
            at: now,
            outcome: Outcome::Expired,
            output: json!({ "error": Outcome::Expired.fixed_text() }),
            detail: Some(format!("nobody decided until {until}")),
        })
    }

    /// The context of an approver as that of the caller in whose name the call is made.
    pub(crate) fn on_behalf(&self, cx: &InvocationContext) -> InvocationContext {
        let Some(CalledBy { id, scope, claims, verified }) = self.caller.clone() else {
            return cx.on_behalf_of(None, VerifiedLevel::default());
        };
        cx.on_behalf_of(Some(Caller { id, scope, claims }), VerifiedLevel(verified))
    }

    /// The agent that asked for it: the one whose session it is, or another that had the conversation
    /// then.
    pub fn asker(&self) -> &Arc<str> {
        let speaker = self.approval.as_ref().and_then(|approval| approval.speaker.as_ref());
        speaker.unwrap_or(&self.agent)
    }

    /// The key that the tool is given.
    pub fn idempotency_key(&self) -> &Arc<str> {
        self.idempotency_key.as_ref().unwrap_or(&self.key)
    }

    /// Whether it is the same tool with the same arguments.
    pub fn is_like(&self, call: &ToolCall) -> bool {
        // The hash is for others to compare; two large numbers may share theirs.
        self.tool == call.name && self.arguments == call.args
    }

    /// The call, to be admitted again.
    pub fn call(&self) -> ToolCall {
        let (id, name) = (self.call_id.clone(), self.tool.clone());
        ToolCall { id, name, args: self.arguments.clone() }
    }
}

/// Values as JSON text: however deep they are, what they are in is not deeper.
mod as_text {
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{DeserializeOwned, Error as _},
        ser::Error as _,
    };

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        serde_json::from_str(&text).map_err(D::Error::custom)
    }
}
