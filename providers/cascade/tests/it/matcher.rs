//! The phrase matcher: from what a recogniser writes to calls, questions and answers.

use std::{fs, path::Path, sync::Arc};

use antiphon_agent::{
    Message, Model, ModelChunk, ModelRequest, Part, Role,
    types::{JsonObject, ToolArguments, ToolDefinition, ToolSpeech},
};
use antiphon_cascade::{
    Alternative,
    offline::matcher::{PhraseError, PhraseMatcher},
};
use futures_util::StreamExt;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A conversation with the matcher.
struct Conversation {
    matcher: PhraseMatcher,
    tools: Arc<[ToolDefinition]>,
    messages: Vec<Arc<Message>>,
}

/// What it did.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    text: String,
    calls: Vec<(String, Value)>,
}

impl Conversation {
    fn new(tools: Vec<ToolDefinition>) -> Self {
        Self { matcher: PhraseMatcher::new(), tools: tools.into(), messages: Vec::new() }
    }

    async fn say(&mut self, text: &str) -> Said {
        self.messages.push(Arc::new(Message::text(Role::User, text)));
        self.step().await
    }

    /// The outputs of the calls of the last step, in order.
    async fn outputs(&mut self, outputs: &[Value]) -> Said {
        let asked = self.messages.last().unwrap().clone();
        let content = asked
            .tool_requests()
            .zip(outputs)
            .map(|((_, call), output)| {
                Part::tool_response(call.name.clone(), call.id.clone(), output.clone())
            })
            .collect();
        self.messages.push(Arc::new(Message::new(Role::Tool, content)));
        self.step().await
    }

    async fn step(&mut self) -> Said {
        let mut request = ModelRequest::new(self.messages.clone());
        request.tools = Arc::clone(&self.tools);
        let mut stream = self.matcher.generate(request).await.unwrap();
        let (mut said, mut content, mut kept) = (Said::default(), Vec::new(), None);
        while let Some(chunk) = stream.next().await {
            assert!(kept.is_none(), "a chunk after the end");
            match chunk.unwrap() {
                ModelChunk::Text(text) => {
                    said.text += &text;
                    content.push(Part::text(text));
                }
                ModelChunk::ToolCall(call) => {
                    let ToolArguments::Object(input) = call.arguments else { panic!("no object") };
                    said.calls.push((call.name.to_string(), Value::Object(input.clone())));
                    content.push(Part::tool_request(call.name, Some(call.id), input));
                }
                ModelChunk::Done { metadata, .. } => kept = Some(metadata),
                other => panic!("unexpected {other:?}"),
            }
        }
        let metadata = kept.expect("the end is told");
        self.messages.push(Arc::new(Message::new(Role::Model, content).with_metadata(metadata)));
        said
    }
}

fn tool(name: &str, schema: Value, phrases: &[&str]) -> ToolDefinition {
    with_speech(name, schema, ToolSpeech::phrases(phrases.iter().copied()))
}

fn with_speech(name: &str, schema: Value, speech: ToolSpeech) -> ToolDefinition {
    let mut tool = ToolDefinition::new(name, "");
    tool.input_schema = Some(Arc::new(schema));
    tool.speech = Some(Arc::new(speech));
    tool
}

/// The commands of `tests/data/commands.json`.
fn commands() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/commands.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn home_tools() -> Vec<ToolDefinition> {
    let commands = commands();
    let tools = commands["tools"].as_array().unwrap().iter().map(|tool| {
        let speech = json!({
            "phrases": tool["phrases"],
            "answer": tool["answer"],
            "questions": tool.get("questions").cloned().unwrap_or(json!({})),
        });
        with_speech(
            tool["name"].as_str().unwrap(),
            tool["parameters"].clone(),
            serde_json::from_value(speech).unwrap(),
        )
    });
    tools.collect()
}

fn expected(calls: &Value) -> Vec<(String, Value)> {
    let call = |call: &Value| (call["tool"].as_str().unwrap().to_owned(), call["args"].clone());
    calls.as_array().unwrap().iter().map(call).collect()
}

