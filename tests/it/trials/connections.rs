//! Connections that end, and what comes late.

use antiphon::{
    live::{LiveError, LiveEvent, TextUpdate},
    session::*,
};

use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn trial_e09_a_drop_during_a_reply_leaves_nobody_waiting() {
    let mut rig = start().await;
    rig.user_says("u1", "Tell me").reply("r1").words("r1", "Once upon").audio("r1", 200);
    rig.settle().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.settle().await;
    rig.speaker.play_all();
    let far = rig.provider.far_end().await;
    rig.far = far;
    let events = rig.now().await;
    assert_eq!(agent_messages(&events), [("Once upon".into(), true)]);
    assert_eq!(rig.session.state(), SessionState::Listening);
}

#[tokio::test(start_paused = true)]
async fn trial_e10_a_clean_close_ends_the_stream() {
    let mut rig = start().await;
    rig.far.close(1000, "");
    let (_, reason) = rig.end().await;
    assert_eq!(reason, EndReason::ProviderClosed { code: 1000, reason: String::new() });
    assert!(rig.events.next().await.is_none());
    assert!(rig.events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn trial_e14_the_users_audio_goes_to_the_new_connection() {
    let mut rig = start().await;
    rig.emit(LiveEvent::GoingAway { time_left: None });
    rig.settle().await;
    rig.far = rig.provider.far_end().await;
    for _ in 0..10 {
        rig.session.send_audio(antiphon_testkit::voice_like(16_000, 20)).unwrap();
    }
    rig.settle().await;
    assert_eq!(rig.far.drain().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn trial_f08_a_wire_that_takes_nothing_does_not_hold_up_the_agent() {
    let rig = start().await;
    rig.far.stall(true);
    for _ in 0..450 {
        rig.session.send_audio(antiphon_testkit::voice_like(16_000, 20)).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    rig.says("r1", "Hello.", 100);
    rig.settle().await;
    assert_eq!(rig.speaker.queued(), 100 * PER_MS);
    rig.far.stall(false);
}

#[tokio::test(start_paused = true)]
async fn trial_h02_a_transcript_after_the_reply_belongs_to_its_turn() {
    let mut rig = start().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    rig.says("r1", "It is noon.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    tokio::time::sleep(2 * SECOND).await;
    rig.emit(heard("u1", TextUpdate::Final(Some("What time is it?".into()))));
    let mut turn = None;
    for _ in 0..2 {
        let event = rig.events.next().await.unwrap();
        turn = matches!(event.kind, EventKind::UserMessage { .. }).then_some(event.turn);
    }
    assert_eq!(turn, Some(1));
    assert_eq!(rig.session.stats().turns, 1);
    assert_eq!(rig.session.state(), SessionState::Listening, "nothing is waited for");
}
