//! Turns that end otherwise than they should.

use std::{collections::HashMap, time::Duration};

use antiphon_agent::{
    AgentApi, AgentChat, AgentFinishReason, AgentInit, AgentInput, AgentStateManagement,
    InvocationContext, Message, Part, SessionState, SnapshotStatus, types::Status,
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::scripted::Scripted;

fn chat(server: &Scripted) -> AgentChat {
    AgentApi::new(server.clone()).chat(AgentInit::default())
}

fn says(text: &str) -> Value {
    json!({ "modelChunk": { "role": "model", "index": 0, "content": [{ "text": text }] } })
}

fn done(snapshot: &str, text: &str) -> Value {
    json!({
        "sessionId": "s",
        "snapshotId": snapshot,
        "finishReason": "stop",
        "message": { "role": "model", "content": [{ "text": text }] },
    })
}

fn row(id: &str, status: &str, texts: &[&str]) -> Value {
    let messages: Vec<_> = texts.iter().map(|text| Message::user(*text)).collect();
    json!({
        "snapshotId": id,
        "sessionId": "s",
        "createdAt": "2026-11-29T21:16:39Z",
        "status": status,
        "state": { "sessionId": "s", "messages": messages, "custom": { "from": id } },
    })
}

fn texts(chat: &AgentChat) -> Vec<String> {
    chat.messages().iter().map(|message| message.joined_text()).collect()
}

#[tokio::test]
async fn nothing_happens_until_a_turn_is_polled() {
    let server = Scripted::new().turn(json!([]), done("a", "Yes."));
    let chat = chat(&server);
    let mut turn = chat.send_stream("hi");
    assert_eq!(server.asked(), Vec::<Value>::new());
    turn.response().await.unwrap();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn one_turn_runs_at_a_time() {
    let server = Scripted::new()
        .turn(json!([says("Y"), says("es.")]), done("a", "Yes."))
        .turn(json!([]), done("b", "No."));
    let chat = chat(&server);
    let mut turn = chat.send_stream("hi");
    turn.next_chunk().await.unwrap();
    let error = chat.clone().send("me too").await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);
    assert_eq!(error.response().messages().len(), 0);
    assert_eq!(chat.refresh().await.unwrap_err().status(), Status::FailedPrecondition);
    // That did not touch the one that runs.
    turn.response().await.unwrap();
    assert_eq!(texts(&chat), ["hi", "Yes."]);
    chat.send("now").await.unwrap();
    assert_eq!(texts(&chat), ["hi", "Yes.", "now", "No."]);
}

#[tokio::test]
async fn a_turn_that_is_dropped_never_was() {
    let patch = json!({ "customPatch": [{ "op": "replace", "path": "", "value": { "n": 2 } }] });
    let artifact = json!({ "artifact": { "name": "doc", "parts": [] } });
    let server = Scripted::new()
        .turn(json!([]), done("a", "Yes."))
        .deaf(json!([patch, artifact]))
        .turn(json!([]), done("b", "No."));
    let chat = chat(&server);
    chat.send("one").await.unwrap();
    let mut turn = chat.send_stream("two");
    turn.next_chunk().await.unwrap();
    turn.next_chunk().await.unwrap();
    assert_eq!(chat.state(), Some(json!({ "n": 2 })));
    assert_eq!((chat.messages().len(), chat.artifacts().len()), (3, 1));
    let aborter = turn.aborter();
    drop(turn);
    assert!(aborter.is_cancelled());
    assert_eq!(chat.state(), None);
    assert_eq!((chat.messages().len(), chat.artifacts().len()), (2, 0));
    server.asked();
    chat.send("three").await.unwrap();
    assert_eq!(server.asked()[0]["init"], json!({ "snapshotId": "a" }));
}

#[tokio::test(start_paused = true)]
async fn an_aborted_turn_resolves_as_aborted_whatever_the_transport_does() {
    let server = Scripted::new()
        .deaf(json!([says("tick")]))
        .until_ended(json!([says("tick")]), done("a", "All of it."))
        .without_output(json!([]));
    let chat = chat(&server);

    // It does not care: after five seconds nobody waits any more.
    let mut turn = chat.send_stream("one");
    turn.next_chunk().await.unwrap();
    turn.abort();
    let begin = Instant::now();
    let response = turn.response().await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(5));
    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
    assert_eq!(response.finish_message(), Some("the turn was aborted"));
    assert!(response.assert_valid().is_err());
    assert!(chat.messages().is_empty());

    // The agent was faster: the chat goes on from what it keeps.
    let mut turn = chat.send_stream("two");
    turn.next_chunk().await.unwrap();
    turn.abort();
    assert!(turn.next_chunk().await.is_none());
    let response = turn.response().await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
    assert_eq!(texts(&chat), ["two", "All of it."]);
    assert_eq!(chat.snapshot_id().as_deref(), Some("a"));

    // Before anything streamed, by the context of the call.
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let cx = InvocationContext::new().with_cancellation(cancelled);
    let response = chat.with_context(cx).send("three").await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
    assert_eq!(chat.messages().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_with_the_time_of_its_context() {
    let server = Scripted::new().deaf(json!([]));
    let begin = Instant::now();
    let cx = InvocationContext::new().with_deadline(begin + Duration::from_secs(5));
    let response = chat(&server).with_context(cx).send("hi").await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(10));
    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
    let error = response.raw().error.as_ref().unwrap();
    assert_eq!(error.status, Status::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn an_abort_after_the_stream_is_too_late() {
    let server = Scripted::new().turn(json!([says("Yes.")]), done("a", "Yes."));
    let mut turn = chat(&server).send_stream("hi");
    while turn.next_chunk().await.is_some() {}
    turn.abort();
    let response = turn.response().await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Stop);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_never_comes_is_a_failed_turn() {
    let server = Scripted::new().without_output(json!([says("Yes.")]));
    let chat = chat(&server);
    let begin = Instant::now();
    let error = chat.send("hi").await.unwrap_err();
    assert_eq!(begin.elapsed(), Duration::from_secs(60));
    assert_eq!(error.status(), Status::DeadlineExceeded);
    assert!(chat.messages().is_empty());
}

#[tokio::test]
async fn a_turn_that_failed_half_way_and_was_kept_is_what_the_chat_goes_on_from() {
    let failed = json!({
        "sessionId": "s",
        "snapshotId": "b",
        "finishReason": "failed",
        "error": { "status": "UNAVAILABLE", "message": "the model is gone" },
    });
    let server = Scripted::new()
        .turn(json!([]), done("a", "Yes."))
        .turn(json!([]), failed.clone())
        .turn(json!([]), done("c", "Again."));
    server.snapshot(row("b", "failed", &["one", "Yes.", "two", "tool request", "tool output"]));
    let chat = chat(&server);
    chat.send("one").await.unwrap();
    let error = chat.send("two").await.unwrap_err();
    assert_eq!(error.snapshot_id().map(|id| &**id), Some("b"));
    assert_eq!(error.state(), Some(&json!({ "from": "b" })));
    assert_eq!(texts(&chat).len(), 5);
    assert_eq!(error.response().messages().len(), 5);
    server.asked();
    chat.send("three").await.unwrap();
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0]["init"], json!({ "snapshotId": "b" }));
    assert_eq!(texts(&chat).len(), 7);
}

#[tokio::test]
async fn where_such_a_turn_cannot_be_read_the_chat_reads_it_before_the_next() {
    let failed = json!({ "snapshotId": "b", "finishReason": "failed" });
    let server = Scripted::new()
        .turn(json!([]), done("a", "Yes."))
        .turn(json!([]), failed)
        .turn(json!([]), done("c", "Again."));
    let chat = chat(&server);
    chat.send("one").await.unwrap();
    let error = chat.send("two").await.unwrap_err();
    assert_eq!(error.status(), Status::Unknown);
    assert_eq!(texts(&chat), ["one", "Yes."]);
    server.snapshot(row("b", "failed", &["one", "Yes.", "two"]));
    chat.send("three").await.unwrap();
    assert_eq!(texts(&chat), ["one", "Yes.", "two", "three", "Again."]);
}

#[tokio::test]
async fn after_work_in_the_background_the_chat_knows_what_came_of_it() {
    let detached = json!({ "sessionId": "s", "snapshotId": "b", "finishReason": "detached" });
    let refused = json!({
        "finishReason": "failed",
        "error": { "status": "FAILED_PRECONDITION", "message": "it is pending" },
    });
    let server = Scripted::new()
        .turn(json!([]), done("a", "Yes."))
        .turn(json!([]), detached)
        .turn(json!([]), refused)
        .turn(json!([]), done("c", "Again."));
    server.snapshot(row("b", "pending", &[]));
    let chat = chat(&server);
    chat.send("one").await.unwrap();
    let task = chat.detach(AgentInput::text("two")).await.unwrap();
    assert_eq!(&**task.snapshot_id(), "b");
    assert_eq!(chat.abort().await.unwrap(), Some(SnapshotStatus::Pending));
    let error = chat.send("too early").await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);
    assert_eq!(error.snapshot_id().map(|id| &**id), Some("b"));

    server.snapshot(row("b", "completed", &["one", "Yes.", "two", "Done."]));
    chat.send("three").await.unwrap();
    assert_eq!(texts(&chat), ["one", "Yes.", "two", "Done.", "three", "Again."]);
    assert_eq!(server.asked().last().unwrap()["init"], json!({ "snapshotId": "b" }));
}

