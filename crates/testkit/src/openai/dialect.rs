//! What a server of a dialect refuses: addresses, keys, and what its documentation does not name.

use antiphon_live::acceptor::Request;
use antiphon_openai::wire::{ApiError, Dialect, Facts, KeyForm, Parameter, unknown_keys};
use serde_json::Value;

use super::conversation::invalid;

/// The subprotocol that browsers carry their key in.
const KEY_SUBPROTOCOL: &str = "openai-insecure-api-key.";
/// What stands in an address in place of a model.
const NO_MODEL_BESIDE: [&str; 3] = ["agent_id", "call_id", "intent"];

/// What is wrong with the address of a request; `None`: nothing.
pub(super) fn wrong_address(request: &Request, dialect: Dialect) -> Option<String> {
    let facts = dialect.facts();
    let path = request.path().trim_end_matches('/');
    // Servers that follow OpenAI are found at many paths.
    if matches!(dialect, Dialect::Ga | Dialect::Beta | Dialect::Xai) {
        let known = path.ends_with("/realtime");
        return (!known).then(|| "Unknown request URL.".to_owned());
    }
    if path != facts.path {
        return Some("Unknown request URL.".to_owned());
    }
    for (key, parameter) in facts.query {
        let needless = *parameter == Parameter::Model
            && NO_MODEL_BESIDE.iter().any(|beside| request.parameter(beside).is_some());
        if needless {
            continue;
        }
        let given = request.parameter(key).unwrap_or_default();
        let fits = match parameter {
            Parameter::Fixed(value) => given == *value,
            _ => !given.is_empty(),
        };
        if !fits {
            return Some(format!("Missing required query parameter: '{key}'."));
        }
    }
    None
}

/// The key of a request, where the dialect looks for it; servers that follow OpenAI look for Azure's
/// too.
pub(super) fn key(request: &Request, dialect: Dialect) -> Option<String> {
    let offered = request.subprotocols().find_map(|offer| offer.strip_prefix(KEY_SUBPROTOCOL));
    let bearer = request.bearer().or(offered).map(str::to_owned);
    let given = match dialect.facts().key {
        KeyForm::Bearer if matches!(dialect, Dialect::Ga | Dialect::Beta) => {
            bearer.or_else(|| request.header("api-key").map(str::to_owned))
        }
        KeyForm::ApiKey => bearer
            .or_else(|| request.header("api-key").map(str::to_owned))
            .or_else(|| request.parameter("api-key").map(Into::into)),
        KeyForm::Basic => bearer.or_else(|| {
            let (scheme, key) = request.header("authorization")?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("basic").then(|| key.trim().to_owned())
        }),
        _ => bearer,
    };
    given.filter(|key| !key.is_empty())
}

/// Refuses an event whose kind or keys the vendor does not name.
pub(super) fn check(dialect: Dialect, event: &Value) -> Result<(), ApiError> {
    let facts = dialect.facts();
    let kind = event["type"].as_str().unwrap_or_default();
    if !facts.takes(kind) {
        return Err(invalid("invalid_value", &format!("Invalid value: '{kind}'."), "type"));
    }
    if matches!(dialect, Dialect::Ga | Dialect::Azure) {
        // A session's are checked where the session is.
        if kind == "session.update" {
            return Ok(());
        }
        return unknown_keys(event).first().map_or(Ok(()), |path| Err(unknown(path)));
    }
    if kind == "session.update" {
        check_keys(&event["session"], "session", session_keys(dialect))?;
        check_tools(&event["session"]["tools"], facts)?;
    }
    if kind == "response.create" && dialect == Dialect::Qwen {
        check_keys(&event["response"], "response", QWEN_RESPONSE)?;
    }
    Ok(())
}

