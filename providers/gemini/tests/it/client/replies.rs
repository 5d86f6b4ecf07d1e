//! Replies: what begins them, what ends them, and what is dropped.

use antiphon_live::{Frame, LiveCommand, LiveConfig, LiveError, LiveEvent, VoiceActivity};
use serde_json::json;

use super::talk::{MIDDLE, NEW, OLD, Talk, part};

fn auto(model: &str) -> Talk {
    let mut talk = Talk::with(model);
    talk.audio(20);
    talk.out.frames.clear();
    talk
}

#[test]
fn a_turn_is_a_reply_with_voice_words_and_a_bill() {
    let mut talk = auto(NEW);
    talk.heard("Hello");
    talk.voice(100);
    talk.words("Hi, ");
    talk.words("you.");
    talk.generated();
    assert_eq!(
        talk.told(),
        ["user-1 +Hello", "start reply-1", "voice 100", "say +Hi, ", "say +you."]
    );
    talk.server(json!({"serverContent": {"turnComplete": true, "interactionStatus": "IDLE"},
        "usageMetadata": {"promptTokenCount": 120, "responseTokenCount": "42",
            "thoughtsTokenCount": 3, "cachedContentTokenCount": 50,
            "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 80},
                {"modality": "TEXT", "tokenCount": 40}],
            "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 30}],
            "responseTokensDetails": [{"modality": "AUDIO", "tokenCount": 42}]}}));
    let Some(LiveEvent::ReplyDone { usage: Some(usage), .. }) = talk.out.events.pop_back() else {
        panic!()
    };
    assert_eq!(talk.told(), ["user-1 .Hello", "say ."]);
    assert_eq!((usage.input_audio_tokens, usage.input_text_tokens), (80, 40));
    assert_eq!((usage.cached_tokens, usage.cached_audio_tokens), (50, 30));
    assert_eq!((usage.output_audio_tokens, usage.output_text_tokens), (42, 3));
    assert_eq!(talk.client_deadline(), None);
}

#[test]
fn a_bill_without_measure_does_not_overflow() {
    let mut talk = auto(NEW);
    talk.voice(20);
    let much = json!({"modality": "AUDIO", "tokenCount": i64::MAX.to_string()});
    let (many, most) = (vec![much; 3], i64::MAX.to_string());
    talk.server(json!({"serverContent": {"turnComplete": true}, "usageMetadata": {
        "promptTokenCount": most, "toolUsePromptTokenCount": most, "thoughtsTokenCount": most,
        "responseTokenCount": most, "promptTokensDetails": many,
        "toolUsePromptTokensDetails": many, "responseTokensDetails": []}}));
    let Some(LiveEvent::ReplyDone { usage: Some(usage), .. }) = talk.out.events.pop_back() else {
        panic!()
    };
    assert_eq!((usage.input_audio_tokens, usage.input_text_tokens), (u64::MAX, 0));
}

#[test]
fn quirk_59_all_parts_of_a_message_are_heard() {
    let mut talk = auto(MIDDLE);
    talk.content(json!({"modelTurn": {"parts": [part(20), {"text": "hm", "thought": true},
        part(40), {"executableCode": {"code": "1"}}, {"thoughtSignature": "AA=="}]}}));
    let told = talk.told();
    assert!(told.contains(&"voice 20".into()) && told.contains(&"voice 40".into()), "{told:?}");
    assert!(told.contains(&"native thought".into()), "{told:?}");
    assert!(told.contains(&"native executableCode".into()), "{told:?}");
}

#[test]
fn quirk_54_late_content_of_an_interrupted_turn_is_dropped() {
    let mut talk = auto(NEW);
    talk.voice(100);
    talk.interrupted();
    talk.voice(100);
    talk.words("late");
    talk.done();
    talk.voice(60);
    assert_eq!(
        talk.told(),
        [
            "start reply-1",
            "voice 100",
            "interrupted reply-1",
            "ignored remains of a reply",
            "ignored remains of a reply",
            "done reply-1 Interrupted",
            "start reply-2",
            "voice 60"
        ]
    );
}

