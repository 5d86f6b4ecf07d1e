//! The scripted server in each dialect: where it is, whom it lets in, what it says and refuses.

use antiphon_openai::wire::Dialect;
use antiphon_testkit::{
    openai::{Reply, Rule, Script},
    voice_like,
};

use super::*;

fn server(dialect: Dialect) -> Server {
    Server::new(Script::auto().dialect(dialect))
}

/// An address of the dialect and a header with a key for it.
fn door(dialect: Dialect) -> (&'static str, (&'static str, &'static str)) {
    let bearer = ("authorization", "Bearer k");
    match dialect {
        Dialect::Azure => ("/openai/v1/realtime?model=dep", ("api-key", "k")),
        Dialect::AzurePreview => {
            ("/openai/realtime?api-version=2025-04-01-preview&deployment=dep", ("api-key", "k"))
        }
        Dialect::VoiceLive => {
            ("/voice-live/realtime?api-version=2025-10-01&model=gpt-realtime", ("api-key", "k"))
        }
        Dialect::Qwen => ("/api-ws/v1/realtime?model=qwen3-omni-flash-realtime", bearer),
        Dialect::Inworld => {
            ("/api/v1/realtime/session?key=s&protocol=realtime", ("authorization", "Basic k"))
        }
        _ => ("/v1/realtime?model=m", bearer),
    }
}

async fn enter(server: &Server, dialect: Dialect) -> Client {
    let (path, header) = door(dialect);
    let none = ("authorization", "");
    let mut client = Client::try_connect(server, path, &[none, header]).await.unwrap();
    if dialect == Dialect::Xai {
        client.expect("conversation.created").await;
    }
    client.expect("session.created").await;
    client
}

