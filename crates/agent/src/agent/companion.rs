//! What can be done to an agent's snapshots from outside, in JSON.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Agent, AgentConnection, Invoke, object, start::decode_init, to_json};
use crate::{
    InvocationContext, RuntimeError,
    protocol::{AgentAbortRequest, AgentAbortResponse, AgentInit, GetSnapshotRequest},
    session::State,
    state::{SessionSnapshot, SnapshotStatus},
};

/// An agent whatever its custom state is.
#[async_trait]
pub(crate) trait RawAgent: Invoke {
    async fn connect_raw(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<AgentConnection, RuntimeError>;

    async fn get_snapshot_json(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError>;

    async fn wait_for_snapshot_json(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError>;

    /// Unlike [`Agent::abort`] this needs a store that can tell of changes, and a missing snapshot
    /// is an error.
    async fn abort_found(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<SnapshotStatus, RuntimeError>;
}

#[async_trait]
impl<S: State> RawAgent for Agent<S> {
    async fn connect_raw(
        &self,
        cx: &InvocationContext,
        init: AgentInit,
    ) -> Result<AgentConnection, RuntimeError> {
        Ok(self.connect(cx, decode_init(init)?).await?.erase())
    }

    async fn get_snapshot_json(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.definition.get_snapshot_json(cx, request).await
    }

    async fn wait_for_snapshot_json(
        &self,
        cx: &InvocationContext,
        request: &GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.definition.wait_for_snapshot_json(cx, request).await
    }

    async fn abort_found(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<SnapshotStatus, RuntimeError> {
        self.definition.required_subscriber()?;
        let status = self.definition.abort(cx, snapshot_id).await?;
        status.ok_or_else(|| RuntimeError::SnapshotNotFound(snapshot_id.into()))
    }
}

/// What stands beside an agent for its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AgentAction {
    /// Reads a snapshot: [`GetSnapshotRequest`] to [`SessionSnapshot`].
    GetSnapshot,
    /// Reads a snapshot once it is settled: [`GetSnapshotRequest`] to [`SessionSnapshot`].
    WaitForSnapshot,
    /// Stops the work behind a snapshot: [`AgentAbortRequest`] to [`AgentAbortResponse`].
    Abort,
}

impl AgentAction {
    /// The last part of its route, such as `getSnapshot`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GetSnapshot => "getSnapshot",
            Self::WaitForSnapshot => "waitForSnapshot",
            Self::Abort => "abort",
        }
    }
}

/// An [`AgentAction`] of one agent, to be offered over a transport.
#[derive(Clone)]
pub struct CompanionAction {
    action: AgentAction,
    agent: Arc<dyn RawAgent>,
}

impl CompanionAction {
    /// The action, where the agent can do it.
    pub(super) fn of(agent: &Arc<dyn RawAgent>, action: AgentAction) -> Option<Self> {
        let metadata = agent.metadata();
        let can = match action {
            AgentAction::GetSnapshot | AgentAction::WaitForSnapshot => {
                metadata.state_management == crate::AgentStateManagement::Server
            }
            AgentAction::Abort => metadata.abortable,
        };
        can.then(|| Self { action, agent: agent.clone() })
    }

    /// What it does.
    pub fn action(&self) -> AgentAction {
        self.action
    }

    /// Does it.
    pub async fn run_json(
        &self,
        cx: &InvocationContext,
        request: Value,
    ) -> Result<Value, RuntimeError> {
        match self.action {
            AgentAction::GetSnapshot => {
                to_json(&self.agent.get_snapshot_json(cx, &parse(request)?).await?)
            }
            AgentAction::WaitForSnapshot => {
                to_json(&self.agent.wait_for_snapshot_json(cx, &parse(request)?).await?)
            }
            AgentAction::Abort => {
                let AgentAbortRequest { snapshot_id } = parse(request)?;
                let status = Some(self.agent.abort_found(cx, &snapshot_id).await?);
                to_json(&AgentAbortResponse { snapshot_id, status })
            }
        }
    }
}

impl<S: State> Agent<S> {
    /// Reads snapshots; `None` without a store.
    pub fn get_snapshot_action(&self) -> Option<CompanionAction> {
        self.companion(AgentAction::GetSnapshot)
    }

    /// Waits for snapshots; `None` without a store.
    pub fn wait_for_snapshot_action(&self) -> Option<CompanionAction> {
        self.companion(AgentAction::WaitForSnapshot)
    }

    /// Stops work in the background; `None` without a store that can tell of changes.
    pub fn abort_action(&self) -> Option<CompanionAction> {
        self.companion(AgentAction::Abort)
    }

    fn companion(&self, action: AgentAction) -> Option<CompanionAction> {
        let agent: Arc<dyn RawAgent> = Arc::new(self.clone());
        CompanionAction::of(&agent, action)
    }
}

impl fmt::Debug for CompanionAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompanionAction")
            .field("action", &self.action)
            .field("agent", &self.agent.agent_ref().name)
            .finish()
    }
}

fn parse<T: DeserializeOwned>(request: Value) -> Result<T, RuntimeError> {
    object(request)
        .map_err(|error| RuntimeError::InvalidArgument(format!("this is no such request: {error}")))
}
