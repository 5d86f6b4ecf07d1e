//! One invocation: its session, its turns, and what of them is committed.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use antiphon_types::Status;
use tokio::sync::oneshot;

use super::{
    backlog::{Place, added_bytes},
    definition::Definition,
    function::TurnFailure,
    invoke::Settled,
    outlet::{CustomChange, Outlet},
    start::{Start, Tip, encode_state},
    writer::{MakeRow, Writer},
};
use crate::{
    InvocationContext, RuntimeError,
    id::new_id,
    ledger::{Account, Keeper},
    protocol::{AgentOutput, AgentResult, TurnContext, TurnEnd, TurnResult},
    session::{Session, SessionObserver, State},
    state::{AgentFinishReason, Artifact, SessionSnapshot, SessionState, SnapshotStatus},
};

/// What an agent function, the driver of an invocation and the floor below share.
pub(super) struct Core<S: State> {
    pub(super) definition: Arc<Definition<S>>,
    /// The context of the work: with the session, and a cancellation of its own.
    pub(super) cx: InvocationContext,
    pub(super) session: Arc<Session<S>>,
    pub(super) outlet: Arc<Outlet>,
    /// Where there is a store.
    pub(super) writer: Option<Writer>,
    /// Why the work was cancelled, if it was.
    stop: OnceLock<Stop>,
    progress: Mutex<Progress<S>>,
}

/// Why work is cancelled.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// The caller took it back, let its time run out, or aborted it.
    Caller(Status),
    /// The invocation cannot go on.
    Failure(RuntimeError),
}

struct Progress<S> {
    /// The next turn, from 0.
    turn_index: u64,
    /// What the session was when the open turn began.
    open: Option<SessionState<S>>,
    /// The state to go on from: what the last turn committed, or the start.
    committed: SessionState<S>,
    /// The last turn that ended committed what it did.
    clean: bool,
    /// The session was rolled back since the last turn began.
    rolled_back: bool,
    /// No turn begins any more, and one that is open leaves nothing.
    ended: bool,
    /// Why the last turn ended.
    reason: Option<AgentFinishReason>,
}

impl<S: State> Core<S> {
    /// Begins an invocation. `cx` is the context of its work, yet without the session.
    pub(super) fn new(
        definition: Arc<Definition<S>>,
        cx: InvocationContext,
        start: Start<S>,
        outlet: Arc<Outlet>,
    ) -> Arc<Self> {
        let Start { session_id, state, tip, lost } = start;
        let observer =
            Observer { definition: definition.clone(), cx: cx.clone(), outlet: outlet.clone() };
        let session = Arc::new(Session::new(session_id, state).observed(observer));
        let account = definition.store.as_ref().and_then(|store| {
            let keeper = Keeper {
                agent: definition.name.clone(),
                session_id: session.session_id().clone(),
                clock: definition.clock.clone(),
                limit: definition.limits.store,
            };
            Account::new(store, &cx, keeper, tip.as_ref().map(|tip| tip.id.clone()), lost)
        });
        let writer = definition.store.clone().map(|store| {
            let (account, outlet) = (account.clone(), outlet.clone());
            Writer::spawn(cx.uncancelled(), store, account, outlet, tip, &definition.limits)
        });
        let progress = Mutex::new(Progress {
            turn_index: 0,
            open: None,
            committed: session.state(),
            clean: true,
            rolled_back: false,
            ended: false,
            reason: None,
        });
        let cx = cx.with_session(session.clone()).with_account(account);
        let stop = OnceLock::new();
        Arc::new(Self { definition, cx, session, outlet, writer, stop, progress })
    }

    /// Begins a turn. Only one is open at a time.
    pub(super) fn begin_turn(&self) -> Result<Begun, RuntimeError> {
        let place = self.writer.as_ref().map(Writer::reserve).transpose()?;
        let (state, versions) = self.session.versioned();
        let mut progress = self.progress();
        if progress.ended {
            return Err(RuntimeError::Completed);
        }
        if progress.open.is_some() {
            return Err(RuntimeError::FailedPrecondition(
                "a turn is open: seal it before the next begins".to_owned(),
            ));
        }
        let rebase = std::mem::take(&mut progress.rolled_back).then(|| state.clone());
        progress.open = Some(state);
        let context = TurnContext {
            snapshot_id: self.writer.as_ref().map(|_| new_id()),
            parent_snapshot_id: self.writer.as_ref().and_then(Writer::parent),
            turn_index: progress.turn_index,
        };
        drop(progress);
        self.outlet.turn_begins();
        if let Some(state) = rebase {
            let change = self.custom_change(state, versions.custom, true);
            self.outlet.custom(change);
        }
        Ok(Begun { context, place })
    }

