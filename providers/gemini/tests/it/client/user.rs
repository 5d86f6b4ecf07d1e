//! The user: audio, turns by hand, words, text.

use antiphon_gemini::Client;
use antiphon_live::{Frame, LiveCommand, LiveConfig, LiveError, LiveEvent, VoiceActivity};
use bytes::Bytes;
use serde_json::json;

use super::talk::{MIDDLE, NEW, OLD, Talk};

fn by_hand(mode: VoiceActivity) -> Talk {
    Talk::ready(&LiveConfig::new().model(NEW).voice_activity(mode))
}

#[test]
fn quirk_57_audio_goes_by_the_new_name_and_its_end_flushes() {
    let mut talk = Talk::with(MIDDLE);
    talk.audio(20);
    let sent = talk.sent_one();
    assert_eq!(sent["realtimeInput"]["audio"]["mimeType"], "audio/pcm;rate=16000");
    assert!(sent["realtimeInput"].get("mediaChunks").is_none());
    talk.command(LiveCommand::EndAudio);
    assert_eq!(talk.sent_one(), json!({"realtimeInput": {"audioStreamEnd": true}}));
    talk.command(LiveCommand::EndAudio);
    assert!(talk.sent().is_empty(), "there was none since");
}

#[test]
fn quirk_47_audio_is_what_was_agreed_and_a_late_refusal_of_it_says_why() {
    for model in [OLD, MIDDLE, NEW] {
        let mut talk = Talk::opened(Client::new(&LiveConfig::new().model(model), None).unwrap());
        let setup = talk.sent_one();
        assert_eq!(setup["setup"]["generationConfig"]["responseModalities"], json!(["AUDIO"]));
        talk.server(json!({"setupComplete": {}}));
        talk.audio(20);
        let sent = talk.sent_one();
        assert_eq!(sent["realtimeInput"]["audio"]["mimeType"], "audio/pcm;rate=16000", "{model}");
        // The set-up was fine; only the first audio shows what is not.
        let why = "Request contains an invalid argument.";
        let error = talk.try_frame(Frame::Close(Some((1007, why.into())))).unwrap_err();
        assert!(error.to_string().contains(why) && !error.is_recoverable(), "{error}");
    }
}

#[test]
fn turns_by_hand_have_a_beginning_and_an_end() {
    let mut talk = by_hand(VoiceActivity::Manual);
    talk.command(LiveCommand::ActivityStart);
    talk.command(LiveCommand::ActivityStart);
    assert_eq!(talk.sent_one(), json!({"realtimeInput": {"activityStart": {}}}));
    talk.audio(20);
    talk.sent();
    talk.command(LiveCommand::EndAudio);
    talk.command(LiveCommand::ActivityEnd);
    assert_eq!(talk.sent_one(), json!({"realtimeInput": {"activityEnd": {}}}));
}

#[test]
fn a_turn_by_hand_interrupts_at_once() {
    let mut talk = by_hand(VoiceActivity::Manual);
    talk.voice(100);
    talk.told();
    talk.command(LiveCommand::ActivityStart);
    assert_eq!(talk.told(), ["interrupted reply-1"]);
    talk.voice(100);
    talk.interrupted();
    talk.done();
    assert_eq!(talk.told(), ["ignored remains of a reply", "done reply-1 Interrupted"]);
}

#[test]
fn where_nobody_says_when_the_user_speaks_their_audio_does() {
    let mut talk = by_hand(VoiceActivity::Off);
    talk.audio(20);
    talk.audio(20);
    talk.command(LiveCommand::EndAudio);
    let kinds: Vec<_> = talk
        .sent()
        .iter()
        .map(|frame| frame["realtimeInput"].as_object().unwrap().keys().next().unwrap().clone())
        .collect();
    assert_eq!(kinds, ["activityStart", "audio", "audio", "activityEnd"]);
}

#[test]
fn quirk_58_text_goes_where_the_generation_wants_it() {
    let text = |model: &str| {
        let mut talk = Talk::with(model);
        talk.text("Hello.");
        talk.sent_one()
    };
    let content = json!({"clientContent": {"turns":
        [{"parts": [{"text": "Hello."}], "role": "user"}], "turnComplete": true}});
    assert_eq!(text(OLD), content);
    assert_eq!(text(NEW), content);
    assert_eq!(text(MIDDLE), json!({"realtimeInput": {"text": "Hello."}}));
    // Early ones hang up on any content.
    let mut config = LiveConfig::new().model(MIDDLE);
    config.provider_options.insert("text_channel".into(), json!("realtime"));
    let mut talk = Talk::ready(&config);
    assert!(!talk.client.capabilities().create_reply);
    let silent = LiveCommand::Text { text: "Note.".into(), reply: false };
    let error = talk.try_command(silent).unwrap_err();
    assert!(matches!(error, LiveError::InvalidCommand(_)), "{error}");
}

