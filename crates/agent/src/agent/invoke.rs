//! The floor below agent functions: invocations whose turns somebody else drives, such as a voice
//! session.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{runtime::Handle, sync::Mutex, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    OnStoreStall,
    background::Background,
    core::{Begun, Core, Ended},
    function::TurnFailure,
    output::erase_output,
    stream::InvocationStream,
    voice::Voice,
    writer::Writer,
};
use crate::{
    InvocationContext, RuntimeError,
    approval::Approvals,
    ledger::CallRecord,
    message::{Message, ModelResponseChunk},
    protocol::{
        AgentInit, AgentMetadata, AgentOutput, AgentRef, AgentResult, TurnContext, TurnEnd,
        TurnResult,
    },
    session::{SessionAccess, State},
    state::AgentFinishReason,
};

/// An agent whose invocations somebody else drives, turn by turn. Every [`Agent`](crate::Agent) is
/// one; its own function then does not run.
#[async_trait]
pub trait Invoke: Send + Sync {
    /// The agent's name and description.
    fn agent_ref(&self) -> AgentRef;

    /// What the agent can do.
    fn metadata(&self) -> AgentMetadata;

    /// What the agent is in a voice session; `None` where it cannot be in one. Default: `None`.
    fn voice(&self) -> Option<Voice> {
        None
    }

    /// Begins an invocation, from the start that `init` names. Every error is one of the call:
    /// nothing has begun.
    ///
    /// `cx` is who calls. When it ends, the invocation's own [context](Invocation::context) does
    /// not: that is for whoever drives it to say.
    async fn open(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<Invocation, RuntimeError>;
}

#[async_trait]
impl<T: Invoke + ?Sized> Invoke for Arc<T> {
    fn agent_ref(&self) -> AgentRef {
        (**self).agent_ref()
    }

    fn metadata(&self) -> AgentMetadata {
        (**self).metadata()
    }

    fn voice(&self) -> Option<Voice> {
        (**self).voice()
    }

    async fn open(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<Invocation, RuntimeError> {
        (**self).open(cx, init).await
    }
}

/// A running invocation. Whoever holds it begins turns and seals them, and ends it by
/// [`Invocation::finish`]; dropped without that, an open turn is rolled back, turns that were
/// sealed are still written, and work that was detached is settled as aborted.
pub struct Invocation {
    turns: Arc<dyn Turns>,
    life: Box<dyn Life>,
    /// The work ends with the invocation.
    _work: DropGuard,
}

impl Invocation {
    pub(super) fn new<S: State>(core: Arc<Core<S>>, work: CancellationToken) -> Self {
        Self {
            turns: core.clone(),
            life: Box::new(Driven {
                core,
                streams: AtomicBool::new(false),
                attended: Mutex::new(None),
            }),
            _work: work.drop_guard(),
        }
    }

    /// The session.
    pub fn session(&self) -> Arc<dyn SessionAccess> {
        self.turns.session()
    }

    /// The context that tools, prompts and models of this invocation get: its caller, its session,
    /// and a cancellation that comes when somebody aborts the work or the invocation ends.
    pub fn context(&self) -> &InvocationContext {
        self.life.context()
    }

    /// Begins a turn. Errs where another is open, and where too many wait to be written.
    pub fn begin_turn(&self) -> Result<OpenTurn, RuntimeError> {
        OpenTurn::begin(self.turns.clone())
    }

    /// The snapshot that the next turn goes on from, written or about to be; `None` before the first
    /// of a session.
    pub fn snapshot_id(&self) -> Option<Arc<str>> {
        self.life.snapshot_id()
    }

    /// What a client of the agent is streamed from here on: what [`Invocation::send_chunk`] is given,
    /// changes of the session, ends of turns, all through the agent's transforms. A transform that fails
    /// ends the stream and cancels the invocation's [context](Invocation::context). `None` where the
    /// stream was taken before.
    pub fn stream(&self) -> Option<InvocationStream> {
        self.life.stream()
    }

    /// Streams a piece of what the model or a tool says. Never waits: `false` is that the client is so
    /// far behind that it was dropped. Where nobody listens nothing happens.
    pub fn send_chunk(&self, chunk: ModelResponseChunk) -> bool {
        self.life.send_chunk(chunk)
    }

    /// How many turns are open or wait to be written.
    pub fn unwritten(&self) -> usize {
        self.life.unwritten()
    }

    /// What becomes of the conversation where its store cannot write: for whoever drives it to see
    /// to.
    pub fn on_store_stall(&self) -> OnStoreStall {
        self.life.on_store_stall()
    }

    /// How long the store may take to write a turn, tries again included.
    pub fn store_limit(&self) -> Duration {
        self.life.store_limit()
    }

    /// The calls of which nobody knows how they ended, since their process did: the history that the
    /// invocation began with says so for the first time.
    pub fn unknown_calls(&self) -> Vec<CallRecord> {
        self.context().account().map(|account| account.unknown_calls()).unwrap_or_default()
    }

