//! The client against what a Genkit server said to Genkit's own client: it must ask the same.

use std::time::Duration;

use antiphon_agent::{
    AgentApi, AgentFinishReason, AgentInit, AgentStreamChunk, Message, Role, SnapshotLookup,
    SnapshotStatus, ToolResume, types::Status,
};
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::recorded::Recorded;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Work {
    counter: u32,
    status: String,
    items: Vec<String>,
}

fn work(counter: u32, status: &str, items: &[&str]) -> Work {
    Work {
        counter,
        status: status.into(),
        items: items.iter().map(|item| (*item).to_owned()).collect(),
    }
}

macro_rules! recorded {
    ($name:literal) => {
        Recorded::parse(include_str!(concat!("recorded/", $name, ".jsonl")))
    };
}

#[tokio::test]
async fn a_turn_streams_and_responds() {
    let server = recorded!("streaming");
    let chat = AgentApi::new(server.clone()).chat(AgentInit::default());
    let mut turn = chat.send_stream("hi");
    let mut texts = Vec::new();
    let mut raw: Vec<AgentStreamChunk> = Vec::new();
    while let Some(chunk) = turn.next().await {
        texts.push((chunk.text(), chunk.accumulated_text()));
        raw.push(chunk.raw().clone());
    }
    let expected = [
        ("Hello", "Hello"),
        (", ", "Hello, "),
        ("you said ", "Hello, you said "),
        ("\"hi\"", "Hello, you said \"hi\""),
        ("", "Hello, you said \"hi\""),
    ];
    assert_eq!(texts, expected.map(|(text, all)| (text.to_owned(), all.to_owned())));
    let snapshot_id = raw.last().unwrap().turn_end.as_ref().unwrap().snapshot_id.clone();

    let response = turn.response().await.unwrap();
    assert_eq!(response.text(), "Hello, you said \"hi\"");
    assert_eq!(response.finish_reason(), AgentFinishReason::Stop);
    assert_eq!(response.snapshot_id(), snapshot_id.as_ref());
    assert_eq!(response.session_id(), response.raw().session_id.as_ref());
    assert_eq!(response.messages(), &chat.messages());
    response.assert_valid().unwrap();
    assert_eq!(
        chat.messages(),
        vec![Message::user("hi"), Message::model("Hello, you said \"hi\""),].into()
    );
    assert_eq!(chat.snapshot_id(), snapshot_id);
    // Again the same.
    assert_eq!(turn.response().await.unwrap().text(), response.text());
    server.assert_over();
}

#[tokio::test]
async fn the_next_turn_goes_on_from_the_last() {
    let server = recorded!("two_turns");
    let chat = AgentApi::new(server.clone()).chat(AgentInit::default());
    let first = chat.send("one").await.unwrap();
    let second = chat.send("two").await.unwrap();
    assert_eq!(first.session_id(), second.session_id());
    assert_ne!(first.snapshot_id(), second.snapshot_id());
    assert_eq!(chat.messages().len(), 4);
    assert_eq!(first.messages().len(), 2);
    server.assert_over();
}

#[tokio::test]
async fn streamed_state_is_the_chats_state() {
    let server = recorded!("custom_state");
    let chat = AgentApi::new(server.clone()).typed::<Work>().chat(AgentInit::default());
    assert_eq!(chat.state(), None);
    let mut states = Vec::new();
    for text in ["a", "b"] {
        let mut turn = chat.send_stream(text);
        while let Some(chunk) = turn.next_chunk().await {
            if let Some(custom) = chunk.custom() {
                assert_eq!(chat.state().as_ref(), Some(custom));
                states.push(custom.clone());
            }
        }
        let response = turn.response().await.unwrap();
        assert_eq!(response.state(), states.last());
        assert_eq!(chat.state().as_ref(), states.last());
    }
    assert_eq!(
        states,
        [
            work(1, "working", &[]),
            work(1, "working", &["a"]),
            work(1, "done", &["a"]),
            work(2, "working", &["a"]),
            work(2, "working", &["a", "b"]),
            work(2, "done", &["a", "b"]),
        ]
    );
    server.assert_over();
}

#[tokio::test]
async fn artifacts_stream_and_take_the_place_of_their_name() {
    let server = recorded!("artifacts");
    let chat = AgentApi::new(server.clone()).chat(AgentInit::default());
    let mut turn = chat.send_stream("artifact");
    let mut seen = Vec::new();
    while let Some(chunk) = turn.next_chunk().await {
        if let Some(artifact) = chunk.artifact() {
            seen.push((artifact.name.clone(), chat.artifacts().len()));
        }
    }
    assert_eq!(seen, [(Some("doc1".into()), 1), (Some("doc1".into()), 1), (None, 2)]);
    let response = turn.response().await.unwrap();
    assert_eq!(response.artifacts(), response.raw().artifacts);
    assert_eq!(chat.artifacts(), response.raw().artifacts);
    server.assert_over();
}

