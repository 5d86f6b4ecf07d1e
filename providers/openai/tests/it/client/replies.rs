//! Replies: asked for, begun, stopped, done.

use std::time::Duration;

use antiphon_live::{LiveCommand, LiveConfig, LiveEvent, ReplyId};
use serde_json::{Value, json};

use super::talk::Talk;

fn talk() -> Talk {
    Talk::ready(&LiveConfig::new())
}

fn create(request: u64) -> LiveCommand {
    LiveCommand::CreateReply { request }
}

fn cancel(reply: &str) -> LiveCommand {
    LiveCommand::CancelReply { reply: Some(ReplyId::from(reply)) }
}

#[test]
fn a_text_is_an_item_and_a_request() {
    let mut talk = talk();
    talk.text("Hello?");
    let sent = talk.sent();
    assert_eq!(
        sent[0],
        json!({"type": "conversation.item.create", "event_id": "item-2", "item": {
            "type": "message", "role": "user",
            "content": [{"type": "input_text", "text": "Hello?"}]}})
    );
    assert_eq!(
        sent[1],
        json!({"type": "response.create", "event_id": "reply-1",
            "response": {"metadata": {"request": "reply-1"}}})
    );
    talk.command(LiveCommand::Text { text: "And?".into(), reply: false });
    assert_eq!(talk.sent_kinds(), ["conversation.item.create"]);
}

#[test]
fn a_whole_reply_in_the_order_of_the_vendor() {
    let mut talk = talk();
    talk.command(create(7));
    let request = talk.sent_one();
    talk.created_for("r", &request);
    talk.server(json!({"type": "response.output_item.added", "response_id": "r",
        "output_index": 0, "item": {"id": "i", "type": "message", "status": "in_progress",
            "role": "assistant", "content": []}}));
    talk.server(json!({"type": "conversation.item.added", "item": {"id": "i", "type": "message",
        "role": "assistant", "content": []}}));
    talk.server(json!({"type": "response.content_part.added", "response_id": "r", "item_id": "i",
        "output_index": 0, "content_index": 0, "part": {"type": "audio", "transcript": ""}}));
    let transcript = |kind: &str, key: &str, words: &str| {
        let mut event = json!({"type": format!("response.output_audio_transcript.{kind}"),
            "response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0});
        event[key] = words.into();
        event
    };
    talk.server(transcript("delta", "delta", "Hi "));
    talk.voice("r", "i", 40);
    talk.server(transcript("delta", "delta", "there."));
    talk.voice("r", "i", 20);
    talk.server(json!({"type": "response.output_audio.done", "response_id": "r", "item_id": "i",
        "output_index": 0, "content_index": 0}));
    talk.server(transcript("done", "transcript", "Hi there."));
    let item = json!({"id": "i", "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_audio", "transcript": "Hi there."}]});
    talk.server(json!({"type": "response.output_item.done", "response_id": "r",
        "output_index": 0, "item": item}));
    talk.server(json!({"type": "response.done", "response": {"id": "r", "status": "completed",
        "output": [item], "usage": {"total_tokens": 60, "input_tokens": 30, "output_tokens": 30,
            "input_token_details": {"text_tokens": 10, "audio_tokens": 20, "cached_tokens": 4},
            "output_token_details": {"text_tokens": 6, "audio_tokens": 24}}}}));
    let usage = talk.out.events.iter().find_map(|event| match event {
        LiveEvent::ReplyDone { usage, .. } => *usage,
        _ => None,
    });
    let usage = usage.unwrap();
    assert_eq!(
        (usage.input_audio_tokens, usage.cached_tokens, usage.output_audio_tokens),
        (20, 4, 24)
    );
    assert_eq!(
        talk.told(),
        [
            "start r for 7",
            "say i +Hi ",
            "voice i 40",
            "say i +there.",
            "voice i 20",
            "say i .Hi there.",
            "done r Completed"
        ]
    );
    assert!(talk.sent().is_empty());
}

