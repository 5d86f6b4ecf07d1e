//! What a configuration becomes where the dialects differ, and what they cannot do.

use antiphon_live::{
    ActivityHandling, LiveCommand, LiveConfig, LiveError, Sensitivity, ThinkingLevel, VoiceActivity,
};
use antiphon_openai::{
    Client, OpenAi,
    wire::{Dialect, Dialect::*},
};
use antiphon_types::AudioFrame;
use serde_json::{Value, json};

use super::{client, config, ready, session, with};

#[test]
fn a_dialect_is_known_by_its_name() {
    let names = Dialect::ALL.map(|dialect| dialect.to_string());
    assert_eq!(
        names,
        ["ga", "beta", "azure", "azure_preview", "voice_live", "xai", "qwen", "inworld"]
    );
    for dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
        assert_eq!(client(&config(dialect)).dialect(), dialect);
    }
    let error = "grok".parse::<Dialect>().unwrap_err();
    assert!(error.to_string().ends_with("voice_live, xai, qwen, inworld"), "{error}");
}

#[test]
fn what_is_missing_is_named() {
    for dialect in [Azure, AzurePreview] {
        let mut config = config(dialect);
        config.model = None;
        let error = Client::new(&config, None).unwrap_err();
        assert!(error.to_string().contains("deployment"), "{error}");
        config.endpoint = None;
        let error = Client::new(&config, None).unwrap_err();
        assert!(matches!(error, LiveError::MissingEndpoint { .. }), "{error}");
    }
    // Who makes his own handshakes names his own sessions.
    let config = config(Inworld);
    let secrets = antiphon_live::Secrets { bearer: Some("k".into()) };
    use antiphon_live::WireProtocol;
    let handshake = |config| Client::new(config, None).unwrap().handshake(config, &secrets, None);
    assert!(matches!(handshake(&config), Err(LiveError::InvalidConfig(_))));
    let named = with(config.clone(), &[("session_id", json!("a b"))]);
    assert!(handshake(&named).unwrap().url.ends_with("&key=a%20b"));
}

/// xAI has words for it; everywhere else the model is told.
#[test]
fn a_given_text_is_spoken() {
    for dialect in Dialect::ALL {
        let mut talk = ready(&config(dialect));
        talk.command(LiveCommand::Say { request: 5, text: "Good \"morning\".".into() });
        let sent = talk.sent_one();
        if dialect == Xai {
            assert_eq!(
                sent,
                json!({"type": "conversation.item.create", "event_id": "reply-1", "item":
                    {"type": "force_message", "role": "assistant",
                    "content": [{"type": "output_text", "text": "Good \"morning\"."}]}})
            );
        } else {
            assert_eq!(sent["type"], "response.create", "{dialect}");
            let told = sent["response"]["instructions"].as_str().unwrap();
            assert!(told.contains("Good \"morning\"."), "{dialect}");
            let choice = if dialect == Qwen { Value::Null } else { json!("none") };
            assert_eq!(sent["response"]["tool_choice"], choice, "{dialect}");
        }
        talk.created("r");
        assert_eq!(talk.told(), ["start r for 5"], "{dialect}");
    }
}

/// Even where the server has returned metadata before, and has a turn of the user to answer.
#[test]
fn a_forced_text_is_its_own_answer() {
    let mut talk = ready(&config(Xai));
    talk.command(LiveCommand::CreateReply { request: 1 });
    let create = talk.sent_one();
    talk.created_for("r1", &create);
    talk.done("r1", "completed");
    talk.told();
    talk.command(LiveCommand::Say { request: 2, text: "One moment.".into() });
    talk.created("r2");
    assert_eq!(talk.told(), ["start r2 for 2"]);
    // A refusal fails the request, as it fails any.
    talk.done("r2", "completed");
    talk.told();
    talk.command(LiveCommand::Say { request: 3, text: "So.".into() });
    let id = talk.sent()[1]["event_id"].clone();
    talk.error(Some("invalid_value"), "No.", Some(&id));
    assert_eq!(talk.told(), ["error invalid_value for 3"]);
}

/// Qwen takes JPEGs into a buffer, after audio; those that follow OpenAI take them in messages.
#[test]
fn images_go_their_way() {
    let image = |media_type: &str| LiveCommand::Image {
        media_type: media_type.into(),
        data: vec![1, 2, 3].into(),
    };
    for dialect in Dialect::ALL {
        let mut talk = ready(&config(dialect));
        let takes = talk.client.capabilities().check(&image("image/jpeg")).is_ok();
        assert_eq!(takes, matches!(dialect, Ga | Azure | Qwen), "{dialect}");
        if matches!(dialect, Ga | Azure) {
            talk.command(image("image/png"));
            let sent = talk.sent_one();
            let url = &sent["item"]["content"][0]["image_url"];
            assert_eq!(url, "data:image/png;base64,AQID", "{dialect}");
        }
    }
    let mut talk = ready(&config(Qwen));
    let refused = |error: LiveError| assert!(matches!(error, LiveError::InvalidCommand(_)));
    refused(talk.try_command(image("image/jpeg")).unwrap_err());
    talk.command(LiveCommand::AppendAudio(AudioFrame::from_pcm16(16_000, &[1; 1_600])));
    talk.sent();
    refused(talk.try_command(image("image/png")).unwrap_err());
    talk.command(image("image/jpeg"));
    assert_eq!(talk.sent_one(), json!({"type": "input_image_buffer.append", "image": "AQID"}));
}