#[test]
fn quirk_55_what_comes_with_an_interruption_belongs_to_what_was_before() {
    let mut talk = auto(NEW);
    talk.voice(100);
    talk.content(json!({"interrupted": true, "turnComplete": true,
        "modelTurn": {"parts": [part(20)]}}));
    assert_eq!(
        talk.told(),
        [
            "start reply-1",
            "voice 100",
            "voice 20",
            "interrupted reply-1",
            "done reply-1 Interrupted"
        ]
    );
}

#[test]
fn quirk_56_a_bill_before_the_first_voice_ends_nothing() {
    let mut talk = auto(MIDDLE);
    talk.server(json!({"serverContent": {}, "usageMetadata": {"promptTokenCount": 10}}));
    talk.voice(20);
    talk.server(json!({"serverContent": {"turnComplete": true},
        "usageMetadata": {"promptTokenCount": 30}}));
    let Some(LiveEvent::ReplyDone { usage: Some(usage), .. }) = talk.out.events.pop_back() else {
        panic!()
    };
    assert_eq!(usage.input_text_tokens, 30, "the first was a part of it");
}

#[test]
fn a_bill_that_comes_after_its_turn_is_paid_with_the_next() {
    let mut talk = auto(NEW);
    talk.voice(20);
    talk.done();
    talk.server(json!({"usageMetadata": {"promptTokenCount": 5}}));
    talk.voice(20);
    talk.server(json!({"serverContent": {"turnComplete": true},
        "usageMetadata": {"promptTokenCount": 7}}));
    let Some(LiveEvent::ReplyDone { usage: Some(usage), .. }) = talk.out.events.pop_back() else {
        panic!()
    };
    assert_eq!(usage.input_text_tokens, 12);
}

#[test]
fn quirk_50_a_turn_whose_end_was_lost_ends_after_its_voice() {
    let mut talk = auto(NEW);
    talk.voice(2_000);
    talk.generated();
    talk.told();
    talk.pass_ms(4_900);
    assert!(talk.told().is_empty(), "the server waits until it would have been heard");
    talk.pass_ms(200);
    assert_eq!(talk.told(), ["done reply-1 Completed"]);
    talk.done();
    assert_eq!(talk.told(), ["ignored the end of a turn that was over"]);
}

#[test]
fn a_new_voice_after_all_was_said_is_another_reply() {
    let mut talk = auto(NEW);
    talk.voice(100);
    talk.generated();
    talk.voice(60);
    assert_eq!(
        talk.told(),
        ["start reply-1", "voice 100", "done reply-1 Completed", "start reply-2", "voice 60"]
    );
}

#[test]
fn quirk_51_silence_after_an_interruption_ends_the_reply() {
    let mut talk = auto(NEW);
    talk.voice(100);
    talk.interrupted();
    talk.told();
    talk.pass_ms(500);
    assert_eq!(talk.told(), ["done reply-1 Interrupted"]);
}

#[test]
fn quirk_51_the_answer_to_an_interruption_is_heard_whole_though_the_end_before_it_was_lost() {
    let mut talk = auto(NEW);
    talk.voice(1_000);
    talk.interrupted();
    talk.voice(20);
    talk.told();
    talk.pass_ms(700);
    talk.voice(20);
    assert_eq!(talk.told(), ["done reply-1 Interrupted", "start reply-2", "voice 20"]);
    // By hand the server says so later, or not at all.
    let mut talk = Talk::ready(&LiveConfig::new().voice_activity(VoiceActivity::Manual));
    talk.voice(1_000);
    talk.command(LiveCommand::ActivityStart);
    talk.pass_ms(1_000);
    talk.told();
    talk.interrupted();
    talk.pass_ms(400);
    talk.voice(20);
    talk.pass_ms(100);
    talk.voice(20);
    assert_eq!(
        talk.told(),
        ["ignored remains of a reply", "done reply-1 Interrupted", "start reply-2", "voice 20"]
    );
}

