//! The scripted Gemini server, talked to by a bare WebSocket client.

use antiphon_live::{Connector, Transport};
use antiphon_testkit::gemini::{Reply, Rule, Script, Server};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message},
};

const OLD: &str = "models/gemini-2.5-flash-native-audio";
const NEW: &str = "models/gemini-3.8-live";

/// A client of few words.
struct Client {
    socket: WebSocketStream<Box<dyn Transport>>,
}

impl Client {
    async fn try_connect(server: &Server, path: &str) -> Result<Self, Error> {
        let transport = server.connector().connect("").await?;
        let url = format!("ws://localhost{path}");
        Ok(Self { socket: client_async(url, transport).await?.0 })
    }

    async fn connect(server: &Server) -> Self {
        // Two slashes, as the vendor's own client for JavaScript has it.
        let path = "//ws/google.ai.generativelanguage.v1beta.GenerativeService.\
                    BidiGenerateContent?key=k";
        Self::try_connect(server, path).await.unwrap()
    }

    /// A client whose session began.
    async fn ready(server: &Server, setup: Value) -> Self {
        let mut client = Self::connect(server).await;
        client.send(json!({ "setup": setup })).await;
        assert_eq!(client.next().await, json!({"setupComplete": {}}));
        client
    }

    async fn send(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        match self.socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => serde_json::from_slice(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// All messages up to the next that holds this key at its top or in its content.
    async fn until(&mut self, key: &str) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.next().await;
            let found = message.get(key).is_some() || message["serverContent"].get(key).is_some();
            messages.push(message);
            if found {
                return messages;
            }
        }
    }

