//! What is told of turns and calls where a store is slow, a row is somebody else's, or much is under way.

use antiphon::{
    agent::{
        Caller, FuncTool, InMemory, InMemorySessionStore, InvocationContext, Memory, MemoryError,
        SnapshotStatus, ToolContext, ToolRegistry,
        approval::{Answer, Approvals},
        ledger::{CallLedger, CallRecord, CallUpdate},
        types::JsonObject,
    },
    session::*,
};
use serde_json::json;

use super::{
    approvals::{ask, asking, goes_on, is_settled, parks},
    hangup::{Watched, at_work, detached, is_detached, pay, paying},
    *,
};
use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn the_last_turn_is_waited_for_where_its_store_is_slow() {
    let store = SlowStore::new(0);
    let agent = speaking(store.clone(), Arc::default());
    let mut rig = linked(&agent, |builder| builder).await;
    rig.user_says("u1", "One.").says("r1", "First.", 500);
    rig.speaker_catches_up().await;
    rig.until(is_turn_finished).await;
    rig.session.stop();
    // Longer than a session takes to close by itself.
    let disk = tokio::spawn(async move {
        tokio::time::sleep(10 * SECOND).await;
        store.writes.add_permits(9);
    });
    let (events, reason) = rig.end().await;
    disk.await.unwrap();
    assert_eq!(reason, EndReason::Stopped);
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    let row = agent.get_snapshot(&cx(), ids(committed).0.unwrap()).await.unwrap();
    assert_eq!(lines(&row), ["user: One.", "model: First."]);
}