/// Numbers alike whether written whole or with a point.
fn same(a: &[(String, Value)], b: &[(String, Value)]) -> bool {
    let same_value = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    };
    let same_args = |a: &Value, b: &Value| {
        let (a, b) = (a.as_object().unwrap(), b.as_object().unwrap());
        a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same_value(v, w)))
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && same_args(&a.1, &b.1))
}

#[tokio::test]
async fn commands_are_understood_through_a_recognisers_errors() {
    let commands = commands();
    let near = commands["near"].as_array().unwrap();
    let (mut wrong, mut refused) = (Vec::new(), Vec::new());
    for case in near {
        let text = case["said"].as_str().unwrap();
        let said = Conversation::new(home_tools()).say(text).await;
        if said.calls.is_empty() {
            refused.push(format!("{text}: {}", said.text));
        } else if !same(&said.calls, &expected(&case["calls"])) {
            wrong.push(format!("{text}: {:?}", said.calls));
        }
    }
    let right = near.len() - wrong.len() - refused.len();
    println!("{right} of {} right\nrefused: {refused:#?}\nwrong: {wrong:#?}", near.len());
    assert!(near.len() >= 60 && right * 100 >= near.len() * 95);
    assert!(wrong.len() <= 1, "refusing is better than guessing");
}

#[tokio::test]
async fn unrelated_speech_calls_nothing() {
    let commands = commands();
    let unrelated = commands["unrelated"].as_array().unwrap();
    assert!(unrelated.len() >= 20);
    let mut accepted = Vec::new();
    for text in unrelated {
        let text = text.as_str().unwrap();
        let said = Conversation::new(home_tools()).say(text).await;
        // Not even a question for a missing slot.
        if !said.calls.is_empty() || said.text.ends_with('?') && !said.text.contains("example") {
            accepted.push((text, said));
        }
    }
    assert!(accepted.is_empty(), "{accepted:#?}");
}

#[tokio::test]
async fn what_is_missing_or_wrong_is_asked_for() {
    for case in commands()["asks"].as_array().unwrap() {
        let text = case["said"].as_str().unwrap();
        let said = Conversation::new(home_tools()).say(text).await;
        let start = case["reply"].as_str().unwrap();
        assert!(said.calls.is_empty() && said.text.starts_with(start), "{text}: {said:?}");
    }
}

#[tokio::test]
async fn a_question_is_answered_in_the_next_turn() {
    let mut conversation = Conversation::new(home_tools());
    assert_eq!(conversation.say("Set a timer.").await.text, "For how long?");
    let said = conversation.say("For five minutes, please.").await;
    assert_eq!(said.calls, [("set_timer".into(), json!({"duration": 300}))]);
    let said = conversation.outputs(&[json!({})]).await;
    assert_eq!(said.text, "Your timer is set for 5 minutes.");
}

#[tokio::test]
async fn two_missing_slots_are_two_questions() {
    let tools = vec![with_speech(
        "send",
        json!({"properties": {
            "who": {"type": "string", "x-slot": "name"},
            "amount": {"type": "number", "x-slot": "amount", "maximum": 100}},
            "required": ["who", "amount"]}),
        ToolSpeech::phrases(["send money [to {who}]"]).question("who", "To whom?"),
    )];
    let mut conversation = Conversation::new(tools);
    assert_eq!(conversation.say("Send money.").await.text, "To whom?");
    assert_eq!(conversation.say("To Charlie.").await.text, "How much?");
    let said = conversation.say("Two hundred euros").await;
    assert_eq!(said.text, "The amount must be at most 100. How much?");
    let said = conversation.say("twenty then").await;
    assert_eq!(said.calls, [("send".into(), json!({"who": "Charlie", "amount": 20}))]);
}

#[tokio::test]
async fn a_question_may_be_dropped_or_overtaken() {
    let mut conversation = Conversation::new(home_tools());
    conversation.say("Set a timer.").await;
    assert_eq!(conversation.say("Never mind.").await.text, "All right.");
    // It does not come back.
    assert!(conversation.say("Five minutes.").await.calls.is_empty());
    conversation.say("Set a timer.").await;
    let said = conversation.say("What time is it?").await;
    assert_eq!(said.calls, [("get_time".into(), json!({}))]);
    conversation.outputs(&[json!({"time": "noon"})]).await;
    conversation.say("Set a timer.").await;
    let said = conversation.say("Banana.").await;
    assert_eq!(said.text, "Sorry, I did not get that. For how long?");
    let said = conversation.say("Repeat that").await;
    assert_eq!(said.text, "For how long?");
}

