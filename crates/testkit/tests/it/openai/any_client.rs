//! Whatever a client does, the server keeps the protocol.

use std::{collections::HashSet, time::Duration};

use antiphon_testkit::{
    openai::{Reply, Rule, Script},
    tone,
};
use futures_util::stream::SplitSink;
use proptest::prelude::*;
use tokio::{sync::mpsc, time::timeout};

use super::*;

type Sink = SplitSink<WebSocketStream<Box<dyn Transport>>, Message>;

#[derive(Clone, Debug)]
enum Deed {
    Say(&'static str),
    Ask { aside: bool },
    Cancel,
    Speak(u32),
    Silence(usize),
    Commit,
    Clear,
    Truncate(u64),
    Delete,
    Update { manual: bool },
    Output,
    Wait(u64),
    Nonsense(String),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        prop::sample::select(&["Hello", "call", "story", "fail", "nothing"][..])
            .prop_map(Deed::Say),
        any::<bool>().prop_map(|aside| Deed::Ask { aside }),
        Just(Deed::Cancel),
        (10_u32..600).prop_map(Deed::Speak),
        (10_usize..600).prop_map(Deed::Silence),
        Just(Deed::Commit),
        Just(Deed::Clear),
        (0_u64..3_000).prop_map(Deed::Truncate),
        Just(Deed::Delete),
        any::<bool>().prop_map(|manual| Deed::Update { manual }),
        Just(Deed::Output),
        (1_u64..2_000).prop_map(Deed::Wait),
        ".{0,40}".prop_map(Deed::Nonsense),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_response_ends_once_and_every_item_is_announced(
        deeds in proptest::collection::vec(deed(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(deeds));
    }
}

async fn run(deeds: Vec<Deed>) {
    let script = Script::auto()
        .reply(Rule::on_text("call", Reply::text("One moment.").and_call("f", json!({}))))
        .reply(Rule::on_text("story", Reply::spoken("Once upon a time.", 4_000)))
        .reply(Rule::on_text("fail", Reply::failed("server_error", "no")))
        .reply(Rule::on_text("nothing", Reply::default()));
    let server = Server::new(script);
    let (mut sink, mut stream) = Client::greeted(&server).await.0.socket.split();
    // It reads whatever it does: a client that only writes would wait for a server that does.
    let (inbox, mut messages) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = stream.next().await {
            let _ = inbox.send(message.unwrap());
        }
    });
    let mut seen = Seen::default();
    for deed in deeds {
        perform(&mut sink, &seen, deed).await;
        while let Ok(message) = messages.try_recv() {
            seen.take(message);
        }
    }
    // All that runs comes to its end.
    while let Ok(message) = timeout(Duration::from_secs(20), messages.recv()).await {
        seen.take(message.unwrap());
    }
    assert!(seen.running.is_empty(), "{:?} never ended", seen.running);
    let alive = json!({"type": "session.update", "session": {"type": "realtime"}});
    sink.send(Message::text(alive.to_string())).await.unwrap();
    let answer = messages.recv().await.unwrap().into_text().unwrap();
    assert!(answer.contains("session.updated"), "{answer}");
}

async fn perform(sink: &mut Sink, seen: &Seen, deed: Deed) {
    let event = match deed {
        Deed::Say(text) => json!({"type": "conversation.item.create", "item": {
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}}),
        Deed::Ask { aside: true } => {
            json!({"type": "response.create", "response": {"conversation": "none", "input": []}})
        }
        Deed::Ask { aside: false } => json!({"type": "response.create"}),
        Deed::Cancel => json!({"type": "response.cancel"}),
        Deed::Speak(ms) => append(&tone(24_000, 200.0, ms).data),
        Deed::Silence(ms) => append(&vec![0; ms * 48]),
        Deed::Commit => json!({"type": "input_audio_buffer.commit"}),
        Deed::Clear => json!({"type": "input_audio_buffer.clear"}),
        Deed::Truncate(ms) => json!({"type": "conversation.item.truncate",
            "item_id": seen.last_item, "content_index": 0, "audio_end_ms": ms}),
        Deed::Delete => json!({"type": "conversation.item.delete", "item_id": seen.last_item}),
        Deed::Update { manual } => {
            let turns = if manual { Value::Null } else { json!({"type": "server_vad"}) };
            let input = json!({"turn_detection": turns, "transcription": {"model": "whisper-1"}});
            json!({"type": "session.update",
                "session": {"type": "realtime", "audio": {"input": input}}})
        }
        Deed::Output => json!({"type": "conversation.item.create", "item": {
            "type": "function_call_output", "call_id": seen.last_call, "output": "1"}}),
        Deed::Wait(ms) => return tokio::time::sleep(Duration::from_millis(ms)).await,
        Deed::Nonsense(text) => {
            sink.send(Message::text(text)).await.unwrap();
            return;
        }
    };
    sink.send(Message::text(event.to_string())).await.unwrap();
}

fn append(audio: &[u8]) -> Value {
    let audio = base64_simd::STANDARD.encode_to_string(audio);
    json!({"type": "input_audio_buffer.append", "audio": audio})
}

/// What the server has said, held to the protocol.
#[derive(Default)]
struct Seen {
    events: HashSet<String>,
    items: HashSet<String>,
    running: HashSet<String>,
    over: HashSet<String>,
    in_conversation: Option<String>,
    last_item: String,
    last_call: String,
}

impl Seen {
    fn take(&mut self, message: Message) {
        let Message::Text(text) = message else { panic!("{message:?}") };
        let event: Value = serde_json::from_str(&text).unwrap();
        let id = event["event_id"].as_str().unwrap().to_owned();
        assert!(self.events.insert(id), "an event's id twice: {event}");
        let kind = event["type"].as_str().unwrap();
        let name = |value: &Value| value.as_str().unwrap().to_owned();
        match kind {
            "response.created" => {
                let response = name(&event["response"]["id"]);
                assert!(!self.over.contains(&response) && self.running.insert(response.clone()));
                if event["response"]["conversation_id"].is_string() {
                    assert_eq!(self.in_conversation.replace(response), None, "two at a time");
                }
            }
            "response.done" => {
                let response = name(&event["response"]["id"]);
                assert!(self.running.remove(&response), "{event}");
                if self.in_conversation.as_ref() == Some(&response) {
                    self.in_conversation = None;
                }
                for item in event["response"]["output"].as_array().unwrap() {
                    assert!(self.items.contains(item["id"].as_str().unwrap()), "{event}");
                }
                self.over.insert(response);
            }
            _ if kind.starts_with("response.") => {
                assert!(self.running.contains(event["response_id"].as_str().unwrap()), "{event}");
                if kind == "response.output_item.added" {
                    self.last_item = name(&event["item"]["id"]);
                    self.items.insert(self.last_item.clone());
                    if let Some(call) = event["item"]["call_id"].as_str() {
                        self.last_call = call.to_owned();
                    }
                } else if let Some(item) = event["item_id"].as_str() {
                    assert!(self.items.contains(item), "{event}");
                }
            }
            _ => {}
        }
    }
}
