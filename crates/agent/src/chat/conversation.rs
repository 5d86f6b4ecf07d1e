//! A conversation with an agent.

use std::{fmt, marker::PhantomData, sync::Arc};

use antiphon_types::Status;
use serde_json::Value;

use super::{
    AgentError, AgentResponse, AgentTransport, AgentTurn, api,
    driver::{Shared, drive, refresh},
    local::Local,
    transport::typed_custom,
};
use crate::{
    InvocationContext, RuntimeError,
    message::Messages,
    protocol::{AgentInput, ToolResume},
    session::State,
    state::{AgentErrorDetails, Artifact, SnapshotStatus},
    task::DetachedTask,
};

/// A conversation with an agent. It keeps what has to travel from turn to turn.
///
/// One turn runs at a time: another that is begun meanwhile fails. Clones are the same
/// conversation.
pub struct AgentChat<S: State = Value> {
    shared: Arc<Shared>,
    cx: InvocationContext,
    state: PhantomData<fn() -> S>,
}

impl<S: State> AgentChat<S> {
    pub(super) fn new(
        transport: Arc<dyn AgentTransport>,
        cx: InvocationContext,
        local: Local,
    ) -> Self {
        Self { shared: Arc::new(Shared::new(transport, local)), cx, state: PhantomData }
    }

    /// The same conversation, in the name of `cx`: turns are aborted when it ends.
    pub fn with_context(&self, cx: InvocationContext) -> Self {
        Self { cx, ..self.clone() }
    }

    /// Runs a turn to its end.
    pub async fn send(
        &self,
        input: impl Into<AgentInput>,
    ) -> Result<AgentResponse<S>, AgentError<S>> {
        self.send_stream(input).response().await
    }

    /// Runs a turn and streams it. It begins when it is polled first.
    pub fn send_stream(&self, input: impl Into<AgentInput>) -> AgentTurn<S> {
        let abort = self.cx.cancellation().child_token();
        let cx = self.cx.clone().with_cancellation(abort.clone());
        AgentTurn::new(drive(self.shared.clone(), cx, input.into()), abort)
    }

    /// Goes on after an interrupt.
    pub async fn resume(&self, resume: ToolResume) -> Result<AgentResponse<S>, AgentError<S>> {
        self.send(resume).await
    }

    /// Goes on after an interrupt, and streams.
    pub fn resume_stream(&self, resume: ToolResume) -> AgentTurn<S> {
        self.send_stream(resume)
    }

    /// Lets a turn go on in the background. The chat goes on from it: a further turn is refused by
    /// the agent while the work is pending, and has what came of it after that.
    pub async fn detach(
        &self,
        input: impl Into<AgentInput>,
    ) -> Result<DetachedTask<S>, AgentError<S>> {
        let response = self.send(input.into().detached()).await?;
        match response.raw().snapshot_id.clone() {
            Some(snapshot_id) => {
                Ok(api::task(self.shared.transport.clone(), &self.cx, snapshot_id))
            }
            None => Err(AgentError::new(
                AgentErrorDetails::new(
                    Status::FailedPrecondition,
                    format!(
                        "the turn was over before it could go on in the background ({}), and left \
                         no snapshot",
                        response.finish_reason()
                    ),
                ),
                response,
            )),
        }
    }

    /// Asks the work behind the current snapshot to stop, and returns where the snapshot stands
    /// after that; `None` where there is none. A turn under way is stopped by
    /// [`AgentTurn::abort`].
    pub async fn abort(&self) -> Result<Option<SnapshotStatus>, RuntimeError> {
        match self.snapshot_id() {
            Some(id) => api::abort(&*self.shared.transport, &self.cx, &id).await,
            None => Ok(None),
        }
    }

    /// Reads what the current snapshot holds, where there is one: what was said and produced by
    /// work in the background, and by tools in between. Fails while a turn is under way.
    pub async fn refresh(&self) -> Result<(), RuntimeError> {
        refresh(&self.shared, &self.cx).await
    }

    /// The snapshot that the next turn goes on from.
    pub fn snapshot_id(&self) -> Option<Arc<str>> {
        self.shared.local().snapshot_id.clone()
    }

    /// The session.
    pub fn session_id(&self) -> Option<Arc<str>> {
        self.shared.local().session_id.clone()
    }

    /// The custom state as it is known, while a turn streams too. None where it was never set, is
    /// not known, or is not of the type that the chat has for it.
    pub fn state(&self) -> Option<S> {
        let custom = self.shared.local().custom.clone();
        typed_custom(custom.as_deref())
    }

    /// The messages as they are known: what the user said and how each turn was answered. What
    /// tools said in between is known of agents without a store, and after
    /// [`refresh`](Self::refresh).
    pub fn messages(&self) -> Messages {
        self.shared.local().messages.clone()
    }

    /// What the conversation produced, as it is known.
    pub fn artifacts(&self) -> Vec<Arc<Artifact>> {
        self.shared.local().artifacts.clone()
    }
}

impl<S: State> Clone for AgentChat<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), cx: self.cx.clone(), state: PhantomData }
    }
}

impl<S: State> fmt::Debug for AgentChat<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.shared.local();
        f.debug_struct("AgentChat")
            .field("session_id", &local.session_id)
            .field("snapshot_id", &local.snapshot_id)
            .field("messages", &local.messages.len())
            .finish_non_exhaustive()
    }
}
