use std::sync::Arc;

use antiphon_agent::{
    Message, Messages, ModelResponseChunk, Part, PartKind, Role,
    message::{ToolRequest, ToolResponse},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::object;

fn round_trip(message: Message, json: Value) {
    assert_eq!(serde_json::to_value(&message).unwrap(), json);
    assert_eq!(serde_json::from_value::<Message>(json).unwrap(), message);
}

#[test]
fn messages_have_the_json_of_genkit() {
    round_trip(
        Message::text(Role::User, "Hello"),
        json!({"role": "user", "content": [{"text": "Hello"}]}),
    );
    let mut partial = ToolRequest::new("pay", None, json!([1]));
    partial.partial = Some(true);
    round_trip(
        Message::new(
            Role::Model,
            vec![
                Part::reasoning("hm"),
                Part::media("data:image/png;base64,AA==", Some("image/png".into())),
                Part::media("https://example.com/a", None),
                Part::tool_request("pay", Some("1".into()), json!({"amount": 5}))
                    .with_metadata_entry("interrupt", true),
                Part::new(PartKind::ToolRequest(partial)),
                Part::data(Value::Null),
                Part::new(PartKind::Custom(object(json!({"signature": "x"})))),
            ],
        )
        .with_metadata(Some(object(json!({"kept": true})))),
        json!({
            "role": "model",
            "content": [
                {"reasoning": "hm"},
                {"media": {"url": "data:image/png;base64,AA==", "contentType": "image/png"}},
                {"media": {"url": "https://example.com/a"}},
                {
                    "toolRequest": {"name": "pay", "ref": "1", "input": {"amount": 5}},
                    "metadata": {"interrupt": true},
                },
                {"toolRequest": {"name": "pay", "input": [1], "partial": true}},
                {"data": null},
                {"custom": {"signature": "x"}},
            ],
            "metadata": {"kept": true},
        }),
    );
    let mut response = ToolResponse::new("pay", None, json!("paid"));
    response.content = Some(vec![Part::media("data:,", None)]);
    round_trip(
        Message::new(Role::Tool, vec![Part::new(PartKind::ToolResponse(response))]),
        json!({
            "role": "tool",
            "content": [{"toolResponse": {
                "name": "pay",
                "output": "paid",
                "content": [{"media": {"url": "data:,"}}],
            }}],
        }),
    );
}

#[test]
fn what_is_not_known_survives() {
    let json = json!({
        "role": "model",
        "content": [
            {"text": "a", "mood": 1},
            {"hologram": {"depth": 3}, "metadata": {"a": null}},
            {"media": {"url": "u", "width": 5}},
            {"toolRequest": {"name": "n", "input": null, "priority": [1]}},
            {"toolResponse": {"name": "n", "output": null, "took": 0.5}},
            {"resource": {"uri": "r", "etag": "e"}},
        ],
        "id": "m1",
        "cost": {"cents": 1},
    });
    let message: Message = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&message).unwrap(), json);
    assert_eq!(message.content[1].kind, PartKind::Unknown);

    let json = json!({"content": [{"text": "a"}], "index": 2, "role": "model", "logprobs": []});
    let chunk: ModelResponseChunk = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(chunk.text(), "a");
    assert_eq!(serde_json::to_value(&chunk).unwrap(), json);
}

#[test]
fn null_is_absent_but_for_data_input_and_output() {
    let part: Part = serde_json::from_value(json!({"text": "a", "media": null})).unwrap();
    assert_eq!(part, Part::text("a"));
    let message: Message =
        serde_json::from_value(json!({"role": "user", "content": [], "metadata": null})).unwrap();
    assert_eq!(message, Message::new(Role::User, vec![]));
}

#[test]
fn what_is_no_message_is_refused() {
    for bad in [
        json!({}),
        json!([]),
        json!({"role": "assistant", "content": []}),
        json!({"role": "User", "content": []}),
        json!({"role": "user"}),
        json!({"role": "user", "content": "Hello"}),
        json!({"role": "user", "content": [{}]}),
        json!({"role": "user", "content": [{"metadata": {}}]}),
        json!({"role": "user", "content": [{"text": "a", "media": {"url": "b"}}]}),
        json!({"role": "user", "content": [{"text": 1}]}),
        json!({"role": "model", "content": [{"toolRequest": {"input": {}}}]}),
    ] {
        assert!(serde_json::from_value::<Message>(bad.clone()).is_err(), "{bad}");
    }
    let twice = r#"{"role": "user", "content": [], "role": "model"}"#;
    assert!(serde_json::from_str::<Message>(twice).is_err());
    let twice = r#"{"role": "user", "content": [{"text": "a", "text": "b"}]}"#;
    assert!(serde_json::from_str::<Message>(twice).is_err());
}

#[test]
fn joined_text_skips_other_parts() {
    let mut message = Message::text(Role::User, "one ");
    message.content.push(Part::media("data:,", None));
    message.content.push(Part::text("two"));
    assert_eq!(message.joined_text(), "one two");
}

