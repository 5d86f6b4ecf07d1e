//! The user: audio up, turns, transcripts, interruptions.

use std::time::Duration;

use antiphon_live::{ActivityHandling, LiveCommand, LiveConfig, LiveError, VoiceActivity};
use antiphon_types::{AudioFormat, AudioFrame};
use base64_simd::STANDARD;
use bytes::Bytes;
use serde_json::json;

use super::talk::Talk;

fn talk() -> Talk {
    Talk::ready(&LiveConfig::new())
}

fn by_hand(mode: VoiceActivity) -> Talk {
    Talk::ready(&LiveConfig::new().voice_activity(mode))
}

#[test]
fn audio_is_appended_as_it_is() {
    let mut talk = talk();
    let samples = [1_i16, -2, 300];
    talk.command(LiveCommand::AppendAudio(AudioFrame::from_pcm16(24_000, &samples)));
    talk.command(LiveCommand::AppendAudio(AudioFrame::from_pcm16(24_000, &[])));
    let append = talk.sent_one();
    assert_eq!(append["type"], "input_audio_buffer.append");
    assert_eq!(append.as_object().unwrap().len(), 2);
    let bytes = STANDARD.decode_to_vec(append["audio"].as_str().unwrap()).unwrap();
    assert_eq!(bytes, [1, 0, 254, 255, 44, 1]);
}

#[test]
fn a_frame_larger_than_an_append_may_be_is_split() {
    let mut talk = talk();
    let frame = AudioFrame::new(AudioFormat::pcm16(24_000), vec![0_u8; 12 * 1024 * 1024]);
    talk.command(LiveCommand::AppendAudio(frame));
    let sent = talk.sent();
    assert_eq!(sent.len(), 2);
    let lengths: Vec<usize> =
        sent.iter().map(|append| append["audio"].as_str().unwrap().len()).collect();
    assert_eq!(lengths.iter().sum::<usize>(), 16 * 1024 * 1024);
    assert!(lengths[0] <= 15 * 1024 * 1024);
}

#[test]
fn the_end_of_audio_is_silence_that_the_server_can_hear() {
    let mut talk = talk();
    talk.command(LiveCommand::EndAudio);
    assert!(talk.sent().is_empty());
    talk.audio(200);
    talk.command(LiveCommand::EndAudio);
    talk.command(LiveCommand::EndAudio);
    let sent = talk.sent();
    assert_eq!(sent.len(), 2);
    let silence = STANDARD.decode_to_vec(sent[1]["audio"].as_str().unwrap()).unwrap();
    assert_eq!(silence, vec![0; 800 * 48]);
    // Positions are told without it.
    talk.server(json!({"type": "input_audio_buffer.speech_started", "item_id": "u",
        "audio_start_ms": 1_500}));
    assert_eq!(talk.told(), ["speech Some(700)"]);
}

#[test]
fn turns_by_hand_are_cleared_committed_and_answered() {
    let mut talk = by_hand(VoiceActivity::Manual);
    talk.command(LiveCommand::ActivityStart);
    talk.audio(120);
    talk.command(LiveCommand::ActivityEnd);
    assert_eq!(
        talk.sent_kinds(),
        [
            "input_audio_buffer.clear",
            "input_audio_buffer.append",
            "input_audio_buffer.commit",
            "response.create"
        ]
    );
    // The same without a word of it beginning; nothing is committed twice.
    let mut talk = by_hand(VoiceActivity::Off);
    talk.audio(120);
    talk.command(LiveCommand::EndAudio);
    talk.command(LiveCommand::EndAudio);
    assert_eq!(
        talk.sent_kinds(),
        ["input_audio_buffer.append", "input_audio_buffer.commit", "response.create"]
    );
}

