//! Agents: conversations over a function of the host's, whose turns become snapshots.

mod background;
mod backlog;
mod companion;
mod connection;
mod core;
mod definition;
mod driver;
mod function;
mod handle;
mod intake;
mod invoke;
mod limits;
mod monitor;
mod outlet;
mod output;
mod reads;
mod registry;
mod resume;
mod start;
mod stream;
mod voice;
mod writer;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use self::{
    companion::{AgentAction, CompanionAction},
    connection::{AgentConnection, Receive},
    definition::{AgentBuilder, AgentFunc, StateTransform, StreamTransform, WallClock},
    function::{Responder, SessionRunner, TurnFailure},
    handle::AgentHandle,
    invoke::{Invocation, Invoke, OpenTurn, SealedTurn, Settled},
    limits::{OnStoreStall, RuntimeLimits},
    output::RunError,
    registry::Registry,
    resume::{validate_input, validate_resume_against_history},
    stream::InvocationStream,
    voice::Voice,
};
use self::{
    core::Core, definition::Definition, driver::launch, outlet::Outlet, start::decode_init,
};
use crate::{
    InvocationContext, RuntimeError,
    protocol::{
        AgentInit, AgentInput, AgentMetadata, AgentOutput, AgentRef, AgentResult,
        GetSnapshotRequest,
    },
    session::State,
    state::{AgentFinishReason, SessionSnapshot, SnapshotStatus},
    store::SessionStore,
    task::{DetachedTask, SnapshotAccess},
};

/// An agent: a function over the turns of a conversation, with what it needs to keep the
/// conversation. `S` is the custom state of its sessions. Clones are the same agent.
///
/// ```
/// use antiphon_agent::{
///     Agent, AgentInit, InMemorySessionStore, InvocationContext, Message, TurnResult,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let agent = Agent::<u32>::custom("counter", |_cx, _responder, runner| async move {
///     runner
///         .run(|_cx, _input| async {
///             runner.update_custom(|count| count + 1);
///             runner.add_messages([Message::model(format!("{}", runner.custom()))]);
///             Ok(TurnResult::default())
///         })
///         .await?;
///     Ok(runner.result())
/// })
/// .store(InMemorySessionStore::new())
/// .build();
///
/// let cx = InvocationContext::new();
/// let first = agent.run_text(&cx, "Count.", AgentInit::default()).await.unwrap();
/// let again = AgentInit::session(first.session_id.unwrap());
/// let second = agent.run_text(&cx, "Again.", again).await.unwrap();
/// assert_eq!(second.message.unwrap().joined_text(), "2");
/// # }
/// ```
pub struct Agent<S: State = Value> {
    definition: Arc<Definition<S>>,
}

impl<S: State> Agent<S> {
    /// Begins an agent over a function of the host's, which has the loop of the turns in its hands.
    pub fn custom<F, Fut>(name: impl Into<Arc<str>>, function: F) -> AgentBuilder<S>
    where
        F: Fn(InvocationContext, Responder, SessionRunner<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<AgentResult, RuntimeError>> + Send + 'static,
    {
        let function: AgentFunc<S> =
            Box::new(move |cx, responder, runner| Box::pin(function(cx, responder, runner)));
        AgentBuilder::new(name.into(), function)
    }

    /// The agent's name.
    pub fn name(&self) -> &Arc<str> {
        &self.definition.name
    }

    /// What the agent does.
    pub fn description(&self) -> Option<&Arc<str>> {
        self.definition.description.as_ref()
    }

    /// What the agent can do.
    pub fn metadata(&self) -> AgentMetadata {
        self.definition.metadata()
    }

    /// The agent by name.
    pub fn agent_ref(&self) -> AgentRef {
        self.definition.agent_ref()
    }

    /// The store of the agent's sessions, raw: what is read from it passes no transform.
    pub fn store(&self) -> Option<&Arc<dyn SessionStore>> {
        self.definition.store.as_ref()
    }

    /// The agent as callers see it who know its name only.
    pub fn handle(&self) -> AgentHandle {
        AgentHandle::new(Arc::new(self.clone()))
    }

    /// One turn. A turn that fails is an output that says so; an error means that the invocation
    /// never began, or that the caller stopped it and where it can go on from.
    pub async fn run(
        &self,
        cx: &InvocationContext,
        input: impl Into<AgentInput>,
        init: AgentInit<S>,
    ) -> Result<AgentOutput<S>, RunError<S>> {
        let input = input.into();
        let mut connection = self.connect(cx, init).await?;
        // One that is over before its input has an output that says why.
        let _ = connection.send(input).await;
        connection.output().await
    }

    /// One turn over a text of the user.
    pub async fn run_text(
        &self,
        cx: &InvocationContext,
        text: impl Into<String>,
        init: AgentInit<S>,
    ) -> Result<AgentOutput<S>, RunError<S>> {
        self.run(cx, text.into(), init).await
    }

    /// One turn of a fresh session in JSON. `chunk` is given what streams.
    pub async fn run_json(
        &self,
        cx: &InvocationContext,
        input: Value,
        chunk: &mut (dyn FnMut(Value) + Send),
    ) -> Result<Value, RunError> {
        self.run_bidi_json(cx, input, Value::Null, chunk).await
    }

    /// One turn in JSON, from the start that `init` names. `chunk` is given what streams.
    pub async fn run_bidi_json(
        &self,
        cx: &InvocationContext,
        input: Value,
        init: Value,
        chunk: &mut (dyn FnMut(Value) + Send),
    ) -> Result<Value, RunError> {
        let input = connection::parse_input(input)?;
        let mut connection = self.connect_json(cx, init).await?;
        if let Some(input) = input {
            let _ = connection.send(input).await;
        }
        connection.close();
        while let Some(next) = connection.next_chunk().await {
            chunk(to_json(&next)?);
        }
        Ok(to_json(&connection.output().await?)?)
    }

    /// Begins an invocation of any number of turns.
    pub async fn connect(
        &self,
        cx: &InvocationContext,
        init: AgentInit<S>,
    ) -> Result<AgentConnection<S>, RuntimeError> {
        Ok(AgentConnection::new(launch(self.definition.clone(), cx, init).await?))
    }

    /// [`Agent::connect`] with the start and the custom state in JSON. `null` is a fresh session.
    pub async fn connect_json(
        &self,
        cx: &InvocationContext,
        init: Value,
    ) -> Result<AgentConnection, RuntimeError> {
        let init = parse_init(init)?;
        Ok(self.connect(cx, decode_init(init)?).await?.erase())
    }

    /// Lets a turn go on in the background and returns the task that follows it. Where the agent
    /// cannot do that the error says why; work that was over before it could detach is a task over
    /// its snapshot.
    pub async fn run_detached(
        &self,
        cx: &InvocationContext,
        input: impl Into<AgentInput>,
        init: AgentInit<S>,
    ) -> Result<DetachedTask<S>, RuntimeError> {
        let output = self.run(cx, input.into().detached(), init).await?;
        let snapshot_id = detached_snapshot(&output)?;
        Ok(self.task(cx, snapshot_id))
    }

    /// The task behind a snapshot that was noted earlier. Nothing is read yet.
    pub fn task(
        &self,
        cx: &InvocationContext,
        snapshot_id: impl Into<Arc<str>>,
    ) -> DetachedTask<S> {
        DetachedTask::new(Arc::new(self.clone()), cx, snapshot_id)
    }

    /// Reads a snapshot as clients see it: transformed, and expired where its worker is gone.
    pub async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: impl Into<Arc<str>>,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        self.definition.get_snapshot(cx, &GetSnapshotRequest::snapshot(snapshot_id)).await
    }

