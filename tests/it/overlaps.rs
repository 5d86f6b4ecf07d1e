//! Replies, tools and speech that overlap: what the session says of itself, and what waits for what.

use std::sync::Arc;

use antiphon::{
    agent::{FuncTool, Outcome},
    live::{ErrorInfo, LiveCommand, LiveError, LiveEvent, ReplyOutcome, Resumption, TextUpdate},
    session::*,
    types::{JsonObject, ToolBehavior, ToolDefinition, ToolResponse, ToolResponseScheduling},
};
use antiphon_testkit::{LatchedTool, ToolPlan, full_capabilities};

use crate::rig::*;

fn started() -> LiveEvent {
    LiveEvent::SpeechStarted { audio_start_ms: None }
}

fn stopped() -> LiveEvent {
    LiveEvent::SpeechStopped { audio_end_ms: None }
}

fn names(commands: &[LiveCommand]) -> Vec<&'static str> {
    commands.iter().map(LiveCommand::name).collect()
}

/// A tool that takes so long.
fn takes(seconds: u32) -> FuncTool {
    FuncTool::new("search", "slow", None, move |_, _| async move {
        tokio::time::sleep(seconds * SECOND).await;
        Ok(JsonObject::new())
    })
}

fn judged() -> Setup {
    Setup::new().build(|builder| builder.barge_in(BargeIn::Judged(SpeechJudge::default())))
}

/// How far each of the session's prompts came.
fn prompts(events: &[EventKind]) -> Vec<HostPromptStage> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::HostPrompt(prompt) => Some(prompt.stage),
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_nobody_announced_is_heard_once() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello").words("r1", "Hi.").audio("r1", 500).done("r1");
    rig.settle().await;
    assert_eq!(rig.speaker.play_all(), 500 * PER_MS);
    let events = rig.until(is_turn_finished).await;
    assert_eq!(agent_messages(&events), [("Hi.".to_owned(), false)]);
    // What still comes of it is stale.
    rig.audio("r1", 500);
    rig.settle().await;
    assert_eq!(rig.speaker.play_all(), 0);
    assert_eq!(rig.session.stats().stale_audio_frames, 1);
}

