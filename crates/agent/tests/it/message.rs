use antiphon_agent::{Message, Part, Role};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::object;

fn round_trip(message: Message, json: Value) {
    assert_eq!(serde_json::to_value(&message).unwrap(), json);
    assert_eq!(serde_json::from_value::<Message>(json).unwrap(), message);
}

#[test]
fn messages_have_the_runtimes_json() {
    round_trip(
        Message::text(Role::User, "Hello"),
        json!({"role": "user", "content": [{"text": "Hello"}]}),
    );
    round_trip(
        Message {
            role: Role::Model,
            content: vec![
                Part::Media {
                    url: "data:image/png;base64,AA==".into(),
                    content_type: Some("image/png".into()),
                },
                Part::Media { url: "https://example.com/a".into(), content_type: None },
                Part::ToolRequest {
                    name: "pay".into(),
                    id: Some("1".into()),
                    input: object(json!({"amount": 5})),
                },
            ],
            metadata: Some(object(json!({"kept": true}))),
        },
        json!({
            "role": "model",
            "content": [
                {"media": {"url": "data:image/png;base64,AA==", "contentType": "image/png"}},
                {"media": {"url": "https://example.com/a"}},
                {"toolRequest": {"name": "pay", "ref": "1", "input": {"amount": 5}}},
            ],
            "metadata": {"kept": true},
        }),
    );
    round_trip(
        Message {
            role: Role::Tool,
            content: vec![Part::ToolResponse {
                name: "pay".into(),
                id: None,
                output: object(json!({"paid": 5})),
            }],
            metadata: None,
        },
        json!({
            "role": "tool",
            "content": [{"toolResponse": {"name": "pay", "output": {"paid": 5}}}],
        }),
    );
}

#[test]
fn absent_input_and_output_are_empty() {
    let request: Part = serde_json::from_value(json!({"toolRequest": {"name": "now"}})).unwrap();
    assert_eq!(
        request,
        Part::ToolRequest { name: "now".into(), id: None, input: object(json!({})) }
    );
    let response: Part = serde_json::from_value(json!({"toolResponse": {"name": "now"}})).unwrap();
    assert_eq!(
        response,
        Part::ToolResponse { name: "now".into(), id: None, output: object(json!({})) }
    );
}

#[test]
fn what_is_no_message_is_refused() {
    for bad in [
        json!({}),
        json!({"role": "assistant", "content": []}),
        json!({"role": "User", "content": []}),
        json!({"role": "user"}),
        json!({"role": "user", "content": "Hello"}),
        json!({"role": "user", "content": [{}]}),
        json!({"role": "user", "content": [{"text": "a", "media": {"url": "b"}}]}),
        json!({"role": "user", "content": [{"sound": "a"}]}),
        json!({"role": "user", "content": [{"text": 1}]}),
        json!({"role": "model", "content": [{"toolRequest": {"input": {}}}]}),
    ] {
        assert!(serde_json::from_value::<Message>(bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn joined_text_skips_other_parts() {
    let mut message = Message::text(Role::User, "one ");
    message.content.push(Part::Media { url: "data:,".into(), content_type: None });
    message.content.push(Part::Text("two".into()));
    assert_eq!(message.joined_text(), "one two");
}

proptest! {
    #[test]
    fn any_message_survives(
        role in prop::sample::select(vec![Role::System, Role::User, Role::Model, Role::Tool]),
        texts in prop::collection::vec((".*", prop::option::of(".*"), 0..4u8), 0..6),
    ) {
        let content = texts
            .into_iter()
            .map(|(text, other, kind)| match kind {
                0 => Part::Text(text),
                1 => Part::Media { url: text, content_type: other },
                2 => Part::ToolRequest {
                    name: text.clone().into(),
                    id: other.map(Into::into),
                    input: object(json!({"text": text})),
                },
                _ => Part::ToolResponse {
                    name: text.clone().into(),
                    id: other.map(Into::into),
                    output: object(json!({ text: [null, 1.5] })),
                },
            })
            .collect();
        let message = Message { role, content, metadata: None };
        let text = serde_json::to_string(&message).unwrap();
        prop_assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }
}
