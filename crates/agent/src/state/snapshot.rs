//! Snapshots: the committed states of a session.

use std::{fmt, sync::Arc, time::Duration};

use antiphon_types::{JsonObject, Status};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AgentFinishReason, SessionState};
use crate::wire_object::wire_object;

/// A state of a session that was committed, or the row that stands for work in the background.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSnapshot<C = Value> {
    /// Its unique id.
    pub snapshot_id: Arc<str>,
    /// The session it belongs to; never changes. A store refuses a row without one.
    pub session_id: Option<Arc<str>>,
    /// The snapshot it continues from. For people; it plays no part in finding a session's latest.
    pub parent_id: Option<Arc<str>>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its state was last written; a heartbeat leaves it alone.
    pub updated_at: Option<Timestamp>,
    /// When the worker behind it last said that it is alive; `None` where nothing ran in the
    /// background.
    pub heartbeat_at: Option<Timestamp>,
    /// Where it stands; `None` counts as completed.
    pub status: Option<SnapshotStatus>,
    /// Why its turn or invocation ended.
    pub finish_reason: Option<AgentFinishReason>,
    /// What went wrong.
    pub error: Option<AgentErrorDetails>,
    /// The state; `None` while work is pending, where it was not asked for, and where a transform
    /// withheld it.
    pub state: Option<SessionState<C>>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

wire_object!(SessionSnapshot<C> {
    snapshot_id: required "snapshotId",
    session_id: optional "sessionId",
    parent_id: optional "parentId",
    created_at: required "createdAt",
    updated_at: optional "updatedAt",
    heartbeat_at: optional "heartbeatAt",
    status: optional "status",
    finish_reason: optional "finishReason",
    error: optional "error",
    state: optional "state",
});

impl<C> SessionSnapshot<C> {
    /// A row made at `now`, without state and status.
    pub fn new(
        snapshot_id: impl Into<Arc<str>>,
        session_id: impl Into<Arc<str>>,
        now: Timestamp,
    ) -> Self {
        Self {
            snapshot_id: snapshot_id.into(),
            session_id: Some(session_id.into()),
            parent_id: None,
            created_at: now,
            updated_at: Some(now),
            heartbeat_at: None,
            status: None,
            finish_reason: None,
            error: None,
            state: None,
            extra: JsonObject::new(),
        }
    }

    /// Where it stands, completed where it does not say.
    pub fn status(&self) -> SnapshotStatus {
        self.status.unwrap_or(SnapshotStatus::Completed)
    }

    /// Whether the worker behind it shows no sign of life any more: it is pending or aborting and
    /// its last heartbeat is older than `stale_after`. A row that was never beaten is not stale.
    pub fn is_stale(&self, now: Timestamp, stale_after: Duration) -> bool {
        let Some(beat) = self.heartbeat_at.filter(|_| !self.status().is_terminal()) else {
            return false;
        };
        Duration::try_from(now.duration_since(beat)).is_ok_and(|age| age > stale_after)
    }

    /// A copy of the row without its state.
    pub fn to_metadata(&self) -> Self {
        Self {
            snapshot_id: self.snapshot_id.clone(),
            session_id: self.session_id.clone(),
            parent_id: self.parent_id.clone(),
            created_at: self.created_at,
            updated_at: self.updated_at,
            heartbeat_at: self.heartbeat_at,
            status: self.status,
            finish_reason: self.finish_reason,
            error: self.error.clone(),
            state: None,
            extra: self.extra.clone(),
        }
    }

    /// The same row with another state.
    pub fn with_state<D>(self, state: Option<SessionState<D>>) -> SessionSnapshot<D> {
        SessionSnapshot {
            snapshot_id: self.snapshot_id,
            session_id: self.session_id,
            parent_id: self.parent_id,
            created_at: self.created_at,
            updated_at: self.updated_at,
            heartbeat_at: self.heartbeat_at,
            status: self.status,
            finish_reason: self.finish_reason,
            error: self.error,
            state,
            extra: self.extra,
        }
    }
}

/// Where a snapshot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SnapshotStatus {
    /// Work in the background goes on; the row has no state yet.
    Pending,
    /// The work was told to stop and winds down.
    Aborting,
    /// It holds a settled state.
    Completed,
    /// The caller stopped the work; it holds what was committed before.
    Aborted,
    /// Something broke; it holds what was committed before.
    Failed,
    /// Pending or aborting, but the worker shows no sign of life any more. Never stored: it is
    /// what a reader sees.
    Expired,
}

impl SnapshotStatus {
    /// The name on the wire, such as `completed`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Aborting => "aborting",
            Self::Completed => "completed",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
            Self::Expired => "expired",
        }
    }

    /// Whether nothing will change any more of itself.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Aborting)
    }
}

impl fmt::Display for SnapshotStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, as it is stored and told to clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentErrorDetails {
    /// The canonical code.
    pub status: Status,
    /// In words.
    pub message: String,
    /// Whatever the one who failed adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl AgentErrorDetails {
    /// An error without further details.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), details: None }
    }
}

impl fmt::Display for AgentErrorDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.message)
    }
}
