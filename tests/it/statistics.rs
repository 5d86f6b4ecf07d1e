//! How long things took, as the session counts it.

use std::time::Duration;

use antiphon::{
    audio::{AudioFormat, AudioFrame, ClockedSink},
    live::{LiveEvent, ReplyOutcome},
    session::*,
    types::Usage,
};
use antiphon_testkit::{LatchedTool, ToolPlan};

use crate::rig::*;

/// A rig whose sink plays at the pace of the virtual clock.
fn clocked() -> Setup {
    Setup::new().build(|builder| builder.sink(ClockedSink::new(AudioFormat::pcm16(24_000))))
}

fn near(time: Duration, ms: u64) -> bool {
    let ms = Duration::from_millis(ms);
    time >= ms && time <= ms + ms / 20 + 2 * MS
}

#[tokio::test(start_paused = true)]
async fn answers_are_timed_from_the_end_of_speech_to_the_first_sound() {
    let mut rig = clocked().start().await;
    for (turn, ms) in [300, 500, 2_000].into_iter().enumerate() {
        rig.user_says(&format!("u{turn}"), "Hello");
        tokio::time::sleep(Duration::from_millis(ms)).await;
        rig.says(&format!("r{turn}"), "Hello.", 400);
        rig.until(is_turn_finished).await;
    }
    let answers = rig.session.stats().answer_time;
    assert_eq!(answers.count, 3);
    assert!(near(answers.p50, 500) && near(answers.p95, 2_000), "{answers:?}");
    assert!(near(answers.max, 2_000), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn an_interruption_is_timed_from_where_the_user_began_in_the_audio() {
    let mut rig = clocked().start().await;
    rig.reply("r1").audio("r1", 5_000);
    for _ in 0..50 {
        rig.session.send_audio(AudioFrame::from_pcm16(16_000, &[5; 320])).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    // A second has gone up, and the detector says only now that the user spoke since 0.7 s.
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: Some(700) });
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    rig.done_as("r1", ReplyOutcome::Interrupted);
    rig.until(|kind| matches!(kind, EventKind::PlaybackFinished)).await;
    let silences = rig.session.stats().barge_in_time;
    assert_eq!(silences.count, 1);
    assert!(near(silences.max, 300), "{silences:?}");

    // The host's own interruption is none of the user's.
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    rig.reply("r2").audio("r2", 1_000);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.until(|kind| matches!(kind, EventKind::PlaybackFinished)).await;
    assert_eq!(rig.session.stats().barge_in_time.count, 1);
}

#[tokio::test(start_paused = true)]
async fn tools_are_timed_and_usage_is_counted_and_the_last_event_has_all_of_it() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut rig = clocked().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Do it").calls_tool("r1", "c1", "slow", "{}");
    latch.started().await;
    tokio::time::sleep(3 * SECOND).await;
    latch.release(1);
    rig.settle().await;
    rig.reply_to("r2", 1).audio("r2", 300);
    let mut usage = Usage::default();
    usage.input_audio_tokens = 100;
    usage.cached_tokens = 60;
    usage.output_audio_tokens = 40;
    rig.emit(LiveEvent::ReplyDone {
        reply: "r2".into(),
        outcome: ReplyOutcome::Completed,
        usage: Some(usage),
    });
    rig.until(is_turn_finished).await;
    rig.session.stop();
    let (events, _) = rig.end().await;
    let Some(EventKind::SessionEnded { stats, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!(stats.tool_time.count, 1);
    assert!(near(stats.tool_time.max, 3_000), "{stats:?}");
    assert_eq!(stats.usage, usage);
    let record = rig.session.ended().await.unwrap();
    assert_eq!(record.stats, **stats, "the event at the end says it all");
    let json = serde_json::to_value(events.last().unwrap()).unwrap();
    assert!(json["stats"]["tool_time"]["max_ms"].as_f64().unwrap() >= 3_000.0, "{json}");
    assert_eq!(json["stats"]["usage"]["cached_tokens"], 60);
}