    /// Ends the open turn: commits it and hands it to the writer, or rolls it back.
    pub(super) fn seal(&self, begun: Begun, outcome: Result<TurnResult, TurnFailure>) -> Ended {
        let Begun { context, mut place } = begun;
        let (result, error) = match outcome {
            Ok(result) => (Some(result), None),
            Err(TurnFailure { error, commit }) => (commit, Some(error)),
        };
        let error = error.map(|error| self.as_stopped(error));
        let failure = error.as_ref().map(|error| self.failure_reason(error));
        let reason = failure.or(result.as_ref().and_then(|result| result.finish_reason));
        let state = self.session.state();
        let mut progress = self.progress();
        let row = match (&result, progress.open.take()) {
            (Some(_), Some(before)) => {
                if let Some(place) = &mut place {
                    place.fill(added_bytes(&before, &state));
                }
                if let (Some(account), Some(id)) = (self.cx.account(), &context.snapshot_id) {
                    if error.is_some() {
                        account.failed(&before.messages, &state.messages);
                    }
                    account.sealed(id, &before.messages, &state.messages);
                }
                progress.committed = state.clone();
                progress.clean = true;
                self.next_turn(progress, reason);
                let make = self.make_row(&context, state, reason, error.as_ref());
                context.snapshot_id.clone().zip(Some(make))
            }
            // A turn that outlived its invocation was rolled back with its end.
            (_, open) => {
                progress.open = open;
                drop(progress);
                self.roll_back();
                self.next_turn(self.progress(), reason);
                None
            }
        };
        let end = TurnEnd { snapshot_id: None, finish_reason: reason };
        let settled = match (&self.writer, place) {
            (Some(writer), Some(place)) => Some(writer.turn(row, end.clone(), place)),
            _ => {
                self.outlet.chunk(end.clone());
                None
            }
        };
        Ended { context, end, settled }
    }

    fn next_turn(
        &self,
        mut progress: MutexGuard<'_, Progress<S>>,
        reason: Option<AgentFinishReason>,
    ) {
        progress.turn_index += 1;
        progress.reason = reason;
    }

    /// Undoes the open turn, if any.
    pub(super) fn roll_back(&self) {
        let before = {
            let mut progress = self.progress();
            let before = progress.open.take();
            if before.is_some() {
                (progress.clean, progress.rolled_back) = (false, true);
            }
            before
        };
        if let Some(before) = before {
            self.session.restore(before);
            if let Some(account) = self.cx.account() {
                account.rolled_back();
            }
        }
    }

    /// Undoes the open turn, if any, and lets none begin any more.
    pub(super) fn end(&self) {
        self.progress().ended = true;
        self.roll_back();
    }

    fn make_row(
        &self,
        context: &TurnContext,
        state: SessionState<S>,
        reason: Option<AgentFinishReason>,
        error: Option<&RuntimeError>,
    ) -> MakeRow {
        let id = context.snapshot_id.clone().unwrap_or_default();
        let session_id = self.session.session_id().clone();
        let (definition, now) = (self.definition.clone(), (self.definition.clock)());
        let status = match (error, reason) {
            (None, _) => SnapshotStatus::Completed,
            (Some(_), Some(AgentFinishReason::Aborted)) => SnapshotStatus::Aborted,
            (Some(_), _) => SnapshotStatus::Failed,
        };
        let error = error.map(RuntimeError::to_details);
        Box::new(move |parent| {
            let mut row = SessionSnapshot::new(id, session_id, definition.stamp(parent, now));
            row.parent_id = parent.map(|parent| parent.id.clone());
            row.status = Some(status);
            row.finish_reason = reason;
            row.error = error;
            row.state = Some(encode_state(state)?);
            Ok(row)
        })
    }

    /// Cancels the work. The first reason counts.
    pub(super) fn stop(&self, stop: Stop) {
        let _ = self.stop.set(stop);
        self.cx.cancellation().cancel();
    }

    /// Whether a failure is one, or the caller's own doing.
    pub(super) fn failure_reason(&self, error: &RuntimeError) -> AgentFinishReason {
        let callers = match self.stop.get() {
            Some(Stop::Caller(_)) => true,
            Some(Stop::Failure(_)) => false,
            None => error.is_callers_stop(),
        };
        if callers { AgentFinishReason::Aborted } else { AgentFinishReason::Failed }
    }