#[tokio::test(start_paused = true)]
async fn last_turns_that_nobody_waits_for_any_more_are_told_as_lost_before_the_end() {
    let agent = speaking(SlowStore::new(0), Arc::default());
    let mut rig = linked(&agent, |builder| builder).await;
    for turn in ["u1", "u2"] {
        rig.user_says(turn, "One.").says(&format!("r{turn}"), "First.", 500);
        rig.speaker_catches_up().await;
        rig.until(is_turn_finished).await;
    }
    rig.session.stop();
    let (events, _) = rig.end().await;
    let lost = events.iter().filter(|kind| match kind {
        EventKind::TurnCommitted { snapshot_id, error, .. } => {
            assert_eq!(*snapshot_id, None);
            assert!(error.as_ref().unwrap().contains("before the store had written"), "{error:?}");
            true
        }
        _ => false,
    });
    assert_eq!(lost.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_said_while_a_detach_failed_is_kept() {
    let permits = Arc::new(Semaphore::new(0));
    let store = Arc::new(Watched(SlowStore::new(0)));
    let agent = speaking(store.clone(), pay(&permits));
    let mut rig = at_work(&agent).await;
    // The row that is to stand for the work waits for the disk.
    rig.session.stop();
    rig.settle().await;
    permits.add_permits(1);
    rig.outputs().await;
    rig.says("r2", "I paid five.", 500);
    rig.until(is_turn_finished).await;
    store.0.fails.store(true, SeqCst);
    store.0.writes.add_permits(1);
    rig.settle().await;
    store.0.fails.store(false, SeqCst);
    store.0.writes.add_permits(9);
    let (events, _) = rig.end().await;
    assert!(!events.iter().any(is_detached), "{events:?}");
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    let row = agent.get_snapshot(&cx(), ids(committed).0.expect("a snapshot")).await.unwrap();
    let lines = lines(&row);
    assert_eq!(lines[0], "user: Pay five.");
    assert!(lines.iter().any(|line| line.starts_with("tool: !pay")), "{lines:#?}");
    let said = row.state.unwrap().messages.last().unwrap().metadata.clone().unwrap();
    assert_eq!(said[VOICE]["generated"], "I paid five.");
}

#[tokio::test(start_paused = true)]
async fn work_whose_row_others_settled_is_not_told_as_committed_and_its_calls_are_not_forgotten() {
    let permits = Arc::new(Semaphore::new(0));
    let store = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store.clone(), pay(&permits));
    let mut rig = linked(&agent, |builder| builder.on_hangup(OnHangup::Detach).resume("s")).await;
    let before = rig.turn(&agent, "Hello.", "Good day.").await.snapshot_id;
    rig.user_says("u1", "Pay five.").calls_tool("r1", "c1", "pay", r#"{"amount": 5}"#);
    rig.until(|kind| matches!(kind, EventKind::ToolCall { .. })).await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    // Somebody takes the worker for dead.
    let settle = |row: Option<&SessionSnapshot>| {
        let mut row = row.unwrap().clone();
        row.status = Some(SnapshotStatus::Failed);
        Ok(Some(row))
    };
    store.save_snapshot(&cx(), Some(&id), &settle).await.unwrap();
    permits.add_permits(1);
    rig.outputs().await;
    rig.says("r2", "I paid five.", 500);
    let (events, _) = rig.end().await;
    let told = events.iter().find_map(|kind| match kind {
        EventKind::TurnCommitted { snapshot_id, error, .. } => Some((snapshot_id, error)),
        _ => None,
    });
    let (snapshot_id, error) = told.unwrap();
    assert_eq!(*snapshot_id, None);
    assert!(error.is_some());
    // Whoever goes on from what is there is told of the call.
    let rig = linked(&agent, |builder| builder.resume_snapshot(before)).await;
    let history = json!(rig.provider.requests()[0].history).to_string();
    assert!(history.contains(r#""amount":5"#), "{history}");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_told_though_the_queue_was_full_when_it_came() {
    let (agent, store, _) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    let parked = tokio::time::Instant::now();
    goes_on(&mut rig, &agent).await;
    // The session looks once a second; when it finds the outcome, all its places are taken.
    tokio::time::sleep_until(parked + 3_500 * MS).await;
    let session = rig.session.clone();
    let flood = tokio::spawn(async move {
        tokio::time::sleep_until(parked + 5 * SECOND).await;
        while session.clear_audio().is_ok() {}
    });
    tokio::time::sleep_until(parked + 4_500 * MS).await;
    let approvals = Approvals::new(store).unwrap();
    approvals.deny(&cx(), &key, Answer::new()).await.unwrap();
    rig.until(is_settled).await;
    flood.await.unwrap();
    assert!(!rig.now().await.iter().any(is_settled), "once");
}

/// A store whose open calls cannot be read the next so many times.
struct Forgetful {
    inner: InMemorySessionStore,
    /// Reads that succeed before the ones that fail.
    good: std::sync::atomic::AtomicUsize,
    bad: std::sync::atomic::AtomicUsize,
}

impl Forgetful {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemorySessionStore::new(),
            good: usize::MAX.into(),
            bad: 0.into(),
        })
    }
}

#[async_trait]
impl SnapshotReader for Forgetful {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.inner.get_snapshot(cx, id).await
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.inner.get_latest_snapshot(cx, session).await
    }
}

#[async_trait]
impl SnapshotWriter for Forgetful {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.inner.save_snapshot(cx, id, update).await
    }
}

#[async_trait]
impl CallLedger for Forgetful {
    async fn call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        self.inner.call(cx, key).await
    }

    async fn open_calls(
        &self,
        cx: &InvocationContext,
        session: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError> {
        let one_less = |left: usize| left.checked_sub(1);
        if self.good.fetch_update(SeqCst, SeqCst, one_less).is_err()
            && self.bad.fetch_update(SeqCst, SeqCst, one_less).is_ok()
        {
            return Err(RuntimeError::new(Status::Unavailable, "the disk is away"));
        }
        self.inner.open_calls(cx, session).await
    }

    async fn save_call(
        &self,
        cx: &InvocationContext,
        key: &str,
        update: &CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        self.inner.save_call(cx, key, update).await
    }
}

