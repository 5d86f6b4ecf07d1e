//! Sessions whose store cannot write, or does not keep up.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use antiphon::{
    agent::{FuncTool, OnStoreStall, RuntimeLimits, ToolRegistry, types::JsonObject},
    session::*,
};
use serde_json::json;

use super::*;
use crate::rig::*;

/// A session over `store` that is to do so where it stalls.
async fn stalling(store: Arc<SlowStore>, stall: OnStoreStall) -> Rig {
    let mut limits = RuntimeLimits::default();
    limits.on_store_stall = stall;
    let agent = limited(store, Arc::default(), limits);
    linked(&agent, |builder| builder).await
}

/// So many turns, each answered at once. What was told of their commits.
async fn talk(rig: &mut Rig, turns: usize, words: &str) -> Vec<EventKind> {
    let mut told = Vec::new();
    for n in 0..turns {
        rig.user_says(&format!("u{n}"), words).says(&format!("r{n}"), "And again.", 100);
        rig.speaker_catches_up().await;
        told.extend(rig.until(is_turn_finished).await);
    }
    told.extend(rig.now().await);
    told.retain(is_committed);
    told
}

fn why(kind: &EventKind) -> &str {
    match kind {
        EventKind::TurnCommitted { snapshot_id: None, error: Some(error), .. } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_the_stores_words_where_it_is_to() {
    let store = SlowStore::open();
    store.fails.store(true, SeqCst);
    let mut rig = stalling(store, OnStoreStall::End).await;
    rig.user_says("u1", "One.").says("r1", "First.", 500);
    rig.speaker_catches_up().await;
    let (events, reason) = rig.end().await;
    let lost = events.iter().find(|kind| is_committed(kind)).unwrap();
    assert_eq!(why(lost), "the disk is full");
    assert_eq!(reason, EndReason::StoreFailed { message: "the disk is full".into() });
}

#[tokio::test(start_paused = true)]
async fn a_session_talks_on_while_its_store_is_waited_for() {
    let store = SlowStore::open();
    store.fails.store(true, SeqCst);
    let mut rig = stalling(store.clone(), OnStoreStall::Wait(60 * SECOND)).await;
    assert_eq!(talk(&mut rig, 3, "Hello.").await, [], "nothing is lost yet");
    store.fails.store(false, SeqCst);
    let mut parent = None;
    for _ in 0..3 {
        let events = rig.until(is_committed).await;
        let (id, before) = ids(events.last().unwrap());
        assert!(id.is_some());
        assert_eq!(before, parent);
        parent = id;
    }

    store.fails.store(true, SeqCst);
    let began = tokio::time::Instant::now();
    assert_eq!(talk(&mut rig, 1, "Hello.").await, []);
    let (_, reason) = rig.end().await;
    assert!(matches!(reason, EndReason::StoreFailed { .. }), "{reason:?}");
    let took = began.elapsed();
    assert!(took >= 50 * SECOND && took <= 65 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_holds_up_neither_the_conversation_nor_for_long_its_end() {
    let mut rig = stalling(SlowStore::new(0), OnStoreStall::GoOn).await;
    let told = talk(&mut rig, 70, "Again.").await;
    let behind = told.iter().filter(|kind| why(kind).contains("wait to be written")).count();
    assert!((1..=6).contains(&behind), "64 may wait: {told:?}");
    rig.session.stop();
    let (_, reason) = tokio::time::timeout(30 * SECOND, rig.end()).await.unwrap();
    assert_eq!(reason, EndReason::Stopped);
}

#[tokio::test(start_paused = true)]
async fn large_turns_reach_the_bound_before_many_do_and_the_next_commit_has_all() {
    let store = SlowStore::new(0);
    let mut limits = RuntimeLimits::default();
    limits.unwritten_bytes = 100_000;
    let agent = limited(store.clone(), Arc::default(), limits);
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let words = "word ".repeat(10_000);
    let told = talk(&mut rig, 5, &words).await;
    assert_eq!(told.len(), 3, "two of 50 kB may wait");
    assert!(told.iter().all(|kind| why(kind).contains("wait to be written")), "{told:?}");
    store.writes.add_permits(100);
    for _ in 0..2 {
        rig.committed(&agent).await;
    }
    let last = rig.turn(&agent, "Short.", "Shorter.").await;
    assert_eq!(lines(&last).len(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_finds_no_place_keeps_what_its_tools_changed_for_the_next() {
    let store = SlowStore::new(0);
    let mut limits = RuntimeLimits::default();
    (limits.unwritten_turns, limits.store) = (1_000, Duration::from_secs(36_000));
    let visit = FuncTool::new("visit", "Visits.", None, |cx, _args| async move {
        let session = cx.invocation.session_access().unwrap();
        session.update_custom_json(&mut |state| state["visits"] = json!(1)).unwrap();
        Ok(JsonObject::new())
    });
    let registry = ToolRegistry::new();
    registry.must_register(visit);
    let agent = limited(store.clone(), Arc::new(registry), limits);
    let mut rig = linked(&agent, |builder| builder).await;
    // One is being written, and 128 wait behind it.
    assert_eq!(talk(&mut rig, 129, "Again.").await, []);
    rig.user_says("v", "Visit me.").calls_tool("v1", "c1", "visit", "{}");
    rig.settle().await;
    rig.says("v2", "I was there.", 100);
    rig.speaker_catches_up().await;
    let told = rig.until(is_committed).await;
    assert!(why(told.last().unwrap()).contains("128 turns wait"), "{:?}", told.last());

    store.writes.add_permits(1_000);
    for _ in 0..129 {
        let row = rig.committed(&agent).await;
        assert_eq!(row.state.unwrap().custom, None, "not before its turn");
    }
    let row = rig.turn(&agent, "And now?", "Still.").await;
    assert_eq!(row.state.as_ref().unwrap().custom, Some(json!({ "visits": 1 })));
    let lines = lines(&row);
    assert_eq!(lines.len(), 129 * 2 + 4 + 2);
    let visited = ["user: Visit me.", "model: ?visit {}", "tool: !visit {}", "model: I was there."];
    assert_eq!(lines[258..262], visited);
}

#[tokio::test(start_paused = true)]
async fn turns_that_found_no_place_have_one_at_the_end() {
    let store = SlowStore::new(0);
    let mut limits = RuntimeLimits::default();
    limits.unwritten_turns = 2;
    let agent = limited(store.clone(), Arc::default(), limits);
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    assert_eq!(talk(&mut rig, 4, "Hello.").await.len(), 2, "two may wait");
    rig.session.stop();
    rig.settle().await;
    store.writes.add_permits(9);
    let (events, _) = rig.end().await;
    let [.., committed, _] = &events[..] else { panic!("{events:?}") };
    let row = agent.get_snapshot(&cx(), ids(committed).0.expect("a snapshot")).await.unwrap();
    assert_eq!(lines(&row), ["user: Hello.", "model: And again."].repeat(4));
    let latest = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!(latest.snapshot_id, row.snapshot_id);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_keep_up_ends_where_it_is_to() {
    let mut limits = RuntimeLimits::default();
    limits.unwritten_turns = 3;
    limits.store = Duration::from_secs(3_600);
    limits.on_store_stall = OnStoreStall::End;
    let agent = limited(SlowStore::new(0), Arc::default(), limits);
    let mut rig = linked(&agent, |builder| builder).await;
    talk(&mut rig, 3, "Hello.").await;
    rig.user_says("u9", "One too many.").says("r9", "Indeed.", 100);
    rig.speaker_catches_up().await;
    let (_, reason) = rig.end().await;
    let EndReason::StoreFailed { message } = reason else { panic!("{reason:?}") };
    assert!(message.contains("wait to be written"), "{message}");
}
