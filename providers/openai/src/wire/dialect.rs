//! What servers call the same things.

use serde_json::{Map, Value, json};

use super::{ClientEvent, DecodeError, ServerEvent, Session};

/// Whose words a server speaks. Everything a dialect changes is data on this type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// OpenAI since 2025, and servers that follow it.
    #[default]
    Ga,
    /// OpenAI's preview of 2024, which many other servers still speak. OpenAI itself refuses it.
    Beta,
    /// Azure OpenAI at `/openai/v1/realtime`: GA words, `api-key` header, deployments for models.
    Azure,
    /// Azure OpenAI at `/openai/realtime?api-version=…`: the beta's words.
    AzurePreview,
    /// xAI: GA words; voice and turn detection stand at the top of the session.
    Xai,
}

/// How a dialect shapes a session's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionShape {
    /// As in GA: `audio.input`, `audio.output`.
    Nested,
    /// As in the beta: all keys at the top.
    Flat,
    /// As in GA, with `voice` and `turn_detection` at the top.
    NestedTopVoice,
}

/// Keys of a session: where GA has them, and what the beta calls them.
const FLAT_KEYS: [(&[&str], &str); 9] = [
    (&["output_modalities"], "modalities"),
    (&["max_output_tokens"], "max_response_output_tokens"),
    (&["audio", "input", "format"], "input_audio_format"),
    (&["audio", "input", "transcription"], "input_audio_transcription"),
    (&["audio", "input", "noise_reduction"], "input_audio_noise_reduction"),
    (&["audio", "input", "turn_detection"], "turn_detection"),
    (&["audio", "output", "format"], "output_audio_format"),
    (&["audio", "output", "voice"], "voice"),
    (&["audio", "output", "speed"], "speed"),
];

