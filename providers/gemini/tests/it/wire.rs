//! The wire types against frames written by others, and against random input.

use antiphon_gemini::wire::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Frames of the vendor's documentation and SDKs: `→` of a client, `←` of the server.
const EXCHANGES: &str = include_str!("../data/exchanges.txt");

pub fn frames(direction: char) -> Vec<&'static str> {
    let lines = EXCHANGES.lines().filter(|line| line.starts_with(direction));
    lines.map(|line| line.trim_start_matches(direction).trim()).collect()
}

#[test]
fn server_frames_survive_decoding_and_encoding() {
    let frames = frames('←');
    assert!(frames.len() > 15);
    for frame in frames {
        let message = ServerMessage::decode(frame.as_bytes()).unwrap();
        assert_ne!(message.kind(), "", "{frame}");
        let again: Value = serde_json::from_str(&message.encode()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(frame).unwrap());
    }
}

#[test]
fn client_frames_survive_decoding_and_encoding_and_hold_no_unknown_key() {
    let frames = frames('→');
    assert!(frames.len() > 10);
    for frame in frames {
        let message = ClientMessage::decode(frame.as_bytes()).unwrap();
        let again: Value = serde_json::from_str(&message.encode()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(frame).unwrap());
        assert_eq!(unknown_keys(frame.as_bytes()).unwrap(), Vec::<String>::new());
        assert_eq!(ClientMessage::peek_kind(frame).as_deref(), Some(message.kind()));
    }
}

#[test]
fn quirk_72_mixed_cases_and_alphabets_are_understood() {
    for (mixed, plain) in [
        (
            r#"{"client_content":{"turns":[{"role":"user","parts":[{"text":"hi"}]}],"turnComplete":true}}"#,
            r#"{"clientContent":{"turns":[{"role":"user","parts":[{"text":"hi"}]}],"turnComplete":true}}"#,
        ),
        (
            r#"{"realtime_input":{"audio":{"data":"-_8=","mime_type":"audio/pcm;rate=16000"}}}"#,
            r#"{"realtimeInput":{"audio":{"data":"+/8=","mimeType":"audio/pcm;rate=16000"}}}"#,
        ),
        (
            r#"{"realtime_input":{"audioStreamEnd":true}}"#,
            r#"{"realtimeInput":{"audioStreamEnd":true}}"#,
        ),
        (
            r#"{"setup":{"model":"m","realtimeInputConfig":{"automatic_activity_detection":{"silence_duration_ms":500}}}}"#,
            r#"{"setup":{"model":"m","realtimeInputConfig":{"automaticActivityDetection":{"silenceDurationMs":500}}}}"#,
        ),
        (
            r#"{"tool_response":{"functionResponses":[{"id":"a","response":{"snake_case":{"k_k":1}}}]}}"#,
            r#"{"toolResponse":{"functionResponses":[{"id":"a","response":{"snake_case":{"k_k":1}}}]}}"#,
        ),
    ] {
        let mixed = ClientMessage::decode(mixed.as_bytes()).unwrap();
        assert_eq!(mixed, ClientMessage::decode(plain.as_bytes()).unwrap());
        let again: Value = serde_json::from_str(&mixed.encode()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(plain).unwrap());
    }
}

#[test]
fn quirk_44_an_output_that_is_no_object_is_no_message() {
    for output in ["\"sunny\"", "[1]", "7"] {
        let frame = format!(
            r#"{{"toolResponse":{{"functionResponses":[{{"id":"a","response":{output}}}]}}}}"#
        );
        assert!(ClientMessage::decode(frame.as_bytes()).is_err(), "{output}");
    }
}

#[test]
fn exactly_one_message_is_in_a_clients_frame() {
    for frame in ["{}", r#"{"setup":{},"clientContent":{}}"#, r#"{"hologram":{}}"#, "[]", ""] {
        assert!(ClientMessage::decode(frame.as_bytes()).is_err(), "{frame}");
    }
}

#[test]
fn what_is_new_is_ignored_and_what_is_null_is_absent() {
    let frame = r#"{"serverContent":{"modelTurn":{"parts":[{"text":null,"hologram":1}],"role":"seer"},
        "turnComplete":null,"turnCompleteReason":"BORED","interactionStatus":"idle"},
        "usageMetadata":{"promptTokenCount":"12","serviceTier":"PRIORITY"},"new":{}}"#;
    let message = ServerMessage::decode(frame.as_bytes()).unwrap();
    let content = message.server_content.unwrap();
    assert_eq!(content.turn_complete, None);
    assert_eq!(content.turn_complete_reason.unwrap().as_str(), "BORED");
    assert_eq!(content.interaction_status, Some(InteractionStatus::Idle));
    assert_eq!(content.model_turn.unwrap().role.unwrap().as_str(), "seer");
    let usage = message.usage_metadata.unwrap();
    assert_eq!(usage.prompt_token_count, Some(Whole(12)));
    assert_eq!(usage.service_tier, Some(ServiceTier::Priority));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        "[a-zA-Z_=\"\\\\é]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "setup",
        "model",
        "generationConfig",
        "generation_config",
        "responseModalities",
        "tools",
        "function_declarations",
        "functionDeclarations",
        "name",
        "parameters",
        "clientContent",
        "client_content",
        "turns",
        "parts",
        "text",
        "inlineData",
        "inline_data",
        "mimeType",
        "data",
        "turnComplete",
        "turn_complete",
        "realtimeInput",
        "audio",
        "toolResponse",
        "functionResponses",
        "id",
        "response",
        "args",
        "serverContent",
        "modelTurn",
        "role",
        "inputTranscription",
        "finished",
        "toolCall",
        "functionCalls",
        "usageMetadata",
        "promptTokenCount",
        "goAway",
        "timeLeft",
        "sessionResumptionUpdate",
        "newHandle",
        "other",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn any_frame_is_decoded_or_refused(fields in prop::collection::btree_map(key(), any_json(), 0..3)) {
        let frame = Value::Object(fields.into_iter().collect()).to_string();
        if let Ok(message) = ServerMessage::decode(frame.as_bytes()) {
            // What was understood can be told again, and is then the same.
            let again = message.encode();
            prop_assert_eq!(ServerMessage::decode(again.as_bytes()).unwrap(), message);
        }
        if let Ok(message) = ClientMessage::decode(frame.as_bytes()) {
            let again = message.encode();
            prop_assert_eq!(ClientMessage::decode(again.as_bytes()).unwrap(), message);
            prop_assert_eq!(unknown_keys(again.as_bytes()).unwrap(), Vec::<String>::new());
        }
        let _ = unknown_keys(frame.as_bytes());
        let _ = ClientMessage::peek_kind(&frame);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..80), cut in 0_usize..300) {
        let _ = ServerMessage::decode(&bytes);
        let _ = ClientMessage::decode(&bytes);
        for frame in frames('←') {
            let end = cut.min(frame.len() - 1);
            prop_assert!(ServerMessage::decode(&frame.as_bytes()[..end]).is_err());
        }
    }

    #[test]
    fn calls_and_outputs_round_trip(args in any_json(), snake in "[a-z]{1,4}_[a-z]{1,4}") {
        let args = json!({snake: args});
        let call = json!({"toolCall": {"functionCalls": [{"id": "a", "name": "f", "args": args}]}});
        let message = ServerMessage::decode(call.to_string().as_bytes()).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&message.encode()).unwrap(), call);
    }
}