#[test]
fn an_answer_after_a_cancelled_reply_is_heard_whole_though_ends_were_lost() {
    // The server says that it was interrupted, and not that the turn is over.
    let mut talk = Talk::with(NEW);
    talk.text("Tell me.");
    talk.voice(8_000);
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.text("Something else.");
    talk.told();
    talk.interrupted();
    talk.voice(20);
    talk.pass_ms(600);
    talk.voice(20);
    assert_eq!(talk.told(), ["ignored remains of a reply", "start reply-2", "voice 20"]);
    // It had said all of it.
    let mut talk = Talk::with(NEW);
    talk.text("Tell me.");
    talk.voice(8_000);
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.voice(20);
    talk.generated();
    talk.text("Something else.");
    talk.told();
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2", "voice 20"]);
    let mut talk = Talk::with(NEW);
    talk.text("Tell me.");
    talk.voice(8_000);
    talk.generated();
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.told();
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2", "voice 20"]);
    // It says nothing at all.
    let mut talk = Talk::with(NEW);
    talk.text("Tell me.");
    talk.voice(8_000);
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.text("Something else.");
    talk.pass_ms(2_000);
    talk.told();
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2", "voice 20"]);
}

#[test]
fn an_interruption_after_all_was_said_is_that_replys() {
    let mut talk = auto(NEW);
    talk.voice(2_000);
    talk.generated();
    talk.interrupted();
    talk.voice(20);
    assert_eq!(
        talk.told(),
        [
            "start reply-1",
            "voice 2000",
            "interrupted reply-1",
            "done reply-1 Interrupted",
            "start reply-2",
            "voice 20"
        ]
    );
}

#[test]
fn an_error_in_place_of_an_answer_refuses_the_request() {
    let mut talk = Talk::with(NEW);
    talk.command(LiveCommand::CreateReply { request: 4 });
    let error =
        json!({"error": {"code": 8, "message": "Too much.", "status": "RESOURCE_EXHAUSTED"}});
    talk.server(error.clone());
    assert_eq!(talk.told(), ["error RESOURCE_EXHAUSTED for 4"]);
    talk.voice(20);
    talk.server(error);
    assert_eq!(talk.told(), ["start reply-1", "voice 20", "error RESOURCE_EXHAUSTED"]);
}

#[test]
fn a_text_that_is_refused_is_answered_by_a_reply_that_fails_at_once() {
    let error = json!({"error": {"code": 429, "message": "Slow down.", "status": "EXHAUSTED"}});
    let mut talk = Talk::with(NEW);
    talk.text("Hello.");
    talk.server(error.clone());
    assert_eq!(talk.told(), ["error EXHAUSTED", "start reply-1", "done reply-1 Failed"]);
    // What comes then answers what is asked then.
    talk.text("Hello again.");
    talk.voice(20);
    talk.done();
    assert_eq!(talk.told(), ["start reply-2", "voice 20", "done reply-2 Completed"]);
    // Nobody wants it any more.
    talk.text("Never mind.");
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.server(error);
    assert_eq!(talk.told(), ["error EXHAUSTED", "start reply-3", "done reply-3 Cancelled"]);
    talk.text("Now?");
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-4", "voice 20"]);
}

#[test]
fn quirk_52_a_turn_without_content_releases_whoever_waits() {
    let mut talk = Talk::with(OLD);
    talk.text("Hello?");
    talk.done();
    assert_eq!(talk.told(), ["start reply-1", "done reply-1 Completed"]);
    talk.done();
    assert_eq!(talk.told(), ["ignored the end of a turn that was over"]);
    talk.heard("Hm");
    talk.done();
    assert_eq!(
        talk.told(),
        ["user-1 +Hm", "start reply-2", "user-1 .Hm", "done reply-2 Completed"]
    );
}

#[test]
fn quirk_53_a_spurious_interruption_does_not_answer_the_next_request() {
    let mut talk = Talk::ready(&LiveConfig::new().voice_activity(VoiceActivity::Manual));
    talk.voice(20);
    talk.generated();
    talk.done();
    talk.command(LiveCommand::Say { request: 7, text: "Wait.".into() });
    talk.told();
    talk.interrupted();
    talk.done();
    assert_eq!(talk.told(), ["interrupted reply-1", "ignored the end of a turn that was over"]);
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2 for 7", "voice 20"]);
}

