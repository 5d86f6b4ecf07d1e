//! From the handshake to the first event.

use std::{collections::BTreeMap, time::Duration};

use antiphon_live::{
    ActivityHandling, ConnectRequest, ContextCompression, Frame, HistoryItem, HistoryRole,
    LiveConfig, LiveError, LiveEvent, Secrets, Sensitivity, Thinking, ThinkingLevel, VoiceActivity,
    WireProtocol,
};
use antiphon_openai::{Client, wire::Dialect};
use antiphon_types::{AudioFormat, JsonObject, Status, ToolCall, ToolDefinition};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::talk::Talk;

fn update_of(config: &LiveConfig) -> Value {
    let mut talk = Talk::opened(Client::new(config, None).unwrap());
    talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
    talk.sent_one()
}

fn with(options: &[(&str, Value)]) -> LiveConfig {
    let mut config = LiveConfig::new();
    let options = options.iter().map(|(id, value)| ((*id).to_owned(), value.clone()));
    config.provider_options = options.collect();
    config
}

#[test]
fn the_session_is_asked_for_once_the_server_has_spoken() {
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    assert!(talk.sent().is_empty());
    talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
    let update = talk.sent_one();
    assert_eq!(update["event_id"], "session-1");
    assert_eq!(
        update["session"],
        json!({
            "type": "realtime", "output_modalities": ["audio"],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "gpt-4o-mini-transcribe"},
                    "turn_detection": {
                        "type": "server_vad", "create_response": true, "interrupt_response": true,
                    },
                },
                "output": {"format": {"type": "audio/pcm", "rate": 24000}},
            },
            "tools": [],
        })
    );
    assert!(talk.told().is_empty());
    talk.server(json!({"type": "session.updated", "session": {"type": "realtime"}}));
    assert_eq!(talk.told(), ["ready"]);
}

#[test]
fn everything_a_configuration_says_reaches_the_session() {
    let mut config = with(&[
        ("turn_detection", json!("server_vad")),
        ("vad_threshold", json!(0.6)),
        ("idle_timeout_ms", json!(5000)),
        ("transcription_model", json!("whisper-1")),
        ("transcription_delay", json!("low")),
        ("noise_reduction", json!("far_field")),
        ("input_audio_format", json!("g711_ulaw")),
        ("output_audio_format", json!("g711_alaw")),
        ("speed", json!(1.2)),
        ("max_output_tokens", json!(300)),
        ("tool_choice", json!({"type": "function", "name": "clock"})),
        ("parallel_tool_calls", json!(false)),
        ("tracing", json!("auto")),
        ("prompt", json!({"id": "pmpt_1"})),
        ("include", json!(["item.input_audio_transcription.logprobs"])),
        ("mcp_servers", json!([{"server_label": "docs", "server_url": "https://docs/mcp"}])),
    ]);
    config.voice = Some("voice_abc".into());
    config.instructions = Some("Be brief.".into());
    config.refinement = Some("Be kind.".into());
    config.vocabulary_hint = Some("Anna, Zoë;anna".into());
    config.locale = Some("en-GB".into());
    config.policies.activity.prefix_padding = Some(Duration::from_millis(250));
    config.policies.activity.silence = Some(Duration::from_millis(700));
    config.policies.activity.handling = ActivityHandling::NoInterruption;
    config.policies.thinking = Thinking::default();
    config.policies.thinking.level = Some(ThinkingLevel::High);
    config.policies.context_compression = ContextCompression::default();
    config.policies.context_compression.trigger_tokens = 20_000;
    config.policies.context_compression.target_tokens = 10_000;
    let mut tool = ToolDefinition::new("clock", "The time.");
    tool.input_schema = Some(json!({"type": "object"}).into());
    config.tools = vec![tool, ToolDefinition::new("bell", "Rings.")];

    let session = update_of(&config)["session"].take();
    assert_eq!(
        session,
        json!({
            "type": "realtime", "output_modalities": ["audio"],
            "instructions": "Be brief.\n\nBe kind.\n\nNames and terms that may come up: Anna, \
                Zoë.\n\nThe user's language is en-GB; speak it unless the user speaks another one.",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcmu"},
                    "noise_reduction": {"type": "far_field"},
                    "transcription": {
                        "model": "whisper-1", "language": "en", "prompt": "Anna, Zoë",
                        "delay": "low",
                    },
                    "turn_detection": {
                        "type": "server_vad", "threshold": 0.6, "prefix_padding_ms": 250,
                        "silence_duration_ms": 700, "create_response": true,
                        "interrupt_response": false, "idle_timeout_ms": 5000,
                    },
                },
                "output": {
                    "format": {"type": "audio/pcma"}, "voice": {"id": "voice_abc"}, "speed": 1.2,
                },
            },
            "tools": [
                {"type": "function", "name": "clock", "description": "The time.",
                 "parameters": {"type": "object"}},
                {"type": "function", "name": "bell", "description": "Rings.",
                 "parameters": {"type": "object", "properties": {}}},
                {"type": "mcp", "server_label": "docs", "server_url": "https://docs/mcp"},
            ],
            "tool_choice": {"type": "function", "name": "clock"},
            "parallel_tool_calls": false,
            "max_output_tokens": 300,
            "reasoning": {"effort": "high"},
            "include": ["item.input_audio_transcription.logprobs"],
            "prompt": {"id": "pmpt_1"},
            "tracing": "auto",
            "truncation": {"type": "retention_ratio", "retention_ratio": 0.5,
                "token_limits": {"post_instructions": 20000}},
        })
    );
    let capabilities = Client::new(&config, None).unwrap().capabilities().clone();
    assert_eq!(
        (capabilities.input, capabilities.output),
        (AudioFormat::Mulaw8k, AudioFormat::Alaw8k)
    );
    assert!(!capabilities.interrupts);
}

