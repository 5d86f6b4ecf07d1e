//! The scripted server: over pipes in memory, TCP and TLS.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{Arc, Mutex},
};

use antiphon_live::{
    Connector, Transport,
    acceptor::{Accepted, Answer, Listener, Request, TlsIdentity},
};
use antiphon_openai::wire::Dialect;
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    dialect,
    engine::{Engine, Opening},
    kept::Kept,
    script::Script,
};
use crate::scripted::{self, Book, Frames, Player, Record, Service, Serving, lock, unix_now};

/// An ephemeral key lives so long where its request does not say.
const SECRET_LIFETIME_S: u64 = 600;

/// A scripted OpenAI Realtime server. Clones share it.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    script: Arc<Script>,
    book: Arc<Book>,
    /// Ephemeral keys and the session that each is bound to.
    secrets: Mutex<HashMap<String, Value>>,
    kept: Arc<Kept>,
}

impl Server {
    /// A server with this script. Must be made within a tokio runtime.
    pub fn new(script: Script) -> Self {
        Self::build(script, Book::new())
    }

    /// A server that keeps no frames: for load, and for long runs.
    pub fn without_records(script: Script) -> Self {
        Self::build(script, Book::blank())
    }

    /// A server that writes every frame of both directions to a file, one line of JSON each:
    /// `{"connection":1,"t_ms":12,"dir":"client","frame":{…}}`. A frame that is not JSON stands
    /// under `raw` instead.
    pub fn recording(script: Script, file: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::build(script, Book::written(file.as_ref())?))
    }

    fn build(script: Script, book: Book) -> Self {
        Self {
            shared: Arc::new(Shared {
                script: Arc::new(script),
                book: Arc::new(book),
                secrets: Mutex::default(),
                kept: Arc::default(),
            }),
        }
    }

    /// Connects to the server over pipes in memory; works on paused time.
    pub fn connector(&self) -> ServerConnector {
        ServerConnector { server: self.clone() }
    }

    /// Serves the connections of a port until the future is dropped.
    pub async fn serve(&self, listener: Listener) -> io::Result<()> {
        scripted::serve(self.shared.clone(), listener).await
    }

    /// Serves a free port of the loopback address, with TLS if given an identity.
    pub async fn listen(&self, identity: Option<TlsIdentity>) -> io::Result<Serving> {
        self.listen_on(0, identity).await
    }

    /// Serves a port of the loopback address; 0 takes a free one.
    pub async fn listen_on(&self, port: u16, identity: Option<TlsIdentity>) -> io::Result<Serving> {
        scripted::listen(self.shared.clone(), port, identity).await
    }

    /// All frames so far, in the order in which they were sent and received.
    pub fn records(&self) -> Vec<Record> {
        self.shared.book.records()
    }

    /// The client's events so far, audio left out.
    pub fn client_events(&self) -> Vec<Value> {
        scripted::of_clients(&*self.shared)
    }

    /// How clients left the script; empty is good.
    pub fn failures(&self) -> Vec<String> {
        self.shared.book.failures()
    }

    /// Connections so far, refused ones among them.
    pub fn connections(&self) -> u32 {
        self.shared.book.connections()
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> u32 {
        self.shared.book.open_connections()
    }
}

/// Connects to a [`Server`] over pipes in memory.
#[derive(Clone)]
pub struct ServerConnector {
    server: Server,
}

#[async_trait]
impl Connector for ServerConnector {
    async fn connect(&self, _: &str) -> io::Result<Box<dyn Transport>> {
        Ok(scripted::pipe(self.server.shared.clone()))
    }
}

impl Service for Shared {
    const PATH: &'static str = "/v1/realtime";

    fn book(&self) -> &Book {
        &self.book
    }