#[test]
fn a_cancelled_reply_ends_here_and_its_remains_are_dropped() {
    let mut talk = Talk::with(OLD);
    talk.text("Tell me.");
    talk.voice(100);
    talk.told();
    talk.out.frames.clear();
    talk.command(LiveCommand::CancelReply { reply: None });
    assert_eq!(talk.told(), ["done reply-1 Cancelled"]);
    assert!(talk.sent().is_empty(), "the wire has no word for it");
    talk.voice(100);
    talk.generated();
    talk.call("c1");
    talk.told();
    let refused = talk.sent_one();
    let response = &refused["toolResponse"]["functionResponses"][0];
    assert_eq!(response["id"], "c1");
    assert!(response["response"]["error"].is_string(), "whoever waits for it must not");
    talk.done();
    talk.text("Again.");
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2", "voice 20"]);
    // A late request for the first one does not hit this one.
    talk.command(LiveCommand::CancelReply { reply: Some("reply-1".into()) });
    assert!(talk.told().is_empty());
}

#[test]
fn a_request_that_was_cancelled_before_it_was_answered_is_not_heard() {
    let mut talk = Talk::with(OLD);
    talk.command(LiveCommand::CreateReply { request: 3 });
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.voice(100);
    talk.voice(100);
    talk.done();
    assert_eq!(
        talk.told(),
        ["start reply-1 for 3", "done reply-1 Cancelled", "ignored remains of a reply"]
    );
}

#[test]
fn a_cancelled_reply_does_not_speak_again_however_long_the_server_goes_on() {
    let mut talk = auto(NEW);
    talk.heard("Tell me a story.");
    talk.voice(3_000);
    talk.pass_ms(1_000);
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.told();
    // The server generates as fast as the voice is heard, and slower.
    for _ in 0..15 {
        talk.pass_ms(1_000);
        talk.voice(1_000);
    }
    talk.pass_ms(4_000);
    talk.voice(20);
    let told = talk.told();
    assert!(told.iter().all(|told| told == "ignored remains of a reply"), "{told:?}");
    // It takes the voice as played before it tells the end, which answers nothing.
    talk.pass_ms(3_000);
    talk.heard("And the second one?");
    talk.told();
    talk.done();
    talk.voice(20);
    let told = talk.told();
    let started = told.iter().filter(|told| told.starts_with("start")).count();
    assert_eq!((started, told.last().map(String::as_str)), (1, Some("voice 20")), "{told:?}");
}

#[test]
fn remains_are_not_waited_for_for_ever() {
    let mut talk = Talk::with(NEW);
    talk.text("Tell me.");
    talk.voice(1_000);
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.pass_ms(6_100);
    talk.told();
    talk.voice(20);
    assert_eq!(talk.told(), ["start reply-2", "voice 20"]);
}

#[test]
fn a_request_that_is_not_answered_fails() {
    let mut talk = Talk::with(NEW);
    talk.command(LiveCommand::CreateReply { request: 9 });
    talk.pass_ms(15_000);
    assert_eq!(talk.told(), ["error no_answer for 9"]);
    talk.command(LiveCommand::CreateReply { request: 10 });
    talk.command(LiveCommand::CreateReply { request: 11 });
    assert_eq!(talk.told(), ["error superseded for 10"]);
}

#[test]
fn reasons_of_an_end_are_told() {
    for (reason, outcome, errors) in [
        ("NEED_MORE_INPUT", "Completed", 0),
        ("MALFORMED_FUNCTION_CALL", "Failed", 1),
        ("RESPONSE_REJECTED", "Blocked", 1),
        ("PROHIBITED_INPUT_CONTENT", "Blocked", 1),
        ("GENERATED_AUDIO_SAFETY", "Blocked", 1),
        ("BLOCKLIST", "Blocked", 1),
        ("MAX_REGENERATION_REACHED", "Incomplete", 1),
        ("SOMETHING_NEW", "Incomplete", 1),
    ] {
        let mut talk = auto(NEW);
        talk.voice(20);
        talk.told();
        talk.content(json!({"turnComplete": true, "turnCompleteReason": reason}));
        let told = talk.told();
        assert_eq!(told.last(), Some(&format!("done reply-1 {outcome}")), "{reason}");
        assert_eq!(told.len() - 1, errors, "{reason}: {told:?}");
    }
}