#[test]
fn turns_are_taken_by_sense_or_by_hand() {
    let mut config = with(&[("turn_detection", json!("semantic_vad"))]);
    config.policies.activity.end_sensitivity = Sensitivity::High;
    let update = update_of(&config);
    assert_eq!(
        update["session"]["audio"]["input"]["turn_detection"],
        json!({"type": "semantic_vad", "eagerness": "high", "create_response": true,
            "interrupt_response": true})
    );
    for mode in [VoiceActivity::Manual, VoiceActivity::Off] {
        let mut config = LiveConfig::new().voice_activity(mode);
        config.policies.input_transcription = false;
        let update = update_of(&config);
        let input = update["session"]["audio"]["input"].as_object().unwrap();
        assert_eq!(input["turn_detection"], Value::Null);
        assert_eq!(input["transcription"], Value::Null);
        let capabilities = Client::new(&config, None).unwrap().capabilities().clone();
        assert_eq!(capabilities.manual_activity, mode == VoiceActivity::Manual);
        assert!(!capabilities.input_transcripts);
    }
}

#[test]
fn only_models_that_reason_are_told_to() {
    let mut config = LiveConfig::new().model("gpt-realtime-2025-08-28");
    config.policies.thinking.enabled = Some(false);
    config.policies.affective_dialog = true;
    assert_eq!(update_of(&config)["session"]["reasoning"], Value::Null);
    let capabilities = Client::new(&config, None).unwrap().capabilities().clone();
    let ignored: Vec<&str> = capabilities.unsupported_options.iter().map(|id| &**id).collect();
    assert_eq!(ignored, ["affective_dialog", "thinking"]);
    config.model = Some("gpt-realtime-2.1-mini".into());
    assert_eq!(update_of(&config)["session"]["reasoning"], json!({"effort": "minimal"}));
}

#[test]
fn options_that_are_wrong_are_refused_and_unknown_ones_listed() {
    for (id, value) in [
        ("speed", json!(9)),
        ("speed", json!("fast")),
        ("turn_detection", json!("psychic_vad")),
        ("max_output_tokens", json!(0)),
        ("max_output_tokens", json!("lots")),
        ("output_audio_rate", json!(8000)),
        ("mcp_servers", json!([{"server_url": "no label"}])),
        ("dialect", json!("klingon")),
    ] {
        let error = Client::new(&with(&[(id, value)]), None).unwrap_err();
        assert!(matches!(&error, LiveError::InvalidConfig(text) if text.contains(id)), "{error}");
    }
    let mut config = with(&[("temperature", json!(1))]);
    config.options =
        BTreeMap::from([("speed".to_owned(), json!(0.5)), ("zest".to_owned(), json!(1))]);
    let client = Client::new(&config, None).unwrap();
    let unsupported: Vec<&str> =
        client.capabilities().unsupported_options.iter().map(|id| &**id).collect();
    assert_eq!(unsupported, ["zest", "temperature"]);
    config.provider_options.insert("speed".into(), json!(1.5));
    assert_eq!(update_of(&config)["session"]["audio"]["output"]["speed"], 1.5);
}

