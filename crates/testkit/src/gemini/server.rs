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
use crate::scripted::{self, Book, Frames, Player, Record, Serving, Side, acceptor};

/// Where the Gemini API is.
const PATH: &str = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent";

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
        let (gate, shared) = (self.shared.clone(), self.shared.clone());
        let gate = move |request: &Request| gate.answer(request);
        listener.serve(gate, move |accepted| converse(shared.clone(), accepted)).await
    }

    /// Serves a free port of the loopback address, with TLS if given an identity.
    pub async fn listen(&self, identity: Option<TlsIdentity>) -> io::Result<Serving> {
        self.listen_on(0, identity).await
    }

    /// Serves a port of the loopback address; 0 takes a free one.
    pub async fn listen_on(&self, port: u16, identity: Option<TlsIdentity>) -> io::Result<Serving> {
        let listener = Listener::bind(("127.0.0.1", port), acceptor()).await?;
        let server = self.clone();
        Serving::start(listener, identity, PATH, move |listener| async move {
            server.serve(listener).await
        })
    }

    /// All frames so far, in the order in which they were sent and received.
    pub fn records(&self) -> Vec<Record> {
        self.shared.book.records()
    }

    /// The client's messages so far, audio left out.
    pub fn client_messages(&self) -> Vec<Value> {
        let records = self.shared.book.records();
        let messages = records.into_iter().filter(|record| record.from == Side::Client);
        messages
            .map(|record| record.frame)
            .filter(|frame| frame["realtimeInput"]["audio"].is_null())
            .collect()
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
        let (near, far) = tokio::io::duplex(64 * 1024);
        let shared = self.server.shared.clone();
        tokio::spawn(async move {
            let gate = |request: &Request| shared.answer(request);
            match acceptor().accept(Box::new(far), &gate).await {
                Ok(Some(accepted)) => converse(shared, accepted).await,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "not upgraded"),
            }
        });
        Ok(Box::new(near))
    }
}

/// One connection, from its first frame to its last.
async fn converse(shared: Arc<Shared>, accepted: Accepted) {
    let number = shared.book.next_connection();
    let script = Arc::new(shared.script.of_connection(number as usize - 1).clone());
    let opening = Opening {
        script: script.clone(),
        connection: number,
        vertex: accepted.request.path().contains("aiplatform"),
        handles: shared.handles.clone(),
    };
    let frames = if script.text_frames { Frames::Text } else { Frames::Binary };
    let engine = Engine::new(opening, scripted::now());
    let player = Player::new(engine, script.steps.as_deref(), &script.faults);
    scripted::converse(&shared.book, accepted.socket, number, player, frames).await;
}

impl Shared {
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
            let answer = Answer::http(refuse.status, refuse.body.clone());
            return match refuse.retry_after {
                Some(seconds) => answer.header("retry-after", seconds.to_string()),
                None => answer,
            };
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
