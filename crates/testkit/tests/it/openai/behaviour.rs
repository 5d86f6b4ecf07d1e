//! What the behaving server does.

use antiphon_testkit::openai::{Reply, Rule, Script};

use super::*;

#[tokio::test(start_paused = true)]
async fn it_greets_with_the_whole_session_and_answers_an_update_with_it() {
    let (mut client, session) = Client::greeted(&auto()).await;
    assert_eq!(session["model"], "gpt-realtime");
    assert_eq!(session["audio"]["input"]["turn_detection"]["type"], "server_vad");
    assert!(session["expires_at"].is_u64() && session["id"].is_string());
    let session = client
        .update(json!({
            "instructions": "Be brief.",
            "audio": {
                "input": {
                    "transcription": {"model": "whisper-1"},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 400},
                },
                "output": {"voice": "cedar"},
            },
            "tracing": "auto",
        }))
        .await;
    assert_eq!(session["instructions"], "Be brief.");
    assert_eq!(session["audio"]["output"]["voice"], "cedar");
    assert_eq!(session["audio"]["input"]["format"], json!({"type": "audio/pcm", "rate": 24_000}));
    let turns = &session["audio"]["input"]["turn_detection"];
    assert_eq!((&turns["silence_duration_ms"], &turns["threshold"]), (&json!(400), &json!(0.5)));
    let session = client.update(json!({"audio": {"input": {"turn_detection": null}}})).await;
    assert_eq!(session["audio"]["input"]["turn_detection"], Value::Null);
    assert_eq!(session["audio"]["input"]["transcription"]["model"], "whisper-1");
}

