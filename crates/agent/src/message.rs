//! Messages of a conversation as language models take them.

use std::sync::Arc;

use antiphon_types::JsonObject;
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in parts.
    pub content: Vec<Part>,
    /// Whatever the model or the host wants to find again with the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<JsonObject>,
}

impl Message {
    /// A message of one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, content: vec![Part::Text(text.into())], metadata: None }
    }

    /// All text parts, joined.
    pub fn joined_text(&self) -> String {
        self.content
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Part {
    /// Words.
    Text(String),
    /// A picture or a sound.
    Media {
        /// A `data:` or other address.
        url: String,
        /// Such as `image/png`.
        #[serde(rename = "contentType", default, skip_serializing_if = "Option::is_none")]
        content_type: Option<String>,
    },
    /// The model wants a tool to run.
    ToolRequest {
        /// The tool.
        name: Arc<str>,
        /// The id of the call.
        #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
        id: Option<Arc<str>>,
        /// The arguments.
        #[serde(default)]
        input: JsonObject,
    },
    /// The output of a tool.
    ToolResponse {
        /// The tool.
        name: Arc<str>,
        /// The id of the call.
        #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
        id: Option<Arc<str>>,
        /// The output.
        #[serde(default)]
        output: JsonObject,
    },
}
