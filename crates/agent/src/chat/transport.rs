//! How a chat reaches its agent.

use std::{marker::PhantomData, sync::Arc};

use async_trait::async_trait;
use futures_util::{future::BoxFuture, stream::BoxStream};
use serde_json::Value;

use crate::{
    InvocationContext, RuntimeError,
    protocol::{
        AgentInit, AgentInput, AgentOutput, AgentStateManagement, AgentStreamChunk,
        GetSnapshotRequest,
    },
    session::State,
    state::{SessionSnapshot, SnapshotStatus},
    task::SnapshotAccess,
};

/// How a chat reaches its agent: runs turns, and reads, awaits and aborts snapshots.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no way to reach an agent",
    note = "implement `antiphon_agent::AgentTransport`, or use an `AgentHandle`"
)]
pub trait AgentTransport: SnapshotAccess {
    /// Who keeps the state of the agent's sessions; `None` where it is not known. A chat then finds
    /// out by what turns end with.
    fn state_management(&self) -> Option<AgentStateManagement> {
        None
    }

    /// Runs one turn, until `cx` ends. It does not err: what goes wrong is an output that failed, or
    /// was aborted.
    fn run_turn(&self, cx: &InvocationContext, input: AgentInput, init: AgentInit) -> TurnRun;
}

/// A turn that runs, as a transport gives it.
pub struct TurnRun {
    /// What streams. It is read to its end first; the turn may need that to go on.
    pub stream: BoxStream<'static, AgentStreamChunk>,
    /// What the turn ends with.
    pub output: BoxFuture<'static, AgentOutput>,
}

impl std::fmt::Debug for TurnRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnRun").finish_non_exhaustive()
    }
}

impl<T: AgentTransport + ?Sized> AgentTransport for Arc<T> {
    fn state_management(&self) -> Option<AgentStateManagement> {
        (**self).state_management()
    }

    fn run_turn(&self, cx: &InvocationContext, input: AgentInput, init: AgentInit) -> TurnRun {
        (**self).run_turn(cx, input, init)
    }
}

/// A transport whose snapshots have a custom state of type `S`.
pub(super) struct Typed<S> {
    pub(super) transport: Arc<dyn AgentTransport>,
    pub(super) state: PhantomData<fn() -> S>,
}

#[async_trait]
impl<S: State> SnapshotAccess<S> for Typed<S> {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        typed(self.transport.get_snapshot(cx, request).await?)
    }

    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<S>, RuntimeError> {
        typed(self.transport.wait_for_snapshot(cx, request).await?)
    }

    async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        self.transport.abort(cx, snapshot_id).await
    }
}

/// The snapshot with a custom state of type `S`.
pub(super) fn typed<S: State>(
    mut snapshot: SessionSnapshot,
) -> Result<SessionSnapshot<S>, RuntimeError> {
    let Some(mut state) = snapshot.state.take() else { return Ok(snapshot.with_state(None)) };
    let custom = state.custom.take().filter(|custom| !custom.is_null());
    let custom = custom.map(serde_json::from_value).transpose().map_err(|error| {
        RuntimeError::FailedPrecondition(format!(
            "the custom state of snapshot {:?} is not of the type that the chat has for it: {error}",
            snapshot.snapshot_id
        ))
    })?;
    Ok(snapshot.with_state(Some(state.with_custom(custom))))
}

/// The custom state as type `S`; none where it was never set, and where it is of another type.
pub(super) fn typed_custom<S: State>(custom: Option<&Value>) -> Option<S> {
    let custom = custom.filter(|custom| !custom.is_null())?;
    S::deserialize(custom)
        .inspect_err(|error| {
            tracing::warn!(%error, "the agent's custom state is not of the chat's type");
        })
        .ok()
}
