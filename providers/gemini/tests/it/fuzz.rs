//! Both halves against frames that are nearly right, and against long lives: no panic, no growth, no
//! event out of nothing.

use std::time::{Duration, Instant};

use antiphon_gemini::{
    Client,
    server::{Handles, Server},
};
use antiphon_live::{Frame, LiveConfig, LiveError, LiveEvent, Outbox, WireProtocol};
use proptest::prelude::*;
use serde_json::json;

use crate::wire::frames;

/// A change to a frame.
#[derive(Clone, Debug)]
enum Change {
    /// Another byte in its place.
    Byte(prop::sample::Index, u8),
    /// A piece is missing.
    Cut(prop::sample::Index, usize),
    /// A piece stands there twice.
    Double(prop::sample::Index, usize),
    /// From here on it is another frame.
    Splice(prop::sample::Index, prop::sample::Index),
    /// One of JSON's own characters is put in.
    Put(prop::sample::Index, char),
}

fn change() -> impl Strategy<Value = Change> {
    use prop::sample::Index;
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (any::<Index>(), 1_usize..20).prop_map(|(at, length)| Change::Cut(at, length)),
        (any::<Index>(), 1_usize..60).prop_map(|(at, length)| Change::Double(at, length)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, other)| Change::Splice(at, other)),
        (any::<Index>(), prop::sample::select(vec!['{', '}', '[', ']', '"', ',', ':', '0', '-']))
            .prop_map(|(at, char)| Change::Put(at, char)),
    ]
}

/// A frame of one side, mostly with a few changes.
fn frame(direction: char) -> impl Strategy<Value = Vec<u8>> {
    let known = frames(direction);
    let all = known.clone();
    (prop::sample::select(known), prop::collection::vec(change(), 0..4)).prop_map(
        move |(frame, changes)| {
            let mut bytes = frame.as_bytes().to_vec();
            for change in changes {
                apply(&mut bytes, change, &all);
            }
            bytes
        },
    )
}