#[test]
fn interrupts_and_partial_responses_are_told_apart() {
    let call = || Part::tool_request("pay", None, json!({}));
    let chunk = ModelResponseChunk::new(
        Role::Tool,
        0,
        vec![
            call(),
            call().with_metadata_entry("interrupt", json!({"reason": "large"})),
            call().with_metadata_entry("interrupt", false),
            Part::tool_response("pay", None, 1).with_metadata_entry("interrupt", true),
            Part::partial_tool_response(ToolResponse::new("pay", None, json!({"done": 50}))),
        ],
    );
    assert_eq!(chunk.interrupts().collect::<Vec<_>>(), [&chunk.content[1]]);
    let partial: Vec<_> = chunk.tool_responses().map(Part::is_partial).collect();
    assert_eq!(partial, [false, true]);
    let json = serde_json::to_value(&chunk.content[4]).unwrap();
    assert_eq!(json["metadata"], json!({"partial": true}));
}

fn any_part() -> impl Strategy<Value = Part> {
    (".*", prop::option::of(".*"), 0..5u8, any::<bool>()).prop_map(|(text, other, kind, marked)| {
        let id = other.clone().map(Into::into);
        let part = match kind {
            0 => Part::text(text),
            1 => Part::media(text, other),
            2 => Part::tool_request(text.clone(), id, json!({"text": text})),
            3 => Part::tool_response(text.clone(), id, json!({ text: [null, 1.5] })),
            _ => Part::data(other),
        };
        if marked { part.with_metadata_entry("marked", 1) } else { part }
    })
}

/// What is done to a list of messages.
#[derive(Clone, Debug)]
enum Step {
    Push,
    Pop,
    Truncate(prop::sample::Index),
    Replace(prop::sample::Index),
    /// Goes on with an earlier state, in which the next list is made.
    Fork(prop::sample::Index),
}

fn any_step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        40 => Just(Step::Push),
        2 => Just(Step::Pop),
        1 => any::<Index>().prop_map(Step::Truncate),
        1 => any::<Index>().prop_map(Step::Replace),
        2 => any::<Index>().prop_map(Step::Fork),
    ]
}

proptest! {
    #[test]
    fn any_message_survives(
        role in prop::sample::select(vec![Role::System, Role::User, Role::Model, Role::Tool]),
        content in prop::collection::vec(any_part(), 0..6),
    ) {
        let message = Message::new(role, content);
        let text = serde_json::to_string(&message).unwrap();
        prop_assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }

    #[test]
    fn a_list_is_what_a_plain_vector_is(steps in prop::collection::vec(any_step(), 0..400)) {
        let mut states = vec![(Messages::new(), Vec::<Arc<Message>>::new())];
        let (mut list, mut plain) = states[0].clone();
        for (number, step) in steps.into_iter().enumerate() {
            let message = Arc::new(Message::user(number.to_string()));
            match step {
                Step::Push => {
                    list.push(message.clone());
                    plain.push(message);
                }
                Step::Pop => prop_assert_eq!(list.pop(), plain.pop()),
                Step::Truncate(at) => {
                    let len = at.index(plain.len() + 2);
                    list.truncate(len);
                    plain.truncate(len);
                }
                Step::Replace(at) => {
                    let at = at.index(plain.len() + 1);
                    prop_assert_eq!(list.replace(at, message.clone()), at < plain.len());
                    if let Some(place) = plain.get_mut(at) {
                        *place = message;
                    }
                }
                Step::Fork(at) => {
                    states.push((list.clone(), plain.clone()));
                    (list, plain) = states[at.index(states.len())].clone();
                }
            }
        }
        states.push((list.clone(), plain.clone()));
        for (earlier, plain_earlier) in &states {
            prop_assert_eq!(earlier.len(), plain_earlier.len());
            prop_assert_eq!(earlier.is_empty(), plain_earlier.is_empty());
            prop_assert!(earlier.iter().eq(plain_earlier));
            prop_assert!(earlier.iter_back().eq(plain_earlier.iter().rev()));
            prop_assert_eq!(earlier.last(), plain_earlier.last());
            prop_assert_eq!(earlier.iter().len(), plain_earlier.len());
            let middle = plain_earlier.len() / 2;
            prop_assert_eq!(earlier.get(middle), plain_earlier.get(middle));
            prop_assert!(earlier.range(middle).eq(&plain_earlier[middle..]));
            let same = plain_earlier.iter().zip(&plain).take_while(|(a, b)| Arc::ptr_eq(a, b));
            prop_assert_eq!(list.shared_prefix(earlier), same.count());
            prop_assert_eq!(&list == earlier, plain == *plain_earlier);
        }
        let json = serde_json::to_value(&list).unwrap();
        prop_assert_eq!(&json, &serde_json::to_value(&plain).unwrap());
        prop_assert_eq!(serde_json::from_value::<Messages>(json).unwrap(), list);
    }
}

#[test]
fn a_very_long_list_can_be_dropped_on_a_small_stack() {
    let message = Arc::new(Message::user("a"));
    let list: Messages = (0..1_000_000).map(|_| message.clone()).collect();
    let thread = std::thread::Builder::new().stack_size(64 * 1024);
    thread.spawn(move || drop(list)).unwrap().join().unwrap();
}