    /// The server's close, whatever it says before.
    async fn close(&mut self) -> (u16, String) {
        loop {
            match self.socket.next().await.unwrap() {
                Ok(Message::Close(Some(close))) => {
                    return (close.code.into(), close.reason.to_string());
                }
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The newest handle, which comes with the end of a turn.
    async fn handle(&mut self) -> String {
        loop {
            let update = &self.next().await["sessionResumptionUpdate"];
            if update["resumable"] == true {
                return update["newHandle"].as_str().unwrap().to_owned();
            }
        }
    }

    async fn say(&mut self, text: &str) {
        let turns = json!([{"role": "user", "parts": [{"text": text}]}]);
        self.send(json!({"clientContent": {"turns": turns, "turnComplete": true}})).await;
    }
}

fn auto() -> Server {
    Server::new(Script::auto())
}

/// The close with which a message is answered once a session of this set-up began.
async fn hung_up(setup: Value, message: Value) -> (u16, String) {
    let mut client = Client::ready(&auto(), setup).await;
    client.send(message).await;
    client.close().await
}

#[tokio::test(start_paused = true)]
async fn a_set_up_that_makes_no_sense_is_hung_up_on() {
    for (setup, code, why) in [
        (json!({"model": OLD, "voice": "Puck"}), 1007, "Unknown name \"voice\" at 'setup'"),
        (
            json!({"model": OLD, "generation_config": {"speechConfig": {"pitch": 1}}}),
            1007,
            "Unknown name \"pitch\" at 'setup.generationConfig.speechConfig'",
        ),
        (json!({"model": "gemini"}), 1008, "not found"),
        (json!({"model": OLD, "generationConfig": {"responseModalities": []}}), 1007, "invalid"),
        (json!({"model": OLD, "generationConfig": {"responseLogprobs": true}}), 1007, "invalid"),
        (json!({"model": OLD, "sessionResumption": {"transparent": true}}), 1007, "invalid"),
        (json!({"model": NEW, "proactivity": {"proactiveAudio": false}}), 1007, "invalid"),
        (
            json!({"model": NEW, "generationConfig": {"enableAffectiveDialog": true}}),
            1007,
            "invalid",
        ),
    ] {
        let mut client = Client::connect(&auto()).await;
        client.send(json!({ "setup": setup })).await;
        let (closed, reason) = client.close().await;
        assert_eq!(closed, code, "{setup}: {reason}");
        assert!(reason.contains(why), "{setup}: {reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_before_the_set_up_is_complete_and_none_after_it() {
    let audio = json!({"realtimeInput": {"audio": {"mimeType": "audio/pcm", "data": "AAAA"}}});
    let mut client = Client::connect(&auto()).await;
    client.send(audio.clone()).await;
    assert_eq!(client.close().await.0, 1007);
    let mut client = Client::connect(&auto()).await;
    client.send(json!({"setup": {"model": OLD}})).await;
    client.send(audio).await;
    assert_eq!(client.close().await.0, 1007, "it was not complete");
    let second = json!({"setup": {"model": OLD}});
    assert_eq!(hung_up(json!({"model": OLD}), second).await.0, 1007);
}

#[tokio::test(start_paused = true)]
async fn what_the_vendor_hangs_up_on_in_a_session() {
    let plain = || json!({"model": OLD});
    let newest = || json!({"model": NEW});
    let by_hand = json!({"model": OLD,
        "realtimeInputConfig": {"automaticActivityDetection": {"disabled": true}}});
    let response = |response: Value| json!({"toolResponse": {"functionResponses": [response]}});
    for (setup, message, code) in [
        (plain(), json!({"realtimeInput": {"activityStart": {}}}), 1007),
        (by_hand, json!({"realtimeInput": {"audioStreamEnd": true}}), 1007),
        (newest(), json!({"realtimeInput": {"mediaChunks": []}}), 1007),
        (plain(), json!({"realtimeInput": {"audio": {"mimeType": "image/png"}}}), 1007),
        (plain(), json!({"contextUpdate": {"tools": {"tools": []}}}), 1007),
        (plain(), json!({"clientContent": {"turnComplete": true, "mood": "good"}}), 1007),
        (plain(), response(json!({"id": "c", "name": "f", "response": "sunny"})), 1007),
        (plain(), response(json!({"name": "f", "response": {}})), 1007),
        (plain(), response(json!({"id": "unknown", "name": "f", "response": {}})), 1008),
        (plain(), json!({"hologram": {}}), 1007),
        (plain(), json!([]), 1007),
    ] {
        let (closed, reason) = hung_up(setup, message.clone()).await;
        assert_eq!(closed, code, "{message}: {reason}");
    }
    // History that was announced comes before anything else.
    let announced = json!({"model": NEW, "historyConfig": {"initialHistoryInClientContent": true}});
    let audio = json!({"realtimeInput": {"audio": {"mimeType": "audio/pcm", "data": "AAAA"}}});
    assert_eq!(hung_up(announced, audio).await.0, 1007);
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_good_once_its_socket_is_closed_and_only_the_newest() {
    let server = auto();
    let setup =
        |handle: Option<&str>| json!({"model": OLD, "sessionResumption": {"handle": handle}});
    let mut first = Client::ready(&server, setup(None)).await;
    let old = first.handle().await;
    first.say("one").await;
    first.until("turnComplete").await;
    let newest = first.handle().await;
    for (handle, code) in [(&newest, 1011), (&old, 1008), (&"made-up".to_owned(), 1008)] {
        let mut client = Client::connect(&server).await;
        client.send(json!({"setup": setup(Some(handle))})).await;
        assert_eq!(client.close().await.0, code, "{handle}");
    }
    first.socket.close(None).await.unwrap();
    while first.socket.next().await.is_some() {}
    Client::ready(&server, setup(Some(&newest))).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_has_all_its_parts_in_the_order_of_its_generation() {
    for (model, parts) in [(OLD, 1), (NEW, 2)] {
        let setup = json!({"model": model, "output_audio_transcription": {}});
        let mut client = Client::ready(&auto(), setup).await;
        client.say("hello").await;
        let messages = client.until("turnComplete").await;
        let of = |key: &'static str| {
            messages.iter().filter(move |m| m["serverContent"].get(key).is_some())
        };
        let voice = of("modelTurn").next().unwrap();
        let voice = voice["serverContent"]["modelTurn"]["parts"].as_array().unwrap();
        assert_eq!(voice.len(), parts, "{model}");
        let words: String = of("outputTranscription")
            .filter_map(|m| m["serverContent"]["outputTranscription"]["text"].as_str())
            .collect();
        assert_eq!(words, "You said: hello");
        assert_eq!(of("generationComplete").count(), 1);
        let last = messages.last().unwrap();
        assert!(last["usageMetadata"]["totalTokenCount"].as_u64() > Some(0), "{last}");
        assert_eq!(last["serverContent"]["interactionStatus"] == "IDLE", model == NEW);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_the_end_of_a_turn_only_for_older_models() {
    let script = || {
        Script::auto()
            .reply(Rule::on_text("work", Reply::call("clock", json!({}))))
            .reply(Rule::on_tool_output("clock", Reply::text("Noon.")))
    };
    for (model, ends) in [(OLD, true), (NEW, false)] {
        let tools = json!([{"functionDeclarations": [{"name": "clock", "behavior": "BLOCKING"}]}]);
        let server = Server::new(script());
        let mut client = Client::ready(&server, json!({"model": model, "tools": tools})).await;
        client.say("work").await;
        let messages = client.until("toolCall").await;
        let id = &messages.last().unwrap()["toolCall"]["functionCalls"][0]["id"];
        let response = json!({"id": id, "name": "clock", "response": {"time": "12:00"}});
        if ends {
            client.until("turnComplete").await;
        }
        client.send(json!({"toolResponse": {"functionResponses": [response]}})).await;
        let messages = client.until("turnComplete").await;
        let answered = messages.iter().any(|m| m["serverContent"].get("modelTurn").is_some());
        assert!(answered, "{model}: {messages:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_paths_and_tokens_are_checked() {
    let mut script = Script::auto();
    script.keys = Some(vec!["good".into(), "auth_tokens/t".into()]);
    let server = Server::new(script);
    let base = "/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent";
    for (path, status) in [
        (format!("{base}?key=good"), 101),
        (format!("{base}?key=bad"), 400),
        (base.to_owned(), 403),
        (format!("{base}Constrained?access_token=auth_tokens/t"), 101),
        (format!("{base}?key=auth_tokens/t"), 400),
        ("/v1/realtime?key=good".to_owned(), 404),
    ] {
        let met = match Client::try_connect(&server, &path).await {
            Ok(_) => 101,
            Err(Error::Http(response)) => response.status().as_u16(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(met, status, "{path}");
    }
}