#[tokio::test]
async fn a_turn_that_was_over_before_it_detached_is_a_task_or_an_error() {
    let server = Scripted::new()
        .turn(json!([]), done("a", "Yes."))
        .turn(json!([]), json!({ "finishReason": "stop" }));
    let chat = chat(&server);
    let task = chat.detach("one").await.unwrap();
    assert_eq!(&**task.snapshot_id(), "a");
    assert_eq!(texts(&chat), ["one", "Yes."]);
    let error = chat.detach("two").await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);
}

#[tokio::test]
async fn a_chat_starts_from_where_it_is_told() {
    let server = Scripted::new()
        .turn(
            json!([]),
            json!({
                "finishReason": "failed",
                "error": { "status": "INVALID_ARGUMENT", "message": "not its session" },
            }),
        )
        .turn(json!([]), done("b", "Yes."))
        .turn(json!([]), done("c", "Yes."));
    let init = AgentInit {
        session_id: Some("s".into()),
        snapshot_id: Some("a".into()),
        ..AgentInit::default()
    };
    let chat = AgentApi::new(server.clone()).chat(init);
    assert_eq!(chat.snapshot_id().as_deref(), Some("a"));
    chat.send("one").await.unwrap_err();
    chat.send("one").await.unwrap();
    chat.send("two").await.unwrap();
    let inits: Vec<_> = server.asked().into_iter().map(|asked| asked["init"].clone()).collect();
    let both = json!({ "sessionId": "s", "snapshotId": "a" });
    assert_eq!(inits, [both.clone(), both, json!({ "snapshotId": "b" })]);
}