#[tokio::test]
async fn where_the_agent_keeps_no_state_it_travels() {
    let server = recorded!("client_managed");
    let chat = AgentApi::new(server.clone()).typed::<Work>().chat(AgentInit::default());
    let first = chat.send("a").await.unwrap();
    assert_eq!(first.state(), Some(&work(1, "[redacted]", &["a"])));
    let second = chat.send("b").await.unwrap();
    assert_eq!(second.state(), Some(&work(2, "[redacted]", &["a", "b"])));
    assert_eq!(second.snapshot_id(), None);
    assert_eq!(chat.messages().len(), 4);
    server.assert_over();
}

#[tokio::test]
async fn an_interrupt_is_answered() {
    let server = recorded!("interrupt_respond");
    let api = AgentApi::new(server.clone());
    let chat = api.chat(AgentInit::default());
    let mut turn = chat.send_stream("approve");
    let mut streamed = Vec::new();
    while let Some(chunk) = turn.next_chunk().await {
        assert_eq!(chunk.tool_requests().count(), chunk.interrupts().len());
        streamed.extend(chunk.interrupts());
    }
    let response = turn.response().await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Interrupted);
    let interrupts = response.interrupts();
    assert_eq!(interrupts, streamed);
    assert_eq!(response.tool_requests().count(), 1);
    let [interrupt] = interrupts.as_slice() else { panic!("{interrupts:?}") };
    assert_eq!(&**interrupt.name(), "userApproval");
    assert_eq!(interrupt.id().map(|id| &**id), Some("a1"));
    assert_eq!(interrupt.input()["amount"], 10);
    assert_eq!(interrupt.reason(), &json!(true));

    let respond = vec![interrupt.respond(json!({ "approved": true }))];
    let resume = ToolResume { respond, ..ToolResume::default() };
    let mut turn = chat.resume_stream(resume);
    let mut said = String::new();
    while let Some(chunk) = turn.next_chunk().await {
        said = chunk.accumulated_text();
    }
    let response = turn.response().await.unwrap();
    assert_eq!(response.text(), "tool said {\"approved\":true}");
    assert_eq!(said, response.text());

    let snapshot = api.get_snapshot(&**response.snapshot_id().unwrap()).await.unwrap().unwrap();
    assert_eq!(snapshot.state.unwrap().messages.len(), 4);
    server.assert_over();
}

#[tokio::test]
async fn a_restart_says_that_it_is_one() {
    let server = recorded!("interrupt_restart");
    let api = AgentApi::new(server.clone());
    let chat = api.chat(AgentInit::default());
    let response = chat.send("both").await.unwrap();
    assert_eq!(response.tool_requests().count(), 2);
    let restart: Vec<_> = response.interrupts().iter().map(|it| it.restart()).collect();
    let response = chat.resume(ToolResume { restart, ..ToolResume::default() }).await.unwrap();
    assert!(response.text().contains("resumed=true"));
    api.get_snapshot(chat.snapshot_id().unwrap()).await.unwrap().unwrap();
    server.assert_over();
}

#[tokio::test]
async fn a_restart_can_tell_its_tool_something() {
    let server = recorded!("interrupt_restart_with");
    let api = AgentApi::new(server.clone());
    let chat = api.chat(AgentInit::default());
    let response = chat.send("transfer").await.unwrap();
    let interrupt = &response.interrupts()[0];
    assert_eq!(interrupt.reason()["reason"], "large_amount");
    let restart = vec![interrupt.restart_with(json!({ "approved": true }))];
    chat.resume(ToolResume { restart, ..ToolResume::default() }).await.unwrap();
    api.get_snapshot(chat.snapshot_id().unwrap()).await.unwrap().unwrap();
    server.assert_over();
}

#[tokio::test]
async fn a_failed_turn_leaves_the_chat_at_the_last_good_state() {
    let server = recorded!("failing_turn");
    let chat = AgentApi::new(server.clone()).chat(AgentInit::default());
    let good = chat.send("hi").await.unwrap();
    let error = chat.send("fail").await.unwrap_err();
    assert_eq!(error.status(), Status::Unavailable);
    assert_eq!(error.message(), "UNAVAILABLE: model is down");
    assert_eq!(error.details(), Some(&json!({ "retryAfter": 3 })));
    assert_eq!(error.snapshot_id(), good.snapshot_id());
    assert_eq!(error.response().finish_reason(), AgentFinishReason::Failed);
    assert_eq!(error.response().finish_message(), Some(error.message()));
    assert!(error.response().assert_valid().is_err());
    // Neither what the user said last nor the last answer a second time.
    assert_eq!(&chat.messages(), good.messages());
    let again = chat.send("again").await.unwrap();
    assert_eq!(again.messages().len(), 4);
    server.assert_over();
}

#[tokio::test]
async fn a_chat_whose_first_turn_fails_keeps_its_session() {
    let server = recorded!("failing_first_turn");
    let api = AgentApi::new(server.clone());
    let chat = api.chat(AgentInit::default());
    let error = chat.send("fail").await.unwrap_err();
    assert_eq!(error.snapshot_id(), None);
    assert!(chat.messages().is_empty());
    let session = SnapshotLookup::Session(chat.session_id().unwrap());
    let snapshot = api.get_snapshot(session).await.unwrap().unwrap();
    assert_eq!(snapshot.status(), SnapshotStatus::Failed);
    let response = chat.send("hi").await.unwrap();
    assert_eq!(response.messages().len(), 2);
    server.assert_over();
}