#[test]
fn quirk_10_a_request_waits_for_the_end_of_the_reply_before_it() {
    let mut talk = talk();
    talk.text("One?");
    let first = talk.sent().pop().unwrap();
    talk.created_for("a", &first);
    talk.command(cancel("a"));
    assert_eq!(talk.sent_one(), json!({"type": "response.cancel", "response_id": "a"}));
    talk.command(create(2));
    talk.command(create(3));
    assert!(talk.sent().is_empty());
    talk.cancelled("a", "client_cancelled");
    let second = talk.sent_one();
    assert_eq!(second["event_id"], "reply-2");
    talk.created_for("b", &second);
    assert!(talk.sent().is_empty());
    talk.done("b", "completed");
    let third = talk.sent_one();
    talk.created_for("c", &third);
    talk.done("c", "completed");
    assert_eq!(
        talk.told(),
        [
            "start a",
            "done a Cancelled",
            "start b for 2",
            "done b Completed",
            "start c for 3",
            "done c Completed"
        ]
    );
}

#[test]
fn quirks_11_14_the_late_end_of_a_cancelled_reply_does_not_end_the_next() {
    let mut talk = talk();
    talk.created("a");
    talk.command(cancel("a"));
    talk.created("b");
    talk.cancelled("a", "client_cancelled");
    talk.voice("a", "i", 20);
    talk.voice("b", "j", 20);
    talk.done("b", "completed");
    talk.done("b", "completed");
    assert_eq!(
        talk.told(),
        [
            "start a",
            "done a Cancelled",
            "start b",
            "ignored remains of a reply",
            "ignored remains of a reply",
            "voice j 20",
            "done b Completed",
            "ignored remains of a reply"
        ]
    );
}

#[test]
fn quirk_7_a_refused_request_is_made_again_when_the_reply_is_done() {
    let mut talk = talk();
    talk.command(create(1));
    let first = talk.sent_one();
    talk.created_for("x", &json!({"response": {"metadata": {"request": "somebody"}}}));
    talk.already_active(Some(&first["event_id"]));
    assert!(talk.sent().is_empty());
    talk.done("x", "completed");
    let again = talk.sent_one();
    assert_eq!(again["event_id"], "reply-2");
    talk.created_for("y", &again);
    talk.done("y", "completed");
    assert_eq!(talk.told(), ["start x", "done x Completed", "start y for 1", "done y Completed"]);
}

#[test]
fn quirks_8_9_a_refusal_without_a_name_means_the_request_in_flight() {
    let mut talk = talk();
    talk.command(create(1));
    talk.sent_one();
    // The server's own reply is not known here yet: try again after a moment, at last give up.
    for _ in 0..2 {
        talk.already_active(None);
        assert!(talk.sent().is_empty());
        talk.pass(Duration::from_millis(300));
        assert_eq!(talk.sent_kinds(), ["response.create"]);
    }
    talk.already_active(None);
    talk.pass(Duration::from_secs(60));
    assert!(talk.sent().is_empty());
    assert_eq!(talk.told(), ["error conversation_already_has_active_response for 1"]);
    // Without a request in flight it is nobody's.
    talk.already_active(None);
    assert_eq!(talk.told(), ["ignored conversation_already_has_active_response"]);
}

#[test]
fn a_reply_of_the_servers_own_is_not_taken_for_the_one_asked_for() {
    let mut talk = talk();
    talk.command(create(1));
    let first = talk.sent_one();
    talk.committed("u", None);
    talk.created("own");
    talk.done("own", "completed");
    talk.created_for("asked", &first);
    talk.done("asked", "completed");
    assert_eq!(
        talk.told(),
        [
            "committed u",
            "start own",
            "done own Completed",
            "start asked for 1",
            "done asked Completed"
        ]
    );
}

#[test]
fn a_server_that_returns_no_metadata_is_understood() {
    let mut talk = talk();
    talk.command(create(1));
    talk.sent_one();
    talk.created("a");
    talk.done("a", "completed");
    assert_eq!(talk.told(), ["start a for 1", "done a Completed"]);
}

#[test]
fn other_refusals_and_silence_fail_the_request() {
    let mut talk = talk();
    talk.command(create(1));
    let first = talk.sent_one();
    talk.error(Some("invalid_value"), "No.", Some(&first["event_id"]));
    assert_eq!(talk.told(), ["error invalid_value for 1"]);
    talk.command(create(2));
    assert_eq!(talk.sent_kinds(), ["response.create"]);
    talk.pass(Duration::from_secs(20));
    assert_eq!(talk.told(), ["error no_answer for 2"]);
    talk.command(create(3));
    assert_eq!(talk.sent_kinds(), ["response.create"]);
}