impl SessionStore for Forgetful {
    fn call_ledger(&self) -> Option<&dyn CallLedger> {
        Some(self)
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_before_are_attended_to_though_they_could_not_be_read_at_first() {
    let store = Forgetful::new();
    let agent = speaking(store.clone(), paying_at_once());
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.stop();
    rig.end().await;

    // The first read is that of the history; those of the session fail for a while.
    store.good.store(1, SeqCst);
    store.bad.store(3, SeqCst);
    let mut rig = linked(&agent, ask).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(store.bad.load(SeqCst), 0);
    let approvals = Approvals::new(store).unwrap();
    approvals.deny(&cx(), &key, Answer::new().by("ann")).await.unwrap();
    rig.until(is_settled).await;
}

fn paying_at_once() -> Arc<ToolRegistry> {
    pay(&Arc::new(Semaphore::new(9)))
}

/// A tool that leaves a note in the memory that it sees.
fn noting() -> Arc<ToolRegistry> {
    let tool = FuncTool::new("pay", "Notes.", None, |cx: ToolContext, _| async move {
        let noted: Result<(), MemoryError> = cx.memory.set("paid", "five").await;
        noted.unwrap();
        Ok(JsonObject::new())
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    Arc::new(registry)
}

#[tokio::test(start_paused = true)]
async fn an_approved_tool_sees_the_memory_of_its_caller_whoever_approves() {
    for elsewhere in [false, true] {
        let store = Arc::new(InMemorySessionStore::new());
        let agent = speaking(store.clone(), noting());
        let memory: Arc<dyn Memory> = Arc::new(InMemory::new());
        let of_caller = |builder: SessionBuilder| {
            let caller = Caller::new("ann").scope("acme");
            ask(builder).caller(caller).memory(memory.clone()).memory_scope(MemoryScope::Caller)
        };
        let mut rig = linked(&agent, of_caller).await;
        let key = parks(&mut rig).await;
        if elsewhere {
            rig.session.stop();
            rig.end().await;
            let approvals = Approvals::new(store).unwrap();
            let tools = ToolExecutor::new(noting(), None);
            let cx = InvocationContext::new().with_caller(Caller::new("boss").scope("acme"));
            let answer = Answer::new();
            approvals.approve(&cx, &key, answer, &tools, memory.clone()).await.unwrap();
        } else {
            rig.session.approve(&key, Answer::new()).await.unwrap();
        }
        let keys = memory.list("").await.unwrap();
        assert_eq!(keys, ["/acme/ann/paid"], "elsewhere: {elsewhere}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_work_finished_by_a_process_that_is_gone_hears_of_it_once() {
    let permits = Arc::new(Semaphore::new(1));
    let agent = paying(&permits);
    let mut rig = at_work(&agent).await;
    rig.session.stop();
    rig.end().await;
    for _ in 0..2 {
        let rig = linked(&agent, |builder| builder.resume("s")).await;
        let history = &rig.provider.requests()[0].history;
        let outputs = history
            .iter()
            .filter(|item| matches!(item, antiphon::live::HistoryItem::Tool { .. }))
            .count();
        assert_eq!(outputs, 1, "{history:?}");
        rig.session.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_comes_while_the_session_ends_stands_in_the_history() {
    let permits = Arc::new(Semaphore::new(0));
    let store = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store, pay(&permits));
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    let (session, approved) = (rig.session.clone(), key.clone());
    let deciding =
        tokio::spawn(async move { session.approve(&approved, Answer::new()).await.unwrap() });
    rig.settle().await;
    // The tool ends within the time that the session takes to close.
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        permits.add_permits(1);
    });
    rig.session.shutdown(SECOND).await.unwrap();
    deciding.await.unwrap();
    let tip = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    let told = lines(&tip).into_iter().filter(|line| line.contains(r#"!pay {"amount":5}"#));
    assert_eq!(told.count(), 1, "{:#?}", lines(&tip));
    // And is told once.
    let rig = linked(&agent, ask).await;
    let history = &rig.provider.requests()[0].history;
    let told = history.iter().filter(|item| match item {
        antiphon::live::HistoryItem::Tool { response, .. } => {
            response.get("amount") == Some(&json!(5))
        }
        _ => false,
    });
    assert_eq!(told.count(), 1, "{history:?}");
}