#[tokio::test]
async fn the_state_of_an_agent_without_store_travels_from_the_beginning() {
    let state = SessionState {
        messages: vec![Message::user("before")].into(),
        custom: Some(json!({ "n": 1 })),
        ..SessionState::default()
    };
    let mut server = Scripted::new();
    server.management = Some(AgentStateManagement::Client);
    let server = server.turn(json!([]), json!({ "sessionId": "s", "finishReason": "stop" }));
    let server = server.turn(json!([]), json!({ "sessionId": "s", "finishReason": "stop" }));
    let init = AgentInit { state: Some(state), ..AgentInit::default() };
    let chat = AgentApi::new(server.clone()).chat(init);
    assert_eq!((texts(&chat), chat.state()), (vec!["before".into()], Some(json!({ "n": 1 }))));
    chat.send("one").await.unwrap();
    chat.send("two").await.unwrap();
    // Never by an id.
    for asked in server.asked() {
        assert_eq!(asked["init"]["state"]["custom"], json!({ "n": 1 }));
        assert_eq!(asked["init"]["sessionId"], Value::Null);
    }
}

#[tokio::test]
async fn a_start_that_is_no_json_fails_the_turn_and_asks_nothing() {
    let state = SessionState {
        custom: Some(HashMap::from([(vec![1u8], 1u32)])),
        ..SessionState::default()
    };
    let server = Scripted::new();
    let api = AgentApi::new(server.clone()).typed::<HashMap<Vec<u8>, u32>>();
    let chat = api.chat(AgentInit { state: Some(state), ..AgentInit::default() });
    let error = chat.send("hi").await.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_state_of_another_type_is_none() {
    let patch =
        |value: Value| json!({ "customPatch": [{ "op": "replace", "path": "", "value": value }] });
    let server =
        Scripted::new().turn(json!([patch(json!("three")), patch(json!(4))]), done("a", "Yes."));
    let chat = AgentApi::new(server).typed::<u32>().chat(AgentInit::default());
    let mut turn = chat.send_stream("hi");
    let first = turn.next_chunk().await.unwrap();
    assert_eq!((first.custom(), chat.state()), (None, None));
    assert!(first.raw().custom_patch.is_some());
    let second = turn.next_chunk().await.unwrap();
    assert_eq!((second.custom(), chat.state()), (Some(&4), Some(4)));
}

#[tokio::test]
async fn accumulated_text_is_what_the_model_says_in_the_turn() {
    let chunk = |role: &str, index: u32, text: &str, aggregated: bool| {
        json!({ "modelChunk": {
            "role": role, "index": index, "content": [{ "text": text }], "aggregated": aggregated,
        } })
    };
    let server = Scripted::new().turn(
        json!([
            chunk("model", 0, "Let me ", false),
            chunk("model", 0, "see. ", false),
            chunk("tool", 1, "(a tool)", false),
            chunk("model", 2, "It", false),
            chunk("model", 2, "It is ten.", true),
        ]),
        done("a", "It is ten."),
    );
    let chat = chat(&server);
    let mut turn = chat.send_stream("hi");
    let mut chunks = Vec::new();
    while let Some(chunk) = turn.next_chunk().await {
        chunks.push(chunk);
    }
    // Each keeps its own, whatever came after.
    let texts: Vec<_> = chunks.iter().map(|chunk| chunk.accumulated_text()).collect();
    assert_eq!(
        texts,
        ["Let me ", "Let me see. ", "Let me see. ", "Let me see. It", "Let me see. It is ten.",]
    );
}

#[tokio::test]
async fn responses_and_chunks_give_their_parts() {
    let content = vec![
        Part::reasoning("Hm. "),
        Part::reasoning("Yes."),
        Part::text("Here "),
        Part::text("it is."),
        Part::data(json!({ "n": 1 })),
        Part::media("data:,x", Some("text/plain".into())),
        Part::tool_request("look", None, json!({})),
    ];
    let message = Message::new(antiphon_agent::Role::Model, content.clone());
    let server = Scripted::new()
        .turn(
            json!([{ "modelChunk": { "content": content } }]),
            json!({ "message": message, "finishReason": "length" }),
        )
        .turn(json!([]), json!({ "finishReason": "blocked" }));
    let chat = chat(&server);
    let mut turn = chat.send_stream("hi");
    let chunk = turn.next_chunk().await.unwrap();
    let response = turn.response().await.unwrap();
    assert_eq!((chunk.text(), response.text()), ("Here it is.".into(), "Here it is.".into()));
    assert_eq!((chunk.reasoning(), response.reasoning()), ("Hm. Yes.".into(), "Hm. Yes.".into()));
    assert_eq!((chunk.data(), response.data()), (Some(&json!({"n": 1})), Some(&json!({"n": 1}))));
    assert_eq!(response.data_as::<HashMap<String, u8>>().unwrap().unwrap()["n"], 1);
    assert_eq!(response.data_as::<Vec<u8>>().unwrap_err().status(), Status::FailedPrecondition,);
    assert_eq!((chunk.media().unwrap().url.as_str(), chunk.media()), ("data:,x", response.media()));
    assert_eq!((chunk.tool_requests().count(), response.tool_requests().count()), (1, 1));
    assert!(chunk.interrupts().is_empty() && response.interrupts().is_empty());
    assert_eq!(response.message(), Some(&message));
    response.assert_valid().unwrap();
    let blocked = chat.send("more").await.unwrap();
    assert_eq!(blocked.assert_valid().unwrap_err().status(), Status::FailedPrecondition);
}

#[tokio::test]
async fn a_chat_without_snapshot_has_nothing_to_abort_or_read() {
    let server = Scripted::new();
    let chat = chat(&server);
    assert_eq!(chat.abort().await.unwrap(), None);
    chat.refresh().await.unwrap();
    assert!(server.asked().is_empty());
    let api = AgentApi::new(server);
    assert_eq!(api.abort("unknown").await.unwrap(), None);
    let task = api.task("unknown");
    assert_eq!(task.poll().now_or_never().unwrap().unwrap_err().status(), Status::NotFound);
}