#[test]
fn quirk_13_a_reply_cancelled_before_it_begins_is_stopped_when_it_does() {
    let mut talk = talk();
    talk.command(create(1));
    talk.command(create(2));
    let first = talk.sent_one();
    talk.command(LiveCommand::CancelReply { reply: None });
    assert!(talk.sent().is_empty());
    assert_eq!(talk.told(), ["error cancelled for 2"]);
    talk.created_for("a", &first);
    assert_eq!(talk.sent_one(), json!({"type": "response.cancel", "response_id": "a"}));
    talk.voice("a", "i", 20);
    talk.cancelled("a", "client_cancelled");
    assert_eq!(talk.told(), ["start a for 1", "ignored remains of a reply", "done a Cancelled"]);
    assert!(talk.sent().is_empty());
}

#[test]
fn a_late_request_to_cancel_hits_nobody() {
    let mut talk = talk();
    talk.created("a");
    talk.done("a", "completed");
    talk.created("b");
    talk.command(cancel("a"));
    assert!(talk.sent().is_empty());
    talk.command(LiveCommand::CancelReply { reply: None });
    assert_eq!(talk.sent_one()["response_id"], "b");
    talk.command(cancel("b"));
    assert!(talk.sent().is_empty());
}

#[test]
fn quirk_75_a_cancelled_reply_that_is_never_ended_ends() {
    let mut talk = talk();
    talk.created("a");
    talk.command(cancel("a"));
    talk.command(create(2));
    talk.pass(Duration::from_secs(6));
    assert_eq!(
        talk.told(),
        ["start a", "ignored a stopped reply that was never ended", "done a Cancelled"]
    );
    assert_eq!(talk.sent_kinds(), ["response.cancel", "response.create"]);
}

#[test]
fn quirk_34_a_reply_without_audio_or_anything_is_over_when_it_is_done() {
    let mut talk = talk();
    talk.created("a");
    talk.done("a", "completed");
    talk.created("b");
    talk.server(json!({"type": "response.done", "response": {"id": "b", "output": null}}));
    assert_eq!(talk.told(), ["start a", "done a Completed", "start b", "done b Completed"]);
}

#[test]
fn quirk_37_text_in_an_audio_session_is_text() {
    let mut talk = talk();
    talk.created("a");
    talk.server(json!({"type": "response.output_text.delta", "response_id": "a", "item_id": "i",
        "delta": "Hel"}));
    talk.server(json!({"type": "response.text.delta", "response_id": "a", "item_id": "i",
        "delta": "lo"}));
    talk.server(json!({"type": "response.output_text.done", "response_id": "a", "item_id": "i",
        "text": "Hello"}));
    talk.done("a", "completed");
    assert_eq!(
        talk.told(),
        ["start a", "write i +Hel", "write i +lo", "write i .Hello", "done a Completed"]
    );
}

#[test]
fn quirk_16_words_that_come_only_with_the_item_are_told() {
    for (kind, words) in [
        (json!({"type": "output_audio", "transcript": "Hi."}), "say i .Hi."),
        (json!({"type": "audio", "transcript": "Hi."}), "say i .Hi."),
        (json!({"type": "output_text", "text": "Hi."}), "write i .Hi."),
        (json!({"type": "text", "text": "Hi."}), "write i .Hi."),
    ] {
        let mut talk = talk();
        talk.created("a");
        let item = json!({"id": "i", "type": "message", "role": "assistant", "content": [kind]});
        talk.server(json!({"type": "response.output_item.done", "response_id": "a",
            "item": item.clone()}));
        talk.server(json!({"type": "response.done",
            "response": {"id": "a", "status": "completed", "output": [item]}}));
        assert_eq!(talk.told(), ["start a", words, "done a Completed"]);
    }
}

#[test]
fn quirk_18_a_server_may_announce_nothing() {
    let mut talk = talk();
    talk.voice("a", "i", 20);
    talk.server(json!({"type": "response.audio_transcript.delta", "response_id": "a",
        "item_id": "i", "delta": "Hi"}));
    talk.done("a", "completed");
    assert_eq!(talk.told(), ["start a", "voice i 20", "say i +Hi", "say i .", "done a Completed"]);
    // Not even a name.
    talk.voice("", "j", 20);
    assert_eq!(talk.told(), ["ignored remains of a reply"]);
    talk.created("");
    talk.voice("", "j", 20);
    talk.done("", "completed");
    assert_eq!(talk.told(), ["start unnamed-1", "voice j 20", "done unnamed-1 Completed"]);
}