#[test]
fn the_handshake_names_the_key_and_never_shows_it() {
    let mut config = with(&[
        ("organization", json!("org_1")),
        ("project", json!("proj_1")),
        ("safety_identifier", json!("user_1")),
    ]);
    let shake = |config: &LiveConfig, key: &str| {
        let secrets = Secrets { bearer: Some(SecretString::from(key)) };
        let client = Client::new(config, None).unwrap();
        let handshake = client.handshake(config, &secrets, None).unwrap();
        assert!(!format!("{handshake:?}").contains(key));
        assert!(handshake.subprotocols.is_empty());
        let headers = handshake.headers.iter();
        let headers: Vec<String> =
            headers.map(|(name, value)| format!("{name}: {}", value.expose_secret())).collect();
        (handshake.url, headers)
    };
    let (url, headers) = shake(&config, "ek_secret");
    assert_eq!(url, "wss://api.openai.com/v1/realtime?model=gpt-realtime-2");
    assert_eq!(
        headers,
        [
            "Authorization: Bearer ek_secret",
            "OpenAI-Organization: org_1",
            "OpenAI-Project: proj_1",
            "OpenAI-Safety-Identifier: user_1"
        ]
    );
    config.provider_options.clear();
    config.endpoint = Some("https://r.openai.azure.com".into());
    config.model = Some("my deployment".into());
    let (url, headers) = shake(&config, "azurekey");
    assert_eq!(url, "wss://r.openai.azure.com/openai/v1/realtime?model=my%20deployment");
    assert_eq!(headers, ["api-key: azurekey"]);
    assert_eq!(shake(&config, "jwt.of.entra").1, ["Authorization: Bearer jwt.of.entra"]);
    config.endpoint = Some("ws://localhost:1".into());
    config.provider_options.insert("dialect".into(), json!("beta"));
    assert_eq!(shake(&config, "sk-1").1[1], "OpenAI-Beta: realtime=v1");
}

#[test]
fn without_a_key_nothing_is_dialled() {
    for key in [None, Some(SecretString::from(" "))] {
        let config = LiveConfig::new();
        let client = Client::new(&config, None).unwrap();
        let error = client.handshake(&config, &Secrets { bearer: key }, None).unwrap_err();
        assert!(matches!(error, LiveError::MissingApiKey { .. }));
    }
}

#[test]
fn quirks_26_27_other_dialects_get_the_shape_they_know() {
    let mut config = LiveConfig::new().voice("alloy").model("dep").instructions("Be brief.");
    config.endpoint =
        Some("wss://r.openai.azure.com/openai/realtime?api-version=2025-04-01-preview".into());
    let update = update_of(&config);
    assert_eq!(
        update["session"],
        json!({
            "modalities": ["text", "audio"], "instructions": "Be brief.",
            "input_audio_format": "pcm16", "output_audio_format": "pcm16", "voice": "alloy",
            "input_audio_transcription": null, "tools": [],
            "turn_detection": {"type": "server_vad", "create_response": true,
                "interrupt_response": true},
        })
    );
    config.endpoint = Some("wss://api.x.ai/v1/realtime".into());
    config.provider_options.insert("output_audio_rate".into(), json!(16000));
    let client = Client::new(&config, None).unwrap();
    assert_eq!(client.dialect(), Dialect::Xai);
    assert_eq!(client.capabilities().output, AudioFormat::pcm16(16_000));
    let mut talk = Talk::opened(client);
    talk.server(json!({"type": "conversation.created", "conversation": {"id": "c"}}));
    let session = serde_json::from_str::<Value>(&match talk.out.frames.pop_front() {
        Some(Frame::Text(text)) => text.to_string(),
        other => panic!("{other:?}"),
    })
    .unwrap()["session"]
        .take();
    assert_eq!(session["voice"], "alloy");
    assert_eq!(session["turn_detection"]["type"], "server_vad");
    assert_eq!(session["audio"]["input"]["transcription"]["model"], "grok-transcribe");
    assert_eq!(session["audio"]["output"], json!({"format": {"type": "audio/pcm", "rate": 16000}}));
}

fn xai() -> Talk {
    let config = with(&[("dialect", json!("xai"))]);
    Talk::opened(Client::new(&config, None).unwrap())
}

