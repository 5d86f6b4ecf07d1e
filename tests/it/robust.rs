//! What a session survives: hooks that hang or panic, futures that are dropped, sinks that are
//! lost, and being started again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use antiphon::{
    audio::AudioFrame,
    live::{LiveCommand, LiveConfig, LiveEvent, TextUpdate, WorkflowConfig, WorkflowStep},
    session::*,
    types::{ToolCall, ToolResponse},
};
use antiphon_testkit::{ConnectPlan, LatchedTool, ScriptedProvider, ToolPlan};
use async_trait::async_trait;
use tokio::sync::Notify;

use crate::rig::*;

struct Panics;

#[async_trait]
impl LifecycleHooks for Panics {
    async fn on_session_start(&self, _: &SessionContext) {
        panic!("start, as planned");
    }
    async fn on_user_message(&self, _: &SessionContext, _: &str) {
        panic!("user, as planned");
    }
    async fn on_tool_call(&self, _: &SessionContext, _: &ToolCall) {
        panic!("call, as planned");
    }
    async fn on_tool_result(&self, _: &SessionContext, _: &ToolCall, _: &ToolResponse) {
        panic!("result, as planned");
    }
    async fn on_session_end(&self, _: &SessionContext, _: &EndReason) {
        panic!("end, as planned");
    }
}

impl Callbacks for Panics {
    fn on_state_change(&self, _: SessionState) {
        panic!("state, as planned");
    }
    fn on_tool_call(&self, _: &ToolCall) {
        panic!("raw call, as planned");
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_and_callbacks_that_panic_are_told_and_go_no_further() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| builder.tool(tool).hooks(Panics).callbacks(Panics));
    let mut rig = setup.start().await;
    rig.user_says("u1", "Hello").calls_tool("r1", "c1", "note", "{}");
    let outputs = rig.outputs().await;
    assert_eq!((outputs.len(), latch.finished()), (1, 1));
    let events = rig.now().await;
    let told = |hook: &str| {
        events.iter().any(|kind| matches!(kind, EventKind::Error { kind, message } if &**kind == "hook" && message.starts_with(hook)))
    };
    for hook in
        ["on_session_start", "on_user_message", "on_tool_call", "on_tool_result", "on_state_change"]
    {
        assert!(told(hook), "{hook} in {events:#?}");
    }
    rig.session.shutdown(SECOND).await.unwrap();
    assert_eq!(rig.session.ended().await.unwrap().reason, EndReason::Stopped);
}

struct Hangs;