async fn status(server: &Server, path: &str, headers: &[(&str, &str)]) -> u16 {
    match Client::try_connect(server, path, headers).await {
        Err(Error::Http(answer)) => answer.status().as_u16(),
        Err(other) => panic!("{other}"),
        Ok(_) => 101,
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_to_the_wrong_door_is_not_let_in() {
    let none = ("authorization", "");
    for dialect in Dialect::ALL {
        let server = server(dialect);
        let (path, header) = door(dialect);
        assert_eq!(status(&server, path, &[none, header]).await, 101, "{dialect}");
        assert_eq!(status(&server, path, &[none]).await, 401, "{dialect}: without a key");
        let own = path.split('?').next().unwrap();
        assert_eq!(status(&server, "/v1/chat?model=m", &[header]).await, 404, "{dialect}");
        let needs = !matches!(dialect, Dialect::Ga | Dialect::Beta | Dialect::Xai);
        let bare = status(&server, own, &[none, header]).await;
        assert_eq!(bare == 404, needs, "{dialect}: without what the address must hold");
        // A key in another vendor's way is none.
        let foreign = match header.0 {
            "api-key" => ("authorization", "Basic k"),
            _ => ("api-key", "k"),
        };
        let lenient = matches!(dialect, Dialect::Ga | Dialect::Beta);
        let expected = if lenient { 101 } else { 401 };
        assert_eq!(status(&server, path, &[none, foreign]).await, expected, "{dialect}");
    }
    // A browser's way, and an agent in place of a model.
    let path = "/voice-live/realtime?api-version=1&agent_id=a&api-key=k";
    assert_eq!(status(&server(Dialect::VoiceLive), path, &[none]).await, 101);
}

#[tokio::test(start_paused = true)]
async fn quirks_26_27_another_dialects_session_is_refused_whole() {
    let nested = json!({"output_modalities": ["audio"]});
    let flat = json!({"modalities": ["text"]});
    for (dialect, session, param) in [
        (Dialect::AzurePreview, nested.clone(), "session.output_modalities"),
        (Dialect::VoiceLive, nested.clone(), "session.output_modalities"),
        (Dialect::Qwen, nested, "session.output_modalities"),
        (Dialect::Azure, json!({"type": "realtime", "modalities": ["text"]}), "session.modalities"),
        (Dialect::Xai, flat.clone(), "session.modalities"),
        (Dialect::Inworld, flat, "session.modalities"),
        (Dialect::Beta, json!({"type": "realtime"}), "session.type"),
        (
            Dialect::Qwen,
            json!({"turn_detection": {"type": "server_vad", "create_response": true}}),
            "session.turn_detection.create_response",
        ),
        (
            Dialect::VoiceLive,
            json!({"input_audio_transcription": {"model": "azure-speech", "prompt": "x"}}),
            "session.input_audio_transcription.prompt",
        ),
    ] {
        let server = server(dialect);
        let mut client = enter(&server, dialect).await;
        let error = client.refused(json!({"type": "session.update", "session": session})).await;
        assert_eq!(error["code"], "unknown_parameter", "{dialect} {error}");
        assert_eq!(error["param"], param, "{dialect}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_cannot_do_it_refuses() {
    let truncate = json!({"type": "conversation.item.truncate", "item_id": "i",
        "content_index": 0, "audio_end_ms": 1});
    let retrieve = json!({"type": "conversation.item.retrieve", "item_id": "i"});
    let text = json!({"type": "conversation.item.create", "item": {"type": "message",
        "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}});
    let flat = json!({"type": "session.update", "session": {"tools":
        [{"type": "function", "name": "f", "parameters": {}}]}});
    let nested = json!({"type": "session.update", "session": {"tools":
        [{"type": "function", "function": {"name": "f", "parameters": {}}}]}});
    let image = json!({"type": "input_image_buffer.append", "image": "AAAA"});
    let forced = json!({"type": "conversation.item.create", "item": {"type": "force_message",
        "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}});
    let thinks = json!({"type": "response.create", "response": {"metadata": {"a": "b"}}});
    for (dialect, event, param) in [
        (Dialect::Qwen, &truncate, "type"),
        (Dialect::Inworld, &truncate, "type"),
        (Dialect::Qwen, &retrieve, "type"),
        (Dialect::Xai, &retrieve, "type"),
        (Dialect::Qwen, &text, "item.type"),
        (Dialect::Qwen, &flat, "session.tools[0].function"),
        (Dialect::Qwen, &image, "image"),
        (Dialect::Qwen, &thinks, "response.metadata"),
        (Dialect::VoiceLive, &nested, "session.tools[0].name"),
        (Dialect::VoiceLive, &image, "type"),
        (Dialect::Ga, &forced, "item.type"),
        (Dialect::Inworld, &forced, "item.type"),
    ] {
        let server = server(dialect);
        let mut client = enter(&server, dialect).await;
        let error = client.refused(event.clone()).await;
        assert_eq!(error["param"], param, "{dialect} {event} {error}");
    }
    // A kind of turn detection that it does not have.
    let server = server(Dialect::Xai);
    let mut client = enter(&server, Dialect::Xai).await;
    let session = json!({"type": "realtime", "turn_detection": {"type": "semantic_vad"}});
    let error = client.refused(json!({"type": "session.update", "session": session})).await;
    assert_eq!(error["code"], "invalid_value", "{error}");
}

#[tokio::test(start_paused = true)]
async fn xai_says_things_its_own_way() {
    let server = Server::new(
        Script::auto()
            .dialect(Dialect::Xai)
            .transcript("What time is it?")
            .reply(Rule::on_text("time", Reply::spoken("Noon.", 400))),
    );
    let mut client = enter(&server, Dialect::Xai).await;
    let format = json!({"type": "audio/pcm", "rate": 16_000});
    let session = json!({"type": "realtime", "audio": {"input":
        {"format": format, "transcription": {"model": "grok-transcribe"}},
        "output": {"format": format}}});
    client.send(json!({"type": "session.update", "session": session})).await;
    let session = client.expect("session.updated").await["session"].clone();
    assert_eq!(session["turn_detection"]["type"], "server_vad");
    assert!(session.get("expires_at").is_none());
    let speech = voice_like(16_000, 600);
    client.append(&speech.data).await;
    client.append(&[0; 32 * 400]).await;
    let events = client.until("response.done").await;
    let heard: Vec<&str> = events
        .iter()
        .filter(|event| event["type"].as_str().unwrap().contains("transcription"))
        .map(|event| event["transcript"].as_str().unwrap())
        .collect();
    assert_eq!(heard, ["What ", "What time is it?", "What time is it?"]);
    let kinds = kinds(&events);
    assert!(kinds.contains(&"ping") && kinds.contains(&"conversation.item.added"));
    assert!(!kinds.contains(&"conversation.item.done") && !kinds.contains(&"rate_limits.updated"));
    let done = events.last().unwrap();
    assert!(done["response"].get("usage").is_none(), "{done}");
    // The voice has the rate that was asked for.
    let voice = events.iter().filter(|event| event["type"] == "response.output_audio.delta");
    let base64: usize = voice.map(|event| event["delta"].as_str().unwrap().len()).sum();
    assert!((400 * 32..400 * 32 + 64).contains(&(base64 * 3 / 4)), "{base64}");

    let item = json!({"type": "force_message", "role": "assistant",
        "content": [{"type": "output_text", "text": "Exactly this."}]});
    client.send(json!({"type": "conversation.item.create", "item": item})).await;
    let events = client.until("response.done").await;
    let said = &events.last().unwrap()["response"]["output"][0]["content"][0]["transcript"];
    assert_eq!(said, "Exactly this.");
}

#[tokio::test(start_paused = true)]
async fn qwen_hears_at_16_and_speaks_at_24() {
    let server = Server::new(
        Script::auto().dialect(Dialect::Qwen).reply(Rule::always(Reply::call("clock", json!({})))),
    );
    let mut client = enter(&server, Dialect::Qwen).await;
    let tool = json!({"type": "function", "function": {"name": "clock", "parameters": {}}});
    client.send(json!({"type": "session.update", "session": {"tools": [tool]}})).await;
    let session = client.expect("session.updated").await["session"].clone();
    assert_eq!(session["tools"][0], tool);
    assert_eq!(session["input_audio_format"], "pcm16");
    assert_eq!(session["output_audio_format"], "pcm24");
    // A second at 16,000 Hz.
    client.append(&voice_like(16_000, 600).data).await;
    client.append(&[0; 32 * 400]).await;
    let events = client.until("response.done").await;
    let stopped = events.iter().find(|event| event["audio_end_ms"].is_u64()).unwrap();
    assert!((750..=1_000).contains(&stopped["audio_end_ms"].as_u64().unwrap()), "{stopped}");
    assert!(kinds(&events).contains(&"conversation.item.created"), "{:?}", kinds(&events));
    client.send(json!({"type": "input_image_buffer.append", "image": "AAAA"})).await;
    assert!(client.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn xai_goes_on_with_a_conversation_that_it_was_asked_to_keep() {
    let server = server(Dialect::Xai);
    let (path, header) = door(Dialect::Xai);
    let none = ("authorization", "");
    let open = async |path: &str, keeps: bool| {
        let mut client = Client::try_connect(&server, path, &[none, header]).await.unwrap();
        let name = client.expect("conversation.created").await["conversation"]["id"].clone();
        client.expect("session.created").await;
        let session = json!({"type": "realtime", "resumption": {"enabled": keeps}});
        client.send(json!({"type": "session.update", "session": session})).await;
        client.expect("session.updated").await;
        (client, name.as_str().unwrap().to_owned())
    };
    let text = json!({"type": "conversation.item.create", "item": {"type": "message",
        "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}});
    let (mut client, name) = open(path, true).await;
    client.send(text.clone()).await;
    client.expect("conversation.item.added").await;
    client.send(json!({"type": "response.create"})).await;
    client.until("response.done").await;
    let (mut forgotten, other) = open(path, false).await;
    forgotten.send(text).await;
    forgotten.expect("conversation.item.added").await;
    drop((client, forgotten));

    let again = |name: &str| format!("{path}&conversation_id={name}");
    let (mut client, same) = open(&again(&name), true).await;
    assert_eq!(same, name);
    for role in ["user", "assistant"] {
        let item = client.expect("conversation.item.created").await["item"].clone();
        assert_eq!(item["role"], role, "{item}");
    }
    assert!(client.is_quiet());
    // Who does not ask for it is told nothing, and what is not known is another conversation.
    let (mut client, same) = open(&again(&name), false).await;
    assert_eq!(same, name);
    assert!(client.is_quiet());
    for unknown in [other.as_str(), "conv_99"] {
        let (mut client, new) = open(&again(unknown), true).await;
        assert_ne!(new, unknown);
        assert!(client.is_quiet());
    }
    // Half an hour is as long as it is kept.
    tokio::time::sleep(std::time::Duration::from_secs(30 * 60)).await;
    assert_ne!(open(&again(&name), true).await.1, name);
}
