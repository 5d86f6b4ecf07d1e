//! The user's silence, and noises in it.

use antiphon::{
    live::{LiveEvent, TextUpdate},
    session::*,
};
use antiphon_testkit::{LatchedTool, ToolPlan};

use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn trial_c07_speech_within_a_tool_does_not_wake_the_idle_timer() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let setup = Setup::new().idle(Some(15), None).build(|builder| builder.tool(tool));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "slow", "{}");
    tokio::time::sleep(5 * SECOND).await;
    rig.says("r2", "One moment.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    tokio::time::sleep(25 * SECOND).await;
    let prompted = rig.now().await.iter().any(|kind| matches!(kind, EventKind::HostPrompt(_)));
    assert!(!prompted);
    latch.release(1);
}

#[tokio::test(start_paused = true)]
async fn trial_c09_line_noise_does_not_put_idle_off_for_ever() {
    let mut rig = Setup::new().idle(Some(15), None).start().await;
    let began = tokio::time::Instant::now();
    for turn in 0..20 {
        rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
        tokio::time::sleep(200 * MS).await;
        rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
        rig.emit(heard(&format!("u{turn}"), TextUpdate::Final(Some(String::new()))));
        tokio::time::sleep(2_800 * MS).await;
        if rig.now().await.iter().any(|kind| matches!(kind, EventKind::HostPrompt(_))) {
            assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
            return;
        }
    }
    panic!("nobody was reminded");
}
