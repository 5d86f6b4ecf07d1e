//! What a store on disk holds, for people and hosts that look through it.

use std::sync::Arc;

use jiff::Timestamp;

use crate::state::SessionSnapshot;

/// A session of a store.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SessionSummary {
    /// Its id.
    pub session_id: Arc<str>,
    /// How many snapshots it has; at least one.
    pub snapshots: u64,
    /// When its first snapshot was made.
    pub first_created_at: Timestamp,
    /// Its latest snapshot, without the state.
    pub latest: SessionSnapshot,
}

/// A snapshot of a store, and how much there is to it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SnapshotSummary {
    /// Without the state.
    pub snapshot: SessionSnapshot,
    /// How many messages the state has; `None` where there is no state.
    pub messages: Option<usize>,
    /// How many artifacts the state has; `None` where there is no state.
    pub artifacts: Option<usize>,
}
