//! The caller's end of an invocation.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::{
    driver::Launched,
    intake::Intake,
    object,
    output::{Outcome, RunError, erase_outcome},
};
use crate::{
    RuntimeError,
    message::Message,
    patch::apply_patch,
    protocol::{AgentInput, AgentOutput, AgentStreamChunk, ToolResume},
    session::State,
};

/// A running invocation: send inputs, receive what streams, and take the output.
///
/// Dropping it cancels the invocation, unless it was detached. Not receiving cancels nothing, but
/// the agent waits once [`RuntimeLimits::stream`](crate::RuntimeLimits::stream) chunks do.
///
/// With `S` = [`Value`], as [`Agent::connect_json`](crate::Agent::connect_json) gives it, the custom
/// state is raw JSON.
pub struct AgentConnection<S: State = Value> {
    intake: Arc<Intake>,
    chunks: mpsc::Receiver<AgentStreamChunk>,
    outcome: Shared<BoxFuture<'static, Outcome<S>>>,
    /// What was streamed of the custom state.
    custom: Value,
    _caller: DropGuard,
}

impl<S: State> AgentConnection<S> {
    pub(super) fn new(launched: Launched<S>) -> Self {
        let Launched { intake, chunks, mut outcome, caller } = launched;
        let ended = async move {
            let told = outcome.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
            told.unwrap_or_else(|| {
                Err(RunError::new(RuntimeError::internal("the invocation was lost")))
            })
        };
        Self {
            intake,
            chunks,
            outcome: ended.boxed().shared(),
            custom: Value::Null,
            _caller: caller,
        }
    }

    /// The same connection with the custom state as JSON.
    pub(super) fn erase(self) -> AgentConnection {
        let Self { intake, chunks, outcome, custom, _caller } = self;
        let outcome = outcome.map(erase_outcome).boxed().shared();
        AgentConnection { intake, chunks, outcome, custom, _caller }
    }

    /// Sends the input of a turn, once there is room. Once the invocation is over it fails with
    /// [`RuntimeError::Completed`].
    pub async fn send(&self, input: impl Into<AgentInput>) -> Result<(), RuntimeError> {
        self.intake.push(input.into()).await
    }

    /// Sends a message.
    pub async fn send_message(&self, message: Message) -> Result<(), RuntimeError> {
        self.send(message).await
    }

    /// Sends a text of the user.
    pub async fn send_text(&self, text: impl Into<String>) -> Result<(), RuntimeError> {
        self.send(text.into()).await
    }

    /// Goes on after an interrupt.
    pub async fn send_resume(&self, resume: ToolResume) -> Result<(), RuntimeError> {
        self.send(resume).await
    }

    /// Sends an input as JSON. `null` is none and does nothing.
    pub async fn send_json(&self, input: Value) -> Result<(), RuntimeError> {
        match parse_input(input)? {
            Some(input) => self.send(input).await,
            None => Ok(()),
        }
    }

    /// Leaves, while the inputs that were sent are worked on in the background. The output then
    /// has the id of the snapshot that stands for the work.
    pub async fn detach(&self) -> Result<(), RuntimeError> {
        self.send(AgentInput { detach: true, ..AgentInput::default() }).await
    }

    /// Says that no more inputs come. What was sent is worked on.
    pub fn close(&self) {
        self.intake.close();
    }

    /// The next chunk; `None` when nothing more streams.
    pub async fn next_chunk(&mut self) -> Option<AgentStreamChunk> {
        let chunk = self.chunks.recv().await?;
        self.track(&chunk);
        Some(chunk)
    }

    /// What streams. Dropping it cancels nothing: a later call goes on where this one left off.
    pub fn receive(&mut self) -> Receive<'_, S> {
        Receive(self)
    }

    /// The custom state as streamed so far, each chunk counted before it is received. The default
    /// of the type before the first; errs where a state transform leaves none of the type.
    pub fn custom(&self) -> Result<S, RuntimeError> {
        if self.custom.is_null() {
            return Ok(S::default());
        }
        S::deserialize(&self.custom).map_err(|error| {
            RuntimeError::FailedPrecondition(format!(
                "what is streamed of the custom state is none of its type: {error}"
            ))
        })
    }

    /// Says that no more inputs come, drops what was not received, and waits for the end. Called
    /// again, it returns the same.
    pub async fn output(&mut self) -> Result<AgentOutput<S>, RunError<S>> {
        self.close();
        while self.next_chunk().await.is_some() {}
        self.outcome.clone().await
    }

    /// Resolves when the invocation is over, detached included. What streams has to be received
    /// for it to get there.
    pub fn done(&self) -> impl Future<Output = ()> + Send + use<S> {
        self.outcome.clone().map(drop)
    }

    fn track(&mut self, chunk: &AgentStreamChunk) {
        if let Some(patch) = &chunk.custom_patch {
            match apply_patch(&self.custom, patch) {
                Ok(custom) => self.custom = custom,
                // Only a stream transform that rewrites patches gets here.
                Err(error) => tracing::warn!(%error, "a patch of the custom state does not apply"),
            }
        }
    }
}

impl<S: State> fmt::Debug for AgentConnection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentConnection").finish_non_exhaustive()
    }
}

/// The chunks of a connection as a stream.
pub struct Receive<'a, S: State>(&'a mut AgentConnection<S>);

impl<S: State> Stream for Receive<'_, S> {
    type Item = AgentStreamChunk;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let connection = &mut *self.0;
        connection.chunks.poll_recv(cx).map(|chunk| chunk.inspect(|chunk| connection.track(chunk)))
    }
}

impl<S: State> fmt::Debug for Receive<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receive").field(&self.0).finish()
    }
}

/// An input from JSON; `null` is none. A message that says no role is the user's.
pub(super) fn parse_input(mut input: Value) -> Result<Option<AgentInput>, RuntimeError> {
    if input.is_null() {
        return Ok(None);
    }
    if let Some(message) = input.pointer_mut("/message").and_then(Value::as_object_mut) {
        let role = message.entry("role").or_insert(Value::Null);
        if role.is_null() || role == "" {
            *role = "user".into();
        }
    }
    object(input).map(Some).map_err(|error| {
        RuntimeError::InvalidArgument(format!("this is no input of an agent: {error}"))
    })
}
