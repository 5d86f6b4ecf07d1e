//! What an adapter for several dialects must parameterise, a test a row. Each says what the vendors'
//! documentation says; nothing here reads the table that it tests.

use std::time::Duration;

use antiphon_live::{
    LiveCommand, LiveConfig, LiveError, LiveEvent, Resumption, Secrets, WireProtocol,
};
use antiphon_openai::wire::{Dialect, Dialect::*, ServerEvent};
use antiphon_types::{AudioFormat, ToolResponse};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{client, clock, config, ready, session, with};
use crate::client::talk::{Talk, short};

/// The address, the header of the key, and the subprotocols.
fn handshake(config: &LiveConfig, key: &str) -> (String, Vec<String>, Vec<String>) {
    let secrets = Secrets { bearer: Some(SecretString::from(key)) };
    let handshake = client(config).handshake(config, &secrets, None).unwrap();
    let headers = handshake.headers.iter();
    let headers = headers.map(|(name, value)| format!("{name}: {}", value.expose_secret()));
    (handshake.url, headers.collect(), handshake.subprotocols)
}

/// OpenAI: `wss://api.openai.com/v1/realtime?model=`. Azure: "deployment name, not model", GA without
/// a version, the preview with `api-version` and `deployment`. Voice Live: `api-version` and `model`,
/// or an agent's id. Inworld: `key` is a session id, `protocol=realtime`.
#[test]
fn row_01_addresses() {
    for (dialect, url) in [
        (Ga, "wss://api.openai.com/v1/realtime?model=gpt-realtime-2"),
        (Beta, "wss://api.openai.com/v1/realtime?model=gpt-realtime-2"),
        (Azure, "wss://res.openai.azure.com/openai/v1/realtime?model=dep%201"),
        (
            AzurePreview,
            "wss://res.openai.azure.com/openai/realtime?api-version=2025-04-01-preview\
             &deployment=dep%201",
        ),
        (
            VoiceLive,
            "wss://res.services.ai.azure.com/voice-live/realtime?api-version=2026-07-15\
             &model=dep%201",
        ),
        (Xai, "wss://api.x.ai/v1/realtime?model=grok-voice-latest"),
        (
            Qwen,
            "wss://dashscope-intl.aliyuncs.com/api-ws/v1/realtime?model=qwen3-omni-flash-realtime",
        ),
        (Inworld, "wss://api.inworld.ai/api/v1/realtime/session?protocol=realtime&key=s1"),
    ] {
        assert_eq!(handshake(&config(dialect), "k").0, url, "{dialect}");
    }
    let agent = with(
        config(VoiceLive),
        &[
            ("agent_id", json!("a 1")),
            ("project_id", json!("p")),
            ("api_version", json!("2025-10-01")),
        ],
    );
    assert_eq!(
        handshake(&agent, "k").0,
        "wss://res.services.ai.azure.com/voice-live/realtime?agent_id=a%201&project_id=p\
         &api-version=2025-10-01"
    );
    let mut beijing = config(Qwen);
    beijing.endpoint = Some("wss://w.cn-beijing.maas.aliyuncs.com".into());
    assert_eq!(
        handshake(&beijing, "k").0,
        "wss://w.cn-beijing.maas.aliyuncs.com/api-ws/v1/realtime?model=qwen3-omni-flash-realtime"
    );
}

