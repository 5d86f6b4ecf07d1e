//! What an agent is made of.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;

use super::{Agent, Responder, RuntimeLimits, SessionRunner, Voice};
use crate::{
    InvocationContext, RuntimeError,
    protocol::{AgentMetadata, AgentRef, AgentResult, AgentStateManagement, AgentStreamChunk},
    session::State,
    state::SessionState,
    store::SessionStore,
};

/// The function of an agent: it enters the loop of its turns by [`SessionRunner::run`], streams by
/// the responder, and returns what the invocation comes to.
pub type AgentFunc<S> = Box<
    dyn Fn(
            InvocationContext,
            Responder,
            SessionRunner<S>,
        ) -> BoxFuture<'static, Result<AgentResult, RuntimeError>>
        + Send
        + Sync,
>;

/// Rewrites the state of a session on its way to a client; what is stored and what the agent sees
/// stay as they are. `None` leaves the state out. An error, or a panic, fails what was to be shown:
/// nothing goes out that was not looked at. It must not block, and the session is not to be changed
/// from within it.
pub type StateTransform<S> = Arc<
    dyn Fn(&InvocationContext, SessionState<S>) -> Result<Option<SessionState<S>>, RuntimeError>
        + Send
        + Sync,
>;

/// Rewrites a chunk on its way to a client, after what it stands for has had its effects. `None`
/// drops it from the stream. An error, or a panic, fails the invocation, and the client sees nothing
/// more. It must not block. To hide custom state use a [`StateTransform`], which comes before
/// patches are made.
pub type StreamTransform = Arc<
    dyn Fn(&InvocationContext, AgentStreamChunk) -> Result<Option<AgentStreamChunk>, RuntimeError>
        + Send
        + Sync,
>;

/// Tells the time of day; snapshots are stamped with it.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// All of an agent that does not change.
pub(crate) struct Definition<S: State> {
    pub(super) name: Arc<str>,
    pub(super) description: Option<Arc<str>>,
    pub(super) function: AgentFunc<S>,
    pub(super) store: Option<Arc<dyn SessionStore>>,
    pub(super) state_transform: Option<StateTransform<S>>,
    pub(super) stream_transform: Option<StreamTransform>,
    pub(super) state_schema: Option<Arc<Value>>,
    pub(super) voice: Option<Voice>,
    pub(super) clock: WallClock,
    pub(super) limits: RuntimeLimits,
    /// When the last snapshot was made.
    pub(super) last_stamp: Mutex<Option<Timestamp>>,
}

impl<S: State> Definition<S> {
    pub(super) fn metadata(&self) -> AgentMetadata {
        AgentMetadata {
            state_management: match self.store {
                Some(_) => AgentStateManagement::Server,
                None => AgentStateManagement::Client,
            },
            abortable: self.store.as_ref().is_some_and(|store| store.subscriber().is_some()),
            state_schema: self.state_schema.clone(),
        }
    }

    pub(super) fn agent_ref(&self) -> AgentRef {
        AgentRef { name: self.name.clone(), description: self.description.clone() }
    }

    /// The store, or the error that there is none.
    pub(super) fn required_store(&self) -> Result<&Arc<dyn SessionStore>, RuntimeError> {
        self.store
            .as_ref()
            .ok_or_else(|| RuntimeError::SessionStoreNotConfigured(self.name.clone()))
    }

    /// The store, or the error that work cannot go on in the background.
    pub(super) fn required_subscriber(&self) -> Result<&Arc<dyn SessionStore>, RuntimeError> {
        let store = self.required_store()?;
        match store.subscriber() {
            Some(_) => Ok(store),
            None => Err(RuntimeError::NotAbortable(self.name.clone())),
        }
    }

    /// The state as a client may see it; `None` where it may not.
    pub(super) fn outbound(
        &self,
        cx: &InvocationContext,
        state: SessionState<S>,
    ) -> Result<Option<SessionState<S>>, RuntimeError> {
        let Some(transform) = &self.state_transform else { return Ok(Some(state)) };
        let session_id = state.session_id.clone();
        let shown = super::outlet::guarded("state transform", || transform(cx, state))?;
        // Whose state it is is not for the transform to say.
        Ok(shown.map(|shown| SessionState { session_id, ..shown }))
    }
}

/// Builds an [`Agent`]. Begun with [`Agent::custom`].
pub struct AgentBuilder<S: State> {
    definition: Definition<S>,
}

impl<S: State> AgentBuilder<S> {
    pub(super) fn new(name: Arc<str>, function: AgentFunc<S>) -> Self {
        Self {
            definition: Definition {
                name,
                description: None,
                function,
                store: None,
                state_transform: None,
                stream_transform: None,
                state_schema: None,
                voice: None,
                clock: Arc::new(Timestamp::now),
                limits: RuntimeLimits::default(),
                last_stamp: Mutex::new(None),
            },
        }
    }

    /// What the agent does, for whoever lists agents.
    pub fn description(mut self, description: impl Into<Arc<str>>) -> Self {
        self.definition.description = Some(description.into());
        self
    }

    /// Where the agent keeps its sessions. Without a store the state travels with the calls.
    ///
    /// What travels is the caller's to write: the conversation, and in it what the model asked for
    /// and what a user confirmed. A policy that is to hold against callers needs a store.
    pub fn store(self, store: impl SessionStore + 'static) -> Self {
        self.shared_store(Arc::new(store))
    }

    /// [`AgentBuilder::store`] with a store that others use too.
    pub fn shared_store(mut self, store: Arc<dyn SessionStore>) -> Self {
        self.definition.store = Some(store);
        self
    }

    /// What clients see of the state.
    pub fn state_transform<F>(mut self, transform: F) -> Self
    where
        F: Fn(&InvocationContext, SessionState<S>) -> Result<Option<SessionState<S>>, RuntimeError>
            + Send
            + Sync
            + 'static,
    {
        self.definition.state_transform = Some(Arc::new(transform));
        self
    }

    /// What clients see of the stream.
    pub fn stream_transform<F>(mut self, transform: F) -> Self
    where
        F: Fn(
                &InvocationContext,
                AgentStreamChunk,
            ) -> Result<Option<AgentStreamChunk>, RuntimeError>
            + Send
            + Sync
            + 'static,
    {
        self.definition.stream_transform = Some(Arc::new(transform));
        self
    }

    /// Derives the JSON Schema of the custom state from its type.
    pub fn state_schema(self) -> Self
    where
        S: schemars::JsonSchema,
    {
        self.state_schema_json(schemars::schema_for!(S).to_value())
    }

    /// The JSON Schema of the custom state, for whoever lists agents. Nothing is held to it but by
    /// the state's own type.
    pub fn state_schema_json(mut self, schema: Value) -> Self {
        self.definition.state_schema = Some(Arc::new(schema));
        self
    }

    /// Declares that the agent can be in voice sessions, and what it is there: its function does not
    /// run then. An agent over a prompt is able by itself; this replaces what it would be.
    pub fn voice(mut self, voice: Voice) -> Self {
        self.definition.voice = Some(voice);
        self
    }

    /// Tells the time of day, in the place of the system's clock.
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.definition.clock = Arc::new(clock);
        self
    }

    /// The bounds.
    pub fn limits(mut self, limits: RuntimeLimits) -> Self {
        self.definition.limits = limits.kept();
        self
    }

    /// The agent.
    pub fn build(self) -> Agent<S> {
        Agent { definition: Arc::new(self.definition) }
    }
}

impl<S: State> fmt::Debug for AgentBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder").field("name", &self.definition.name).finish_non_exhaustive()
    }
}