#[test]
fn half_samples_meet_and_other_rates_are_refused() {
    let mut talk = auto(NEW);
    let blob = |data: &str, mime: &str| json!({"modelTurn": {"parts": [{"inlineData": {"mimeType": mime, "data": data}}]}});
    talk.content(blob("AQID", "audio/pcm;rate=24000"));
    talk.content(blob("BAUG", "audio/pcm"));
    let samples: Vec<u8> = talk
        .out
        .events
        .drain(..)
        .filter_map(|event| match event {
            LiveEvent::Audio { frame, .. } => Some(frame.data.to_vec()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(samples, [1, 2, 3, 4, 5, 6]);
    talk.content(blob("AAAA", "audio/pcm;rate=16000"));
    talk.content(blob("AAAA", "image/png"));
    let odd = "ignored media in another format than was agreed";
    assert_eq!(talk.told(), [odd, odd]);
}

#[test]
fn quirk_72_voice_in_the_other_alphabet_is_heard() {
    let mut talk = auto(NEW);
    talk.server(json!({"server_content": {"model_turn": {"parts": [
        {"inline_data": {"mime_type": "audio/pcm;rate=24000", "data": "-_-_-_-_"}}]}}}));
    assert_eq!(talk.told(), ["start reply-1", "voice 0"]);
}

#[test]
fn frames_that_are_no_messages_are_told_and_forgiven_a_few_times() {
    let mut talk = auto(NEW);
    for text in ["{", "7", "\"x\"", r#"{"serverContent":7}"#] {
        talk.try_frame(Frame::Text(text.into())).unwrap();
    }
    assert_eq!(talk.told(), ["error malformed_event"; 4]);
    talk.server(json!({}));
    talk.server(json!({"hologram": {}}));
    assert_eq!(talk.told(), ["ignored a message that says nothing"; 2]);
    for _ in 0..15 {
        talk.try_frame(Frame::Text("{".into())).unwrap();
    }
    let error = talk.try_frame(Frame::Text("{".into())).unwrap_err();
    assert!(matches!(error, LiveError::Protocol(_)), "{error}");
}

#[test]
fn what_else_the_server_tells_comes_through() {
    let mut talk = auto(NEW);
    talk.server(json!({"sessionResumptionUpdate": {"newHandle": "h1", "resumable": true}}));
    talk.server(json!({"sessionResumptionUpdate": {"newHandle": "", "resumable": false}}));
    talk.server(json!({"sessionResumptionUpdate": {"resumable": true}}));
    talk.server(json!({"goAway": {"timeLeft": "50s"}}));
    talk.server(json!({"goAway": {"timeLeft": "1e19s"}}));
    talk.server(json!({"goAway": {}}));
    talk.server(json!({"error": {"code": 500, "message": "Odd.", "status": "INTERNAL"}}));
    talk.content(json!({"groundingMetadata": {"webSearchQueries": ["x"]}}));
    assert_eq!(
        talk.told(),
        [
            "resumable",
            "not_resumable",
            "not_resumable",
            "going away Some(50s)",
            "going away Some(3600s)",
            "going away None",
            "error INTERNAL",
            "native groundingMetadata"
        ]
    );
    let close = Frame::Close(Some((1000, String::new())));
    let error = talk.try_frame(close).unwrap_err();
    assert!(error.is_recoverable(), "it had said so: {error}");
}

impl Talk {
    fn client_deadline(&self) -> Option<std::time::Instant> {
        antiphon_live::WireProtocol::deadline(&self.client)
    }
}