/// OpenAI, xAI and Qwen: Bearer. Azure and Voice Live: `api-key`, or Entra's token as Bearer.
/// Inworld: `Basic <key>` or Bearer JWT. Only the beta has a header of its own.
#[test]
fn row_02_the_header_of_the_key() {
    for (dialect, key, token) in [
        (Ga, "Authorization: Bearer k", "Authorization: Bearer a.b.c"),
        (Beta, "Authorization: Bearer k", "Authorization: Bearer a.b.c"),
        (Azure, "api-key: k", "Authorization: Bearer a.b.c"),
        (AzurePreview, "api-key: k", "Authorization: Bearer a.b.c"),
        (VoiceLive, "api-key: k", "Authorization: Bearer a.b.c"),
        (Xai, "Authorization: Bearer k", "Authorization: Bearer a.b.c"),
        (Qwen, "Authorization: Bearer k", "Authorization: Bearer a.b.c"),
        (Inworld, "Authorization: Basic k", "Authorization: Bearer a.b.c"),
    ] {
        let config = with(config(dialect), &[("organization", json!("org"))]);
        let mut rest: Vec<&str> = Vec::new();
        if matches!(dialect, Ga | Beta) {
            rest.push("OpenAI-Organization: org");
        }
        if dialect == Beta {
            rest.push("OpenAI-Beta: realtime=v1");
        }
        let headers = handshake(&config, "k").1;
        assert_eq!(headers[0], key, "{dialect}");
        assert_eq!(headers[1..], rest, "{dialect}");
        assert_eq!(handshake(&config, "a.b.c").1[0], token, "{dialect}");
    }
}

/// "Server-side SDKs offer none"; a server that wants one, such as Zoom's, gets it by option.
#[test]
fn row_03_subprotocols() {
    for dialect in Dialect::ALL {
        assert_eq!(handshake(&config(dialect), "k").2, Vec::<String>::new(), "{dialect}");
    }
    let zoom = with(config(Ga), &[("subprotocol", json!("voice-agent.zoom.v1"))]);
    assert_eq!(handshake(&zoom, "k").2, ["voice-agent.zoom.v1"]);
}

