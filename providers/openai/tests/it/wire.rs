//! The wire types against frames written by others, and against random input.

use antiphon_openai::wire::*;
use proptest::prelude::*;
use serde_json::{Value, json};

const EXCHANGES: &str = include_str!("../data/exchanges.jsonl");

fn frames(direction: &str) -> Vec<Value> {
    let lines = EXCHANGES.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["dir"] == direction).map(|line| line["frame"].clone()).collect()
}

/// Absent and `null` are the same to a reader.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => object
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[test]
fn server_frames_survive_decoding_and_encoding() {
    let frames = frames("server");
    assert!(frames.len() > 30);
    for frame in frames {
        let event = ServerEvent::decode(&frame.to_string()).unwrap();
        assert!(!matches!(event, ServerEvent::Unknown(_)), "{frame}");
        let again = serde_json::to_value(&event).unwrap();
        assert_eq!(without_nulls(again), without_nulls(frame));
    }
}

#[test]
fn client_frames_survive_decoding_and_encoding_and_hold_no_unknown_key() {
    for frame in frames("client") {
        let event = ClientEvent::decode(&frame.to_string()).unwrap();
        assert!(!matches!(event, ClientEvent::Unknown(_)), "{frame}");
        assert_eq!(serde_json::to_value(&event).unwrap(), frame);
        assert_eq!(unknown_keys(&frame), Vec::<String>::new());
    }
}

#[test]
fn null_clears_and_absence_keeps() {
    let text = r#"{"type":"session.update","session":{"type":"realtime","tracing":null,
        "audio":{"input":{"turn_detection":null,"transcription":{"model":"whisper-1"}}}}}"#;
    let Ok(ClientEvent::UpdateSession(update)) = ClientEvent::decode(text) else { panic!() };
    let Session::Realtime(session) = &update.session else { panic!("{update:?}") };
    let input = session.audio.as_ref().unwrap().input.as_ref().unwrap();
    assert_eq!(input.turn_detection, Patch::Clear);
    assert_eq!(input.noise_reduction, Patch::Keep);
    assert_eq!(session.tracing, Patch::Clear);
    assert_eq!(session.prompt, Patch::Keep);
    let again = serde_json::to_value(ClientEvent::UpdateSession(update)).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
}

#[test]
fn unions_of_the_session_survive() {
    for (key, value) in [
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "name": "a"})),
        ("tool_choice", json!({"type": "mcp", "server_label": "a"})),
        ("max_output_tokens", json!("inf")),
        ("max_output_tokens", json!(4096)),
        ("truncation", json!("disabled")),
        (
            "truncation",
            json!({"type": "retention_ratio", "retention_ratio": 0.5,
                "token_limits": {"post_instructions": 100}}),
        ),
        ("tracing", json!("auto")),
        ("tracing", json!({"workflow_name": "w", "group_id": "g"})),
        ("prompt", json!({"id": "p", "version": "2", "variables": {"a": "b"}})),
        ("reasoning", json!({"effort": "low"})),
        (
            "audio",
            json!({"output": {"voice": {"id": "voice_1"}, "format": {"type": "audio/pcmu"}}}),
        ),
        (
            "tools",
            json!([{"type": "function", "name": "a", "parameters": {"type": "object"}},
                {"type": "mcp", "server_label": "s", "server_url": "u", "allowed_tools": ["x"],
                 "require_approval": {"never": {"tool_names": ["x"]}}},
                {"type": "mcp", "server_label": "s", "connector_id": "connector_gmail",
                 "allowed_tools": {"read_only": true}, "require_approval": "always"},
                {"type": "web_search"}]),
        ),
    ] {
        let mut session = json!({"type": "realtime"});
        session[key] = value;
        let typed: Session = serde_json::from_value(session.clone()).unwrap();
        assert!(matches!(typed, Session::Realtime(_)), "{session}");
        assert_eq!(serde_json::to_value(typed).unwrap(), session);
    }
}

