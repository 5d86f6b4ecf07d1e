//! The scripted server: over pipes in memory, TCP and TLS.

use std::{io, path::Path, sync::Arc};

use antiphon_gemini::server::Handles;
use antiphon_live::{
    Connector, Transport,
    acceptor::{Accepted, Answer, Listener, Request, TlsIdentity},
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    engine::{Engine, Opening},
    script::Script,
};
use crate::scripted::{self, Book, Frames, Player, Record, Service, Serving};

/// A scripted Gemini Live server. Clones share it.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    script: Arc<Script>,
    book: Arc<Book>,
    handles: Handles<String>,
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
        let handles = Handles::new(script.of_connection(0).handles_last());
        let (script, book) = (Arc::new(script), Arc::new(book));
        Self { shared: Arc::new(Shared { script, book, handles }) }
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

    /// The client's messages so far, audio left out.
    pub fn client_messages(&self) -> Vec<Value> {
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
    const PATH: &'static str =
        "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent";

    fn book(&self) -> &Book {
        &self.book
    }

    fn answer(&self, request: &Request) -> Answer {
        // Some clients begin the path with two slashes (quirk 72).
        let path = request.path().trim_end_matches('/');
        let method = path.rsplit(['.', '/']).next().unwrap_or_default();
        if !matches!(method, "BidiGenerateContent" | "BidiGenerateContentConstrained") {
            return refusal(404, "Not found.", "NOT_FOUND");
        }
        let script = self.script.of_connection(self.book.connections() as usize);
        if let Some(refuse) = &script.refuse {
            self.book.next_connection();
            return refuse.answer();
        }
        let Some(key) = key(request) else {
            let message = "Method doesn't allow unregistered callers (callers without \
                           established identity).";
            return refusal(403, message, "PERMISSION_DENIED");
        };
        // An ephemeral token opens only what it is bound to.
        let constrained = method == "BidiGenerateContentConstrained";
        if key.starts_with("auth_tokens/") != constrained
            || script.keys.as_ref().is_some_and(|keys| !keys.contains(&key))
        {
            self.book.next_connection();
            let message = "API key not valid. Please pass a valid API key.";
            return refusal(400, message, "INVALID_ARGUMENT");
        }
        Answer::upgrade()
    }

    async fn converse(self: Arc<Self>, accepted: Accepted) {
        let number = self.book.next_connection();
        let script = Arc::new(self.script.of_connection(number as usize - 1).clone());
        let opening = Opening {
            script: script.clone(),
            connection: number,
            vertex: accepted.request.path().contains("aiplatform"),
            handles: self.handles.clone(),
        };
        let frames = if script.text_frames { Frames::Text } else { Frames::Binary };
        let engine = Engine::new(opening, scripted::now());
        let player = Player::new(engine, script.steps.as_deref(), &script.faults);
        scripted::converse(&self.book, accepted.socket, number, player, frames).await;
    }

    fn is_audio(frame: &Value) -> bool {
        !frame["realtimeInput"]["audio"].is_null()
    }
}

/// The key or token of a request.
fn key(request: &Request) -> Option<String> {
    let parameter = |name| request.parameter(name).map(String::from);
    let header = request.header("x-goog-api-key").map(str::to_owned);
    let authorization = request.header("authorization");
    let token =
        authorization.and_then(|value| value.split_once(' ')).map(|(_, token)| token.into());
    header
        .or(token)
        .or_else(|| parameter("key"))
        .or_else(|| parameter("access_token"))
        .filter(|key: &String| !key.is_empty())
}

fn refusal(status: u16, message: &str, name: &str) -> Answer {
    let error = json!({"code": status, "message": message, "status": name});
    Answer::json(status, &json!({ "error": error }))
}