/// What no event could carry is refused before anything is sent.
#[test]
fn qwen_takes_no_messages() {
    let capabilities = client(&config(Qwen)).capabilities().clone();
    assert!(!capabilities.text_input && !capabilities.history && !capabilities.forget_input);
    assert!(capabilities.say && capabilities.tools && capabilities.cancel_reply);
    let text = LiveCommand::Text { text: "Hi.".into(), reply: true };
    assert!(capabilities.check(&text).is_err());
}

#[test]
fn turns_are_detected_as_the_server_can() {
    let detection = |config: &LiveConfig| {
        let session = session(config);
        let nested = session.pointer("/audio/input/turn_detection").cloned();
        nested.unwrap_or_else(|| session["turn_detection"].clone())
    };
    let kinds = |dialect| -> Vec<&str> {
        let kinds = [
            "server_vad",
            "semantic_vad",
            "azure_semantic_vad",
            "azure_semantic_vad_en",
            "azure_semantic_vad_multilingual",
        ];
        let takes = |kind: &&str| {
            let config = with(config(dialect), &[("turn_detection", json!(kind))]);
            match Client::new(&config, None) {
                Ok(_) => assert_eq!(detection(&config)["type"], *kind),
                Err(error) => {
                    assert!(matches!(error, LiveError::InvalidConfig(_)));
                    return false;
                }
            }
            true
        };
        kinds.into_iter().filter(takes).collect()
    };
    for dialect in Dialect::ALL {
        let expected = match dialect {
            Xai => 1,
            VoiceLive => 5,
            _ => 2,
        };
        assert_eq!(kinds(dialect).len(), expected, "{dialect}");
        // By hand there is none, which is told.
        let by_hand = config(dialect).voice_activity(VoiceActivity::Manual);
        assert_eq!(detection(&by_hand), Value::Null, "{dialect}");
    }
    let sensed = with(
        config(VoiceLive),
        &[("turn_detection", json!("azure_semantic_vad")), ("vad_threshold", json!(0.4))],
    );
    assert_eq!(
        detection(&sensed),
        json!({"type": "azure_semantic_vad", "threshold": 0.4, "create_response": true,
            "interrupt_response": true})
    );
    let mut sensed = with(config(Qwen), &[("turn_detection", json!("semantic_vad"))]);
    sensed.policies.activity.end_sensitivity = Sensitivity::Low;
    assert_eq!(detection(&sensed), json!({"type": "semantic_vad", "silence_duration_ms": 800}));
}

/// Qwen's turn detection has no word for it, so it stops its replies and answers by itself, whatever
/// a session would like: which its capabilities say, and a session refuses what needs more.
#[test]
fn a_server_that_always_answers_and_interrupts_says_so() {
    for dialect in Dialect::ALL {
        let mut config = config(dialect);
        config.policies.activity.handling = ActivityHandling::NoInterruption;
        config.policies.activity.session_answers = true;
        let capabilities = client(&config).capabilities().clone();
        let always = dialect == Qwen;
        assert_eq!(capabilities.interrupts, always, "{dialect}");
        assert_eq!(capabilities.session_answers, !always, "{dialect}");
        config.voice_activity = VoiceActivity::Manual;
        assert!(!client(&config).capabilities().interrupts, "{dialect}");
    }
}

#[test]
fn thinking_is_asked_for_in_its_words() {
    let asked = |dialect, level| {
        let mut config = config(dialect);
        if dialect == Azure {
            config.model = Some("gpt-realtime-2".into());
        }
        config.policies.thinking.level = Some(level);
        let session = session(&config);
        (session["reasoning"].clone(), session["reasoning_effort"].clone())
    };
    for dialect in Dialect::ALL {
        let nothing = (Value::Null, Value::Null);
        let (off, medium) = match dialect {
            Ga | Azure => (
                (json!({"effort": "minimal"}), Value::Null),
                (json!({"effort": "medium"}), Value::Null),
            ),
            Xai => {
                ((json!({"effort": "none"}), Value::Null), (json!({"effort": "high"}), Value::Null))
            }
            VoiceLive => ((Value::Null, json!("minimal")), (Value::Null, json!("medium"))),
            _ => (nothing.clone(), nothing),
        };
        assert_eq!(asked(dialect, ThinkingLevel::Off), off, "{dialect}");
        assert_eq!(asked(dialect, ThinkingLevel::Medium), medium, "{dialect}");
    }
}