    /// Whether the history that the invocation began with is more than that of the snapshot it goes on
    /// from: it tells of calls that were made, or decided over, since then.
    pub fn tells_more(&self) -> bool {
        self.context().account().is_some_and(|account| account.adds_to_history())
    }

    /// Decides over the calls of the agent that wait for a person; `None` where its store keeps no
    /// account of calls.
    pub fn approvals(&self) -> Option<Approvals> {
        let account = self.context().account()?;
        Approvals::of_account(account).ok()
    }

    /// Waits until all turns that were sealed are written. Returns the snapshot to go on from.
    pub async fn flush(&self) -> Option<Arc<str>> {
        self.life.flush().await
    }

    /// Goes on in the background: from here on one pending row stands for all that is done, and is
    /// rewritten when the invocation is finished. Returns its id; called again, the same.
    pub async fn detach(&self) -> Result<Arc<str>, RuntimeError> {
        self.life.detach().await
    }

    /// Ends the invocation and says what it came to. An open turn is rolled back; what was sealed
    /// is written. The output of one that went on in the background names the row that stood for it,
    /// or none where its end could not be written.
    pub async fn finish(self, result: Result<AgentResult, RuntimeError>) -> AgentOutput {
        self.life.finish(result).await
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation")
            .field("session_id", &self.session().session_id())
            .finish_non_exhaustive()
    }
}

/// A turn that goes on. Dropped without being sealed it is rolled back: the session is as it was
/// when the turn began.
pub struct OpenTurn {
    turns: Arc<dyn Turns>,
    session: Arc<dyn SessionAccess>,
    /// Until it is sealed.
    begun: Option<Begun>,
    context: TurnContext,
}

impl OpenTurn {
    pub(super) fn begin(turns: Arc<dyn Turns>) -> Result<Self, RuntimeError> {
        let begun = turns.begin_turn()?;
        let (session, context) = (turns.session(), begun.context.clone());
        Ok(Self { turns, session, begun: Some(begun), context })
    }

    /// The turn's numbers, with the id under which it will be saved.
    pub fn context(&self) -> &TurnContext {
        &self.context
    }

    /// The session.
    pub fn session(&self) -> &Arc<dyn SessionAccess> {
        &self.session
    }

    /// Appends a message, of whomever: in voice the user's words often come after the answer.
    pub fn append(&self, message: Message) {
        self.session.add_messages(vec![message]);
    }

    /// Ends the turn. `Ok` commits it, an error commits it as failed or rolls it back, as it says.
    ///
    /// This does not wait: the turn is handed to the one writer of the session, which writes turns
    /// in the order of their sealing, whether or not [`SealedTurn::write`] is awaited.
    pub fn seal(mut self, outcome: Result<TurnResult, TurnFailure>) -> SealedTurn {
        match self.begun.take() {
            Some(begun) => SealedTurn { ended: self.turns.seal(begun, outcome) },
            None => unreachable!("only sealing takes it, and that consumes the turn"),
        }
    }
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        if self.begun.is_some() {
            self.turns.roll_back();
        }
    }
}

impl fmt::Debug for OpenTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTurn").field("context", &self.context).finish_non_exhaustive()
    }
}

/// A turn that ended, and may not be written yet.
pub struct SealedTurn {
    ended: Ended,
}

impl SealedTurn {
    /// The turn's numbers.
    pub fn context(&self) -> &TurnContext {
        &self.ended.context
    }

    /// Waits until the turn is written and told. The snapshot's id is missing where none was
    /// written: no store, rolled back, detached, or the store failed.
    pub async fn write(self) -> TurnEnd {
        self.settle().await.end
    }

    /// [`SealedTurn::write`] with the store's error.
    pub async fn settle(self) -> Settled {
        self.ended.settled().await
    }
}

/// What became of a turn that was sealed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settled {
    /// As it was told.
    pub end: TurnEnd,
    /// Why it could not be written, where it was to be.
    pub error: Option<RuntimeError>,
}

impl fmt::Debug for SealedTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedTurn").field("context", self.context()).finish_non_exhaustive()
    }
}

/// What a turn needs of its invocation, whatever the custom state is.
pub(super) trait Turns: Send + Sync {
    fn session(&self) -> Arc<dyn SessionAccess>;
    fn begin_turn(&self) -> Result<Begun, RuntimeError>;
    fn seal(&self, begun: Begun, outcome: Result<TurnResult, TurnFailure>) -> Ended;
    fn roll_back(&self);
}

impl<S: State> Turns for Core<S> {
    fn session(&self) -> Arc<dyn SessionAccess> {
        self.session.clone()
    }

    fn begin_turn(&self) -> Result<Begun, RuntimeError> {
        Core::begin_turn(self)
    }