#[test]
fn texts_without_an_answer_requests_and_images_are_sent() {
    let mut talk = Talk::with(NEW);
    talk.command(LiveCommand::Text { text: "Note.".into(), reply: false });
    assert_eq!(talk.sent_one()["clientContent"]["turnComplete"], false);
    talk.command(LiveCommand::CreateReply { request: 1 });
    assert_eq!(talk.sent_one(), json!({"clientContent": {"turnComplete": true}}));
    let data = Bytes::from_static(&[1, 2, 3]);
    talk.command(LiveCommand::Image { media_type: "image/jpeg".into(), data: data.clone() });
    let video = json!({"realtimeInput": {"video": {"mimeType": "image/jpeg", "data": "AQID"}}});
    assert_eq!(talk.sent_one(), video);
    for (media, data) in [("text/plain", data), ("image/png", Bytes::new())] {
        let image = LiveCommand::Image { media_type: media.into(), data };
        assert!(matches!(talk.try_command(image), Err(LiveError::InvalidCommand(_))));
    }
    let long = "x".repeat(300 * 1024);
    let long = LiveCommand::Text { text: long, reply: true };
    assert!(matches!(talk.try_command(long), Err(LiveError::InvalidCommand(_))));
}

#[test]
fn quirk_65_a_reply_to_speech_that_nobody_told_of_tells_of_it() {
    let mut talk = Talk::with(OLD);
    talk.audio(20);
    talk.voice(20);
    assert_eq!(talk.told(), ["speech None", "silence None", "start reply-1", "voice 20"]);
    talk.done();
    talk.heard("What time is it?");
    talk.told();
    // Nothing is inferred where the words had come, or somebody asked, or nothing was sent.
    talk.audio(20);
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2", "voice 20"]);
    talk.done();
    talk.audio(20);
    talk.text("Hello.");
    talk.voice(20);
    talk.done();
    talk.told();
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-4", "voice 20"]);
}

#[test]
fn newer_models_say_when_the_user_speaks() {
    let mut talk = Talk::with(NEW);
    talk.audio(20);
    let activity =
        |kind: &str| json!({"voiceActivity": {"voiceActivityType": kind, "audioOffset": "1.200s"}});
    talk.server(activity("ACTIVITY_START"));
    talk.server(activity("ACTIVITY_START"));
    talk.server(activity("ACTIVITY_END"));
    talk.server(json!({"voiceActivityDetectionSignal": {"vadSignalType": "VAD_SIGNAL_TYPE_SOS"}}));
    talk.server(json!({"voiceActivityDetectionSignal": {"vadSignalType": "VAD_SIGNAL_TYPE_EOS"}}));
    talk.voice(20);
    assert_eq!(
        talk.told(),
        [
            "speech Some(1200)",
            "silence Some(1200)",
            "speech None",
            "silence None",
            "start reply-1",
            "voice 20"
        ]
    );
}

#[test]
fn who_speaks_and_in_which_language_is_told_with_the_words() {
    let mut config = LiveConfig::new().model(NEW);
    config.speaker.diarization = true;
    let mut talk = Talk::ready(&config);
    let says = |label: &str, language: &str, text: &str| {
        json!({"inputTranscription": {"text": text, "speakerLabel": label,
            "languageCode": language}})
    };
    talk.content(says("spk_1", "de-DE", "Guten Tag."));
    talk.heard(" Hallo.");
    talk.content(says("spk_2", "en-US", "Hello."));
    talk.done();
    let told: Vec<_> = talk
        .out
        .events
        .drain(..)
        .filter_map(|event| match event {
            LiveEvent::InputTranscript { item, speaker, .. } => {
                let speaker = speaker.unwrap();
                let text = |text: Option<std::sync::Arc<str>>| text.unwrap().to_string();
                Some((item.to_string(), text(speaker.label), text(speaker.language)))
            }
            _ => None,
        })
        .collect();
    let one = ("user-1".to_owned(), "spk_1".to_owned(), "de-DE".to_owned());
    let two = ("user-2".to_owned(), "spk_2".to_owned(), "en-US".to_owned());
    // Two pieces and the end of the first, then the other's.
    assert_eq!(told[..4], [one.clone(), one.clone(), one, two]);
}

#[test]
fn words_that_are_not_wanted_are_not_told() {
    let mut config = LiveConfig::new().model(NEW);
    config.policies.input_transcription = false;
    config.policies.output_transcription = false;
    let mut talk = Talk::ready(&config);
    talk.heard("Hello");
    talk.voice(20);
    talk.words("Hi");
    talk.done();
    assert_eq!(
        talk.told(),
        [
            "ignored a transcript that is not wanted",
            "start reply-1",
            "voice 20",
            "done reply-1 Completed"
        ]
    );
}
