//! Voice: what was received, what was heard, what is cut.

use antiphon_live::{Frame, LiveConfig, LiveEvent};
use antiphon_types::AudioFrame;
use base64_simd::STANDARD;
use serde_json::json;

use super::talk::Talk;

fn talk() -> Talk {
    Talk::ready(&LiveConfig::new())
}

#[test]
fn quirks_1_3_4_a_cut_is_never_beyond_what_came_of_its_own_item() {
    let mut talk = talk();
    talk.created("a");
    talk.voice("a", "i", 100);
    talk.done("a", "completed");
    talk.created("b");
    talk.voice("b", "j", 9_250);
    talk.truncate("j", 57_340);
    let cut = talk.sent_one();
    assert_eq!((&cut["item_id"], &cut["audio_end_ms"]), (&json!("j"), &json!(9_250)));
    assert_eq!(cut["content_index"], 0);
    talk.truncate("i", 60);
    assert_eq!(talk.sent_one()["audio_end_ms"], 60);
}

#[test]
fn quirk_4_the_count_follows_the_format() {
    for (format, bytes) in [("g711_ulaw", 8 * 3_700), ("pcm16", 48 * 3_700)] {
        let mut config = LiveConfig::new();
        config.provider_options.insert("output_audio_format".into(), json!(format));
        let mut talk = Talk::ready(&config);
        talk.created("a");
        let delta = STANDARD.encode_to_string(vec![0_u8; bytes]);
        talk.server(json!({"type": "response.output_audio.delta", "response_id": "a",
            "item_id": "i", "delta": delta}));
        assert_eq!(talk.told()[1], "voice i 3700");
        talk.truncate("i", 3_760);
        assert_eq!(talk.sent_one()["audio_end_ms"], 3_700);
    }
}

#[test]
fn quirk_5_an_item_without_audio_is_not_cut() {
    let mut talk = talk();
    talk.created("a");
    talk.truncate("i", 0);
    talk.server(json!({"type": "response.output_audio.delta", "response_id": "a", "item_id": "i",
        "delta": ""}));
    talk.truncate("i", 0);
    assert!(talk.sent().is_empty());
    // Where the server does not take a cut to nothing, the item goes.
    talk.voice("a", "i", 20);
    talk.truncate("i", 0);
    let cut = talk.sent_one();
    assert_eq!(cut["audio_end_ms"], 0);
    let words = "Only model output audio messages can be truncated";
    talk.error(None, words, Some(&cut["event_id"]));
    assert_eq!(talk.sent_one(), json!({"type": "conversation.item.delete", "item_id": "i"}));
    talk.error(None, words, Some(&cut["event_id"]));
    assert!(talk.sent().is_empty());
}

#[test]
fn quirk_6_what_was_heard_to_its_end_is_not_cut() {
    let mut talk = talk();
    talk.created("a");
    talk.voice("a", "i", 100);
    talk.truncate("i", 100);
    assert_eq!(talk.sent_one()["audio_end_ms"], 100);
    talk.done("a", "completed");
    talk.truncate("i", 100);
    talk.truncate("i", 5_000);
    assert!(talk.sent().is_empty());
    talk.truncate("i", 99);
    assert_eq!(talk.sent_one()["audio_end_ms"], 99);
}

#[test]
fn quirk_2_a_cut_that_came_too_late_is_harmless() {
    let mut talk = talk();
    talk.error(None, "Audio content of 9250ms is already shorter than 9335ms", None);
    talk.error(Some("item_truncate_invalid_item_id"), "No such item.", None);
    assert_eq!(
        talk.told(),
        ["ignored invalid_request_error", "ignored item_truncate_invalid_item_id"]
    );
}

#[test]
fn quirk_22_large_frames_are_whole() {
    let mut talk = talk();
    talk.created("a");
    talk.voice("a", "i", 20_000);
    assert_eq!(talk.told()[1], "voice i 20000");
}

#[test]
fn a_sample_that_a_server_cut_in_two_is_put_together() {
    let mut talk = talk();
    talk.created("a");
    let bytes: Vec<u8> = (0..30).collect();
    for piece in [&bytes[..7], &bytes[7..8], &bytes[8..9], &bytes[9..9], &bytes[9..30]] {
        let delta = STANDARD.encode_to_string(piece);
        talk.server(json!({"type": "response.output_audio.delta", "response_id": "a",
            "item_id": "i", "content_index": 0, "delta": delta}));
    }
    let frames = talk.out.events.drain(..).filter_map(|event| match event {
        LiveEvent::Audio { frame, .. } => Some(frame),
        _ => None,
    });
    let frames: Vec<AudioFrame> = frames.collect();
    assert!(frames.iter().all(|frame| frame.data.len() % 2 == 0 && !frame.data.is_empty()));
    let whole: Vec<u8> = frames.iter().flat_map(|frame| frame.data.to_vec()).collect();
    assert_eq!(whole, bytes);
}

#[test]
fn bad_audio_is_told_and_what_follows_is_heard() {
    let mut talk = talk();
    talk.created("a");
    talk.server(json!({"type": "response.output_audio.delta", "response_id": "a", "item_id": "i",
        "delta": "!!!"}));
    talk.try_frame(Frame::Text(r#"{"type":"response.output_audio.delta","delta":7}"#.into()))
        .unwrap();
    talk.voice("a", "i", 20);
    assert_eq!(
        talk.told(),
        ["start a", "error malformed_event", "error malformed_event", "voice i 20"]
    );
}

#[test]
fn the_kind_may_come_last_or_escaped() {
    let mut talk = talk();
    talk.created("a");
    for text in [
        r#"{"delta":"AAAA","item_id":"i","response_id":"a","type":"response.audio.delta"}"#,
        r#"{"type":"response.output\u005faudio.delta","delta":"AAA=","response_id":"a"}"#,
    ] {
        talk.try_frame(Frame::Text(text.into())).unwrap();
    }
    let audio = talk.told().into_iter().filter(|event| event.starts_with("voice")).count();
    assert_eq!(audio, 2);
}