    fn seal(&self, begun: Begun, outcome: Result<TurnResult, TurnFailure>) -> Ended {
        Core::seal(self, begun, outcome)
    }

    fn roll_back(&self) {
        Core::roll_back(self);
    }
}

/// What an invocation needs beside its turns.
#[async_trait]
trait Life: Send + Sync {
    fn context(&self) -> &InvocationContext;
    fn snapshot_id(&self) -> Option<Arc<str>>;
    fn stream(&self) -> Option<InvocationStream>;
    fn send_chunk(&self, chunk: ModelResponseChunk) -> bool;
    fn unwritten(&self) -> usize;
    fn on_store_stall(&self) -> OnStoreStall;
    fn store_limit(&self) -> Duration;
    async fn flush(&self) -> Option<Arc<str>>;
    async fn detach(&self) -> Result<Arc<str>, RuntimeError>;
    async fn finish(&self, result: Result<AgentResult, RuntimeError>) -> AgentOutput;
}

/// An invocation that somebody else drives.
struct Driven<S: State> {
    core: Arc<Core<S>>,
    /// Somebody took the stream.
    streams: AtomicBool,
    attended: Mutex<Option<Attended<S>>>,
}

/// Work in the background and the task that attends to it.
struct Attended<S: State> {
    background: Arc<Background<S>>,
    attending: JoinHandle<()>,
    /// What the invocation came to, once it was finished.
    result: Result<AgentResult, RuntimeError>,
}

impl<S: State> Drop for Driven<S> {
    /// Whoever drives it is gone without having finished it: the row in the background must not
    /// stand there as if somebody worked on it.
    fn drop(&mut self) {
        let attended = self.attended.get_mut().take();
        if let Some(attended) = &attended {
            attended.attending.abort();
        }
        if attended.is_none() && !*self.streams.get_mut() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let core = self.core.clone();
        runtime.spawn(async move {
            core.end();
            core.flush().await;
            core.outlet.close();
            if let Some(attended) = attended {
                attended.background.finish(&attended.result).await;
            }
        });
    }
}

#[async_trait]
impl<S: State> Life for Driven<S> {
    fn context(&self) -> &InvocationContext {
        &self.core.cx
    }

    fn snapshot_id(&self) -> Option<Arc<str>> {
        self.core.writer.as_ref()?.parent()
    }

    fn stream(&self) -> Option<InvocationStream> {
        let taken = self.streams.swap(true, Ordering::Relaxed);
        (!taken).then(|| InvocationStream::open(&self.core))
    }

    fn send_chunk(&self, chunk: ModelResponseChunk) -> bool {
        self.core.outlet.offer(chunk)
    }

    fn unwritten(&self) -> usize {
        self.core.writer.as_ref().map_or(0, Writer::unwritten)
    }

    fn on_store_stall(&self) -> OnStoreStall {
        self.core.definition.limits.on_store_stall
    }

    fn store_limit(&self) -> Duration {
        let limits = &self.core.definition.limits;
        limits.store.saturating_add(limits.on_store_stall.patience())
    }

    async fn flush(&self) -> Option<Arc<str>> {
        Some(self.core.flush().await?.id)
    }

    async fn detach(&self) -> Result<Arc<str>, RuntimeError> {
        // Held over the write of the row: a second detach waits for the first.
        let mut attended = self.attended.lock().await;
        if let Some(attended) = &*attended {
            return Ok(attended.background.snapshot_id().clone());
        }
        // The client is told nothing of what is done without it.
        self.core.outlet.close();
        let background = Arc::new(Background::begin(&self.core).await?);
        let id = background.snapshot_id().clone();
        let attending = tokio::spawn({
            let background = background.clone();
            async move {
                background.attend().await;
            }
        });
        let dropped = RuntimeError::Cancelled("the invocation was dropped".to_owned());
        *attended = Some(Attended { background, attending, result: Err(dropped) });
        Ok(id)
    }

    async fn finish(&self, result: Result<AgentResult, RuntimeError>) -> AgentOutput {
        self.core.end();
        self.flush().await;
        self.core.outlet.close();
        let output = match &result {
            Ok(result) => self.core.success(result.clone()),
            Err(error) => self.core.failure(error),
        };
        let mut output = erase_output(output);
        // It stays in its place until the row is settled: this future may be dropped before.
        let mut detached = self.attended.lock().await;
        if let Some(attended) = &mut *detached {
            attended.attending.abort();
            attended.result = result;
            let snapshot_id = attended.background.snapshot_id().clone();
            if attended.background.aborted() {
                output.finish_reason = Some(AgentFinishReason::Aborted);
            }
            let written = attended.background.finish(&attended.result).await;
            output.snapshot_id = written.then_some(snapshot_id);
            *detached = None;
        }
        if let Some(account) = self.core.cx.account() {
            // Nobody may be there any more to write it behind.
            account.flush().await;
        }
        output
    }
}