#[test]
fn quirk_68_either_event_may_be_the_first() {
    let conversation = json!({"type": "conversation.created", "conversation": {"id": "c"}});
    let session = json!({"type": "session.created", "session": {}});
    for order in [vec![&conversation, &session], vec![&session, &conversation], vec![&session]] {
        let mut talk = xai();
        for event in order {
            talk.server(event.clone());
        }
        assert_eq!(talk.sent_kinds(), ["session.update"]);
        talk.server(json!({"type": "session.updated", "session": {}}));
        assert_eq!(talk.told()[0], "ready");
    }
}

#[test]
fn quirk_67_nothing_flows_before_the_session_is_answered() {
    let mut talk = xai();
    let audio = || {
        let frame = antiphon_types::AudioFrame::from_pcm16(24_000, &[1; 480]);
        antiphon_live::LiveCommand::AppendAudio(frame)
    };
    talk.server(json!({"type": "conversation.created", "conversation": {"id": "c"}}));
    talk.server(json!({"type": "session.created", "session": {}}));
    assert_eq!(talk.sent_kinds(), ["session.update"]);
    assert!(matches!(talk.try_command(audio()), Err(LiveError::InvalidCommand(_))));
    assert!(talk.sent().is_empty() && talk.told().is_empty());
    talk.server(json!({"type": "session.updated", "session": {}}));
    talk.command(audio());
    assert_eq!(talk.sent_kinds(), ["input_audio_buffer.append"]);
}

#[test]
fn quirk_69_fields_and_events_that_nobody_knows_are_no_trouble() {
    let mut talk = xai();
    talk.server(json!({"type": "ping", "timestamp": 7}));
    talk.server(json!({"type": "session.created", "session": {"shiny": true}, "new": [1]}));
    talk.server(json!({"type": "session.updated", "session": {"voice": {}, "grok": null}}));
    assert_eq!(talk.told(), ["ready"]);
    talk.server(json!({"type": "response.created", "response": {"id": "r", "mood": "good"}}));
    talk.server(json!({"type": "ping", "timestamp": 8}));
    assert_eq!(talk.told(), ["start r", "ignored ping"]);
}

#[test]
fn quirk_75_a_server_that_never_answers_is_ready_after_a_while() {
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    talk.pass(Duration::from_secs(4));
    assert!(talk.sent().is_empty());
    talk.pass(Duration::from_secs(2));
    assert_eq!(talk.sent_kinds(), ["session.update"]);
    talk.pass(Duration::from_secs(5));
    assert_eq!(talk.told(), ["ready"]);
    assert_eq!(talk.client.deadline(), None);
}

#[test]
fn a_refused_session_is_a_typed_error() {
    let refuse = |code: &str, kind: &str| {
        let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
        talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
        let error = json!({"type": kind, "code": code, "message": "No.", "param": "session.x"});
        talk.try_server(json!({"type": "error", "error": error})).unwrap_err()
    };
    let error = refuse("unknown_parameter", "invalid_request_error");
    assert!(matches!(&error, LiveError::InvalidConfig(text) if text.contains("session.x")));
    assert!(refuse("", "server_error").is_recoverable());
    assert_eq!(refuse("model_not_found", "invalid_request_error").status(), Status::NotFound);
    assert!(matches!(refuse("invalid_api_key", "x"), LiveError::Unauthorized(_)));
    assert!(matches!(refuse("rate_limit_exceeded", "x"), LiveError::RateLimited { .. }));
}

#[test]
fn a_voice_that_cannot_be_changed_is_left_out() {
    let config = LiveConfig::new().voice("marin").instructions("Be brief.");
    let mut talk = Talk::opened(Client::new(&config, None).unwrap());
    talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
    assert_eq!(talk.sent_one()["session"]["audio"]["output"]["voice"], "marin");
    talk.error(Some("cannot_update_voice"), "No.", None);
    let again = talk.sent_one();
    assert_eq!(again["session"]["audio"]["output"]["voice"], Value::Null);
    assert_eq!(again["session"]["instructions"], "Be brief.");
    talk.server(json!({"type": "session.updated", "session": {"type": "realtime"}}));
    assert_eq!(talk.told(), ["ready"]);
}

#[test]
fn quirk_31_a_server_that_closes_before_it_is_ready_says_why() {
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    let close = Frame::Close(Some((3000, "invalid_request_error.invalid_api_key".into())));
    assert!(matches!(talk.try_frame(close).unwrap_err(), LiveError::Unauthorized(_)));
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    let error = json!({"type": "error", "error": {"type": "invalid_request_error",
        "code": "beta_api_shape_disabled", "message": "Gone."}});
    assert!(matches!(talk.try_server(error).unwrap_err(), LiveError::InvalidConfig(_)));
}