/// Server events with another name in the beta.
const BETA_EVENTS: [(&str, &str); 8] = [
    ("conversation.item.added", "conversation.item.created"),
    ("response.output_audio.delta", "response.audio.delta"),
    ("response.output_audio.done", "response.audio.done"),
    ("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
    ("response.output_audio_transcript.done", "response.audio_transcript.done"),
    ("response.output_text.delta", "response.text.delta"),
    ("response.output_text.done", "response.text.done"),
    // The beta has no word for it.
    ("conversation.item.done", ""),
];

impl Dialect {
    /// How it shapes a session.
    pub const fn session_shape(self) -> SessionShape {
        match self {
            Self::Ga | Self::Azure => SessionShape::Nested,
            Self::Beta | Self::AzurePreview => SessionShape::Flat,
            Self::Xai => SessionShape::NestedTopVoice,
        }
    }

    /// Whether events have the beta's names.
    pub const fn is_beta(self) -> bool {
        matches!(self, Self::Beta | Self::AzurePreview)
    }

    /// The text of a client's event. The beta's words for it are used where the dialect wants
    /// them.
    pub fn encode_client(self, event: &ClientEvent) -> String {
        if self.session_shape() == SessionShape::Nested {
            return encode(event);
        }
        let mut value = encode_value(event);
        if let Some(session) = value.get_mut("session") {
            self.shape_session(session);
        }
        if self.is_beta() {
            if let Some(response) = value.get_mut("response") {
                flatten(response);
            }
            if let Some(item) = value.get_mut("item") {
                rename_parts(item, BETA_PARTS);
            }
        }
        value.to_string()
    }

    /// Decodes a client's event, whatever dialect it is in.
    pub fn decode_client(self, text: &str) -> Result<ClientEvent, DecodeError> {
        if self.session_shape() == SessionShape::Nested {
            return ClientEvent::decode(text);
        }
        let mut value: Value =
            serde_json::from_str(text).map_err(|error| DecodeError::Json(error.to_string()))?;
        if let Some(session) = value.get_mut("session") {
            nest(session);
        }
        if self.is_beta()
            && let Some(response) = value.get_mut("response")
        {
            nest(response);
            if let Some(response) = response.as_object_mut() {
                response.remove("type");
            }
        }
        ClientEvent::decode(&value.to_string())
    }

    /// The text of a server's event; `None` where the dialect has no such event.
    pub fn encode_server(self, event: &ServerEvent) -> Option<String> {
        if self.session_shape() == SessionShape::Nested {
            return Some(encode(event));
        }
        let mut value = encode_value(event);
        if let Some(session) = value.get_mut("session") {
            self.shape_session(session);
        }
        if self.is_beta() {
            if let Some((_, name)) = BETA_EVENTS.iter().find(|(name, _)| *name == event.kind()) {
                if name.is_empty() {
                    return None;
                }
                value["type"] = (*name).into();
            }
            if let Some(response) = value.get_mut("response") {
                flatten(response);
                for item in
                    response.get_mut("output").and_then(Value::as_array_mut).into_iter().flatten()
                {
                    rename_parts(item, BETA_PARTS);
                }
            }
            if let Some(item) = value.get_mut("item") {
                rename_parts(item, BETA_PARTS);
            }
        }
        Some(value.to_string())
    }

    fn shape_session(self, session: &mut Value) {
        match self.session_shape() {
            SessionShape::Nested => {}
            SessionShape::Flat => flatten(session),
            SessionShape::NestedTopVoice => {
                for (path, name) in [FLAT_KEYS[5], FLAT_KEYS[7]] {
                    if let Some(value) = take(session, path) {
                        session[name] = value;
                    }
                }
            }
        }
    }
}

impl Session {
    /// A session in any dialect's shape as GA's.
    pub fn from_any_shape(mut session: Value) -> Self {
        nest(&mut session);
        serde_json::from_value(session.clone()).unwrap_or(Self::Other(session))
    }
}

/// Parts of items: GA's words and the beta's.
const BETA_PARTS: [(&str, &str); 2] = [("output_text", "text"), ("output_audio", "audio")];

fn encode<T: serde::Serialize>(event: &T) -> String {
    // The types hold only strings, numbers and maps with string keys, which always serialise.
    serde_json::to_string(event).unwrap_or_default()
}

fn encode_value<T: serde::Serialize>(event: &T) -> Value {
    serde_json::to_value(event).unwrap_or_default()
}

/// GA to beta.
fn flatten(session: &mut Value) {
    if !session.is_object() {
        return;
    }
    for (path, name) in FLAT_KEYS {
        let Some(mut value) = take(session, path) else { continue };
        if name.ends_with("_audio_format") {
            value = match value["type"].as_str() {
                Some("audio/pcmu") => "g711_ulaw".into(),
                Some("audio/pcma") => "g711_alaw".into(),
                Some("audio/pcm") => "pcm16".into(),
                _ => value,
            };
        }
        // GA's audio includes words, which the beta names beside it.
        if name == "modalities" && value == json!(["audio"]) {
            value = json!(["text", "audio"]);
        }
        session[name] = value;
    }
    if let Some(session) = session.as_object_mut() {
        session.remove("type");
        session.remove("audio");
    }
}

/// Beta to GA. What is GA already stays as it is.
fn nest(session: &mut Value) {
    let Some(object) = session.as_object_mut() else { return };
    for (path, name) in FLAT_KEYS {
        if path.len() == 1 && path[0] == name {
            continue;
        }
        let Some(mut value) = object.remove(name) else { continue };
        if name.ends_with("_audio_format") {
            value = match value.as_str() {
                Some("g711_ulaw") => json!({"type": "audio/pcmu"}),
                Some("g711_alaw") => json!({"type": "audio/pcma"}),
                Some("pcm16") => json!({"type": "audio/pcm", "rate": 24_000}),
                _ => value,
            };
        }
        if name == "modalities" {
            let audio = value.as_array().is_some_and(|list| list.contains(&json!("audio")));
            value = if audio { json!(["audio"]) } else { value };
        }
        put(object, path, value);
    }
    object.entry("type").or_insert_with(|| "realtime".into());
}

/// Takes what is at `path`, and the objects on the way that are empty then.
fn take(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    let object = value.as_object_mut()?;
    if rest.is_empty() {
        return object.remove(*first);
    }
    let inner = object.get_mut(*first)?;
    let taken = take(inner, rest);
    if inner.as_object().is_some_and(Map::is_empty) {
        object.remove(*first);
    }
    taken
}

fn put(object: &mut Map<String, Value>, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        object.entry(*first).or_insert(value);
        return;
    }
    let inner = object.entry(*first).or_insert_with(|| json!({}));
    if let Some(inner) = inner.as_object_mut() {
        put(inner, rest, value);
    }
}

fn rename_parts(item: &mut Value, names: [(&str, &str); 2]) {
    for part in item.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some((_, name)) = names.iter().find(|(name, _)| part["type"] == *name) {
            part["type"] = (*name).into();
        }
    }
}
