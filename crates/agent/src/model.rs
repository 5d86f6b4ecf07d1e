//! Language models.

use std::{pin::Pin, sync::Arc};

use antiphon_types::{JsonObject, Status, ToolArguments, ToolCallRequest, ToolDefinition, Usage};
use async_trait::async_trait;
use futures_core::Stream;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Message, Part, PartKind, Role,
    json::{parse_object, serialized_len},
    state::AgentFinishReason,
};

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
    /// The conversation so far, oldest first. The last message is the user's or a tool's. A message
    /// of the host that is not at the beginning stands among them as a system message.
    pub messages: Vec<Arc<Message>>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolDefinition]>,
    /// Whether it may, must or must not call one.
    pub tool_choice: ToolChoice,
    /// A BCP 47 language tag.
    pub locale: Option<Arc<str>>,
    /// At most this many tokens.
    pub max_output_tokens: Option<u32>,
    /// Settings under the names that Genkit gives them, such as `temperature`, `topP`, `topK` and
    /// `stopSequences`. A model ignores those that it does not know.
    pub config: Arc<JsonObject>,
    /// The JSON Schema that the answer has to fit; the answer is JSON then, not prose.
    pub output_schema: Option<Arc<Value>>,
}

/// Whether a model calls tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoice {
    /// As it sees fit.
    #[default]
    Auto,
    /// It has to call at least one.
    Required,
    /// It must not.
    None,
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
    /// More of the model's thoughts.
    Reasoning(String),
    /// A complete call. Where the model gives calls no ids the id is empty.
    ToolCall(ToolCallRequest),
    /// A complete part of another kind, such as a picture, or one with metadata that has to be given
    /// back with it, such as the signature of a thought or of a call.
    Part(Box<Part>),
    /// Parts that a model which does not stream gives at once: they belong to the reply, but nobody
    /// is told of them before it is complete.
    Whole(Vec<Part>),
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
    /// For a reason of the model's own.
    Other,
    /// The model did not say.
    Unknown,
}

impl From<ModelFinish> for AgentFinishReason {
    fn from(finish: ModelFinish) -> Self {
        match finish {
            ModelFinish::Stop => Self::Stop,
            ModelFinish::Length => Self::Length,
            ModelFinish::Blocked => Self::Blocked,
            ModelFinish::Other => Self::Other,
            ModelFinish::Unknown => Self::Unknown,
        }
    }
}

/// Everything of one generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelReply {
    /// All parts, in order; words that follow each other are one part. The input of a tool request
    /// whose arguments are not a JSON object is an empty one here: [`ModelReply::tool_calls`] has
    /// them as they came.
    pub content: Vec<Part>,
    /// All its calls, in the order of their parts.
    pub tool_calls: Vec<ToolCallRequest>,
    /// Why it ended.
    pub finish: ModelFinish,
    /// What it cost, where told.
    pub usage: Option<Usage>,
    /// To be kept with the message.
    pub metadata: Option<JsonObject>,
}

impl ModelReply {
    /// All its words.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(Part::as_text).collect()
    }

    /// The model's message for the history. Arguments that are not a JSON object become an empty
    /// one there; their output says what was wrong.
    pub fn into_message(self) -> Message {
        Message::new(Role::Model, self.content).with_metadata(self.metadata)
    }
}

/// Waits for the end of a generation. One that ends without [`ModelChunk::Done`] was cut off and is
/// an error, as is one that is larger than [`MAX_REPLY_BYTES`] or has more than
/// [`MAX_REPLY_CALLS`].
pub async fn collect(mut stream: ModelStream) -> Result<ModelReply, ModelError> {
    let mut reply = ReplyBuilder::default();
    while let Some(chunk) = stream.next().await {
        if let Some(reply) = reply.add(chunk?)? {
            return Ok(reply);
        }
    }
    Err(ModelError::cut_off("model"))
}

/// How many bytes of words and JSON one reply may have: 16 MiB.
pub const MAX_REPLY_BYTES: usize = 16 * 1024 * 1024;
/// How many calls one reply may hold.
pub const MAX_REPLY_CALLS: usize = 128;

/// Puts the chunks of a generation together.
#[derive(Debug, Default)]
pub(crate) struct ReplyBuilder {
    content: Vec<Part>,
    tool_calls: Vec<ToolCallRequest>,
    bytes: usize,
}

impl ReplyBuilder {
    /// Adds a chunk; the reply, once it is complete.
    pub(crate) fn add(&mut self, chunk: ModelChunk) -> Result<Option<ModelReply>, ModelError> {
        match chunk {
            ModelChunk::Text(more) => {
                self.bytes += more.len();
                match self.content.last_mut() {
                    Some(Part { kind: PartKind::Text(text), metadata: None, .. }) => {
                        text.push_str(&more);
                    }
                    _ => self.content.push(Part::text(more)),
                }
            }
            ModelChunk::Reasoning(more) => {
                self.bytes += more.len();
                match self.content.last_mut() {
                    Some(Part { kind: PartKind::Reasoning(text), metadata: None, .. }) => {
                        text.push_str(&more);
                    }
                    _ => self.content.push(Part::reasoning(more)),
                }
            }
            ModelChunk::ToolCall(call) => {
                self.bytes += serialized_len(&call);
                self.content.push(request_part(&call));
                self.tool_calls.push(call);
            }
            ModelChunk::Part(part) => self.add_part(*part),
            ModelChunk::Whole(parts) => parts.into_iter().for_each(|part| self.add_part(part)),
            ModelChunk::Done { reason, usage, metadata } => {
                // Whatever else comes belongs to no reply.
                let Self { content, tool_calls, .. } = std::mem::take(self);
                let finish = reason;
                return Ok(Some(ModelReply { content, tool_calls, finish, usage, metadata }));
            }
        }
        if self.bytes > MAX_REPLY_BYTES || self.tool_calls.len() > MAX_REPLY_CALLS {
            let text = format!(
                "the reply is larger than {MAX_REPLY_BYTES} bytes or {MAX_REPLY_CALLS} calls"
            );
            return Err(ModelError::new("model", Status::ResourceExhausted, text));
        }
        Ok(None)
    }

    fn add_part(&mut self, part: Part) {
        self.bytes += serialized_len(&part);
        if let Some(request) = part.as_tool_request() {
            let arguments = match &request.input {
                Some(Value::Object(object)) => ToolArguments::Object(object.clone()),
                None | Some(Value::Null) => ToolArguments::Object(JsonObject::new()),
                // No object: whoever parses it says so.
                Some(other) => ToolArguments::Json(other.to_string()),
            };
            let (id, name) = (request.id.clone().unwrap_or_default(), request.name.clone());
            self.tool_calls.push(ToolCallRequest { id, name, arguments });
        }
        self.content.push(part);
    }
}

/// The part of a call.
pub(crate) fn request_part(call: &ToolCallRequest) -> Part {
    let input = match &call.arguments {
        ToolArguments::Object(object) => object.clone(),
        ToolArguments::Json(text) => parse_object(text).unwrap_or_default(),
    };
    let id = (!call.id.is_empty()).then(|| call.id.clone());
    Part::tool_request(call.name.clone(), id, input)
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

    /// A generation ended in the middle.
    pub(crate) fn cut_off(model: impl Into<Arc<str>>) -> Self {
        Self::new(model, Status::Unavailable, "the generation ended without a finish")
    }

    /// The canonical code.
    pub fn status(&self) -> Status {
        self.status
    }
}
