//! Replies that collide, are cut off, or are heard though they should not be.

use std::{sync::Arc, time::Duration};

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome, TextUpdate},
    session::*,
};

use crate::rig::*;

/// The truncations among commands: item and milliseconds.
fn truncations(commands: &[LiveCommand]) -> Vec<(String, u32)> {
    commands
        .iter()
        .filter_map(|command| match command {
            LiveCommand::Truncate { item, audio_end_ms, .. } => {
                Some((item.to_string(), *audio_end_ms))
            }
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn trial_a02_a_second_text_never_meets_an_active_reply() {
    let mut rig = start().await;
    rig.reply("r1").audio("r1", 100);
    rig.settle().await;
    rig.session.send_text("one").unwrap();
    rig.session.send_text("two").unwrap();
    assert!(rig.commands().await.is_empty());
    rig.done("r1");
    assert_eq!(rig.commands().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_a04_a_reply_that_never_begins_is_an_error_and_the_session_lives_on() {
    let mut rig = start().await;
    rig.session.say("Hello").unwrap();
    rig.session.say("Again").unwrap();
    assert_eq!(rig.commands().await.len(), 1);
    let events = rig.until(|kind| matches!(kind, EventKind::Error { .. })).await;
    assert!(
        matches!(events.last(), Some(EventKind::Error { message, .. }) if message.contains("not begun"))
    );
    assert_eq!(rig.commands().await.len(), 1, "the next one is tried");
}

#[tokio::test(start_paused = true)]
async fn trial_a07_a_new_reply_waits_for_the_end_of_the_cancelled_one() {
    let mut rig = start().await;
    rig.reply("r1").audio("r1", 1_000);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.session.say("New").unwrap();
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["cancel_reply", "truncate"]);
    tokio::time::sleep(300 * MS).await;
    rig.done_as("r1", ReplyOutcome::Cancelled);
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["say"]);
}

#[tokio::test(start_paused = true)]
async fn trial_b01_no_truncation_beyond_what_was_received() {
    for by_voice in [true, false] {
        let mut rig = start().await;
        rig.reply("r1").audio("r1", 500);
        rig.settle().await;
        rig.speaker.play_all();
        tokio::time::sleep(3 * SECOND).await;
        if by_voice {
            rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
        } else {
            rig.session.interrupt().unwrap();
        }
        let cut = truncations(&rig.commands().await);
        assert_eq!(cut, [("r1-item".to_owned(), 500)], "by voice: {by_voice}");
    }
}

#[tokio::test(start_paused = true)]
async fn trial_b03_nothing_is_truncated_before_the_first_frame() {
    let mut rig = start().await;
    rig.reply("r1").words("r1", "Well");
    rig.settle().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    assert!(truncations(&rig.commands().await).is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_b04_and_b07_each_item_is_cut_at_its_own_position() {
    let mut rig = start().await;
    rig.reply("r1");
    for item in ["a", "b", "c"] {
        rig.emit(LiveEvent::Audio {
            reply: "r1".into(),
            item: item.into(),
            content_index: 0,
            frame: antiphon_testkit::tone(24_000, 440.0, 1_000),
        });
    }
    rig.settle().await;
    rig.speaker.play(1_400 * PER_MS);
    rig.session.interrupt().unwrap();
    let cut = truncations(&rig.commands().await);
    assert_eq!(cut, [("b".to_owned(), 400), ("c".to_owned(), 0)]);
    // Late news of the cleared generation changes nothing.
    rig.speaker.play_all();
    assert!(truncations(&rig.commands().await).is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_b06_speech_stops_what_is_only_being_played_any_more() {
    let mut rig = start().await;
    rig.says("r1", "One two three four five six seven eight nine ten.", 10_000);
    rig.settle().await;
    rig.speaker.play(2_500 * PER_MS);
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    let cut = truncations(&rig.commands().await);
    assert_eq!(cut, [("r1-item".to_owned(), 2_500)]);
    assert_eq!(rig.speaker.queued(), 0);
    let messages = agent_messages(&rig.now().await);
    assert_eq!(messages, [("One two".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn trial_b08_and_b11_the_heard_part_is_kept_with_a_flag_and_no_more() {
    let log = Log::default();
    let setup = Setup::new().build(|builder| builder.hooks(LoggingHooks(log.clone())));
    let mut rig = setup.start().await;
    rig.reply("r1");
    for sentence in ["First sentence.", " Second sentence.", " Third one.", " The last."] {
        rig.words("r1", sentence).audio("r1", 1_000);
    }
    rig.done("r1");
    rig.settle().await;
    rig.speaker.play(1_000 * PER_MS);
    rig.session.interrupt().unwrap();
    let events = rig.now().await;
    let message = events.iter().find_map(|kind| match kind {
        EventKind::AgentMessage { text, interrupted: true, generated, .. } => {
            Some((text.clone(), generated.clone().unwrap()))
        }
        _ => None,
    });
    let (text, generated) = message.unwrap();
    assert_eq!(text, "First sentence.");
    assert!(generated.ends_with("The last."));
    assert_eq!(log.count("agent First sentence. true"), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_b09_without_a_position_the_time_tells_what_was_heard() {
    // No sink at all: playout is reckoned by the clock.
    let (sink, _) = antiphon_testkit::Speaker::new(antiphon::audio::AudioFormat::pcm16(24_000), 1);
    drop(sink);
    let provider = antiphon_testkit::ScriptedProvider::default();
    let session = AgentSession::builder(Arc::new(provider.clone())).build().unwrap();
    let mut events = session.events();
    session.start(antiphon::live::LiveConfig::new(), IdleConfig::OFF).await.unwrap();
    let far = provider.far_end().await;
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: None });
    far.emit(LiveEvent::OutputTranscript {
        reply: "r1".into(),
        item: "i".into(),
        text: TextUpdate::Delta("One two three four five six seven eight.".into()),
    });
    far.emit(LiveEvent::Audio {
        reply: "r1".into(),
        item: "i".into(),
        content_index: 0,
        frame: antiphon_testkit::tone(24_000, 440.0, 4_000),
    });
    tokio::time::sleep(2 * SECOND).await;
    session.interrupt().unwrap();
    let messages = agent_messages(&now(&mut events).await);
    assert_eq!(messages, [("One two three four".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn trial_b12_the_next_reply_is_not_cancelled_for_the_last_ones_sake() {
    let mut rig = start().await;
    rig.reply("r1").audio("r1", 1_000);
    rig.settle().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    rig.done_as("r1", ReplyOutcome::Interrupted);
    rig.reply("r2").audio("r2", 100).done("r2");
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["truncate"], "and no cancel at all");
    rig.speaker.play_all();
    assert_eq!(rig.speaker.heard_samples().len(), 100 * PER_MS);
}

#[tokio::test(start_paused = true)]
async fn trial_b14_an_old_interruption_stops_nothing() {
    let mut rig = start().await;
    rig.says("r1", "Old.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.reply("r2").audio("r2", 500);
    rig.now().await;
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    let events = rig.now().await;
    assert!(!events.contains(&EventKind::Interrupted), "{events:?}");
    assert_eq!(rig.speaker.queued(), 500 * PER_MS);
    assert_eq!(rig.session.stats().ignored_events, 1);
}

#[tokio::test(start_paused = true)]
async fn trial_b15_no_sample_of_the_reply_after_an_interruption_is_lost() {
    let rig = start().await;
    rig.reply("r1").audio("r1", 1_000);
    rig.settle().await;
    rig.emit(LiveEvent::Interrupted { reply: None });
    rig.done_as("r1", ReplyOutcome::Interrupted);
    tokio::time::sleep(200 * MS).await;
    rig.says("r2", "New.", 300);
    rig.settle().await;
    rig.speaker.play_all();
    assert_eq!(rig.speaker.heard_samples().len(), 300 * PER_MS);
}

#[tokio::test(start_paused = true)]
async fn trial_b16_late_audio_between_cancel_and_done_is_not_heard() {
    let rig = start().await;
    rig.reply("r1").audio("r1", 100);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.settle().await;
    for _ in 0..5 {
        rig.audio("r1", 20);
    }
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.audio("r1", 20);
    rig.settle().await;
    assert_eq!((rig.speaker.queued(), rig.speaker.play_all()), (0, 0));
    assert_eq!(rig.session.stats().stale_audio_frames, 6);
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_endless_audio_is_cancelled_at_the_bound() {
    let mut limits = SessionLimits::default();
    limits.reply_audio = Duration::from_secs(5);
    let mut rig = Setup::new().build(|builder| builder.limits(limits)).start().await;
    rig.reply("r1");
    for _ in 0..20 {
        rig.audio("r1", 1_000);
    }
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["cancel_reply"]);
    assert_eq!(rig.speaker.queued(), 5_000 * PER_MS, "what is queued is still heard");
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(|kind| *kind == EventKind::PlaybackFinished).await;
}
