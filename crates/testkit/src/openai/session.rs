//! The configuration of a session as the server keeps it.

use antiphon_openai::wire::{
    ApiError, AudioFormat, AudioFormats, Facts, RealtimeSession, Session, TranscriptionSession,
    TurnDetection, unknown_keys,
};
use serde_json::{Map, Value, json};

use crate::scripted::codec::Codec;

/// A session's configuration.
pub(super) struct SessionState {
    value: Value,
    realtime: RealtimeSession,
    transcribes_only: bool,
    facts: &'static Facts,
}

/// What a session is made of.
pub(super) struct NewSession<'a> {
    pub(super) id: String,
    pub(super) model: &'a str,
    pub(super) facts: &'static Facts,
    pub(super) expires_at: u64,
    pub(super) transcribes_only: bool,
    /// Merged into the defaults, one after the other.
    pub(super) overrides: [&'a Value; 2],
    /// Without what the vendor's own types do not know.
    pub(super) plain: bool,
}

impl SessionState {
    pub(super) fn new(new: NewSession<'_>) -> Self {
        let facts = new.facts;
        let format =
            |formats: AudioFormats| json!({"type": "audio/pcm", "rate": formats.default_rate()});
        let mut value = if new.transcribes_only {
            json!({
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": new.id,
                "expires_at": new.expires_at,
                "include": null,
                "audio": {"input": {
                    "format": format(facts.input),
                    "transcription": null,
                    "noise_reduction": null,
                    "turn_detection": default_turns("server_vad"),
                }},
            })
        } else {
            json!({
                "type": "realtime",
                "object": "realtime.session",
                "id": new.id,
                "model": new.model,
                "expires_at": new.expires_at,
                "output_modalities": ["audio"],
                "instructions": "You are a friendly assistant.",
                "tools": [],
                "tool_choice": "auto",
                "max_output_tokens": "inf",
                "tracing": null,
                "truncation": "auto",
                "prompt": null,
                "include": null,
                "audio": {
                    "input": {
                        "format": format(facts.input),
                        "transcription": null,
                        "noise_reduction": null,
                        "turn_detection": default_turns("server_vad"),
                    },
                    "output": {
                        "format": format(facts.output),
                        "voice": "marin",
                        "speed": 1.0,
                    },
                },
            })
        };
        if let Value::Object(session) = &mut value {
            let without = |key: &str| facts.without.iter().any(|ids| ids.contains(&key));
            session.retain(|key, _| match key.as_str() {
                "expires_at" => facts.tells_expiry,
                key => !without(key),
            });
        }
        for overrides in new.overrides.into_iter().filter_map(Value::as_object) {
            merge(&mut value, overrides);
        }
        if let Value::Object(session) = &mut value
            && new.plain
        {
            session.retain(|key, _| !["id", "object", "expires_at"].contains(&key.as_str()));
        }
        let mut state = Self {
            value: Value::Null,
            realtime: RealtimeSession::default(),
            transcribes_only: new.transcribes_only,
            facts,
        };
        state.adopt(value);
        state
    }

    /// Applies an update, all of it or nothing. `spoke`: the model's voice was heard already.
    pub(super) fn update(&mut self, update: &Value, spoke: bool) -> Result<(), ApiError> {
        let kind = if self.transcribes_only { "transcription" } else { "realtime" };
        let Value::Object(keys) = update else {
            return Err(refusal("invalid_type", "Invalid type for 'session'.", "session"));
        };
        match keys.get("type").and_then(Value::as_str) {
            None => {
                let message = "Missing required parameter: 'session.type'.";
                return Err(refusal("missing_required_parameter", message, "session.type"));
            }
            Some(given) if given != kind => {
                let message = format!("Passing a {given} session update to a {kind} session.");
                return Err(refusal("invalid_value", &message, "session.type"));
            }
            Some(_) => {}
        }
        let event = json!({"type": "session.update", "session": update});
        if let Some(path) = unknown_keys(&event).first() {
            let message = format!("Unknown parameter: '{path}'.");
            return Err(refusal("unknown_parameter", &message, path));
        }
        let mut merged = self.value.clone();
        merge(&mut merged, keys);
        check(&merged, self.facts)?;
        let voice = |session: &Value| session.pointer("/audio/output/voice").cloned();
        if spoke && voice(&merged) != voice(&self.value) {
            let message = "Cannot update a conversation's voice if assistant audio is present.";
            return Err(refusal("cannot_update_voice", message, "session.audio.output.voice"));
        }
        // What a client says of the model is taken note of and changes nothing.
        if let Some(model) = self.value.get("model") {
            merged["model"] = model.clone();
        }
        self.adopt(merged);
        Ok(())
    }

    /// The whole session, for the client.
    pub(super) fn snapshot(&self) -> Session {
        serde_json::from_value(self.value.clone()).unwrap_or(Session::Other(self.value.clone()))
    }

    pub(super) fn transcribes_only(&self) -> bool {
        self.transcribes_only
    }

    /// The configuration of a conversation; of a session that transcribes only its audio.
    pub(super) fn realtime(&self) -> &RealtimeSession {
        &self.realtime
    }

    /// Who takes turns; `None` is the client.
    pub(super) fn turns(&self) -> Option<&TurnDetection> {
        self.realtime.audio.as_ref()?.input.as_ref()?.turn_detection.value()
    }