#[test]
fn items_of_every_kind_survive() {
    for item in [
        json!({"type": "mcp_call", "id": "i", "server_label": "s", "name": "n", "arguments": "{}",
            "error": {"type": "http_error", "code": 500, "message": "m"}}),
        json!({"type": "mcp_list_tools", "id": "i", "server_label": "s",
            "tools": [{"name": "n", "input_schema": {"type": "object"}}]}),
        json!({"type": "mcp_approval_request", "id": "i", "server_label": "s", "name": "n",
            "arguments": "{}"}),
        json!({"type": "mcp_approval_response", "id": "i", "approval_request_id": "r",
            "approve": true}),
        json!({"type": "item_reference", "id": "i"}),
        json!({"type": "message", "role": "user", "content": [
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
            {"type": "input_audio", "audio": "AAAA", "transcript": "hm"}]}),
        json!({"type": "hologram", "id": "i", "depth": 3}),
    ] {
        let typed: Item = serde_json::from_value(item.clone()).unwrap();
        assert_eq!(typed.kind(), item["type"]);
        assert_eq!(serde_json::to_value(typed).unwrap(), item);
    }
}

#[test]
fn unknown_kinds_and_unknown_keys_are_no_error() {
    let event = ServerEvent::decode(r#"{"type":"response.video.delta","delta":"x"}"#).unwrap();
    assert_eq!(event.kind(), "response.video.delta");
    assert_eq!(serde_json::to_value(&event).unwrap()["delta"], "x");
    let event = ServerEvent::decode(
        r#"{"type":"input_audio_buffer.speech_started","item_id":"i","audio_start_ms":5.0,"new":1}"#,
    );
    assert!(
        matches!(event.unwrap(), ServerEvent::SpeechStarted(start) if start.audio_start_ms == 5)
    );
}

#[test]
fn servers_that_leave_things_out_are_understood() {
    for (text, expected) in [
        (r#"{"type":"response.audio.delta","delta":"AAAA"}"#, "response.output_audio.delta"),
        (r#"{"type":"response.text.done","text":null}"#, "response.output_text.done"),
        (
            r#"{"type":"response.done","response":{"id":"r","output":null,"usage":7,"metadata":{"a":1},"audio":"x"}}"#,
            "response.done",
        ),
        (r#"{"type":"error","error":{"message":"m","code":429,"type":null}}"#, "error"),
        (r#"{"type":"session.created","session":{"modalities":["text"]}}"#, "session.created"),
        (
            r#"{"type":"conversation.item.created","item":{"id":"i","type":"message","role":"user","content":null}}"#,
            "conversation.item.created",
        ),
        (
            r#"{"type":"response.function_call_arguments.done","call_id":"c","name":null,"arguments":null}"#,
            "response.function_call_arguments.done",
        ),
    ] {
        let event = ServerEvent::decode(text).unwrap();
        assert_eq!(event.kind(), expected);
        assert!(!matches!(event, ServerEvent::Unknown(_)), "{text}");
    }
}

#[test]
fn what_is_no_event_says_why() {
    assert!(matches!(ServerEvent::decode("{"), Err(DecodeError::Json(_))));
    assert!(matches!(ServerEvent::decode("[1]"), Err(DecodeError::Json(_))));
    assert_eq!(ServerEvent::decode("{}"), Err(DecodeError::NoType));
    let error = ServerEvent::decode(r#"{"type":"session.created"}"#).unwrap_err();
    assert_eq!(
        error.to_string().split(" at ").next(),
        Some("malformed session.created: missing field `session`")
    );
    assert!(matches!(
        ServerEvent::decode(r#"{"type":"session.created","session":{}"#),
        Err(DecodeError::Shape { .. })
    ));
}

#[test]
fn the_beta_says_the_same_in_other_words() {
    let update = ClientEvent::decode(
        &json!({
            "type": "session.update",
            "session": {
                "type": "realtime", "output_modalities": ["audio"], "max_output_tokens": "inf",
                "instructions": "Be brief.",
                "audio": {
                    "input": {"format": {"type": "audio/pcm", "rate": 24000},
                        "transcription": {"model": "whisper-1"}, "turn_detection": null},
                    "output": {"format": {"type": "audio/pcmu"}, "voice": "alloy", "speed": 1.0},
                },
            },
        })
        .to_string(),
    )
    .unwrap();
    let beta: Value = serde_json::from_str(&Dialect::Beta.encode_client(&update)).unwrap();
    let expected = json!({
        "type": "session.update",
        "session": {
            "modalities": ["text", "audio"], "max_response_output_tokens": "inf",
            "instructions": "Be brief.", "input_audio_format": "pcm16",
            "output_audio_format": "g711_ulaw", "voice": "alloy", "speed": 1.0,
            "input_audio_transcription": {"model": "whisper-1"}, "turn_detection": null,
        },
    });
    assert_eq!(beta, expected);
    assert_eq!(Dialect::Beta.decode_client(&beta.to_string()).unwrap(), update);
    let xai: Value = serde_json::from_str(&Dialect::Xai.encode_client(&update)).unwrap();
    assert_eq!(xai["session"]["voice"], "alloy");
    assert_eq!(xai["session"]["turn_detection"], Value::Null);
    assert_eq!(xai["session"]["audio"]["output"]["format"]["type"], "audio/pcmu");
    assert_eq!(Dialect::Xai.decode_client(&xai.to_string()).unwrap(), update);
}

#[test]
fn beta_events_have_their_own_names() {
    let delta = ServerEvent::TextDelta(PartDelta { delta: "x".into(), ..PartDelta::default() });
    let text = Dialect::AzurePreview.encode_server(&delta).unwrap();
    assert_eq!(peek_kind(&text), Some("response.text.delta"));
    assert_eq!(ServerEvent::decode(&text).unwrap(), delta);
    let done = ServerEvent::decode(
        r#"{"type":"conversation.item.done","item":{"type":"message","role":"user","content":[]}}"#,
    );
    assert_eq!(Dialect::Beta.encode_server(&done.unwrap()), None);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        "[a-z_\"\\\\é]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "type",
        "event_id",
        "session",
        "item",
        "item_id",
        "response",
        "response_id",
        "delta",
        "content",
        "content_index",
        "output",
        "arguments",
        "call_id",
        "name",
        "error",
        "audio",
        "usage",
        "metadata",
        "part",
        "audio_start_ms",
        "transcript",
        "rate_limits",
        "other",
    ])
    .prop_map(str::to_owned)
}

fn kind() -> impl Strategy<Value = &'static str> {
    prop::sample::select([ServerEvent::KINDS, ClientEvent::KINDS].concat())
}

proptest! {
    #[test]
    fn any_frame_is_decoded_or_refused(kind in kind(), fields in prop::collection::btree_map(key(), any_json(), 0..8)) {
        let mut frame = Value::Object(fields.into_iter().collect());
        frame["type"] = kind.into();
        let text = frame.to_string();
        if let Ok(event) = ServerEvent::decode(&text) {
            // What was understood can be told again, and is then the same.
            let again = serde_json::to_string(&event).unwrap();
            prop_assert_eq!(ServerEvent::decode(&again).unwrap(), event.clone());
            for dialect in [Dialect::Beta, Dialect::Xai] {
                if let Some(text) = dialect.encode_server(&event) {
                    prop_assert!(serde_json::from_str::<Value>(&text).is_ok());
                }
            }
        }
        if let Ok(event) = ClientEvent::decode(&text) {
            let again = serde_json::to_string(&event).unwrap();
            prop_assert_eq!(ClientEvent::decode(&again).unwrap(), event.clone());
            let _ = Dialect::Beta.encode_client(&event);
            let _ = Dialect::Beta.decode_client(&text);
        }
        let _ = unknown_keys(&frame);
        let _ = AudioDelta::decode(&text);
    }

    #[test]
    fn any_text_is_survived(text in "\\PC{0,80}", cut in 0_usize..200) {
        let _ = ServerEvent::decode(&text);
        for frame in frames("server") {
            let frame = frame.to_string();
            let end = frame.floor_char_boundary(cut.min(frame.len() - 1));
            prop_assert!(ServerEvent::decode(&frame[..end]).is_err());
        }
    }
}