/// A key, and the keys of its object where they are named too.
type Key = (&'static str, Option<&'static [&'static str]>);

/// The keys of a session.
fn session_keys(dialect: Dialect) -> &'static [Key] {
    match dialect {
        Dialect::Beta | Dialect::AzurePreview => BETA,
        Dialect::VoiceLive => VOICE_LIVE,
        Dialect::Xai => XAI,
        Dialect::Qwen => QWEN,
        _ => INWORLD,
    }
}

const BETA: &[Key] = &[
    ("input_audio_format", None),
    ("input_audio_noise_reduction", Some(&["type"])),
    ("input_audio_transcription", Some(&["language", "model", "prompt"])),
    ("instructions", None),
    ("max_response_output_tokens", None),
    ("modalities", None),
    ("model", None),
    ("output_audio_format", None),
    ("speed", None),
    ("temperature", None),
    ("tool_choice", None),
    ("tools", None),
    ("tracing", None),
    ("turn_detection", None),
    ("voice", None),
];

const VOICE_LIVE: &[Key] = &[
    ("animation", None),
    ("avatar", None),
    ("input_audio_echo_cancellation", Some(&["type"])),
    ("input_audio_format", None),
    ("input_audio_noise_reduction", Some(&["type"])),
    ("input_audio_sampling_rate", None),
    ("input_audio_transcription", Some(&["language", "model", "phrase_list"])),
    ("instructions", None),
    ("interim_response", None),
    ("max_response_output_tokens", None),
    ("modalities", None),
    ("model", None),
    ("output_audio_format", None),
    ("output_audio_timestamp_types", None),
    ("reasoning_effort", None),
    ("temperature", None),
    ("tool_choice", None),
    ("tools", None),
    (
        "turn_detection",
        Some(&[
            "auto_truncate",
            "create_response",
            "eagerness",
            "end_of_utterance_detection",
            "interrupt_response",
            "languages",
            "prefix_padding_ms",
            "remove_filler_words",
            "silence_duration_ms",
            "speech_duration_ms",
            "threshold",
            "type",
        ]),
    ),
    ("voice", None),
];

const XAI: &[Key] = &[
    ("audio", Some(&["input", "output"])),
    ("instructions", None),
    ("max_output_tokens", None),
    ("model", None),
    ("output_modalities", None),
    ("reasoning", Some(&["effort"])),
    ("replace", None),
    ("resumption", Some(&["enabled"])),
    ("tool_choice", None),
    ("tools", None),
    ("turn_detection", None),
    ("type", None),
    ("voice", None),
];

const QWEN: &[Key] = &[
    ("enable_search", None),
    ("input_audio_format", None),
    ("input_audio_transcription", Some(&["model"])),
    ("instructions", None),
    ("modalities", None),
    ("output_audio_format", None),
    ("temperature", None),
    ("tools", None),
    ("top_p", None),
    ("turn_detection", Some(&["prefix_padding_ms", "silence_duration_ms", "threshold", "type"])),
    ("voice", None),
];

const QWEN_RESPONSE: &[Key] = &[("instructions", None), ("modalities", None)];

const INWORLD: &[Key] = &[
    ("audio", Some(&["input", "output"])),
    ("instructions", None),
    ("max_output_tokens", None),
    ("model", None),
    ("output_modalities", None),
    ("providerData", None),
    ("temperature", None),
    ("tool_choice", None),
    ("tools", None),
    ("type", None),
];

fn check_keys(object: &Value, path: &str, known: &[Key]) -> Result<(), ApiError> {
    for (key, value) in object.as_object().into_iter().flatten() {
        let Some((_, inner)) = known.iter().find(|(name, _)| name == key) else {
            return Err(unknown(&format!("{path}.{key}")));
        };
        let Some(inner) = inner else { continue };
        let mut names = value.as_object().into_iter().flatten().map(|(name, _)| name);
        if let Some(name) = names.find(|name| !inner.contains(&name.as_str())) {
            return Err(unknown(&format!("{path}.{key}.{name}")));
        }
    }
    Ok(())
}

/// Tools are written as the dialect writes them.
fn check_tools(tools: &Value, facts: &Facts) -> Result<(), ApiError> {
    let nested = facts.tools == antiphon_openai::wire::ToolShape::Nested;
    for (index, tool) in tools.as_array().into_iter().flatten().enumerate() {
        let path = format!("session.tools[{index}]");
        let has = |key: &str| tool.get(key).is_some();
        if tool["type"] == "function" && nested != has("function") {
            let key = if nested { "function" } else { "name" };
            let message = format!("Missing required parameter: '{path}.{key}'.");
            return Err(invalid("missing_required_parameter", &message, &format!("{path}.{key}")));
        }
    }
    Ok(())
}

fn unknown(path: &str) -> ApiError {
    invalid("unknown_parameter", &format!("Unknown parameter: '{path}'."), path)
}