#[tokio::test]
async fn a_failed_turn_of_an_agent_without_store_gives_the_last_good_state_back() {
    let server = recorded!("failing_client_managed");
    let chat = AgentApi::new(server.clone()).typed::<Work>().chat(AgentInit::default());
    let good = chat.send("a").await.unwrap();
    let mut turn = chat.send_stream("fail");
    while turn.next_chunk().await.is_some() {}
    let error = turn.response().await.unwrap_err();
    assert_eq!(error.status(), Status::Aborted);
    assert_eq!(error.state(), good.state());
    assert_eq!(chat.state().as_ref(), good.state());
    assert_eq!(&chat.messages(), good.messages());
    server.assert_over();
}

#[tokio::test(start_paused = true)]
async fn work_in_the_background_is_followed() {
    let server = recorded!("detach_wait");
    let api = AgentApi::new(server.clone()).typed::<Work>();
    let chat = api.chat(AgentInit::default());
    chat.send("first").await.unwrap();
    let task = chat.detach("slow one").await.unwrap();
    assert_eq!(Some(task.snapshot_id()), chat.snapshot_id().as_ref());
    let updates: Vec<_> = task.updates(Duration::from_millis(400)).try_collect().await.unwrap();
    let (last, before) = updates.split_last().unwrap();
    assert!(before.iter().all(|update| update.status() == SnapshotStatus::Pending));
    assert_eq!(last.status(), SnapshotStatus::Completed);
    let done = task.wait().await.unwrap();
    let custom = done.state.unwrap().custom.unwrap();
    assert_eq!(custom, work(2, "done", &["first", "slow one"]));

    let init = AgentInit { snapshot_id: Some(task.snapshot_id().clone()), ..Default::default() };
    api.chat(init).send("next").await.unwrap();
    let init = AgentInit { session_id: chat.session_id(), ..Default::default() };
    api.chat(init).send("next2").await.unwrap();
    server.assert_over();
}

#[tokio::test(start_paused = true)]
async fn work_in_the_background_is_stopped() {
    let server = recorded!("detach_abort");
    let api = AgentApi::new(server.clone());
    let chat = api.chat(AgentInit::default());
    chat.send("first").await.unwrap();
    let task = chat.detach("slow two").await.unwrap();
    // That server tells what was, and ours what is.
    assert_eq!(chat.abort().await.unwrap(), Some(SnapshotStatus::Pending));
    assert_eq!(task.abort().await.unwrap(), Some(SnapshotStatus::Aborted));
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Aborted);

    let init = AgentInit { snapshot_id: Some(task.snapshot_id().clone()), ..Default::default() };
    let error = api.chat(init).send("x").await.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    let init = AgentInit { session_id: chat.session_id(), ..Default::default() };
    api.chat(init).send("y").await.unwrap();
    server.assert_over();
}

#[tokio::test]
async fn a_chat_is_loaded() {
    let server = recorded!("load_chat");
    let api = AgentApi::new(server.clone());
    let chat = api.chat(AgentInit::default());
    chat.send("one").await.unwrap();
    chat.send("two").await.unwrap();
    let loaded = api.load_chat(SnapshotLookup::Session(chat.session_id().unwrap())).await.unwrap();
    assert_eq!(loaded.messages(), chat.messages());
    assert_eq!(loaded.snapshot_id(), chat.snapshot_id());
    assert_eq!(loaded.session_id(), chat.session_id());
    let response = loaded.send("three").await.unwrap();
    let messages = response.messages();
    assert_eq!((messages.len(), messages.last().unwrap().role), (6, Role::Model));
    server.assert_over();
}

#[tokio::test]
async fn what_is_not_there_cannot_be_loaded() {
    let server = recorded!("load_chat_missing");
    let api = AgentApi::new(server.clone());
    let session = SnapshotLookup::Session("unknown-session".into());
    let error = api.load_chat(session).await.unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
    assert_eq!(api.get_snapshot("unknown-snap").await.unwrap(), None);
    server.assert_over();
}

#[tokio::test]
async fn a_turn_in_flight_is_aborted() {
    let server = recorded!("abort_in_flight");
    let api = AgentApi::new(server.clone());
    let init = AgentInit { session_id: Some("abort-inflight".into()), ..Default::default() };
    let chat = api.chat(init);
    let mut turn = chat.send_stream("slow");
    let mut chunks = 0;
    while turn.next_chunk().await.is_some() {
        chunks += 1;
        if chunks == 3 {
            turn.abort();
        }
    }
    let response = turn.response().await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
    assert!(chat.messages().is_empty());
    api.get_snapshot(SnapshotLookup::Session("abort-inflight".into())).await.unwrap().unwrap();
    server.assert_over();
}
