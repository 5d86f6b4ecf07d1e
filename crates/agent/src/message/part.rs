//! The parts of a message.

use std::{fmt, sync::Arc};

use antiphon_types::JsonObject;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::Value;

use crate::wire_object::wire_object;

/// A part of a message: one kind of content, with metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The content.
    pub kind: PartKind,
    /// What runtime, tools or host noted with it, such as `interrupt` on a tool request.
    pub metadata: Option<JsonObject>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

/// The content of a part.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PartKind {
    /// Words.
    Text(String),
    /// The model's thoughts.
    Reasoning(String),
    /// A picture, a sound, a film.
    Media(Media),
    /// The model wants a tool to run.
    ToolRequest(ToolRequest),
    /// The output of a tool.
    ToolResponse(ToolResponse),
    /// Structured data.
    Data(Value),
    /// What only one model or host understands.
    Custom(JsonObject),
    /// Something to be fetched.
    Resource(Resource),
    /// A kind that this version does not know; its members are in [`Part::extra`].
    Unknown,
}

/// A picture, a sound, a film.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// A `data:` or other address.
    pub url: String,
    /// Such as `image/png`.
    pub content_type: Option<String>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

/// The model wants a tool to run.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    /// The tool.
    pub name: Arc<str>,
    /// The id of the call, `ref` on the wire: what voice calls [`ToolCall::id`]. Unique within one
    /// message of the model only.
    ///
    /// [`ToolCall::id`]: antiphon_types::ToolCall::id
    pub id: Option<Arc<str>>,
    /// The arguments.
    pub input: Option<Value>,
    /// The arguments are not complete yet.
    pub partial: Option<bool>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

/// The output of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResponse {
    /// The tool.
    pub name: Arc<str>,
    /// The id of the call, `ref` on the wire.
    pub id: Option<Arc<str>>,
    /// The output.
    pub output: Option<Value>,
    /// More that the tool returned, such as pictures.
    pub content: Option<Vec<Part>>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

/// Something to be fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Where it is.
    pub uri: String,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

wire_object!(Media { url: required "url", content_type: optional "contentType" });
wire_object!(ToolRequest {
    name: required "name",
    id: optional "ref",
    input: nullable "input",
    partial: optional "partial",
});
wire_object!(ToolResponse {
    name: required "name",
    id: optional "ref",
    output: nullable "output",
    content: optional "content",
});
wire_object!(Resource { uri: required "uri" });

impl ToolRequest {
    /// A complete request.
    pub fn new(name: impl Into<Arc<str>>, id: Option<Arc<str>>, input: impl Into<Value>) -> Self {
        Self {
            name: name.into(),
            id,
            input: Some(input.into()),
            partial: None,
            extra: JsonObject::new(),
        }
    }

    /// Whether the other names the same call: tool and id, where a missing id is an empty one.
    pub fn is_call(&self, name: &str, id: Option<&str>) -> bool {
        *self.name == *name && self.id.as_deref().unwrap_or("") == id.unwrap_or("")
    }
}

impl ToolResponse {
    /// A response without further content.
    pub fn new(name: impl Into<Arc<str>>, id: Option<Arc<str>>, output: impl Into<Value>) -> Self {
        Self {
            name: name.into(),
            id,
            output: Some(output.into()),
            content: None,
            extra: JsonObject::new(),
        }
    }
}

