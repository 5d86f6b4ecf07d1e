//! The scripted server: over pipes in memory, TCP and TLS.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use antiphon_live::{
    Connector, Frame, Transport,
    acceptor::{Accepted, Acceptor, AcceptorOptions, Answer, Listener, Request, TlsIdentity},
};
use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    engine::Opening,
    player::{Output, Player},
    script::Script,
};

/// An ephemeral key lives so long where its request does not say.
const SECRET_LIFETIME_S: u64 = 600;
/// Frames that are kept for the test.
const MAX_RECORDS: usize = 200_000;
/// The subprotocol that browsers carry their key in.
const KEY_SUBPROTOCOL: &str = "openai-insecure-api-key.";

/// A scripted OpenAI Realtime server. Clones share it.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    script: Arc<Script>,
    /// Connections so far, refused ones among them.
    connections: AtomicU32,
    open: AtomicU32,
    records: Mutex<Vec<Record>>,
    keeps_records: bool,
    file: Option<Mutex<File>>,
    failures: Mutex<Vec<String>>,
    /// Ephemeral keys and the session that each is bound to.
    secrets: Mutex<HashMap<String, Value>>,
    began: Instant,
}

/// One frame that was sent.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The connection, from 1.
    pub connection: u32,
    /// Whose frame.
    pub from: Side,
    /// Milliseconds since the server was made.
    pub t_ms: u64,
    /// The frame; [`Value::Null`] where it is not JSON.
    pub frame: Value,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // they say what they are
pub enum Side {
    Client,
    Server,
}

impl Server {
    /// A server with this script. Must be made within a tokio runtime.
    pub fn new(script: Script) -> Self {
        Self::build(script, true, None)
    }

    /// A server that keeps no frames: for load, and for long runs.
    pub fn without_records(script: Script) -> Self {
        Self::build(script, false, None)
    }

    /// A server that writes every frame of both directions to a file, one line of JSON each:
    /// `{"connection":1,"t_ms":12,"dir":"client","frame":{…}}`. A frame that is not JSON stands
    /// under `raw` instead.
    pub fn recording(script: Script, file: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::build(script, false, Some(Mutex::new(File::create(file)?))))
    }

    fn build(script: Script, keeps_records: bool, file: Option<Mutex<File>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                script: Arc::new(script),
                connections: AtomicU32::new(0),
                open: AtomicU32::new(0),
                records: Mutex::default(),
                keeps_records,
                file,
                failures: Mutex::default(),
                secrets: Mutex::default(),
                began: Instant::now(),
            }),
        }
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
        let mut listener = Listener::bind(("127.0.0.1", port), acceptor()).await?;
        let scheme = if identity.is_some() { "wss" } else { "ws" };
        if let Some(identity) = identity {
            listener = listener.with_tls(identity);
        }
        let address = listener.local_addr()?;
        let server = self.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = server.serve(listener).await {
                tracing::error!(%error, "the scripted server ended");
            }
        });
        Ok(Serving { url: format!("{scheme}://{address}/v1/realtime"), task })
    }

    /// All frames so far, in the order in which they were sent and received.
    pub fn records(&self) -> Vec<Record> {
        lock(&self.shared.records).clone()
    }

    /// The client's events so far, audio left out.
    pub fn client_events(&self) -> Vec<Value> {
        let records = lock(&self.shared.records);
        let events = records.iter().filter(|record| record.from == Side::Client);
        events
            .map(|record| record.frame.clone())
            .filter(|frame| frame["type"] != "input_audio_buffer.append")
            .collect()
    }

    /// How clients left the script; empty is good.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.shared.failures).clone()
    }

    /// Connections so far, refused ones among them.
    pub fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> u32 {
        self.shared.open.load(Ordering::SeqCst)
    }
}

/// A port that is served until this is dropped.
#[derive(Debug)]
pub struct Serving {
    url: String,
    task: JoinHandle<()>,
}

