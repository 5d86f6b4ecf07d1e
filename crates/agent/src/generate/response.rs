//! How a generation ended.

use std::sync::Arc;

use antiphon_types::{Status, Usage};
use serde::de::DeserializeOwned;

use crate::{
    AgentFinishReason, RuntimeError,
    message::{Media, Message, Part, PartKind, ToolRequest},
};

/// What came of a generation; beside an error, of the part of it that stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GenerateResponse {
    /// The model's last message. Where tools interrupted, their requests have the metadata
    /// `interrupt`, and those that finished beside them `pendingOutput`. `None` only beside an error.
    pub message: Option<Arc<Message>>,
    /// Why it ended: the model's own reason; `interrupted`; beside an error `failed`, or `aborted`
    /// where the caller stopped it.
    pub finish_reason: AgentFinishReason,
    /// What it cost, all messages of the model together; `None` where the model does not tell.
    pub usage: Option<Usage>,
    pub(super) messages: Vec<Arc<Message>>,
    /// How many of the messages the request began with.
    pub(super) asked: usize,
}

impl GenerateResponse {
    /// The words of the model's last message.
    pub fn text(&self) -> String {
        self.message.as_ref().map(|message| message.joined_text()).unwrap_or_default()
    }

    /// The thoughts of the model's last message.
    pub fn reasoning(&self) -> String {
        let reasoning = |part: &'_ Part| match &part.kind {
            PartKind::Reasoning(text) => Some(text.clone()),
            _ => None,
        };
        self.content().iter().filter_map(reasoning).collect()
    }

    /// Pictures, sounds and films of the model's last message.
    pub fn media(&self) -> impl Iterator<Item = &Media> {
        self.content().iter().filter_map(|part| match &part.kind {
            PartKind::Media(media) => Some(media),
            _ => None,
        })
    }

    /// The whole conversation: what the request began with, as it stands now, and all that was added.
    /// The messages of a generation that goes on from here.
    pub fn history(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// What was added to the conversation. A resume also changes the last message before it.
    pub fn new_messages(&self) -> &[Arc<Message>] {
        self.messages.get(self.asked..).unwrap_or_default()
    }

    /// The tool requests of the last message whose tools wait for somebody.
    pub fn interrupts(&self) -> impl Iterator<Item = &Part> {
        self.content().iter().filter(|part| part.is_interrupt())
    }

    /// The tool requests of the last message.
    pub fn tool_requests(&self) -> impl Iterator<Item = &ToolRequest> {
        self.content().iter().filter_map(Part::as_tool_request)
    }

    /// The words of the last message, read as JSON, for a request with an output schema. Errs with
    /// `INVALID_ARGUMENT` where they are no `T`.
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, RuntimeError> {
        serde_json::from_str(&self.text()).map_err(|error| {
            RuntimeError::InvalidArgument(format!("the answer is not the JSON asked for: {error}"))
        })
    }

    fn content(&self) -> &[Part] {
        self.message.as_ref().map(|message| message.content.as_slice()).unwrap_or_default()
    }
}

/// Why a generation did not come to its end.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct GenerateError {
    /// What went wrong. [`RuntimeError::Cancelled`], [`RuntimeError::DeadlineExceeded`] and
    /// [`RuntimeError::LimitReached`] are the caller's doing; what the model or a tool reported is
    /// another variant, whatever its code.
    #[source]
    pub error: RuntimeError,
    /// What stands: the conversation up to the last complete round of tools, from which a
    /// generation can go on. `None` where the model was not reached.
    pub response: Option<Box<GenerateResponse>>,
}

impl GenerateError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        self.error.status()
    }

    /// Whether the caller stopped it: took it back, gave it too little time or too few turns.
    pub fn is_stop(&self) -> bool {
        self.error.is_callers_stop()
    }
}

impl From<RuntimeError> for GenerateError {
    fn from(error: RuntimeError) -> Self {
        Self { error, response: None }
    }
}
