//! What agent functions work with.

use std::{fmt, ops::Deref, sync::Arc};

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{core::Core, intake::Intake, invoke::OpenTurn, outlet::Outlet};
use crate::{
    InvocationContext, RuntimeError,
    message::{Message, ModelResponseChunk},
    protocol::{AgentInput, AgentResult, TurnResult},
    session::{Session, SessionAccess, State},
    state::Artifact,
};

/// How an agent function streams to its client.
#[derive(Clone)]
pub struct Responder {
    session: Arc<dyn SessionAccess>,
    outlet: Arc<Outlet>,
    stopped: CancellationToken,
}

impl Responder {
    /// Streams a piece of what the model says, once there is room: a client that is behind slows
    /// the agent down. Where nobody listens any more, or the work is to stop, it is dropped.
    pub async fn send_model_chunk(&self, chunk: ModelResponseChunk) {
        tokio::select! {
            biased;
            () = self.stopped.cancelled() => {}
            () = self.outlet.room() => self.outlet.chunk(chunk),
        }
    }

    /// Adds an artifact to the session, in the place of the one of its name, and streams it. When
    /// this returns the session has it.
    pub fn send_artifact(&self, artifact: Artifact) {
        self.session.add_artifacts(vec![artifact]);
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("session_id", &self.session.session_id())
            .finish_non_exhaustive()
    }
}

/// Why a turn failed, and what becomes of what it did: nothing, unless it says that it left a state
/// worth going on from.
///
/// An error turned into it by `?` rolls the turn back.
#[derive(Clone, Debug)]
pub struct TurnFailure {
    /// What went wrong.
    pub error: RuntimeError,
    /// Given: the turn is committed as one that failed, and can be resumed.
    pub commit: Option<TurnResult>,
}

impl TurnFailure {
    /// The turn is undone.
    pub fn roll_back(error: impl Into<RuntimeError>) -> Self {
        Self { error: error.into(), commit: None }
    }

    /// What the turn did is kept.
    pub fn commit(error: impl Into<RuntimeError>) -> Self {
        Self { error: error.into(), commit: Some(TurnResult::default()) }
    }
}

impl<E: Into<RuntimeError>> From<E> for TurnFailure {
    fn from(error: E) -> Self {
        Self::roll_back(error)
    }
}

/// The session of a running agent function, and the loop over its turns.
pub struct SessionRunner<S: State> {
    core: Arc<Core<S>>,
    intake: Arc<Intake>,
}

impl<S: State> SessionRunner<S> {
    pub(super) fn new(core: Arc<Core<S>>, intake: Arc<Intake>) -> Self {
        Self { core, intake }
    }

    pub(super) fn responder(&self) -> Responder {
        Responder {
            session: self.core.session.clone(),
            outlet: self.core.outlet.clone(),
            stopped: self.core.cx.cancellation().clone(),
        }
    }

    /// Calls `turn` for every input, until the caller sends no more, and ends each turn: its state
    /// is committed as a snapshot where the agent has a store, and its end is told.
    ///
    /// The input's message is in the history when `turn` is called; the context that it is given
    /// has the [`TurnContext`](crate::TurnContext). A turn that fails ends the loop with its error,
    /// rolled back or committed as [`TurnFailure`] says; the loop may be entered again. A caller
    /// that stops the invocation ends it with [`RuntimeError::Cancelled`] or
    /// [`RuntimeError::DeadlineExceeded`]. A turn that cannot be written ends it too where
    /// [`RuntimeLimits::on_store_stall`](crate::RuntimeLimits::on_store_stall) says so.
    pub async fn run<F, Fut>(&self, mut turn: F) -> Result<(), RuntimeError>
    where
        F: FnMut(InvocationContext, AgentInput) -> Fut,
        Fut: Future<Output = Result<TurnResult, TurnFailure>>,
    {
        loop {
            let input = tokio::select! {
                biased;
                status = self.core.cx.ended() => {
                    let error = RuntimeError::ended(status, "the caller stopped the invocation");
                    return Err(self.core.as_stopped(error));
                }
                input = self.intake.next() => input,
            };
            let Some(input) = input else { return Ok(()) };
            let open = OpenTurn::begin(self.core.clone())?;
            let context = open.context().clone();
            let span = tracing::info_span!(
                "runTurn",
                otel.name = format!("runTurn-{}", context.turn_index + 1),
                "genkit:type" = "flowStep",
                "genkit:metadata:agent:snapshotId" = context.snapshot_id.as_deref(),
            );
            let cx = self.core.cx.clone().with_turn(context);
            let result = async {
                if let Some(message) = &input.message {
                    open.append(message.clone());
                }
                let result = turn(cx, input).await;
                // The state is the words of the conversation: they stay out of ordinary logs.
                if result.is_ok() && tracing::enabled!(tracing::Level::TRACE) {
                    let state = super::start::encode_state(self.core.session.state());
                    let output = serde_json::json!({ "state": state.ok() });
                    tracing::trace!("genkit:output" = %output, "the turn ended well");
                }
                result
            }
            .instrument(span)
            .await;
            let failure = result.as_ref().err().map(|failure| failure.error.clone());
            let lost = open.seal(result).settle().await.error;
            // Changes of the session are put without waiting; here they may wait.
            tokio::select! {
                biased;
                () = self.core.outlet.room() => {}
                _ = self.core.cx.ended() => {}
            }
            if let Some(error) = failure {
                return Err(self.core.as_stopped(error));
            }
            if let Some(error) = lost
                && self.core.definition.limits.on_store_stall.ends()
            {
                return Err(error);
            }
        }
    }

    /// What the session comes to as it stands: its last message and its artifacts.
    pub fn result(&self) -> AgentResult {
        AgentResult {
            message: self.messages().last().map(|message| Message::clone(message)),
            artifacts: self.artifacts(),
            finish_reason: None,
        }
    }

    /// The session, to be handed to others.
    pub fn session(&self) -> &Arc<Session<S>> {
        &self.core.session
    }

    /// The context of the invocation.
    pub fn context(&self) -> &InvocationContext {
        &self.core.cx
    }
}

impl<S: State> Deref for SessionRunner<S> {
    type Target = Session<S>;

    fn deref(&self) -> &Session<S> {
        &self.core.session
    }
}

impl<S: State> fmt::Debug for SessionRunner<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRunner").field("session", &self.core.session).finish_non_exhaustive()
    }
}
