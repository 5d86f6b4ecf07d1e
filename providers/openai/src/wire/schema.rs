//! Which keys a client event may hold: the vendor refuses a whole event for one that it does not
//! know (`unknown_parameter`).

use serde_json::Value;

/// The keys of a client event that the GA protocol does not know, as paths such as
/// `session.audio.input.foo` or `session.tools[0].function`, sorted.
///
/// ```
/// use antiphon_openai::wire::unknown_keys;
/// use serde_json::json;
///
/// let update = json!({
///     "type": "session.update",
///     "session": {"type": "realtime", "modalities": ["audio"], "audio": {"input": {"gain": 2}}},
/// });
/// assert_eq!(unknown_keys(&update), ["session.audio.input.gain", "session.modalities"]);
/// ```
pub fn unknown_keys(event: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    EVENT.walk(event, &mut String::new(), &mut unknown);
    // An object may or may not keep the order of its keys.
    unknown.sort_unstable();
    unknown
}

/// What may stand somewhere.
enum Shape {
    /// Anything.
    Any,
    /// An object of these keys; what is no object is not our business here.
    Keys(&'static [(&'static str, Shape)]),
    /// An object whose keys depend on its `type`; other types are not our business here.
    ByType(&'static [(&'static str, Shape)]),
    /// A list.
    Each(&'static Shape),
}

use Shape::{Any, ByType, Each, Keys};

impl Shape {
    fn walk(&self, value: &Value, path: &mut String, unknown: &mut Vec<String>) {
        match (self, value) {
            (Keys(known), Value::Object(object)) => {
                for (key, value) in object {
                    let length = path.len();
                    if length > 0 {
                        path.push('.');
                    }
                    path.push_str(key);
                    match known.iter().find(|(name, _)| name == key) {
                        Some((_, shape)) => shape.walk(value, path, unknown),
                        None => unknown.push(path.clone()),
                    }
                    path.truncate(length);
                }
            }
            (ByType(types), Value::Object(object)) => {
                let kind = object.get("type").and_then(Value::as_str);
                if let Some((_, shape)) = types.iter().find(|(name, _)| Some(*name) == kind) {
                    shape.walk(value, path, unknown);
                }
            }
            (Each(shape), Value::Array(values)) => {
                for (index, value) in values.iter().enumerate() {
                    let length = path.len();
                    path.push_str(&format!("[{index}]"));
                    shape.walk(value, path, unknown);
                    path.truncate(length);
                }
            }
            _ => {}
        }
    }
}

const EVENT: Shape = ByType(&[
    (
        "conversation.item.create",
        Keys(&[("type", Any), ("event_id", Any), ("previous_item_id", Any), ("item", ITEM)]),
    ),
    ("conversation.item.delete", ITEM_REF),
    ("conversation.item.retrieve", ITEM_REF),
    (
        "conversation.item.truncate",
        Keys(&[
            ("type", Any),
            ("event_id", Any),
            ("item_id", Any),
            ("content_index", Any),
            ("audio_end_ms", Any),
        ]),
    ),
    ("input_audio_buffer.append", Keys(&[("type", Any), ("event_id", Any), ("audio", Any)])),
    ("input_audio_buffer.clear", BARE),
    ("input_audio_buffer.commit", BARE),
    ("output_audio_buffer.clear", BARE),
    ("response.cancel", Keys(&[("type", Any), ("event_id", Any), ("response_id", Any)])),
    ("response.create", Keys(&[("type", Any), ("event_id", Any), ("response", RESPONSE)])),
    ("session.update", Keys(&[("type", Any), ("event_id", Any), ("session", SESSION)])),
]);

const BARE: Shape = Keys(&[("type", Any), ("event_id", Any)]);
const ITEM_REF: Shape = Keys(&[("type", Any), ("event_id", Any), ("item_id", Any)]);

const SESSION: Shape = ByType(&[
    (
        "realtime",
        Keys(&[
            ("type", Any),
            ("model", Any),
            ("output_modalities", Any),
            ("instructions", Any),
            ("audio", Keys(&[("input", AUDIO_INPUT), ("output", AUDIO_OUTPUT)])),
            ("tools", Each(&TOOL)),
            ("tool_choice", Any),
            ("parallel_tool_calls", Any),
            ("max_output_tokens", Any),
            ("reasoning", Keys(&[("effort", Any)])),
            ("include", Any),
            ("prompt", PROMPT),
            ("tracing", Keys(&[("workflow_name", Any), ("group_id", Any), ("metadata", Any)])),
            ("truncation", TRUNCATION),
        ]),
    ),
    (
        "transcription",
        Keys(&[("type", Any), ("audio", Keys(&[("input", AUDIO_INPUT)])), ("include", Any)]),
    ),
]);

const AUDIO_INPUT: Shape = Keys(&[
    ("format", FORMAT),
    ("noise_reduction", Keys(&[("type", Any), ("strength", Any)])),
    (
        "transcription",
        Keys(&[
            ("model", Any),
            ("language", Any),
            ("languages", Any),
            ("keywords", Any),
            ("prompt", Any),
            ("delay", Any),
        ]),
    ),
    (
        "turn_detection",
        ByType(&[
            (
                "server_vad",
                Keys(&[
                    ("type", Any),
                    ("threshold", Any),
                    ("prefix_padding_ms", Any),
                    ("silence_duration_ms", Any),
                    ("create_response", Any),
                    ("interrupt_response", Any),
                    ("idle_timeout_ms", Any),
                ]),
            ),
            (
                "semantic_vad",
                Keys(&[
                    ("type", Any),
                    ("eagerness", Any),
                    ("create_response", Any),
                    ("interrupt_response", Any),
                ]),
            ),
        ]),
    ),
]);

