use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use antiphon_agent::{
    AgentAction, AgentInit, RuntimeError, SessionStore, SnapshotStatus,
    protocol::GetSnapshotRequest, types::Status,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{FlakyStore, cx, fresh, scripted, stored};

#[tokio::test(start_paused = true)]
async fn get_snapshot_action_no_store() {
    let agent = scripted().build();
    for error in [
        agent.get_snapshot(&cx(), "a").await.unwrap_err(),
        agent.get_latest_snapshot(&cx(), "a").await.unwrap_err(),
        agent.wait_for_snapshot(&cx(), "a").await.unwrap_err(),
        agent.abort(&cx(), "a").await.unwrap_err(),
        agent.handle().abort(&cx(), "a").await.unwrap_err(),
        agent.task(&cx(), "a").poll().await.unwrap_err(),
    ] {
        assert!(matches!(error, RuntimeError::SessionStoreNotConfigured(_)), "{error}");
        assert_eq!(error.status(), Status::FailedPrecondition);
    }
}

#[tokio::test(start_paused = true)]
async fn empty_and_unknown_ids() {
    let agent = stored();
    let handle = agent.handle();
    for error in [
        agent.get_snapshot(&cx(), "").await.unwrap_err(),
        agent.get_latest_snapshot(&cx(), "").await.unwrap_err(),
        agent.wait_for_snapshot(&cx(), "").await.unwrap_err(),
        agent.abort(&cx(), "").await.unwrap_err(),
        handle.abort(&cx(), "").await.unwrap_err(),
        agent.read_snapshot(&cx(), &GetSnapshotRequest::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
    for error in [
        agent.get_snapshot(&cx(), "x").await.unwrap_err(),
        agent.wait_for_snapshot(&cx(), "x").await.unwrap_err(),
        handle.abort(&cx(), "x").await.unwrap_err(),
    ] {
        assert!(matches!(error, RuntimeError::SnapshotNotFound(_)), "{error}");
    }
    let session = agent.get_latest_snapshot(&cx(), "x").await.unwrap_err();
    assert!(matches!(session, RuntimeError::SessionNotFound(_)));
    assert_eq!(agent.abort(&cx(), "x").await.unwrap(), None, "for whoever holds the agent");
}

#[tokio::test(start_paused = true)]
async fn companion_actions_in_json() {
    let agent = stored();
    let output = agent.run_text(&cx(), "one", AgentInit::session("s")).await.unwrap();
    let id = output.snapshot_id.unwrap();
    let get = agent.get_snapshot_action().unwrap();
    let full = get.run_json(&cx(), json!({"snapshotId": id})).await.unwrap();
    assert_eq!(full["state"]["sessionId"], "s");
    assert_eq!(full["state"]["custom"], json!({"heard": ["one"]}));
    assert_eq!(full["status"], "completed");
    assert_eq!(get.run_json(&cx(), json!({"sessionId": "s"})).await.unwrap(), full);
    let both = get.run_json(&cx(), json!({"sessionId": "s", "snapshotId": id})).await.unwrap();
    assert_eq!(both, full);
    let bare = get.run_json(&cx(), json!({"sessionId": "s", "metadataOnly": true})).await.unwrap();
    assert_eq!((&bare["state"], &bare["snapshotId"]), (&Value::Null, &json!(id)));
    let mismatch = get.run_json(&cx(), json!({"sessionId": "t", "snapshotId": id})).await;
    assert_eq!(mismatch.unwrap_err().status(), Status::InvalidArgument);
    for bad in [json!({}), json!(null), json!({"snapshotId": 3})] {
        let error = get.run_json(&cx(), bad).await.unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
    }
    let wait = agent.wait_for_snapshot_action().unwrap();
    assert_eq!(wait.run_json(&cx(), json!({"snapshotId": id})).await.unwrap(), full);
    let latest = wait.run_json(&cx(), json!({"sessionId": "s"})).await.unwrap_err();
    assert_eq!(latest.status(), Status::InvalidArgument, "a session's latest moves");
    let abort = agent.abort_action().unwrap();
    let settled = abort.run_json(&cx(), json!({"snapshotId": id})).await.unwrap();
    assert_eq!(settled, json!({"snapshotId": id, "status": "completed"}));
    assert_eq!(abort.action(), AgentAction::Abort);
    let unknown = abort.run_json(&cx(), json!({"snapshotId": "x"})).await.unwrap_err();
    assert_eq!(unknown.status(), Status::NotFound);
}

#[tokio::test(start_paused = true)]
async fn abort_action_gated_on_capabilities() {
    let agent = scripted().store(FlakyStore::mute()).build();
    let handle = agent.handle();
    assert!(handle.action(AgentAction::Abort).is_none());
    assert!(handle.action(AgentAction::GetSnapshot).is_some());
    let refused = handle.abort(&cx(), "x").await.unwrap_err();
    assert!(matches!(refused, RuntimeError::NotAbortable(_)));
    assert!(!agent.metadata().abortable);
}

#[tokio::test(start_paused = true)]
async fn a_wait_reads_metadata_and_the_state_once() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    let row = task.wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);
    assert_eq!(store.full_reads.load(SeqCst), 2, "at first, and at last");
    let metadata = store.metadata_reads.load(SeqCst);
    assert!((20..=22).contains(&metadata), "every 30 s of 600: {metadata}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_polls_where_the_store_cannot_tell() {
    let store = Arc::new(FlakyStore::deaf());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let task = agent.run_detached(&cx(), "nap", fresh()).await.unwrap();
    let begun = Instant::now();
    task.wait().await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn wait_retry_budget() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    store.fail_reads(3);
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Completed);

    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    store.fail_reads(4);
    let error = task.wait().await.unwrap_err();
    assert_eq!(error.status(), Status::Unavailable);
    store.fail_reads(0);
    task.abort().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_caller() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    let begun = Instant::now();
    let late = cx().with_deadline(begun + Duration::from_secs(7));
    let error = agent.wait_for_snapshot(&late, task.snapshot_id().clone()).await.unwrap_err();
    assert!(matches!(error, RuntimeError::DeadlineExceeded(_)), "{error}");
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    task.abort().await.unwrap();
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}
