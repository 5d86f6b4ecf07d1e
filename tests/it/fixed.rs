//! Faults that sessions of this kind have had, and this one has not: F1 to F18. (F14, the stateful
//! resampler, is tested where it lives.)

use std::{sync::Arc, time::Duration};

use antiphon::{
    agent::{FuncTool, Outcome, Tool, ToolContext, ToolError},
    live::{
        ErrorInfo, LiveCommand, LiveConfig, LiveError, LiveEvent, ReplyOutcome, Resumption,
        TextUpdate, VoiceActivity,
    },
    session::*,
    types::{JsonObject, ToolBehavior, ToolDefinition, ToolResponse, ToolResponseScheduling},
};
use antiphon_testkit::{ConnectPlan, LatchedTool, ToolPlan};
use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn f01_a_final_text_replaces_its_pieces() {
    let mut rig = start().await;
    rig.emit(heard("u1", TextUpdate::Delta("Hal".into())));
    rig.emit(heard("u1", TextUpdate::Final(Some("Hallo".into()))));
    rig.reply("r1").words("r1", "Gu");
    rig.emit(LiveEvent::OutputTranscript {
        reply: "r1".into(),
        item: "r1-item".into(),
        text: TextUpdate::Final(Some("Guten Tag".into())),
    });
    rig.done("r1");
    let events = rig.until(is_turn_finished).await;
    assert_eq!(user_messages(&events), ["Hallo"]);
    assert_eq!(agent_messages(&events), [("Guten Tag".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn f02_messages_are_flushed_at_the_end_of_reply_and_on_interruption() {
    let mut rig = start().await;
    // The user's words never become final; the agent's never either.
    rig.emit(heard("u1", TextUpdate::Delta("never final".into())));
    rig.reply("r1").words("r1", "One two three four five six.").audio("r1", 1_000);
    rig.settle().await;
    rig.speaker.play(500 * PER_MS);
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    rig.done_as("r1", ReplyOutcome::Interrupted);
    tokio::time::sleep(4 * SECOND).await;
    let events = rig.now().await;
    assert_eq!(user_messages(&events), ["never final"]);
    let messages = agent_messages(&events);
    assert_eq!(messages.len(), 1);
    assert!(messages[0].1 && messages[0].0.starts_with("One two"), "{messages:?}");
    assert!(!messages[0].0.contains("six"), "{messages:?}");
    // Nothing of it is left for the next message.
    rig.says("r2", "Next.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    assert_eq!(agent_messages(&rig.now().await), [("Next.".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn f03_every_exit_ends_once_with_its_reason() {
    type Exit = (fn(&Rig), fn(&EndReason) -> bool);
    let exits: [Exit; 5] = [
        (|rig| rig.session.stop(), |reason| *reason == EndReason::Stopped),
        (
            |rig| rig.far.close(1000, "bye"),
            |reason| matches!(reason, EndReason::ProviderClosed { code: 1000, reason } if reason == "bye"),
        ),
        (
            |rig| rig.far.close(4001, "expired"),
            |reason| matches!(reason, EndReason::ProviderClosed { code: 4001, .. }),
        ),
        (
            |rig| rig.far.fail(LiveError::Protocol("nonsense".into())),
            |reason| matches!(reason, EndReason::Failed { .. }),
        ),
        (|_| {}, |reason| *reason == EndReason::Idle),
    ];
    for (leave, is) in exits {
        let log = Log::default();
        let setup = Setup::new().idle(None, Some(60)).build(|builder| {
            builder.hooks(LoggingHooks(log.clone())).callbacks(LoggingCallbacks(log.clone()))
        });
        let mut rig = setup.start().await;
        leave(&rig);
        let (events, reason) = rig.end().await;
        assert!(is(&reason), "{reason:?}");
        assert_eq!(rig.session.ended().await.unwrap().reason, reason);
        assert_eq!(rig.session.state(), SessionState::Inactive);
        assert_eq!(log.count("end callback"), 1, "{:#?}", log.lines());
        assert_eq!(log.count("end "), 2, "{:#?}", log.lines());
        assert!(log.lines().last().unwrap().starts_with("end "), "the end comes last");
        assert!(rig.events.next().await.is_none());
        let ends = events.iter().filter(|kind| matches!(kind, EventKind::SessionEnded { .. }));
        assert_eq!(ends.count(), 1);
        assert_eq!(rig.provider.open_connections(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn f04_dropping_the_last_handle_is_an_orderly_stop() {
    let log = Log::default();
    let setup = Setup::new().build(|builder| builder.hooks(LoggingHooks(log.clone())));
    let Rig { provider, session, far, mut events, .. } = setup.start().await;
    let other = session.clone();
    drop(session);
    assert!(
        !now(&mut events).await.iter().any(|kind| matches!(kind, EventKind::SessionEnded { .. }))
    );
    drop(other);
    let seen = until(&mut events, |kind| matches!(kind, EventKind::SessionEnded { .. })).await;
    let Some(EventKind::SessionEnded { reason, .. }) = seen.last() else { panic!() };
    assert_eq!(*reason, EndReason::Cancelled);
    far.dropped().await;
    tokio::time::sleep(MS).await;
    assert_eq!(provider.open_connections(), 0);
    assert_eq!(log.count("end "), 1);
}

#[tokio::test(start_paused = true)]
async fn f05_stop_while_connecting_and_while_reconnecting() {
    let released = Arc::new(Notify::new());
    let setup = Setup::new();
    setup.provider.plan(ConnectPlan::Hang(released.clone()));
    let (session, provider, config, idle, _) = setup.ready();
    let starting = session.clone();
    let start = tokio::spawn(async move { starting.start(config, idle).await });
    tokio::time::sleep(MS).await;
    assert_eq!(session.state(), SessionState::Connecting);
    session.stop();
    assert!(matches!(start.await.unwrap(), Err(StartError::Stopped)));
    assert_eq!(session.state(), SessionState::Inactive);
    released.notify_one();
    tokio::time::sleep(MS).await;
    assert_eq!((session.state(), provider.open_connections()), (SessionState::Inactive, 0));

    let released = Arc::new(Notify::new());
    let mut rig = Setup::new().start().await;
    rig.provider.plan(ConnectPlan::Hang(released.clone()));
    rig.far.fail(LiveError::Transport("reset".into()));
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.session.state(), SessionState::Recovering);
    rig.session.stop();
    assert_eq!(rig.end().await.1, EndReason::Stopped);
    released.notify_one();
    rig.settle().await;
    assert_eq!(rig.provider.open_connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn f06_idle_counts_user_activity_only() {
    let mut rig = Setup::new().idle(Some(3), Some(6)).start().await;
    let began = tokio::time::Instant::now();
    // A microphone that never stops is no activity.
    for _ in 0..140 {
        rig.session.send_audio(antiphon_testkit::tone(16_000, 0.0, 20)).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    let prompt = |kind: &EventKind| matches!(kind, EventKind::HostPrompt(prompt) if prompt.stage == HostPromptStage::Sent);
    rig.until(prompt).await;
    assert_eq!(began.elapsed().as_secs(), 3);
    let [LiveCommand::Say { request, .. }] = rig.commands().await[..] else { panic!() };
    // The answer to the reminder does not put the end off.
    rig.reply_to("r1", request).audio("r1", 2_000).done("r1");
    rig.settle().await;
    tokio::time::sleep(2 * SECOND).await;
    rig.speaker.play_all();
    let seen = rig.until(prompt).await;
    let Some(EventKind::HostPrompt(goodbye)) = seen.last() else { panic!() };
    assert_eq!(goodbye.prompt, HostPromptKind::IdleDeactivate);
    assert_eq!(began.elapsed().as_secs(), 8, "three of reminder, two of speech, three of silence");
}

#[tokio::test(start_paused = true)]
async fn f06_the_session_ends_as_soon_as_its_goodbye_was_heard() {
    let mut rig = Setup::new().idle(None, Some(6)).start().await;
    rig.until(|kind| matches!(kind, EventKind::HostPrompt(prompt) if prompt.stage == HostPromptStage::Sent)).await;
    let [LiveCommand::Say { request, .. }] = rig.commands().await[..] else { panic!() };
    rig.reply_to("r1", request).words("r1", "Goodbye!").audio("r1", 1_000).done("r1");
    rig.settle().await;
    let began = tokio::time::Instant::now();
    rig.speaker.play_all();
    assert_eq!(rig.end().await.1, EndReason::Idle);
    assert!(began.elapsed() < 10 * MS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn f06_the_user_calls_a_goodbye_off() {
    let mut rig = Setup::new().idle(None, Some(6)).start().await;
    rig.until(|kind| matches!(kind, EventKind::HostPrompt(_))).await;
    rig.user_says("u1", "I am still here");
    rig.says("r1", "Good.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    let events = rig.until(is_turn_finished).await;
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::SessionEnded { .. })));
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(rig.session.state(), SessionState::Listening);
    assert_eq!(rig.end().await.1, EndReason::Idle, "silence after that still ends it");
}

#[tokio::test(start_paused = true)]
async fn f06_no_prompt_while_a_tool_runs_or_the_agent_is_heard() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let setup = Setup::new().idle(Some(3), None).build(|builder| builder.tool(tool));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "slow", "{}");
    tokio::time::sleep(20 * SECOND).await;
    let is_prompt = |kind: &EventKind| matches!(kind, EventKind::HostPrompt(_));
    assert!(!rig.now().await.iter().any(is_prompt), "a tool runs");
    latch.release(1);
    rig.settle().await;
    rig.says("r2", "Done.", 100);
    tokio::time::sleep(20 * SECOND).await;
    assert!(!rig.now().await.iter().any(is_prompt), "not heard to the end yet");
    rig.speaker.play_all();
    rig.until(is_prompt).await;
}

#[tokio::test(start_paused = true)]
async fn f07_panic_timeout_and_cancel_by_id_touch_only_their_call() {
    let (panics, _) = LatchedTool::open("panics", ToolPlan::Panic);
    let (slow, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let late =
        FuncTool::new("late", "never ends", None, |_, _| std::future::pending()).timeout(SECOND);
    let setup = Setup::new().build(|builder| builder.tool(panics).tool(slow).tool(late));
    let mut rig = setup.start().await;
    let calls =
        [("p", "panics", "{}"), ("s", "slow", "{}"), ("l", "late", "{}"), ("k", "slow", "{}")];
    rig.reply("r1").calls("r1", &calls).done("r1");
    latch.started().await;
    rig.session.cancel_tool("k").unwrap();
    tokio::time::sleep(2 * SECOND).await;
    latch.release(1);
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 4, "{outputs:?}");
    let mut outcomes = outcomes(&rig.now().await);
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        outcomes,
        [
            ("k".into(), Outcome::Cancelled),
            ("l".into(), Outcome::TimedOut),
            ("p".into(), Outcome::Panicked),
            ("s".into(), Outcome::Success),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn f08_one_reply_is_asked_for_after_all_siblings_and_the_end_of_the_reply() {
    let (a, latch_a) = LatchedTool::new("a", ToolPlan::Succeed);
    let (b, latch_b) = LatchedTool::new("b", ToolPlan::Succeed);
    let setup = Setup::able(|can| {
        can.replies_after_tools = false;
        can.tools_after_reply = false;
    });
    let mut rig = setup.build(|builder| builder.tool(a).tool(b)).start().await;
    let is_create = |command: &LiveCommand| matches!(command, LiveCommand::CreateReply { .. });
    rig.reply("r1").calls("r1", &[("c1", "a", "{}"), ("c2", "b", "{}")]);
    latch_a.release(1);
    assert!(!rig.commands().await.iter().any(is_create), "one output is missing");
    latch_b.release(1);
    assert!(!rig.commands().await.iter().any(is_create), "the reply is still active");
    rig.done("r1");
    let commands = rig.commands().await;
    assert_eq!(commands.iter().filter(|command| is_create(command)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn f09_a_recoverable_error_is_an_event() {
    let mut rig = start().await;
    rig.emit(LiveEvent::Error(ErrorInfo::new("buffer_empty", "nothing to commit")));
    let events = rig.now().await;
    assert!(events.iter().any(|kind| matches!(kind, EventKind::Error { kind, message } if &**kind == "provider" && message.contains("buffer_empty"))));
    rig.user_says("u1", "Hello").says("r1", "Hi.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
}

struct Background;

#[async_trait]
impl Tool for Background {
    fn name(&self) -> &str {
        "background"
    }
    fn description(&self) -> &str {
        "works while the model talks"
    }
    fn behavior(&self) -> ToolBehavior {
        ToolBehavior::NonBlocking
    }
    async fn invoke(&self, _: ToolContext, _: JsonObject) -> Result<Value, ToolError> {
        Ok(Value::Object(JsonObject::new()))
    }
}

#[tokio::test(start_paused = true)]
async fn f10_behaviour_scheduling_and_continuation_are_reachable() {
    let setup = Setup::able(|can| can.replies_after_tools = false)
        .build(|builder| builder.tool(Background))
        .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    let tools = &rig.provider.requests()[0].config.tools;
    assert_eq!(tools[1].behavior, ToolBehavior::NonBlocking);
    rig.calls_tool("r1", "c1", "mine", "{}");
    rig.settle().await;
    let mut part = ToolResponse::new("c1", "mine", JsonObject::new());
    part.will_continue = Some(true);
    rig.session.send_tool_response(part.clone()).unwrap();
    let mut last = ToolResponse::new("c1", "mine", JsonObject::new());
    last.scheduling = ToolResponseScheduling::Silent;
    rig.session.send_tool_response(last.clone()).unwrap();
    let commands = rig.commands().await;
    assert_eq!(
        commands,
        [LiveCommand::ToolResponse(part), LiveCommand::ToolResponse(last)],
        "and a silent one asks for no reply"
    );
}

#[tokio::test(start_paused = true)]
async fn f11_host_tools_pass_the_hook_and_are_answered_by_the_host() {
    let log = Log::default();
    let setup = Setup::new()
        .build(|builder| builder.hooks(LoggingHooks(log.clone())))
        .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "mine", r#"{"x": 1}"#);
    let events = rig.until(|kind| matches!(kind, EventKind::HostToolCall { .. })).await;
    let Some(EventKind::HostToolCall { args, .. }) = events.last() else { panic!() };
    assert_eq!(json!(args), json!({"x": 1}));
    assert!(rig.outputs().await.is_empty());
    let response = JsonObject::from_iter([("y".to_owned(), json!(2))]);
    rig.session.send_tool_response(ToolResponse::new("c1", "mine", response)).unwrap();
    assert_eq!(rig.outputs().await.len(), 1);
    for told in ["authorize c1", "call c1", "result c1"] {
        assert_eq!(log.count(told), 1, "{:#?}", log.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn f11_a_host_that_never_answers_times_out() {
    let setup =
        Setup::new().config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "mine", "{}");
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(rig.outputs().await.len(), 1);
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::TimedOut)]);
}

pub struct StopsInside(pub &'static str);

impl StopsInside {
    async fn leave(&self, at: &str, session: &AgentSession) {
        if at == self.0 {
            session.stop();
            session.shutdown(SECOND).await.unwrap();
            assert!(session.ended().await.is_none());
        }
    }
}

#[async_trait]
impl LifecycleHooks for StopsInside {
    async fn on_session_start(&self, cx: &SessionContext) {
        self.leave("start", &cx.session).await;
    }
    async fn on_user_message(&self, cx: &SessionContext, _: &str) {
        self.leave("user", &cx.session).await;
    }
    fn authorize_tool_call(
        &self,
        cx: &SessionContext,
        call: &antiphon::types::ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        if self.0 == "authorize" {
            cx.session.stop();
        }
        Ok(call.args.clone())
    }
    async fn on_tool_call(&self, cx: &SessionContext, _: &antiphon::types::ToolCall) {
        self.leave("call", &cx.session).await;
    }
    async fn on_tool_result(
        &self,
        cx: &SessionContext,
        _: &antiphon::types::ToolCall,
        _: &ToolResponse,
    ) {
        self.leave("result", &cx.session).await;
    }
    async fn on_session_end(&self, cx: &SessionContext, _: &EndReason) {
        self.leave("end", &cx.session).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f12_stop_works_from_every_hook() {
    for at in ["start", "user", "authorize", "call", "result", "end"] {
        let (tool, _) = LatchedTool::open("note", ToolPlan::Succeed);
        let setup = Setup::new().build(|builder| builder.tool(tool).hooks(StopsInside(at)));
        let (session, provider, config, idle, _) = setup.ready();
        let mut events = session.events();
        let started = session.start(config, idle).await;
        let far = provider.far_end().await;
        if at == "start" {
            assert!(matches!(started, Err(StartError::Stopped)), "{started:?}");
        } else {
            started.unwrap();
            far.emit(heard("u1", TextUpdate::Final(Some("go".into()))));
            far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: None });
            far.emit(LiveEvent::ToolCalls {
                reply: Some("r1".into()),
                calls: vec![request("c1", "note", "{}")],
            });
            far.emit(LiveEvent::ReplyDone {
                reply: "r1".into(),
                outcome: ReplyOutcome::Completed,
                usage: None,
            });
            if at == "end" {
                session.stop();
            }
        }
        let began = tokio::time::Instant::now();
        until(&mut events, |kind| matches!(kind, EventKind::SessionEnded { .. })).await;
        let record = session.ended().await.unwrap();
        assert_eq!(record.reason, EndReason::Stopped, "{at}");
        assert!(began.elapsed() < SECOND, "{at} waited for itself");
    }
}

struct CallsBack(Arc<std::sync::OnceLock<AgentSession>>);

impl Callbacks for CallsBack {
    fn on_state_change(&self, state: SessionState) {
        // Under no lock: everything can be asked and done from here.
        if let Some(session) = self.0.get() {
            let _ = (session.state(), session.stats(), session.events());
            let _ = session.send_audio(antiphon_testkit::tone(16_000, 0.0, 20));
            if state == SessionState::Speaking {
                session.stop();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f12_callbacks_may_call_the_session() {
    let cell = Arc::new(std::sync::OnceLock::new());
    let callbacks = CallsBack(cell.clone());
    let mut rig = Setup::new().build(|builder| builder.callbacks(callbacks)).start().await;
    cell.set(rig.session.clone()).unwrap();
    rig.says("r1", "Hello.", 100);
    assert_eq!(rig.end().await.1, EndReason::Stopped);
}

#[tokio::test(start_paused = true)]
async fn f13_the_uplink_drops_its_oldest_and_counts() {
    let mut rig = start().await;
    rig.far.stall(true);
    for value in 0..200i16 {
        let frame = antiphon::audio::AudioFrame::from_pcm16(16_000, &[value; 320]);
        rig.session.send_audio(frame).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    assert_eq!(rig.session.stats().uplink_dropped_ms, 2_000);
    rig.far.stall(false);
    rig.settle().await;
    let first = rig.far.drain().into_iter().find_map(|command| match command {
        LiveCommand::AppendAudio(frame) => Some(frame.data[0]),
        _ => None,
    });
    assert_eq!(first, Some(100), "the newest two seconds are kept");
}

#[tokio::test(start_paused = true)]
async fn f13_commands_are_bounded() {
    let mut limits = SessionLimits::default();
    limits.commands = 4;
    let rig = Setup::new().build(|builder| builder.limits(limits)).start().await;
    let results: Vec<_> = (0..6).map(|_| rig.session.interrupt()).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4);
    assert_eq!(results[5], Err(SendError::QueueFull));
    rig.settle().await;
    assert_eq!(rig.session.interrupt(), Ok(()));
}

pub struct SlowStart(pub Log, pub Arc<Notify>);

#[async_trait]
impl LifecycleHooks for SlowStart {
    async fn on_session_start(&self, _: &SessionContext) {
        self.1.notified().await;
        self.0.add("started");
    }
    async fn on_user_message(&self, _: &SessionContext, text: &str) {
        self.0.add(format!("user {text}"));
    }
}

#[tokio::test(start_paused = true)]
async fn f15_the_start_hook_comes_before_any_event() {
    let (log, released) = (Log::default(), Arc::new(Notify::new()));
    let hooks = SlowStart(log.clone(), released.clone());
    let (session, provider, config, idle, speaker) =
        Setup::new().build(|builder| builder.hooks(hooks)).ready();
    let mut events = session.events();
    let starting = session.clone();
    let start = tokio::spawn(async move { starting.start(config, idle).await });
    let far = provider.far_end().await;
    far.emit(heard("u1", TextUpdate::Final(Some("early".into()))));
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: None });
    far.emit(LiveEvent::Audio {
        reply: "r1".into(),
        item: "i".into(),
        content_index: 0,
        frame: antiphon_testkit::tone(24_000, 440.0, 100),
    });
    assert!(now(&mut events).await.is_empty());
    assert_eq!(speaker.queued(), 100 * PER_MS, "a greeting is heard all the same");
    assert!(!start.is_finished());
    released.notify_one();
    start.await.unwrap().unwrap();
    let seen = now(&mut events).await;
    assert!(matches!(seen[0], EventKind::SessionStarted { .. }), "{seen:?}");
    assert_eq!(user_messages(&seen), ["early"]);
    assert_eq!(log.lines(), ["started", "user early"]);
}

#[tokio::test(start_paused = true)]
async fn f15_a_connection_lost_during_the_start_hook_is_told_after_it() {
    let (log, released) = (Log::default(), Arc::new(Notify::new()));
    let hooks = SlowStart(log.clone(), released.clone());
    let (session, provider, config, idle, _) =
        Setup::new().build(|builder| builder.hooks(hooks)).ready();
    let mut events = session.events();
    let starting = session.clone();
    let start = tokio::spawn(async move { starting.start(config, idle).await });
    provider.far_end().await.fail(LiveError::Transport("reset".into()));
    let far = provider.far_end().await;
    assert!(now(&mut events).await.is_empty(), "the hook has not returned");
    assert!(!start.is_finished());
    released.notify_one();
    start.await.unwrap().unwrap();
    let seen = now(&mut events).await;
    assert!(matches!(seen[0], EventKind::SessionStarted { .. }), "{seen:?}");
    assert_eq!(states(&seen), [SessionState::Recovering, SessionState::Listening]);
    far.emit(heard("u1", TextUpdate::Final(Some("hello".into()))));
    assert_eq!(user_messages(&now(&mut events).await), ["hello"]);
    assert_eq!(log.lines(), ["started", "user hello"]);
}

#[tokio::test(start_paused = true)]
async fn f15_events_that_wait_for_the_start_hook_are_bounded() {
    let hooks = SlowStart(Log::default(), Arc::new(Notify::new()));
    let (session, provider, config, idle, _) =
        Setup::new().build(|builder| builder.hooks(hooks)).ready();
    let starting = session.clone();
    let start = tokio::spawn(async move { starting.start(config, idle).await });
    let far = provider.far_end().await;
    for item in 0..5_000 {
        far.emit(heard(&format!("u{item}"), TextUpdate::Final(Some("again".into()))));
    }
    let limit = EndReason::Limit { limit: "start_hook".into() };
    let error = start.await.unwrap().unwrap_err();
    assert!(matches!(&error, StartError::Ended(reason) if *reason == limit), "{error}");
    assert_eq!(error.to_string(), "ended before it had begun: the limit start_hook was reached");
    assert_eq!(session.ended().await.unwrap().reason, limit);
}

#[tokio::test(start_paused = true)]
async fn f16_voice_activity_is_explicit_and_what_cannot_be_is_refused() {
    let (session, ..) = Setup::able(|can| can.manual_activity = false).ready();
    let manual = LiveConfig::new().voice_activity(VoiceActivity::Manual);
    let refused = session.start(manual, IdleConfig::OFF).await;
    assert!(matches!(refused, Err(StartError::InvalidConfig(_))), "{refused:?}");
    assert_eq!(session.state(), SessionState::Inactive);
    let rig = start().await;
    assert_eq!(rig.config().voice_activity, VoiceActivity::Auto);
}

#[tokio::test(start_paused = true)]
async fn f17_a_lost_connection_is_replaced_with_backoff() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello").says("r1", "Hi.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    rig.provider.plan(ConnectPlan::Refuse(LiveError::Transport("still down".into())));
    let lost = tokio::time::Instant::now();
    rig.far.fail(LiveError::Transport("reset".into()));
    let far = rig.provider.far_end().await;
    assert_eq!(lost.elapsed(), Duration::from_millis(250 + 500));
    rig.far = far;
    let events = rig.now().await;
    assert_eq!(states(&events), [SessionState::Recovering, SessionState::Listening]);
    let attempts = events.iter().filter(|kind| matches!(kind, EventKind::Reconnecting { .. }));
    assert_eq!(attempts.count(), 2);
    let request = rig.provider.requests().pop().unwrap();
    assert_eq!((request.epoch, request.history.len()), (3, 2), "the conversation goes along");
    rig.user_says("u2", "Still there?").says("r2", "Yes.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
}

#[tokio::test(start_paused = true)]
async fn f17_attempts_end_and_the_cause_is_kept() {
    let mut rig = start().await;
    for _ in 0..5 {
        rig.provider.plan(ConnectPlan::Refuse(LiveError::Transport("down".into())));
    }
    rig.far.close(1011, "internal error");
    let (_, reason) = rig.end().await;
    assert!(matches!(reason, EndReason::Failed { .. }), "{reason:?}");
    assert_eq!(rig.provider.requests().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn f17_the_users_audio_and_a_running_tool_survive_a_resumed_connection() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let setup = Setup::able(|can| can.resumption = true).build(|builder| builder.tool(tool));
    let mut rig = setup.start().await;
    rig.emit(LiveEvent::Resumable(Resumption { handle: "h1".to_owned().into() }));
    rig.calls_tool("r1", "c1", "slow", "{}");
    latch.started().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    tokio::time::sleep(100 * MS).await;
    rig.session.send_audio(antiphon_testkit::voice_like(16_000, 20)).unwrap();
    latch.release(1);
    rig.far = rig.provider.far_end().await;
    assert!(rig.provider.requests()[1].resume.is_some());
    rig.settle().await;
    let names: Vec<_> = rig.far.drain().iter().map(LiveCommand::name).collect();
    assert!(names.contains(&"append_audio") && names.contains(&"tool_response"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn f17_a_handle_that_the_provider_forgot_is_given_up_and_not_the_conversation() {
    let mut rig = start().await;
    rig.emit(LiveEvent::Resumable(Resumption { handle: "h1".to_owned().into() }));
    rig.user_says("u1", "Hello").says("r1", "Hi.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    rig.provider.plan(ConnectPlan::Refuse(LiveError::NoResumableSession));
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = rig.provider.far_end().await;
    let events = rig.now().await;
    assert_eq!(states(&events), [SessionState::Recovering, SessionState::Listening]);
    let requests = rig.provider.requests();
    assert!(requests[1].resume.is_some() && requests[2].resume.is_none());
    assert_eq!(requests[2].history.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn f18_debug_output_shows_no_secret() {
    let setup = Setup::new().config(|config| config.api_key("sk-very-secret"));
    let rig = setup.start().await;
    for text in [
        format!("{:?}", rig.session),
        format!("{:?}", rig.config()),
        format!("{:?}", rig.provider.requests()),
    ] {
        assert!(!text.contains("very-secret"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn f12_a_tool_that_shuts_its_own_session_down_does_not_wait_for_itself() {
    let own: Arc<std::sync::OnceLock<WeakAgentSession>> = Arc::default();
    let session = own.clone();
    let (returned, mut returns) = tokio::sync::mpsc::unbounded_channel();
    let tool = FuncTool::new("hang_up", "Ends the call.", None, move |_, _| {
        let session = session.get().and_then(WeakAgentSession::upgrade).unwrap();
        let returned = returned.clone();
        async move {
            session.shutdown(60 * SECOND).await.unwrap();
            assert!(session.ended().await.is_none());
            returned.send(()).unwrap();
            Ok(JsonObject::new())
        }
    });
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    assert!(own.set(rig.session.downgrade()).is_ok());
    let before = tokio::time::Instant::now();
    rig.calls_tool("r1", "c1", "hang_up", "{}");
    assert_eq!(rig.end().await.1, EndReason::Stopped);
    assert_eq!(returns.recv().await, Some(()));
    assert!(before.elapsed() < SECOND, "it waited for itself");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_pauses_yields_one_output() {
    let asks = FuncTool::new("asks", "waits for somebody", None, |_, _| async {
        Err(antiphon_agent::tool::interrupt(json!({ "reason": "large_amount" })))
    });
    let mut rig = Setup::new().build(|builder| builder.tool(asks)).start().await;
    rig.calls_tool("r1", "c1", "asks", "{}");
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 1);
    // The model is told that it waits; why is for those who are asked.
    let text = outputs[0].response["error"].as_str().unwrap();
    assert!(text.contains("waits") && !text.contains("large_amount"), "{text}");
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Paused)]);
}