const AUDIO_OUTPUT: Shape = Keys(&[("format", FORMAT), ("voice", VOICE), ("speed", Any)]);
const VOICE: Shape = Keys(&[("id", Any)]);
const FORMAT: Shape = ByType(&[
    ("audio/pcm", Keys(&[("type", Any), ("rate", Any)])),
    ("audio/pcmu", Keys(&[("type", Any)])),
    ("audio/pcma", Keys(&[("type", Any)])),
]);
const PROMPT: Shape = Keys(&[("id", Any), ("version", Any), ("variables", Any)]);
const TRUNCATION: Shape = Keys(&[
    ("type", Any),
    ("retention_ratio", Any),
    ("token_limits", Keys(&[("post_instructions", Any)])),
]);

const TOOL: Shape = ByType(&[
    ("function", Keys(&[("type", Any), ("name", Any), ("description", Any), ("parameters", Any)])),
    (
        "mcp",
        Keys(&[
            ("type", Any),
            ("server_label", Any),
            ("server_url", Any),
            ("connector_id", Any),
            ("tunnel_id", Any),
            ("authorization", Any),
            ("headers", Any),
            ("allowed_tools", FILTER),
            ("require_approval", Keys(&[("always", FILTER), ("never", FILTER)])),
            ("server_description", Any),
            ("allowed_callers", Any),
            ("defer_loading", Any),
        ]),
    ),
]);
const FILTER: Shape = Keys(&[("read_only", Any), ("tool_names", Any)]);

const RESPONSE: Shape = Keys(&[
    ("audio", Keys(&[("output", Keys(&[("format", FORMAT), ("voice", VOICE)]))])),
    ("conversation", Any),
    ("input", Each(&ITEM)),
    ("instructions", Any),
    ("max_output_tokens", Any),
    ("metadata", Any),
    ("output_modalities", Any),
    ("parallel_tool_calls", Any),
    ("prompt", PROMPT),
    ("reasoning", Keys(&[("effort", Any)])),
    ("tool_choice", Any),
    ("tools", Each(&TOOL)),
]);

const ITEM: Shape = ByType(&[
    (
        "message",
        Keys(&[
            ("type", Any),
            ("id", Any),
            ("object", Any),
            ("status", Any),
            ("role", Any),
            ("content", Each(&CONTENT)),
        ]),
    ),
    (
        "function_call",
        Keys(&[
            ("type", Any),
            ("id", Any),
            ("object", Any),
            ("status", Any),
            ("call_id", Any),
            ("name", Any),
            ("arguments", Any),
        ]),
    ),
    (
        "function_call_output",
        Keys(&[
            ("type", Any),
            ("id", Any),
            ("object", Any),
            ("status", Any),
            ("call_id", Any),
            ("output", Any),
        ]),
    ),
    (
        "mcp_approval_response",
        Keys(&[
            ("type", Any),
            ("id", Any),
            ("approval_request_id", Any),
            ("approve", Any),
            ("reason", Any),
        ]),
    ),
    ("item_reference", Keys(&[("type", Any), ("id", Any)])),
]);

const CONTENT: Shape = Keys(&[
    ("type", Any),
    ("text", Any),
    ("audio", Any),
    ("transcript", Any),
    ("image_url", Any),
    ("detail", Any),
]);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn beta_keys_are_unknown_wherever_they_stand() {
        let event = json!({
            "type": "session.update", "event_id": "c1",
            "session": {
                "type": "realtime", "temperature": 0.8, "voice": "alloy",
                "audio": {
                    "input": {"turn_detection": {"type": "semantic_vad", "threshold": 0.5}},
                    "output": {"format": {"type": "audio/pcmu", "rate": 8000}},
                },
                "tools": [{"type": "function", "name": "a"}, {"type": "function", "function": {}}],
            },
        });
        let mut expected = [
            "session.temperature",
            "session.voice",
            "session.audio.input.turn_detection.threshold",
            "session.audio.output.format.rate",
            "session.tools[1].function",
        ];
        expected.sort_unstable();
        let mut unknown = unknown_keys(&event);
        unknown.sort_unstable();
        assert_eq!(unknown, expected);
    }

    #[test]
    fn what_a_session_tells_of_itself_may_not_be_sent_back() {
        let event = json!({"type": "session.update", "session": {"type": "realtime", "id": "s"}});
        assert_eq!(unknown_keys(&event), ["session.id"]);
        let event = json!({
            "type": "session.update",
            "session": {"type": "transcription", "instructions": "x"},
        });
        assert_eq!(unknown_keys(&event), ["session.instructions"]);
    }

    #[test]
    fn words_in_place_of_objects_are_fine() {
        let event = json!({
            "type": "session.update",
            "session": {
                "type": "realtime", "tracing": "auto", "truncation": "disabled",
                "audio": {"input": {"turn_detection": null}, "output": {"voice": "marin"}},
            },
        });
        assert!(unknown_keys(&event).is_empty());
        assert!(unknown_keys(&json!({"type": "response.create"})).is_empty());
        assert!(unknown_keys(&json!("text")).is_empty());
    }
}