#[tokio::test]
async fn a_question_is_not_asked_for_ever() {
    let mut conversation = Conversation::new(home_tools());
    conversation.say("Set a timer.").await;
    for _ in 0..2 {
        assert!(conversation.say("Banana.").await.text.ends_with("For how long?"));
    }
    assert!(conversation.say("Banana.").await.text.ends_with("Let us leave it then."));
    assert!(conversation.say("Five minutes.").await.calls.is_empty());
}

#[tokio::test]
async fn a_reminder_between_does_not_lose_the_question() {
    let mut conversation = Conversation::new(home_tools());
    conversation.say("Set a timer.").await;
    let reminder = Message::text(Role::Model, "Are you still there?");
    conversation.messages.push(Arc::new(reminder));
    let said = conversation.say("Ten minutes.").await;
    assert_eq!(said.calls, [("set_timer".into(), json!({"duration": 600}))]);
}

#[tokio::test]
async fn free_text_is_kept_as_it_was_said() {
    let note = with_speech(
        "note",
        json!({"properties": {"text": {"type": "string"}}, "required": ["text"]}),
        ToolSpeech::phrases(["take a note [that] {text}", "take a note"])
            .question("text", "What should I note?")
            .answer("Noted: {text}."),
    );
    let mut conversation = Conversation::new(vec![note]);
    let said = conversation.say("Take a note that Ms. O'Hara's train is at 7:30.").await;
    assert_eq!(said.calls[0].1, json!({"text": "Ms O'Hara's train is at 7:30"}));
    conversation.outputs(&[json!({})]).await;
    assert_eq!(conversation.say("Take a note.").await.text, "What should I note?");
    let said = conversation.say("Buy milk and don't forget the eggs").await;
    assert_eq!(said.calls[0].1, json!({"text": "Buy milk and don't forget the eggs"}));
    assert_eq!(
        conversation.outputs(&[json!({})]).await.text,
        "Noted: Buy milk and don't forget the eggs."
    );
}

#[tokio::test]
async fn several_results_are_several_sentences() {
    let mut conversation = Conversation::new(home_tools());
    let said = conversation.say("Set a timer for 5 minutes and tell me the time.").await;
    assert_eq!(said.calls.len(), 2);
    let said = conversation.outputs(&[json!({}), json!({"time": "half past nine"})]).await;
    assert_eq!(said.text, "Your timer is set for 5 minutes. It is half past nine.");
}

#[tokio::test]
async fn failures_are_said_in_plain_words() {
    for (error, text) in [
        ("tool call denied by host policy", "I am not allowed to do that."),
        ("the user did not confirm the tool call", "All right, I will not do it."),
        ("the tool timed out", "Sorry, that took too long."),
        ("no clock here", "Sorry, that did not work: no clock here."),
    ] {
        let mut conversation = Conversation::new(home_tools());
        conversation.say("What time is it?").await;
        assert_eq!(conversation.outputs(&[json!({"error": error})]).await.text, text);
    }
}

#[tokio::test]
async fn a_confirmation_before_the_result_is_not_heard_twice() {
    let mut conversation = Conversation::new(home_tools());
    conversation.say("Send five euros to Charlie.").await;
    let call = conversation.messages.last().unwrap().clone();
    let read_back = Message::text(Role::Model, "Send 5 euros to Charlie?");
    conversation.messages.push(Arc::new(read_back));
    conversation.messages.push(Arc::new(Message::text(Role::User, "Yes.")));
    let (_, call) = call.tool_requests().next().expect("a call");
    let output = json!({"sent": true});
    let content = vec![Part::tool_response(call.name.clone(), call.id.clone(), output)];
    conversation.messages.push(Arc::new(Message::new(Role::Tool, content)));
    let said = conversation.step().await;
    assert_eq!(said, Said { text: "5 euros sent to Charlie.".into(), calls: vec![] });
}

