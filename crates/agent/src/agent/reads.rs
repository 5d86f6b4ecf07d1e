//! Reading snapshots, waiting for them, and stopping the work behind them.

use std::{future::ready, panic::AssertUnwindSafe, pin::pin, time::Duration};

use antiphon_types::Status;
use futures_util::{
    FutureExt, StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    definition::Definition,
    limits::{RuntimeLimits, later},
    outlet::guarded,
    start::{assert_latest, assert_session, assert_snapshot, decode_stored, encode_state},
};
use crate::{
    InvocationContext, RuntimeError,
    protocol::GetSnapshotRequest,
    session::State,
    state::{SessionSnapshot, SnapshotStatus},
    store::SnapshotSubscriber,
};

/// How often a wait says in the log that it goes on.
const PROGRESS: Duration = Duration::from_secs(30);

/// Waits for an operation of a store, within its limit and the caller's time. A store that panics
/// errs.
pub(super) async fn bounded<T>(
    cx: &InvocationContext,
    limits: &RuntimeLimits,
    operation: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    tokio::select! {
        biased;
        status = cx.ended() => Err(RuntimeError::ended(status, "the session store was at work")),
        done = timeout(limits.store, AssertUnwindSafe(operation).catch_unwind()) => match done {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(RuntimeError::internal("the session store panicked")),
            Err(_) => Err(RuntimeError::new(
                Status::Unavailable,
                format!("the session store did not answer within {:?}", limits.store),
            )),
        },
    }
}

/// Subscribes to a snapshot. Where the store panics, the stream ends.
pub(super) fn status_changes(
    subscriber: &dyn SnapshotSubscriber,
    cx: &InvocationContext,
    id: &str,
) -> BoxStream<'static, SnapshotStatus> {
    let subscribe = || Ok(subscriber.on_snapshot_status_change(cx, id));
    match guarded("session store", subscribe) {
        Ok(changes) => AssertUnwindSafe(changes)
            .catch_unwind()
            .take_while(|change| ready(change.is_ok()))
            .filter_map(|change| ready(change.ok()))
            .boxed(),
        Err(error) => {
            tracing::error!(%error, snapshot_id = id, "changes of a snapshot are not told");
            stream::empty().boxed()
        }
    }
}

