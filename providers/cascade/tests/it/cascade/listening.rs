//! Turn-taking and transcripts.

use std::{sync::Arc, time::Duration};

use antiphon_cascade::Alternative;
use antiphon_live::{
    ActivityHandling, LiveCommand, LiveConfig, LiveEvent, ReplyOutcome, TextUpdate, VoiceActivity,
};
use tokio::time::Instant;

use super::parts::*;

fn fin(text: &str) -> TextUpdate {
    TextUpdate::Final(Some(text.into()))
}

#[tokio::test(start_paused = true)]
async fn a_spoken_question_is_heard_transcribed_and_answered() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(0, 1_000).await;
    talk.sound(ONE, 700).await;
    talk.sound(TWO, 700).await;
    talk.sound(0, 1_000).await;
    let events = talk.until_done().await;
    assert_eq!(
        names(&events),
        [
            "speech_started",
            "input_transcript",
            "speech_stopped",
            "input_transcript",
            "reply_started",
            "output_transcript",
            "audio",
            "output_transcript",
            "reply_done"
        ]
    );
    assert!(matches!(events[0], LiveEvent::SpeechStarted { audio_start_ms: Some(700) }));
    let stopped = events.iter().find_map(|event| match event {
        LiveEvent::SpeechStopped { audio_end_ms } => *audio_end_ms,
        _ => None,
    });
    assert_eq!(stopped, Some(2_400));
    let heard = heard(&events);
    assert_eq!(heard[0], TextUpdate::Snapshot("one".into()));
    assert_eq!(heard[heard.len() - 1], fin("one two"));
    assert_eq!(said(&events), "You said one two.");
    let Some(LiveEvent::ReplyDone { usage: Some(usage), .. }) = events.last() else { panic!() };
    assert_eq!(usage.output_audio_ms, audio_ms(&events));
    assert!(usage.input_audio_ms >= 1_700, "{usage:?}");
}

#[tokio::test(start_paused = true)]
async fn the_final_transcript_is_ready_when_the_silence_is_over() {
    let mut house = House::new(Brain::echo());
    house.ears = Arc::new(Ears { delay: Duration::from_millis(250), ..Ears::default() });
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 400).await;
    let last_voiced = Instant::now();
    for _ in 0..60 {
        talk.sound(0, 20).await;
        if talk.events.iter().any(|event| matches!(event, LiveEvent::ReplyStarted { .. })) {
            break;
        }
    }
    assert!(last_voiced.elapsed() <= Duration::from_millis(640), "{:?}", last_voiced.elapsed());
    let finals = house.ears.heard.lock().unwrap().iter().filter(|(last, _)| *last).count();
    assert_eq!(finals, 1, "the early result is the final one");
}

