//! F1 to F18, over the wire: beginning, ending, and connections that are lost.

use std::{sync::Arc, time::Duration};

use antiphon::{live::LiveError, session::*};
use antiphon_testkit::{
    LatchedTool, ToolPlan,
    openai::{Fault, Pace, Reply, Rule, Script, Side, Step},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::rig::*;
use crate::{
    fixed::{SlowStart, StopsInside},
    rig::{Log, LoggingCallbacks, LoggingHooks, MS, SECOND, agent_messages, states, user_messages},
};

#[tokio::test(start_paused = true)]
async fn f03_over_the_wire_every_exit_ends_once_with_its_reason() {
    let leaves = |steps: Vec<Step>| Script::auto().fault(Fault::after("response.done", steps));
    let expired = json!({"code": "session_expired", "message": "60 minutes are over"});
    let quota = json!({"code": "insufficient_quota", "message": "no more money"});
    // How the reason reads, and what it must hold.
    let exits = [
        (Script::auto(), "Idle", ""),
        (leaves(vec![Step::close(1000, "bye")]), "ProviderClosed { code: 1000", "bye"),
        (leaves(vec![Step::close(1011, "server fault")]), "ProviderClosed { code: 1011", "fault"),
        (leaves(vec![Step::close(3000, "invalid_api_key")]), "Failed", "invalid_api_key"),
        (
            leaves(vec![Step::Error(expired), Step::close(1001, "")]),
            "ProviderClosed { code: 1001",
            "session_expired",
        ),
        (leaves(vec![Step::Error(quota)]), "Failed", "no more money"),
        (leaves(vec![Step::Drop]), "ProviderClosed { code: 1006", ""),
        (leaves(vec![Step::Raw("{\"type\":".into()); 20]), "Failed", "bad frames"),
    ];
    for (script, kind, says) in exits {
        let log = Log::default();
        let mut never = ReconnectPolicy::default();
        never.max_attempts = 0;
        let setup = Setup::new(script).idle(None, Some(60)).build(|builder| {
            builder
                .hooks(LoggingHooks(log.clone()))
                .callbacks(LoggingCallbacks(log.clone()))
                .reconnect(never)
        });
        let mut wire = setup.start().await;
        wire.session.send_text("Hello.").unwrap();
        let (events, reason) = wire.end().await;
        let told = format!("{reason:?}");
        assert!(told.starts_with(kind) && told.contains(says), "{told}, not {kind} {says}");
        assert_eq!(wire.session.ended().await.unwrap().reason, reason);
        assert_eq!(wire.session.state(), SessionState::Inactive);
        assert_eq!(log.count("end callback"), 1, "{:#?}", log.lines());
        assert_eq!(log.count("end "), 2, "{:#?}", log.lines());
        assert!(log.lines().last().unwrap().starts_with("end "), "the end comes last");
        assert!(wire.events.next().await.is_none());
        let ends = events.iter().filter(|kind| matches!(kind, EventKind::SessionEnded { .. }));
        assert_eq!(ends.count(), 1);
        wire.assert_closed().await;
        assert_eq!(wire.server.connections(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn f04_over_the_wire_dropping_the_last_handle_closes_the_socket() {
    let log = Log::default();
    let setup =
        Setup::new(Script::auto()).build(|builder| builder.hooks(LoggingHooks(log.clone())));
    let Wire { server, session, mut events, .. } = setup.start().await;
    let other = session.clone();
    drop(session);
    crate::rig::now(&mut events).await;
    assert_eq!(server.open_connections(), 1);
    drop(other);
    let is_end = |kind: &EventKind| matches!(kind, EventKind::SessionEnded { .. });
    let seen = crate::rig::until(&mut events, is_end).await;
    let Some(EventKind::SessionEnded { reason, .. }) = seen.last() else { panic!() };
    assert_eq!(*reason, EndReason::Cancelled);
    tokio::time::sleep(MS).await;
    assert_eq!(server.open_connections(), 0);
    assert_eq!(log.count("end "), 1);
}

#[tokio::test(start_paused = true)]
async fn f05_over_the_wire_stop_while_the_server_says_nothing_yet() {
    let (wire, config, idle) = Setup::new(Script::steps([])).ready();
    let starting = wire.session.clone();
    let start = tokio::spawn(async move { starting.start(config, idle).await });
    wire.settle().await;
    assert_eq!(wire.session.state(), SessionState::Connecting);
    assert_eq!(wire.server.open_connections(), 1);
    wire.session.stop();
    assert!(matches!(start.await.unwrap(), Err(StartError::Stopped)));
    assert_eq!(wire.session.state(), SessionState::Inactive);
    wire.assert_closed().await;
    wire.pass(30 * SECOND).await;
    assert_eq!((wire.session.state(), wire.server.connections()), (SessionState::Inactive, 1));
}

#[tokio::test(start_paused = true)]
async fn f05_over_the_wire_stop_while_a_lost_connection_is_replaced() {
    let drops = Script::auto().fault(Fault::after("response.done", [Step::Drop]));
    let mut wire = start(Script::connections([drops, Script::steps([])])).await;
    wire.session.send_text("Hello.").unwrap();
    wire.until(|kind| matches!(kind, EventKind::Reconnecting { .. })).await;
    wire.pass(SECOND).await;
    assert_eq!(wire.session.state(), SessionState::Recovering);
    assert_eq!((wire.server.connections(), wire.server.open_connections()), (2, 1));
    wire.session.stop();
    assert_eq!(wire.end().await.1, EndReason::Stopped);
    wire.assert_closed().await;
}

#[tokio::test(start_paused = true)]
async fn f12_over_the_wire_stop_works_from_every_hook() {
    for at in ["start", "user", "authorize", "call", "result", "end"] {
        let (tool, _) = LatchedTool::open("note", ToolPlan::Succeed);
        let script = Script::auto().reply(Rule::always(Reply::call("note", json!({}))).times(1));
        let setup = Setup::new(script).build(|builder| builder.tool(tool).hooks(StopsInside(at)));
        let (mut wire, config, idle) = setup.ready();
        let began = tokio::time::Instant::now();
        let started = wire.session.start(config, idle).await;
        if at == "start" {
            assert!(matches!(started, Err(StartError::Stopped)), "{started:?}");
        } else {
            started.unwrap();
            wire.session.send_text("Go.").unwrap();
            if at == "end" {
                wire.settle().await;
                wire.session.stop();
            }
        }
        assert_eq!(wire.end().await.1, EndReason::Stopped, "{at}");
        assert!(began.elapsed() < SECOND, "{at} waited for itself");
        wire.assert_closed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f15_over_the_wire_the_start_hook_comes_before_a_greeting() {
    let (log, released) = (Log::default(), Arc::new(Notify::new()));
    let hooks = SlowStart(log.clone(), released.clone());
    let script = exactly([
        all_heard("u1", "early"),
        begins("r1"),
        words("r1", "Welcome."),
        voice("r1", 100),
        done("r1"),
    ]);
    let (mut wire, config, idle) = Setup::new(script).build(|builder| builder.hooks(hooks)).ready();
    let starting = wire.session.clone();
    let start = tokio::spawn(async move { starting.start(config, idle).await });
    assert!(wire.now().await.is_empty());
    assert_eq!(wire.speaker.queued(), 2_400, "a greeting is heard all the same");
    assert!(!start.is_finished());
    released.notify_one();
    start.await.unwrap().unwrap();
    let seen = wire.hear().await;
    assert!(matches!(seen[0], EventKind::SessionStarted { .. }), "{seen:?}");
    assert_eq!(user_messages(&seen), ["early"]);
    assert_eq!(agent_messages(&seen), [("Welcome.".into(), false)]);
    assert_eq!(log.lines(), ["started", "user early"]);
}

#[tokio::test(start_paused = true)]
async fn f17_over_the_wire_a_lost_connection_is_replaced_and_told_of_the_conversation() {
    let (tool, _) = LatchedTool::open("note", ToolPlan::Succeed);
    let long_id = "call_with_an_id_that_no_client_may_send_0123456789";
    let output = json!({"type": "function_call_output", "call_id": long_id});
    let steps = [
        // The words of the user come late, as they do.
        emit(json!({"type": "input_audio_buffer.speech_started", "item_id": "u1"})),
        emit(json!({"type": "input_audio_buffer.committed", "item_id": "u1"})),
        begins("r1"),
        calls("r1", long_id, "note", r#"{"text":"milk"}"#),
        done("r1"),
        Step::Expect(json!({"type": "conversation.item.create", "item": output})),
        all_heard("u1", "Take a note, please."),
    ];
    let noted = [words("r2", "Noted."), voice("r2", 300), done("r2")];
    let asked = Step::Expect(json!({"type": "conversation.item.create"}));
    let first = steps.into_iter().chain(asked_for("r2")).chain(noted).chain([asked, Step::Drop]);
    let last = Script::auto().reply(Rule::on_text("still know", Reply::spoken("Milk.", 300)));
    let script = Script::connections([exactly(first), Script::refuse(503, "down"), last]);
    let mut wire = Setup::new(script).build(|builder| builder.tool(tool)).start().await;
    wire.hear().await;

    let lost = tokio::time::Instant::now();
    wire.session.send_text("Do you still know?").unwrap();
    let events = wire.until(|kind| matches!(kind, EventKind::PlaybackStarted)).await;
    assert!(lost.elapsed() >= Duration::from_millis(600), "{:?}", lost.elapsed());
    assert!(lost.elapsed() < SECOND, "{:?}", lost.elapsed());
    let attempts = events.iter().filter(|kind| matches!(kind, EventKind::Reconnecting { .. }));
    assert_eq!(attempts.count(), 2);
    assert_eq!((wire.server.connections(), wire.server.open_connections()), (3, 1));
    let events = wire.hear().await;
    assert_eq!(agent_messages(&events), [("Milk.".into(), false)], "the open question is answered");

    let frames: Vec<Value> = wire
        .server
        .records()
        .into_iter()
        .filter(|record| record.connection == 3 && record.from == Side::Client)
        .map(|record| record.frame)
        .collect();
    let kinds: Vec<_> = frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    let item = "conversation.item.create";
    assert_eq!(kinds, ["session.update", item, item, item, item, item, "response.create"]);
    let said: Vec<_> = frames
        .iter()
        .filter(|frame| frame["item"].is_object())
        .map(|frame| match frame["item"]["type"].as_str().unwrap() {
            "message" => frame["item"]["content"][0].to_string(),
            kind => kind.to_owned(),
        })
        .collect();
    let text = |kind: &str, text: &str| json!({"type": kind, "text": text}).to_string();
    assert_eq!(
        said,
        [
            text("input_text", "Take a note, please."),
            "function_call".into(),
            "function_call_output".into(),
            text("output_text", "Noted."),
            text("input_text", "Do you still know?"),
        ]
    );
    for frame in &frames {
        for id in ["/event_id", "/item/id", "/item/call_id"] {
            let id = frame.pointer(id).and_then(Value::as_str).unwrap_or_default();
            assert!(id.chars().count() <= 32, "{frame}");
        }
    }
    assert_eq!(frames[2]["item"]["call_id"], frames[3]["item"]["call_id"]);
    assert_eq!(frames[3]["item"]["output"], json!({"ok": true}).to_string());
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f17_over_the_wire_an_expired_session_and_a_server_fault_are_survived() {
    let expired = json!({"code": "session_expired", "message": "60 minutes are over"});
    for steps in [
        vec![Step::Error(expired), Step::close(1001, "")],
        vec![Step::close(1011, "keepalive ping timeout")],
        vec![Step::close(1012, "service restart")],
        vec![Step::Drop],
        vec![Step::StallMs(600_000)],
    ] {
        let first = Script::auto().fault(Fault::after("response.done", steps));
        let mut wire = start(Script::connections([first, Script::auto()])).await;
        wire.session.send_text("Hello.").unwrap();
        wire.hear_until(|kind| matches!(kind, EventKind::Reconnecting { .. })).await;
        wire.until(is_state(SessionState::Listening)).await;
        assert_eq!(wire.session.stats().reconnects, 1);
        wire.assert_alive().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f17_over_the_wire_attempts_end_and_the_cause_is_kept() {
    let first = Script::auto().fault(Fault::after("response.done", [Step::close(1011, "fault")]));
    let mut wire = start(Script::connections([first, Script::refuse(503, "down")])).await;
    wire.session.send_text("Hello.").unwrap();
    let (events, reason) = wire.end().await;
    assert!(
        matches!(&reason, EndReason::Failed { message } if message.contains("503")),
        "{reason:?}"
    );
    assert_eq!(wire.server.connections(), 6);
    let states = states(&events);
    assert_eq!(states.iter().filter(|state| **state == SessionState::Recovering).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn f17_over_the_wire_a_revoked_key_is_not_tried_again() {
    let first = Script::auto().fault(Fault::after("response.done", [Step::Drop]));
    let body = json!({"error": {"code": "invalid_api_key", "message": "Revoked."}}).to_string();
    let mut wire = start(Script::connections([first, Script::refuse(401, body)])).await;
    wire.session.send_text("Hello.").unwrap();
    let (_, reason) = wire.end().await;
    assert!(
        matches!(&reason, EndReason::Failed { message } if message.contains("Revoked")),
        "{reason:?}"
    );
    assert_eq!(wire.server.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn f17_over_the_wire_what_the_user_asked_is_answered_wherever_the_connection_was_lost() {
    let drop_at = |at: &str, nth| Fault::after(at, [Step::DelayMs(50), Step::Drop]).nth(nth);
    let losses = [
        ("before the reply", Fault::instead_of("response.created", [Step::Drop])),
        ("before it says anything", drop_at("response.created", 1)),
        ("before its call may start", drop_at("response.output_item.done", 1)),
        (
            "before the answer to the output",
            Fault::instead_of("response.created", [Step::Drop]).nth(2),
        ),
        ("before that says anything", drop_at("response.created", 2)),
    ];
    for (when, loss) in losses {
        let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
        let mut slow = Pace::default();
        slow.think_ms = 200;
        let answer = Reply::spoken("There.", 200);
        let first = Script::auto()
            .reply(Rule::on_text("please", Reply::call("note", json!({}))))
            .reply(Rule::on_tool_output("*", answer.clone()))
            .pace(slow)
            .fault(loss);
        let second = Script::auto().reply(Rule::always(answer));
        let setup = Setup::new(Script::connections([first, second]));
        let mut wire = setup.build(|builder| builder.tool(tool)).start().await;
        let events = wire.ask("please").await;
        assert_eq!(wire.server.connections(), 2, "{when}");
        assert_eq!(agent_messages(&events), [("There.".into(), false)], "{when}: {events:#?}");
        assert!(latch.calls().len() <= 1, "{when}: nothing runs twice");
        wire.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn f17_over_the_wire_a_call_of_a_lost_connection_is_not_answered_to_the_next() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let first = Script::auto()
        .reply(Rule::on_text("please", Reply::call("slow", json!({}))))
        .fault(Fault::after("response.done", [Step::DelayMs(100), Step::Drop]));
    let script = Script::connections([first, Script::auto()]);
    let mut wire = Setup::new(script).build(|builder| builder.tool(tool)).start().await;
    wire.session.send_text("please").unwrap();
    latch.started().await;
    wire.pass(SECOND).await;
    assert_eq!(wire.server.connections(), 2);
    latch.release(1);
    wire.settle().await;
    assert!(wire.outputs().is_empty(), "the new conversation knows no such call");
    let told = wire.sent("conversation.item.create").pop().unwrap()["item"].clone();
    let words = told["content"][0]["text"].as_str().unwrap();
    assert!(told["role"] == "user" && words.contains("slow"), "but is told of it: {told}");
    assert_eq!(wire.session.stats().late_tool_results, 0);
    wire.assert_alive().await;
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f18_over_the_wire_no_frame_and_no_debug_output_shows_the_key() {
    let script = Script::connections([Script::auto(), Script::refuse(401, "No.")]);
    let setup = Setup::new(script).config(|config| config.api_key("sk-very-secret"));
    let config = setup.config.clone();
    let mut wire = setup.start().await;
    wire.ask("Hello.").await;
    wire.session.shutdown(SECOND).await.unwrap();
    let refused = wire.session.start(config.clone(), IdleConfig::OFF).await.unwrap_err();
    assert!(matches!(refused, StartError::Connect(LiveError::Unauthorized(_))), "{refused}");
    for text in [
        format!("{:?}", wire.session),
        format!("{:?}", config),
        format!("{refused:?} {refused}"),
        format!("{:?}", wire.server.records()),
    ] {
        assert!(!text.contains("very-secret"), "{text}");
    }
}
