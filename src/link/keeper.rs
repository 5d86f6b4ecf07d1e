//! The task of a run that waits for the store: tells of turns once they are written, and stays with
//! the work that a caller left behind until that is settled.

use std::{sync::Arc, time::Duration};

use antiphon_agent::{
    AgentFinishReason, AgentResult, Invocation, Message, OnStoreStall, OpenTurn, RuntimeError,
    SealedTurn, Settled, TurnEnd, TurnFailure, TurnResult,
};
use tokio::sync::{mpsc, oneshot};

use super::{
    handles::{Handles, Kept},
    journal::{Tip, lost},
};
use crate::session::journal::{Committed, Told};

/// What could not be written is tried again when the session ends, after so long each.
const LAST_TRIES: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1)];

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

/// Turns that found no place while the session went on. The end of the session commits them.
pub(super) struct Carried {
    /// The newest of them.
    pub(super) turn: u64,
    pub(super) reason: AgentFinishReason,
    pub(super) error: Option<RuntimeError>,
    pub(super) messages: Vec<Message>,
    /// With what their tools changed.
    pub(super) open: Option<OpenTurn>,
}

/// How a turn is sealed.
pub(super) fn outcome(
    reason: AgentFinishReason,
    error: Option<&RuntimeError>,
) -> Result<TurnResult, TurnFailure> {
    match error {
        None => Ok(TurnResult { finish_reason: Some(reason) }),
        Some(error) => Err(TurnFailure::commit(error.clone())),
    }
}

/// See the head of this module.
pub(super) struct Keeper {
    pub(super) invocation: Arc<Invocation>,
    pub(super) tip: Tip,
    pub(super) told: mpsc::Sender<Told>,
    /// Where handles are kept for later runs.
    pub(super) handles: Option<Arc<Handles>>,
    /// Sent before the end, where there is anything.
    pub(super) carried: oneshot::Receiver<Carried>,
}

/// What came of a turn.
enum Written {
    /// It is in a snapshot of its own.
    Own,
    /// It is not: the row that stands for all that is left behind has it.
    Behind,
    /// It is not, and the session has it.
    Not(Owed),
}

/// The newest turn, where it could not be written.
struct Owed {
    turn: u64,
    reason: AgentFinishReason,
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
    pub(super) async fn run(mut self, mut work: mpsc::Receiver<Work>) {
        let (mut behind, mut owed) = (None, None);
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
                    (newest, owed) = match self.turn(*pending, &mut behind).await {
                        Written::Own => (Some(turn), None),
                        Written::Behind => (None, None),
                        Written::Not(turn) => (None, Some(turn)),
                    };
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
        if let Ok(carried) = self.carried.try_recv() {
            match self.seal(carried) {
                Ok(pending) => {
                    owed = match self.turn(pending, &mut behind).await {
                        Written::Not(turn) => Some(turn),
                        Written::Own | Written::Behind => None,
                    };
                }
                Err(error) => tracing::error!(%error, "turns that found no place are not written"),
            }
        }
        match (behind, owed) {
            (Some(behind), _) => self.settle(behind).await,
            (None, Some(owed)) => self.try_again(owed).await,
            (None, None) => {}
        }
    }

    /// Nobody else begins a turn any more, and what was before has its place no longer.
    fn seal(&self, carried: Carried) -> Result<Pending, RuntimeError> {
        let Carried { turn, reason, error, messages, open } = carried;
        let open = open.map_or_else(|| self.invocation.begin_turn(), Ok)?;
        messages.into_iter().for_each(|message| open.append(message));
        let sealed = open.seal(outcome(reason, error.as_ref()));
        Ok(Pending { turn, reason, error, sealed, handle: None })
    }

    /// The session is over, and its newest turn is not written: the store may be well again.
    async fn try_again(&self, Owed { turn, reason }: Owed) {
        if matches!(self.invocation.on_store_stall(), OnStoreStall::Wait(_)) {
            // It was waited for as long as it is to be.
            return;
        }
        for pause in LAST_TRIES {
            tokio::time::sleep(pause).await;
            match self.write_again(reason).await {
                Ok(Settled { end, error: None, .. }) if end.snapshot_id.is_some() => {
                    return self.tell(turn, reason, end, None).await;
                }
                Ok(Settled { error, .. }) => tracing::warn!(turn, ?error, "still not written"),
                Err(error) => return tracing::warn!(turn, %error, "not tried again"),
            }
        }
    }

    /// Waits until the turn is written, and tells of it.
    async fn turn(&self, pending: Pending, behind: &mut Option<Behind>) -> Written {
        let Pending { turn, reason, error, sealed, handle } = pending;
        let Settled { mut end, error: mut unwritten, .. } = sealed.settle().await;
        if let (None, None, Some(behind)) = (&end.snapshot_id, &unwritten, behind) {
            // Its place is the row that stands for all that is left behind.
            behind.turn = turn;
            behind.result = match error {
                None => Ok(Some(reason)),
                Some(error) => Err(error),
            };
            return Written::Behind;
        }
        if end.snapshot_id.is_none() && unwritten.is_none() {
            // It ended while the work was to be left behind, and that failed: nothing stands for it.
            match self.write_again(reason).await {
                Ok(again) => (end, unwritten) = (again.end, again.error),
                Err(error) => unwritten = Some(error),
            }
        }
        let (own, owed) = (end.snapshot_id.is_some(), unwritten.is_some());
        self.tell(turn, reason, end, unwritten).await;
        match (handle, owed) {
            (_, true) => Written::Not(Owed { turn, reason }),
            (Some(handle), false) if own => {
                self.keep(&handle).await;
                Written::Own
            }
            _ if own => Written::Own,
            _ => Written::Behind,
        }
    }

    async fn tell(
        &self,
        turn: u64,
        reason: AgentFinishReason,
        end: TurnEnd,
        unwritten: Option<RuntimeError>,
    ) {
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
        let _ = self.told.send(Told::Committed(committed)).await;
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