#[tokio::test(start_paused = true)]
async fn an_early_result_is_given_up_when_speech_goes_on() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 400).await;
    talk.sound(0, 400).await;
    talk.sound(TWO, 400).await;
    talk.sound(0, 800).await;
    let events = talk.until_done().await;
    assert_eq!(said(&events), "You said one two.");
    assert_eq!(house.brain.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_questions_with_silence_between_are_two_turns() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.speak(ONE).await;
    talk.sound(0, 1_200).await;
    talk.speak(TWO).await;
    talk.rest(3_000).await;
    let events: Vec<LiveEvent> = talk.events.drain(..).collect();
    let finals = heard(&events).into_iter().filter(|text| matches!(text, TextUpdate::Final(_)));
    assert_eq!(finals.collect::<Vec<_>>(), [fin("one"), fin("two")]);
    assert_eq!(house.brain.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn noise_without_words_is_no_turn() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.speak(NOISE).await;
    talk.rest(2_000).await;
    let events: Vec<LiveEvent> = talk.events.drain(..).collect();
    assert_eq!(names(&events), ["speech_started", "speech_stopped", "input_transcript"]);
    assert_eq!(heard(&events), [fin("")]);
    talk.speak(ONE).await;
    assert_eq!(talk.answer().await, "You said one.");
}

#[tokio::test(start_paused = true)]
async fn words_said_before_the_answer_began_are_one_turn() {
    let mut house = House::new(Brain::echo());
    house.ears = Arc::new(Ears { delay: Duration::from_millis(900), ..Ears::default() });
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 400).await;
    talk.sound(0, 700).await;
    talk.sound(TWO, 400).await;
    talk.sound(0, 800).await;
    assert_eq!(talk.answer().await, "You said one two.");
    assert_eq!(house.brain.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn speech_interrupts_the_reply_and_nothing_of_it_comes_later() {
    let house =
        House::new(Brain::new(|_| vec![Step::Text("A very long first sentence. And more.")]));
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("go").await;
    let reply = talk.until_started().await;
    talk.until_audio().await;
    talk.sound(TWO, 200).await;
    let events = talk.until_done().await;
    assert_eq!(outcome(&events), ReplyOutcome::Interrupted);
    let tail = &events[events.len() - 3..];
    assert_eq!(names(tail), ["speech_started", "interrupted", "reply_done"]);
    talk.sound(TWO, 200).await;
    talk.sound(0, 700).await;
    let events = talk.until_done().await;
    let late = events.iter().any(|e| matches!(e, LiveEvent::Audio { reply: r, .. } if *r == reply));
    assert!(!late, "audio of an interrupted reply");
    assert_eq!(house.brain.latest()[1], "A very long first sentence.", "what was sent is kept");
}

#[tokio::test(start_paused = true)]
async fn trial_b08_an_interrupted_reply_keeps_what_was_heard() {
    const QUESTION: &str = "tell me all that you know of this";
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text(QUESTION).await;
    let item = talk.until_audio().await;
    let truncate = |heard_text: Option<&str>, audio_end_ms| LiveCommand::Truncate {
        item: item.clone(),
        content_index: 0,
        audio_end_ms,
        heard_text: heard_text.map(Into::into),
    };
    talk.sound(TWO, 400).await;
    talk.send(truncate(Some("You"), 80)).await;
    talk.sound(0, 700).await;
    talk.until(|event| matches!(event, LiveEvent::Interrupted { .. })).await;
    talk.until_done().await;
    talk.until_done().await;
    assert_eq!(house.brain.latest(), [QUESTION, "You", "two"]);
    talk.send(truncate(None, 0)).await;
    talk.text("again").await;
    talk.until_done().await;
    assert_eq!(house.brain.latest(), [QUESTION, "two", "You said two.", "again"]);
    let unknown = LiveCommand::Truncate {
        item: "nothing".into(),
        content_index: 0,
        audio_end_ms: 0,
        heard_text: None,
    };
    talk.send(unknown).await;
    assert!(matches!(talk.next().await, LiveEvent::Error(error) if &*error.code == "unknown_item"));
}

#[tokio::test(start_paused = true)]
async fn without_interruption_the_reply_goes_on_and_the_words_are_answered_afterwards() {
    let house = House::new(Brain::echo());
    let mut config = LiveConfig::new();
    config.policies.activity.handling = ActivityHandling::NoInterruption;
    let mut talk = house.talk(config).await;
    talk.text("a rather long text that takes more than a moment to be said aloud").await;
    talk.until_started().await;
    talk.speak(TWO).await;
    let events = talk.until_done().await;
    assert_eq!(outcome(&events), ReplyOutcome::Completed);
    assert_eq!(talk.answer().await, "You said two.");
}

#[tokio::test(start_paused = true)]
async fn by_hand_the_host_says_when_the_user_speaks() {
    let house = House::new(Brain::echo());
    let config = LiveConfig::new().voice_activity(VoiceActivity::Manual);
    let mut talk = house.talk(config).await;
    talk.sound(THREE, 1_000).await;
    talk.send(LiveCommand::ActivityStart).await;
    talk.sound(ONE, 600).await;
    talk.send(LiveCommand::ActivityEnd).await;
    let events = talk.until_done().await;
    assert_eq!(said(&events), "You said three one.", "a little from before belongs to it");
    assert!(!names(&events).contains(&"speech_started"));
    talk.text("tell me something that takes a while to say").await;
    talk.until_audio().await;
    talk.send(LiveCommand::ActivityStart).await;
    assert_eq!(outcome(&talk.until_done().await), ReplyOutcome::Interrupted);
    talk.sound(TWO, 600).await;
    talk.send(LiveCommand::EndAudio).await;
    assert!(talk.answer().await.ends_with("two."));
    talk.send(LiveCommand::EndAudio).await;
    talk.send(LiveCommand::ActivityEnd).await;
    talk.rest(100).await;
    assert_eq!(error_codes(talk.events.make_contiguous()), ["activity"]);
}

#[tokio::test(start_paused = true)]
async fn without_activity_the_end_of_audio_commits() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new().voice_activity(VoiceActivity::Off)).await;
    talk.sound(ONE, 600).await;
    talk.sound(0, 5_000).await;
    talk.send(LiveCommand::EndAudio).await;
    assert_eq!(talk.answer().await, "You said one.");
    talk.sound(ONE, 600).await;
    talk.send(LiveCommand::ClearAudio).await;
    talk.sound(TWO, 600).await;
    talk.send(LiveCommand::EndAudio).await;
    assert_eq!(talk.answer().await, "You said two.");
}

