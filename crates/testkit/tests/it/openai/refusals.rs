//! What the vendor refuses, the server refuses.

use antiphon_testkit::openai::{Reply, Rule, Script};

use super::*;

#[tokio::test(start_paused = true)]
async fn an_update_with_one_unknown_key_is_dropped_whole() {
    let (mut client, _) = Client::greeted(&auto()).await;
    let session = json!({"type": "realtime", "instructions": "new", "modalities": ["audio"]});
    let error = client.refused(json!({"type": "session.update", "session": session})).await;
    assert_eq!(error["code"], "unknown_parameter");
    assert_eq!(error["param"], "session.modalities");
    let session = client.update(json!({})).await;
    assert_ne!(session["instructions"], "new");
}

#[tokio::test(start_paused = true)]
async fn updates_must_make_sense() {
    let (mut client, _) = Client::greeted(&auto()).await;
    for (session, code, param) in [
        (json!({"instructions": "x"}), "missing_required_parameter", "session.type"),
        (json!({"type": "transcription"}), "invalid_value", "session.type"),
        (
            json!({"type": "realtime", "audio": {"output": {"speed": 2}}}),
            "invalid_value",
            "session.audio.output.speed",
        ),
        (
            json!({"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}}),
            "invalid_value",
            "session.audio.input.format.rate",
        ),
        (
            json!({"type": "realtime", "output_modalities": ["text", "audio"]}),
            "invalid_value",
            "session.output_modalities",
        ),
        (
            json!({"type": "realtime", "max_output_tokens": 5_000}),
            "invalid_value",
            "session.max_output_tokens",
        ),
    ] {
        let error = client.refused(json!({"type": "session.update", "session": session})).await;
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!(param)), "{session}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_voice_stays_once_it_was_heard() {
    let (mut client, _) = Client::greeted(&auto()).await;
    let voice = json!({"type": "realtime", "audio": {"output": {"voice": "cedar"}}});
    client.update(voice.clone()).await;
    client.send(json!({"type": "response.create"})).await;
    client.until("response.done").await;
    client.update(voice).await;
    let other = json!({"type": "realtime", "audio": {"output": {"voice": "alloy"}}});
    let error = client.refused(json!({"type": "session.update", "session": other})).await;
    assert_eq!(error["code"], "cannot_update_voice");
}

#[tokio::test(start_paused = true)]
async fn one_response_at_a_time_and_none_to_cancel() {
    let script = Script::auto().reply(Rule::always(Reply::spoken("Long.", 5_000)));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    let error = client.refused(json!({"type": "response.cancel"})).await;
    assert_eq!(error["code"], "response_cancel_not_active");
    client.send(json!({"type": "response.create"})).await;
    client.expect("response.created").await;
    client.expect("rate_limits.updated").await;
    let error = client.refused(json!({"type": "response.create"})).await;
    assert_eq!(error["code"], "conversation_already_has_active_response");
    let done = client.until("response.done").await.pop().unwrap();
    assert_eq!(done["response"]["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn items_that_cannot_be_are_refused() {
    let (mut client, _) = Client::greeted(&auto()).await;
    let message = |role: &str, kind: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": "x"}]});
    let mut long = message("user", "input_text");
    long["id"] = "x".repeat(33).into();
    let call = "c".repeat(33);
    for (item, code) in [
        (long, "string_above_max_length"),
        (
            json!({"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"}),
            "string_above_max_length",
        ),
        (message("assistant", "output_audio"), "invalid_value"),
        (message("user", "output_text"), "invalid_value"),
        (
            json!({"type": "function_call_output", "call_id": "call_no", "output": ""}),
            "invalid_tool_call_id",
        ),
        (json!({"type": "nonsense"}), "invalid_value"),
    ] {
        let error = client.refused(json!({"type": "conversation.item.create", "item": item})).await;
        assert_eq!(error["code"], code, "{item}");
    }
    let create = json!({"type": "conversation.item.create", "previous_item_id": "item_no",
        "item": message("user", "input_text")});
    assert_eq!(client.refused(create).await["param"], "previous_item_id");
    let mut twice = message("user", "input_text");
    twice["id"] = "same".into();
    let create = json!({"type": "conversation.item.create", "item": twice});
    client.send(create.clone()).await;
    client.until("conversation.item.done").await;
    client.refused(create).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_items_and_audio_that_was_never_spoken_are_refused() {
    let script = Script::auto().reply(Rule::always(Reply::spoken("Hi.", 500)));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    for action in ["delete", "retrieve", "truncate"] {
        let event = json!({"type": format!("conversation.item.{action}"), "item_id": "item_no",
            "content_index": 0, "audio_end_ms": 0});
        let event = match action {
            "truncate" => event,
            _ => json!({"type": event["type"], "item_id": "item_no"}),
        };
        let error = client.refused(event).await;
        assert_eq!(error["code"], format!("item_{action}_invalid_item_id"));
    }
    let user = client.say("x").await;
    let truncate = |id: &str, ms: u64| json!({"type": "conversation.item.truncate", "item_id": id, "content_index": 0, "audio_end_ms": ms});
    let error = client.refused(truncate(&user, 0)).await;
    assert_eq!(error["message"], "Only model output audio messages can be truncated.");
    client.send(json!({"type": "response.create"})).await;
    let done = client.until("response.done").await.pop().unwrap();
    let id = done["response"]["output"][0]["id"].as_str().unwrap().to_owned();
    let error = client.refused(truncate(&id, 501)).await;
    assert!(error["message"].as_str().unwrap().contains("500ms is already shorter than 501ms"));
    client.send(truncate(&id, 500)).await;
    client.expect("conversation.item.truncated").await;
}

#[tokio::test(start_paused = true)]
async fn too_little_audio_is_no_turn() {
    let (mut client, _) = Client::greeted(&auto()).await;
    client.update(json!({"audio": {"input": {"turn_detection": null}}})).await;
    let commit = json!({"type": "input_audio_buffer.commit"});
    let error = client.refused(commit.clone()).await;
    assert_eq!(error["code"], "input_audio_buffer_commit_empty");
    client.append(&[0; 99 * 48]).await;
    client.refused(commit.clone()).await;
    client.append(&[0; 48]).await;
    client.send(commit).await;
    client.expect("input_audio_buffer.committed").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_event_is_refused_and_the_connection_goes_on() {
    let (mut client, _) = Client::greeted(&auto()).await;
    for (text, code) in [
        ("{\"type\":", "invalid_event"),
        ("[]", "missing_required_parameter"),
        ("{}", "missing_required_parameter"),
        (r#"{"type":"response.crate"}"#, "invalid_value"),
        (r#"{"type":"input_audio_buffer.append"}"#, "missing_required_parameter"),
        (r#"{"type":"input_audio_buffer.append","audio":"!!"}"#, "invalid_value"),
        (r#"{"type":"input_audio_buffer.commit","force":true}"#, "unknown_parameter"),
        (r#"{"type":"output_audio_buffer.clear"}"#, "invalid_event"),
    ] {
        client.socket.send(Message::text(text)).await.unwrap();
        assert_eq!(client.expect("error").await["error"]["code"], code, "{text}");
    }
    client.socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(client.expect("error").await["error"]["code"], "invalid_event");
    let metadata: Value = (0..17)
        .map(|n| (n.to_string(), Value::from("x")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let create = json!({"type": "response.create", "response": {"metadata": metadata}});
    assert_eq!(client.refused(create).await["param"], "response.metadata");
    client.update(json!({})).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_transcribes_does_not_respond() {
    let mut client =
        Client::try_connect(&auto(), "/v1/realtime?intent=transcription", &[]).await.unwrap();
    let created = client.expect("session.created").await;
    assert_eq!(created["session"]["type"], "transcription");
    client.refused(json!({"type": "response.create"})).await;
    let audio = json!({"input": {"transcription": {"model": "whisper-1"}, "turn_detection": null}});
    let session = json!({"type": "transcription", "audio": audio});
    client.send(json!({"type": "session.update", "session": session})).await;
    client.expect("session.updated").await;
    client.append(&vec![0; 48 * 200]).await;
    client.send(json!({"type": "input_audio_buffer.commit"})).await;
    client.until("conversation.item.input_audio_transcription.completed").await;
}

#[tokio::test(start_paused = true)]
async fn the_beta_is_no_more() {
    let beta = [("openai-beta", "realtime=v1")];
    let mut client = Client::try_connect(&auto(), "/v1/realtime?model=m", &beta).await.unwrap();
    assert_eq!(client.expect("error").await["error"]["code"], "beta_api_shape_disabled");
    let Some(Ok(Message::Close(Some(close)))) = client.message().await else { panic!() };
    assert_eq!(u16::from(close.code), 4000);
}
