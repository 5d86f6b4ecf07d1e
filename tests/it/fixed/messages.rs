//! F1, F2, F6, F13: messages, idle timers, queues.

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome, TextUpdate},
    session::*,
};
use antiphon_testkit::{LatchedTool, ToolPlan};

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
