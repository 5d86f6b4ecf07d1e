//! [`AgentSession`]: a live provider with tools, hooks, idle timers and memory.

mod config;
mod events;
mod hooks;

use std::{sync::Arc, time::Duration};

use antiphon_agent::{Authorizer, Memory, Tool, ToolRegistry};
use antiphon_audio::AudioSink;
use antiphon_live::{LiveConfig, LiveError, LiveProvider};
use antiphon_types::{AudioFrame, Status, ToolDefinition, ToolResponse};
use bytes::Bytes;

pub use config::{IdleConfig, ReconnectPolicy, SessionLimits};
pub use events::{
    EndReason, EndRecord, EventKind, EventStream, HostPrompt, HostPromptKind, HostPromptStage,
    SessionEvent, SessionState, SessionStats,
};
pub use hooks::{Callbacks, DeniedCall, LifecycleHooks, NoCallbacks, NoHooks, SessionContext};

/// A voice session with its tools. A cheap handle: clones share the session; dropping the last
/// one stops it.
#[derive(Clone)]
pub struct AgentSession {
    // private state: to be replaced by the implementation
    _shared: Arc<()>,
}

#[allow(unused_variables)] // signatures for the dependants
impl AgentSession {
    /// A session over `provider`. `registry` `None` is an empty one, `memory` `None` one that is
    /// kept in memory.
    pub fn new(
        provider: Arc<dyn LiveProvider>,
        callbacks: impl Callbacks,
        registry: Option<Arc<ToolRegistry>>,
        hooks: impl LifecycleHooks,
        memory: Option<Arc<dyn Memory>>,
    ) -> Self {
        unreachable!()
    }

    /// A builder, for more than [`AgentSession::new`] takes.
    pub fn builder(provider: Arc<dyn LiveProvider>) -> SessionBuilder {
        unreachable!()
    }

    /// Connects and begins. On `Ok` the start hook has returned. `Err` is before anything ran.
    pub async fn start(&self, config: LiveConfig, idle: IdleConfig) -> Result<(), StartError> {
        unreachable!()
    }

    /// Signals the end; safe anywhere, hooks and tools included.
    pub fn stop(&self) {}

    /// Stops and waits, at most `within`. Idempotent; inside the session's own hooks and tools it
    /// signals and returns at once.
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        unreachable!()
    }

    /// Waits for the end. `None` when the session was never started, or inside its own hooks and
    /// tools.
    pub async fn ended(&self) -> Option<EndRecord> {
        unreachable!()
    }

    /// The id, constant over restarts.
    pub fn session_id(&self) -> Arc<str> {
        unreachable!()
    }

    /// The tools.
    pub fn registry(&self) -> Arc<ToolRegistry> {
        unreachable!()
    }

    /// The memory, with raw keys.
    pub fn memory(&self) -> Arc<dyn Memory> {
        unreachable!()
    }

    /// The state now.
    pub fn state(&self) -> SessionState {
        unreachable!()
    }

    /// The provider's name.
    pub fn provider_name(&self) -> &str {
        unreachable!()
    }

    /// Counters so far.
    pub fn stats(&self) -> SessionStats {
        unreachable!()
    }

    /// All events from here on. Bounded: a consumer that lags loses the oldest and is told how
    /// many.
    pub fn events(&self) -> EventStream {
        unreachable!()
    }

    /// The user's audio in any PCM rate or G.711; converted to what the provider takes. Never
    /// waits: the oldest queued audio is dropped and counted when the wire is slow.
    pub fn send_audio(&self, frame: AudioFrame) -> Result<(), SendError> {
        unreachable!()
    }

    /// The user's audio ends for now.
    pub fn end_audio(&self) -> Result<(), SendError> {
        unreachable!()
    }

    /// A user's turn as text.
    pub fn send_text(&self, text: impl Into<String>) -> Result<(), SendError> {
        unreachable!()
    }

    /// An image as part of the user's turn.
    pub fn send_image(
        &self,
        media_type: impl Into<Arc<str>>,
        data: Bytes,
    ) -> Result<(), SendError> {
        unreachable!()
    }

    /// Manual turns: the user begins.
    pub fn activity_start(&self) -> Result<(), SendError> {
        unreachable!()
    }

    /// Manual turns: the user stops.
    pub fn activity_end(&self) -> Result<(), SendError> {
        unreachable!()
    }

    /// Stops the agent's reply, as the user's voice would.
    pub fn interrupt(&self) -> Result<(), SendError> {
        unreachable!()
    }

    /// Has the agent speak this text after the current reply.
    pub fn say(&self, text: impl Into<String>) -> Result<(), SendError> {
        unreachable!()
    }

    /// Plays host audio (a chime) after what is queued.
    pub fn play(&self, frame: AudioFrame) -> Result<(), SendError> {
        unreachable!()
    }

    /// The output of a call that the host answers itself.
    pub fn send_tool_response(&self, response: ToolResponse) -> Result<(), SendError> {
        unreachable!()
    }

    /// Replaces the instructions.
    pub fn update_instructions(&self, instructions: impl Into<String>) -> Result<(), SendError> {
        unreachable!()
    }

    /// Declares the registry's tools again, with these of the host's beside them.
    pub fn update_tools(&self, host_tools: Vec<ToolDefinition>) -> Result<(), SendError> {
        unreachable!()
    }

    /// Goes to the next step of the workflow.
    pub fn advance_workflow_step(&self) -> Result<(), SendError> {
        unreachable!()
    }
}

