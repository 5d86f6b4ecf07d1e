use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use antiphon_agent::{
    Caller, InMemorySessionStore, InvocationContext, Message, RuntimeError, SessionSnapshot,
    SessionState, SessionStore, SnapshotReader, SnapshotStatus, SnapshotSubscriber, SnapshotWriter,
    store::conformance::{self, Outcome, Stores},
};
use futures_util::{FutureExt, StreamExt};
use jiff::Timestamp;

fn row(session: &str, second: i64) -> SessionSnapshot {
    SessionSnapshot::new("", session, Timestamp::from_second(second).unwrap())
}

async fn save(store: &InMemorySessionStore, id: &str, row: SessionSnapshot) -> SessionSnapshot {
    let cx = InvocationContext::new();
    store.save_snapshot(&cx, Some(id), &|_| Ok(Some(row.clone()))).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_memory_store_conforms() {
    let factory = || async {
        let store = Arc::new(InMemorySessionStore::new());
        Stores::new(store.clone()).second(store)
    };
    let report = conformance::run(&factory).await;
    report.assert_passed();
    assert!(report.skipped().is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_conforms_on_several_threads() {
    // All cases over one store, at the same time.
    let store = Arc::new(InMemorySessionStore::new());
    let factory = move || std::future::ready(Stores::new(store.clone()).second(store.clone()));
    let mut running = tokio::task::JoinSet::new();
    for case in conformance::cases() {
        let factory = factory.clone();
        running.spawn(async move { (case.name(), case.run(&factory).await) });
    }
    for (name, outcome) in running.join_all().await {
        assert_eq!(outcome, Outcome::Passed, "{name}");
    }
}

#[tokio::test]
async fn rows_share_their_messages() {
    let (store, cx) = (InMemorySessionStore::new(), InvocationContext::new());
    let mut state = SessionState::default();
    state.messages.extend((0..100).map(|number| Message::user(number.to_string())));
    let parent = SessionSnapshot { state: Some(state.clone()), ..row("s", 1) };
    save(&store, "parent", parent).await;
    state.messages.push(Message::model("More."));
    let child = SessionSnapshot { state: Some(state), ..row("s", 2) };
    save(&store, "child", child).await;

    let read = async |id: &str| store.get_snapshot(&cx, id).await.unwrap().unwrap().state.unwrap();
    let (parent, child) = (read("parent").await.messages, read("child").await.messages);
    assert_eq!(child.shared_prefix(&parent), 100);
}

#[tokio::test]
async fn the_oldest_settled_rows_go_where_a_session_has_a_limit() {
    let cx = InvocationContext::new();
    let store =
        InMemorySessionStore::new().max_snapshots_per_session(NonZeroUsize::new(2).unwrap());
    let pending = SessionSnapshot { status: Some(SnapshotStatus::Pending), ..row("s", 1) };
    save(&store, "work", pending).await;
    for (id, second) in [("a", 2), ("b", 3), ("c", 4)] {
        save(&store, id, row("s", second)).await;
    }
    save(&store, "other", row("t", 1)).await;
    // A rewrite is no new row.
    save(&store, "c", row("s", 4)).await;

    let mut kept = Vec::new();
    for id in ["work", "a", "b", "c", "other"] {
        if store.get_snapshot(&cx, id).await.unwrap().is_some() {
            kept.push(id);
        }
    }
    assert_eq!(kept, ["work", "c", "other"]);
    let latest = store.get_latest_snapshot(&cx, "s").await.unwrap().unwrap();
    assert_eq!(*latest.snapshot_id, *"c");
}

#[tokio::test]
async fn a_removed_session_is_gone_and_its_subscriptions_end() {
    let (store, cx) = (InMemorySessionStore::new(), InvocationContext::new());
    save(&store, "a", row("s", 1)).await;
    save(&store, "b", row("t", 1)).await;
    let mut statuses = store.on_snapshot_status_change(&cx, "a");
    assert_eq!(statuses.next().await, Some(SnapshotStatus::Completed));
    assert!(statuses.next().now_or_never().is_none());

    // Another tenant's session of that name is another.
    let other = InvocationContext::new().with_caller(Caller::new("x").scope("tenant"));
    store.remove_session(&other, "s");
    assert!(store.get_snapshot(&cx, "a").await.unwrap().is_some());

    store.remove_session(&cx, "s");
    assert_eq!(statuses.next().await, None);
    assert!(store.get_snapshot(&cx, "a").await.unwrap().is_none());
    assert!(store.get_latest_snapshot(&cx, "s").await.unwrap().is_none());
    assert!(store.get_snapshot(&cx, "b").await.unwrap().is_some());
}

#[tokio::test]
async fn an_update_may_use_the_store_and_is_asked_again_when_it_changed_the_row() {
    let (store, cx) = (InMemorySessionStore::new(), InvocationContext::new());
    save(&store, "a", row("s", 1)).await;
    let calls = std::sync::atomic::AtomicU32::new(0);
    let meddling = |existing: Option<&SessionSnapshot>| {
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            let aborted = SessionSnapshot {
                status: Some(SnapshotStatus::Aborted),
                ..existing.unwrap().clone()
            };
            save(&store, "a", aborted).now_or_never().unwrap();
        }
        Ok(existing.filter(|row| row.status() == SnapshotStatus::Completed).cloned())
    };
    assert_eq!(store.save_snapshot(&cx, Some("a"), &meddling).await.unwrap(), None);
    assert_eq!(calls.into_inner(), 2);
    let read = store.get_snapshot(&cx, "a").await.unwrap().unwrap();
    assert_eq!(read.status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_ends_with_its_context() {
    let store = InMemorySessionStore::new();
    save(&store, "a", row("s", 1)).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    let cx = InvocationContext::new().with_deadline(deadline);
    let statuses: Vec<_> = store.on_snapshot_status_change(&cx, "a").collect().await;
    assert_eq!(statuses, [SnapshotStatus::Completed]);
    assert_eq!(tokio::time::Instant::now(), deadline);
    let late: Vec<_> = store.on_snapshot_status_change(&cx, "a").collect().await;
    assert_eq!(late, []);
}

#[tokio::test]
async fn metadata_is_read_by_the_way_that_the_store_has() {
    let cx = InvocationContext::new();
    let store = InMemorySessionStore::new();
    let full = SessionSnapshot { state: Some(SessionState::default()), ..row("s", 1) };
    let written = save(&store, "a", full).await;
    let store: Arc<dyn SessionStore> = Arc::new(store);
    let expected = Some(written.with_state(None));
    assert_eq!(store.read_metadata(&cx, "a").await.unwrap(), expected);
    assert_eq!(store.read_latest_metadata(&cx, "s").await.unwrap(), expected);
    assert_eq!(store.read_metadata(&cx, "b").await.unwrap(), None);
    let error = store.read_metadata(&cx, "").await.unwrap_err();
    assert!(matches!(error, RuntimeError::InvalidArgument(_)));
}