    /// Reads the snapshot of a session that was made last, whatever its status.
    pub async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session_id: impl Into<Arc<str>>,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        self.definition.get_snapshot(cx, &GetSnapshotRequest::latest(session_id)).await
    }

    /// Reads as `request` says, without the state if it says so.
    pub async fn read_snapshot(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        self.definition.get_snapshot(cx, request).await
    }

    /// Waits until a snapshot is settled, and reads it. One that failed, was aborted or expired is
    /// a snapshot too, not an error.
    pub async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: impl Into<Arc<str>>,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        self.definition.wait_for_snapshot(cx, &GetSnapshotRequest::snapshot(snapshot_id)).await
    }

    /// Asks the work behind a snapshot to stop, and returns where the snapshot stands after that.
    /// `None` where there is no such snapshot.
    pub async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        self.definition.abort(cx, snapshot_id).await
    }
}

#[async_trait]
impl<S: State> Invoke for Agent<S> {
    fn agent_ref(&self) -> AgentRef {
        self.definition.agent_ref()
    }

    fn metadata(&self) -> AgentMetadata {
        self.definition.metadata()
    }

    fn voice(&self) -> Option<Voice> {
        self.definition.voice.clone()
    }

    async fn open(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<Invocation, RuntimeError> {
        let start = self.definition.start(cx, decode_init(init)?).await?;
        let work = CancellationToken::new();
        let outlet = Arc::new(Outlet::closed(self.definition.limits.stream));
        let cx = cx.uncancelled().with_cancellation(work.clone());
        let core = Core::new(self.definition.clone(), cx, start, outlet);
        Ok(Invocation::new(core, work))
    }
}

#[async_trait]
impl<S: State> SnapshotAccess<S> for Agent<S> {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        self.definition.get_snapshot(cx, &request).await
    }

    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        self.definition.wait_for_snapshot(cx, &request).await
    }

    async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        self.definition.abort(cx, snapshot_id).await
    }
}

impl<S: State> Clone for Agent<S> {
    fn clone(&self) -> Self {
        Self { definition: self.definition.clone() }
    }
}

impl<S: State> fmt::Debug for Agent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.definition.name)
            .field("metadata", &self.metadata())
            .finish_non_exhaustive()
    }
}

/// The snapshot that stands for an invocation that was to go on in the background.
fn detached_snapshot<C>(output: &AgentOutput<C>) -> Result<Arc<str>, RuntimeError> {
    match (&output.error, &output.snapshot_id) {
        (Some(error), _) => Err(error.clone().into()),
        (None, Some(snapshot_id)) => Ok(snapshot_id.clone()),
        (None, None) => Err(RuntimeError::FailedPrecondition(format!(
            "the invocation was over before it could go on in the background ({}), and left no \
             snapshot",
            output.finish_reason.unwrap_or(AgentFinishReason::Unknown)
        ))),
    }
}

/// A start from JSON; `null` is a fresh session.
fn parse_init(init: Value) -> Result<AgentInit, RuntimeError> {
    if init.is_null() {
        return Ok(AgentInit::default());
    }
    object(init).map_err(|error| {
        RuntimeError::InvalidArgument(format!("this is no start of an invocation: {error}"))
    })
}

/// Reads a struct from an object; a list of its members, which serde would take, is none.
fn object<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    match value {
        Value::Object(_) => serde_json::from_value(value),
        _ => Err(serde::de::Error::custom("it is not an object")),
    }
}

fn to_json(value: &impl serde::Serialize) -> Result<Value, RuntimeError> {
    serde_json::to_value(value).map_err(|error| RuntimeError::internal(error.to_string()))
}