#[tokio::test]
async fn small_talk_is_short() {
    let mut conversation = Conversation::new(home_tools());
    assert_eq!(conversation.say("Hello!").await.text, "Hello. How can I help?");
    assert_eq!(conversation.say("Could you repeat that?").await.text, "Hello. How can I help?");
    assert_eq!(conversation.say("Thank you very much.").await.text, "You are welcome.");
    assert_eq!(conversation.say("Yes.").await.text, "All right.");
    assert!(conversation.say("What can you do?").await.text.contains("timer for 5 minutes"));
    assert_eq!(conversation.say("Goodbye.").await.text, "Goodbye.");
}

#[tokio::test]
async fn what_is_not_understood_is_said_so_in_different_words() {
    let mut conversation = Conversation::new(home_tools());
    let first = conversation.say("Play some music by Mozart.").await.text;
    let second = conversation.say("I said play Mozart.").await.text;
    let third = conversation.say("Mozart!").await.text;
    assert!(first.starts_with("Sorry, I did not understand") && first.contains("You can say"));
    assert!(first != second && second != third && first != third, "{first} {second} {third}");
    // Having understood starts it over.
    conversation.say("What time is it?").await;
    conversation.outputs(&[json!({"time": "noon"})]).await;
    assert!(conversation.say("Play Mozart.").await.text.starts_with("Sorry, I did not understand"));
    assert_eq!(
        Conversation::new(vec![]).say("Play.").await.text,
        "Sorry, I did not understand that."
    );
}

#[tokio::test]
async fn every_kind_of_slot_is_filled() {
    let schema = |property: Value| json!({"properties": {"v": property}, "required": ["v"]});
    for (property, said, value) in [
        (json!({"type": "integer"}), "set it to a hundred and twenty", json!(120)),
        (json!({"type": "number"}), "set it to minus two point five", json!(-2.5)),
        (json!({"type": "integer"}), "set it to the third", json!(3)),
        (json!({"type": "number", "x-slot": "duration"}), "set it to half an hour", json!(1800)),
        (json!({"type": "string", "format": "duration"}), "set it to 90 minutes", json!("PT1H30M")),
        (
            json!({"type": "string", "format": "time"}),
            "set it to half past seven pm",
            json!("19:30"),
        ),
        (json!({"type": "string", "x-slot": "time"}), "set it to 6:05 a.m.", json!("06:05")),
        (json!({"type": "number", "x-slot": "amount"}), "set it to $2.50", json!(2.5)),
        (json!({"type": "boolean"}), "set it to off", json!(false)),
        (json!({"enum": ["deep_blue", "red"]}), "set it to deep blue", json!("deep_blue")),
        (json!({"enum": ["mile", "kilometer"]}), "set it to kilometers", json!("kilometer")),
        (json!({"enum": ["c"], "x-synonyms": {"c": ["celsius"]}}), "set it to Celsius", json!("c")),
        (json!({"type": "string", "x-slot": "name"}), "set it to mary anne", json!("Mary Anne")),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            "set it to tea and cake",
            json!(["tea", "cake"]),
        ),
    ] {
        let tools = vec![tool("set", schema(property), &["set it to [the] {v}"])];
        let said_to = Conversation::new(tools).say(said).await;
        assert_eq!(
            said_to.calls,
            [("set".into(), json!({"v": value}))],
            "{said}: {}",
            said_to.text
        );
    }
}

#[tokio::test]
async fn a_tool_without_phrases_is_reached_by_its_name() {
    let mut conversation = Conversation::new(vec![ToolDefinition::new("read_notes", "")]);
    assert_eq!(conversation.say("Read notes").await.calls, [("read_notes".into(), json!({}))]);
}

#[tokio::test]
async fn two_tools_that_fit_alike_are_not_guessed_between() {
    let none = json!({});
    let tools = vec![tool("a", none.clone(), &["start it"]), tool("b", none, &["start it"])];
    assert!(Conversation::new(tools).say("Start it.").await.calls.is_empty());
}

#[test]
fn bad_phrases_are_told() {
    let check = |phrase: &str| PhraseMatcher::check(&tool("t", json!({}), &[phrase]));
    assert!(check("do [it|that]").is_ok());
    assert!(matches!(check("do {what}"), Err(PhraseError::UnknownSlot { .. })));
    assert!(matches!(check("do [it"), Err(PhraseError::Unbalanced { .. })));
}

