//! Work that goes on after its caller left: the row that stands for it, its heartbeat, its end.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use antiphon_types::Status;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::{
    core::{Core, Stop},
    limits::later,
    reads::status_changes,
    start::encode_state,
};
use crate::{
    InvocationContext, RuntimeError,
    id::new_id,
    protocol::AgentResult,
    session::State,
    state::{AgentFinishReason, SessionSnapshot, SnapshotStatus},
    store::{SessionStore, SnapshotUpdate},
};

/// Detached work and the row that stands for it.
pub(super) struct Background<S: State> {
    core: Arc<Core<S>>,
    store: Arc<dyn SessionStore>,
    /// Neither the caller's cancellation nor the work's: the row is written whatever happens.
    cx: InvocationContext,
    pending: SessionSnapshot,
    aborted: AtomicBool,
}

/// What the work told to stop did not do in its time.
pub(super) struct WindDownOver;

impl<S: State> Background<S> {
    /// Arranges that the work goes on: from here on no turn is written by itself, and one pending
    /// row stands for all of it.
    pub(super) async fn begin(core: &Arc<Core<S>>) -> Result<Self, RuntimeError> {
        let definition = &core.definition;
        let store = definition.required_subscriber()?.clone();
        // Where the row cannot be written, turns are written by themselves again.
        let suspension = match &core.writer {
            Some(writer) => Some(writer.suspend().await),
            None => None,
        };
        let tip = suspension.as_ref().and_then(|suspension| suspension.tip.clone());
        let alive = (definition.clock)();
        let now = definition.stamp(tip.as_ref(), alive);
        let mut pending = SessionSnapshot::new(new_id(), core.session.session_id().clone(), now);
        pending.parent_id = tip.map(|tip| tip.id);
        pending.status = Some(SnapshotStatus::Pending);
        // The clock's own time: rows may be stamped later than that, and a worker that dies shall
        // not seem alive until then.
        pending.heartbeat_at = Some(alive);
        let cx = core.cx.uncancelled();
        let background =
            Self { core: core.clone(), store, cx, pending, aborted: AtomicBool::new(false) };
        background.save(&|_| Ok(Some(background.pending.clone()))).await?;
        if let Some(suspension) = suspension {
            suspension.keep();
        }
        Ok(background)
    }

    /// The row.
    pub(super) fn snapshot_id(&self) -> &Arc<str> {
        &self.pending.snapshot_id
    }

