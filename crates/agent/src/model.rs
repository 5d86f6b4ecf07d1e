//! Language models.

use std::{pin::Pin, sync::Arc};

use antiphon_types::{JsonObject, Status, ToolArguments, ToolCallRequest, ToolDefinition, Usage};
use async_trait::async_trait;
use futures_core::Stream;
use futures_util::StreamExt;

use crate::{Message, Part, Role, json::parse_object};

/// A model that continues a conversation, streaming.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a language model",
    note = "implement `antiphon_agent::Model`"
)]
pub trait Model: Send + Sync + 'static {
    /// A short constant name.
    fn name(&self) -> &str;

    /// Begins a generation. Dropping the future or the stream cancels it.
    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;
}

/// The chunks of one generation. After [`ModelChunk::Done`] or an error it yields nothing more.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelChunk, ModelError>> + Send>>;

/// What a model is asked.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ModelRequest {
    /// The host's instructions.
    pub instructions: Option<String>,
    /// The conversation so far, oldest first. The last message is the user's or a tool's.
    pub messages: Vec<Arc<Message>>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolDefinition]>,
    /// A BCP 47 language tag.
    pub locale: Option<Arc<str>>,
    /// At most this many tokens.
    pub max_output_tokens: Option<u32>,
}

impl ModelRequest {
    /// A request to continue `messages`.
    pub fn new(messages: Vec<Arc<Message>>) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// A piece of a generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelChunk {
    /// More words.
    Text(String),
    /// A complete call.
    ToolCall(ToolCallRequest),
    /// The end.
    Done {
        /// Why.
        reason: ModelFinish,
        /// What it cost, where told.
        usage: Option<Usage>,
        /// Kept with the model's message and given back in later requests.
        metadata: Option<JsonObject>,
    },
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelFinish {
    /// The model said all, or waits for tools.
    Stop,
    /// It ran into the bound on tokens.
    Length,
    /// A filter stopped it.
    Blocked,
}

/// Everything of one generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelReply {
    /// All its words.
    pub text: String,
    /// All its calls, in order.
    pub tool_calls: Vec<ToolCallRequest>,
    /// Why it ended.
    pub finish: ModelFinish,
    /// What it cost, where told.
    pub usage: Option<Usage>,
    /// To be kept with the message.
    pub metadata: Option<JsonObject>,
}

impl ModelReply {
    /// The model's message for the history. Arguments that are not a JSON object become an empty
    /// one there; their output says what was wrong.
    pub fn into_message(self) -> Message {
        let text = (!self.text.is_empty()).then(|| Part::text(self.text));
        let calls = self.tool_calls.into_iter().map(|call| {
            let input = match call.arguments {
                ToolArguments::Object(object) => object,
                ToolArguments::Json(text) => parse_object(&text).unwrap_or_default(),
            };
            Part::tool_request(call.name, Some(call.id), input)
        });
        let content = text.into_iter().chain(calls).collect();
        Message::new(Role::Model, content).with_metadata(self.metadata)
    }
}

/// Waits for the end of a generation. One that ends without [`ModelChunk::Done`] was cut off and is
/// an error.
pub async fn collect(mut stream: ModelStream) -> Result<ModelReply, ModelError> {
    let (mut text, mut tool_calls) = (String::new(), Vec::new());
    while let Some(chunk) = stream.next().await {
        match chunk? {
            ModelChunk::Text(more) => text.push_str(&more),
            ModelChunk::ToolCall(call) => tool_calls.push(call),
            ModelChunk::Done { reason, usage, metadata } => {
                return Ok(ModelReply { text, tool_calls, finish: reason, usage, metadata });
            }
        }
    }
    Err(ModelError::new("model", Status::Unavailable, "the generation ended without a finish"))
}

/// Why a generation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{model}: {message}")]
#[non_exhaustive]
pub struct ModelError {
    /// The model's name.
    pub model: Arc<str>,
    /// What happened.
    pub message: String,
    /// The canonical code.
    pub status: Status,
}

impl ModelError {
    /// An error of `model`.
    pub fn new(model: impl Into<Arc<str>>, status: Status, message: impl Into<String>) -> Self {
        Self { model: model.into(), message: message.into(), status }
    }

    /// The canonical code.
    pub fn status(&self) -> Status {
        self.status
    }
}
