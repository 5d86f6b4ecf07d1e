//! What a model is asked, in the words of the `genai` crate.

use antiphon_types::JsonObject;
use genai::chat::{
    ChatMessage, ChatOptions, ChatRequest, ChatResponseFormat, ContentPart, JsonSpec,
    MessageContent, Tool, ToolCall, ToolResponse,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Message, ModelRequest, Part, PartKind, Role, message, model::ToolChoice};

/// The entry of a message's metadata that keeps what a vendor wants back.
const KEPT: &str = "chatModel";

/// What a vendor wants back with a message of its model, such as signatures of thoughts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Parts that stand before all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    thoughts: Vec<ContentPart>,
    /// The signatures of calls, by the ids of the calls.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    calls: JsonObject,
}

impl Kept {
    /// What of an answer is to be given back.
    pub(super) fn of(content: &MessageContent) -> Self {
        let mut kept = Self::default();
        for part in content.parts() {
            match part {
                ContentPart::ThoughtSignature(_)
                | ContentPart::ReasoningContent(_)
                | ContentPart::Custom(_) => kept.thoughts.push(part.clone()),
                ContentPart::ToolCall(call) => {
                    if let Some(signatures) = &call.thought_signatures {
                        kept.calls.insert(call.call_id.clone(), json!(signatures));
                    }
                }
                _ => {}
            }
        }
        kept
    }

    /// As an entry of the message's metadata; nothing where there is nothing to keep.
    pub(super) fn into_metadata(self) -> Option<JsonObject> {
        if self.thoughts.is_empty() && self.calls.is_empty() {
            return None;
        }
        // Parts of text and JSON always serialise.
        let value = serde_json::to_value(self).ok()?;
        Some([(KEPT.to_owned(), value)].into_iter().collect())
    }

    fn from_message(message: &Message) -> Self {
        let kept = message.metadata.as_ref().and_then(|metadata| metadata.get(KEPT));
        // What another version wrote is not worth failing for.
        kept.and_then(|kept| serde_json::from_value(kept.clone()).ok()).unwrap_or_default()
    }
}

/// The request, or why it cannot be asked.
pub(super) fn chat_request(request: &ModelRequest) -> Result<ChatRequest, String> {
    let messages = chat_messages(request)?;
    if messages.is_empty() {
        return Err("there is no message to answer".into());
    }
    let mut chat = ChatRequest::new(messages);
    chat.system.clone_from(&request.instructions);
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|definition| {
            let schema = definition.input_schema.as_deref().cloned();
            let none = || json!({ "type": "object", "properties": {} });
            Tool::new(definition.name.to_string())
                .with_description(definition.description.to_string())
                .with_schema(schema.unwrap_or_else(none))
        });
        chat = chat.with_tools(tools.collect::<Vec<_>>());
    }
    Ok(chat)
}

/// The settings of the request over those of the model, or why they make no sense. Settings that are
/// not known here are for other models.
pub(super) fn chat_options(
    base: &ChatOptions,
    request: &ModelRequest,
) -> Result<ChatOptions, String> {
    let mut options = base.clone();
    let number = |key: &str| match request.config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("the setting {key} is to be a number, not {value}")),
        },
    };
    if let Some(temperature) = number("temperature")? {
        options.temperature = Some(temperature);
    }
    options.top_p = number("topP")?;
    options.max_tokens = request.max_output_tokens;
    if options.max_tokens.is_none()
        && let Some(tokens) = number("maxOutputTokens")?
    {
        // Saturates where the number is out of range.
        options.max_tokens = Some(tokens as u32);
    }
    if let Some(stops) = request.config.get("stopSequences") {
        options.stop_sequences = serde_json::from_value(stops.clone())
            .map_err(|error| format!("the setting stopSequences is to be texts: {error}"))?;
    }
    options.tool_choice = match request.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::Required => Some(genai::chat::ToolChoice::Required),
        ToolChoice::None => Some(genai::chat::ToolChoice::None),
    };
    if let Some(schema) = &request.output_schema {
        let spec = JsonSpec::new("answer", Value::clone(schema));
        options.response_format = Some(ChatResponseFormat::JsonSpec(spec));
    }
    Ok(options)
}