#[test]
fn quirk_15_every_item_of_a_reply_has_its_own_voice_and_words() {
    let mut talk = talk();
    talk.created("a");
    talk.voice("a", "i", 20);
    talk.voice("a", "j", 40);
    talk.truncate("j", 10);
    talk.truncate("i", 10);
    let cuts: Vec<Value> = talk.sent();
    assert_eq!((&cuts[0]["item_id"], &cuts[1]["item_id"]), (&json!("j"), &json!("i")));
    assert_eq!(talk.told(), ["start a", "voice i 20", "voice j 40"]);
}

#[test]
fn parts_of_one_item_do_not_replace_each_other() {
    let mut talk = talk();
    talk.created("a");
    for (part, text) in [(0, "One."), (1, "Two.")] {
        let mut event = json!({"type": "response.output_text.delta", "response_id": "a",
            "item_id": "i", "content_index": part, "delta": text});
        talk.server(event.clone());
        event["type"] = "response.output_text.done".into();
        event["text"] = text.into();
        talk.server(event);
    }
    talk.done("a", "completed");
    assert_eq!(
        talk.told(),
        [
            "start a",
            "write i +One.",
            "write i .One.",
            "write i +Two.",
            "write i .",
            "done a Completed"
        ]
    );
}

#[test]
fn every_end_of_a_reply_is_told_as_what_it_is() {
    for (status, details, told) in [
        ("completed", json!(null), vec!["done a Completed"]),
        ("incomplete", json!({"reason": "max_output_tokens"}), vec!["done a Incomplete"]),
        ("incomplete", json!({"reason": "content_filter"}), vec!["done a Blocked"]),
        ("cancelled", json!({"reason": "client_cancelled"}), vec!["done a Cancelled"]),
        (
            "cancelled",
            json!({"reason": "turn_detected"}),
            vec!["interrupted a", "done a Interrupted"],
        ),
        (
            "failed",
            json!({"error": {"type": "t", "code": "rate_limit_exceeded", "message": "Slow."}}),
            vec!["error rate_limit_exceeded", "done a Failed"],
        ),
        ("failed", json!(null), vec!["error response_failed", "done a Failed"]),
    ] {
        let mut talk = talk();
        talk.created("a");
        talk.server(json!({"type": "response.done",
            "response": {"id": "a", "status": status, "status_details": details}}));
        assert_eq!(talk.told()[1..], told);
    }
}

#[test]
fn a_mock_may_say_cancelled_in_place_of_done() {
    let mut talk = talk();
    talk.created("a");
    talk.command(cancel("a"));
    talk.server(json!({"type": "response.cancelled", "response_id": "a"}));
    talk.cancelled("a", "client_cancelled");
    assert_eq!(talk.told(), ["start a", "done a Cancelled", "ignored remains of a reply"]);
}

#[test]
fn a_given_text_is_a_reply_with_instructions_of_its_own() {
    let mut talk = talk();
    talk.command(LiveCommand::Say { request: 4, text: "One moment.".into() });
    let create = talk.sent_one();
    assert!(create["response"]["instructions"].as_str().unwrap().contains("\nOne moment.\n"));
    assert_eq!(create["response"]["tool_choice"], "none");
    talk.created_for("a", &create);
    assert_eq!(talk.told(), ["start a for 4"]);
}

#[test]
fn too_many_requests_are_refused() {
    let mut talk = talk();
    let refused = (0..100).filter(|number| talk.try_command(create(*number)).is_err()).count();
    assert_eq!(refused, 35);
}

#[test]
fn a_fault_of_the_server_is_tried_again() {
    let mut talk = talk();
    talk.command(create(1));
    for _ in 0..3 {
        let request = talk.sent_one();
        let error = json!({"type": "server_error", "code": null, "message": "Sorry.",
            "event_id": request["event_id"]});
        talk.server(json!({"type": "error", "error": error}));
        talk.pass(Duration::from_millis(300));
    }
    assert!(talk.sent().is_empty());
    assert_eq!(talk.told(), ["error server_error for 1"]);
}