impl<S: State> Definition<S> {
    /// Reads a snapshot as clients see it.
    pub(super) async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        let row = decode_stored(self.read(cx, request).await?)?;
        self.shown(cx, row)
    }

    /// [`Definition::get_snapshot`] with the custom state as JSON.
    pub(super) async fn get_snapshot_json(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        let row = self.read(cx, request).await?;
        self.shown_json(cx, row)
    }

    /// Waits until a snapshot is settled and reads it as clients see it.
    pub(super) async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        let row = decode_stored(self.wait(cx, request).await?)?;
        self.shown(cx, row)
    }

    /// [`Definition::wait_for_snapshot`] with the custom state as JSON.
    pub(super) async fn wait_for_snapshot_json(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        let row = self.wait(cx, request).await?;
        self.shown_json(cx, row)
    }

    /// Asks the work behind a snapshot to stop: an ordinary write, of which the work hears. Returns
    /// where the row stands after it; `None` where there is none.
    pub(super) async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        let store = self.required_store()?;
        required("snapshot", snapshot_id)?;
        let now = (self.clock)();
        let update = |row: Option<&SessionSnapshot>| {
            Ok(row.map(|row| {
                let mut row = row.clone();
                if row.status() == SnapshotStatus::Pending {
                    row.status = Some(SnapshotStatus::Aborting);
                    row.updated_at = Some(now);
                }
                row
            }))
        };
        let saved =
            bounded(cx, &self.limits, store.save_snapshot(cx, Some(snapshot_id), &update)).await?;
        Ok(saved.map(|row| row.status()))
    }

    /// Reads a row and fills in what readers count on.
    async fn read(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        let store = self.required_store()?;
        let GetSnapshotRequest { snapshot_id, session_id, metadata_only } = request;
        let row = match (snapshot_id, session_id) {
            (Some(id), _) => {
                required("snapshot", id)?;
                let row = match metadata_only {
                    true => bounded(cx, &self.limits, store.read_metadata(cx, id)).await?,
                    false => bounded(cx, &self.limits, store.get_snapshot(cx, id)).await?,
                };
                let row = row.ok_or_else(|| RuntimeError::SnapshotNotFound(id.clone()))?;
                assert_snapshot(&row, id)?;
                row
            }
            (None, Some(id)) => {
                required("session", id)?;
                let row = match metadata_only {
                    true => bounded(cx, &self.limits, store.read_latest_metadata(cx, id)).await?,
                    false => bounded(cx, &self.limits, store.get_latest_snapshot(cx, id)).await?,
                };
                let row = row.ok_or_else(|| RuntimeError::SessionNotFound(id.clone()))?;
                assert_latest(&row, id)?;
                row
            }
            (None, None) => {
                return Err(RuntimeError::InvalidArgument(
                    "name a snapshot id, or a session id for its latest".to_owned(),
                ));
            }
        };
        if let Some(session_id) = session_id {
            required("session", session_id)?;
            assert_session(&row, Some(session_id))?;
        }
        Ok(self.settle_shape(row))
    }

    /// The row as readers know it: a worker that is gone shows, and nothing that counts is left out.
    fn settle_shape(&self, mut row: SessionSnapshot) -> SessionSnapshot {
        let stale = row.is_stale((self.clock)(), self.limits.stale_after);
        row.status = Some(if stale { SnapshotStatus::Expired } else { row.status() });
        row.updated_at = row.updated_at.or(Some(row.created_at));
        row
    }

    fn shown(
        &self,
        cx: &InvocationContext,
        mut row: SessionSnapshot<S>,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        if let Some(mut state) = row.state.take() {
            state.session_id = row.session_id.clone().or(state.session_id);
            row.state = self.outbound(cx, state)?;
        }
        Ok(row)
    }

    fn shown_json(
        &self,
        cx: &InvocationContext,
        mut row: SessionSnapshot,
    ) -> Result<SessionSnapshot, RuntimeError> {
        if self.state_transform.is_none() {
            // What nobody looks at need not be of the agent's type.
            if let Some(state) = &mut row.state {
                state.session_id = row.session_id.clone().or(state.session_id.take());
            }
            return Ok(row);
        }
        let mut row = self.shown(cx, decode_stored(row)?)?;
        let state = row.state.take().map(encode_state).transpose()?;
        Ok(row.with_state(state))
    }

    /// Reads until the row is settled.
    async fn wait(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        let store = self.required_store()?;
        let Some(id) = &request.snapshot_id else {
            return Err(RuntimeError::InvalidArgument(
                "a wait needs a snapshot id: a session's latest may be another by then".to_owned(),
            ));
        };
        required("snapshot", id)?;
        let full = GetSnapshotRequest { metadata_only: false, ..request.clone() };
        let metadata = GetSnapshotRequest { metadata_only: true, ..request.clone() };
        let mut failures =
            Failures { left: self.limits.store_retries, of: self.limits.store_retries };
        let mut every = self.limits.poll;
        match self.read(cx, &full).await {
            Ok(row) if row.status().is_terminal() => return Ok(row),
            Ok(_) => {}
            Err(error) => failures.ride_out(cx, error)?,
        }
        // The subscription ends with this context, and so with this future.
        let subscribed = cx.cancellation().child_token();
        let _ends = subscribed.clone().drop_guard();
        let subscription = cx.clone().with_cancellation(subscribed);
        let mut changes = match store.subscriber() {
            Some(subscriber) => {
                every = self.limits.reread;
                status_changes(subscriber, &subscription, id)
            }
            None => stream::pending().boxed(),
        };
        let begun = Instant::now();
        let (mut ticked, mut told) = (begun, begun);
        loop {
            let next = sleep_until(later(ticked, every));
            {
                let mut next = pin!(next);
                loop {
                    tokio::select! {
                        biased;
                        status = cx.ended() => {
                            let what = format!("waiting for snapshot {id:?} to settle");
                            return Err(RuntimeError::ended(status, what));
                        }
                        change = changes.next() => match change {
                            Some(status) if !status.is_terminal() => continue,
                            // It has said all it can say; from here on the row is read.
                            _ => {
                                changes = stream::pending().boxed();
                                every = self.limits.poll;
                                break;
                            }
                        },
                        () = &mut next => break,
                    }
                }
            }
            ticked = Instant::now();
            let read = match self.read(cx, &metadata).await {
                Ok(row) if row.status().is_terminal() => self.read(cx, &full).await,
                read => read,
            };
            match read {
                Ok(row) if row.status().is_terminal() => return Ok(row),
                Ok(row) => {
                    failures.left = failures.of;
                    if ticked - told >= PROGRESS {
                        told = ticked;
                        let (waited, status) = (ticked - begun, row.status());
                        tracing::info!(
                            snapshot_id = &**id,
                            ?status,
                            ?waited,
                            "still waiting for a snapshot"
                        );
                    }
                }
                Err(error) => {
                    failures.ride_out(cx, error)?;
                    every = self.limits.poll;
                }
            }
        }
    }
}

/// How many more failed reads in a row are ridden out.
struct Failures {
    left: u32,
    of: u32,
}

impl Failures {
    fn ride_out(
        &mut self,
        cx: &InvocationContext,
        error: RuntimeError,
    ) -> Result<(), RuntimeError> {
        let is_final = matches!(
            error.status(),
            Status::NotFound | Status::InvalidArgument | Status::FailedPrecondition
        );
        if is_final || self.left == 0 || cx.has_ended().is_some() {
            return Err(error);
        }
        self.left -= 1;
        tracing::warn!(%error, left = self.left, "a snapshot that is waited for could not be read");
        Ok(())
    }
}

/// Errs where the id is empty.
pub(super) fn required(what: &str, id: &str) -> Result<(), RuntimeError> {
    if id.is_empty() {
        return Err(RuntimeError::InvalidArgument(format!("the {what} id is empty")));
    }
    Ok(())
}
