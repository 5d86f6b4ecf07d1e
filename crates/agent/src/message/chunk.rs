//! Pieces of a message while it is generated.

use antiphon_types::JsonObject;
use serde_json::Value;

use super::{Part, Role};
use crate::wire_object::wire_object;

/// A piece of what a model or a tool says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelResponseChunk {
    /// Who speaks.
    pub role: Option<Role>,
    /// The message of the turn that it belongs to, from 0.
    pub index: Option<u32>,
    /// The new parts.
    pub content: Vec<Part>,
    /// What only one model understands.
    pub custom: Option<Value>,
    /// `content` is all that was said so far, not only what is new.
    pub aggregated: Option<bool>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

wire_object!(ModelResponseChunk {
    role: optional "role",
    index: optional "index",
    content: required "content",
    custom: nullable "custom",
    aggregated: optional "aggregated",
});

impl ModelResponseChunk {
    /// Parts of the message `index` of the turn.
    pub fn new(role: Role, index: u32, content: Vec<Part>) -> Self {
        Self { role: Some(role), index: Some(index), content, ..Self::default() }
    }

    /// All text parts, joined.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(Part::as_text).collect()
    }

    /// The outputs of tools; [`Part::is_partial`] tells progress from results.
    pub fn tool_responses(&self) -> impl Iterator<Item = &Part> {
        self.content.iter().filter(|part| part.as_tool_response().is_some())
    }

    /// The tool requests that wait for somebody.
    pub fn interrupts(&self) -> impl Iterator<Item = &Part> {
        self.content.iter().filter(|part| part.is_interrupt())
    }
}