fn apply(bytes: &mut Vec<u8>, change: Change, all: &[&'static str]) {
    if bytes.is_empty() {
        return;
    }
    match change {
        Change::Byte(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        Change::Cut(at, length) => {
            let at = at.index(bytes.len());
            bytes.drain(at..bytes.len().min(at + length));
        }
        Change::Double(at, length) => {
            let at = at.index(bytes.len());
            let piece = bytes[at..bytes.len().min(at + length)].to_vec();
            bytes.splice(at..at, piece);
        }
        Change::Splice(at, other) => {
            let other = all[other.index(all.len())].as_bytes();
            let at = at.index(bytes.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[at.min(other.len())..]);
        }
        Change::Put(at, char) => bytes.insert(at.index(bytes.len()), char as u8),
    }
}

/// A client whose session began.
fn client(out: &mut Outbox) -> (Client, Instant) {
    let mut client = Client::new(&LiveConfig::new(), None).unwrap();
    let now = Instant::now();
    client.opened(now, out).unwrap();
    client.frame(Frame::Text(r#"{"setupComplete":{}}"#.into()), now, out).unwrap();
    out.frames.clear();
    out.events.clear();
    (client, now)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_client_takes_any_frame_or_says_why_not(
        frames in prop::collection::vec((frame('←'), 0_u64..3_000), 1..30),
    ) {
        let mut out = Outbox::default();
        let (mut client, mut now) = client(&mut out);
        for (bytes, ms) in frames {
            let length = bytes.len();
            let taken = client.frame(Frame::Binary(bytes.into()), now, &mut out);
            // A few events for each thing that is in it, and an answer at most for each call.
            prop_assert!(out.events.len() <= length / 2 + 64, "{:?}", out.events);
            prop_assert!(out.frames.len() <= length / 2 + 1, "{:?}", out.frames);
            if let Err(error) = taken {
                prop_assert!(matches!(error, LiveError::Protocol(_)), "{}", error);
                return Ok(());
            }
            out.events.clear();
            out.frames.clear();
            now += Duration::from_millis(ms);
            if client.deadline().is_some_and(|at| at <= now) {
                client.timeout(now, &mut out).unwrap();
            }
            out.events.clear();
        }
        // It comes to rest, and then nothing comes out of nothing.
        for _ in 0..8 {
            let Some(at) = client.deadline() else { break };
            now = now.max(at);
            client.timeout(now, &mut out).unwrap();
        }
        out.events.clear();
        prop_assert_eq!(client.deadline(), None);
        client.timeout(now + Duration::from_secs(3_600), &mut out).unwrap();
        prop_assert!(out.events.is_empty() && out.frames.is_empty());
    }

    #[test]
    fn a_server_takes_any_frame_or_hangs_up_in_the_vendors_words(
        frames in prop::collection::vec(frame('→'), 1..20),
        set_up: bool,
    ) {
        let handles = Handles::<()>::new(Duration::from_secs(60));
        let mut server = Server::new(&handles);
        let now = Instant::now();
        if set_up {
            let setup = json!({"setup": {"model": "models/gemini-3.8-live"}}).to_string();
            server.frame(setup.as_bytes(), now).unwrap();
            let complete = server.setup_complete();
            server.message(&complete);
        }
        for bytes in frames {
            match server.frame(&bytes, now) {
                Ok(message) => {
                    // What it lets through is a message as it would be written.
                    let again = message.encode();
                    let decoded = antiphon_gemini::wire::ClientMessage::decode(again.as_bytes());
                    prop_assert_eq!(decoded.unwrap(), message);
                }
                Err(why) => {
                    prop_assert!([1007, 1008, 1011].contains(&why.code), "{}", why);
                    prop_assert!(!why.reason.is_empty());
                }
            }
            prop_assert!(handles.len() <= 1 && server.calls().is_empty());
        }
        server.closed(now);
        prop_assert!(handles.is_empty());
    }
}

#[test]
fn deep_and_wide_frames_are_survived() {
    let mut out = Outbox::default();
    let (mut client, now) = client(&mut out);
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(50_000), close.repeat(50_000));
    for text in [
        deep("[", "]"),
        deep(r#"{"serverContent":"#, "}"),
        format!(r#"{{"toolCall":{{"functionCalls":[{{"args":{}}}]}}}}"#, deep(r#"{"a":"#, "}")),
        format!(r#"{{"serverContent":{{"modelTurn":{{"parts":[{}]}}}}}}"#, "{},".repeat(50_000)),
    ] {
        client.frame(Frame::Text(text.into()), now, &mut out).unwrap();
        assert_eq!(out.events.len(), 1, "one error");
        assert!(matches!(out.events.pop_front(), Some(LiveEvent::Error(_))));
    }
    let calls = r#"{"id":"x","name":"f"},"#.repeat(20_000);
    let calls = calls.trim_end_matches(',');
    let text = format!(r#"{{"toolCall":{{"functionCalls":[{calls}]}}}}"#);
    client.frame(Frame::Text(text.into()), now, &mut out).unwrap();
    assert!(out.events.len() < 300, "{}", out.events.len());
}

#[test]
fn a_long_life_leaves_nothing_behind() {
    let mut out = Outbox::default();
    let (mut client, mut now) = client(&mut out);
    let mut round = |client: &mut Client, out: &mut Outbox, number: u64| {
        let call = |fields: serde_json::Value| json!({"toolCall": {"functionCalls": [fields]}});
        for message in [
            json!({"serverContent": {"inputTranscription": {"text": format!("words {number} ")}}}),
            json!({"serverContent": {"outputTranscription": {"text": format!("words {number} ")}}}),
            call(json!({"id": format!("c{number}"), "name": "f", "args": {"n": number}})),
            call(json!({"id": format!("p{number}"), "name": "f", "willContinue": true})),
            call(json!({"id": format!("p{number}"), "willContinue": true,
                "partialArgs": [{"jsonPath": "$.a", "stringValue": "x".repeat(100)}]})),
            json!({"toolCallCancellation": {"ids": [format!("c{number}"), format!("u{number}")]}}),
            json!({"sessionResumptionUpdate": {"newHandle": format!("h{number}"), "resumable": true}}),
            json!({"usageMetadata": {"promptTokenCount": number}}),
            json!({"serverContent": {"interrupted": number.is_multiple_of(3)}}),
            json!({"serverContent": {"turnComplete": number.is_multiple_of(2)}}),
        ] {
            let frame = Frame::Text(message.to_string().into());
            client.frame(frame, now, out).unwrap();
            out.events.clear();
            out.frames.clear();
        }
        now += Duration::from_millis(700);
        if client.deadline().is_some_and(|at| at <= now) {
            client.timeout(now, out).unwrap();
            out.events.clear();
        }
    };
    for number in 0..2_000 {
        round(&mut client, &mut out, number);
    }
    let grown = allocation_counter::measure(|| {
        for number in 2_000..6_000 {
            round(&mut client, &mut out, number);
        }
    });
    assert!(grown.bytes_current < 64 * 1024, "{} bytes more", grown.bytes_current);
}
