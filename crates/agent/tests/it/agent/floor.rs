use std::{sync::Arc, time::Duration};

use antiphon_agent::{
    AgentFinishReason, AgentInit, AgentResult, Invocation, Invoke, Message, RuntimeError,
    SessionStore, SnapshotStatus, TurnFailure, TurnResult, types::Status,
};
use tokio::time::{sleep, timeout};

use super::{FlakyStore, Log, cx, scripted, stored, texts};

fn ended() -> Result<TurnResult, TurnFailure> {
    Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
}

async fn open(agent: &antiphon_agent::Agent<Log>, init: AgentInit) -> Invocation {
    let agent: Arc<dyn Invoke> = Arc::new(agent.clone());
    agent.open(&cx(), init).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn turns_are_sealed_without_waiting_and_written_in_order() {
    let agent = stored();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let mut sealed = Vec::new();
    for n in 0..5 {
        let turn = invocation.begin_turn().unwrap();
        // The user's words come after the answer.
        turn.append(Message::model(format!("answer {n}")));
        turn.append(Message::user(format!("question {n}")));
        sealed.push(turn.seal(ended()));
    }
    assert_eq!(invocation.unwritten(), 5);
    let mut parent = None;
    for (n, turn) in sealed.into_iter().enumerate() {
        let context = turn.context().clone();
        assert_eq!((context.turn_index, &context.parent_snapshot_id), (n as u64, &parent));
        let end = turn.write().await;
        assert_eq!(end.snapshot_id, context.snapshot_id);
        let row = agent.get_snapshot(&cx(), end.snapshot_id.clone().unwrap()).await.unwrap();
        assert_eq!((row.status(), row.parent_id), (SnapshotStatus::Completed, parent));
        assert_eq!(row.state.unwrap().messages.len(), 2 * (n + 1), "as it was when sealed");
        parent = end.snapshot_id;
    }
    let output = invocation.finish(Ok(AgentResult::default())).await;
    assert_eq!((output.snapshot_id, output.finish_reason), (parent, Some(AgentFinishReason::Stop)));
}

#[tokio::test(start_paused = true)]
async fn a_sealed_turn_is_written_whether_or_not_somebody_waits() {
    let agent = stored();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("a"));
    drop(turn.seal(ended()));
    drop(invocation);
    sleep(Duration::from_secs(1)).await;
    let row = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!(texts(&row.state.unwrap()), ["a"]);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_is_rolled_back() {
    let agent = stored();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let turn = invocation.begin_turn().unwrap();
    let session = turn.session().clone();
    turn.append(Message::user("a"));
    session.update_custom_json(&mut |log| log["heard"] = serde_json::json!(["a"])).unwrap();
    let second = invocation.begin_turn().unwrap_err();
    assert_eq!(second.status(), Status::FailedPrecondition);
    drop(turn);
    assert!(session.messages().is_empty() && session.custom_json().is_null());
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("b"));
    turn.seal(ended()).write().await;
    assert!(invocation.flush().await.is_some());
    let row = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!(texts(&row.state.unwrap()), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_turn_commits_or_rolls_back_as_it_says() {
    let agent = stored();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("half"));
    let error = RuntimeError::new(Status::Unavailable, "the line broke");
    let end = turn.seal(Err(TurnFailure::commit(error.clone()))).write().await;
    assert_eq!(end.finish_reason, Some(AgentFinishReason::Failed));
    let row = agent.get_snapshot(&cx(), end.snapshot_id.clone().unwrap()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Failed);

    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("nothing"));
    let none = turn.seal(Err(error.clone().into())).write().await;
    assert_eq!(none.snapshot_id, None);
    assert_eq!(invocation.session().messages().len(), 1);
    let output = invocation.finish(Err(error)).await;
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Failed));
    assert_eq!(output.snapshot_id, end.snapshot_id);
}

