//! The task of a run that waits for the store: tells of turns once they are written, and stays with
//! the work that a caller left behind until that is settled.

use std::sync::Arc;

use antiphon_agent::{
    AgentFinishReason, AgentResult, Invocation, RuntimeError, SealedTurn, Settled, TurnResult,
};
use tokio::sync::mpsc;

use super::{
    handles::{Handles, Kept},
    journal::{Tip, lost},
};
use crate::session::journal::{Committed, Told};

/// Why work that a caller left behind is not told as committed.
const UNSETTLED: &str = "the end of the work could not be written";

/// What the keeper is handed, in order.
pub(super) enum Work {
    /// A turn ended.
    Turn(Box<Pending>),
    /// By which the conversation can be gone on with from the end of this turn, which was handed over
    /// before.
    Handle { turn: u64, handle: Kept },
    /// The caller hung up in this turn, and the work goes on.
    HangUp { turn: u64 },
}

/// A turn that is not known to be written.
pub(super) struct Pending {
    pub(super) turn: u64,
    pub(super) reason: AgentFinishReason,
    /// Why it failed, or was stopped.
    pub(super) error: Option<RuntimeError>,
    pub(super) sealed: SealedTurn,
    /// By which the conversation can be gone on with from its end.
    pub(super) handle: Option<Kept>,
}

/// See the head of this module.
pub(super) struct Keeper {
    pub(super) invocation: Arc<Invocation>,
    pub(super) tip: Tip,
    pub(super) told: mpsc::Sender<Told>,
    /// Where handles are kept for later runs.
    pub(super) handles: Option<Arc<Handles>>,
}

/// Work in the background.
struct Behind {
    /// The newest turn of it.
    turn: u64,
    /// What it came to so far.
    result: Result<Option<AgentFinishReason>, RuntimeError>,
}

impl Keeper {
    /// Works until nothing more is handed over and all is settled. An error of telling says that the
    /// session is over: what there is to write is written all the same.
    pub(super) async fn run(self, mut work: mpsc::Receiver<Work>) {
        let mut behind = None;
        let mut stopped = false;
        // The turn whose snapshot is the newest.
        let mut newest = None;
        loop {
            let next = tokio::select! {
                biased;
                next = work.recv() => next,
                () = self.invocation.context().cancellation().cancelled(), if !stopped => {
                    stopped = true;
                    let told = if behind.is_some() { Told::Aborted } else { Told::Failed };
                    let _ = self.told.send(told).await;
                    continue;
                }
            };
            match next {
                None => break,
                Some(Work::Turn(pending)) => {
                    let turn = pending.turn;
                    newest = self.turn(*pending, &mut behind).await.then_some(turn);
                }
                Some(Work::Handle { turn, handle }) => {
                    if newest == Some(turn) {
                        self.keep(&handle).await;
                    }
                }
                Some(Work::HangUp { turn }) if behind.is_none() => {
                    behind = self.hang_up(turn).await;
                }
                Some(Work::HangUp { .. }) => {}
            }
        }
        if let Some(behind) = behind {
            self.settle(behind).await;
        }
    }

    /// Whether the turn is in a snapshot of its own now.
    async fn turn(&self, pending: Pending, behind: &mut Option<Behind>) -> bool {
        let Pending { turn, reason, error, sealed, handle } = pending;
        let Settled { mut end, error: mut unwritten, .. } = sealed.settle().await;
        if let (None, None, Some(behind)) = (&end.snapshot_id, &unwritten, behind) {
            // Its place is the row that stands for all that is left behind.
            behind.turn = turn;
            behind.result = match error {
                None => Ok(Some(reason)),
                Some(error) => Err(error),
            };
            return false;
        }
        if end.snapshot_id.is_none() && unwritten.is_none() {
            // It ended while the work was to be left behind, and that failed: nothing stands for it.
            match self.write_again(reason).await {
                Ok(again) => (end, unwritten) = (again.end, again.error),
                Err(error) => unwritten = Some(error),
            }
        }
        let parent_id = self.tip.id();
        if end.snapshot_id.is_some() {
            self.tip.set(end.snapshot_id.clone());
        }
        let finish_reason = Some(reason);
        let stall = self.invocation.on_store_stall();
        let committed = match unwritten {
            Some(error) => Committed { finish_reason, ..lost(turn, &error, stall.ends()) },
            None => Committed {
                turn,
                parent_id: parent_id.filter(|_| end.snapshot_id.is_some()),
                snapshot_id: end.snapshot_id,
                finish_reason,
                error: None,
                ends_session: false,
            },
        };
        let written = committed.snapshot_id.is_some();
        let _ = self.told.send(Told::Committed(committed)).await;
        if let Some(handle) = handle.filter(|_| written) {
            self.keep(&handle).await;
        }
        written
    }

    /// Keeps a handle for a run that goes on from the newest snapshot.
    async fn keep(&self, handle: &Kept) {
        if let (Some(handles), Some(tip)) = (&self.handles, self.tip.id()) {
            handles.keep(&tip, handle).await;
        }
    }

    /// A snapshot of all that was said so far. Errs where a turn is open, whose snapshot will have it.
    async fn write_again(&self, reason: AgentFinishReason) -> Result<Settled, RuntimeError> {
        let turn = self.invocation.begin_turn()?;
        let sealed = turn.seal(Ok(TurnResult { finish_reason: Some(reason) }));
        Ok(sealed.settle().await)
    }

    async fn hang_up(&self, turn: u64) -> Option<Behind> {
        let (told, behind) = match self.invocation.detach().await {
            Ok(snapshot_id) => {
                let behind = Behind { turn, result: Ok(None) };
                (Told::Detached(snapshot_id), Some(behind))
            }
            Err(error) => (Told::NotDetached(error.to_string()), None),
        };
        let _ = self.told.send(told).await;
        behind
    }

    /// The work is over: the row becomes what it came to.
    async fn settle(self, behind: Behind) {
        let Self { invocation, tip, told, .. } = self;
        let Some(invocation) = Arc::into_inner(invocation) else {
            // It settles the row as aborted once the last of its holders is gone.
            tracing::error!("work in the background is over, and somebody still holds it");
            return;
        };
        let result = behind.result.map(|finish_reason| {
            let messages = invocation.session().messages();
            let message = messages.last().map(|message| (**message).clone());
            AgentResult { message, artifacts: Vec::new(), finish_reason }
        });
        let output = invocation.finish(result).await;
        let parent_id = tip.id();
        if output.snapshot_id.is_some() {
            tip.set(output.snapshot_id.clone());
        }
        let committed = Committed {
            turn: behind.turn,
            parent_id: parent_id.filter(|_| output.snapshot_id.is_some()),
            error: output.snapshot_id.is_none().then(|| UNSETTLED.to_owned()),
            snapshot_id: output.snapshot_id,
            finish_reason: output.finish_reason,
            ends_session: false,
        };
        let _ = told.send(Told::Committed(committed)).await;
    }
}