    /// Says that the work is alive, and cancels it once somebody asks for that. Returns when work
    /// that was told to stop has had its time. May be dropped at any time.
    pub(super) async fn attend(&self) -> WindDownOver {
        let limits = &self.core.definition.limits;
        let id = self.snapshot_id();
        let mut changes = pin!(
            match self.store.subscriber() {
                Some(subscriber) => status_changes(subscriber, &self.cx, id),
                None => futures_util::stream::empty().boxed(),
            }
            .chain(futures_util::stream::pending())
        );
        let mut beats = interval_at(later(Instant::now(), limits.heartbeat), limits.heartbeat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut give_up = None;
        loop {
            let over = async {
                match give_up {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let status = tokio::select! {
                biased;
                () = over => return WindDownOver,
                status = changes.next() => status,
                _ = beats.tick() => self.beat().await,
            };
            if matches!(status, Some(SnapshotStatus::Aborting | SnapshotStatus::Aborted))
                && give_up.is_none()
            {
                tracing::info!(snapshot_id = &**id, "work in the background is told to stop");
                self.aborted.store(true, Ordering::Relaxed);
                self.core.stop(Stop::Caller(Status::Cancelled));
                give_up = Some(later(Instant::now(), limits.wind_down));
            }
        }
    }

    /// One heartbeat. It moves nothing but the row's heartbeat, and returns the row's status.
    async fn beat(&self) -> Option<SnapshotStatus> {
        let now = (self.core.definition.clock)();
        let beaten = self
            .save(&|row| {
                Ok(row.filter(|row| !row.status().is_terminal()).map(|row| {
                    let mut row = row.clone();
                    row.heartbeat_at = Some(now);
                    row
                }))
            })
            .await;
        match beaten {
            Ok(row) => row.map(|row| row.status()),
            Err(error) => {
                let snapshot_id = &**self.snapshot_id();
                tracing::warn!(snapshot_id, %error, "a heartbeat could not be written");
                None
            }
        }
    }

    /// The work is over: the row becomes what it came to. Tried again where the store fails; where
    /// it fails to the end, the row will be seen as expired. Whether it was written.
    pub(super) async fn finish(&self, result: &Result<AgentResult, RuntimeError>) -> bool {
        let limits = &self.core.definition.limits;
        let mut tries = 0;
        loop {
            let error = match self.settle(result).await {
                Ok(written) => return written,
                Err(error) => error,
            };
            let snapshot_id = &**self.snapshot_id();
            tracing::error!(snapshot_id, %error, tries, "the end of work in the background could not be written");
            if tries == limits.store_retries {
                return false;
            }
            tries += 1;
            sleep(limits.poll).await;
        }
    }

    /// Whether the row stands for the work: not where others settled it, or it is gone.
    async fn settle(
        &self,
        result: &Result<AgentResult, RuntimeError>,
    ) -> Result<bool, RuntimeError> {
        let now = (self.core.definition.clock)();
        let state = encode_state(self.core.settled_state());
        // A state that does not travel fails the work; it must not leave the row pending.
        let (state, result) = match (state, result) {
            (Ok(state), result) => (Some(state), result.as_ref().map_err(Clone::clone)),
            (Err(error), _) => (None, Err(error)),
        };
        let (status, reason, error) = match result {
            Ok(result) => (
                SnapshotStatus::Completed,
                result.finish_reason.or_else(|| self.core.last_reason()),
                None,
            ),
            Err(error) => match self.core.failure_reason(&error) {
                AgentFinishReason::Aborted => (
                    SnapshotStatus::Aborted,
                    Some(AgentFinishReason::Aborted),
                    Some(error.to_details()),
                ),
                reason => (SnapshotStatus::Failed, Some(reason), Some(error.to_details())),
            },
        };
        let row = self
            .save(&|row| {
                // A row that others settled, or that is gone, is not for the work to bring back.
                let Some(row) = row.filter(|row| !row.status().is_terminal()) else {
                    return Ok(None);
                };
                let mut settled = self.pending.clone();
                settled.created_at = row.created_at;
                settled.updated_at = Some(now);
                settled.heartbeat_at = None;
                settled.state = state.clone();
                (settled.status, settled.finish_reason, settled.error) =
                    (Some(status), reason, error.clone());
                if row.status() == SnapshotStatus::Aborting {
                    settled.status = Some(SnapshotStatus::Aborted);
                    settled.finish_reason = Some(AgentFinishReason::Aborted);
                    settled.error = None;
                }
                Ok(Some(settled))
            })
            .await?;
        if row.is_none() {
            // What the calls did is for whoever goes on with the session to be told.
            let snapshot_id = &**self.snapshot_id();
            tracing::error!(snapshot_id, "the row of work in the background was settled by others");
            return Ok(false);
        }
        if let Some(account) = self.core.cx.account() {
            account.all_written();
        }
        Ok(true)
    }

    async fn save(
        &self,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let limit = self.core.definition.limits.store;
        let save = self.store.save_snapshot(&self.cx, Some(self.snapshot_id()), update);
        timeout(limit, AssertUnwindSafe(save).catch_unwind())
            .await
            .map_err(|_| RuntimeError::internal(format!("no answer within {limit:?}")))?
            .unwrap_or_else(|_| Err(RuntimeError::internal("the session store panicked")))
    }

    /// Whether somebody asked the work to stop.
    pub(super) fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}