#[tokio::test(start_paused = true)]
async fn unwritten_turns_are_bounded() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let invocation = open(&agent, AgentInit::session("s")).await;
    store.hang_writes(true);
    for _ in 0..64 {
        drop(invocation.begin_turn().unwrap().seal(ended()));
    }
    assert_eq!(invocation.begin_turn().unwrap_err().status(), Status::ResourceExhausted);
    store.hang_writes(false);
    // The one that hung is given up, the others are written.
    invocation.flush().await;
    assert_eq!(invocation.unwritten(), 0);
    drop(invocation.begin_turn().unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_invocation_goes_on_in_the_background_and_hears_of_an_abort() {
    let agent = stored();
    let invocation = open(&agent, AgentInit::session("s")).await;
    invocation.begin_turn().unwrap().seal(ended()).write().await;
    let id = invocation.detach().await.unwrap();
    assert_eq!(invocation.detach().await.unwrap(), id);
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("after"));
    assert_eq!(turn.seal(ended()).write().await.snapshot_id, None, "one row stands for all");
    sleep(Duration::from_secs(95)).await;
    let task = agent.task(&cx(), id.clone());
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    task.abort().await.unwrap();
    invocation.context().cancellation().cancelled().await;
    let error = RuntimeError::Cancelled("hung up".into());
    let output = invocation.finish(Err(error)).await;
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Aborted));
    let row = task.poll().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(texts(&row.state.unwrap()), ["after"]);
}

#[tokio::test(start_paused = true)]
async fn a_detached_invocation_that_is_dropped_settles_its_row() {
    let agent = stored();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let id = invocation.detach().await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("kept"));
    turn.seal(ended()).write().await;
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("left open"));
    drop((turn, invocation));
    let row = agent.wait_for_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(texts(&row.state.unwrap()), ["kept"]);
}

#[tokio::test(start_paused = true)]
async fn a_finish_that_is_dropped_still_settles_the_row() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let id = invocation.detach().await.unwrap();
    invocation.begin_turn().unwrap().seal(ended()).write().await;
    store.hang_writes(true);
    let finish = invocation.finish(Ok(AgentResult::default()));
    assert!(timeout(Duration::from_secs(1), finish).await.is_err(), "the store hangs");
    store.hang_writes(false);
    let row = agent.wait_for_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_invocation_without_store_returns_its_state() {
    let agent = scripted().build();
    let invocation = open(&agent, AgentInit::default()).await;
    let turn = invocation.begin_turn().unwrap();
    assert_eq!(turn.context().snapshot_id, None);
    turn.append(Message::user("a"));
    drop(turn.seal(ended()));
    let refused = invocation.detach().await.unwrap_err();
    assert!(matches!(refused, RuntimeError::SessionStoreNotConfigured(_)));
    let output = invocation.finish(Ok(AgentResult::default())).await;
    assert_eq!(texts(&output.state.unwrap()), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_fails_or_is_dropped_leaves_turns_to_be_written() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let invocation = open(&agent, AgentInit::session("s")).await;
    let written = async |text: &str| {
        let turn = invocation.begin_turn().unwrap();
        turn.append(Message::user(text));
        turn.seal(ended()).write().await.snapshot_id
    };

    store.fail_writes(true);
    assert_eq!(invocation.detach().await.unwrap_err().status(), Status::Unavailable);
    store.fail_writes(false);
    assert!(written("after one that failed").await.is_some());

    store.hang_writes(true);
    timeout(Duration::from_secs(1), invocation.detach()).await.unwrap_err();
    store.hang_writes(false);
    let id = written("after one that was dropped").await.unwrap();
    let row = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!((&row.snapshot_id, texts(&row.state.unwrap()).len()), (&id, 2));

    let pending = invocation.detach().await.unwrap();
    assert_eq!(written("in the background").await, None);
    invocation.finish(Ok(AgentResult::default())).await;
    let row = agent.get_snapshot(&cx(), pending).await.unwrap();
    assert_eq!((row.parent_id, texts(&row.state.unwrap()).len()), (Some(id), 3));
}
