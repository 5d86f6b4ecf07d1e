//! Chats with agents of the same process.

use std::time::Duration;

use antiphon_agent::{
    Agent, AgentChat, AgentFinishReason, AgentInit, AgentInput, Caller, InMemorySessionStore,
    InvocationContext, Message, Part, Responder, Role, SessionRunner, SnapshotLookup,
    SnapshotStatus, ToolResume, TurnResult, types::Status,
};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::{Log, scripted, stored};

fn texts(chat: &AgentChat<Log>) -> Vec<String> {
    chat.messages().iter().map(|message| message.joined_text()).collect()
}

fn heard(log: Option<Log>) -> Vec<String> {
    log.unwrap_or_default().heard
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_on_from_turn_to_turn() {
    // With a store and without, it is the same to the client.
    for agent in [stored(), scripted().build()] {
        let chat = agent.api().chat(AgentInit::default());
        let mut turn = chat.send_stream("one");
        let mut said = Vec::new();
        while let Some(chunk) = turn.next().await {
            said.push(chunk.text());
            if let Some(custom) = chunk.custom() {
                assert_eq!(chat.state().as_ref(), Some(custom));
                assert_eq!(custom.heard, ["one"]);
            }
        }
        assert_eq!(said.concat(), "on one");
        let first = turn.response().await.unwrap();
        assert_eq!(first.text(), "heard one");
        assert_eq!(first.finish_reason(), AgentFinishReason::Stop);
        let second = chat.send("two").await.unwrap();
        assert_eq!(second.session_id(), first.session_id());
        assert_eq!(texts(&chat), ["one", "heard one", "two", "heard two"]);
        assert_eq!(heard(chat.state()), ["one", "two"]);
        assert_eq!(second.state(), chat.state().as_ref());
        chat.send("artifact").await.unwrap();
        chat.send("artifact again").await.unwrap();
        assert_eq!(chat.artifacts().len(), 1);
        assert_eq!(chat.artifacts()[0].parts[0].as_text(), Some("artifact again"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_turn_never_was() {
    for agent in [stored(), scripted().build()] {
        let chat = agent.api().chat(AgentInit::default());
        let error = chat.send("fail").await.unwrap_err();
        assert_eq!(error.status(), Status::Unavailable);
        assert_eq!((texts(&chat), heard(chat.state())), (vec![], vec![]));
        let session = chat.session_id().unwrap();
        chat.send("one").await.unwrap();
        let error = chat.send("fail").await.unwrap_err();
        assert_eq!(error.message(), "the model is down");
        assert_eq!(error.state().unwrap().heard, ["one"]);
        assert_eq!(texts(&chat), ["one", "heard one"]);
        let error = chat.send("panic").await.unwrap_err();
        assert_eq!(error.status(), Status::Internal);
        let response = chat.send("two").await.unwrap();
        assert_eq!(texts(&chat), ["one", "heard one", "two", "heard two"]);
        assert_eq!(response.state().unwrap().heard, ["one", "two"]);
        assert_eq!(response.session_id(), Some(&session));
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_failed_half_way_is_there() {
    let agent = stored();
    let chat = agent.api().chat(AgentInit::default());
    let error = chat.send("halfway").await.unwrap_err();
    assert_eq!(texts(&chat), ["halfway", "half an answer"]);
    assert_eq!(error.response().messages(), &chat.messages());
    chat.send(AgentInput::default()).await.unwrap();
    chat.refresh().await.unwrap();
    assert_eq!(texts(&chat)[..2], ["halfway", "half an answer"]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_aborted() {
    let agent = stored();
    let chat = agent.api().chat(AgentInit::default());
    chat.send("one").await.unwrap();
    let before = chat.snapshot_id();
    for text in ["slow", "stubborn"] {
        let mut turn = chat.send_stream(text);
        turn.next_chunk().await.unwrap();
        turn.abort();
        let response = turn.response().await.unwrap();
        assert_eq!(response.finish_reason(), AgentFinishReason::Aborted, "{text}");
        assert_eq!(chat.snapshot_id(), before);
        assert_eq!(texts(&chat), ["one", "heard one"]);
    }
    // By the time of the call.
    let cx = InvocationContext::new().with_deadline(Instant::now() + Duration::from_secs(30));
    let response = chat.with_context(cx).send("slow").await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
    chat.send("two").await.unwrap();
    assert_eq!(texts(&chat), ["one", "heard one", "two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_on_in_the_background() {
    let agent = stored();
    let api = agent.api();
    let chat = api.chat(AgentInit::default());
    chat.send("one").await.unwrap();
    let task = chat.detach("nap").await.unwrap();
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    let error = chat.send("too early").await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);

    let updates: Vec<_> = task.updates(Duration::from_secs(2)).try_collect().await.unwrap();
    let statuses: Vec<_> = updates.iter().map(|update| update.status()).collect();
    assert_eq!(statuses.last(), Some(&SnapshotStatus::Completed));
    assert!(statuses.len() > 1, "{statuses:?}");
    assert!(statuses[..statuses.len() - 1].iter().all(|it| *it == SnapshotStatus::Pending));

    let done = task.wait().await.unwrap();
    assert_eq!(heard(done.state.unwrap().custom), ["one", "nap"]);
    chat.send("two").await.unwrap();
    assert_eq!(texts(&chat), ["one", "heard one", "nap", "heard nap", "two", "heard two"]);
    assert_eq!(heard(chat.state()), ["one", "nap", "two"]);
}

#[tokio::test(start_paused = true)]
async fn work_in_the_background_is_stopped() {
    let agent = stored();
    let api = agent.api();
    let chat = api.chat(AgentInit::default());
    chat.send("one").await.unwrap();
    let task = chat.detach("slow").await.unwrap();
    assert_eq!(chat.abort().await.unwrap(), Some(SnapshotStatus::Aborting));
    let done = task.wait().await.unwrap();
    assert_eq!(done.status(), SnapshotStatus::Aborted);
    assert_eq!(api.abort(task.snapshot_id()).await.unwrap(), Some(SnapshotStatus::Aborted));
    assert_eq!(api.abort("unknown").await.unwrap(), None);
    // What was committed before is there to go on from.
    chat.send("two").await.unwrap();
    assert_eq!(texts(&chat), ["one", "heard one", "two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_cannot_do_is_an_error_of_the_turn() {
    let chat = scripted().build().api().chat(AgentInit::default());
    let error = chat.detach("nap").await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);
    let init = AgentInit::snapshot("unknown");
    let error = stored().api().chat(init).send("hi").await.unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
    let error = chat.send(AgentInput::from(Message::model("I am you."))).await;
    // The agent's function decides what it takes.
    error.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_chat_is_loaded_and_forked() {
    let agent = stored();
    let api = agent.api();
    let chat = api.chat(AgentInit::session("my own"));
    let first = chat.send("one").await.unwrap();
    chat.send("two").await.unwrap();

    let latest = api.load_chat(SnapshotLookup::Session("my own".into())).await.unwrap();
    assert_eq!((texts(&latest), latest.state()), (texts(&chat), chat.state()));
    let fork = api.load_chat(first.snapshot_id().unwrap().clone()).await.unwrap();
    fork.send("other").await.unwrap();
    assert_eq!(texts(&fork), ["one", "heard one", "other", "heard other"]);
    assert_eq!(heard(fork.state()), ["one", "other"]);
    assert_eq!(texts(&chat), ["one", "heard one", "two", "heard two"]);
    assert_eq!(fork.session_id(), chat.session_id());
}

#[tokio::test(start_paused = true)]
async fn who_calls_is_known() {
    let agent = stored();
    let tenant = |name: &str| {
        let caller = Caller::new("someone").scope(name);
        agent.api().with_context(InvocationContext::new().with_caller(caller))
    };
    let chat = tenant("a").chat(AgentInit::session("s"));
    chat.send("one").await.unwrap();
    let lookup = || SnapshotLookup::Session("s".into());
    assert!(tenant("a").get_snapshot(lookup()).await.unwrap().is_some());
    assert!(tenant("b").get_snapshot(lookup()).await.unwrap().is_none());
    assert_eq!(tenant("b").load_chat(lookup()).await.unwrap_err().status(), Status::NotFound);
    assert!(tenant("a").task(chat.snapshot_id().unwrap()).poll().await.is_ok());
}

/// An agent that asks before it pays.
async fn pay(
    _cx: InvocationContext,
    _responder: Responder,
    runner: SessionRunner<Value>,
) -> Result<antiphon_agent::AgentResult, antiphon_agent::RuntimeError> {
    let runner = &runner;
    runner
        .run(|_cx, input| async move {
            let Some(resume) = input.resume else {
                let request = Part::tool_request("pay", Some("p1".into()), json!({ "amount": 5 }))
                    .with_metadata_entry("interrupt", json!({ "ask": "Really?" }));
                runner.add_messages([Message::new(Role::Model, vec![request])]);
                return Ok(TurnResult { finish_reason: Some(AgentFinishReason::Interrupted) });
            };
            antiphon_agent::validate_resume_against_history(&resume, &runner.messages())?;
            let resumed = resume.restart.iter().map(|part| part.metadata_entry("resumed"));
            let said = format!("{:?}", resumed.collect::<Vec<_>>());
            runner.add_messages([Message::model(said)]);
            Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
        })
        .await?;
    Ok(runner.result())
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_is_resumed() {
    let agent = Agent::<Value>::custom("pay", pay).store(InMemorySessionStore::new()).build();
    let chat = agent.handle().api().chat(AgentInit::default());
    let response = chat.send("pay").await.unwrap();
    assert_eq!(response.finish_reason(), AgentFinishReason::Interrupted);
    let interrupt = &response.interrupts()[0];
    assert_eq!(interrupt.reason()["ask"], "Really?");
    let resume = |part| ToolResume { restart: vec![part], ..ToolResume::default() };

    let mut forged = interrupt.restart();
    let antiphon_agent::PartKind::ToolRequest(request) = &mut forged.kind else { panic!() };
    request.input = Some(json!({ "amount": 5_000 }));
    let error = chat.resume(resume(forged)).await.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);

    let response = chat.resume(resume(interrupt.restart())).await.unwrap();
    assert_eq!(response.text(), "[Some(Bool(true))]");
}