/// The beta's `conversation.item.created`, `response.audio.*`, `response.audio_transcript.*` and
/// `response.text.*`: Azure's preview, Voice Live and Qwen. GA names: Azure, xAI, Inworld. A client
/// of any understands both.
#[test]
fn row_04_names_of_events() {
    let names = [
        ("conversation.item.added", "conversation.item.created"),
        ("response.output_audio.delta", "response.audio.delta"),
        ("response.output_audio.done", "response.audio.done"),
        ("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
        ("response.output_audio_transcript.done", "response.audio_transcript.done"),
        ("response.output_text.delta", "response.text.delta"),
        ("response.output_text.done", "response.text.done"),
    ];
    for dialect in Dialect::ALL {
        let beta = matches!(dialect, Beta | AzurePreview | VoiceLive | Qwen);
        for (ga, older) in names {
            let said = |kind: &str| {
                json!({
                    "type": kind, "event_id": "e", "response_id": "r", "item_id": "i",
                    "output_index": 0, "content_index": 0, "delta": "AAAA", "text": "w",
                    "transcript": "w",
                    "item": {"type": "function_call_output", "call_id": "c", "output": ""},
                })
            };
            let event = ServerEvent::decode(&said(ga).to_string()).unwrap();
            let text = dialect.encode_server(&event).unwrap();
            let kind: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(kind["type"], if beta { older } else { ga }, "{dialect}");
            let mut told = Vec::new();
            for kind in [ga, older] {
                let mut talk = ready(&config(dialect));
                talk.created("r");
                talk.told();
                talk.server(said(kind));
                told.push(talk.told());
            }
            assert_eq!(told[0], told[1], "{dialect} {ga}");
        }
        let done = json!({"type": "conversation.item.done",
            "item": {"type": "message", "role": "user", "content": []}});
        let done = ServerEvent::decode(&done.to_string()).unwrap();
        let has = dialect.encode_server(&done).is_some();
        assert_eq!(has, matches!(dialect, Ga | Azure | Inworld), "{dialect}");
    }
}

/// GA nested; the beta, Azure's preview, Voice Live and Qwen flat; xAI nested with `voice` and
/// `turn_detection` at the top; Inworld nested with the model, since its address has none.
#[test]
fn row_05_the_shape_of_a_session() {
    let asked = |dialect| {
        let mut config = config(dialect).voice("alloy").instructions("Be brief.");
        config.provider_options.insert("max_output_tokens".into(), json!(100));
        if dialect == Inworld {
            config.model = Some("inworld/my-router".into());
        }
        session(&config)
    };
    let vad = json!({"type": "server_vad", "create_response": true, "interrupt_response": true});
    let pcm = json!({"type": "audio/pcm", "rate": 24_000});
    let nested = json!({
        "type": "realtime", "output_modalities": ["audio"], "instructions": "Be brief.",
        "audio": {
            "input": {"format": pcm, "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": vad},
            "output": {"format": pcm, "voice": "alloy"},
        },
        "tools": [], "max_output_tokens": 100,
    });
    let flat = json!({
        "modalities": ["text", "audio"], "instructions": "Be brief.",
        "input_audio_format": "pcm16", "output_audio_format": "pcm16", "voice": "alloy",
        "input_audio_transcription": {"model": "gpt-4o-mini-transcribe"}, "turn_detection": vad,
        "tools": [], "max_response_output_tokens": 100,
    });
    assert_eq!(asked(Ga), nested);
    assert_eq!(asked(Beta), flat);
    // A transcriber is a deployment, which only its owner knows.
    let mut azure = nested.clone();
    azure["audio"]["input"]["transcription"] = Value::Null;
    assert_eq!(asked(Azure), azure);
    let mut preview = flat.clone();
    preview["input_audio_transcription"] = Value::Null;
    assert_eq!(asked(AzurePreview), preview);
    let mut voice_live = flat.clone();
    voice_live["input_audio_sampling_rate"] = json!(24_000);
    voice_live["input_audio_transcription"] = json!({"model": "azure-speech"});
    assert_eq!(asked(VoiceLive), voice_live);
    assert_eq!(
        asked(Xai),
        json!({
            "type": "realtime", "output_modalities": ["audio"], "instructions": "Be brief.",
            "voice": "alloy", "turn_detection": vad,
            "audio": {
                "input": {"format": pcm, "transcription": {"model": "grok-transcribe"}},
                "output": {"format": pcm},
            },
            "tools": [], "max_output_tokens": 100, "resumption": {"enabled": true},
        })
    );
    assert_eq!(
        asked(Qwen),
        json!({
            "modalities": ["text", "audio"], "instructions": "Be brief.",
            "input_audio_format": "pcm16", "output_audio_format": "pcm24", "voice": "alloy",
            "input_audio_transcription": {"model": "gummy-realtime-v1"},
            "turn_detection": {"type": "server_vad"}, "tools": [],
        })
    );
    let mut inworld = nested;
    inworld["model"] = json!("inworld/my-router");
    inworld["audio"]["input"]["transcription"] = json!({"model": "inworld/inworld-stt-1"});
    assert_eq!(asked(Inworld), inworld);
}

/// OpenAI and Azure: 24 kHz and G.711. Voice Live: `input_audio_sampling_rate` 16 or 24 kHz in,
/// `pcm16`, `pcm16_8000hz`, `pcm16_16000hz` out, G.711. xAI: any of eight rates, G.711. Qwen: 16 kHz
/// in, 24 kHz out. Inworld: 24 kHz, G.711.
#[test]
fn row_06_formats_and_rates() {
    let rates = [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000];
    let taken = |dialect, direction: &str| -> Vec<u32> {
        let id = format!("{direction}_audio_rate");
        let config = |rate| with(config(dialect), &[(&id, json!(rate))]);
        let takes = |rate: &u32| antiphon_openai::Client::new(&config(*rate), None).is_ok();
        rates.iter().copied().filter(takes).collect()
    };
    for (dialect, input, output) in [
        (Ga, &[24_000][..], &[24_000][..]),
        (Beta, &[24_000], &[24_000]),
        (Azure, &[24_000], &[24_000]),
        (AzurePreview, &[24_000], &[24_000]),
        (VoiceLive, &[16_000, 24_000], &[8_000, 16_000, 24_000]),
        (Xai, &rates[..8], &rates[..8]),
        (Qwen, &[16_000], &[24_000]),
        (Inworld, &[24_000], &[24_000]),
    ] {
        assert_eq!(taken(dialect, "input"), input, "{dialect}");
        assert_eq!(taken(dialect, "output"), output, "{dialect}");
        let g711 = with(
            config(dialect),
            &[
                ("input_audio_format", json!("g711_ulaw")),
                ("output_audio_format", json!("g711_alaw")),
            ],
        );
        let made = antiphon_openai::Client::new(&g711, None);
        if dialect == Qwen {
            assert!(matches!(made, Err(LiveError::InvalidConfig(_))));
            continue;
        }
        let capabilities = made.unwrap().capabilities().clone();
        assert_eq!(
            (capabilities.input, capabilities.output),
            (AudioFormat::Mulaw8k, AudioFormat::Alaw8k),
        );
        let asked = session(&g711);
        if matches!(dialect, Beta | AzurePreview | VoiceLive) {
            assert_eq!(asked["input_audio_format"], "g711_ulaw");
            assert_eq!(asked["output_audio_format"], "g711_alaw");
        } else {
            assert_eq!(asked["audio"]["input"]["format"], json!({"type": "audio/pcmu"}));
            assert_eq!(asked["audio"]["output"]["format"], json!({"type": "audio/pcma"}));
        }
    }
    let slow = with(
        config(VoiceLive),
        &[("input_audio_rate", json!(16_000)), ("output_audio_rate", json!(8_000))],
    );
    let asked = session(&slow);
    assert_eq!(asked["input_audio_sampling_rate"], 16_000);
    assert_eq!(asked["output_audio_format"], "pcm16_8000hz");
    assert_eq!(client(&slow).capabilities().output, AudioFormat::pcm16(8_000));
    assert_eq!(client(&config(Qwen)).capabilities().input, AudioFormat::pcm16(16_000));
}

/// Qwen's tools are "nested Chat-Completions style"; all others' are flat.
#[test]
fn row_07_the_shape_of_a_tool() {
    let function =
        json!({"name": "clock", "description": "The time.", "parameters": {"type": "object"}});
    let mut flat = function.clone();
    flat["type"] = json!("function");
    let nested = json!({"type": "function", "function": function});
    for dialect in Dialect::ALL {
        let expected = if dialect == Qwen { &nested } else { &flat };
        let config = config(dialect).host_tool(clock());
        assert_eq!(session(&config)["tools"][0], *expected, "{dialect}");
        let mut talk = ready(&config);
        talk.command(LiveCommand::UpdateTools([clock()].into()));
        assert_eq!(talk.sent_one()["session"]["tools"][0], *expected, "{dialect}");
    }
}

/// GA: `added` and `done`. The beta and its heirs: `created`. xAI: "item added without done".
#[test]
fn row_08_how_an_item_is_acknowledged() {
    for dialect in Dialect::ALL {
        let mut talk = ready(&config(dialect));
        talk.output("c1");
        let sent = talk.sent_one();
        assert_eq!(sent["item"]["call_id"], "c1", "{dialect}");
        let kinds: &[&str] = match dialect {
            Beta | AzurePreview | VoiceLive | Qwen => &["conversation.item.created"],
            Xai => &["conversation.item.added"],
            _ => &["conversation.item.added", "conversation.item.done"],
        };
        for kind in kinds {
            talk.server(json!({"type": kind, "item": sent["item"]}));
        }
        assert_eq!(talk.told(), ["accepted c1"], "{dialect}");
    }
}

/// xAI's `….updated` "is cumulative (replace, do not append)", and "completed can come without
/// usage". All others append.
#[test]
fn row_09_transcripts_that_replace() {
    for dialect in Dialect::ALL {
        let config = with(config(dialect), &[("transcription_model", json!("m"))]);
        let mut talk = ready(&config);
        talk.committed("u1", None);
        let kind = "conversation.item.input_audio_transcription";
        if dialect == Xai {
            for words in ["What", "What time"] {
                talk.server(json!({"type": format!("{kind}.updated"), "item_id": "u1",
                    "transcript": words}));
            }
        } else {
            for words in ["What", " time"] {
                talk.server(json!({"type": format!("{kind}.delta"), "item_id": "u1",
                    "content_index": 0, "delta": words}));
            }
        }
        talk.server(json!({"type": format!("{kind}.completed"), "item_id": "u1",
            "content_index": 0, "transcript": "What time?"}));
        let expected = match dialect {
            Xai => ["committed u1", "user u1 =What", "user u1 =What time", "user u1 .What time?"],
            _ => ["committed u1", "user u1 +What", "user u1 + time", "user u1 .What time?"],
        };
        assert_eq!(talk.told(), expected, "{dialect}");
    }
}

/// Ping, warning, animation and the like change nothing, and are counted.
#[test]
fn row_10_events_that_nobody_knows() {
    let kinds: [(Dialect, &[&str]); 4] = [
        (Xai, &["ping"]),
        (
            VoiceLive,
            &[
                "warning",
                "response.audio_timestamp.delta",
                "response.audio_timestamp.done",
                "response.animation_viseme.delta",
                "response.animation_blendshapes.delta",
                "response.video.delta",
                "response.invocation.delta",
                "session.avatar.connecting",
                "output_audio_buffer.cleared",
            ],
        ),
        (Qwen, &["session.finished"]),
        (Ga, &["future.event"]),
    ];
    for (dialect, kinds) in kinds {
        for kind in kinds {
            let mut talk = ready(&config(dialect));
            talk.created("r");
            talk.told();
            talk.server(json!({"type": kind, "response_id": "r", "timestamp": 7, "delta": "x"}));
            assert_eq!(talk.told(), [format!("ignored {kind}")], "{dialect}");
            assert!(talk.sent().is_empty(), "{dialect} {kind}");
        }
    }
    // Before the session has begun they are no first word.
    let mut talk = Talk::opened(client(&config(Xai)));
    talk.server(json!({"type": "ping", "timestamp": 7}));
    assert!(talk.sent().is_empty());
    talk.server(json!({"type": "conversation.created", "conversation": {"id": "c"}}));
    assert_eq!(talk.sent_kinds(), ["session.update"]);
}

/// OpenAI, Azure, Voice Live and xAI cut an item to what was heard; Qwen ("no truncate") and Inworld
/// do not.
#[test]
fn row_11_cutting_to_what_was_heard() {
    for dialect in Dialect::ALL {
        let cuts = !matches!(dialect, Qwen | Inworld);
        let mut talk = ready(&config(dialect));
        let command = LiveCommand::Truncate {
            item: "i".into(),
            content_index: 0,
            audio_end_ms: 20,
            heard_text: None,
        };
        let allowed = talk.client.capabilities().check(&command);
        assert_eq!(allowed.is_ok(), cuts, "{dialect}");
        talk.created("r");
        talk.voice("r", "i", 100);
        talk.cancelled("r", "turn_detected");
        if cuts {
            talk.command(command);
            let sent = talk.sent_one();
            assert_eq!((&sent["item_id"], &sent["audio_end_ms"]), (&json!("i"), &json!(20)));
        }
    }
}

/// Everywhere the client asks for the reply after a tool's output; a server that is set up to go on
/// by itself is not asked.
#[test]
fn row_12_the_reply_after_a_tool() {
    for dialect in Dialect::ALL {
        let mut talk = ready(&config(dialect).host_tool(clock()));
        assert!(!talk.client.capabilities().replies_after_tools, "{dialect}");
        talk.created("r1");
        talk.call("r1", "c1");
        talk.output("c1");
        assert!(talk.sent().is_empty(), "{dialect}: its reply is not over");
        talk.done("r1", "completed");
        talk.command(LiveCommand::CreateReply { request: 1 });
        let sent = talk.sent();
        assert_eq!(sent[0]["item"]["type"], "function_call_output", "{dialect}");
        let mut create = json!({"type": "response.create", "event_id": "reply-1",
            "response": {"metadata": {"request": "reply-1"}}});
        if dialect == Qwen {
            create = json!({"type": "response.create", "event_id": "reply-1"});
        }
        assert_eq!(sent[1], create, "{dialect}");
        // A server that returns no metadata answers what it was asked.
        talk.created("r2");
        assert!(talk.told().contains(&"start r2 for 1".to_owned()), "{dialect}");
    }
    let goes_on = with(config(Inworld), &[("replies_after_tools", json!(true))]);
    assert!(client(&goes_on).capabilities().replies_after_tools);
}

/// OpenAI's sessions last 60 minutes, and OpenAI and Azure tell when one ends. Qwen does not; its
/// sessions last "30–120 min by model", so that each is left before the shortest ends. Of Voice Live,
/// xAI and Inworld nothing is known.
#[test]
fn row_13_the_limit_of_a_session() {
    for dialect in Dialect::ALL {
        let minutes = match dialect {
            Ga => Some(60),
            Qwen => Some(30),
            _ => None,
        };
        let limit = client(&config(dialect)).capabilities().connection_limit;
        assert_eq!(limit, minutes.map(|minutes| Duration::from_secs(60 * minutes)), "{dialect}");
        let mut talk = ready(&config(dialect));
        talk.pass(Duration::from_secs(29 * 60 - 1));
        assert_eq!(talk.told(), Vec::<String>::new(), "{dialect}");
        talk.pass(Duration::from_secs(2));
        let expected: &[&str] = if dialect == Qwen { &["going away Some(60s)"] } else { &[] };
        assert_eq!(talk.told(), expected, "{dialect}");
    }
    for dialect in [Ga, Azure, AzurePreview] {
        let unix_time = Duration::from_secs(1_800_000_000);
        let client = client(&config(dialect)).unix_time(unix_time);
        let mut talk = Talk::opened(client);
        talk.server(json!({"type": "session.created", "session": {"expires_at": 1_800_001_800}}));
        talk.server(json!({"type": "session.updated", "session": {"expires_at": 1_800_001_800}}));
        talk.told();
        talk.pass(Duration::from_secs(1_739));
        assert_eq!(talk.told(), Vec::<String>::new(), "{dialect}");
        talk.pass(Duration::from_secs(2));
        assert_eq!(talk.told(), ["going away Some(60s)"], "{dialect}");
    }
}

/// xAI: "usage numbers often missing". No reply waits for them, in any dialect.
#[test]
fn row_14_usage_is_optional() {
    for dialect in Dialect::ALL {
        for usage in [Value::Null, json!({"input_tokens": 3, "output_tokens": 4})] {
            let mut talk = ready(&config(dialect));
            talk.created("r");
            talk.told();
            let response = json!({"id": "r", "status": "completed", "usage": usage});
            talk.server(json!({"type": "response.done", "response": response}));
            let Some(LiveEvent::ReplyDone { usage: told, .. }) = talk.out.events.pop_front() else {
                panic!("{dialect}: the reply is not over")
            };
            assert_eq!(told.map(|usage| usage.input_text_tokens), usage["input_tokens"].as_u64());
            assert!(talk.out.events.is_empty(), "{dialect}");
        }
    }
}

/// What the rows above do not name: who runs the calls of tools that nobody declared. xAI: "server
/// tool calls appear as function_call items that must not be answered by the client".
#[test]
fn calls_of_the_servers_own_tools_are_left_to_it() {
    for dialect in Dialect::ALL {
        let mut talk = ready(&config(dialect).host_tool(clock()));
        talk.created("r");
        talk.told();
        for name in ["clock", "web_search"] {
            let item = json!({"type": "function_call", "id": name, "call_id": name, "name": name,
                "arguments": "{}"});
            talk.server(json!({"type": "response.output_item.done", "response_id": "r",
                "output_index": 0, "item": item}));
        }
        let second = match dialect {
            Xai => "ignored a call that is not to be answered",
            _ => "call web_search web_search",
        };
        assert_eq!(talk.told(), ["call clock clock", second], "{dialect}");
        let response = ToolResponse::new("clock", "clock", serde_json::Map::new());
        talk.command(LiveCommand::ToolResponse(response));
        talk.done("r", "completed");
        assert_eq!(talk.sent_kinds(), ["conversation.item.create"], "{dialect}");
        let told: Vec<String> = talk.out.events.iter().map(short).collect();
        assert_eq!(told, ["done r Completed"], "{dialect}");
    }
}

/// xAI: "capture the server's `conversation.created.conversation.id` and pass it back as
/// `?conversation_id=<id>` on reconnect (with the same opt-in)"; what was cached is "echoed back as
/// `conversation.item.created` events"; "history is dropped after 30 minutes of inactivity". Nobody else
/// goes on with a conversation.
#[test]
fn a_conversation_is_gone_on_with_where_the_server_keeps_it() {
    let created =
        |id: &str| json!({"type": "conversation.created", "conversation": {"id": id}, "x": 1});
    let updated = json!({"type": "session.updated", "session": {}});
    for dialect in Dialect::ALL {
        let keeps = dialect == Xai;
        let capabilities = client(&config(dialect)).capabilities().clone();
        assert_eq!(capabilities.resumption, keeps, "{dialect}");
        let half_an_hour = keeps.then(|| Duration::from_secs(30 * 60));
        assert_eq!(capabilities.resumption_valid, half_an_hour, "{dialect}");
        let mut talk = Talk::opened(client(&config(dialect)));
        talk.server(created("conv_1"));
        talk.server(updated.clone());
        let told: &[&str] = if keeps { &["ready", "resumable"] } else { &["ready"] };
        assert_eq!(talk.told(), told, "{dialect}");
    }

    let handle = Resumption { handle: "conv 1".to_owned().into() };
    let resuming = || Talk::opened(client(&config(Xai).host_tool(clock())).resuming(&handle));
    let secrets = Secrets { bearer: Some(SecretString::from("k")) };
    let url = client(&config(Xai)).handshake(&config(Xai), &secrets, Some(&handle)).unwrap().url;
    let address = "wss://api.x.ai/v1/realtime?model=grok-voice-latest";
    assert_eq!(url, format!("{address}&conversation_id=conv%201"));

    let mut talk = resuming();
    talk.server(created("conv 1"));
    assert_eq!(talk.sent_one()["session"]["resumption"], json!({"enabled": true}));
    talk.server(updated.clone());
    assert_eq!(talk.told(), ["ready", "resumable"]);
    let output = |call: &str| {
        json!({"type": "conversation.item.created", "item": {"id": call, "call_id": call,
            "type": "function_call_output", "output": "{}"}})
    };
    talk.server(output("c0"));
    assert_eq!(talk.told(), ["ignored an output of an earlier connection"]);
    talk.created("r1");
    talk.call("r1", "c1");
    assert_eq!(talk.told(), ["start r1", "not_resumable", "call c1 clock"]);
    talk.output("c1");
    talk.done("r1", "completed");
    assert_eq!(talk.told(), ["done r1 Completed", "resumable"]);
    assert_eq!(talk.sent_kinds(), ["conversation.item.create"], "and nothing of the history");
    talk.server(output("c1"));
    assert_eq!(talk.told(), ["accepted c1", "resumable"]);

    // Another conversation, or none that anybody names, is not the one that was asked for.
    let error = resuming().try_server(created("conv 2")).unwrap_err();
    assert!(matches!(error, LiveError::NoResumableSession), "{error}");
    let mut talk = resuming();
    talk.server(json!({"type": "session.created", "session": {}}));
    let error = talk.try_server(updated.clone()).unwrap_err();
    assert!(matches!(error, LiveError::NoResumableSession), "{error}");

    // Who does not want it kept.
    let forgets = with(config(Xai), &[("session", json!({"resumption": {"enabled": false}}))]);
    assert_eq!(session(&forgets)["resumption"], json!({"enabled": false}));
    assert!(!client(&forgets).capabilities().resumption);
    let mut talk = Talk::opened(client(&forgets));
    talk.server(created("conv_1"));
    talk.server(updated);
    assert_eq!(talk.told(), ["ready"]);
}
