//! Anything at all from a server, in each dialect: no panic, no event out of nothing, no growth.

use std::time::Duration;

use antiphon_live::{Frame, LiveEvent};
use antiphon_openai::wire::{Dialect, ServerEvent};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{config, ready, with};

/// Keys that mean something somewhere, and others.
const KEYS: [&str; 24] = [
    "audio",
    "call_id",
    "content",
    "content_index",
    "delta",
    "error",
    "event_id",
    "id",
    "item",
    "item_id",
    "metadata",
    "name",
    "output",
    "output_index",
    "part",
    "previous_item_id",
    "response",
    "response_id",
    "session",
    "status",
    "text",
    "transcript",
    "usage",
    "zzz",
];

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9_+/=é\\\\\"]{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["r", "i", "c", "message", "function_call", "completed", "AAAA"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            any_object(inner).prop_map(Value::Object),
        ]
    })
}

fn any_object(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let key = prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
    prop::collection::btree_map(key, values, 0..8).prop_map(|map| map.into_iter().collect())
}

fn any_kind() -> impl Strategy<Value = String> {
    let known = ServerEvent::KINDS.iter().copied().chain([
        "ping",
        "warning",
        "response.audio.delta",
        "response.text.done",
        "response.cancelled",
        "session.finished",
    ]);
    let known: Vec<String> = known.map(str::to_owned).collect();
    prop_oneof![8 => prop::sample::select(known), 1 => "[a-z_.]{0,20}"]
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let event = (any_kind(), any_object(any_value())).prop_map(|(kind, mut event)| {
        event.insert("type".into(), kind.into());
        Value::Object(event).to_string()
    });
    let event = event.boxed();
    let cut = (event.clone(), any::<prop::sample::Index>())
        .prop_map(|(text, at)| text[..text.floor_char_boundary(at.index(text.len()))].to_owned());
    let text = prop_oneof![8 => event, 1 => cut, 1 => "\\PC{0,60}"];
    prop_oneof![
        20 => text.prop_map(|text| Frame::Text(text.into())),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Frame::Binary(bytes.into())),
        1 => Just(Frame::Ping(Vec::new().into())),
    ]
}

fn any_dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(Dialect::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_frames_are_survived(
        dialect in any_dialect(),
        frames in prop::collection::vec(any_frame(), 1..30),
    ) {
        let mut talk = ready(&config(dialect));
        for frame in frames {
            let silent = matches!(frame, Frame::Ping(_));
            let failed = talk.try_frame(frame).is_err();
            // An answer to one frame: a few events, and nothing for what says nothing.
            prop_assert!(talk.out.events.len() < 64);
            prop_assert!(!silent || talk.out.events.is_empty());
            talk.out.events.clear();
            talk.out.frames.clear();
            if failed {
                break;
            }
            talk.pass(Duration::from_millis(50));
            talk.out.events.clear();
        }
    }

    /// What is no event, or one that nobody knows, makes no reply, no voice, no words and no call.
    #[test]
    fn no_event_comes_out_of_nothing(
        dialect in any_dialect(),
        kind in "[a-z_]{1,12}\\.[a-z_]{1,12}",
        event in any_object(any_value()),
        garbage in "\\PC{0,60}",
        active: bool,
    ) {
        prop_assume!(!ServerEvent::KINDS.contains(&kind.as_str()));
        let mut event = event;
        event.insert("type".into(), kind.into());
        for text in [Value::Object(event).to_string(), garbage] {
            let known = ServerEvent::decode(&text);
            prop_assume!(!matches!(known, Ok(ref event) if ServerEvent::KINDS.contains(&event.kind())));
            let mut talk = ready(&config(dialect));
            if active {
                talk.created("r");
                talk.out.events.clear();
            }
            let _ = talk.try_frame(Frame::Text(text.into()));
            for event in &talk.out.events {
                let harmless = matches!(event, LiveEvent::Ignored { .. } | LiveEvent::Error(_));
                prop_assert!(harmless, "{event:?}");
            }
            prop_assert!(talk.out.frames.is_empty());
        }
    }

    /// Every event, in every dialect, comes through as what it was.
    #[test]
    fn a_dialects_words_mean_the_same(dialect in any_dialect(), frame in any_frame()) {
        let Frame::Text(text) = frame else { return Ok(()) };
        let Ok(event) = ServerEvent::decode(&text) else { return Ok(()) };
        let Some(told) = dialect.encode_server(&event) else { return Ok(()) };
        let again = ServerEvent::decode(&told);
        prop_assert!(again.is_ok(), "{told}");
        let _ = dialect.decode_client(&text);
    }
}

/// What a server goes on telling takes no memory: new items, replies, calls, transcripts, errors.
#[test]
fn nothing_grows() {
    for dialect in Dialect::ALL {
        let config = with(config(dialect), &[("transcription_model", json!("m"))]);
        let mut talk = ready(&config);
        let mut rounds = |from: u32, to: u32| {
            for n in from..to {
                let (reply, item, call) = (format!("r{n}"), format!("i{n}"), format!("c{n}"));
                talk.speech(true, &item);
                talk.speech(false, &item);
                talk.committed(&item, None);
                let kind = "conversation.item.input_audio_transcription";
                talk.server(json!({"type": format!("{kind}.delta"), "item_id": item,
                    "delta": "words "}));
                talk.server(json!({"type": format!("{kind}.updated"), "item_id": item,
                    "transcript": "words words"}));
                talk.created(&reply);
                talk.server(json!({"type": "response.output_audio_transcript.delta",
                    "response_id": reply, "item_id": item, "delta": "words "}));
                talk.voice(&reply, &item, 20);
                talk.call(&reply, &call);
                talk.output(&call);
                talk.error(Some("odd"), "Odd.", Some(&json!(format!("item-{n}"))));
                talk.server(json!({"type": "ping", "timestamp": n}));
                talk.server(json!({"type": "conversation.item.added", "item": {"type": "message",
                    "role": "user", "id": item, "content": []}}));
                talk.cancelled(&reply, "turn_detected");
                talk.out.events.clear();
                talk.out.frames.clear();
            }
        };
        rounds(0, 200);
        let info = allocation_counter::measure(|| rounds(200, 600));
        let grown = info.bytes_current;
        assert!(grown < 16 * 1024, "{dialect}: {grown} bytes");
    }
}
