//! Items of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{lenient, open_enum::open_enum};

/// One item of a conversation. Decoding never fails: what is no item of a known shape is
/// [`Item::Other`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Item {
    /// Something said or written.
    Message(Message),
    /// The model wants a tool of the client to run.
    FunctionCall(FunctionCall),
    /// What the tool gave.
    FunctionCallOutput(FunctionCallOutput),
    /// The tools of an MCP server.
    McpListTools(McpListTools),
    /// A tool of an MCP server, run by the service itself.
    McpCall(McpCall),
    /// The service asks whether it may run a tool of an MCP server.
    McpApprovalRequest(McpApprovalRequest),
    /// The answer to it.
    McpApprovalResponse(McpApprovalResponse),
    /// Names an item of the conversation; only in the input of a response.
    ItemReference(ItemReference),
    /// Another item.
    #[serde(untagged)]
    Other(Value),
}

impl Item {
    /// The item's id, if it has one.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Message(item) => item.id.as_deref(),
            Self::FunctionCall(item) => item.id.as_deref(),
            Self::FunctionCallOutput(item) => item.id.as_deref(),
            Self::McpListTools(item) => item.id.as_deref(),
            Self::McpCall(item) => Some(&item.id),
            Self::McpApprovalRequest(item) => Some(&item.id),
            Self::McpApprovalResponse(item) => Some(&item.id),
            Self::ItemReference(item) => Some(&item.id),
            Self::Other(item) => item.get("id").and_then(Value::as_str),
        }
    }

    /// Gives the item an id.
    pub fn set_id(&mut self, id: impl Into<String>) {
        let id = id.into();
        match self {
            Self::Message(item) => item.id = Some(id),
            Self::FunctionCall(item) => item.id = Some(id),
            Self::FunctionCallOutput(item) => item.id = Some(id),
            Self::McpListTools(item) => item.id = Some(id),
            Self::McpCall(item) => item.id = id,
            Self::McpApprovalRequest(item) => item.id = id,
            Self::McpApprovalResponse(item) => item.id = id,
            Self::ItemReference(item) => item.id = id,
            Self::Other(Value::Object(item)) => {
                item.insert("id".into(), id.into());
            }
            Self::Other(_) => {}
        }
    }

    /// The `type` on the wire.
    pub fn kind(&self) -> &str {
        match self {
            Self::Message(_) => "message",
            Self::FunctionCall(_) => "function_call",
            Self::FunctionCallOutput(_) => "function_call_output",
            Self::McpListTools(_) => "mcp_list_tools",
            Self::McpCall(_) => "mcp_call",
            Self::McpApprovalRequest(_) => "mcp_approval_request",
            Self::McpApprovalResponse(_) => "mcp_approval_response",
            Self::ItemReference(_) => "item_reference",
            Self::Other(item) => item.get("type").and_then(Value::as_str).unwrap_or("unknown"),
        }
    }
}

/// Something said or written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The item's id, at most 32 characters where a client chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `realtime.item`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// Whose it is.
    pub role: Role,
    /// Its parts.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub content: Vec<Content>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: Role, content: Vec<Content>) -> Self {
        Self { id: None, object: None, status: None, role, content }
    }
}

open_enum! {
    /// Whose message it is.
    Role {
        /// The person.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// Whoever runs the session.
        System = "system",
    }
}

open_enum! {
    /// How far an item is.
    ItemStatus {
        /// It is whole.
        Completed = "completed",
        /// It was cut off.
        Incomplete = "incomplete",
        /// It is being made.
        InProgress = "in_progress",
    }
}

/// One part of a message. Which fields are set depends on the type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: ContentType,
    /// Words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Base64 audio in the session's format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<String>,
    /// The words of the audio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// A data URI of a PNG or JPEG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// How closely an image is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<ImageDetail>,
}

impl Content {
    /// A part without anything in it.
    pub fn new(kind: ContentType) -> Self {
        Self { kind, text: None, audio: None, transcript: None, image_url: None, detail: None }
    }

    /// A part of text.
    pub fn text(kind: ContentType, text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::new(kind) }
    }

    /// A part of audio, as its words.
    pub fn transcript(kind: ContentType, transcript: impl Into<String>) -> Self {
        Self { transcript: Some(transcript.into()), ..Self::new(kind) }
    }

    /// An image as a data URI.
    pub fn image(url: impl Into<String>) -> Self {
        Self { image_url: Some(url.into()), ..Self::new(ContentType::InputImage) }
    }

    /// The words of the part, written or spoken.
    pub fn words(&self) -> Option<&str> {
        self.text.as_deref().or(self.transcript.as_deref())
    }
}

open_enum! {
    /// What a part of a message is.
    ContentType {
        /// Text of the user or the system.
        InputText = "input_text",
        /// Audio of the user.
        InputAudio = "input_audio",
        /// An image of the user.
        InputImage = "input_image",
        /// Text of the model.
        OutputText = "output_text",
        /// Audio of the model.
        OutputAudio = "output_audio",
        /// Text of the model, by its older name.
        Text = "text",
        /// Audio of the model, by its older name.
        Audio = "audio",
    }
}

open_enum! {
    /// How closely an image is looked at.
    ImageDetail {
        /// As the service likes.
        Auto = "auto",
        /// Roughly.
        Low = "low",
        /// Closely.
        High = "high",
    }
}

/// The model wants a tool of the client to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The item's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `realtime.item`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// The id that the output names; at most 32 characters where a client chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The tool.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub name: String,
    /// The arguments as JSON text.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub arguments: String,
}

/// What a tool gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCallOutput {
    /// The item's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `realtime.item`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// Which call it answers.
    pub call_id: String,
    /// The output; a text, by custom JSON.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub output: String,
}

/// The tools of an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpListTools {
    /// The item's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Which server.
    pub server_label: String,
    /// Its tools.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub tools: Vec<McpTool>,
}

/// One tool of an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpTool {
    /// Its name.
    pub name: String,
    /// JSON Schema of the arguments.
    #[serde(default)]
    pub input_schema: Value,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The server's remarks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Value>,
}

/// A tool of an MCP server, run by the service itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpCall {
    /// The item's id.
    pub id: String,
    /// Which server.
    pub server_label: String,
    /// Which tool.
    pub name: String,
    /// The arguments as JSON text.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub arguments: String,
    /// The request that allowed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_request_id: Option<String>,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What went wrong: an object with a `type` of `protocol_error`, `tool_execution_error` or
    /// `http_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
}

/// The service asks whether it may run a tool of an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpApprovalRequest {
    /// The item's id, which the answer names.
    pub id: String,
    /// Which server.
    pub server_label: String,
    /// Which tool.
    pub name: String,
    /// The arguments as JSON text.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub arguments: String,
}

/// Whether the service may run a tool of an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpApprovalResponse {
    /// The item's id.
    pub id: String,
    /// The request it answers.
    pub approval_request_id: String,
    /// Yes or no.
    pub approve: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Names an item of the conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ItemReference {
    /// Its id.
    pub id: String,
}