#[tokio::test]
async fn fifty_tools_of_ten_phrases_are_told_apart() {
    const NOUNS: [&str; 50] = [
        "radio",
        "window",
        "curtain",
        "heater",
        "oven",
        "washer",
        "camera",
        "sprinkler",
        "garage",
        "fountain",
        "printer",
        "router",
        "speaker",
        "television",
        "projector",
        "alarm",
        "doorbell",
        "elevator",
        "fireplace",
        "freezer",
        "humidifier",
        "kettle",
        "lantern",
        "mirror",
        "mower",
        "piano",
        "pump",
        "robot",
        "sauna",
        "scale",
        "scooter",
        "shower",
        "stove",
        "toaster",
        "trunk",
        "vacuum",
        "ventilator",
        "wardrobe",
        "aquarium",
        "bicycle",
        "blender",
        "charger",
        "desk",
        "drone",
        "gate",
        "helmet",
        "incubator",
        "jukebox",
        "keyboard",
        "ladder",
    ];
    let tools: Vec<ToolDefinition> = NOUNS
        .iter()
        .map(|noun| {
            let verbs = ["start", "check", "clean", "show", "update", "reset", "test", "move"];
            let phrases: Vec<String> = verbs
                .iter()
                .map(|verb| format!("{verb} the {noun}"))
                .chain([format!("how is the {noun}"), format!("give the {noun} {{n}} coins")])
                .collect();
            let phrases: Vec<&str> = phrases.iter().map(String::as_str).collect();
            tool(noun, json!({"properties": {"n": {"type": "integer"}}}), &phrases)
        })
        .collect();
    let mut conversation = Conversation::new(tools);
    for noun in NOUNS {
        let said = conversation.say(&format!("Please check the {noun}s.")).await;
        assert_eq!(said.calls, [(noun.to_owned(), json!({}))], "{}", said.text);
        conversation.messages.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_words_are_survived_and_matched_the_same_again(
        text in r"\PC{0,60}|([a-z]{1,7} ){0,90}|(set|a|timer|for|[0-9:.,$%-]{1,9}|half|and|hour|past|to|euros| |\PC){0,20}"
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let first = Conversation::new(home_tools()).say(&text).await;
            let mut again = Conversation::new(home_tools());
            again.say("Set a timer.").await;
            again.say(&text).await;
            let second = Conversation::new(home_tools()).say(&text).await;
            assert_eq!(first, second);
        });
    }
}

/// What a recogniser gives for speech that it is not sure of.
fn unsure(text: &str, alternatives: &[(&str, f32)]) -> Arc<Message> {
    let listed = alternatives.iter().map(|(text, log_ratio)| Alternative::new(*text, *log_ratio));
    let listed = serde_json::to_value(listed.collect::<Vec<_>>()).unwrap();
    let mut message = Message::text(Role::User, text);
    message.metadata = Some(JsonObject::from_iter([(Alternative::METADATA.to_owned(), listed)]));
    Arc::new(message)
}

fn timer_tool() -> ToolDefinition {
    let schema = json!({
        "type": "object",
        "properties": {"duration": {"type": "number", "x-slot": "duration"}},
        "required": ["duration"],
    });
    tool("set_timer", schema, &["set a timer for {duration}", "set a timer"])
}

impl Conversation {
    async fn hear(&mut self, text: &str, alternatives: &[(&str, f32)]) -> Said {
        self.messages.push(unsure(text, alternatives));
        self.step().await
    }
}

fn timer_of(minutes: i64) -> Vec<(String, Value)> {
    vec![("set_timer".to_owned(), json!({"duration": minutes * 60}))]
}