#[tokio::test(start_paused = true)]
async fn trial_f10_nothing_to_commit_is_an_error_and_no_hang() {
    let house = House::new(Brain::echo());
    for mode in [VoiceActivity::Manual, VoiceActivity::Off] {
        let mut talk = house.talk(LiveConfig::new().voice_activity(mode)).await;
        talk.send(LiveCommand::EndAudio).await;
        assert_eq!(error_codes(&[talk.next().await]), ["empty_commit"]);
        talk.sound(0, 60).await;
        talk.send(LiveCommand::EndAudio).await;
        assert_eq!(error_codes(&[talk.next().await]), ["empty_commit"]);
        talk.text("still there?").await;
        assert_eq!(talk.answer().await, "You said still there?.");
    }
}

#[tokio::test(start_paused = true)]
async fn speech_that_is_cut_off_is_a_turn() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 500).await;
    talk.send(LiveCommand::EndAudio).await;
    assert_eq!(talk.answer().await, "You said one.");
    // The line went dead instead.
    talk.sound(TWO, 500).await;
    assert_eq!(talk.answer().await, "You said two.");
}

#[tokio::test(start_paused = true)]
async fn cleared_audio_is_no_turn() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 500).await;
    talk.send(LiveCommand::ClearAudio).await;
    talk.sound(0, 1_000).await;
    talk.rest(1_000).await;
    let events: Vec<LiveEvent> = talk.events.drain(..).collect();
    assert!(names(&events).starts_with(&["speech_started"]), "{events:?}");
    assert!(names(&events).contains(&"speech_stopped"));
    assert_eq!(house.brain.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_long_speech_is_recognised_in_pieces_and_joined() {
    let house = House::new(Brain::echo());
    let mut config = LiveConfig::new();
    config.policies.input_transcription = false;
    let mut talk = house.talk(config).await;
    for level in [ONE, TWO, THREE] {
        talk.sound(level, 13_000).await;
        talk.sound(0, 300).await;
    }
    talk.sound(0, 700).await;
    let answer = talk.until_done().await;
    assert_eq!(said(&answer), "You said one two three.");
    assert!(heard(&answer).is_empty(), "no transcripts were wanted");
    let longest = house.ears.heard.lock().unwrap().iter().map(|(_, length)| *length).max();
    assert!(longest.unwrap() <= Duration::from_secs(16));
}

/// How often the recogniser was asked, and for how much audio altogether.
fn work(house: &House) -> (usize, Duration) {
    let heard = house.ears.heard.lock().unwrap();
    (heard.len(), heard.iter().map(|(_, length)| *length).sum())
}

#[tokio::test(start_paused = true)]
async fn a_minute_without_a_pause_is_not_gone_through_again_and_again() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 60_000).await;
    talk.sound(0, 1_000).await;
    talk.answer().await;
    let (runs, audio) = work(&house);
    assert!(runs <= 80, "{runs} runs");
    assert!(audio <= Duration::from_secs(7 * 60), "{audio:?} of audio for a minute");
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_a_pause_is_not_recognised_again() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.sound(ONE, 8_000).await;
    talk.sound(0, 400).await;
    talk.sound(TWO, 8_000).await;
    talk.sound(0, 1_000).await;
    assert_eq!(talk.answer().await, "You said one two.");
    let heard = house.ears.heard.lock().unwrap();
    let longest = heard.iter().map(|(_, length)| *length).max();
    assert!(longest < Some(Duration::from_millis(9_500)), "{longest:?}");
    let finals = heard.iter().filter(|(last, _)| *last).count();
    assert_eq!(finals, 2);
}

#[tokio::test(start_paused = true)]
async fn the_model_is_given_what_else_may_have_been_said() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.speak(UNSURE).await;
    talk.answer().await;
    let request = house.brain.request(0);
    let metadata = request.messages.last().unwrap().metadata.clone().unwrap();
    assert_eq!(
        metadata[Alternative::METADATA],
        serde_json::json!([{"text": "fifty", "logRatio": -0.5}])
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_only_a_sign_of_listening_is_not_in_the_conversation() {
    let house = House::new(Brain::echo());
    let mut config = LiveConfig::new();
    config.policies.activity.session_answers = true;
    let mut talk = house.talk(config).await;
    for word in [YES, TWO] {
        talk.speak(word).await;
        talk.rest(2_000).await;
    }
    let items: Vec<_> = talk
        .events
        .iter()
        .filter_map(|event| match event {
            LiveEvent::InputTranscript { item, text: TextUpdate::Final(_), .. } => Some(item),
            _ => None,
        })
        .cloned()
        .collect();
    talk.events.clear();
    talk.send(LiveCommand::ForgetInput { item: items[0].clone() }).await;
    // A noise left no words, and there is nothing of it to be forgotten.
    talk.send(LiveCommand::ForgetInput { item: "user_9".into() }).await;
    talk.send(LiveCommand::CreateReply { request: 1 }).await;
    assert_eq!(talk.answer().await, "You said two.");
    assert_eq!(house.brain.latest(), ["two"]);
}
