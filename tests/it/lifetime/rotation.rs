//! E3, E5, E7, E12, E16: connections that are replaced, by plan and by need.

use std::time::Duration;

use antiphon::{
    live::{HistoryItem, LiveCommand, LiveError, LiveEvent, VoiceActivity},
    session::*,
};
use antiphon_testkit::{ConnectPlan, LatchedTool, ToolPlan, voice_like};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn trial_e03_after_a_notice_a_close_of_any_kind_resumes_by_the_last_handle() {
    for code in [1000, 1008, 1011] {
        let mut rig = start().await;
        rig.emit(resumable("h1")).emit(resumable("h2"));
        // The user speaks, so that it does not leave by itself.
        rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
        rig.emit(LiveEvent::GoingAway { time_left: Some(50 * SECOND) });
        rig.settle().await;
        rig.far.close(code, "Deadline expired before operation could complete.");
        rig.next_connection().await;
        let events = rig.now().await;
        assert_eq!(restored(&events), [(Continuity::Full, 0)], "{code}");
        let requests = rig.provider.requests();
        let handle = requests[1].resume.as_ref().unwrap();
        assert_eq!(handle.handle.expose_secret(), "h2");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_does_not_hold_the_last_question_is_not_used_where_that_can_be_told() {
    for announced in [false, true] {
        let mut rig = start().await;
        rig.emit(resumable("h1"));
        rig.whole_turn("Hello", "Hi.").await;
        rig.emit(resumable("h2"));
        rig.user_says("u2", "And the second one?").reply("r2").words("r2", "The second");
        rig.emit(LiveEvent::NotResumable);
        if announced {
            rig.emit(LiveEvent::GoingAway { time_left: Some(50 * SECOND) });
        }
        rig.settle().await;
        rig.far.close(1011, "Deadline expired before operation could complete.");
        rig.next_connection().await;
        let events = rig.now().await;
        assert_eq!(restored(&events), [(Continuity::History, 0)]);
        let request = rig.provider.requests().pop().unwrap();
        assert!(request.resume.is_none());
        assert_eq!(said(&request.history), ["Hello", "Hi.", "And the second one?", "The second"]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_can_be_told_nothing_resumes_by_the_handle_there_is_and_it_is_not_told_as_all() {
    let mut rig = Setup::able(|can| can.history = false).start().await;
    rig.emit(resumable("h1"));
    rig.user_says("u1", "Go on").reply("r1").words("r1", "Once");
    rig.settle().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    assert!(rig.provider.requests()[1].resume.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_text_that_no_connection_took_is_told_to_the_next_one() {
    let mut rig = start().await;
    rig.emit(resumable("h1"));
    rig.settle().await;
    rig.far.stall(true);
    rig.session.send_text("What is the time?").unwrap();
    rig.settle().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    let request = rig.provider.requests().pop().unwrap();
    assert!(request.resume.is_none(), "it is not in the handle");
    assert_eq!(said(&request.history), ["What is the time?"]);
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn a_talk_of_which_nothing_was_written_down_is_not_told_as_restored() {
    let mut rig = start().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    rig.reply("r1").audio("r1", 10).done("r1");
    rig.settle().await;
    rig.speaker.play_all();
    rig.settle().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::None, 0)]);
}

/// The words of a history.
fn said(history: &[HistoryItem]) -> Vec<&str> {
    let words = history.iter().filter_map(|item| match item {
        HistoryItem::Message { text, .. } => Some(text.as_str()),
        _ => None,
    });
    words.collect()
}

#[tokio::test(start_paused = true)]
async fn trial_e05_going_away_during_a_tool_waits_for_the_handle_after_it() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.emit(resumable("before"));
    rig.calls_tool("r1", "c1", "slow", "{}").emit(LiveEvent::NotResumable);
    latch.started().await;
    rig.emit(LiveEvent::GoingAway { time_left: Some(50 * SECOND) });
    tokio::time::sleep(5 * SECOND).await;
    latch.release(1);
    assert_eq!(rig.outputs().await.len(), 1, "the output goes to the connection that asked for it");
    rig.reply_to("r2", 1).done("r2");
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(rig.provider.requests().len(), 1, "there is no handle yet that knows of the call");
    rig.emit(resumable("after"));
    rig.next_connection().await;
    let requests = rig.provider.requests();
    assert_eq!(requests[1].resume.as_ref().unwrap().handle.expose_secret(), "after");
}

#[tokio::test(start_paused = true)]
async fn a_notice_is_kept_in_time_though_nothing_becomes_quiet_and_nothing_more_comes() {
    let mut rig = start().await;
    rig.user_says("u1", "Go on").reply("r1").audio("r1", 60_000);
    rig.emit(LiveEvent::GoingAway { time_left: Some(40 * SECOND) });
    let told = Instant::now();
    rig.next_connection().await;
    assert_eq!(told.elapsed(), 30 * SECOND, "ten seconds are kept for connecting");
}

#[tokio::test(start_paused = true)]
async fn a_known_limit_is_met_at_a_quiet_moment_or_by_force() {
    const LIFE: Duration = Duration::from_secs(600);
    for busy in [false, true] {
        let mut rig = Setup::able(|can| can.connection_limit = Some(LIFE)).start().await;
        let began = Instant::now();
        tokio::time::sleep(530 * SECOND).await;
        if busy {
            rig.user_says("u1", "Go on").reply("r1").audio("r1", 100);
        }
        rig.next_connection().await;
        let expected = if busy { 590 } else { 540 };
        assert_eq!(began.elapsed(), expected * SECOND);
        let events = rig.now().await;
        assert!(events.iter().any(is_restored));
        // The next one has a life of its own.
        rig.next_connection().await;
        assert!(began.elapsed() >= (expected + 540) * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_by_hand_is_answered_before_its_connection_is_left() {
    let setup = Setup::new().config(|config| config.voice_activity(VoiceActivity::Manual));
    let mut rig = setup.start().await;
    let began = Instant::now();
    rig.session.activity_start().unwrap();
    rig.emit(LiveEvent::GoingAway { time_left: Some(50 * SECOND) });
    rig.settle().await;
    rig.session.send_audio(voice_like(16_000, 1_000)).unwrap();
    rig.session.activity_end().unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(rig.provider.requests().len(), 1, "the answer is awaited");
    assert_eq!(names(&rig.commands().await), ["activity_start", "activity_end"]);
    rig.says("r1", "It is one.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.next_connection().await;
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_turn_by_hand_goes_on_over_a_lost_connection() {
    for released_in_the_gap in [false, true] {
        let setup = Setup::new().config(|config| config.voice_activity(VoiceActivity::Manual));
        let mut rig = setup.start().await;
        rig.session.activity_start().unwrap();
        rig.session.send_audio(voice_like(16_000, 1_000)).unwrap();
        rig.settle().await;
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.settle().await;
        rig.session.send_audio(voice_like(16_000, 1_000)).unwrap();
        if released_in_the_gap {
            rig.session.activity_end().unwrap();
        }
        rig.next_connection().await;
        rig.settle().await;
        if !released_in_the_gap {
            rig.session.activity_end().unwrap();
            rig.settle().await;
        }
        assert_eq!(names(&rig.far.drain()), ["activity_start", "append_audio", "activity_end"]);
        rig.says("r1", "It is one.", 10);
        rig.settle().await;
        rig.speaker.play_all();
        rig.until(is_turn_finished).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sentence_is_not_cut_in_two_where_nobody_says_that_the_user_speaks() {
    let mut rig = Setup::able(|can| can.tells_speech = false).start().await;
    let speak = |rig: &Rig| rig.session.send_audio(voice_like(16_000, 100)).unwrap();
    speak(&rig);
    rig.settle().await;
    rig.emit(LiveEvent::GoingAway { time_left: Some(50 * SECOND) });
    for _ in 0..100 {
        speak(&rig);
        tokio::time::sleep(100 * MS).await;
    }
    assert_eq!(rig.provider.requests().len(), 1, "the user has been speaking for ten seconds");
    rig.says("r1", "I see.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.emit(resumable("h1"));
    let silent = Instant::now();
    for _ in 0..30 {
        rig.session.send_audio(voice_like(16_000, 100).silenced()).unwrap();
        tokio::time::sleep(100 * MS).await;
    }
    rig.next_connection().await;
    assert!(silent.elapsed() <= 3 * SECOND, "{:?}", silent.elapsed());
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::Full, 0)]);
}

#[tokio::test(start_paused = true)]
async fn trial_e07_the_old_socket_is_closed_before_its_handle_is_used() {
    let mut rig = Setup::able(|can| can.close_before_resume = true).start().await;
    rig.emit(resumable("h1"));
    // A peer that does not answer the close.
    rig.far.stall(true);
    rig.emit(LiveEvent::GoingAway { time_left: None });
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!((rig.provider.requests().len(), rig.provider.open_connections()), (1, 1));
    rig.next_connection().await;
    assert_eq!(rig.provider.open_connections(), 1, "the half-open one was given up");
    assert!(rig.provider.requests()[1].resume.is_some());

    let mut rig = start().await;
    rig.emit(resumable("h1"));
    rig.far.stall(true);
    rig.emit(LiveEvent::GoingAway { time_left: None });
    rig.settle().await;
    assert_eq!(rig.provider.requests().len(), 2, "others are not waited for");
    rig.next_connection().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e12_the_host_restarts_a_poisoned_connection_with_its_context() {
    let mut rig = start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.emit(resumable("poisoned"));
    rig.settle().await;
    rig.session.reconnect().unwrap();
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    let requests = rig.provider.requests();
    assert!(requests[1].resume.is_none(), "what is poisoned is not continued");
    assert_eq!(requests[1].history.len(), 2);
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn what_a_new_connection_knows_is_told_and_what_audio_was_lost() {
    for (handle, history, expected) in [
        (true, true, Continuity::Full),
        (false, true, Continuity::History),
        (false, false, Continuity::Digest),
    ] {
        let mut rig = Setup::able(|can| can.history = history).start().await;
        rig.whole_turn("Hello", "Hi.").await;
        if handle {
            rig.emit(resumable("h1"));
        }
        rig.settle().await;
        rig.provider.plan(ConnectPlan::Refuse(LiveError::Transport("down".into())));
        for _ in 0..3 {
            rig.provider.plan(ConnectPlan::Refuse(LiveError::Transport("down".into())));
        }
        rig.far.fail(LiveError::Transport("reset".into()));
        // Longer than audio is kept for.
        let (mut sent, second) = (0, voice_like(16_000, 1_000));
        while rig.provider.requests().len() < 6 {
            rig.session.send_audio(second.clone()).unwrap();
            sent += 1_000;
            tokio::time::sleep(100 * MS).await;
        }
        rig.next_connection().await;
        rig.settle().await;
        let arrived: usize = audio_ms(&rig.far.drain());
        let events = rig.now().await;
        let told = restored(&events);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].0, expected);
        let lost = told[0].1 as usize;
        assert_eq!(arrived + lost, sent, "{events:#?}");
        assert!(arrived <= 31_000 && lost > 0, "{arrived} of {sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_no_history_is_told_the_conversation_in_its_instructions() {
    let setup = Setup::able(|can| can.history = false);
    let mut rig = setup.config(|config| config.instructions("Be kind.")).start().await;
    rig.whole_turn("Hello", "Hi.").await;
    for _ in 0..2 {
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.next_connection().await;
        let events = rig.now().await;
        assert_eq!(restored(&events), [(Continuity::Digest, 0)]);
        let request = rig.provider.requests().pop().unwrap();
        let told = request.config.instructions.clone().unwrap();
        assert!(told.starts_with("Be kind.\n\n"), "{told}");
        assert_eq!(told.matches("User: Hello\nYou: Hi.").count(), 1, "{told}");
    }
    // What it is told anew does not make it forget the rest.
    rig.session.update_instructions("Be brief.").unwrap();
    let commands = rig.commands().await;
    assert!(
        matches!(
            &commands[..],
            [LiveCommand::UpdateInstructions(text)]
                if text.starts_with("Be brief.") && text.ends_with("You: Hi.")
        ),
        "{commands:#?}"
    );
}

fn audio_ms(commands: &[LiveCommand]) -> usize {
    let audio = commands.iter().filter_map(|command| match command {
        LiveCommand::AppendAudio(frame) => Some(frame.duration().as_millis() as usize),
        _ => None,
    });
    audio.sum()
}

#[tokio::test(start_paused = true)]
async fn outputs_of_calls_that_a_new_connection_does_not_know_are_told_in_words() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let setup = Setup::able(|can| can.resumes_calls = false);
    let mut rig = setup.build(|builder| builder.tool(tool)).start().await;
    rig.emit(resumable("h1"));
    rig.user_says("u1", "Do it").calls_tool("r1", "c1", "slow", "{}");
    latch.started().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    latch.release(1);
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["text", "create_reply"], "{commands:#?}");
    assert!(
        matches!(&commands[0], LiveCommand::Text { text, reply: false } if text.contains("slow"))
    );
    assert_eq!(rig.session.stats().late_tool_results, 0);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_came_without_a_connection_is_in_the_history_and_is_answered() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Do it").calls_tool("r1", "c1", "slow", "{}");
    latch.started().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.settle().await;
    latch.release(1);
    rig.next_connection().await;
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["create_reply"], "{commands:#?}");
    let history = rig.provider.requests()[1].history.clone();
    assert_eq!(history.len(), 2, "the user's words and the call: {history:?}");
}

#[tokio::test(start_paused = true)]
async fn two_hundred_changes_by_plan_leave_nothing_behind() {
    let mut rig = Setup::able(|can| can.connection_limit = Some(600 * SECOND)).start().await;
    for number in 1..=200u32 {
        rig.next_connection().await;
        let events = rig.now().await;
        let attempts = events.iter().filter_map(|kind| match kind {
            EventKind::Reconnecting { attempt, .. } => Some(*attempt),
            _ => None,
        });
        assert_eq!(attempts.collect::<Vec<_>>(), [1], "after {number}");
    }
    assert_eq!(rig.provider.open_connections(), 1);
    assert_eq!(rig.session.stats().reconnects, 200);
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_everybody_away_at_once_is_not_asked_over_and_over() {
    let mut rig = start().await;
    let until = Instant::now() + 29 * SECOND;
    rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    while let Ok(far) = tokio::time::timeout_at(until, rig.provider.far_end()).await {
        rig.far = far;
        rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    }
    let connections = rig.provider.requests().len();
    assert!((3..=7).contains(&connections), "{connections}");
    // It talks on by the last one, and leaves that when it has lived for a while.
    rig.whole_turn("Still there?", "Yes.").await;
    rig.next_connection().await;
    rig.whole_turn("And now?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn changes_that_the_host_asks_for_take_no_attempt_from_a_loss() {
    let mut rig = start().await;
    for _ in 0..8 {
        rig.session.reconnect().unwrap();
        rig.next_connection().await;
        rig.settle().await;
    }
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_the_provider_hangs_up_on_is_given_up_for_the_history() {
    let internal = || LiveError::Closed { code: 1011, reason: "Internal error".into() };
    let invalid = || LiveError::InvalidConfig("close 1007: invalid argument".into());
    let down = || LiveError::Transport("down".into());
    for (refusals, by_handle, at_last) in [
        (vec![internal(), internal(), internal(), internal()], 4, false),
        // The server takes the connection before for open still.
        (vec![internal(), internal(), internal()], 4, true),
        (vec![invalid()], 1, false),
        // This says nothing of the handle.
        (vec![down(), down(), down()], 4, true),
    ] {
        let mut rig = start().await;
        rig.whole_turn("Hello", "Hi.").await;
        rig.emit(resumable("h1"));
        rig.settle().await;
        for error in refusals {
            rig.provider.plan(ConnectPlan::Refuse(error));
        }
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.next_connection().await;
        let requests = rig.provider.requests();
        let resumed = requests.iter().filter(|request| request.resume.is_some()).count();
        assert_eq!(resumed, by_handle);
        let last = requests.last().unwrap();
        assert_eq!((last.resume.is_some(), last.history.len()), (at_last, 2));
        rig.whole_turn("Still there?", "Yes.").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_goes_without_a_handle_that_was_refused_before() {
    let mut policy = ReconnectPolicy::default();
    policy.max_attempts = 2;
    let mut rig = Setup::new().build(|builder| builder.reconnect(policy)).start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.emit(resumable("h1"));
    rig.settle().await;
    for _ in 0..2 {
        let error = LiveError::Closed { code: 1011, reason: "Internal error".into() };
        rig.provider.plan(ConnectPlan::Refuse(error));
    }
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    let last = rig.provider.requests().pop().unwrap();
    assert_eq!((last.resume.is_some(), last.history.len()), (false, 2));
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn an_output_that_a_forced_change_left_behind_is_told_once() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Do it").calls_tool("r1", "c1", "slow", "{}");
    latch.started().await;
    rig.far.stall(true);
    latch.release(1);
    rig.settle().await;
    rig.emit(LiveEvent::GoingAway { time_left: None });
    rig.next_connection().await;
    assert_eq!(rig.provider.requests()[1].history.len(), 2);
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["create_reply"], "{commands:#?}");
}

#[tokio::test(start_paused = true)]
async fn names_that_a_server_uses_again_on_the_next_connection_are_new_ones() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    for number in 1..=3 {
        rig.user_says("item_1", "Note it").calls_tool("resp_1", "call_1", "note", "{}");
        let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
        assert_eq!(user_messages(&events), ["Note it"], "on connection {number}");
        let commands = rig.commands().await;
        assert_eq!(names(&commands), ["tool_response", "create_reply"], "on {number}");
        rig.says("resp_2", "Done.", 10);
        rig.settle().await;
        rig.speaker.play_all();
        rig.until(is_turn_finished).await;
        assert_eq!(latch.calls().len(), number);
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.next_connection().await;
        rig.settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn times_that_mean_never_are_no_fault() {
    let mut limits = SessionLimits::default();
    limits.stall = Duration::MAX;
    limits.reply_start = Duration::MAX;
    limits.settle = Duration::MAX;
    limits.turn_settle = Duration::MAX;
    limits.confirm = Duration::MAX;
    limits.host_tool = Duration::MAX;
    limits.hook = Duration::MAX;
    limits.uplink = Duration::MAX;
    limits.gap_audio = Duration::MAX;
    limits.max_length = Some(Duration::MAX);
    limits.max_silence = Some(Duration::MAX);
    let setup = Setup::able(|can| {
        can.connection_limit = Some(Duration::MAX);
        can.resumption_valid = Some(Duration::MAX);
    });
    let mut rig = setup.build(|builder| builder.limits(limits)).start().await;
    rig.emit(resumable("h1"));
    rig.whole_turn("Hello", "Hi.").await;
    let options = SayOptions::new().begin_within(Duration::MAX);
    rig.session.say_with("Hello.", options).unwrap();
    rig.settle().await;
    rig.emit(LiveEvent::GoingAway { time_left: Some(Duration::MAX) });
    rig.settle().await;
    rig.provider.plan(ConnectPlan::Refuse(LiveError::RateLimited {
        message: "slow down".into(),
        retry_after: Some(Duration::MAX),
    }));
    let lost = Instant::now();
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    assert!(lost.elapsed() <= 61 * SECOND, "{:?}", lost.elapsed());
}

#[tokio::test(start_paused = true)]
async fn audio_that_a_dead_connection_did_not_take_is_told_as_lost() {
    let mut rig = start().await;
    rig.session.send_audio(voice_like(16_000, 100)).unwrap();
    rig.settle().await;
    rig.far.stall(true);
    for _ in 0..50 {
        rig.session.send_audio(voice_like(16_000, 100)).unwrap();
        tokio::time::sleep(100 * MS).await;
    }
    rig.far.fail(LiveError::Timeout { what: "room on the wire".into(), after: 5 * SECOND });
    rig.next_connection().await;
    rig.settle().await;
    let arrived = audio_ms(&rig.far.drain()) as u64;
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::Full, 5_000 - arrived)]);
    assert!((1_900..=2_000).contains(&arrived), "{arrived}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_also_takes_the_place_of_a_connection_that_is_being_made() {
    let mut rig = start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.emit(resumable("poisoned"));
    rig.settle().await;
    rig.provider.plan(ConnectPlan::Hang(Default::default()));
    rig.far.fail(LiveError::Transport("reset".into()));
    tokio::time::sleep(SECOND).await;
    assert!(rig.provider.requests()[1].resume.is_some());
    rig.session.reconnect().unwrap();
    rig.settle().await;
    let requests = rig.provider.requests();
    assert_eq!((requests.len(), requests[2].resume.is_some()), (3, false));
    rig.next_connection().await;
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn what_a_jammed_connection_holds_back_goes_to_the_next_one_and_only_there() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Do it").calls_tool("r1", "c1", "slow", "{}");
    latch.started().await;
    rig.session.send_audio(voice_like(16_000, 100)).unwrap();
    rig.settle().await;
    rig.far.jam(true);
    rig.session.send_audio(voice_like(16_000, 500)).unwrap();
    latch.release(1);
    rig.settle().await;
    rig.emit(LiveEvent::GoingAway { time_left: None });
    let mut old = std::mem::replace(&mut rig.far, rig.provider.far_end().await);
    assert_eq!(audio_ms(&old.drain()), 100);
    assert!(old.is_dropped(), "it cannot send the rest any more");
    rig.settle().await;
    let commands = rig.far.drain();
    assert_eq!(audio_ms(&commands), 500);
    assert_eq!(names(&commands).iter().filter(|name| **name != "append_audio").count(), 1);
    assert!(names(&commands).contains(&"create_reply"), "the output is in the history");
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
}