#[test]
fn quirk_39_a_turn_that_the_server_would_refuse_is_not_sent() {
    let mut talk = by_hand(VoiceActivity::Manual);
    talk.command(LiveCommand::ActivityStart);
    talk.audio(99);
    let error = talk.try_command(LiveCommand::ActivityEnd).unwrap_err();
    assert!(matches!(error, LiveError::InvalidCommand(_)));
    assert_eq!(
        talk.sent_kinds(),
        ["input_audio_buffer.clear", "input_audio_buffer.append", "input_audio_buffer.clear"]
    );
    talk.error(Some("input_audio_buffer_commit_empty"), "Too small.", None);
    assert_eq!(talk.told(), ["ignored input_audio_buffer_commit_empty"]);
    talk.audio(60);
    talk.command(LiveCommand::ClearAudio);
    talk.audio(60);
    assert!(talk.try_command(LiveCommand::ActivityEnd).is_err());
}

#[test]
fn speaking_by_hand_stops_the_reply() {
    let mut talk = by_hand(VoiceActivity::Manual);
    talk.created("a");
    talk.voice("a", "i", 20);
    talk.command(LiveCommand::ActivityStart);
    assert_eq!(talk.sent_kinds(), ["input_audio_buffer.clear", "response.cancel"]);
    talk.voice("a", "i", 20);
    talk.cancelled("a", "client_cancelled");
    assert_eq!(
        talk.told(),
        [
            "start a",
            "voice i 20",
            "interrupted a",
            "ignored remains of a reply",
            "done a Interrupted"
        ]
    );
}

#[test]
fn quirks_35_36_speech_stops_the_reply_here_and_the_server_stops_its_own() {
    let mut talk = talk();
    talk.created("a");
    talk.voice("a", "i", 20);
    talk.speech(true, "u");
    talk.voice("a", "i", 20);
    talk.cancelled("a", "turn_detected");
    assert!(talk.sent().is_empty());
    assert_eq!(
        talk.told(),
        [
            "start a",
            "voice i 20",
            "speech Some(1000)",
            "interrupted a",
            "ignored remains of a reply",
            "done a Interrupted"
        ]
    );
    talk.error(Some("response_cancel_not_active"), "None.", None);
    assert_eq!(talk.told(), ["ignored response_cancel_not_active"]);
}

#[test]
fn a_server_that_does_not_stop_by_itself_is_asked_to() {
    let mut talk = talk();
    talk.created("a");
    talk.speech(true, "u");
    talk.pass(Duration::from_millis(1_100));
    assert_eq!(talk.sent_one(), json!({"type": "response.cancel", "response_id": "a"}));
    talk.pass(Duration::from_secs(6));
    assert_eq!(
        talk.told(),
        [
            "start a",
            "speech Some(1000)",
            "interrupted a",
            "ignored a stopped reply that was never ended",
            "done a Interrupted"
        ]
    );
}

#[test]
fn after_a_reply_is_done_speech_interrupts_nothing_of_the_servers() {
    let mut talk = talk();
    talk.created("a");
    talk.voice("a", "i", 2_000);
    talk.done("a", "completed");
    talk.told();
    talk.speech(true, "u");
    // The session stops what it still plays by itself.
    assert_eq!(talk.told(), ["speech Some(1000)"]);
}

#[test]
fn where_speech_must_not_interrupt_it_does_not() {
    let mut config = LiveConfig::new();
    config.policies.activity.handling = ActivityHandling::NoInterruption;
    let mut talk = Talk::ready(&config);
    talk.created("a");
    talk.speech(true, "u");
    talk.voice("a", "i", 20);
    talk.done("a", "completed");
    assert_eq!(talk.told(), ["start a", "speech Some(1000)", "voice i 20", "done a Completed"]);
}

#[test]
fn speech_begins_and_ends_in_turn_whatever_the_server_says() {
    let mut talk = talk();
    talk.speech(false, "u");
    talk.speech(true, "u");
    talk.speech(true, "u");
    talk.committed("u", None);
    talk.speech(false, "u");
    talk.speech(true, "v");
    talk.speech(false, "v");
    assert_eq!(
        talk.told(),
        [
            "speech Some(1000)",
            "silence None",
            "committed u",
            "speech Some(1000)",
            "silence Some(1000)"
        ]
    );
}

