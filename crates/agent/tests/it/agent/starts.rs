use std::sync::Arc;

use antiphon_agent::{
    AgentInit, InMemorySessionStore, RuntimeError, SessionSnapshot, SessionState, SessionStore,
    SnapshotStatus, SnapshotWriter, types::Status,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Log, cx, paused_clock, scripted, stored, texts};

async fn refused(init: Value, store: bool) -> RuntimeError {
    let agent = if store { stored() } else { scripted().build() };
    agent.connect_json(&cx(), init).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn init_failure_fails_action_with_status() {
    let state = json!({"messages": []});
    let both = json!({"state": state, "sessionId": "s"});
    for (init, store, status) in [
        (both.clone(), true, Status::InvalidArgument),
        (both, false, Status::InvalidArgument),
        (json!({"state": state, "snapshotId": "s"}), false, Status::InvalidArgument),
        (json!({"state": state}), true, Status::FailedPrecondition),
        (json!({"sessionId": "s"}), false, Status::FailedPrecondition),
        (json!({"snapshotId": "s"}), false, Status::FailedPrecondition),
        (json!({"snapshotId": "nobody's"}), true, Status::NotFound),
        (json!({"sessionId": ""}), true, Status::InvalidArgument),
        (json!({"snapshotId": ""}), true, Status::InvalidArgument),
        (json!({"snapshotID": "misspelt"}), true, Status::InvalidArgument),
        (json!(["no", "object"]), true, Status::InvalidArgument),
        (json!({"state": {"custom": {"heard": 3}}}), false, Status::InvalidArgument),
    ] {
        let error = refused(init.clone(), store).await;
        assert_eq!(error.status(), status, "{init}: {error}");
    }
    let unknown = refused(json!({"snapshotId": "x"}), true).await;
    assert!(matches!(unknown, RuntimeError::SnapshotNotFound(id) if &*id == "x"));
}

#[tokio::test(start_paused = true)]
async fn resume_from_session_id_new_conversation() {
    let agent = stored();
    let output = agent.run_text(&cx(), "one", AgentInit::session("meine sitzung/7")).await.unwrap();
    assert_eq!(output.session_id.as_deref(), Some("meine sitzung/7"));
    let latest = agent.get_latest_snapshot(&cx(), "meine sitzung/7").await.unwrap();
    assert_eq!(Some(latest.snapshot_id), output.snapshot_id);
}

#[tokio::test(start_paused = true)]
async fn json_init_rejects_unknown_fields() {
    let agent = stored();
    let init = json!({"sessionId": "s", "snapshotID": "misspelt"});
    let error = agent.connect_json(&cx(), init).await.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.to_string().contains("snapshotID"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn resume_from_session_id_failed_tip_resumes() {
    let agent = stored();
    let failed = agent.run_text(&cx(), "halfway", AgentInit::session("s")).await.unwrap();
    let next = agent.run_text(&cx(), "two", AgentInit::session("s")).await.unwrap();
    let row = agent.get_snapshot(&cx(), next.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.parent_id, failed.snapshot_id);
    let texts = texts(&row.state.unwrap());
    assert_eq!(texts, ["halfway", "half an answer", "two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn resume_from_session_id_pending_tip_rejected() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "nap", AgentInit::session("s")).await.unwrap();
    let refused = agent.run_text(&cx(), "two", AgentInit::session("s")).await.unwrap_err();
    assert_eq!(refused.error.status(), Status::FailedPrecondition);
    task.wait().await.unwrap();
    assert!(agent.run_text(&cx(), "two", AgentInit::session("s")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn resume_from_snapshot_id_with_session_id() {
    let agent = stored();
    let first = agent.run_text(&cx(), "one", AgentInit::session("s")).await.unwrap();
    let id = first.snapshot_id.unwrap();
    let mut init = AgentInit::snapshot(id.clone());
    init.session_id = Some("s".into());
    agent.run_text(&cx(), "two", init).await.unwrap();
    let mut init = AgentInit::snapshot(id);
    init.session_id = Some("another".into());
    let refused = agent.run_text(&cx(), "two", init).await.unwrap_err();
    assert_eq!(refused.error.status(), Status::InvalidArgument);
    assert!(refused.output.is_none(), "it never began");
}

#[tokio::test(start_paused = true)]
async fn resume_from_session_id_fork_continues_latest_branch() {
    let agent = stored();
    let root = agent.run_text(&cx(), "root", AgentInit::session("s")).await.unwrap();
    let root = root.snapshot_id.unwrap();
    for branch in ["left", "right"] {
        agent.run_text(&cx(), branch, AgentInit::snapshot(root.clone())).await.unwrap();
    }
    agent.run_text(&cx(), "next", AgentInit::session("s")).await.unwrap();
    let latest = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    let texts = texts(&latest.state.unwrap());
    assert_eq!(texts, ["root", "heard root", "right", "heard right", "next", "heard next"]);
}

/// A scripted agent over one row of session `s`.
async fn over(row: SessionSnapshot) -> antiphon_agent::Agent<Log> {
    let store = InMemorySessionStore::new();
    let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
    store.save_snapshot(&cx(), Some(&row.snapshot_id), &update).await.unwrap();
    scripted().store(store).build()
}

fn row(status: SnapshotStatus, with_state: bool, parent: Option<&str>) -> SessionSnapshot {
    let now = paused_clock()();
    let mut row = SessionSnapshot::new("r", "s", now);
    row.status = Some(status);
    row.parent_id = parent.map(Arc::from);
    row.state = with_state.then(SessionState::default);
    row
}

fn beaten(mut row: SessionSnapshot, ago: i64) -> SessionSnapshot {
    row.heartbeat_at = Some(row.created_at - SignedDuration::from_secs(ago));
    row
}

#[tokio::test(start_paused = true)]
async fn the_resume_matrix() {
    use SnapshotStatus::*;
    // What stands, and what the error says, if it is one.
    for (row, says) in [
        (row(Completed, true, None), None),
        (row(Failed, true, None), None),
        (row(Aborted, true, None), None),
        (row(Aborted, false, Some("p")), Some("resume \"p\"")),
        (row(Aborted, false, None), Some("nothing before it")),
        (row(Pending, false, Some("p")), Some("wait until its work is done, or abort it")),
        (beaten(row(Pending, false, Some("p")), 60), Some("wait until its work is done")),
        (beaten(row(Aborting, false, Some("p")), 1), Some("try again once it has settled")),
        (beaten(row(Pending, false, Some("p")), 61), Some("abort it, then resume \"p\"")),
        (beaten(row(Aborting, false, Some("p")), 61), Some("is gone: resume \"p\"")),
    ] {
        for init in [AgentInit::snapshot("r"), AgentInit::session("s")] {
            let result = over(row.clone()).await.run_text(&cx(), "one", init).await;
            match (result, says) {
                (Ok(output), None) => assert_eq!(output.error, None, "{row:?}"),
                (Err(refused), Some(says)) => {
                    assert_eq!(refused.error.status(), Status::FailedPrecondition);
                    assert!(refused.error.to_string().contains(says), "{}", refused.error);
                }
                (result, _) => panic!("{row:?}: {result:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stored_custom_state_of_another_type_names_its_snapshot() {
    let mut row = row(SnapshotStatus::Completed, true, None);
    row.state.as_mut().unwrap().custom = Some(json!({"heard": "not a list"}));
    let agent = over(row).await;
    let refused = agent.run_text(&cx(), "one", AgentInit::snapshot("r")).await.unwrap_err();
    assert_eq!(refused.error.status(), Status::FailedPrecondition);
    assert!(refused.error.to_string().contains("\"r\""), "{}", refused.error);
    let refused = agent.get_snapshot(&cx(), "r").await.unwrap_err();
    assert_eq!(refused.status(), Status::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_with_another_session_is_an_internal_error() {
    let store = Arc::new(super::FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    agent.run_text(&cx(), "one", AgentInit::session("s")).await.unwrap();
    store.answer_latest_of("s");
    let refused = agent.run_text(&cx(), "one", AgentInit::session("t")).await.unwrap_err();
    assert_eq!(refused.error.status(), Status::Internal);
}

#[tokio::test(start_paused = true)]
async fn resume_from_legacy_snapshot_mints_fresh_session_id() {
    let store = Arc::new(super::FlakyStore::default());
    let mut legacy = row(SnapshotStatus::Completed, true, None);
    legacy.session_id = None;
    store.plant(legacy);
    let agent = scripted().shared_store(store as Arc<dyn SessionStore>).build();
    let output = agent.run_text(&cx(), "one", AgentInit::snapshot("r")).await.unwrap();
    let id = output.session_id.unwrap();
    assert_eq!(id.len(), 36, "{id}");
}

#[tokio::test(start_paused = true)]
async fn client_managed_session_id_round_trip() {
    let agent = scripted().build();
    let state = SessionState { session_id: Some("mine".into()), ..SessionState::default() };
    let output = agent.run_text(&cx(), "one", AgentInit::state(state)).await.unwrap();
    assert_eq!(output.session_id.as_deref(), Some("mine"));
    assert_eq!(output.state.unwrap().session_id.as_deref(), Some("mine"));
}

#[tokio::test(start_paused = true)]
async fn rows_of_one_session_are_made_one_after_the_other_even_where_the_clock_stands() {
    let now: Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
    let agent = scripted().store(InMemorySessionStore::new()).clock(move || now).build();
    for n in 0..20 {
        agent.run_text(&cx(), format!("turn {n}"), AgentInit::session("s")).await.unwrap();
    }
    let latest = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!(latest.state.unwrap().messages.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn tenants_do_not_see_each_other() {
    let agent = stored();
    let of =
        |tenant: &str| cx().with_caller(antiphon_agent::Caller::new("c").scope(tenant.to_owned()));
    let output = agent.run_text(&of("a"), "one", AgentInit::session("s")).await.unwrap();
    let id = output.snapshot_id.unwrap();
    let refused = agent.run_text(&of("b"), "one", AgentInit::snapshot(id.clone())).await;
    assert_eq!(refused.unwrap_err().error.status(), Status::NotFound);
    assert_eq!(agent.get_snapshot(&cx(), id.clone()).await.unwrap_err().status(), Status::NotFound);
    assert!(agent.get_snapshot(&of("a"), id).await.is_ok());
    let fresh_start = agent.run_text(&of("b"), "two", AgentInit::session("s")).await.unwrap();
    let row = agent.get_snapshot(&of("b"), fresh_start.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(texts(&row.state.unwrap()), ["two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_with_another_snapshot_is_an_internal_error() {
    let store = Arc::new(super::FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let other = agent.run_text(&cx(), "one", AgentInit::session("s")).await.unwrap();
    let mine = agent.run_text(&cx(), "one", AgentInit::session("t")).await.unwrap();
    let mine = mine.snapshot_id.unwrap();
    store.answer_latest_of("s");
    let read = agent.get_latest_snapshot(&cx(), "t").await.unwrap_err();
    assert_eq!(read.status(), Status::Internal);
    store.answer_with(&other.snapshot_id.unwrap());
    let read = agent.get_snapshot(&cx(), mine.clone()).await.unwrap_err();
    assert_eq!(read.status(), Status::Internal);
    let refused = agent.run_text(&cx(), "one", AgentInit::snapshot(mine)).await.unwrap_err();
    assert_eq!(refused.error.status(), Status::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_custom_state_of_null_was_never_set() {
    let null = || SessionState { custom: Some(Value::Null), ..SessionState::default() };
    let agent = scripted().build();
    let output = agent.handle().run_text(&cx(), "one", AgentInit::state(null())).await.unwrap();
    assert_eq!(output.state.unwrap().custom, Some(json!({ "heard": ["one"] })));

    let store = Arc::new(super::FlakyStore::default());
    let mut stored = row(SnapshotStatus::Completed, true, None);
    stored.state = Some(null());
    store.plant(stored);
    let agent = scripted().shared_store(store as Arc<dyn SessionStore>).build();
    let output = agent.run_text(&cx(), "one", AgentInit::snapshot("r")).await.unwrap();
    assert_eq!(output.error, None);
}

#[tokio::test(start_paused = true)]
async fn invocations_of_one_session_at_once_are_branches() {
    let agent = stored();
    let root = agent.run_text(&cx(), "root", AgentInit::session("s")).await.unwrap().snapshot_id;
    let run = |text| {
        let agent = &agent;
        async move { agent.run_text(&cx(), text, AgentInit::session("s")).await.unwrap() }
    };
    let (left, right) = tokio::join!(run("nap left"), run("nap right"));
    for (output, text) in [(left, "nap left"), (right, "nap right")] {
        let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
        assert_eq!(row.parent_id, root);
        let heard = texts(&row.state.unwrap());
        assert_eq!(heard, ["root", "heard root", text, &format!("heard {text}")]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_taken_back_already_leaves_the_session_alone() {
    let agent = stored();
    let first = agent.run_text(&cx(), "one", AgentInit::session("s")).await.unwrap().snapshot_id;
    let back = tokio_util::sync::CancellationToken::new();
    back.cancel();
    let gone = cx().with_cancellation(back);
    let late = cx().with_deadline(tokio::time::Instant::now());
    for (ended, status) in [(gone, Status::Cancelled), (late, Status::DeadlineExceeded)] {
        let snapshot = AgentInit::snapshot(first.clone().unwrap());
        for init in [AgentInit::session("s"), snapshot, AgentInit::session("t")] {
            let refused = agent.run_text(&ended, "two", init).await.unwrap_err();
            assert_eq!(refused.error.status(), status);
            assert!(refused.output.is_none());
        }
        let detached = agent.run_detached(&ended, "two", AgentInit::session("s")).await;
        assert_eq!(detached.unwrap_err().status(), status);
    }
    let never = agent.get_latest_snapshot(&cx(), "t").await.unwrap_err();
    assert_eq!(never.status(), Status::NotFound);
    assert_eq!(agent.get_latest_snapshot(&cx(), "s").await.unwrap().snapshot_id, first.unwrap());
}
