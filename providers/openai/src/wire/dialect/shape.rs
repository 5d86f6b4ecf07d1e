//! Between GA's shape and the others'.

use serde_json::{Map, Value, json};

use super::facts::{AudioFormats, Facts, SessionShape, ToolShape};

/// Keys of a session: where GA has them, and what the beta calls them.
const FLAT_KEYS: [(&[&str], &str); 9] = [
    (&["output_modalities"], "modalities"),
    (&["max_output_tokens"], "max_response_output_tokens"),
    (&["audio", "input", "format"], INPUT_FORMAT),
    (&["audio", "input", "transcription"], "input_audio_transcription"),
    (&["audio", "input", "noise_reduction"], "input_audio_noise_reduction"),
    (&["audio", "input", "turn_detection"], "turn_detection"),
    (&["audio", "output", "format"], OUTPUT_FORMAT),
    (&["audio", "output", "voice"], "voice"),
    (&["audio", "output", "speed"], "speed"),
];

const INPUT_FORMAT: &str = "input_audio_format";
const OUTPUT_FORMAT: &str = "output_audio_format";

/// Server events with another name in the beta.
pub(super) const BETA_EVENTS: [(&str, &str); 8] = [
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

/// Parts of items: GA's words and the beta's.
pub(super) const BETA_PARTS: [(&str, &str); 2] =
    [("output_text", "text"), ("output_audio", "audio")];

/// A session of GA in the dialect's shape.
pub(super) fn session(session: &mut Value, facts: &Facts) {
    match facts.session {
        SessionShape::Nested => {}
        SessionShape::Flat => flatten(session, facts),
        SessionShape::NestedTopVoice => {
            for (path, name) in [FLAT_KEYS[5], FLAT_KEYS[7]] {
                if let Some(value) = take(session, path) {
                    session[name] = value;
                }
            }
        }
    }
    tools(session, facts.tools);
}

/// The tools of a session or a response in the dialect's shape.
pub(super) fn tools(within: &mut Value, shape: ToolShape) {
    if shape == ToolShape::Flat {
        return;
    }
    for tool in within.get_mut("tools").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(function) = tool.as_object_mut()
            && function.get("type").is_some_and(|kind| kind == "function")
        {
            function.remove("type");
            *tool = json!({"type": "function", "function": tool.take()});
        }
    }
}

/// GA to beta: a session, or the parameters of a response.
pub(super) fn flatten(session: &mut Value, facts: &Facts) {
    if !session.is_object() {
        return;
    }
    for (path, name) in FLAT_KEYS {
        let Some(mut value) = take(session, path) else { continue };
        if let Some(formats) = formats(name, facts) {
            let rate = value.get("rate").cloned();
            value = match value["type"].as_str() {
                Some("audio/pcmu") => "g711_ulaw".into(),
                Some("audio/pcma") => "g711_alaw".into(),
                Some("audio/pcm") => formats.word(rate.as_ref().and_then(Value::as_u64)).into(),
                _ => value,
            };
            if name == INPUT_FORMAT
                && let (Some(key), Some(rate)) = (facts.input_rate_key, rate)
            {
                session[key] = rate;
            }
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

/// The dialect's shape to GA's. What is GA already stays as it is.
pub(super) fn nest(session: &mut Value, facts: &Facts) {
    let Some(object) = session.as_object_mut() else { return };
    let rate = facts.input_rate_key.and_then(|key| object.remove(key));
    for (path, name) in FLAT_KEYS {
        if path.len() == 1 && path[0] == name {
            continue;
        }
        let Some(mut value) = object.remove(name) else { continue };
        if let Some(formats) = formats(name, facts) {
            value = match value.as_str() {
                Some("g711_ulaw") => json!({"type": "audio/pcmu"}),
                Some("g711_alaw") => json!({"type": "audio/pcma"}),
                Some(word) if word.starts_with("pcm") => {
                    let told = rate.as_ref().filter(|_| name == INPUT_FORMAT).cloned();
                    let rate = told.unwrap_or_else(|| formats.rate(word).into());
                    json!({"type": "audio/pcm", "rate": rate})
                }
                _ => value,
            };
        }
        if name == "modalities" {
            let audio = value.as_array().is_some_and(|list| list.contains(&json!("audio")));
            value = if audio { json!(["audio"]) } else { value };
        }
        put(object, path, value);
    }
    for tool in object.get_mut("tools").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(function) = tool.get_mut("function").filter(|inner| inner.is_object()) else {
            continue;
        };
        let mut function = function.take();
        function["type"] = "function".into();
        *tool = function;
    }
    object.entry("type").or_insert_with(|| "realtime".into());
}

/// Renames the parts of an item.
pub(super) fn rename_parts(item: &mut Value, names: [(&str, &str); 2]) {
    for part in item.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some((_, name)) = names.iter().find(|(name, _)| part["type"] == *name) {
            part["type"] = (*name).into();
        }
    }
}

fn formats(name: &str, facts: &Facts) -> Option<AudioFormats> {
    match name {
        INPUT_FORMAT => Some(facts.input),
        OUTPUT_FORMAT => Some(facts.output),
        _ => None,
    }
}

impl AudioFormats {
    /// The samples a second where nothing is asked for.
    pub const fn default_rate(&self) -> u32 {
        match self.pcm {
            [(rate, _), ..] => *rate,
            // The vendor of the protocol has no other.
            [] => 24_000,
        }
    }

    /// The word for PCM of this rate.
    fn word(&self, rate: Option<u64>) -> &'static str {
        let named = self.pcm.iter().find(|(known, _)| Some(u64::from(*known)) == rate);
        named.or(self.pcm.first()).map_or("pcm16", |(_, word)| word)
    }

    /// The rate that a word stands for.
    fn rate(&self, word: &str) -> u32 {
        let named = self.pcm.iter().find(|(_, known)| *known == word);
        named.map_or_else(|| self.default_rate(), |(rate, _)| *rate)
    }
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
