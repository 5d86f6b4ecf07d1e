//! What was said and done stands in the order in which it was, whenever it is told.

use std::sync::Arc;

use antiphon::{
    agent::{FuncTool, InMemorySessionStore, ToolRegistry, types::JsonObject},
    live::{LiveEvent, TextUpdate},
};
use serde_json::json;

use super::*;
use crate::rig::*;

const START: LiveEvent = LiveEvent::SpeechStarted { audio_start_ms: None };
const STOP: LiveEvent = LiveEvent::SpeechStopped { audio_end_ms: None };

impl Rig {
    /// The user says something whose words come later, as this item.
    fn speaks(&self, item: &str) -> &Self {
        self.emit(START).emit(STOP).emit(LiveEvent::InputCommitted { item: item.into() })
    }

    fn understood(&self, item: &str, text: &str) -> &Self {
        self.emit(heard(item, TextUpdate::Final(Some(text.into()))))
    }
}

#[tokio::test(start_paused = true)]
async fn words_that_come_after_the_reply_stand_before_it() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.speaks("u1").says("r1", "Good day.", 500);
    rig.speaker_catches_up().await;
    rig.until(is_turn_finished).await;
    assert!(!rig.now().await.iter().any(is_committed), "the words may still come");
    rig.understood("u1", "Hello.");
    let row = rig.committed(&agent).await;
    assert_eq!(lines(&row), ["user: Hello.", "model: Good day."]);
}

#[tokio::test(start_paused = true)]
async fn words_that_come_after_the_next_turn_began_belong_to_their_own() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.speaks("u1").says("r1", "First.", 500);
    rig.speaker_catches_up().await;
    rig.until(is_turn_finished).await;
    // The user speaks again before the words of before are there.
    rig.emit(START).understood("u1", "One.");
    let first = rig.committed(&agent).await;
    assert_eq!(lines(&first), ["user: One.", "model: First."]);
    rig.emit(STOP).emit(LiveEvent::InputCommitted { item: "u2".into() });
    rig.says("r2", "Second.", 500).understood("u2", "Two.");
    rig.speaker_catches_up().await;
    let second = rig.committed(&agent).await;
    assert_eq!(lines(&second)[2..], ["user: Two.", "model: Second."]);
    assert_eq!((&voice(&second, 0)["turn"], &voice(&second, 2)["turn"]), (&json!(1), &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn words_that_come_after_the_next_reply_began_belong_to_their_own_turn() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.speaks("u1").says("r1", "First.", 500);
    rig.speaker_catches_up().await;
    rig.until(is_turn_finished).await;
    rig.speaks("u2").reply("r2").words("r2", "Second.").audio("r2", 500);
    rig.settle().await;
    rig.understood("u1", "One.").understood("u2", "Two.").done("r2");
    rig.speaker_catches_up().await;
    let mut row = rig.committed(&agent).await;
    while lines(&row).len() < 4 {
        row = rig.committed(&agent).await;
    }
    let turns: Vec<_> = (0..4).map(|index| voice(&row, index)["turn"].clone()).collect();
    let said: Vec<_> = lines(&row).into_iter().zip(turns).collect();
    let told = |line: &str, turn: u64| (line.to_owned(), json!(turn));
    assert!(said.contains(&told("user: One.", 1)), "{said:?}");
    assert_eq!(said[2..], [told("user: Two.", 2), told("model: Second.", 2)]);
}

#[tokio::test(start_paused = true)]
async fn several_utterances_before_a_reply_stay_apart_and_in_its_turn() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.speaks("u1").speaks("u2").says("r1", "Both.", 500);
    rig.settle().await;
    rig.understood("u1", "One.").understood("u2", "Two.");
    rig.speaker_catches_up().await;
    let row = rig.committed(&agent).await;
    assert_eq!(lines(&row), ["user: One.", "user: Two.", "model: Both."]);
    for index in 0..3 {
        assert_eq!(voice(&row, index)["turn"], 1);
    }
    assert_eq!(rig.session.stats().turns, 1);
    let next = rig.turn(&agent, "Three.", "Third.").await;
    assert_eq!(lines(&next)[3..], ["user: Three.", "model: Third."]);
    assert_eq!(voice(&next, 3)["turn"], 2);
}

#[tokio::test(start_paused = true)]
async fn an_utterance_understood_before_the_reply_and_one_after_it_stay_apart() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.speaks("u1").settle().await;
    rig.speaks("u2").settle().await;
    rig.understood("u1", "One.");
    rig.says("r1", "Both.", 500).understood("u2", "Two.");
    rig.speaker_catches_up().await;
    let row = rig.committed(&agent).await;
    assert_eq!(lines(&row), ["user: One.", "user: Two.", "model: Both."]);
    assert_eq!(voice(&row, 1)["turn"], voice(&row, 2)["turn"]);
}

#[tokio::test(start_paused = true)]
async fn words_that_never_come_keep_a_turn_open_only_so_long() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.speaks("u1").says("r1", "First.", 500);
    rig.speaker_catches_up().await;
    assert_eq!(lines(&rig.committed(&agent).await), ["model: First."]);
    // What was not understood is not taken for what comes next.
    let second = rig.turn(&agent, "Two.", "Second.").await;
    assert_eq!(lines(&second)[1..], ["user: Two.", "model: Second."]);
    assert_eq!(voice(&second, 1)["turn"], 2);
}

#[tokio::test(start_paused = true)]
async fn words_that_were_still_heard_when_their_tool_was_done_stand_before_it() {
    let registry = ToolRegistry::new();
    let schema = json!({ "type": "object" });
    registry.must_register(FuncTool::new("clock", "Tells the time.", schema, |_, _| async {
        Ok(JsonObject::from_iter([("time".to_owned(), json!("5 pm"))]))
    }));
    let agent = speaking(Arc::new(InMemorySessionStore::new()), Arc::new(registry));
    let mut rig = linked(&agent, |builder| builder).await;
    rig.user_says("u1", "What time is it?");
    rig.reply("r1").words("r1", "One moment.").audio("r1", 3_000);
    rig.settle().await;
    rig.calls("r1", &[("c1", "clock", "{}")]).done("r1");
    tokio::time::sleep(100 * MS).await;
    assert_eq!(rig.outputs().await.len(), 1, "the tool was done while the agent spoke");
    rig.says("r2", "It is five.", 1_000);
    rig.speaker_catches_up().await;
    let row = rig.committed(&agent).await;
    let expected = [
        "user: What time is it?",
        "model: One moment.",
        "model: ?clock {}",
        r#"tool: !clock {"time":"5 pm"}"#,
        "model: It is five.",
    ];
    assert_eq!(lines(&row), expected);
    let began = |index| voice(&row, index)["began_ms"].as_u64().unwrap();
    assert!(began(1) < began(4));
}