#[test]
fn quirk_74_history_is_put_back_with_ids_that_the_server_takes() {
    let long = "call-".repeat(10);
    let call = |id: &str| ToolCall {
        id: id.into(),
        name: "clock".into(),
        args: JsonObject::from_iter([("zone".to_owned(), json!("UTC"))]),
    };
    let history = vec![
        HistoryItem::Message { role: HistoryRole::User, text: "What time is it?".into() },
        HistoryItem::Message { role: HistoryRole::User, text: "  ".into() },
        HistoryItem::Tool { call: call(&long), response: JsonObject::new() },
        HistoryItem::Tool { call: call("call_1"), response: JsonObject::new() },
        HistoryItem::Message { role: HistoryRole::Agent, text: "Noon.".into() },
    ];
    let config = LiveConfig::new();
    let mut talk = Talk::opened(Client::new(&config, None).unwrap().history(history));
    talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
    talk.sent_one();
    talk.server(json!({"type": "session.updated", "session": {"type": "realtime"}}));
    let items: Vec<Value> = talk.sent().into_iter().map(|mut frame| frame["item"].take()).collect();
    let short = items[1]["call_id"].as_str().unwrap().to_owned();
    assert!(short.len() <= 32);
    assert_eq!(
        items,
        [
            json!({"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "What time is it?"}]}),
            json!({"type": "function_call", "call_id": short, "name": "clock",
                "arguments": r#"{"zone":"UTC"}"#}),
            json!({"type": "function_call_output", "call_id": short, "output": "{}"}),
            json!({"type": "function_call", "call_id": "call_1", "name": "clock",
                "arguments": r#"{"zone":"UTC"}"#}),
            json!({"type": "function_call_output", "call_id": "call_1", "output": "{}"}),
            json!({"type": "message", "role": "assistant",
                "content": [{"type": "output_text", "text": "Noon."}]}),
        ]
    );
    assert_eq!(talk.told(), ["ready"]);
    // And back: the session knows the call by its own id.
    talk.server(json!({"type": "conversation.item.added",
        "item": {"type": "function_call_output", "call_id": short, "output": "{}"}}));
    assert_eq!(talk.told(), [format!("accepted {long}")]);
}

#[test]
fn quirk_29_the_end_of_a_session_is_foretold() {
    let unix_time = Duration::from_secs(1_800_000_000);
    let created = |expires_at: u64| {
        json!({"type": "session.created",
            "session": {"type": "realtime", "expires_at": expires_at}})
    };
    let open = |expires_at: u64| {
        let client = Client::new(&LiveConfig::new(), None).unwrap().unix_time(unix_time);
        let mut talk = Talk::opened(client);
        talk.server(created(expires_at));
        talk.server(json!({"type": "session.updated", "session": {"type": "realtime"}}));
        assert_eq!(talk.told(), ["ready"]);
        talk
    };
    let mut talk = open(1_800_003_600);
    talk.pass(Duration::from_secs(3_530));
    assert!(talk.told().is_empty());
    talk.pass(Duration::from_secs(20));
    assert_eq!(talk.told(), ["going away Some(60s)"]);
    // A clock that is far off foretells nothing.
    for expires_at in [0, 1_700_000_000, 1_800_000_010, 1_900_000_000] {
        assert_eq!(open(expires_at).client.deadline(), None);
    }
}

#[test]
fn a_request_to_resume_is_refused() {
    let config = LiveConfig::new();
    let client = Client::new(&config, None).unwrap();
    let resume = antiphon_live::Resumption { handle: SecretString::from("h") };
    let secrets = Secrets { bearer: Some(SecretString::from("k")) };
    let error = client.handshake(&config, &secrets, Some(&resume)).unwrap_err();
    assert!(matches!(error, LiveError::Unsupported { .. }));
    let _ = ConnectRequest::new(config.into());
}

#[test]
fn before_it_is_ready_a_client_takes_no_command() {
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    let error = talk.try_command(antiphon_live::LiveCommand::EndAudio).unwrap_err();
    assert!(matches!(error, LiveError::InvalidCommand(_)));
    let event = talk.out.events.pop_front();
    assert!(!matches!(event, Some(LiveEvent::Ready { .. })));
}
