//! What is said, and when.

use std::time::Duration;

use antiphon_live::{
    ConnectRequest, HistoryItem, HistoryRole, LiveCommand, LiveConfig, LiveEvent, LiveProvider,
    ReplyOutcome,
};
use antiphon_types::ToolDefinition;
use tokio::time::Instant;

use super::parts::*;

fn request(event: &LiveEvent) -> Option<u64> {
    match event {
        LiveEvent::ReplyStarted { request, .. } => *request,
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn each_sentence_is_spoken_as_soon_as_it_is_complete() {
    let script = |_: &_| {
        vec![
            Step::Text("First sen"),
            Step::Text("tence. Sec"),
            Step::Wait(5_000),
            Step::Text("ond one! Third."),
        ]
    };
    let house = House::new(Brain::new(script));
    let mut talk = house.talk(LiveConfig::new()).await;
    let asked = Instant::now();
    talk.text("go").await;
    talk.until_audio().await;
    assert!(asked.elapsed() < Duration::from_secs(1), "the voice does not wait for the model");
    let events = talk.until_done().await;
    assert_eq!(said(&events), "First sentence. Second one! Third.");
    let spoken = house.mouth.spoken.lock().unwrap().clone();
    assert_eq!(spoken, ["First sentence.", "Second one!", "Third."]);
    let order: Vec<&str> = names(&events);
    let expected = [
        "audio",
        "output_transcript",
        "audio",
        "output_transcript",
        "audio",
        "output_transcript",
        "reply_done",
    ];
    assert_eq!(order, expected, "each sentence's words come just before its voice");
}

#[tokio::test(start_paused = true)]
async fn the_next_sentence_is_made_while_one_is_sent_but_no_more() {
    let house = House::new(Brain::new(|_| vec![Step::Text("Number one. Two. Three. Four.")]));
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("go").await;
    talk.until_audio().await;
    assert_eq!(house.mouth.spoken.lock().unwrap().len(), 2);
    let events = talk.until_done().await;
    assert_eq!(outcome(&events), ReplyOutcome::Completed);
    assert_eq!(house.mouth.spoken.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn trial_a02_texts_during_a_reply_are_answered_one_by_one() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    for text in ["a", "b", "c"] {
        talk.text(text).await;
    }
    for text in ["a", "b", "c"] {
        assert_eq!(talk.answer().await, format!("You said {text}."));
    }
    assert_eq!(house.brain.latest(), ["a", "You said a.", "b", "You said b.", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_given_text_is_spoken_as_it_is_after_the_active_reply() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("a").await;
    talk.send(LiveCommand::Say { request: 7, text: "Your timer rings. Now!".into() }).await;
    assert_eq!(talk.answer().await, "You said a.");
    let events = talk.until_done().await;
    assert_eq!(request(&events[0]), Some(7));
    assert_eq!(said(&events), "Your timer rings. Now!");
    talk.text("b").await;
    talk.answer().await;
    assert_eq!(house.brain.latest()[2], "Your timer rings. Now!");
    assert_eq!(house.brain.count(), 2, "the model is not asked for a given text");
}

#[tokio::test(start_paused = true)]
async fn a_note_waits_for_a_request_of_the_host() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.send(LiveCommand::Text { text: "note".into(), reply: false }).await;
    talk.rest(1_000).await;
    assert!(talk.events.is_empty());
    talk.send(LiveCommand::CreateReply { request: 9 }).await;
    let events = talk.until_done().await;
    assert_eq!(request(&events[0]), Some(9));
    assert_eq!(said(&events), "You said note.");
}

#[tokio::test(start_paused = true)]
async fn trial_b12_b16_a_cancelled_reply_is_silent_and_the_next_one_whole() {
    let house = House::new(Brain::echo());
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("something long enough to be cut").await;
    let first = talk.until_started().await;
    talk.until_audio().await;
    talk.send(LiveCommand::CancelReply { reply: None }).await;
    talk.text("next").await;
    talk.send(LiveCommand::CancelReply { reply: Some(first.clone()) }).await;
    let events = talk.until_done().await;
    assert_eq!(outcome(&events), ReplyOutcome::Cancelled);
    let events = talk.until_done().await;
    assert_eq!(outcome(&events), ReplyOutcome::Completed);
    assert_eq!(said(&events), "You said next.");
    let stale =
        events.iter().any(|e| matches!(e, LiveEvent::Audio { reply, .. } if *reply == first));
    assert!(!stale);
    talk.send(LiveCommand::CancelReply { reply: None }).await;
    talk.text("idle cancel is nothing").await;
    assert_eq!(outcome(&talk.until_done().await), ReplyOutcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn new_instructions_and_tools_hold_from_the_next_generation() {
    let house = House::new(Brain::echo());
    let mut config = LiveConfig::new().instructions("Be brief.");
    config.refinement = Some("Be kind.".into());
    let mut talk = house.talk(config).await;
    talk.text("a").await;
    talk.answer().await;
    talk.send(LiveCommand::UpdateInstructions("Be long.".into())).await;
    let tools = vec![ToolDefinition::new("clock", "The time.")];
    talk.send(LiveCommand::UpdateTools(tools.clone().into())).await;
    talk.text("b").await;
    talk.answer().await;
    assert_eq!(house.brain.request(0).instructions.as_deref(), Some("Be brief.\n\nBe kind."));
    assert!(house.brain.request(0).tools.is_empty());
    assert_eq!(house.brain.request(1).instructions.as_deref(), Some("Be long.\n\nBe kind."));
    assert_eq!(*house.brain.request(1).tools, *tools);
}

#[tokio::test(start_paused = true)]
async fn the_conversation_goes_on_from_its_history() {
    let house = House::new(Brain::echo());
    let history = vec![
        HistoryItem::Message { role: HistoryRole::User, text: "I am Anna.".into() },
        HistoryItem::Message { role: HistoryRole::Agent, text: "Hello Anna.".into() },
    ];
    let request = ConnectRequest::resuming(Default::default(), None, history, 2);
    let connection = house.provider().connect(request).await.unwrap();
    let mut talk = Talk { connection, events: Default::default() };
    talk.text("Who am I?").await;
    talk.answer().await;
    assert_eq!(house.brain.latest(), ["I am Anna.", "Hello Anna.", "Who am I?"]);
}
