//! Hanging up on work that goes on.

use antiphon::{
    agent::{
        AgentFinishReason, Effects, FuncTool, InMemorySessionStore, RuntimeLimits, SnapshotStatus,
        ToolRegistry,
    },
    live::ReplyOutcome,
    session::*,
    types::ToolDefinition,
};
use serde_json::json;

use super::*;
use crate::rig::*;

/// Pays once there is a permit.
pub(super) fn pay(permits: &Arc<Semaphore>) -> Arc<ToolRegistry> {
    let permits = permits.clone();
    let tool = FuncTool::new("pay", "Pays.", json!({ "type": "object" }), move |_cx, args| {
        let permits = permits.clone();
        async move {
            permits.acquire().await.unwrap().forget();
            Ok(args)
        }
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool.timeout(3_600 * SECOND));
    Arc::new(registry)
}

pub(super) fn paying(permits: &Arc<Semaphore>) -> Agent {
    speaking(Arc::new(InMemorySessionStore::new()), pay(permits))
}

/// A session in which the tool is at work and the agent said that it is.
pub(super) async fn at_work(agent: &Agent) -> Rig {
    let detached = |builder: SessionBuilder| builder.on_hangup(OnHangup::Detach).resume("s");
    let mut rig = linked(agent, detached).await;
    rig.user_says("u1", "Pay five.").reply("r1").words("r1", "One moment.").audio("r1", 1_000);
    rig.calls("r1", &[("c1", "pay", r#"{"amount": 5}"#)]).done("r1");
    rig.until(|kind| matches!(kind, EventKind::ToolCall { .. })).await;
    rig
}

pub(super) fn detached(events: &[EventKind]) -> Arc<str> {
    let found = events.iter().find_map(|kind| match kind {
        EventKind::Detached { snapshot_id } => Some(snapshot_id.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nothing was left behind: {events:?}"))
}

pub(super) fn is_detached(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Detached { .. })
}

#[tokio::test(start_paused = true)]
async fn the_turn_of_a_caller_who_hung_up_is_finished_under_a_pending_snapshot() {
    let permits = Arc::new(Semaphore::new(0));
    let agent = paying(&permits);
    let mut rig = at_work(&agent).await;
    rig.speaker.play(500 * PER_MS);
    rig.settle().await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    let task = agent.task(&cx(), id.clone());
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    // It is alive for as long as it takes.
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    assert!(rig.session.send_text("Hello?").is_err(), "the caller is gone");
    let waits = tokio::spawn({
        let task = task.clone();
        async move { task.wait().await.unwrap() }
    });
    permits.add_permits(1);
    let outputs = rig.outputs().await;
    assert_eq!(outputs[0].response["amount"], 5);
    rig.says("r2", "I paid five.", 1_000);
    let (events, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    assert_eq!(ids(committed), (Some(id.clone()), None));
    let row = waits.await.unwrap();
    assert_eq!((&row.snapshot_id, row.status()), (&id, SnapshotStatus::Completed));
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Stop));
    let lines = lines(&row);
    assert_eq!(lines[0], "user: Pay five.");
    assert!(lines[1].starts_with("model: One| [The reply was cut off"), "{lines:?}");
    assert_eq!(lines[2..4], [r#"model: ?pay {"amount":5}"#, r#"tool: !pay {"amount":5}"#]);
    assert!(lines[4].contains("before the user heard any of it"), "{lines:?}");
    let unheard = voice(&row, 4);
    assert_eq!((&unheard["heard_ms"], &unheard["generated_ms"]), (&json!(0), &json!(1_000)));
    assert_eq!(unheard["generated"], "I paid five.");
    // The conversation goes on from there.
    let rig = linked(&agent, |builder| builder.resume("s")).await;
    assert_eq!(rig.provider.requests()[0].history.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_the_model_was_about_to_do_is_done_too() {
    let permits = Arc::new(Semaphore::new(1));
    let agent = paying(&permits);
    let detached = |builder: SessionBuilder| builder.on_hangup(OnHangup::Detach);
    let mut rig = linked(&agent, detached).await;
    rig.user_says("u1", "Pay five.").reply("r1").words("r1", "One moment.").audio("r1", 500);
    rig.settle().await;
    rig.session.stop();
    rig.until(is_detached).await;
    rig.audio("r1", 500).calls("r1", &[("c1", "pay", r#"{"amount": 5}"#)]).done("r1");
    rig.settle().await;
    rig.says("r2", "Paid.", 500);
    let (events, _) = rig.end().await;
    let played = events.iter().any(|kind| matches!(kind, EventKind::PlaybackStarted));
    assert!(!played, "nobody listens: {events:?}");
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    let row = agent.get_snapshot(&cx(), ids(committed).0.unwrap()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);
    let lines = lines(&row);
    assert!(lines.contains(&r#"tool: !pay {"amount":5}"#.to_owned()), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn the_work_is_aborted_by_whoever_has_its_snapshot() {
    let permits = Arc::new(Semaphore::new(0));
    let agent = paying(&permits);
    let mut rig = at_work(&agent).await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    let status = agent.abort(&cx(), &id).await.unwrap();
    assert_eq!(status, Some(SnapshotStatus::Aborting));
    let (events, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    assert_eq!(ids(committed).0, Some(id.clone()));
    let row = agent.get_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Aborted));
    let lines = lines(&row);
    assert_eq!(lines[0], "user: Pay five.");
    assert!(lines.last().unwrap().starts_with("tool: !pay"), "the call is settled: {lines:?}");
    assert_eq!(outcomes(&events)[0].1, antiphon::agent::Outcome::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_is_hanging_up() {
    let permits = Arc::new(Semaphore::new(0));
    let agent = paying(&permits);
    let rig = at_work(&agent).await;
    let Rig { session, mut events, far, provider: _provider, speaker: _speaker } = rig;
    drop(session);
    let id = detached(&until(&mut events, is_detached).await);
    permits.add_permits(1);
    tokio::time::sleep(SECOND).await;
    let start = |reply: &str| {
        far.emit(antiphon::live::LiveEvent::ReplyStarted { reply: reply.into(), request: None });
        let outcome = ReplyOutcome::Completed;
        far.emit(antiphon::live::LiveEvent::ReplyDone {
            reply: reply.into(),
            outcome,
            usage: None,
        });
    };
    start("r2");
    let row = agent.task(&cx(), id).wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);
    until(&mut events, |kind| matches!(kind, EventKind::SessionEnded { .. })).await;
}

#[tokio::test(start_paused = true)]
async fn with_nothing_under_way_hanging_up_leaves_nothing_behind() {
    let agent = plain();
    let detached = |builder: SessionBuilder| builder.on_hangup(OnHangup::Detach).resume("s");
    let mut rig = linked(&agent, detached).await;
    let row = rig.turn(&agent, "Hello.", "Good day.").await;
    rig.session.stop();
    let (events, _) = rig.end().await;
    assert!(!events.iter().any(is_detached), "{events:?}");
    let latest = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!(latest.snapshot_id, row.snapshot_id);
}

#[tokio::test(start_paused = true)]
async fn calls_that_the_host_answers_are_refused_at_once_when_it_is_gone() {
    let agent = plain();
    let setup = Setup::new()
        .build(|builder| builder.agent(&agent).on_hangup(OnHangup::Detach))
        .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    rig.user_says("u1", "Ask them.").calls_tool("r1", "c1", "mine", "{}");
    rig.until(|kind| matches!(kind, EventKind::HostToolCall { .. })).await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    let refused = |outputs: Vec<antiphon::types::ToolResponse>| {
        assert_eq!(outputs.len(), 1);
        let text = outputs[0].response["error"].as_str().unwrap().to_owned();
        assert!(text.contains("hung up"), "{text}");
    };
    refused(rig.outputs().await);
    // Neither is one that comes now offered to anybody.
    rig.calls_tool("r2", "c2", "mine", "{}");
    refused(rig.outputs().await);
    rig.says("r3", "They are gone.", 500);
    let (events, _) = rig.end().await;
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::HostToolCall { .. })));
    let row = agent.get_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);
    let outputs = lines(&row).into_iter().filter(|line| line.starts_with("tool: !mine")).count();
    assert_eq!(outputs, 2, "{:?}", lines(&row));
}

#[tokio::test(start_paused = true)]
async fn work_is_not_left_for_ever() {
    let permits = Arc::new(Semaphore::new(0));
    let agent = paying(&permits);
    let mut rig = at_work(&agent).await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    let began = tokio::time::Instant::now();
    let (_, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    assert_eq!(began.elapsed().as_secs(), 15 * 60);
    let row = agent.get_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_answer_to_an_output_does_not_keep_the_work() {
    let permits = Arc::new(Semaphore::new(1));
    let agent = paying(&permits);
    let mut rig = at_work(&agent).await;
    rig.session.stop();
    let began = tokio::time::Instant::now();
    rig.end().await;
    assert!(began.elapsed() < 120 * SECOND, "{:?}", began.elapsed());
    let row = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert!(row.status().is_terminal(), "{row:?}");
    assert!(lines(&row).iter().any(|line| line.starts_with("tool: !pay")));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_meanwhile_is_replaced() {
    let permits = Arc::new(Semaphore::new(0));
    let agent = paying(&permits);
    let mut rig = at_work(&agent).await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    rig.far.close(1011, "gone");
    rig.far = rig.provider.far_end().await;
    permits.add_permits(1);
    let row = agent.task(&cx(), id).wait().await.unwrap();
    assert!(row.status().is_terminal());
    assert!(lines(&row).iter().any(|line| line.starts_with("tool: !pay")));
    rig.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_written_aborts_the_work() {
    let permits = Arc::new(Semaphore::new(0));
    let store = Arc::new(Watched(SlowStore::open()));
    let agent = speaking(store.clone(), pay(&permits));
    let mut rig = at_work(&agent).await;
    store.0.fails.store(true, SeqCst);
    rig.session.stop();
    let (events, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    assert!(!events.iter().any(is_detached), "{events:?}");
    let told = events.iter().any(
        |kind| matches!(kind, EventKind::Error { message, .. } if message.contains("background")),
    );
    assert!(told, "{events:?}");
    assert_eq!(outcomes(&events)[0].1, antiphon::agent::Outcome::Cancelled);
}

#[test]
fn a_store_that_tells_nobody_of_changes_is_refused_when_the_session_is_built() {
    let agent = speaking(SlowStore::open(), Arc::default());
    let refused = |builder: SessionBuilder| match builder.build() {
        Err(StartError::InvalidConfig(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let builder = Setup::new().builder.agent(&agent).on_hangup(OnHangup::Detach);
    let reason = refused(builder);
    assert!(reason.contains("tells nobody of changes"), "{reason}");
    let reason = refused(Setup::new().builder.on_hangup(OnHangup::Detach));
    assert!(reason.contains("link one"), "{reason}");
}

/// A process that dies while it works for a caller who hung up: another one sees that it is gone.
#[tokio::test(start_paused = true)]
async fn a_tool_that_was_cut_off_by_hanging_up_is_unknown_and_keeps_its_key() {
    let permits = Arc::new(Semaphore::new(0));
    let keys: Arc<std::sync::Mutex<Vec<Arc<str>>>> = Arc::default();
    let (waits, noted) = (permits.clone(), keys.clone());
    let tool = FuncTool::new("pay", "Pays.", json!({ "type": "object" }), move |cx, args| {
        let (permits, keys) = (waits.clone(), noted.clone());
        async move {
            keys.lock().unwrap().push(cx.idempotency_key.clone());
            permits.acquire().await.unwrap().forget();
            Ok(args)
        }
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool.effects(Effects::Idempotent));
    let agent = speaking(Arc::new(InMemorySessionStore::new()), Arc::new(registry));
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.user_says("u1", "Pay five.").calls_tool("r1", "c1", "pay", r#"{"amount": 5}"#);
    rig.until(|kind| matches!(kind, EventKind::ToolCall { .. })).await;
    rig.settle().await;
    rig.session.stop();
    rig.end().await;

    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let history = json!(rig.provider.requests()[0].history).to_string();
    assert!(history.contains("outcome of this call is not known"), "{history}");
    let events = rig.now().await;
    let unknown = events.iter().find_map(|kind| match kind {
        EventKind::SessionResumed(resumed) => Some(resumed.unknown_calls.clone()),
        _ => None,
    });
    assert_eq!(unknown.unwrap(), [Arc::from("c1")]);
    permits.add_permits(1);
    rig.user_says("u2", "Again.").calls_tool("r2", "c2", "pay", r#"{"amount": 5}"#);
    assert_eq!(rig.outputs().await[0].response["amount"], 5);
    let keys = keys.lock().unwrap();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

#[test]
fn a_worker_that_dies_is_seen_as_expired() {
    let permits = Arc::new(Semaphore::new(0));
    let store = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store.clone(), pay(&permits));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let dies = runtime();
    let id = dies.block_on(async {
        let mut rig = at_work(&agent).await;
        rig.session.stop();
        detached(&rig.until(is_detached).await)
    });
    drop(dies);
    let mut limits = RuntimeLimits::default();
    limits.heartbeat = SECOND;
    limits.stale_after = 10 * SECOND;
    let voice = Voice::new("You are a clerk.");
    let later: Agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(voice)
            .shared_store(store)
            .limits(limits)
            .clock(|| jiff::Timestamp::now() + jiff::SignedDuration::from_secs(11))
            .build();
    let row = runtime().block_on(async { later.get_snapshot(&cx(), id).await.unwrap() });
    assert_eq!(row.status(), SnapshotStatus::Expired);
}

/// What a session that goes on from `id`'s says of that, with `later` as its clock.
async fn goes_on_without(later: &Agent, lost: &Arc<str>, before: &Arc<str>) {
    let mut rig = linked(later, |builder| builder.resume("s")).await;
    let events = rig.now().await;
    let resumed = events.iter().find_map(|kind| match kind {
        EventKind::SessionResumed(resumed) => Some(resumed),
        _ => None,
    });
    let resumed = resumed.unwrap();
    assert_eq!(resumed.snapshot_id.as_ref(), Some(before));
    assert_eq!(resumed.lost_work.as_ref(), Some(lost));
    assert_eq!(resumed.unknown_calls, [Arc::from("c1")]);
    let history = json!(rig.provider.requests()[0].history).to_string();
    assert!(history.contains("Good day.") && history.contains("is not known"), "{history}");
    let next = rig.turn(later, "Are you there?", "I am.").await;
    assert_eq!(next.parent_id.as_ref(), Some(before));
    rig.session.stop();
    rig.end().await;
    // And that is what the session goes on from the next time.
    let mut rig = linked(later, |builder| builder.resume("s")).await;
    let after = rig.turn(later, "Still?", "Still.").await;
    assert_eq!(after.parent_id, Some(next.snapshot_id));
    // By its snapshot it is refused, as before.
    let setup = Setup::new();
    let setup = setup.build(|builder| builder.agent(later).resume_snapshot(lost.clone()));
    let (session, _, config, idle, _) = setup.ready();
    assert_eq!(session.start(config, idle).await.unwrap_err().status(), Status::FailedPrecondition);
}

#[test]
fn a_session_goes_on_from_before_work_that_was_lost_with_its_process() {
    let permits = Arc::new(Semaphore::new(0));
    let store = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store.clone(), pay(&permits));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let dies = runtime();
    let (lost, before) = dies.block_on(async {
        let mut rig = linked(&agent, |builder| builder.resume("s")).await;
        let before = rig.turn(&agent, "Hello.", "Good day.").await.snapshot_id;
        rig.session.stop();
        rig.end().await;
        let mut rig = at_work(&agent).await;
        rig.session.stop();
        (detached(&rig.until(is_detached).await), before)
    });
    drop(dies);
    let voice = Voice::new("You are a clerk.");
    let later: Agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(voice)
            .shared_store(store)
            .clock(|| jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3_600))
            .build();
    runtime().block_on(goes_on_without(&later, &lost, &before));
}

/// Tells of changes.
pub(super) struct Watched(pub(super) Arc<SlowStore>);

#[async_trait]
impl SnapshotReader for Watched {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.0.get_snapshot(cx, id).await
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.0.get_latest_snapshot(cx, session).await
    }
}

#[async_trait]
impl SnapshotWriter for Watched {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.0.save_snapshot(cx, id, update).await
    }
}

impl SessionStore for Watched {
    fn subscriber(&self) -> Option<&dyn SnapshotSubscriber> {
        self.0.inner.subscriber()
    }
}