    fn answer(&self, request: &Request) -> Answer {
        let path = request.path().trim_end_matches('/');
        if request.method() == "POST" && path.ends_with("/realtime/client_secrets") {
            return self.make_secret(request);
        }
        let number = self.book.connections() as usize;
        let script = self.script.of_connection(number);
        if let Some(message) = dialect::wrong_address(request, script.dialect) {
            return refusal(404, "invalid_request_error", &message);
        }
        if let Some(refuse) = &script.refuse {
            self.book.next_connection();
            return refuse.answer();
        }
        let Some(key) = dialect::key(request, script.dialect) else {
            return refusal(401, "invalid_request_error", "Missing bearer authentication.");
        };
        let known =
            |keys: &Vec<String>| keys.contains(&key) || lock(&self.secrets).contains_key(&key);
        if script.keys.as_ref().is_some_and(|keys| !known(keys)) {
            self.book.next_connection();
            return refusal(401, "invalid_api_key", "Incorrect API key provided.");
        }
        Answer::upgrade_as("realtime")
    }

    async fn converse(self: Arc<Self>, accepted: Accepted) {
        let number = self.book.next_connection();
        let opening = self.opening(&accepted.request, number);
        let script = opening.script.clone();
        let player = Player::new(Engine::new(opening), script.steps.as_deref(), &script.faults);
        scripted::converse(&self.book, accepted.socket, number, player, Frames::Text).await;
    }

    fn is_audio(frame: &Value) -> bool {
        frame["type"] == "input_audio_buffer.append"
    }
}

impl Shared {
    fn opening(&self, request: &Request, number: u32) -> Opening {
        let offers_beta = request.subprotocols().any(|offer| offer == "openai-beta.realtime-v1");
        let says_beta = request.header("openai-beta").is_some_and(|beta| beta.contains("realtime"));
        let script = self.script.of_connection(number as usize - 1);
        let key = dialect::key(request, script.dialect);
        let bound = key.and_then(|key| lock(&self.secrets).get(&key).cloned());
        let intent = request.parameter("intent");
        let bound_kind = bound.as_ref().and_then(|session| session["type"].as_str());
        Opening {
            script: Arc::new(script.clone()),
            connection: number,
            model: ["model", "deployment"]
                .iter()
                .find_map(|name| request.parameter(name))
                .map_or_else(|| "gpt-realtime".into(), Into::into),
            transcribes_only: intent.as_deref() == Some("transcription")
                || bound_kind == Some("transcription"),
            unix_now: unix_now(),
            asks_for_beta: offers_beta || says_beta,
            bound: bound.unwrap_or_default(),
            resume: request.parameter("conversation_id").map(Into::into),
            kept: self.kept.clone(),
        }
    }

    /// `POST /v1/realtime/client_secrets`.
    fn make_secret(&self, request: &Request) -> Answer {
        if dialect::key(request, Dialect::Ga).is_none() {
            return refusal(401, "invalid_request_error", "Missing bearer authentication.");
        }
        let body: Value = match request.body() {
            body if body.is_empty() => json!({}),
            body => match serde_json::from_slice(body) {
                Ok(body) => body,
                Err(_) => {
                    return refusal(400, "invalid_request_error", "The body is not JSON.");
                }
            },
        };
        let seconds = body["expires_after"]["seconds"].as_u64().unwrap_or(SECRET_LIFETIME_S);
        if !(10..=7_200).contains(&seconds) {
            return refusal(400, "invalid_value", "expires_after.seconds must be 10 to 7200.");
        }
        let mut session = body["session"].clone();
        if !session.is_object() {
            session = json!({"type": "realtime"});
        }
        let mut secrets = lock(&self.secrets);
        let value = format!("ek_{:032x}", secrets.len() + 1);
        secrets.insert(value.clone(), session.clone());
        Answer::json(
            200,
            &json!({"value": value, "expires_at": unix_now() + seconds, "session": session}),
        )
    }
}

fn refusal(status: u16, code: &str, message: &str) -> Answer {
    let error = json!({
        "type": "invalid_request_error",
        "code": code,
        "message": message,
        "param": null,
    });
    Answer::json(status, &json!({ "error": error }))
}
