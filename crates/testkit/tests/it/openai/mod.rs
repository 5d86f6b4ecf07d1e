//! The scripted OpenAI server, talked to by a bare WebSocket client.

mod any_client;
mod behaviour;
mod dialects;
mod refusals;
mod scripts;
mod turns;

use antiphon_live::{Connector, Transport};
use antiphon_testkit::openai::{Script, Server};
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest,
        http::{HeaderName, HeaderValue},
    },
};

/// A client of few words.
struct Client {
    socket: WebSocketStream<Box<dyn Transport>>,
}

impl Client {
    async fn connect(server: &Server) -> Self {
        Self::try_connect(server, "/v1/realtime?model=gpt-realtime", &[]).await.unwrap()
    }

    async fn try_connect(
        server: &Server,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let transport = server.connector().connect("").await?;
        let mut request = format!("ws://localhost{path}").into_client_request()?;
        request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer sk-test"));
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        }
        Ok(Self { socket: client_async(request, transport).await?.0 })
    }

    /// A client that was greeted, and the greeting.
    async fn greeted(server: &Server) -> (Self, Value) {
        let mut client = Self::connect(server).await;
        let created = client.next().await;
        assert_eq!(created["type"], "session.created");
        (client, created["session"].clone())
    }

    async fn send(&mut self, event: Value) {
        self.socket.send(Message::text(event.to_string())).await.unwrap();
    }

    async fn message(&mut self) -> Option<Result<Message, Error>> {
        self.socket.next().await
    }

    async fn next(&mut self) -> Value {
        match self.message().await.unwrap().unwrap() {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The next event, which must be of this type.
    async fn expect(&mut self, kind: &str) -> Value {
        let event = self.next().await;
        assert_eq!(event["type"], kind, "{event}");
        assert!(event["event_id"].as_str().is_some_and(|id| !id.is_empty()), "{event}");
        event
    }

    /// All events up to the next of this type, that one included.
    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await;
            let found = event["type"] == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }

    /// The error that answers this event.
    async fn refused(&mut self, mut event: Value) -> Value {
        event["event_id"] = "mine".into();
        self.send(event).await;
        let error = self.expect("error").await["error"].clone();
        assert_eq!(error["event_id"], "mine", "{error}");
        assert_eq!(error["type"], "invalid_request_error", "{error}");
        error
    }

    async fn update(&mut self, mut session: Value) -> Value {
        session["type"] = "realtime".into();
        self.send(json!({"type": "session.update", "session": session})).await;
        self.expect("session.updated").await["session"].clone()
    }

    /// Writes an item of the user's; gives its id.
    async fn say(&mut self, text: &str) -> String {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        self.send(json!({"type": "conversation.item.create", "item": item})).await;
        self.expect("conversation.item.added").await;
        let done = self.expect("conversation.item.done").await;
        done["item"]["id"].as_str().unwrap().to_owned()
    }

    async fn append(&mut self, audio: &[u8]) {
        let audio = base64_simd::STANDARD.encode_to_string(audio);
        self.send(json!({"type": "input_audio_buffer.append", "audio": audio})).await;
    }

    /// Nothing more comes.
    fn is_quiet(&mut self) -> bool {
        self.socket.next().now_or_never().is_none()
    }
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn auto() -> Server {
    Server::new(Script::auto())
}
