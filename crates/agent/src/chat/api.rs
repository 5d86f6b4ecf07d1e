//! One agent, as its clients see it.

use std::{fmt, marker::PhantomData, sync::Arc};

use antiphon_types::Status;
use serde_json::Value;

use super::{
    AgentChat, AgentTransport,
    local::Local,
    transport::{Typed, typed},
};
use crate::{
    InvocationContext, RuntimeError,
    protocol::{AgentInit, GetSnapshotRequest},
    session::State,
    state::{SessionSnapshot, SnapshotStatus},
    task::DetachedTask,
};

/// One agent, as its clients see it. `S` is the custom state of its sessions: raw JSON, or the type
/// that [`AgentApi::typed`] gives it.
pub struct AgentApi<S: State = Value> {
    transport: Arc<dyn AgentTransport>,
    cx: InvocationContext,
    state: PhantomData<fn() -> S>,
}

impl AgentApi {
    /// The agent behind `transport`.
    pub fn new(transport: impl AgentTransport + 'static) -> Self {
        Self { transport: Arc::new(transport), cx: InvocationContext::new(), state: PhantomData }
    }

    /// The same agent, where its custom state is a `T`.
    pub fn typed<T: State>(self) -> AgentApi<T> {
        AgentApi { transport: self.transport, cx: self.cx, state: PhantomData }
    }
}

impl<S: State> AgentApi<S> {
    /// The same agent, called in the name of `cx`, within its deadline and until it is taken back.
    pub fn with_context(mut self, cx: InvocationContext) -> Self {
        self.cx = cx;
        self
    }

    /// Begins a conversation, or goes on with one from where `init` says. Nothing is read: what was
    /// said before is known to the chat only where `init` has the state; see
    /// [`load_chat`](Self::load_chat).
    pub fn chat(&self, init: AgentInit<S>) -> AgentChat<S> {
        AgentChat::new(self.transport.clone(), self.cx.clone(), Local::starting_from(init))
    }

    /// Goes on with a conversation from a snapshot, with all that was said before.
    pub async fn load_chat(
        &self,
        lookup: impl Into<SnapshotLookup>,
    ) -> Result<AgentChat<S>, RuntimeError> {
        let snapshot = self.transport.get_snapshot(&self.cx, lookup.into().request()).await?;
        let local = Local::loaded(snapshot);
        Ok(AgentChat::new(self.transport.clone(), self.cx.clone(), local))
    }

    /// Reads a snapshot; `None` where there is none. The agent must have a store.
    pub async fn get_snapshot(
        &self,
        lookup: impl Into<SnapshotLookup>,
    ) -> Result<Option<SessionSnapshot<S>>, RuntimeError> {
        match self.transport.get_snapshot(&self.cx, lookup.into().request()).await {
            Ok(snapshot) => typed(snapshot).map(Some),
            Err(error) if error.status() == Status::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks the work behind a snapshot to stop, and returns where the snapshot stands after that;
    /// `None` where there is none. The agent must have a store.
    pub async fn abort(&self, snapshot_id: &str) -> Result<Option<SnapshotStatus>, RuntimeError> {
        abort(&*self.transport, &self.cx, snapshot_id).await
    }

    /// The task behind a snapshot that was noted earlier. Nothing is read yet.
    pub fn task(&self, snapshot_id: impl Into<Arc<str>>) -> DetachedTask<S> {
        task(self.transport.clone(), &self.cx, snapshot_id.into())
    }
}

impl<S: State> Clone for AgentApi<S> {
    fn clone(&self) -> Self {
        Self { transport: self.transport.clone(), cx: self.cx.clone(), state: PhantomData }
    }
}

impl<S: State> fmt::Debug for AgentApi<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentApi").field("cx", &self.cx).finish_non_exhaustive()
    }
}

/// Which snapshot. A plain text is the id of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotLookup {
    /// The one of this id.
    Snapshot(Arc<str>),
    /// The latest of this session.
    Session(Arc<str>),
}

impl SnapshotLookup {
    fn request(self) -> GetSnapshotRequest {
        let (snapshot_id, session_id) = match self {
            Self::Snapshot(id) => (Some(id), None),
            Self::Session(id) => (None, Some(id)),
        };
        GetSnapshotRequest { snapshot_id, session_id, ..GetSnapshotRequest::default() }
    }
}

impl From<&str> for SnapshotLookup {
    fn from(snapshot_id: &str) -> Self {
        Self::Snapshot(snapshot_id.into())
    }
}

impl From<String> for SnapshotLookup {
    fn from(snapshot_id: String) -> Self {
        Self::Snapshot(snapshot_id.into())
    }
}

impl From<Arc<str>> for SnapshotLookup {
    fn from(snapshot_id: Arc<str>) -> Self {
        Self::Snapshot(snapshot_id)
    }
}

pub(super) async fn abort(
    transport: &dyn AgentTransport,
    cx: &InvocationContext,
    snapshot_id: &str,
) -> Result<Option<SnapshotStatus>, RuntimeError> {
    match transport.abort(cx, snapshot_id).await {
        Err(error) if error.status() == Status::NotFound => Ok(None),
        result => result,
    }
}

pub(super) fn task<S: State>(
    transport: Arc<dyn AgentTransport>,
    cx: &InvocationContext,
    snapshot_id: Arc<str>,
) -> DetachedTask<S> {
    DetachedTask::new(Arc::new(Typed { transport, state: PhantomData }), cx, snapshot_id)
}
