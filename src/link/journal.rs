//! The journal of a run: turns of the session become turns of the agent's invocation.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Instant,
};

use antiphon_agent::{
    AgentFinishReason, Invocation, InvocationContext, Message, Messages, OnStoreStall, OpenTurn,
    RuntimeError, SealedTurn, Settled, TurnFailure, TurnResult,
    ledger::close_parked,
    types::{Status, ToolCallRequest},
};
use tokio::sync::mpsc;

use super::turns::{Finished, Turns};
use crate::session::{
    EventKind, SessionEvent,
    journal::{Committed, Journal},
};

/// Turns that may wait to be told as committed. The invocation itself bounds those that are not
/// written.
const MAX_PENDING: usize = 128;

/// The newest snapshot that a session is known to have; shared by its runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Tip(Arc<Mutex<Option<Arc<str>>>>);

impl Tip {
    pub(super) fn id(&self) -> Option<Arc<str>> {
        self.lock().clone()
    }

    pub(super) fn set(&self, id: Option<Arc<str>>) {
        *self.lock() = id;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands what the session tells to [`Turns`], and what comes of it to the invocation.
pub(super) struct AgentJournal {
    invocation: Invocation,
    turns: Turns,
    /// The turn in which tools run; begun when the first one needs it.
    open: Option<OpenTurn>,
    /// Messages of turns that could not be committed.
    carried: Vec<Message>,
    /// `None` once the end was told.
    ends: Option<Ends>,
    committed: mpsc::Receiver<Committed>,
    /// Since when turns find no place to be written in.
    stalled_since: Option<tokio::time::Instant>,
}

/// Where turns go.
struct Ends {
    sealed: mpsc::Sender<Pending>,
    committed: mpsc::Sender<Committed>,
}

struct Pending {
    turn: u64,
    finish_reason: Option<AgentFinishReason>,
    sealed: SealedTurn,
}

impl AgentJournal {
    /// Starts the task that tells of turns once they are written; it ends with the journal, after the
    /// last of them. `tip` is the snapshot that the invocation goes on from.
    pub(super) fn new(invocation: Invocation, tip: Tip, transcripts: bool) -> Self {
        let (sealed, pending) = mpsc::channel(MAX_PENDING);
        // One place more, for what could not even be sealed.
        let (told, committed) = mpsc::channel(MAX_PENDING + 1);
        let stall = invocation.on_store_stall();
        tokio::spawn(tell_in_order(pending, told.clone(), tip, stall));
        Self {
            invocation,
            turns: Turns::new(transcripts),
            open: None,
            carried: Vec::new(),
            ends: Some(Ends { sealed, committed: told }),
            committed,
            stalled_since: None,
        }
    }

    fn commit_finished(&mut self) {
        while let Some(finished) = self.turns.poll() {
            self.commit(finished);
        }
    }

    /// Seals a turn, and leaves it to the writer. Where that cannot be, the next one carries it.
    fn commit(&mut self, finished: Finished) {
        let Finished { turn, messages, waits, error } = finished;
        // Of calls that waited at the end of the conversation the model knows, and now the history.
        let so_far = match self.carried.last() {
            Some(last) => Messages::from_iter([last.clone()]),
            None => self.invocation.session().messages(),
        };
        self.carried.extend(close_parked(&so_far, &[]));
        self.carried.extend(messages);
        let begun = self.begin_turn();
        let Some(Ends { sealed, committed }) = &self.ends else { return };
        let (Ok(place), Some(open)) = (sealed.try_reserve(), self.open.take()) else {
            let error = begun.err().unwrap_or_else(|| {
                let message = format!("{MAX_PENDING} turns wait to be written");
                RuntimeError::new(Status::ResourceExhausted, message)
            });
            tracing::error!(turn, %error, "a turn finds no place; the next commit has it");
            let now = tokio::time::Instant::now();
            let since = *self.stalled_since.get_or_insert(now);
            let ends_session = match self.invocation.on_store_stall() {
                OnStoreStall::Wait(patience) => now - since >= patience,
                stall => stall.ends(),
            };
            // So many are told already that one more says nothing new.
            let _ = committed.try_send(lost(turn, &error, ends_session));
            return;
        };
        self.stalled_since = None;
        for message in self.carried.drain(..) {
            open.append(message);
        }
        let finish_reason = match &error {
            None if waits => Some(AgentFinishReason::Interrupted),
            None => Some(AgentFinishReason::Stop),
            Some(error) if error.is_callers_stop() => Some(AgentFinishReason::Aborted),
            Some(_) => Some(AgentFinishReason::Failed),
        };
        let outcome = match error {
            None => Ok(TurnResult { finish_reason }),
            Some(error) => Err(TurnFailure::commit(error)),
        };
        place.send(Pending { turn, finish_reason, sealed: open.seal(outcome) });
    }

    fn begin_turn(&mut self) -> Result<(), RuntimeError> {
        if self.open.is_none() {
            self.open = Some(self.invocation.begin_turn()?);
        }
        Ok(())
    }
}

impl Journal for AgentJournal {
    fn event(&mut self, event: &SessionEvent, now: Instant) {
        self.turns.handle(event, now);
        self.commit_finished();
        if matches!(event.kind, EventKind::SessionEnded { .. }) {
            self.open = None;
            self.ends = None;
        }
    }

    fn requested(&mut self, turn: u64, request: &ToolCallRequest) {
        self.turns.requested(turn, request);
        self.commit_finished();
    }

    fn context(&mut self) -> InvocationContext {
        if let Err(error) = self.begin_turn() {
            tracing::warn!(%error, "no turn of the agent begins");
        }
        let context = self.invocation.context().clone();
        match &self.open {
            Some(open) => context.with_turn(open.context().clone()),
            None => context,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.turns.deadline()
    }

    fn timeout(&mut self, now: Instant) {
        self.turns.timeout(now);
        self.commit_finished();
    }

    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<Option<Committed>> {
        self.committed.poll_recv(cx)
    }
}

/// Waits for each turn to be written, in their order, and tells of it.
async fn tell_in_order(
    mut pending: mpsc::Receiver<Pending>,
    told: mpsc::Sender<Committed>,
    tip: Tip,
    stall: OnStoreStall,
) {
    while let Some(Pending { turn, finish_reason, sealed }) = pending.recv().await {
        let Settled { end, error, .. } = sealed.settle().await;
        let parent_id = tip.id();
        if end.snapshot_id.is_some() {
            tip.set(end.snapshot_id.clone());
        }
        let committed = match error {
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
        // An error says that the session is over: the turn is written all the same.
        let _ = told.send(committed).await;
    }
}

/// A turn that is not on disk.
fn lost(turn: u64, error: &RuntimeError, ends_session: bool) -> Committed {
    // Hosts and clients are not told where a store lies.
    let error = Some(error.to_details().message);
    Committed { turn, snapshot_id: None, parent_id: None, finish_reason: None, error, ends_session }
}