/// The messages. What tools attached to their outputs stands in a message of the user after them,
/// since to most vendors outputs of tools are text alone.
fn chat_messages(request: &ModelRequest) -> Result<Vec<ChatMessage>, String> {
    let mut messages = Vec::new();
    let mut attached = Vec::new();
    for message in &request.messages {
        // Outputs of one round stand together.
        if message.role != Role::Tool && !attached.is_empty() {
            let parts = std::mem::take(&mut attached);
            messages.push(ChatMessage::user(MessageContent::from_parts(parts)));
        }
        messages.extend(chat_message(message)?);
        for part in &message.content {
            if let PartKind::ToolResponse(response) = &part.kind {
                attached.extend(attachments(response)?);
            }
        }
    }
    if !attached.is_empty() {
        messages.push(ChatMessage::user(MessageContent::from_parts(attached)));
    }
    Ok(messages)
}

/// The message; none where nothing of it is for a model.
fn chat_message(message: &Message) -> Result<Option<ChatMessage>, String> {
    let kept = Kept::from_message(message);
    let mut parts = kept.thoughts;
    for part in &message.content {
        parts.extend(content_part(part, &kept.calls)?);
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let content = MessageContent::from_parts(parts);
    Ok(Some(match message.role {
        Role::System => ChatMessage::system(content),
        Role::User => ChatMessage::user(content),
        Role::Model => ChatMessage::assistant(content),
        Role::Tool => ChatMessage::tool(content),
    }))
}

/// What a tool attached to its output, headed by the tool's name.
fn attachments(response: &message::ToolResponse) -> Result<Vec<ContentPart>, String> {
    let mut parts = Vec::new();
    for part in response.content.iter().flatten() {
        parts.extend(content_part(part, &JsonObject::new())?);
    }
    if !parts.is_empty() {
        parts.insert(0, ContentPart::Text(format!("Attached by the tool {}:", response.name)));
    }
    Ok(parts)
}

fn content_part(part: &Part, signatures: &JsonObject) -> Result<Option<ContentPart>, String> {
    Ok(Some(match &part.kind {
        PartKind::Text(text) if text.is_empty() => return Ok(None),
        PartKind::Text(text) => ContentPart::Text(text.clone()),
        PartKind::Media(media) => binary(media)?,
        PartKind::Data(data) => ContentPart::Text(data.to_string()),
        PartKind::ToolRequest(request) => {
            let call_id = request.id.as_deref().unwrap_or_default().to_owned();
            let signatures = signatures.get(&call_id).cloned();
            ContentPart::ToolCall(ToolCall {
                fn_name: request.name.to_string(),
                fn_arguments: request.input.clone().unwrap_or_else(|| json!({})),
                thought_signatures: signatures.and_then(|s| serde_json::from_value(s).ok()),
                call_id,
            })
        }
        PartKind::ToolResponse(response) => {
            let call_id = response.id.as_deref().unwrap_or_default();
            let output = match &response.output {
                Some(Value::String(text)) => text.clone(),
                Some(output) => output.to_string(),
                None => "null".to_owned(),
            };
            ContentPart::ToolResponse(
                ToolResponse::new(call_id, output).with_fn_name(response.name.to_string()),
            )
        }
        // Thoughts go back by their signatures alone; the rest is not for a model.
        PartKind::Reasoning(_)
        | PartKind::Custom(_)
        | PartKind::Resource(_)
        | PartKind::Unknown => return Ok(None),
    }))
}

fn binary(media: &message::Media) -> Result<ContentPart, String> {
    let given = media.content_type.as_deref();
    let Some(data) = media.url.strip_prefix("data:") else {
        let Some(content_type) = given else {
            return Err(format!("the medium {:?} needs a content type", media.url));
        };
        return Ok(ContentPart::from_binary_url(content_type, media.url.clone(), None));
    };
    let Some((head, base64)) = data.split_once(',') else {
        return Err("a `data:` address without a comma".into());
    };
    let Some(own) = head.strip_suffix(";base64") else {
        return Err("a `data:` address that is not base64".into());
    };
    let own = own.split(';').next().filter(|own| !own.is_empty());
    let Some(content_type) = given.or(own) else {
        return Err("a `data:` address without a content type".into());
    };
    Ok(ContentPart::from_binary_base64(content_type, base64, None))
}