    /// The work sees one kind of cancellation; others should see what it was.
    pub(super) fn as_stopped(&self, error: RuntimeError) -> RuntimeError {
        match (error, self.stop.get()) {
            (RuntimeError::Cancelled(what), Some(Stop::Caller(status))) => {
                RuntimeError::ended(*status, what)
            }
            (RuntimeError::Cancelled(_), Some(Stop::Failure(error))) => error.clone(),
            (error, _) => error,
        }
    }

    /// Waits until all turns that ended are written. Returns the last snapshot.
    pub(super) async fn flush(&self) -> Option<Tip> {
        self.writer.as_ref()?.flush().await
    }

    /// The state that an invocation which ends now leaves to go on from.
    pub(super) fn settled_state(&self) -> SessionState<S> {
        {
            let progress = self.progress();
            if !progress.clean || progress.open.is_some() {
                return progress.committed.clone();
            }
        }
        self.session.state()
    }

    /// Why the last turn ended.
    pub(super) fn last_reason(&self) -> Option<AgentFinishReason> {
        self.progress().reason
    }

    /// The output of an agent function that ended well.
    pub(super) fn success(&self, result: AgentResult) -> AgentOutput<S> {
        let state = match self.writer {
            Some(_) => None,
            None => match self.definition.outbound(&self.cx, self.session.state()) {
                Ok(state) => state,
                Err(error) => return self.failure(&error),
            },
        };
        AgentOutput {
            session_id: Some(self.session.session_id().clone()),
            message: result.message,
            artifacts: result.artifacts,
            finish_reason: result.finish_reason.or_else(|| self.last_reason()),
            snapshot_id: self.writer.as_ref().and_then(Writer::written),
            state,
            error: None,
        }
    }

    /// The output of an invocation that failed, or that its caller stopped: what went wrong and
    /// where to go on from.
    pub(super) fn failure(&self, error: &RuntimeError) -> AgentOutput<S> {
        let committed = self.progress().committed.clone();
        let state = match self.writer {
            Some(_) => None,
            None => self.definition.outbound(&self.cx, committed).unwrap_or_else(|second| {
                tracing::warn!(error = %second, "the state of a failed invocation is withheld");
                None
            }),
        };
        AgentOutput {
            session_id: Some(self.session.session_id().clone()),
            message: None,
            artifacts: Vec::new(),
            finish_reason: Some(self.failure_reason(error)),
            snapshot_id: self.writer.as_ref().and_then(Writer::written),
            state,
            error: Some(error.to_details()),
        }
    }

    fn custom_change(
        &self,
        state: SessionState<S>,
        version: u64,
        rolled_back: bool,
    ) -> CustomChange {
        custom_change(&self.definition, &self.cx, state, version, rolled_back)
    }

    /// Held for moves of plain data only.
    fn progress(&self) -> MutexGuard<'_, Progress<S>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that began.
pub(super) struct Begun {
    pub(super) context: TurnContext,
    place: Option<Place>,
}

/// A turn that ended.
pub(super) struct Ended {
    pub(super) context: TurnContext,
    end: TurnEnd,
    settled: Option<oneshot::Receiver<Settled>>,
}

impl Ended {
    /// Waits until the turn is written, where it is, and told.
    pub(super) async fn settled(self) -> Settled {
        let untold = Settled { end: self.end, error: None };
        match self.settled {
            Some(settled) => settled.await.unwrap_or(untold),
            None => untold,
        }
    }
}

/// Puts what changes in a session on the stream.
struct Observer<S: State> {
    definition: Arc<Definition<S>>,
    cx: InvocationContext,
    outlet: Arc<Outlet>,
}

impl<S: State> SessionObserver<S> for Observer<S> {
    fn custom_changed(&self, session: &Session<S>) {
        if self.outlet.is_closed() {
            return;
        }
        let (state, versions) = session.versioned();
        self.outlet.custom(custom_change(
            &self.definition,
            &self.cx,
            state,
            versions.custom,
            false,
        ));
    }

    fn artifact_added(&self, artifact: &Arc<Artifact>) {
        self.outlet.artifact(artifact.clone());
    }
}

fn custom_change<S: State>(
    definition: &Arc<Definition<S>>,
    cx: &InvocationContext,
    state: SessionState<S>,
    version: u64,
    rolled_back: bool,
) -> CustomChange {
    let (definition, cx) = (definition.clone(), cx.clone());
    let read = move || {
        let shown = definition.outbound(&cx, state)?;
        let custom = shown.map(encode_state).transpose()?.and_then(|shown| shown.custom);
        Ok(custom.unwrap_or_default())
    };
    CustomChange { version, rolled_back, read: Box::new(read) }
}
