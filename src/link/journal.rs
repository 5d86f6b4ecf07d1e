//! The journal of a run: turns of the session become turns of the agent's invocation.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon_agent::{
    AgentFinishReason, Invocation, InvocationContext, Message, Messages, OnStoreStall, OpenTurn,
    RuntimeError,
    ledger::close_parked,
    types::{Status, ToolCallRequest},
};
use antiphon_live::Capabilities;
use tokio::sync::{mpsc, oneshot};

use super::{
    handles::Keeping,
    keeper::{Carried, Keeper, Pending, Work, outcome},
    stream::Streamed,
    turns::{Finished, Turns},
};
use crate::session::{
    EventKind, SessionEvent,
    journal::{Committed, Journal, Note, Told},
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
    turns: Turns,
    /// Where somebody wants to see turns while they go on.
    streamed: Option<Streamed>,
    /// Pieces of that for which the client was too slow.
    dropped: u64,
    /// The turn in which tools run; begun when the first one needs it.
    open: Option<OpenTurn>,
    /// Messages of turns that could not be committed.
    carried: Vec<Message>,
    /// The newest of these turns, and how it ended.
    carried_last: Option<(u64, AgentFinishReason, Option<RuntimeError>)>,
    /// Turns that were handed over and of which nothing was told yet.
    untold: VecDeque<u64>,
    /// How long the store may take to write a turn.
    patience: Duration,
    /// `None` once the end was told.
    ends: Option<Ends>,
    told: mpsc::Receiver<Told>,
    /// Since when turns find no place to be written in.
    stalled_since: Option<tokio::time::Instant>,
    /// The caller hung up, and the work goes on.
    is_left: bool,
    /// Where handles are kept for later runs.
    keeping: Option<Keeping>,
}

/// Where turns go.
struct Ends {
    /// Given up before `work` is: then the keeper is the last who holds it.
    invocation: Arc<Invocation>,
    work: mpsc::Sender<Work>,
    told: mpsc::Sender<Told>,
    /// Takes what is carried when the session ends.
    carried: oneshot::Sender<Carried>,
}

impl AgentJournal {
    /// Starts the task that tells of turns once they are written; it ends with the journal, after the
    /// last of them. `tip` is the snapshot that the invocation goes on from.
    pub(super) fn new(
        invocation: Invocation,
        tip: Tip,
        turns: Turns,
        streams: bool,
        keeping: Option<Keeping>,
    ) -> Self {
        let (work, handed_over) = mpsc::channel(MAX_PENDING);
        // Two places more, for what could not even be sealed, and for the end of work that was left.
        let (teller, told) = mpsc::channel(MAX_PENDING + 2);
        let patience = invocation.store_limit();
        let invocation = Arc::new(invocation);
        let (carried, at_end) = oneshot::channel();
        let keeper = Keeper {
            invocation: invocation.clone(),
            tip,
            told: teller.clone(),
            handles: keeping.as_ref().map(Keeping::handles),
            carried: at_end,
        };
        tokio::spawn(keeper.run(handed_over));
        Self {
            turns,
            streamed: streams.then(Streamed::default),
            dropped: 0,
            open: None,
            carried: Vec::new(),
            carried_last: None,
            untold: VecDeque::new(),
            patience,
            ends: Some(Ends { invocation, work, told: teller, carried }),
            told,
            stalled_since: None,
            is_left: false,
            keeping,
        }
    }

    fn commit_finished(&mut self) {
        while let Some(finished) = self.turns.poll() {
            self.commit(finished);
        }
    }

    /// Seals a turn, and leaves it to the writer. Where that cannot be, the next one carries it.
    fn commit(&mut self, finished: Finished) {
        let Finished { turn, messages, reason, error: failed } = finished;
        // Of calls that waited at the end of the conversation the model knows, and now the history.
        let so_far = match (self.carried.last(), &self.ends) {
            (Some(last), _) => Messages::from_iter([last.clone()]),
            (None, Some(ends)) => ends.invocation.session().messages(),
            (None, None) => Messages::default(),
        };
        self.carried.extend(close_parked(&so_far, &[]));
        self.carried.extend(messages);
        let begun = self.begin_turn();
        let Some(Ends { invocation, work, told, .. }) = &self.ends else { return };
        // A turn that finds no place stays open: what its tools changed is in the next commit, too.
        let place = work.try_reserve().ok();
        let Some((place, open)) = place.and_then(|place| Some((place, self.open.take()?))) else {
            let error = begun.err().unwrap_or_else(|| {
                let message = format!("{MAX_PENDING} turns wait to be written");
                RuntimeError::new(Status::ResourceExhausted, message)
            });
            tracing::error!(turn, %error, "a turn finds no place; the next commit has it");
            let now = tokio::time::Instant::now();
            let since = *self.stalled_since.get_or_insert(now);
            let ends_session = match invocation.on_store_stall() {
                OnStoreStall::Wait(patience) => now - since >= patience,
                stall => stall.ends(),
            };
            // So many are told already that one more says nothing new.
            let _ = told.try_send(Told::Committed(lost(turn, &error, ends_session)));
            self.carried_last = Some((turn, reason, failed));
            return;
        };
        self.stalled_since = None;
        self.carried_last = None;
        for message in self.carried.drain(..) {
            open.append(message);
        }
        let sealed = open.seal(outcome(reason, failed.as_ref()));
        let handle = self.keeping.as_mut().and_then(|keeping| keeping.committed(turn));
        let pending = Pending { turn, reason, error: failed, sealed, handle };
        place.send(Work::Turn(Box::new(pending)));
        self.untold.push_back(turn);
    }