#[async_trait]
impl LifecycleHooks for Hangs {
    async fn on_user_message(&self, _: &SessionContext, _: &str) {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_is_told_and_given_up_and_nothing_waits_for_it() {
    let mut rig = Setup::new().build(|builder| builder.hooks(Hangs)).start().await;
    rig.user_says("u1", "Hello").says("r1", "Hi.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    let is_stalled =
        |kind: &EventKind| matches!(kind, EventKind::Stalled { what, .. } if &**what == "hook");
    rig.until(is_stalled).await;
    let is_given_up = |kind: &EventKind| matches!(kind, EventKind::Error { message, .. } if message.contains("given up"));
    rig.until(is_given_up).await;
    rig.session.shutdown(SECOND).await.unwrap();
}

struct Blocks;

#[async_trait]
impl LifecycleHooks for Blocks {
    async fn on_user_message(&self, _: &SessionContext, _: &str) {
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_hook_that_blocks_its_thread_does_not_hold_up_the_audio() {
    let mut rig = Setup::new().build(|builder| builder.hooks(Blocks)).start().await;
    rig.user_says("u1", "Hello");
    rig.until(|kind| matches!(kind, EventKind::UserMessage { .. })).await;
    // The only worker is in the hook now; the reply is heard all the same.
    rig.says("r1", "Hi.", 100);
    rig.until(|kind| *kind == EventKind::PlaybackStarted).await;
    assert_eq!(rig.speaker.queued(), 100 * PER_MS);
    rig.session.shutdown(SECOND).await.unwrap();
}

struct SlowAtFirst(Log, AtomicBool);

#[async_trait]
impl LifecycleHooks for SlowAtFirst {
    async fn on_user_message(&self, _: &SessionContext, _: &str) {
        if !self.1.swap(true, Ordering::SeqCst) {
            tokio::time::sleep(SECOND).await;
        }
    }
    async fn on_session_end(&self, _: &SessionContext, reason: &EndReason) {
        self.0.add(format!("end {reason:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_that_fall_too_far_behind_end_the_session_and_are_told_so() {
    let log = Log::default();
    let hooks = SlowAtFirst(log.clone(), AtomicBool::new(false));
    let rig = Setup::new().build(|builder| builder.hooks(hooks)).start().await;
    for item in 0..5_000 {
        rig.emit(heard(&format!("u{item}"), TextUpdate::Final(Some("again".into()))));
    }
    let reason = rig.session.ended().await.unwrap().reason;
    assert_eq!(reason, EndReason::Limit { limit: "hook_queue".into() });
    assert_eq!(log.lines(), [format!("end {reason:?}")]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_ignores_cancellation_is_left_behind_and_named() {
    let held = Arc::new(std::sync::Mutex::new(None::<std::sync::mpsc::Receiver<()>>));
    let (release, wait) = std::sync::mpsc::channel();
    *held.lock().unwrap() = Some(wait);
    let started = Arc::new(Notify::new());
    let (inner, tell) = (held.clone(), started.clone());
    let stubborn =
        antiphon::agent::FuncTool::blocking("stubborn", "ignores everything", None, move |_, _| {
            tell.notify_one();
            let wait = inner.lock().unwrap().take().unwrap();
            let _ = wait.recv();
            Ok(Default::default())
        });
    let mut rig = Setup::new().build(|builder| builder.tool(stubborn)).start().await;
    rig.calls_tool("r1", "c1", "stubborn", "{}");
    started.notified().await;
    // A blocked thread holds the virtual clock, so it is moved by hand.
    let session = rig.session.clone();
    let shutdown = tokio::spawn(async move { session.shutdown(50 * MS).await });
    while !shutdown.is_finished() {
        tokio::time::advance(10 * MS).await;
        tokio::task::yield_now().await;
    }
    let result = shutdown.await.unwrap();
    assert_eq!(result, Err(ShutdownError::ToolsRunning(vec!["stubborn".into()])));
    assert_eq!(rig.session.state(), SessionState::Inactive);
    release.send(()).unwrap();
    assert_eq!(rig.session.shutdown(SECOND).await, Ok(()));
    let _ = rig.end().await;
    assert!(outputs(rig.far.drain_control()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_close_is_dropped_in_time() {
    let rig = start().await;
    rig.far.stall(true);
    let began = tokio::time::Instant::now();
    assert_eq!(rig.session.shutdown(SECOND).await, Err(ShutdownError::CloseTimedOut));
    assert_eq!(began.elapsed(), 3 * SECOND);
    assert_eq!(rig.session.state(), SessionState::Inactive);
    assert_eq!(rig.provider.open_connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_connection_that_does_not_close_is_dropped_in_time() {
    let mut rig = start().await;
    rig.far.stall(true);
    rig.emit(LiveEvent::GoingAway { time_left: None });
    rig.settle().await;
    let old = std::mem::replace(&mut rig.far, rig.provider.far_end().await);
    assert_eq!(rig.provider.open_connections(), 2);
    let before = tokio::time::Instant::now();
    old.dropped().await;
    assert!(before.elapsed() < 4 * SECOND, "{:?}", before.elapsed());
    assert_eq!(rig.session.state(), SessionState::Listening);
}

#[tokio::test(start_paused = true)]
async fn a_session_starts_again_with_its_id_sink_and_memory_and_nothing_of_before() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello").reply("r1").words("r1", "Hi").audio("r1", 500);
    rig.settle().await;
    rig.session.shutdown(SECOND).await.unwrap();
    assert_eq!(rig.speaker.queued(), 0, "silent at once");
    let id = rig.session.session_id();
    let mut events = rig.session.events();
    rig.session.start(LiveConfig::new(), IdleConfig::OFF).await.unwrap();
    rig.far = rig.provider.far_end().await;
    rig.user_says("u1", "Again").says("r1", "Welcome back.", 100);
    rig.settle().await;
    assert_eq!(rig.speaker.queued(), 100 * PER_MS, "the sink is the same and takes it");
    rig.speaker.play_all();
    let seen = until(&mut events, is_turn_finished).await;
    assert_eq!(user_messages(&seen), ["Again"]);
    assert_eq!(agent_messages(&seen), [("Welcome back.".into(), false)]);
    assert_eq!((rig.session.session_id(), rig.session.stats().turns), (id, 1));
}

#[tokio::test(start_paused = true)]
async fn a_command_lost_with_its_connection_is_counted() {
    let mut rig = start().await;
    rig.far.fail(antiphon::live::LiveError::Transport("reset".into()));
    rig.session.send_text("are you there?").unwrap();
    rig.far = rig.provider.far_end().await;
    rig.settle().await;
    assert_eq!(rig.session.stats().undelivered_commands, 1);
}

#[tokio::test(start_paused = true)]
async fn sends_to_a_session_that_does_not_run_are_refused() {
    let (session, ..) = Setup::new().ready();
    assert_eq!(session.send_text("x"), Err(SendError::NotActive));
    assert_eq!(
        session.send_audio(antiphon_testkit::tone(16_000, 1.0, 20)),
        Err(SendError::NotActive)
    );
    let rig = Setup::able(|can| can.say = false).start().await;
    assert!(matches!(rig.session.say("x"), Err(SendError::Unsupported(_))));
    assert!(matches!(rig.session.send_text(" "), Err(SendError::Invalid(_))));
    let odd = AudioFrame::new(antiphon::audio::AudioFormat::pcm16(16_000), vec![0; 3]);
    assert!(matches!(rig.session.send_audio(odd), Err(SendError::Invalid(_))));
    let fast = AudioFrame::from_pcm16(96_000, &[0; 10]);
    assert!(matches!(rig.session.play(fast), Err(SendError::Invalid(_))));
    rig.session.shutdown(SECOND).await.unwrap();
    assert_eq!(rig.session.interrupt(), Err(SendError::NotActive));
}

#[tokio::test(start_paused = true)]
async fn a_lost_loudspeaker_is_told_and_the_session_lives_on() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello").says("r1", "Hi.", 500);
    rig.settle().await;
    rig.speaker.lose("unplugged");
    let events = rig.now().await;
    assert!(
        events
            .iter()
            .any(|kind| matches!(kind, EventKind::Error { kind, .. } if &**kind == "sink")),
        "{events:?}"
    );
    rig.user_says("u2", "Still there?").says("r2", "Yes.", 500);
    let events = rig.until(is_turn_finished).await;
    assert_eq!(agent_messages(&events), [("Yes.".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn every_future_may_be_dropped() {
    // The start: the connection that comes too late is closed.
    let released = Arc::new(Notify::new());
    let setup = Setup::new();
    setup.provider.plan(ConnectPlan::Hang(released.clone()));
    let (session, provider, config, idle, _) = setup.ready();
    let start = session.start(config.clone(), idle);
    assert!(tokio::time::timeout(SECOND, start).await.is_err());
    tokio::time::sleep(MS).await;
    assert_eq!(session.state(), SessionState::Inactive);
    released.notify_one();
    tokio::time::sleep(MS).await;
    assert_eq!(provider.open_connections(), 0);
    // The others: nothing is lost, and the next one gets it.
    session.start(config, idle).await.unwrap();
    let mut events = session.events();
    assert!(tokio::time::timeout(MS, session.ended()).await.is_err());
    assert!(tokio::time::timeout(MS, events.next()).await.is_err());
    let far = provider.far_end().await;
    far.stall(true);
    assert!(tokio::time::timeout(MS, session.shutdown(SECOND)).await.is_err());
    far.stall(false);
    assert_eq!(session.ended().await.unwrap().reason, EndReason::Stopped);
    assert!(
        until(&mut events, |kind| matches!(kind, EventKind::SessionEnded { .. })).await.len() > 1
    );
    drop(far);
    tokio::time::sleep(MS).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 0, "tasks were left behind");
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_of_events_is_told_what_it_lost() {
    let mut limits = SessionLimits::default();
    limits.events = 16;
    let mut rig = Setup::new().build(|builder| builder.limits(limits)).start().await;
    for index in 0..40 {
        rig.user_says(&format!("u{index}"), "Hello");
    }
    rig.settle().await;
    let first = rig.events.next().await.unwrap();
    assert!(matches!(first.kind, EventKind::Error { kind, .. } if &*kind == "lagged"));
    assert!(matches!(
        rig.events.next().await.unwrap().kind,
        EventKind::UserMessage { .. }
            | EventKind::UserTranscript { .. }
            | EventKind::SpeechStarted
            | EventKind::SpeechStopped
    ));
}

#[tokio::test(start_paused = true)]
async fn audio_goes_to_the_callback_where_there_is_no_sink() {
    let log = Log::default();
    let provider = ScriptedProvider::default();
    let session = AgentSession::builder(Arc::new(provider.clone()))
        .callbacks(LoggingCallbacks(log.clone()))
        .build()
        .unwrap();
    let events = session.events();
    session.start(LiveConfig::new(), IdleConfig::OFF).await.unwrap();
    let (_, speaker) =
        antiphon_testkit::Speaker::new(antiphon::audio::AudioFormat::pcm16(24_000), 1);
    let mut rig = Rig { far: provider.far_end().await, provider, session, speaker, events };
    rig.user_says("u1", "Hello").says("r1", "Hi.", 500);
    rig.until(is_turn_finished).await;
    assert_eq!(log.count(&format!("audio {}", 500 * PER_MS)), 1, "{:#?}", log.lines());
    rig.reply("r2").audio("r2", 500);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.settle().await;
    assert!(log.position("interrupted") > log.position("audio"));
}

#[tokio::test(start_paused = true)]
async fn a_workflow_advances_by_turns_and_by_hand() {
    let mut first = WorkflowStep::new("greet", "Greet the caller.");
    first.max_turns = Some(1);
    let steps = vec![first, WorkflowStep::new("ask", "Ask for the name.")];
    let setup = Setup::new().config(|config| {
        config.instructions("Be kind.").workflow(WorkflowConfig::new("intake", steps))
    });
    let mut rig = setup.start().await;
    let instructions = rig.config().instructions.unwrap();
    assert!(instructions.contains("Be kind.") && instructions.contains("Greet the caller."));
    rig.user_says("u1", "Hello");
    let commands = rig.commands().await;
    assert!(
        commands.iter().any(|command| matches!(command, LiveCommand::UpdateInstructions(text) if text.contains("Ask for the name."))),
        "{commands:?}"
    );
    rig.session.advance_workflow_step().unwrap();
    let events = rig.now().await;
    let steps: Vec<_> = events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::WorkflowStep { step } => Some(step.as_deref()),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [Some("ask"), None]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_says_nothing_is_told_as_stalled_and_given_up() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello");
    let mut told = Vec::new();
    for _ in 0..3 {
        let events = rig.until(|kind| matches!(kind, EventKind::Stalled { .. })).await;
        let Some(EventKind::Stalled { what, ms, .. }) = events.last() else { panic!() };
        told.push((what.to_string(), *ms));
    }
    assert_eq!(
        told,
        [("provider".into(), 10_000), ("provider".into(), 20_000), ("provider".into(), 30_000)]
    );
    rig.settle().await;
    assert_eq!(rig.session.state(), SessionState::Listening);
}

#[tokio::test(start_paused = true)]
async fn events_have_the_shape_that_is_promised() {
    let mut rig = Setup::new().build(|builder| builder.session_id("s1")).start().await;
    let event = rig.events.next().await.unwrap();
    let json = serde_json::to_value(&event).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "type": "session_started", "t_ms": 0, "epoch": 1, "turn": 0,
            "session_id": "s1", "provider": "scripted", "model": "scripted-1",
        })
    );
}
