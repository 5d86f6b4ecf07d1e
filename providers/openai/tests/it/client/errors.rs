//! Bad input: told, counted, or the end.

use antiphon_live::{Frame, LiveConfig, LiveError, LiveEvent, WireProtocol};
use antiphon_types::Status;
use bytes::Bytes;
use serde_json::json;

use super::talk::Talk;

fn talk() -> Talk {
    Talk::ready(&LiveConfig::new())
}

#[test]
fn every_error_of_the_specification_is_what_it_means() {
    let fatal = |code: &str| {
        let error = json!({"type": "error", "error": {"type": "invalid_request_error",
            "code": code, "message": "No."}});
        talk().try_server(error).err()
    };
    for code in [
        "invalid_event",
        "missing_required_parameter",
        "unknown_parameter",
        "invalid_value",
        "invalid_type",
        "rate_limit_exceeded",
        "cannot_update_voice",
    ] {
        assert!(fatal(code).is_none(), "{code}");
        let mut talk = talk();
        talk.error(Some(code), "No.", None);
        assert_eq!(talk.told(), [format!("error {code}")]);
    }
    for code in [
        "conversation_already_has_active_response",
        "response_cancel_not_active",
        "input_audio_buffer_commit_empty",
        "item_truncate_invalid_item_id",
        "item_delete_invalid_item_id",
        "item_retrieve_invalid_item_id",
    ] {
        assert!(fatal(code).is_none(), "{code}");
        let mut talk = talk();
        talk.error(Some(code), "No.", None);
        assert_eq!(talk.told(), [format!("ignored {code}")]);
    }
    assert!(fatal("session_expired").unwrap().is_recoverable());
    assert_eq!(fatal("invalid_api_key").unwrap().status(), Status::Unauthenticated);
    assert_eq!(fatal("model_not_found").unwrap().status(), Status::NotFound);
    assert_eq!(fatal("insufficient_quota").unwrap().status(), Status::ResourceExhausted);
    assert_eq!(fatal("beta_api_shape_disabled").unwrap().status(), Status::InvalidArgument);
    let mut talk = talk();
    talk.server(json!({"type": "error", "error": {"type": "server_error", "code": null,
        "message": "The server had an error while processing your request."}}));
    talk.server(json!({"type": "error", "error": {}}));
    assert_eq!(talk.told(), ["error server_error", "error error"]);
}

#[test]
fn quirks_29_30_an_expired_session_can_be_replaced() {
    let mut talk = talk();
    let error = talk.try_frame(Frame::Close(Some((1001, String::new())))).unwrap_err();
    assert!(matches!(error, LiveError::Closed { code: 1001, .. }) && error.is_recoverable());
}

#[test]
fn malformed_frames_are_told_and_many_in_a_row_are_the_end() {
    let mut talk = talk();
    for bad in ["{", "[]", "7", "", "{\"type\":null}", "{\"type\":\"session.created\"}"] {
        talk.try_frame(Frame::Text(bad.into())).unwrap();
    }
    talk.try_frame(Frame::Binary(Bytes::from_static(b"\x00\xff"))).unwrap();
    assert_eq!(talk.told(), vec!["error malformed_event"; 7]);
    talk.created("a");
    for _ in 0..15 {
        talk.try_frame(Frame::Text("{".into())).unwrap();
    }
    let error = talk.try_frame(Frame::Text("{".into())).unwrap_err();
    assert!(matches!(error, LiveError::Protocol(_)));
}

#[test]
fn quirk_21_an_item_with_megabytes_of_audio_is_no_trouble() {
    let mut talk = talk();
    let audio = "A".repeat(4 * 1024 * 1024);
    talk.server(json!({"type": "conversation.item.retrieved", "item": {"id": "i",
        "type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}}));
    assert!(talk.told().is_empty());
}

#[test]
fn unknown_events_are_counted_and_leave_nothing_behind() {
    let mut talk = talk();
    for number in 0..5_000 {
        talk.server(json!({"type": format!("future.event_{number}"), "x": [1, {"y": 2}]}));
        let event = talk.out.events.pop_front();
        assert!(matches!(event, Some(LiveEvent::Ignored { .. })));
    }
    talk.server(json!({"type": "é".repeat(300)}));
    let Some(LiveEvent::Ignored { kind }) = talk.out.events.pop_front() else { panic!() };
    assert!(kind.len() <= 80);
    assert!(talk.out.events.is_empty() && talk.out.frames.is_empty());
    assert_eq!(talk.client.deadline(), None);
}

#[test]
fn limits_are_told() {
    let mut talk = talk();
    talk.server(json!({"type": "rate_limits.updated", "rate_limits": [
        {"name": "tokens", "limit": 40000, "remaining": 39900, "reset_seconds": 0.15},
        {"name": "requests", "remaining": -1, "reset_seconds": -5}]}));
    let Some(LiveEvent::RateLimits(limits)) = talk.out.events.pop_front() else { panic!() };
    assert_eq!((&*limits[0].name, limits[0].remaining), ("tokens", Some(39_900)));
    assert_eq!(limits[0].reset_after.unwrap().as_millis(), 150);
    assert_eq!((limits[1].remaining, limits[1].reset_after), (None, None));
}

#[test]
fn words_for_unknown_items_duplicate_ids_and_wrong_order_are_survived() {
    let mut talk = talk();
    talk.server(json!({"type": "response.output_audio.done", "response_id": "x", "item_id": "y"}));
    talk.server(json!({"type": "response.content_part.done", "response_id": "x", "item_id": "y"}));
    talk.server(json!({"type": "conversation.item.truncated", "item_id": "y"}));
    talk.server(json!({"type": "response.done", "response": {"id": "a", "status": "completed"}}));
    talk.created("a");
    talk.created("b");
    talk.created("b");
    talk.done("a", "completed");
    talk.done("b", "completed");
    assert_eq!(
        talk.told(),
        [
            "start a",
            "done a Completed",
            "ignored a reply that began twice",
            "start b",
            "ignored a reply that began twice",
            "ignored remains of a reply",
            "done b Completed"
        ]
    );
}