#[tokio::test(start_paused = true)]
async fn calls_within_a_reply_do_not_end_its_speech() {
    let (tool, latch) = LatchedTool::new("note", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Note it").reply("r1").words("r1", "I will.").audio("r1", 1_000);
    rig.calls("r1", &[("c1", "note", "{}")]);
    rig.settle().await;
    assert_eq!(rig.session.state(), SessionState::Speaking);
    rig.done("r1");
    latch.started().await;
    assert_eq!(rig.session.state(), SessionState::Processing, "the tool works");
    latch.release(1);
    assert_eq!(names(&rig.commands().await), ["tool_response", "create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_reply_that_was_cut_off_are_no_work() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Note it").reply("r1").words("r1", "I will.").audio("r1", 1_000);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.settle().await;
    rig.now().await;
    rig.calls("r1", &[("c1", "note", "{}")]);
    rig.settle().await;
    let events = rig.now().await;
    assert_eq!(outcomes(&events), [("c1".to_owned(), Outcome::Interrupted)]);
    assert!(states(&events).is_empty(), "it listened, and goes on listening: {events:#?}");
    assert!(latch.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_output_that_is_told_in_words_is_answered_only_where_it_is_to_be() {
    for (scheduling, answered) in
        [(ToolResponseScheduling::WhenIdle, true), (ToolResponseScheduling::Silent, false)]
    {
        // It answers by itself, and knows nothing of calls of before.
        let setup = Setup::able(|can| {
            can.replies_after_tools = true;
            can.resumes_calls = false;
        });
        let tool = takes(10).scheduling(scheduling);
        let mut rig = setup.build(|builder| builder.tool(tool)).start().await;
        rig.emit(LiveEvent::Resumable(Resumption { handle: "h1".to_owned().into() }));
        rig.user_says("u1", "Search").calls_tool("r1", "c1", "search", "{}");
        rig.settle().await;
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.far = rig.provider.far_end().await;
        tokio::time::sleep(11 * SECOND).await;
        let commands = rig.commands().await;
        let [LiveCommand::Text { reply, text }] = &commands[..] else { panic!("{commands:?}") };
        assert!(text.contains("search"), "{text}");
        assert_eq!(*reply, answered, "{scheduling:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_during_another_reply_does_not_keep_its_turn_open() {
    let setup = Setup::able(|can| can.replies_after_tools = true);
    let tool = takes(10).behavior(ToolBehavior::NonBlocking);
    let mut rig = setup.build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Search").reply("r1").words("r1", "I do.").audio("r1", 100);
    rig.calls("r1", &[("c1", "search", "{}")]).done("r1");
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    rig.user_says("u2", "How are you?").reply("r2").words("r2", "Fine.").audio("r2", 100);
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(names(&rig.commands().await), ["tool_response"]);
    rig.done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    let events = rig.now().await;
    assert!(events.iter().any(is_turn_finished), "{events:#?}");
    // The provider speaks of it when it likes.
    rig.says("r3", "Found it.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    assert_eq!(agent_messages(&rig.now().await), [("Found it.".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_answer_that_cannot_be_asked_for() {
    let setup = Setup::able(|can| {
        can.create_reply = false;
        can.replies_after_tools = false;
    });
    let (tool, _) = LatchedTool::open("note", ToolPlan::Succeed);
    let mut rig = setup.build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Note it").reply("r1").words("r1", "Noted.").audio("r1", 100);
    rig.calls("r1", &[("c1", "note", "{}")]).done("r1");
    rig.settle().await;
    rig.speaker.play_all();
    assert_eq!(names(&rig.commands().await), ["tool_response"]);
    let events = rig.now().await;
    assert!(events.iter().any(is_turn_finished), "{events:#?}");
    assert_eq!(rig.session.state(), SessionState::Listening);
}

#[tokio::test(start_paused = true)]
async fn after_a_silent_result_the_session_listens_though_the_reply_is_still_heard() {
    let tool = takes(1).scheduling(ToolResponseScheduling::Silent);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Note it").reply("r1").words("r1", "Noted. And more").audio("r1", 10_000);
    rig.calls("r1", &[("c1", "search", "{}")]).done("r1");
    rig.settle().await;
    assert_eq!(rig.session.state(), SessionState::Processing);
    tokio::time::sleep(1_100 * MS).await;
    assert_eq!(rig.session.state(), SessionState::Listening);
    assert!(!rig.now().await.iter().any(is_turn_finished), "its words are not over");
    rig.speaker.play_all();
    assert!(rig.now().await.iter().any(is_turn_finished));
    assert_eq!(names(&rig.commands().await), ["tool_response"]);
}

#[tokio::test(start_paused = true)]
async fn each_interruption_pauses_the_agent_anew() {
    let mut rig = judged().start().await;
    rig.says("r1", "One two three four five six seven eight nine ten.", 10_000);
    for (turn, reply) in [(1, "r2"), (2, "r3")] {
        rig.settle().await;
        rig.speaker.play(1_000 * PER_MS);
        rig.emit(started());
        rig.settle().await;
        assert!(rig.speaker.is_paused(), "turn {turn}");
        tokio::time::sleep(300 * MS).await;
        rig.emit(stopped());
        rig.emit(heard(&format!("u{turn}"), TextUpdate::Final(Some("Something else.".into()))));
        assert_eq!(names(&rig.commands().await), ["truncate", "create_reply"], "turn {turn}");
        assert!(!rig.speaker.is_paused(), "turn {turn}");
        rig.reply_to(reply, turn).words(reply, "Well then, as you like").audio(reply, 5_000);
        rig.done(reply);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_paused_before_its_first_word_does_not_stay_silent() {
    let mut rig = judged().start().await;
    rig.user_says("u1", "Tell me a story");
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
    rig.reply_to("r1", 1).emit(started());
    rig.settle().await;
    assert!(rig.speaker.is_paused());
    rig.session.interrupt().unwrap();
    rig.settle().await;
    assert!(!rig.speaker.is_paused(), "nothing is left that could pause");
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.emit(stopped());
    rig.settle().await;
    rig.says("r2", "Once upon a time.", 1_000);
    rig.settle().await;
    assert_eq!(rig.speaker.play_all(), 1_000 * PER_MS);
}

#[tokio::test(start_paused = true)]
async fn words_end_the_speech_whose_end_was_never_told() {
    let mut rig = Setup::new().idle(Some(3), None).start().await;
    rig.emit(started()).emit(heard("u1", TextUpdate::Final(Some("Hello".into()))));
    rig.says("r1", "Hi.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    tokio::time::sleep(4 * SECOND).await;
    assert!(!prompts(&rig.now().await).is_empty(), "nobody speaks, and time goes on");
}

#[tokio::test(start_paused = true)]
async fn late_words_do_not_end_the_speech_that_is_heard_now() {
    let tool = FuncTool::new("search", "slow", None, |cx, _| async move {
        tokio::time::sleep(5 * SECOND).await;
        cx.say("Still looking.").await;
        tokio::time::sleep(5 * SECOND).await;
        Ok(JsonObject::new())
    });
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u0", "Search").calls_tool("r1", "c1", "search", "{}");
    rig.settle().await;
    rig.emit(started()).emit(stopped()).emit(LiveEvent::InputCommitted { item: "u1".into() });
    tokio::time::sleep(SECOND).await;
    rig.emit(started());
    tokio::time::sleep(SECOND).await;
    rig.emit(heard("u1", TextUpdate::Final(Some("And hurry".into()))));
    tokio::time::sleep(4 * SECOND).await;
    assert!(rig.commands().await.is_empty(), "nobody talks into what the user says");
}

#[tokio::test(start_paused = true)]
async fn a_reminder_that_the_connection_refuses_is_told_as_such() {
    let mut rig = Setup::able(|can| can.say = false).idle(Some(3), None).start().await;
    // The provider promises more than its connection takes.
    rig.emit(LiveEvent::Ready { capabilities: Arc::new(full_capabilities()) });
    tokio::time::sleep(4 * SECOND).await;
    let stages = prompts(&rig.now().await);
    assert_eq!(stages, [HostPromptStage::Started, HostPromptStage::SendFailed]);
    rig.user_says("u1", "Hello").says("r1", "Hi.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    assert!(rig.now().await.iter().any(is_turn_finished), "the conversation goes on");
}

#[tokio::test(start_paused = true)]
async fn an_acknowledged_result_is_nothing_out_of_the_ordinary() {
    let (tool, _) = LatchedTool::open("note", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Note it").calls_tool("r1", "c1", "note", "{}");
    assert_eq!(rig.outputs().await.len(), 1);
    rig.emit(LiveEvent::ToolResultAccepted { id: "c1".into() });
    rig.settle().await;
    assert_eq!(rig.session.stats().ignored_events, 0);
}

#[tokio::test(start_paused = true)]
async fn another_output_in_place_of_a_refused_one_is_answered_unless_it_is_silent() {
    for silent in [false, true] {
        let setup = Setup::new()
            .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
        let mut rig = setup.start().await;
        rig.calls_tool("r1", "c1", "mine", "{}");
        rig.settle().await;
        let mut response = ToolResponse::new("c1", "mine", JsonObject::new());
        rig.session.send_tool_response(response.clone()).unwrap();
        assert_eq!(names(&rig.commands().await), ["tool_response", "create_reply"]);
        rig.emit(LiveEvent::Error(ErrorInfo::new("bad_output", "no").for_call("c1")));
        rig.reply_to("r2", 1).done("r2");
        rig.settle().await;
        if silent {
            response.scheduling = ToolResponseScheduling::Silent;
        }
        rig.session.send_tool_response(response).unwrap();
        let expected = ["tool_response", "create_reply"];
        let told = if silent { &expected[..1] } else { &expected[..] };
        assert_eq!(names(&rig.commands().await), told);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_as_soon_as_its_leave_was_heard() {
    let mut limits = SessionLimits::default();
    limits.max_length = Some(60 * SECOND);
    let began = tokio::time::Instant::now();
    let mut rig = Setup::new().build(|builder| builder.limits(limits)).start().await;
    tokio::time::sleep(46 * SECOND).await;
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, .. }] = &commands[..] else { panic!("{commands:?}") };
    rig.reply_to("r1", *request).words("r1", "Goodbye!").audio("r1", 1_000).done("r1");
    rig.settle().await;
    rig.speaker.play_all();
    let (_, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Limit { limit: "session_length".into() });
    assert!(began.elapsed() < 50 * SECOND, "nobody waits for what is left of the minute");
}
