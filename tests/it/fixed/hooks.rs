//! F12, F15: hooks.

use std::sync::Arc;

use antiphon::{
    live::{LiveError, LiveEvent, ReplyOutcome, TextUpdate},
    session::*,
    types::{JsonObject, ToolResponse},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use async_trait::async_trait;
use tokio::sync::Notify;

use crate::rig::*;

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
