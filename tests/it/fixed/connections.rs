//! F3 to F5, F9, F16 to F18: how sessions begin, go on and end.

use std::sync::Arc;

use antiphon::{
    live::{ErrorInfo, LiveCommand, LiveConfig, LiveError, LiveEvent, Resumption, VoiceActivity},
    session::*,
};
use antiphon_testkit::{ConnectPlan, LatchedTool, ToolPlan};
use tokio::sync::Notify;

use crate::rig::*;

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
    let waited = lost.elapsed();
    // Chance shortens each wait by less than a fifth.
    assert!(waited > 600 * MS && waited <= 750 * MS, "{waited:?}");
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
    // Who can be told what was said is not asked to go on from before the call.
    let setup = Setup::able(|can| can.history = false).build(|builder| builder.tool(tool));
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
    rig.user_says("u1", "Hello").says("r1", "Hi.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    rig.emit(LiveEvent::Resumable(Resumption { handle: "h1".to_owned().into() }));
    rig.settle().await;
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