impl Part {
    /// A part of this kind without metadata.
    pub fn new(kind: PartKind) -> Self {
        Self { kind, metadata: None, extra: JsonObject::new() }
    }

    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(PartKind::Text(text.into()))
    }

    /// The model's thoughts.
    pub fn reasoning(text: impl Into<String>) -> Self {
        Self::new(PartKind::Reasoning(text.into()))
    }

    /// A picture, a sound, a film.
    pub fn media(url: impl Into<String>, content_type: Option<String>) -> Self {
        let media = Media { url: url.into(), content_type, extra: JsonObject::new() };
        Self::new(PartKind::Media(media))
    }

    /// Structured data.
    pub fn data(data: impl Into<Value>) -> Self {
        Self::new(PartKind::Data(data.into()))
    }

    /// The model wants a tool to run.
    pub fn tool_request(
        name: impl Into<Arc<str>>,
        id: Option<Arc<str>>,
        input: impl Into<Value>,
    ) -> Self {
        Self::new(PartKind::ToolRequest(ToolRequest::new(name, id, input)))
    }

    /// The output of a tool.
    pub fn tool_response(
        name: impl Into<Arc<str>>,
        id: Option<Arc<str>>,
        output: impl Into<Value>,
    ) -> Self {
        Self::new(PartKind::ToolResponse(ToolResponse::new(name, id, output)))
    }

    /// An intermediate output of a tool that is still at work, for the stream only: it is marked
    /// `partial` and never stored.
    pub fn partial_tool_response(response: ToolResponse) -> Self {
        Self::new(PartKind::ToolResponse(response)).with_metadata_entry("partial", true)
    }

    /// Sets one entry of the metadata.
    pub fn with_metadata_entry(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// One entry of the metadata.
    pub fn metadata_entry(&self, key: &str) -> Option<&Value> {
        self.metadata.as_ref()?.get(key)
    }

    /// Its words, where it is a text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.kind {
            PartKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The request, where it is one.
    pub fn as_tool_request(&self) -> Option<&ToolRequest> {
        match &self.kind {
            PartKind::ToolRequest(request) => Some(request),
            _ => None,
        }
    }

    /// The response, where it is one.
    pub fn as_tool_response(&self) -> Option<&ToolResponse> {
        match &self.kind {
            PartKind::ToolResponse(response) => Some(response),
            _ => None,
        }
    }

    /// Whether it is an intermediate output of a tool that is still at work.
    pub fn is_partial(&self) -> bool {
        self.as_tool_response().is_some()
            && self.metadata_entry("partial").is_some_and(|value| *value == Value::Bool(true))
    }

    /// Whether it is a tool request whose tool paused and waits for somebody. Its metadata's
    /// `interrupt` says why: an object, or `true`.
    pub fn is_interrupt(&self) -> bool {
        self.as_tool_request().is_some()
            && self
                .metadata_entry("interrupt")
                .is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.kind {
            PartKind::Text(text) => map.serialize_entry("text", text)?,
            PartKind::Reasoning(text) => map.serialize_entry("reasoning", text)?,
            PartKind::Media(media) => map.serialize_entry("media", media)?,
            PartKind::ToolRequest(request) => map.serialize_entry("toolRequest", request)?,
            PartKind::ToolResponse(response) => map.serialize_entry("toolResponse", response)?,
            PartKind::Data(data) => map.serialize_entry("data", data)?,
            PartKind::Custom(custom) => map.serialize_entry("custom", custom)?,
            PartKind::Resource(resource) => map.serialize_entry("resource", resource)?,
            PartKind::Unknown => {}
        }
        if let Some(metadata) = &self.metadata {
            map.serialize_entry("metadata", metadata)?;
        }
        for (key, value) in &self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Part;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a part of a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Part, A::Error> {
                read(map)
            }
        }
        deserializer.deserialize_map(Parts)
    }
}

fn read<'de, A: MapAccess<'de>>(mut map: A) -> Result<Part, A::Error> {
    let mut kind = None;
    let mut part = Part::new(PartKind::Unknown);
    while let Some(key) = map.next_key::<String>()? {
        // A member that is `null` is as good as absent, but for data.
        let next = match key.as_str() {
            "text" => map.next_value::<Option<_>>()?.map(PartKind::Text),
            "reasoning" => map.next_value::<Option<_>>()?.map(PartKind::Reasoning),
            "media" => map.next_value::<Option<_>>()?.map(PartKind::Media),
            "toolRequest" => map.next_value::<Option<_>>()?.map(PartKind::ToolRequest),
            "toolResponse" => map.next_value::<Option<_>>()?.map(PartKind::ToolResponse),
            "data" => Some(PartKind::Data(map.next_value()?)),
            "custom" => map.next_value::<Option<_>>()?.map(PartKind::Custom),
            "resource" => map.next_value::<Option<_>>()?.map(PartKind::Resource),
            "metadata" => {
                part.metadata = map.next_value()?;
                continue;
            }
            _ => {
                part.extra.insert(key, map.next_value()?);
                continue;
            }
        };
        if next.is_some() && kind.is_some() {
            return Err(A::Error::custom(format_args!(
                "a part has one kind of content, but {key:?} is the second of this one"
            )));
        }
        kind = kind.or(next);
    }
    match kind {
        Some(kind) => part.kind = kind,
        None if part.extra.is_empty() => return Err(A::Error::custom("a part without content")),
        None => {}
    }
    Ok(part)
}