impl Serving {
    /// Such as `ws://127.0.0.1:4010/v1/realtime`.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
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

/// A server that neither pings nor gives up by itself: what it does stands in the script.
fn acceptor() -> Acceptor {
    let mut options = AcceptorOptions::default();
    options.ping_interval = Duration::from_secs(86_400);
    options.silence_limit = Duration::from_secs(2 * 86_400);
    options.max_message = 32 * 1024 * 1024;
    options.max_connections = 10_000;
    Acceptor::new(options)
}

/// One connection, from its first frame to its last.
async fn converse(shared: Arc<Shared>, accepted: Accepted) {
    let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
    let _open = OpenConnection::new(&shared);
    let mut player = Player::new(shared.opening(&accepted.request, number));
    talk(&shared, accepted, number, &mut player).await;
    if let Some(failure) = player.take_failure().or_else(|| player.unfinished()) {
        lock(&shared.failures).push(format!("connection {number}, {failure}"));
    }
}

/// Counts a connection as open until it is dropped.
struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(shared.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn talk(shared: &Shared, accepted: Accepted, number: u32, player: &mut Player) {
    let mut socket = accepted.socket;
    loop {
        while let Some(output) = player.poll(now()) {
            let frame = match output {
                Output::Text(text) => {
                    shared.record(number, Side::Server, &text);
                    Frame::Text(text.into())
                }
                Output::Binary(bytes) => {
                    shared.record(number, Side::Server, &binary(bytes.len()));
                    Frame::Binary(bytes.into())
                }
                Output::Close(code, reason) => {
                    socket.close(code, &reason).await;
                    return;
                }
                Output::Drop => {
                    // What was sent before still arrives.
                    let _ = socket.flush().await;
                    socket.abort();
                    return;
                }
            };
            if socket.feed(frame).await.is_err() {
                return;
            }
        }
        if socket.flush().await.is_err() {
            return;
        }
        let deadline = player.deadline();
        let wake = async {
            match deadline {
                Some(deadline) => sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = socket.recv(), if player.reads(now()) => match frame {
                Some(Ok(Frame::Text(text))) => {
                    shared.record(number, Side::Client, &text);
                    player.frame(&text, now());
                }
                Some(Ok(Frame::Binary(bytes))) => {
                    // No event: it is refused as a text that cannot be read.
                    let text = binary(bytes.len());
                    shared.record(number, Side::Client, &text);
                    player.frame(&text, now());
                }
                Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
                Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
            },
            () = wake => {}
        }
    }
}

impl Shared {
    fn opening(&self, request: &Request, number: u32) -> Opening {
        let offers_beta = request.subprotocols().any(|offer| offer == "openai-beta.realtime-v1");
        let says_beta = request.header("openai-beta").is_some_and(|beta| beta.contains("realtime"));
        let bound = key(request).and_then(|key| lock(&self.secrets).get(&key).cloned());
        let intent = request.parameter("intent");
        let bound_kind = bound.as_ref().and_then(|session| session["type"].as_str());
        Opening {
            script: Arc::new(self.script.of_connection(number as usize - 1).clone()),
            connection: number,
            model: request.parameter("model").map_or_else(|| "gpt-realtime".into(), Into::into),
            transcribes_only: intent.as_deref() == Some("transcription")
                || bound_kind == Some("transcription"),
            unix_now: unix_now(),
            asks_for_beta: offers_beta || says_beta,
            bound: bound.unwrap_or_default(),
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let path = request.path().trim_end_matches('/');
        if request.method() == "POST" && path.ends_with("/realtime/client_secrets") {
            return self.make_secret(request);
        }
        if !path.ends_with("/realtime") {
            return refusal(404, "invalid_request_error", "Unknown request URL.");
        }
        let number = self.connections.load(Ordering::SeqCst) as usize;
        let script = self.script.of_connection(number);
        if let Some(refuse) = &script.refuse {
            self.connections.fetch_add(1, Ordering::SeqCst);
            let answer = Answer::http(refuse.status, refuse.body.clone());
            return match refuse.retry_after {
                Some(seconds) => answer.header("retry-after", seconds.to_string()),
                None => answer,
            };
        }
        let Some(key) = key(request) else {
            return refusal(401, "invalid_request_error", "Missing bearer authentication.");
        };
        let known =
            |keys: &Vec<String>| keys.contains(&key) || lock(&self.secrets).contains_key(&key);
        if script.keys.as_ref().is_some_and(|keys| !known(keys)) {
            self.connections.fetch_add(1, Ordering::SeqCst);
            return refusal(401, "invalid_api_key", "Incorrect API key provided.");
        }
        Answer::upgrade_as("realtime")
    }

    /// `POST /v1/realtime/client_secrets`.
    fn make_secret(&self, request: &Request) -> Answer {
        if key(request).is_none() {
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

    fn record(&self, connection: u32, from: Side, text: &str) {
        if !self.keeps_records && self.file.is_none() {
            return;
        }
        let frame: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let t_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Some(file) = &self.file {
            let dir = if from == Side::Client { "client" } else { "server" };
            let mut line = json!({"connection": connection, "t_ms": t_ms, "dir": dir});
            match &frame {
                Value::Null => line["raw"] = text.into(),
                frame => line["frame"] = frame.clone(),
            }
            if let Err(error) = writeln!(lock(file), "{line}") {
                tracing::error!(%error, "a frame was not recorded");
            }
        }
        let mut records = lock(&self.records);
        if self.keeps_records && records.len() < MAX_RECORDS {
            records.push(Record { connection, from, t_ms, frame });
        }
    }
}

/// The key of a request: a header, or a browser's subprotocol.
fn key(request: &Request) -> Option<String> {
    let offered = request.subprotocols().find_map(|offer| offer.strip_prefix(KEY_SUBPROTOCOL));
    let given = request.bearer().or_else(|| request.header("api-key")).or(offered)?;
    (!given.is_empty()).then(|| given.to_owned())
}

/// What stands for a binary frame where texts are recorded.
fn binary(size: usize) -> String {
    format!("binary frame of {size} bytes")
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

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Tokio's clock, which tests may pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