#[test]
fn names_and_terms_go_to_the_transcriber() {
    for dialect in Dialect::ALL {
        let mut config = with(config(dialect), &[("transcription_model", json!("m"))]);
        config.vocabulary_hint = Some("Anna, Zoë".into());
        config.locale = Some("en-GB".into());
        let session = session(&config);
        let nested = session.pointer("/audio/input/transcription").cloned();
        let told = nested.unwrap_or_else(|| session["input_audio_transcription"].clone());
        let expected = match dialect {
            VoiceLive => {
                json!({"model": "m", "language": "en", "phrase_list": ["Anna", "Zoë"]})
            }
            Xai => {
                json!({"model": "m", "language_hint": "en-GB", "keyterms": ["Anna", "Zoë"]})
            }
            Qwen => json!({"model": "m"}),
            _ => json!({"model": "m", "language": "en", "prompt": "Anna, Zoë"}),
        };
        assert_eq!(told, expected, "{dialect}");
    }
}

#[test]
fn a_voice_is_written_as_its_vendor_does() {
    for (dialect, name, written) in [
        (Ga, "voice_1", json!({"id": "voice_1"})),
        (Xai, "voice_1", json!("voice_1")),
        (Qwen, "Cherry", json!("Cherry")),
        (VoiceLive, "alloy", json!("alloy")),
        (
            VoiceLive,
            "en-US-Ava:DragonHDLatestNeural",
            json!({"type": "azure-standard", "name": "en-US-Ava:DragonHDLatestNeural"}),
        ),
    ] {
        let session = session(&config(dialect).voice(name));
        let nested = session.pointer("/audio/output/voice").cloned();
        assert_eq!(nested.unwrap_or_else(|| session["voice"].clone()), written, "{dialect}");
    }
}

/// An option that a vendor has no word for would make it refuse the whole session.
#[test]
fn options_without_meaning_are_listed_and_not_sent() {
    let all = [
        ("include", json!(["item.input_audio_transcription.logprobs"])),
        ("max_output_tokens", json!(100)),
        ("noise_reduction", json!("near_field")),
        ("parallel_tool_calls", json!(true)),
        ("prompt", json!({"id": "p"})),
        ("speed", json!(1.1)),
        ("tool_choice", json!("auto")),
        ("tracing", json!("auto")),
        ("truncation", json!("auto")),
    ];
    for (dialect, unsupported) in [
        (Ga, &[][..]),
        (Beta, &["include", "parallel_tool_calls", "prompt", "truncation"]),
        (
            VoiceLive,
            &["include", "parallel_tool_calls", "prompt", "speed", "tracing", "truncation"],
        ),
        (
            Xai,
            &[
                "include",
                "noise_reduction",
                "parallel_tool_calls",
                "prompt",
                "speed",
                "tracing",
                "truncation",
            ],
        ),
        (
            Qwen,
            &[
                "include",
                "max_output_tokens",
                "noise_reduction",
                "parallel_tool_calls",
                "prompt",
                "speed",
                "tool_choice",
                "tracing",
                "truncation",
            ],
        ),
    ] {
        let config = with(config(dialect), &all);
        let listed = client(&config).capabilities().unsupported_options.clone();
        assert_eq!(listed.iter().map(|id| &**id).collect::<Vec<_>>(), unsupported, "{dialect}");
        let text = session(&config).to_string();
        for (id, _) in &all {
            let key = match *id {
                "max_output_tokens" => "output_tokens",
                id => id,
            };
            assert_eq!(text.contains(key), !unsupported.contains(id), "{dialect} {id} {text}");
        }
    }
}

#[test]
fn a_context_is_shortened_where_the_server_can_be_told() {
    for dialect in Dialect::ALL {
        let mut config = config(dialect);
        config.policies.context_compression.enabled = false;
        let told = session(&config)["truncation"].clone();
        let listed = client(&config).capabilities().unsupported_options.clone();
        if matches!(dialect, Ga | Azure) {
            assert_eq!((told, listed.len()), (json!("disabled"), 0), "{dialect}");
        } else {
            assert_eq!(told, Value::Null, "{dialect}");
            assert_eq!(listed.iter().map(|id| &**id).collect::<Vec<_>>(), ["context_compression"]);
        }
    }
}

/// What a vendor alone has goes into the session as it is.
#[test]
fn a_vendors_own_keys_are_passed_on() {
    let config = with(
        config(VoiceLive),
        &[(
            "session",
            json!({
                "temperature": 0.7,
                "input_audio_echo_cancellation": {"type": "server_echo_cancellation"},
                "turn_detection": {"remove_filler_words": true, "interrupt_response": false},
            }),
        )],
    );
    let session = session(&config);
    assert_eq!(session["temperature"], 0.7);
    assert_eq!(session["input_audio_echo_cancellation"]["type"], "server_echo_cancellation");
    assert_eq!(
        session["turn_detection"],
        json!({"type": "server_vad", "create_response": true, "interrupt_response": false,
            "remove_filler_words": true})
    );
    let wrong = with(super::config(Ga), &[("session", json!("fast"))]);
    assert!(matches!(Client::new(&wrong, None), Err(LiveError::InvalidConfig(_))));
    let _ = OpenAi::new().dialect(VoiceLive);
}