    /// No turn comes any more. What found no place has one once those before are written.
    fn end(&mut self) {
        let open = self.open.take();
        let Some(ends) = self.ends.take() else { return };
        if let Some((turn, reason, error)) = self.carried_last.take() {
            let messages = std::mem::take(&mut self.carried);
            // Nobody takes it where the keeper is gone with its runtime.
            let _ = ends.carried.send(Carried { turn, reason, error, messages, open });
        }
    }

    fn begin_turn(&mut self) -> Result<(), RuntimeError> {
        if self.open.is_none()
            && let Some(ends) = &self.ends
        {
            self.open = Some(ends.invocation.begin_turn()?);
        }
        Ok(())
    }
}

impl Journal for AgentJournal {
    fn event(&mut self, event: &SessionEvent, now: Instant) {
        if let (Some(streamed), Some(ends)) = (&mut self.streamed, &self.ends)
            && let Some(chunk) = streamed.chunk(event)
            && !ends.invocation.send_chunk(chunk)
        {
            self.dropped += 1;
        }
        if let Some(keeping) = &mut self.keeping {
            keeping.event(&event.kind);
        }
        self.turns.handle(event, now);
        self.commit_finished();
        if matches!(event.kind, EventKind::SessionEnded { .. }) {
            self.end();
        }
    }

    fn requested(&mut self, turn: u64, request: &ToolCallRequest) {
        self.turns.requested(turn, request);
        self.commit_finished();
    }

    fn note(&mut self, turn: u64, note: &Note, now: Instant) {
        match (note, &mut self.keeping) {
            (Note::Resumable(handle), Some(keeping)) => {
                let kept = keeping.resumable(turn, handle, self.turns.is_at_rest());
                if let (Some(handle), Some(Ends { work, .. })) = (kept, &self.ends) {
                    // Where turns wait to be written, this one is of use only until the next.
                    let _ = work.try_send(Work::Handle { turn, handle });
                }
            }
            (Note::NotResumable, Some(keeping)) => keeping.not_resumable(),
            _ => self.turns.note(turn, note, now),
        }
        self.commit_finished();
    }

    fn serves(&mut self, capabilities: &Capabilities) {
        self.turns.transcribed(capabilities.input_transcripts);
    }

    fn context(&mut self) -> InvocationContext {
        if let Err(error) = self.begin_turn() {
            tracing::warn!(%error, "no turn of the agent begins");
        }
        let Some(ends) = &self.ends else { return InvocationContext::new() };
        let context = ends.invocation.context().clone();
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

    fn hang_up(&mut self, turn: u64) {
        let Some(Ends { work, told, .. }) = &self.ends else { return };
        self.is_left = true;
        if work.try_send(Work::HangUp { turn }).is_err() {
            let why = "too many turns wait to be written".to_owned();
            let _ = told.try_send(Told::NotDetached(why));
        }
    }

    fn is_left(&self) -> bool {
        self.is_left
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn give_up(&mut self) -> Vec<Committed> {
        let error = RuntimeError::new(
            Status::Unavailable,
            "the session ended before the store had written the turn",
        );
        self.untold.drain(..).map(|turn| lost(turn, &error, false)).collect()
    }

    fn dropped(&self) -> u64 {
        self.dropped
    }

    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        let told = self.told.poll_recv(cx);
        if let Poll::Ready(Some(Told::Committed(committed))) = &told
            && let Some(at) = self.untold.iter().position(|turn| *turn == committed.turn)
        {
            // They are told in their order; those that were left behind together.
            self.untold.drain(..=at);
        }
        told
    }
}

/// A turn that is not on disk.
pub(super) fn lost(turn: u64, error: &RuntimeError, ends_session: bool) -> Committed {
    // Hosts and clients are not told where a store lies.
    let error = Some(error.to_details().message);
    Committed { turn, snapshot_id: None, parent_id: None, finish_reason: None, error, ends_session }
}