    /// Whether the user's words are wanted.
    pub(super) fn transcribes(&self) -> bool {
        let input = self.realtime.audio.as_ref().and_then(|audio| audio.input.as_ref());
        input.is_some_and(|input| input.transcription.value().is_some())
    }

    pub(super) fn input_format(&self) -> Codec {
        let input = self.realtime.audio.as_ref().and_then(|audio| audio.input.as_ref());
        codec_of(input.and_then(|input| input.format.as_ref()))
    }

    fn adopt(&mut self, value: Value) {
        self.value = value;
        match self.snapshot() {
            Session::Realtime(session) => self.realtime = *session,
            Session::Transcription(session) => {
                let TranscriptionSession { audio, .. } = *session;
                self.realtime = RealtimeSession { audio, ..RealtimeSession::default() };
            }
            _ => {}
        }
    }
}

/// How audio of a format is coded.
pub(super) fn codec_of(format: Option<&AudioFormat>) -> Codec {
    match format {
        Some(AudioFormat::Pcmu {}) => Codec::Ulaw,
        Some(AudioFormat::Pcma {}) => Codec::Alaw,
        Some(AudioFormat::Pcm { rate: Some(rate) }) if *rate > 0 => Codec::Pcm(*rate),
        _ => Codec::Pcm(24_000),
    }
}

fn default_turns(kind: &str) -> Value {
    if kind == "semantic_vad" {
        return json!({
            "type": kind,
            "eagerness": "auto",
            "create_response": true,
            "interrupt_response": true,
        });
    }
    json!({
        "type": kind,
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 200,
        "idle_timeout_ms": null,
        "create_response": true,
        "interrupt_response": true,
    })
}

/// Keys whose objects are merged; all others are replaced.
const NESTED: [&str; 3] = ["audio", "input", "output"];

fn merge(session: &mut Value, update: &Map<String, Value>) {
    let Some(session) = session.as_object_mut() else { return };
    for (key, new) in update {
        match new {
            Value::Object(inner) if NESTED.contains(&key.as_str()) => {
                merge(session.entry(key).or_insert_with(|| json!({})), inner);
            }
            Value::Object(new) if key == "turn_detection" => {
                let old = session.get("turn_detection").cloned().unwrap_or_default();
                let kind = new.get("type").or_else(|| old.get("type")).and_then(Value::as_str);
                let kind = kind.unwrap_or("server_vad");
                let mut turns = if old["type"] == kind { old.clone() } else { default_turns(kind) };
                if let Some(turns) = turns.as_object_mut() {
                    turns.extend(new.clone());
                }
                session.insert(key.clone(), turns);
            }
            _ => {
                session.insert(key.clone(), new.clone());
            }
        }
    }
}

/// What the vendor would not take as a value.
fn check(session: &Value, facts: &Facts) -> Result<(), ApiError> {
    let number = |path: &str| session.pointer(path).and_then(Value::as_f64);
    let ranges = [
        ("/audio/input/turn_detection/threshold", 0.0, 1.0),
        ("/audio/output/speed", 0.25, 1.5),
        ("/max_output_tokens", 1.0, 4_096.0),
    ];
    for (path, least, most) in ranges {
        if number(path).is_some_and(|value| !(least..=most).contains(&value)) {
            return Err(out_of_range(path, &format!("a value from {least} to {most}")));
        }
    }
    for (side, formats) in [("input", facts.input), ("output", facts.output)] {
        let path = format!("/audio/{side}/format");
        let Some(format) = session.pointer(&path) else { continue };
        match format["type"].as_str() {
            Some("audio/pcm") if takes_rate(formats, format) => {}
            Some("audio/pcmu" | "audio/pcma") if formats.g711 => {}
            Some("audio/pcm") => {
                let rates: Vec<String> =
                    formats.pcm.iter().map(|(rate, _)| rate.to_string()).collect();
                return Err(out_of_range(&format!("{path}/rate"), &rates.join(" or ")));
            }
            _ => return Err(out_of_range(&path, "audio/pcm, audio/pcmu or audio/pcma")),
        }
    }
    let detection = session.pointer("/audio/input/turn_detection/type").and_then(Value::as_str);
    if let Some(detection) = detection
        && !facts.detections.iter().any(|(known, _)| *known == detection)
    {
        let known: Vec<&str> = facts.detections.iter().map(|(known, _)| *known).collect();
        let path = "/audio/input/turn_detection/type";
        return Err(out_of_range(path, &known.join(" or ")));
    }
    if let Some(modalities) = session.get("output_modalities")
        && *modalities != json!(["audio"])
        && *modalities != json!(["text"])
    {
        return Err(out_of_range("/output_modalities", "['text'] or ['audio']"));
    }
    if let Err(error) = serde_json::from_value::<Session>(session.clone()) {
        return Err(refusal("invalid_type", &error.to_string(), "session"));
    }
    Ok(())
}

fn takes_rate(formats: AudioFormats, format: &Value) -> bool {
    let Some(rate) = format.get("rate") else { return true };
    formats.pcm.iter().any(|(known, _)| rate == *known)
}

fn out_of_range(pointer: &str, expected: &str) -> ApiError {
    let param = format!("session{}", pointer.replace('/', "."));
    refusal("invalid_value", &format!("Invalid value for '{param}': expected {expected}."), &param)
}

fn refusal(code: &str, message: &str, param: &str) -> ApiError {
    ApiError { param: Some(param.into()), ..ApiError::invalid_request(code, message) }
}
