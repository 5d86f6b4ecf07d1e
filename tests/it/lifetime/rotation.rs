//! E3, E5, E7, E12, E16: connections that are replaced, by plan and by need.

use std::time::Duration;

use antiphon::{
    live::{LiveCommand, LiveError, LiveEvent},
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
        // Something is under way, so that it does not leave by itself.
        rig.user_says("u1", "Go on").reply("r1").words("r1", "Once");
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
        if handle {
            rig.emit(resumable("h1"));
        }
        rig.whole_turn("Hello", "Hi.").await;
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
