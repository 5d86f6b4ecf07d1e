//! Parts that fail, sessions that flood, connections that go.

use std::time::Duration;

use antiphon_live::{LiveCommand, LiveConfig, LiveError, LiveEvent, LiveProvider, ReplyOutcome};
use antiphon_types::{AudioFormat, AudioFrame};
use futures_util::{FutureExt, SinkExt, StreamExt, future::poll_fn};

use super::parts::*;

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_panics_or_hangs_fails_its_reply_only() {
    let house = House::new(Brain::new(|request| match last(request).as_str() {
        "fail" => vec![Step::Text("I think. So "), Step::Fail],
        "panic" => vec![Step::Panic],
        "hang" => vec![Step::Hang],
        _ => vec![Step::Echo],
    }));
    let mut talk = house.talk(LiveConfig::new()).await;
    for text in ["fail", "panic", "hang"] {
        talk.text(text).await;
        let events = talk.until_done().await;
        assert_eq!(error_codes(&events), ["model"], "{text}");
        assert_eq!(outcome(&events), ReplyOutcome::Failed, "{text}");
    }
    talk.text("fine").await;
    assert_eq!(talk.answer().await, "You said fine.");
}

#[tokio::test(start_paused = true)]
async fn a_voice_that_fails_panics_hangs_or_lies_fails_its_reply_only() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    for text in ["MUTE", "CHOKE", "SILENT", "DEEP"] {
        talk.text(text).await;
        let events = talk.until_done().await;
        assert_eq!(error_codes(&events), ["synthesizer"], "{text}");
        assert_eq!(outcome(&events), ReplyOutcome::Failed, "{text}");
        assert_eq!(audio_ms(&events), 0);
    }
    talk.text("fine").await;
    assert_eq!(talk.answer().await, "You said fine.");
}

#[tokio::test(start_paused = true)]
async fn ears_that_fail_panic_or_hang_lose_one_utterance() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    for level in [FAILS, PANICS, HANGS] {
        talk.speak(level).await;
        let failed = talk.until(|event| matches!(event, LiveEvent::Error(_))).await;
        assert_eq!(error_codes(&failed), ["recognizer"]);
    }
    talk.speak(ONE).await;
    assert_eq!(talk.answer().await, "You said one.");
}

#[tokio::test(start_paused = true)]
async fn while_the_model_hangs_speech_is_still_heard() {
    let house = House::new(Brain::new(|request| match last(request).as_str() {
        "hang" => vec![Step::Hang],
        _ => vec![Step::Echo],
    }));
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("hang").await;
    talk.until_started().await;
    talk.speak(ONE).await;
    assert_eq!(outcome(&talk.until_done().await), ReplyOutcome::Interrupted);
    assert_eq!(talk.answer().await, "You said one.");
}

#[tokio::test(start_paused = true)]
async fn trial_e09_a_detector_that_panics_ends_the_stream_once() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    let frame = AudioFrame::from_pcm16(16_000, &[DETECTOR_PANICS; 320]);
    talk.send(LiveCommand::AppendAudio(frame)).await;
    let end = talk.connection.next().await;
    assert!(matches!(end, Some(Err(LiveError::Failed { .. }))), "{end:?}");
    assert!(talk.connection.next().await.is_none());
    assert!(talk.connection.next().await.is_none());
    let refused = talk.refused(LiveCommand::EndAudio).await;
    assert!(matches!(refused, LiveError::NotConnected));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_is_refused_before_it_is_sent() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    let image = LiveCommand::Image { media_type: "image/png".into(), data: Vec::new().into() };
    assert!(matches!(talk.refused(image).await, LiveError::Unsupported { .. }));
    let by_hand = talk.refused(LiveCommand::ActivityStart).await;
    assert!(matches!(by_hand, LiveError::Unsupported { .. }));
    let wrong = AudioFrame::new(AudioFormat::Mulaw8k, vec![0; 160]);
    let wrong = talk.refused(LiveCommand::AppendAudio(wrong)).await;
    assert!(matches!(wrong, LiveError::InvalidCommand(_)));
    let blank = talk.refused(LiveCommand::Say { request: 1, text: " ".into() }).await;
    assert!(matches!(blank, LiveError::InvalidCommand(_)));
    talk.text("fine").await;
    assert_eq!(talk.answer().await, "You said fine.");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_configuration_is_refused() {
    let provider = House::new(Brain::echo()).provider();
    let mut silence = LiveConfig::new();
    silence.policies.activity.silence = Some(Duration::from_secs(60));
    for config in [LiveConfig::new().voice("bert"), LiveConfig::new().model("other"), silence] {
        assert!(matches!(provider.capabilities(&config), Err(LiveError::InvalidConfig(_))));
    }
    assert!(provider.capabilities(&LiveConfig::new().voice("anna")).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_commands_waits_for_the_session_to_read() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    let mut sent = 0;
    while sent < 10_000 {
        tokio::task::yield_now().await;
        let command = LiveCommand::Text { text: format!("text {sent}"), reply: true };
        let ready = poll_fn(|cx| std::task::Poll::Ready(talk.connection.poll_ready_unpin(cx)));
        match ready.await {
            std::task::Poll::Ready(ready) => ready.unwrap(),
            std::task::Poll::Pending => break,
        }
        talk.connection.start_send_unpin(command).unwrap();
        sent += 1;
    }
    assert!(sent < 1_000, "{sent} commands were taken unread");
    // Everything that was taken is answered or refused once it is read.
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < sent {
        match talk.next().await {
            LiveEvent::ReplyDone { .. } => answered += 1,
            LiveEvent::Error(error) if &*error.code == "queue_full" => refused += 1,
            _ => {}
        }
    }
    assert!(answered >= 64 && refused > 0, "{answered} answered, {refused} refused");
}

#[tokio::test(start_paused = true)]
async fn audio_waiting_to_be_heard_is_counted() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    let frame = AudioFrame::from_pcm16(16_000, &[0; 320]);
    talk.connection.feed(LiveCommand::AppendAudio(frame)).now_or_never().unwrap().unwrap();
    assert_eq!(talk.connection.unsent_bytes(), 640);
    talk.rest(10).await;
    assert_eq!(talk.connection.unsent_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_connection_leaves_no_task() {
    let house = House::new(Brain::new(|_| vec![Step::Text("Well. "), Step::Hang]));
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("go").await;
    talk.until_audio().await;
    drop(talk);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before);
}