#[tokio::test]
async fn the_reading_that_makes_sense_is_taken() {
    for (heard, alternatives, minutes) in [
        // Nothing of the kind was said, but this was nearly as likely.
        ("Set a time of horiate minutes.", &[("Set a timer for eight minutes.", -0.4)][..], 8),
        ("Savitimer for two minutes.", &[("Set a timer for two minutes.", -2.0)], 2),
        // Complete beats incomplete.
        (
            "Set a time or fourth weller minutes.",
            &[("Set a time or for twelve minutes.", -1.0)],
            12,
        ),
        // A number that is heard clearly stays.
        ("Set a timer for fifteen minutes.", &[("Set a timer for fifty minutes.", -1.5)], 15),
        // Two ways to write one number speak for each other.
        (
            "Set a timer for 13 minutes.",
            &[("Set a timer for 30 minutes.", -0.1), ("Set a timer for thirty minutes.", -0.1)],
            30,
        ),
    ] {
        let mut conversation = Conversation::new(vec![timer_tool()]);
        let said = conversation.hear(heard, alternatives).await;
        assert_eq!(said.calls, timer_of(minutes), "{heard}: {said:?}");
    }
}

#[tokio::test]
async fn a_doubtful_number_is_asked_for_once() {
    let fifties = [("Set a timer for fifty minutes.", -0.1)];
    for (answer, minutes) in [
        ("Fifty minutes.", 50),
        ("fifty", 50),
        ("fifteen", 15),
        ("the second one", 50),
        ("no, twelve minutes", 12),
    ] {
        let mut conversation = Conversation::new(vec![timer_tool()]);
        let said = conversation.hear("Set a timer for fifteen minutes.", &fifties).await;
        assert_eq!(said.text, "Did you say 15 minutes, or 50 minutes?");
        assert!(said.calls.is_empty());
        let said = conversation.say(answer).await;
        assert_eq!(said.calls, timer_of(minutes), "{answer}: {said:?}");
    }
    // The answer is as doubtful, but nobody is asked the same for ever.
    let mut conversation = Conversation::new(vec![timer_tool()]);
    conversation.hear("Set a timer for fifteen minutes.", &fifties).await;
    let said = conversation.hear("Fifty minutes.", &[("Fifteen minutes.", -0.05)]).await;
    assert_eq!(said.calls, timer_of(50));
}

#[tokio::test]
async fn other_readings_do_not_make_sense_of_unrelated_speech() {
    let mut conversation = Conversation::new(home_tools());
    let said = conversation
        .hear("The old mill stood by the river.", &[("The old mail stood by the river.", -0.3)])
        .await;
    assert!(said.calls.is_empty() && said.text.starts_with("Sorry"), "{said:?}");
}

#[tokio::test]
async fn a_piece_of_a_number_is_not_the_number() {
    let mut conversation = Conversation::new(vec![timer_tool()]);
    let said = conversation.say("Set a time or fourth-wenty one minutes.").await;
    assert!(said.calls.is_empty(), "{said:?}");
    let said = conversation.say("Set a timer for 15-1 minutes.").await;
    assert_eq!(said.calls, timer_of(51));
}

#[tokio::test]
async fn a_beginning_that_melted_is_known_again() {
    let mut conversation = Conversation::new(vec![timer_tool()]);
    let said = conversation.say("Sabbatimer for twenty four minutes.").await;
    assert_eq!(said.calls, timer_of(24));
    let said = conversation.say("Sabotage for twenty four minutes.").await;
    assert!(said.calls.is_empty(), "{said:?}");
}

#[tokio::test]
async fn what_holds_no_word_is_answered_unless_it_is_nothing() {
    let mut conversation = Conversation::new(home_tools());
    assert!(conversation.say("\u{1f600}\u{1f44d}").await.text.starts_with("Sorry"));
    assert_eq!(conversation.say("... !?").await, Said::default());
}

#[tokio::test]
async fn suggestions_read_well() {
    let schema = |text: Value| json!({"type": "object", "properties": {"text": text}});
    for (text, phrases, suggested) in [
        (
            json!({"type": "string", "examples": ["buy milk"]}),
            &["take a note {text}"][..],
            "take a note buy milk",
        ),
        (json!({"type": "string"}), &["take a note {text}", "take a note"], "take a note."),
    ] {
        let notes = tool("add_note", schema(text), phrases);
        let mut conversation = Conversation::new(vec![notes]);
        let said = conversation.say("The old mill stood by the river.").await;
        assert!(said.text.contains(suggested), "{said:?}");
    }
}