#[tokio::test(start_paused = true)]
async fn a_spoken_response_has_every_event_in_its_order() {
    let script = Script::auto().reply(Rule::always(Reply::spoken("Hi there.", 250)));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    let user = client.say("Hello").await;
    let metadata = json!({"rid": "c7"});
    client.send(json!({"type": "response.create", "response": {"metadata": metadata}})).await;
    let events = client.until("response.done").await;
    assert_eq!(
        kinds(&events),
        [
            "response.created",
            "rate_limits.updated",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_audio_transcript.delta",
            "response.output_audio.delta",
            "response.output_audio_transcript.delta",
            "response.output_audio.delta",
            "response.output_audio.delta",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
    );
    let created = &events[0]["response"];
    assert_eq!((&created["status"], &created["metadata"]), (&json!("in_progress"), &metadata));
    assert_eq!(events[3]["previous_item_id"], user.as_str());
    let bytes: usize = events
        .iter()
        .filter(|event| event["type"] == "response.output_audio.delta")
        .map(|event| {
            let delta = event["delta"].as_str().unwrap();
            base64_simd::STANDARD.decode_to_vec(delta).unwrap().len()
        })
        .sum();
    assert_eq!(bytes, 250 * 48);
    let done = &events[15]["response"];
    assert_eq!((&done["status"], &done["metadata"]), (&json!("completed"), &metadata));
    let content = json!([{"type": "output_audio", "transcript": "Hi there."}]);
    assert_eq!(done["output"][0]["content"], content);
    assert_eq!(done["output"][0]["status"], "completed");
    assert!(done["usage"]["total_tokens"].as_u64().is_some_and(|total| total > 0));
    assert!(client.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn a_written_response_speaks_nothing() {
    let (mut client, _) = Client::greeted(&auto()).await;
    client.update(json!({"output_modalities": ["text"]})).await;
    client.say("Hello").await;
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    assert!(kinds(&events).iter().all(|kind| !kind.contains("audio")), "{:?}", kinds(&events));
    let text = events.iter().find(|event| event["type"] == "response.output_text.done").unwrap();
    assert_eq!(text["text"], "You said: Hello");
}

#[tokio::test(start_paused = true)]
async fn a_tool_round_calls_takes_the_output_and_goes_on() {
    let script = Script::auto()
        .reply(Rule::on_text("weather", Reply::call("get_weather", json!({"city": "Paris"}))))
        .reply(Rule::on_tool_output("get_weather", Reply::text("It is {output}.")));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.say("What is the WEATHER in Paris?").await;
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    assert_eq!(
        kinds(&events)[2..],
        [
            "response.output_item.added",
            "conversation.item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
    );
    let call = &events[6];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (&json!("get_weather"), &json!(r#"{"city":"Paris"}"#))
    );
    let item = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "18"});
    client.send(json!({"type": "conversation.item.create", "item": item})).await;
    client.until("conversation.item.done").await;
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(output[0]["content"][0]["transcript"], "It is 18.");
}

#[tokio::test(start_paused = true)]
async fn a_response_out_of_band_runs_beside_and_leaves_no_item() {
    let (mut client, _) = Client::greeted(&auto()).await;
    client.say("Hello").await;
    client.send(json!({"type": "response.create"})).await;
    let aside = json!({"conversation": "none", "input": [], "instructions": "Say aside.",
        "metadata": {"topic": "aside"}, "output_modalities": ["text"]});
    client.send(json!({"type": "response.create", "response": aside})).await;
    let mut events = client.until("response.done").await;
    events.extend(client.until("response.done").await);
    let done: Vec<_> = events.iter().filter(|event| event["type"] == "response.done").collect();
    let aside = done.iter().find(|done| done["response"]["metadata"]["topic"] == "aside").unwrap();
    assert_eq!(aside["response"]["conversation_id"], Value::Null);
    let item = &aside["response"]["output"][0];
    assert_eq!(item["content"][0]["text"], "Say aside.");
    let added = events.iter().filter(|event| event["type"] == "conversation.item.added");
    assert!(added.into_iter().all(|event| event["item"]["id"] != item["id"]));
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_the_response_with_what_there_is() {
    let script =
        Script::auto().reply(Rule::always(Reply::spoken("One two three four five.", 10_000)));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.send(json!({"type": "response.create"})).await;
    client.until("response.output_audio.delta").await;
    client.send(json!({"type": "response.cancel"})).await;
    let events = client.until("response.done").await;
    let done = &events.last().unwrap()["response"];
    assert_eq!(done["status"], "cancelled");
    assert_eq!(done["status_details"], json!({"type": "cancelled", "reason": "client_cancelled"}));
    assert_eq!(done["output"][0]["status"], "incomplete");
    assert!(kinds(&events).contains(&"response.output_audio.done"));
    assert!(client.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn failed_and_empty_responses_are_told() {
    let script = Script::auto()
        .reply(Rule::always(Reply::failed("rate_limit_exceeded", "Too much.")).times(1))
        .reply(Rule::always(Reply::default()).times(1));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.send(json!({"type": "response.create"})).await;
    let done = client.until("response.done").await.pop().unwrap()["response"].clone();
    assert_eq!(done["status"], "failed");
    assert_eq!(done["status_details"]["error"]["code"], "rate_limit_exceeded");
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    assert_eq!(kinds(&events), ["response.created", "rate_limits.updated", "response.done"]);
    assert_eq!(events[2]["response"]["output"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn items_are_placed_retrieved_cut_and_deleted() {
    let script = Script::auto().reply(Rule::always(Reply::spoken("Hi.", 1_000)));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    let first = client.say("first").await;
    let item = json!({"id": "msg_mine", "type": "message", "role": "system",
        "content": [{"type": "input_text", "text": "root"}]});
    client
        .send(json!({"type": "conversation.item.create", "previous_item_id": "root", "item": item}))
        .await;
    let added = client.expect("conversation.item.added").await;
    assert_eq!(
        (&added["item"]["id"], &added["previous_item_id"]),
        (&json!("msg_mine"), &Value::Null)
    );
    client.expect("conversation.item.done").await;
    client.send(json!({"type": "response.create"})).await;
    let done = client.until("response.done").await.pop().unwrap();
    let id = done["response"]["output"][0]["id"].clone();
    client.send(json!({"type": "conversation.item.retrieve", "item_id": id})).await;
    let item = client.expect("conversation.item.retrieved").await["item"].clone();
    let audio = item["content"][0]["audio"].as_str().unwrap();
    assert_eq!(base64_simd::STANDARD.decode_to_vec(audio).unwrap().len(), 48_000);
    let cut = json!({"type": "conversation.item.truncate", "item_id": id, "content_index": 0, "audio_end_ms": 300});
    client.send(cut).await;
    assert_eq!(client.expect("conversation.item.truncated").await["audio_end_ms"], 300);
    client.send(json!({"type": "conversation.item.retrieve", "item_id": id})).await;
    let item = client.expect("conversation.item.retrieved").await["item"].clone();
    assert_eq!(item["content"][0].get("transcript"), None);
    client.send(json!({"type": "conversation.item.delete", "item_id": first})).await;
    assert_eq!(client.expect("conversation.item.deleted").await["item_id"], first.as_str());
}

#[tokio::test(start_paused = true)]
async fn a_forced_tool_is_called_each_time() {
    let (mut client, _) = Client::greeted(&auto()).await;
    let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
    client.update(json!({"tools": [tool], "tool_choice": "required"})).await;
    client.say("Hello").await;
    for _ in 0..2 {
        client.send(json!({"type": "response.create"})).await;
        let done = client.until("response.done").await.pop().unwrap();
        assert_eq!(done["response"]["output"][0]["name"], "look");
    }
    let response = json!({"tool_choice": "none"});
    client.send(json!({"type": "response.create", "response": response})).await;
    let done = client.until("response.done").await.pop().unwrap();
    assert_eq!(done["response"]["output"][0]["type"], "message");
}