fn transcript(kind: &str, item: &str, words: &str) -> serde_json::Value {
    let key = if kind == "delta" { "delta" } else { "transcript" };
    let mut event = json!({
        "type": format!("conversation.item.input_audio_transcription.{kind}"),
        "item_id": item, "content_index": 0,
    });
    event[key] = words.into();
    event
}

#[test]
fn quirks_19_20_transcripts_stay_with_their_item_and_in_order() {
    let mut talk = talk();
    talk.committed("u1", None);
    talk.committed("u2", Some("u1"));
    talk.server(transcript("delta", "u2", "Two"));
    talk.server(transcript("delta", "u1", "One"));
    talk.server(transcript("completed", "u2", "Two."));
    talk.server(transcript("completed", "u1", "One."));
    talk.server(transcript("completed", "u1", "One again."));
    assert_eq!(
        talk.told(),
        [
            "committed u1",
            "committed u2",
            "user u1 +One",
            "user u1 .One.",
            "user u2 .Two.",
            "ignored a transcript of words that were complete"
        ]
    );
}

#[test]
fn quirk_19_a_failed_or_missing_transcript_blocks_nobody() {
    let mut talk = talk();
    talk.committed("u1", None);
    talk.committed("u2", Some("u1"));
    talk.committed("u3", Some("u2"));
    talk.told();
    talk.server(transcript("completed", "u3", "Three."));
    talk.server(json!({"type": "conversation.item.input_audio_transcription.failed",
        "item_id": "u1", "content_index": 0,
        "error": {"code": "audio_unintelligible", "message": "What?"}}));
    assert_eq!(talk.told(), ["error audio_unintelligible"]);
    talk.pass(Duration::from_secs(4));
    assert_eq!(talk.told(), ["user u3 .Three."]);
}

#[test]
fn transcripts_that_grow_as_a_whole_replace_each_other() {
    let mut talk = talk();
    talk.committed("u", None);
    talk.server(transcript("updated", "u", "Hel"));
    talk.server(transcript("updated", "u", "Hello"));
    talk.server(transcript("completed", "u", "Hello."));
    assert_eq!(talk.told(), ["committed u", "user u =Hel", "user u =Hello", "user u .Hello."]);
}

#[test]
fn images_are_items_and_other_files_are_refused() {
    let mut talk = talk();
    let image = |media_type: &str, data: &'static [u8]| LiveCommand::Image {
        media_type: media_type.into(),
        data: Bytes::from_static(data),
    };
    talk.command(image("image/png", b"png"));
    assert_eq!(
        talk.sent_one()["item"],
        json!({"type": "message", "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64,cG5n"}]})
    );
    for refused in [image("image/gif", b"gif"), image("image/png", b"")] {
        let error = talk.try_command(refused).unwrap_err();
        assert!(matches!(error, LiveError::InvalidCommand(_)));
    }
    assert!(talk.sent().is_empty());
}

#[test]
fn a_text_without_end_is_refused() {
    let mut talk = talk();
    let text = "a".repeat(300_000);
    for command in [
        LiveCommand::Text { text: text.clone(), reply: true },
        LiveCommand::Say { request: 1, text },
    ] {
        assert!(matches!(talk.try_command(command), Err(LiveError::InvalidCommand(_))));
    }
    assert!(talk.sent().is_empty());
}

#[test]
fn a_turn_during_a_reply_that_may_not_be_interrupted_is_answered_afterwards() {
    let mut config = LiveConfig::new();
    config.policies.activity.handling = ActivityHandling::NoInterruption;
    let mut talk = Talk::ready(&config);
    talk.created("a");
    talk.committed("u", None);
    talk.done("a", "completed");
    talk.pass(Duration::from_secs(1));
    let create = talk.sent_one();
    talk.created_for("b", &create);
    talk.committed("v", Some("u"));
    talk.done("b", "completed");
    // Here the server does it by itself.
    talk.created("c");
    talk.pass(Duration::from_secs(1));
    talk.done("c", "completed");
    talk.pass(Duration::from_secs(60));
    assert!(talk.sent().is_empty());
}
