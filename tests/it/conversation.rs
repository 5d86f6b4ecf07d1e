//! Plain turns.

use antiphon::{live::LiveCommand, session::*};

use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn a_spoken_turn_from_speech_to_the_last_sample_heard() {
    let mut rig = start().await;
    rig.user_says("u1", "What time is it?").says("r1", "It is noon.", 500);
    let mut events = rig.now().await;
    assert!(!events.iter().any(is_turn_finished), "not heard yet");
    rig.speaker.play_all();
    events.extend(rig.until(is_turn_finished).await);
    assert_eq!(user_messages(&events), ["What time is it?"]);
    assert_eq!(agent_messages(&events), [("It is noon.".to_owned(), false)]);
    assert_eq!(rig.speaker.heard_samples().len(), 500 * PER_MS);
    assert_eq!(rig.session.stats().turns, 1);
    assert_eq!(rig.session.stats().replies, 1);
}

#[tokio::test(start_paused = true)]
async fn text_is_a_turn_and_the_second_waits_for_the_first_reply() {
    let mut rig = start().await;
    rig.session.send_text("one").unwrap();
    rig.session.send_text("two").unwrap();
    let sent = rig.commands().await;
    assert_eq!(sent, [LiveCommand::Text { text: "one".into(), reply: true }]);
    rig.says("r1", "First.", 100);
    let sent = rig.commands().await;
    assert_eq!(sent, [LiveCommand::Text { text: "two".into(), reply: true }]);
    rig.says("r2", "Second.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    let events = rig.until(is_turn_finished).await;
    assert_eq!(user_messages(&events), ["one", "two"]);
    assert_eq!(agent_messages(&events), [("First.".into(), false), ("Second.".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn say_and_play_come_after_the_current_reply_in_their_order() {
    let mut rig = start().await;
    rig.reply("r1").words("r1", "Hello").audio("r1", 100);
    rig.settle().await;
    let chime = antiphon_testkit::tone(16_000, 440.0, 200);
    rig.session.play(chime).unwrap();
    rig.session.say("The timer is done.").unwrap();
    assert!(rig.commands().await.is_empty(), "the reply goes on");
    rig.done("r1");
    let sent = rig.commands().await;
    let [LiveCommand::Say { request, text }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(text, "The timer is done.");
    rig.reply_to("r2", *request).words("r2", "The timer is done.").audio("r2", 100).done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    rig.settle().await;
    assert_eq!(rig.speaker.generations().len(), 3);
    let heard = rig.speaker.heard_samples().len();
    assert!(heard.abs_diff(400 * PER_MS) < 200, "{heard}");
    let messages = agent_messages(&rig.now().await);
    assert_eq!(messages, [("Hello".into(), false), ("The timer is done.".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn the_users_audio_is_converted_to_what_the_provider_takes() {
    let mut rig = start().await;
    for _ in 0..10 {
        rig.session.send_audio(antiphon_testkit::voice_like(48_000, 20)).unwrap();
    }
    rig.settle().await;
    let mut samples = 0;
    for command in rig.far.drain() {
        let LiveCommand::AppendAudio(frame) = command else { panic!("{command:?}") };
        assert_eq!(frame.format.sample_rate_hz(), 16_000);
        samples += frame.samples();
    }
    assert!(samples.abs_diff(200 * 16) < 100, "{samples}");
}

#[tokio::test(start_paused = true)]
async fn what_must_not_overtake_the_audio_does_not() {
    let setup =
        Setup::new().config(|config| config.voice_activity(antiphon::live::VoiceActivity::Manual));
    let mut rig = setup.start().await;
    rig.session.activity_start().unwrap();
    rig.session.send_audio(antiphon_testkit::voice_like(16_000, 20)).unwrap();
    rig.session.activity_end().unwrap();
    rig.settle().await;
    let names: Vec<_> = rig.far.drain().iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["activity_start", "append_audio", "activity_end"]);
    assert_eq!(rig.session.state(), SessionState::Processing);
}

#[tokio::test(start_paused = true)]
async fn latency_is_told_from_the_end_of_speech_to_the_first_audio() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello");
    rig.settle().await;
    tokio::time::sleep(299 * MS).await;
    rig.says("r1", "Hi.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    let events = rig.until(is_turn_finished).await;
    let Some(EventKind::TurnFinished { latency_ms }) = events.last() else { panic!() };
    assert_eq!(*latency_ms, Some(300));
}
