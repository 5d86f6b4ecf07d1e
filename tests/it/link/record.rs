//! What stands in the record of a turn, and why turns end.

use std::time::Duration;

use antiphon::{
    agent::{
        AgentFinishReason, Denial, FuncTool, InMemorySessionStore, Role, SnapshotStatus,
        ToolRegistry, Verdict, types::JsonObject,
    },
    live::{LiveEvent, ReplyOutcome, SpeakerInfo, TextUpdate},
    session::*,
    types::Usage,
};
use serde_json::{Value, json};

use super::*;
use crate::rig::*;

/// Takes 300 ms.
fn pay() -> FuncTool {
    FuncTool::new("pay", "Pays.", json!({ "type": "object" }), |_cx, args| async move {
        tokio::time::sleep(300 * MS).await;
        Ok(args)
    })
}

fn with_pay() -> Agent {
    let registry = ToolRegistry::new();
    registry.must_register(pay());
    speaking(Arc::new(InMemorySessionStore::new()), Arc::new(registry))
}

fn usage(tokens: u64) -> Option<Usage> {
    let mut usage = Usage::default();
    usage.output_audio_tokens = tokens;
    Some(usage)
}

fn done(reply: &str, outcome: ReplyOutcome, usage: Option<Usage>) -> LiveEvent {
    LiveEvent::ReplyDone { reply: reply.into(), outcome, usage }
}