/// Builds an [`AgentSession`].
pub struct SessionBuilder {
    _private: (),
}

#[allow(unused_variables)] // signatures for the dependants
impl SessionBuilder {
    /// Adds a tool; an invalid or second one of its name makes [`SessionBuilder::build`] fail.
    pub fn tool(self, tool: impl Tool) -> Self {
        self
    }
    /// Uses this registry; tools added by [`SessionBuilder::tool`] go into it.
    pub fn registry(self, registry: Arc<ToolRegistry>) -> Self {
        self
    }
    /// Sets the policy over tool calls; the hook `authorize_tool_call` runs after it.
    pub fn authorize(self, authorizer: impl Authorizer) -> Self {
        self
    }
    /// Sets the lifecycle hooks.
    pub fn hooks(self, hooks: impl LifecycleHooks) -> Self {
        self
    }
    /// Sets the callbacks.
    pub fn callbacks(self, callbacks: impl Callbacks) -> Self {
        self
    }
    /// Sets the memory.
    pub fn memory(self, memory: Arc<dyn Memory>) -> Self {
        self
    }
    /// Sets where the agent's voice goes. Without one it goes to [`Callbacks::on_audio`], and what
    /// was heard is reckoned by time.
    pub fn sink(self, sink: impl AudioSink + 'static) -> Self {
        self
    }
    /// Sets bounds and deadlines.
    pub fn limits(self, limits: SessionLimits) -> Self {
        self
    }
    /// Sets how lost connections are replaced.
    pub fn reconnect(self, policy: ReconnectPolicy) -> Self {
        self
    }
    /// Uses this id instead of a random one.
    pub fn session_id(self, id: impl Into<Arc<str>>) -> Self {
        self
    }
    /// The session, not yet started.
    pub fn build(self) -> Result<AgentSession, StartError> {
        unreachable!()
    }
}

/// Why a session did not start. Nothing ran.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It runs already; the running session is untouched.
    #[error("the session is active already ({0})")]
    AlreadyActive(SessionState),
    /// The configuration cannot work.
    #[error("invalid configuration: {0}")]
    InvalidConfig(String),
    /// Connecting failed.
    #[error("connect failed: {0}")]
    Connect(#[source] LiveError),
    /// It was stopped while it connected.
    #[error("stopped while connecting")]
    Stopped,
}

/// Why something could not be sent. Nothing was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The session does not run.
    #[error("the session is not active")]
    NotActive,
    /// The bounded command queue is full.
    #[error("too many commands wait")]
    QueueFull,
    /// The provider cannot do it.
    #[error("the provider cannot {0}")]
    Unsupported(&'static str),
    /// The argument is wrong.
    #[error("{0}")]
    Invalid(String),
}

/// Why a session could not be shut down in order. It is inactive all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Tools did not end in time; they are detached.
    #[error("tool calls still running: {}", .0.join(", "))]
    ToolsRunning(Vec<String>),
    /// The provider did not close in time.
    #[error("the provider did not close in time")]
    CloseTimedOut,
}

impl StartError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::AlreadyActive(_) => Status::FailedPrecondition,
            Self::InvalidConfig(_) => Status::InvalidArgument,
            Self::Connect(error) => error.status(),
            Self::Stopped => Status::Cancelled,
        }
    }
}
