//! From where an invocation starts.

use std::sync::{Arc, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{definition::Definition, reads::bounded};
use crate::{
    InvocationContext, RuntimeError,
    id::new_id,
    ledger::Lost,
    message::Messages,
    protocol::AgentInit,
    session::State,
    state::{SessionSnapshot, SessionState, SnapshotStatus},
};

/// What an invocation starts with.
pub(super) struct Start<S> {
    pub(super) session_id: Arc<str>,
    pub(super) state: SessionState<S>,
    /// The snapshot that it goes on from.
    pub(super) tip: Option<Tip>,
    /// Calls that no snapshot holds; the state tells of them.
    pub(super) lost: Lost,
}

/// A snapshot that others may follow.
#[derive(Clone, Debug)]
pub(super) struct Tip {
    pub(super) id: Arc<str>,
    pub(super) created_at: Timestamp,
}

impl<S: State> Definition<S> {
    /// When a snapshot is made that goes on from `tip`: `now`, but later than that one and than any
    /// other that this agent made. A session's latest snapshot is the one made last, and clocks
    /// stand still and go backwards.
    pub(super) fn stamp(&self, tip: Option<&Tip>, now: Timestamp) -> Timestamp {
        let after = |time: Timestamp| time.checked_add(SignedDuration::from_micros(1)).ok();
        let mut last = self.last_stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = tip.map(|tip| tip.created_at).into_iter().chain(*last).filter_map(after).max();
        let stamp = floor.map_or(now, |floor| floor.max(now));
        *last = Some(stamp);
        stamp
    }

    /// Finds where an invocation starts. Every error is one of the call: nothing has begun.
    pub(super) async fn start(
        &self,
        cx: &InvocationContext,
        init: AgentInit<S>,
    ) -> Result<Start<S>, RuntimeError> {
        let AgentInit { session_id, snapshot_id, state } = init;
        for (what, id) in [("session", &session_id), ("snapshot", &snapshot_id)] {
            if id.as_ref().is_some_and(|id| id.is_empty()) {
                return Err(RuntimeError::InvalidArgument(format!(
                    "the {what} id is empty: leave it out, or name one"
                )));
            }
        }
        let by_id = session_id.is_some() || snapshot_id.is_some();
        if state.is_some() && by_id {
            return Err(RuntimeError::InvalidArgument(
                "an invocation starts from a state or by session and snapshot id, not both"
                    .to_owned(),
            ));
        }
        if self.store.is_some() && state.is_some() {
            return Err(RuntimeError::FailedPrecondition(format!(
                "agent {:?} keeps its sessions in a store: send a session or snapshot id, no state",
                self.name
            )));
        }
        if self.store.is_none() && by_id {
            return Err(RuntimeError::FailedPrecondition(format!(
                "agent {:?} has no session store: send the state, no session or snapshot id",
                self.name
            )));
        }
        if let Some(status) = cx.has_ended() {
            // Work that has begun is seen to its end, which may be a commit.
            return Err(RuntimeError::ended(status, "the call was over before anything began"));
        }
        match &self.store {
            None => Ok(from_state(state)),
            Some(_) => self.resume(cx, session_id, snapshot_id).await,
        }
    }

    async fn resume(
        &self,
        cx: &InvocationContext,
        session_id: Option<Arc<str>>,
        snapshot_id: Option<Arc<str>>,
    ) -> Result<Start<S>, RuntimeError> {
        let store = self.required_store()?;
        let row = match (&snapshot_id, &session_id) {
            (Some(id), _) => {
                let row = bounded(cx, &self.limits, store.get_snapshot(cx, id)).await?;
                let row = row.ok_or_else(|| RuntimeError::SnapshotNotFound(id.clone()))?;
                assert_snapshot(&row, id)?;
                assert_session(&row, session_id.as_deref())?;
                Some(row)
            }
            (None, Some(id)) => {
                let row = bounded(cx, &self.limits, store.get_latest_snapshot(cx, id)).await?;
                row.as_ref().map_or(Ok(()), |row| assert_latest(row, id))?;
                // The first turn was left in the background and its worker is gone: there is nothing
                // that it could go on from, but for what its calls did.
                row.filter(|row| row.parent_id.is_some() || !self.is_abandoned(row))
            }
            (None, None) => None,
        };
        let Some(row) = row else {
            let lost = match &session_id {
                Some(id) => self.lost(cx, id, None, &Messages::new()).await?,
                None => Lost::default(),
            };
            let session_id = session_id.unwrap_or_else(new_id);
            let messages = lost.messages(&Messages::new()).into_iter().collect();
            let state = SessionState {
                session_id: Some(session_id.clone()),
                messages,
                ..Default::default()
            };
            return Ok(Start { session_id, state, tip: None, lost });
        };
        self.resumable(&row)?;
        let tip = Tip { id: row.snapshot_id.clone(), created_at: row.created_at };
        let row_session = row.session_id.clone();
        let metadata = row.to_metadata();
        let mut state = decode_stored(row)?.state.unwrap_or_default();
        let session_id =
            row_session.or_else(|| state.session_id.clone()).or(session_id).unwrap_or_else(new_id);
        let lost = self.lost(cx, &session_id, Some(&metadata), &state.messages).await?;
        let told = lost.messages(&state.messages);
        state.messages.extend(told);
        Ok(Start { session_id, state, tip: Some(tip), lost })
    }

    /// Calls that happened in the conversation and that no snapshot of it holds.
    async fn lost(
        &self,
        cx: &InvocationContext,
        session_id: &str,
        tip: Option<&SessionSnapshot>,
        messages: &Messages,
    ) -> Result<Lost, RuntimeError> {
        let (store, now) = (self.required_store()?, (self.clock)());
        bounded(cx, &self.limits, Lost::find(store, cx, session_id, tip, messages, now)).await
    }

    /// Whether nobody works any more on a row that was never settled.
    fn is_abandoned(&self, row: &SessionSnapshot) -> bool {
        let pending = matches!(row.status(), SnapshotStatus::Pending | SnapshotStatus::Aborting);
        pending && row.is_stale((self.clock)(), self.limits.stale_after)
            || row.status() == SnapshotStatus::Expired
    }

    /// Whether a conversation can go on from the row, by its status.
    fn resumable(&self, row: &SessionSnapshot) -> Result<(), RuntimeError> {
        let id = &row.snapshot_id;
        let before = match &row.parent_id {
            Some(parent) => format!("resume {parent:?}, the snapshot before it"),
            None => "there is nothing before it to resume".to_owned(),
        };
        let stale = row.is_stale((self.clock)(), self.limits.stale_after);
        let message = match (row.status(), &row.state) {
            (SnapshotStatus::Completed, _) => return Ok(()),
            (SnapshotStatus::Failed | SnapshotStatus::Aborted, Some(_)) => return Ok(()),
            (status @ (SnapshotStatus::Failed | SnapshotStatus::Aborted), None) => {
                format!("snapshot {id:?} was {status} and has no state: {before}")
            }
            (SnapshotStatus::Pending, _) if stale => {
                format!("the worker of snapshot {id:?} is gone: abort it, then {before}")
            }
            (SnapshotStatus::Aborting, _) if stale => {
                format!("the worker of snapshot {id:?} is gone: {before}")
            }
            (SnapshotStatus::Expired, _) => format!("snapshot {id:?} expired: {before}"),
            (SnapshotStatus::Pending, _) => {
                let wait = "wait until its work is done, or abort it";
                let message = format!("snapshot {id:?} is pending: {wait}");
                return Err(RuntimeError::FailedPrecondition(message));
            }
            (SnapshotStatus::Aborting, _) => {
                let message =
                    format!("snapshot {id:?} is being aborted: try again once it has settled");
                return Err(RuntimeError::FailedPrecondition(message));
            }
        };
        let (snapshot_id, parent_id) = (id.clone(), row.parent_id.clone());
        Err(RuntimeError::WorkLost { snapshot_id, parent_id, message })
    }
}

fn from_state<S>(state: Option<SessionState<S>>) -> Start<S> {
    let mut state = state.unwrap_or_default();
    let session_id = state.session_id.take().filter(|id| !id.is_empty()).unwrap_or_else(new_id);
    state.session_id = Some(session_id.clone());
    Start { session_id, state, tip: None, lost: Lost::default() }
}

/// Errs where the store answered with another snapshot than the one it was asked for.
pub(super) fn assert_snapshot<C>(row: &SessionSnapshot<C>, id: &str) -> Result<(), RuntimeError> {
    if *row.snapshot_id != *id {
        return Err(RuntimeError::internal(format!(
            "the store answered with snapshot {:?} when asked for {id:?}",
            row.snapshot_id
        )));
    }
    Ok(())
}

/// Errs where the store answered with a snapshot of another session than the one it was asked for.
pub(super) fn assert_latest<C>(
    row: &SessionSnapshot<C>,
    session_id: &str,
) -> Result<(), RuntimeError> {
    let of = row.session_id.as_deref().unwrap_or_default();
    if of != session_id {
        return Err(RuntimeError::internal(format!(
            "the store answered with a snapshot of session {of:?} when asked for {session_id:?}"
        )));
    }
    Ok(())
}

/// Errs where the row belongs to another session than the one asserted.
pub(super) fn assert_session<C>(
    row: &SessionSnapshot<C>,
    asserted: Option<&str>,
) -> Result<(), RuntimeError> {
    match (row.session_id.as_deref(), asserted) {
        (Some(actual), Some(asserted)) if actual != asserted => Err(RuntimeError::InvalidArgument(
            format!("snapshot {:?} belongs to another session than {asserted:?}", row.snapshot_id),
        )),
        _ => Ok(()),
    }
}

/// The row with its custom state as the agent's type.
pub(super) fn decode_stored<S: State>(
    row: SessionSnapshot,
) -> Result<SessionSnapshot<S>, RuntimeError> {
    let mut row = row;
    let state = match row.state.take() {
        Some(mut state) => {
            let custom = match state.custom.take().filter(|custom| !custom.is_null()) {
                None => None,
                Some(custom) => Some(serde_json::from_value(custom).map_err(|error| {
                    RuntimeError::FailedPrecondition(format!(
                        "the custom state of snapshot {:?} is none of this agent's: {error}",
                        row.snapshot_id
                    ))
                })?),
            };
            Some(state.with_custom(custom))
        }
        None => None,
    };
    Ok(row.with_state(state))
}

/// What a client sent, with its custom state as the agent's type.
pub(super) fn decode_init<S: State>(init: AgentInit) -> Result<AgentInit<S>, RuntimeError> {
    let state = match init.state {
        Some(mut state) => {
            // `null` is as good as never set, as it is where it comes as text.
            let custom = match state.custom.take().filter(|custom| !custom.is_null()) {
                None => None,
                Some(custom) => Some(serde_json::from_value(custom).map_err(|error| {
                    RuntimeError::InvalidArgument(format!(
                        "the custom state is none of this agent's: {error}"
                    ))
                })?),
            };
            Some(state.with_custom(custom))
        }
        None => None,
    };
    Ok(AgentInit { session_id: init.session_id, snapshot_id: init.snapshot_id, state })
}

/// The state with its custom state as JSON.
pub(super) fn encode_state<S: State>(
    mut state: SessionState<S>,
) -> Result<SessionState, RuntimeError> {
    let custom = match state.custom.take() {
        None => None,
        Some(custom) => {
            let lost = |error| {
                RuntimeError::internal(format!("the custom state does not travel as JSON: {error}"))
            };
            let custom = serde_json::to_value(custom).map_err(lost)?;
            // A number that is none is written as `null`, and nobody could go on from it.
            if holds_null(&custom) {
                S::deserialize(&custom).map_err(lost)?;
            }
            Some(custom)
        }
    };
    Ok(state.with_custom(custom))
}

fn holds_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(holds_null),
        Value::Object(members) => members.values().any(holds_null),
        _ => false,
    }
}
