//! Messages of a conversation: what users, models and tools say, in parts.
//!
//! The JSON is that of Genkit's messages. Members that are not known here are kept and written
//! again.

mod chunk;
mod list;
mod part;
pub(crate) mod weight;

use antiphon_types::JsonObject;
use serde::{Deserialize, Serialize};

pub use self::{
    chunk::ModelResponseChunk,
    list::{Messages, MessagesIter},
    part::{Media, Part, PartKind, Resource, ToolRequest, ToolResponse},
};
use crate::wire_object::wire_object;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host's instructions.
    System,
    /// The person.
    User,
    /// The model.
    Model,
    /// The outputs of tools.
    Tool,
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in parts.
    pub content: Vec<Part>,
    /// Whatever the model or the host wants to find again with the message.
    pub metadata: Option<JsonObject>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

wire_object!(Message {
    role: required "role",
    content: required "content",
    metadata: optional "metadata",
});

impl Message {
    /// A message of these parts.
    pub fn new(role: Role, content: Vec<Part>) -> Self {
        Self { role, content, metadata: None, extra: JsonObject::new() }
    }

    /// A message of one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self::new(role, vec![Part::text(text)])
    }

    /// A text of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::text(Role::User, text)
    }

    /// A text of the model.
    pub fn model(text: impl Into<String>) -> Self {
        Self::text(Role::Model, text)
    }

    /// A text of the host.
    pub fn system(text: impl Into<String>) -> Self {
        Self::text(Role::System, text)
    }

    /// Sets the metadata.
    pub fn with_metadata(mut self, metadata: Option<JsonObject>) -> Self {
        self.metadata = metadata;
        self
    }

    /// All text parts, joined.
    pub fn joined_text(&self) -> String {
        self.content.iter().filter_map(Part::as_text).collect()
    }

    /// The parts in which the model asks for a tool.
    pub fn tool_requests(&self) -> impl Iterator<Item = (&Part, &ToolRequest)> {
        self.content.iter().filter_map(|part| Some((part, part.as_tool_request()?)))
    }

    /// The parts that answer a tool request.
    pub fn tool_responses(&self) -> impl Iterator<Item = (&Part, &ToolResponse)> {
        self.content.iter().filter_map(|part| Some((part, part.as_tool_response()?)))
    }

    /// The tool requests that wait for somebody: see [`Part::is_interrupt`].
    pub fn interrupts(&self) -> impl Iterator<Item = &Part> {
        self.content.iter().filter(|part| part.is_interrupt())
    }
}
