//! Agents as callers see them who know the name only.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use serde_json::Value;

use super::{
    AgentAction, AgentConnection, CompanionAction, Invocation, Invoke, RunError,
    companion::RawAgent, connection::parse_input, detached_snapshot, parse_init, to_json,
};
use crate::{
    InvocationContext, RuntimeError,
    protocol::{AgentInit, AgentInput, AgentMetadata, AgentOutput, AgentRef, GetSnapshotRequest},
    state::{SessionSnapshot, SnapshotStatus},
    task::{DetachedTask, SnapshotAccess},
};

/// An agent whatever its custom state is: all of it is raw JSON here. It can do no more than the
/// agent's callers can. Clones are the same agent.
#[derive(Clone)]
pub struct AgentHandle {
    agent: Arc<dyn RawAgent>,
}

impl AgentHandle {
    pub(super) fn new(agent: Arc<dyn RawAgent>) -> Self {
        Self { agent }
    }

    /// The agent's name.
    pub fn name(&self) -> Arc<str> {
        self.agent.agent_ref().name
    }

    /// The agent by name.
    pub fn agent_ref(&self) -> AgentRef {
        self.agent.agent_ref()
    }

    /// What the agent can do.
    pub fn metadata(&self) -> AgentMetadata {
        self.agent.metadata()
    }

    /// [`Agent::run`](crate::Agent::run).
    pub async fn run(
        &self,
        cx: &InvocationContext,
        input: impl Into<AgentInput>,
        init: AgentInit,
    ) -> Result<AgentOutput, RunError> {
        let input = input.into();
        let mut connection = self.connect(cx, init).await?;
        // One that is over before its input has an output that says why.
        let _ = connection.send(input).await;
        connection.output().await
    }

    /// [`Agent::run_text`](crate::Agent::run_text).
    pub async fn run_text(
        &self,
        cx: &InvocationContext,
        text: impl Into<String>,
        init: AgentInit,
    ) -> Result<AgentOutput, RunError> {
        self.run(cx, text.into(), init).await
    }

    /// [`Agent::connect`](crate::Agent::connect).
    pub async fn connect(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<AgentConnection, RuntimeError> {
        self.agent.connect_raw(cx, init).await
    }

    /// [`Agent::connect_json`](crate::Agent::connect_json).
    pub async fn connect_json(
        &self,
        cx: &InvocationContext,
        init: Value,
    ) -> Result<AgentConnection, RuntimeError> {
        self.connect(cx, parse_init(init)?).await
    }

    /// [`Agent::run_bidi_json`](crate::Agent::run_bidi_json).
    pub async fn run_bidi_json(
        &self,
        cx: &InvocationContext,
        input: Value,
        init: Value,
        chunk: &mut (dyn FnMut(Value) + Send),
    ) -> Result<Value, RunError> {
        let input = parse_input(input)?;
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

    /// [`Agent::run_detached`](crate::Agent::run_detached).
    pub async fn run_detached(
        &self,
        cx: &InvocationContext,
        input: impl Into<AgentInput>,
        init: AgentInit,
    ) -> Result<DetachedTask, RuntimeError> {
        let output = self.run(cx, input.into().detached(), init).await?;
        Ok(self.task(cx, detached_snapshot(&output)?))
    }

    /// [`Agent::task`](crate::Agent::task).
    pub fn task(&self, cx: &InvocationContext, snapshot_id: impl Into<Arc<str>>) -> DetachedTask {
        DetachedTask::new(Arc::new(self.clone()), cx, snapshot_id)
    }

    /// [`Agent::get_snapshot`](crate::Agent::get_snapshot).
    pub async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: impl Into<Arc<str>>,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.agent.get_snapshot_json(cx, &GetSnapshotRequest::snapshot(snapshot_id)).await
    }

    /// [`Agent::get_latest_snapshot`](crate::Agent::get_latest_snapshot).
    pub async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session_id: impl Into<Arc<str>>,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.agent.get_snapshot_json(cx, &GetSnapshotRequest::latest(session_id)).await
    }

    /// [`Agent::read_snapshot`](crate::Agent::read_snapshot).
    pub async fn read_snapshot(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.agent.get_snapshot_json(cx, request).await
    }

    /// [`Agent::wait_for_snapshot`](crate::Agent::wait_for_snapshot).
    pub async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: impl Into<Arc<str>>,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.agent.wait_for_snapshot_json(cx, &GetSnapshotRequest::snapshot(snapshot_id)).await
    }

    /// Asks the work behind a snapshot to stop, and returns where the snapshot stands after that. A
    /// missing snapshot is an error, and so is a store that cannot tell the work.
    pub async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<SnapshotStatus, RuntimeError> {
        self.agent.abort_found(cx, snapshot_id).await
    }

    /// What stands beside the agent for its callers; `None` where it cannot do that.
    pub fn action(&self, action: AgentAction) -> Option<CompanionAction> {
        CompanionAction::of(&self.agent, action)
    }
}

#[async_trait]
impl Invoke for AgentHandle {
    fn agent_ref(&self) -> AgentRef {
        self.agent.agent_ref()
    }

    fn metadata(&self) -> AgentMetadata {
        self.agent.metadata()
    }

    async fn open(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<Invocation, RuntimeError> {
        self.agent.open(cx, init).await
    }
}

#[async_trait]
impl SnapshotAccess for AgentHandle {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.agent.get_snapshot_json(cx, &request).await
    }

    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.agent.wait_for_snapshot_json(cx, &request).await
    }

    async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        self.agent.abort_found(cx, snapshot_id).await.map(Some)
    }
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentHandle").field("agent", &self.agent_ref()).finish_non_exhaustive()
    }
}