/// What voice noted with the first part of a message.
fn noted(row: &SessionSnapshot, index: usize) -> Value {
    let messages = &row.state.as_ref().unwrap().messages;
    messages.get(index).unwrap().content[0].metadata_entry(VOICE).cloned().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn the_record_of_a_turn_says_when_in_what_language_by_which_items_and_at_what_price() {
    let agent = with_pay();
    let mut rig = linked(&agent, |builder| builder).await;
    tokio::time::sleep(SECOND).await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    tokio::time::sleep(800 * MS).await;
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    tokio::time::sleep(200 * MS).await;
    let mut speaker = SpeakerInfo::default();
    speaker.language = Some("de".into());
    let text = TextUpdate::Final(Some("Zahle fünf.".into()));
    rig.emit(LiveEvent::InputTranscript { item: "u1".into(), text, speaker: Some(speaker) });
    rig.reply("r1").calls("r1", &[("c1", "pay", r#"{"amount": 5}"#)]);
    rig.emit(done("r1", ReplyOutcome::Completed, usage(10)));
    tokio::time::sleep(400 * MS).await;
    rig.reply_to("r2", 1).words("r2", "Bezahlt.").audio("r2", 500);
    rig.emit(done("r2", ReplyOutcome::Completed, usage(7)));
    rig.speaker_catches_up().await;
    let row = rig.committed(&agent).await;
    let user = voice(&row, 0);
    assert_eq!(user["language"], "de");
    assert_eq!(user["items"], json!(["u1"]));
    let (start, end) =
        (user["audio_start_ms"].as_u64().unwrap(), user["audio_end_ms"].as_u64().unwrap());
    assert_eq!(end - start, 800);
    assert!(start >= 1_000 && user["t_ms"].as_u64().unwrap() >= end + 200, "{user}");
    assert_eq!(noted(&row, 1)["verdict"], "allow");
    assert_eq!(noted(&row, 2)["outcome"], "success");
    assert_eq!(noted(&row, 2)["took_ms"], 300);
    let said = voice(&row, 3);
    assert_eq!(said["items"], json!(["r2-item"]));
    // After the 200 ms for the words and the 400 ms for the tool.
    assert_eq!(said["began_ms"].as_u64().unwrap(), end + 600);
    assert_eq!((&said["heard_ms"], &said["latency_ms"]), (&json!(500), &json!(600)));
    let used: Vec<_> = (0..4).map(|index| voice(&row, index)["usage"].clone()).collect();
    assert_eq!(used[..3], [Value::Null, Value::Null, Value::Null]);
    assert_eq!(used[3]["output_audio_tokens"], 17);
    // Every message has a place, and nothing but the one key.
    for message in row.state.as_ref().unwrap().messages.iter() {
        let metadata = message.metadata.as_ref().unwrap();
        assert_eq!(metadata.keys().collect::<Vec<_>>(), [VOICE]);
        assert_eq!(metadata[VOICE]["turn"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_has_its_verdict() {
    let agent = with_pay();
    let verdicts = policy(|call| match call.args.get("amount").and_then(Value::as_u64) {
        Some(500) => Verdict::Deny(Denial::told("at most 100")),
        Some(50) => Verdict::AllowWith(JsonObject::from_iter([("amount".to_owned(), json!(40))])),
        _ => Verdict::Allow,
    });
    let mut rig = linked(&agent, |builder| builder.authorize(verdicts)).await;
    let calls = [
        ("c1", "pay", r#"{"amount": 5}"#),
        ("c2", "pay", r#"{"amount": 500}"#),
        ("c3", "pay", r#"{"amount": 50}"#),
        ("c4", "nothing", "{}"),
    ];
    rig.user_says("u1", "Pay.").reply("r1").calls("r1", &calls).done("r1");
    tokio::time::sleep(SECOND).await;
    rig.says("r2", "Done.", 100);
    rig.speaker_catches_up().await;
    let row = rig.committed(&agent).await;
    let messages = &row.state.as_ref().unwrap().messages;
    let asked = messages.get(1).unwrap();
    let verdicts: Vec<_> = asked
        .content
        .iter()
        .map(|part| part.metadata_entry(VOICE).cloned().unwrap_or_default())
        .collect();
    assert_eq!(
        verdicts,
        [
            json!({ "verdict": "allow" }),
            json!({ "verdict": "deny" }),
            json!({ "verdict": "allow_with", "args": { "amount": 40 } }),
            Value::Null,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_finish_reason_is_how_the_last_reply_ended() {
    for (outcome, reason, status) in [
        (ReplyOutcome::Completed, AgentFinishReason::Stop, SnapshotStatus::Completed),
        (ReplyOutcome::Incomplete, AgentFinishReason::Length, SnapshotStatus::Completed),
        (ReplyOutcome::Blocked, AgentFinishReason::Blocked, SnapshotStatus::Completed),
        (ReplyOutcome::Failed, AgentFinishReason::Failed, SnapshotStatus::Failed),
    ] {
        let agent = plain();
        let mut rig = linked(&agent, |builder| builder).await;
        rig.user_says("u1", "Tell me.").reply("r1").words("r1", "Once upon").audio("r1", 500);
        rig.done_as("r1", outcome);
        rig.speaker_catches_up().await;
        let row = rig.committed(&agent).await;
        assert_eq!((row.finish_reason, row.status()), (Some(reason), status), "{outcome:?}");
        // The next turn is a matter of its own.
        let next = rig.turn(&agent, "And now?", "Now it works.").await;
        assert_eq!(next.finish_reason, Some(AgentFinishReason::Stop), "after {outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_leaves_nothing_is_told_too() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.user_says("u1", "Tell me.").reply("r1").done_as("r1", ReplyOutcome::Blocked);
    let row = rig.committed(&agent).await;
    assert_eq!(lines(&row), ["user: Tell me."]);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Blocked));
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_which_nothing_was_heard_stands_there_as_such_and_is_told_to_nobody() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.user_says("u1", "Tell me a story.").reply("r1").words("r1", "Once upon a time.");
    rig.audio("r1", 1_000);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.settle().await;
    rig.user_says("u2", "Stop.");
    let row = rig.committed(&agent).await;
    let told = row.state.as_ref().unwrap().messages.get(1).unwrap();
    assert_eq!(told.role, Role::Model);
    assert!(told.joined_text().contains("before the user heard any of it"), "{told:?}");
    let noted = voice(&row, 1);
    assert_eq!((&noted["interrupted"], &noted["heard_ms"]), (&json!(true), &json!(0)));
    assert_eq!(noted["generated"], "Once upon a time.");
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Stop));
    rig.session.shutdown(SECOND).await.unwrap();
    let rig = linked(&agent, |builder| builder.resume("s")).await;
    let history = rig.provider.requests()[0].history.len();
    assert_eq!(history, 2, "what was not heard was not said");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_never_says_that_it_played_does_not_keep_the_turn() {
    let agent = plain();
    let mut limits = SessionLimits::default();
    limits.turn_settle = 2 * SECOND;
    let mut rig = linked(&agent, |builder| builder.limits(limits)).await;
    rig.user_says("u1", "Hello.").says("r1", "Good day.", 3_000);
    rig.settle().await;
    let began = tokio::time::Instant::now();
    let events = rig.until(is_committed).await;
    let waited = began.elapsed();
    let (least, most) = (Duration::from_millis(4_900), Duration::from_millis(5_100));
    assert!(least < waited && waited < most, "{waited:?}");
    let error =
        |kind: &EventKind| matches!(kind, EventKind::Error { kind, .. } if &**kind == "sink");
    assert!(events.iter().any(error), "{events:?}");
    let row = agent.get_snapshot(&cx(), ids(events.last().unwrap()).0.unwrap()).await.unwrap();
    assert_eq!(lines(&row), ["user: Hello.", "model: Good day."]);
    assert_eq!(voice(&row, 1)["confidence"], "estimate");
    assert_eq!(voice(&row, 1)["error_ms"], 2_000);
}

#[tokio::test(start_paused = true)]
async fn words_that_never_come_do_not_keep_the_turn() {
    let agent = plain();
    let mut limits = SessionLimits::default();
    limits.turn_settle = 2 * SECOND;
    let mut rig = linked(&agent, |builder| builder.limits(limits)).await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::SpeechStopped { audio_end_ms: None })
        .says("r1", "Good day.", 500);
    rig.speaker_catches_up().await;
    rig.until(|kind| matches!(kind, EventKind::TurnFinished { .. })).await;
    let began = tokio::time::Instant::now();
    let row = rig.committed(&agent).await;
    let waited = began.elapsed();
    assert!(waited > 1_900 * MS && waited < 2_100 * MS, "{waited:?}");
    assert_eq!(lines(&row), ["model: Good day."]);
}
