//! What a turn ended with.

use std::{error::Error, fmt, sync::Arc};

use antiphon_types::Status;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    AgentInterrupt,
    chunk::{data, media, reasoning, tool_requests},
    driver::Outcome,
    local::Local,
    transport::typed_custom,
};
use crate::{
    RuntimeError,
    message::{Media, Message, Messages, Part},
    protocol::AgentOutput,
    session::State,
    state::{AgentErrorDetails, AgentFinishReason, Artifact},
};

/// What a turn ended with. Clones are the same response.
#[derive(Clone, Debug)]
pub struct AgentResponse<S = Value> {
    completed: Arc<Completed>,
    state: Option<S>,
}

/// What a turn ended with, whatever the custom state is.
#[derive(Debug)]
pub(super) struct Completed {
    output: AgentOutput,
    pub(super) finish_reason: AgentFinishReason,
    messages: Messages,
    artifacts: Vec<Arc<Artifact>>,
    custom: Option<Arc<Value>>,
    pub(super) snapshot_id: Option<Arc<str>>,
    session_id: Option<Arc<str>>,
}

impl Completed {
    pub(super) fn new(local: &Local, output: AgentOutput) -> Self {
        Self {
            finish_reason: output.finish_reason.unwrap_or(AgentFinishReason::Unknown),
            output,
            messages: local.messages.clone(),
            artifacts: local.artifacts.clone(),
            custom: local.custom.clone(),
            snapshot_id: local.snapshot_id.clone(),
            session_id: local.session_id.clone(),
        }
    }
}

impl<S> AgentResponse<S> {
    /// The model's last message.
    pub fn message(&self) -> Option<&Message> {
        self.completed.output.message.as_ref()
    }

    /// The text of the message, joined.
    pub fn text(&self) -> String {
        self.message().map(Message::joined_text).unwrap_or_default()
    }

    /// The thoughts in the message, joined.
    pub fn reasoning(&self) -> String {
        reasoning(self.parts())
    }

    /// The first picture, sound or film in the message.
    pub fn media(&self) -> Option<&Media> {
        media(self.parts())
    }

    /// The first piece of structured data in the message.
    pub fn data(&self) -> Option<&Value> {
        data(self.parts())
    }

    /// [`data`](Self::data) as a type; an error where it is of another.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<Option<T>, RuntimeError> {
        self.data().map(T::deserialize).transpose().map_err(|error| {
            RuntimeError::FailedPrecondition(format!("the data is of another type: {error}"))
        })
    }

    /// The tool requests in the message.
    pub fn tool_requests(&self) -> impl Iterator<Item = &Part> {
        tool_requests(self.parts())
    }

    /// The tool requests that the turn paused on.
    pub fn interrupts(&self) -> Vec<AgentInterrupt> {
        AgentInterrupt::all(self.parts())
    }

    /// The conversation after the turn.
    pub fn messages(&self) -> &Messages {
        &self.completed.messages
    }

    /// Why the turn ended.
    pub fn finish_reason(&self) -> AgentFinishReason {
        self.completed.finish_reason
    }

    /// What there is to say about that, where something went wrong.
    pub fn finish_message(&self) -> Option<&str> {
        self.completed.output.error.as_ref().map(|error| error.message.as_str())
    }

    /// Errs where there is no answer to use: the turn failed, was blocked, or says nothing.
    pub fn assert_valid(&self) -> Result<(), RuntimeError> {
        let reason = self.finish_reason();
        match (&self.completed.output.error, reason) {
            (Some(error), _) => Err(error.clone().into()),
            (None, AgentFinishReason::Blocked | AgentFinishReason::Failed) => {
                Err(RuntimeError::FailedPrecondition(format!("the turn ended as {reason}")))
            }
            (None, _) if self.message().is_none() => Err(RuntimeError::FailedPrecondition(
                format!("the turn ended as {reason}, without a message"),
            )),
            (None, _) => Ok(()),
        }
    }

    /// As it came.
    pub fn raw(&self) -> &AgentOutput {
        &self.completed.output
    }

    /// The snapshot that the conversation goes on from; none where the agent has no store.
    pub fn snapshot_id(&self) -> Option<&Arc<str>> {
        self.completed.snapshot_id.as_ref()
    }

    /// The session.
    pub fn session_id(&self) -> Option<&Arc<str>> {
        self.completed.session_id.as_ref()
    }

    /// The custom state after the turn; none where it was never set, is not known, or is not of the
    /// type that the chat has for it.
    pub fn state(&self) -> Option<&S> {
        self.state.as_ref()
    }

    /// What the conversation produced.
    pub fn artifacts(&self) -> &[Arc<Artifact>] {
        &self.completed.artifacts
    }

    fn parts(&self) -> &[Part] {
        self.message().map_or(&[], |message| &message.content)
    }
}

/// A turn that failed. The chat is back at the last good state, which this carries.
#[derive(Clone)]
pub struct AgentError<S = Value> {
    inner: Box<Inner<S>>,
}

#[derive(Clone)]
struct Inner<S> {
    details: AgentErrorDetails,
    response: AgentResponse<S>,
}

impl<S> AgentError<S> {
    /// The canonical code.
    pub fn status(&self) -> Status {
        self.inner.details.status
    }

    /// What went wrong.
    pub fn message(&self) -> &str {
        &self.inner.details.message
    }

    /// What the one who failed adds.
    pub fn details(&self) -> Option<&Value> {
        self.inner.details.details.as_ref()
    }

    /// The last good custom state.
    pub fn state(&self) -> Option<&S> {
        self.inner.response.state()
    }

    /// The snapshot that the conversation can go on from.
    pub fn snapshot_id(&self) -> Option<&Arc<str>> {
        self.inner.response.snapshot_id()
    }

    /// The whole response, which failed.
    pub fn response(&self) -> &AgentResponse<S> {
        &self.inner.response
    }
}

impl<S> fmt::Display for AgentError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the turn failed: {}", self.inner.details)
    }
}

impl<S> fmt::Debug for AgentError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentError")
            .field("details", &self.inner.details)
            .field("snapshot_id", &self.snapshot_id())
            .finish_non_exhaustive()
    }
}

impl<S> Error for AgentError<S> {}

impl<S> From<AgentError<S>> for RuntimeError {
    fn from(error: AgentError<S>) -> Self {
        error.inner.details.into()
    }
}

/// What a turn resolves with.
pub(super) type Resolved<S> = Result<AgentResponse<S>, AgentError<S>>;

pub(super) fn resolved<S: State>(outcome: Outcome) -> Resolved<S> {
    let Outcome { completed, error } = outcome;
    let state = typed_custom(completed.custom.as_deref());
    let response = AgentResponse { completed: Arc::new(completed), state };
    match error {
        None => Ok(response),
        Some(details) => Err(AgentError::new(details, response)),
    }
}

impl<S> AgentError<S> {
    pub(super) fn new(details: AgentErrorDetails, response: AgentResponse<S>) -> Self {
        Self { inner: Box::new(Inner { details, response }) }
    }
}
