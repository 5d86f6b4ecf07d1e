//! What all scripted servers do with a connection: carry frames, and write down what was said.

use std::{
    fs::File,
    future::Future,
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use antiphon_live::{
    Frame,
    acceptor::{Acceptor, AcceptorOptions, Listener, ServerSocket, TlsIdentity},
};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::player::{Behaviour, Output, Player};

/// Frames that are kept for the test.
const MAX_RECORDS: usize = 200_000;

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

/// In which frames a server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    Text,
    Binary,
}

/// What was said on all connections of a server.
pub(crate) struct Book {
    /// Connections so far, refused ones among them.
    connections: AtomicU32,
    open: AtomicU32,
    records: Mutex<Vec<Record>>,
    keeps_records: bool,
    file: Option<Mutex<File>>,
    failures: Mutex<Vec<String>>,
    began: Instant,
}

impl Book {
    /// One that keeps frames. Must be made within a tokio runtime.
    pub(crate) fn new() -> Self {
        Self {
            connections: AtomicU32::new(0),
            open: AtomicU32::new(0),
            records: Mutex::default(),
            keeps_records: true,
            file: None,
            failures: Mutex::default(),
            began: Instant::now(),
        }
    }

    /// One that keeps no frames.
    pub(crate) fn blank() -> Self {
        Self { keeps_records: false, ..Self::new() }
    }

    /// One that writes frames to a file.
    pub(crate) fn written(file: &Path) -> io::Result<Self> {
        Ok(Self { file: Some(Mutex::new(File::create(file)?)), ..Self::blank() })
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        lock(&self.records).clone()
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }

    /// Counts a connection; gives its number, from 1.
    pub(crate) fn next_connection(&self) -> u32 {
        self.connections.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn open_connections(&self) -> u32 {
        self.open.load(Ordering::SeqCst)
    }

    pub(crate) fn record(&self, connection: u32, from: Side, text: &str) {
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

/// A port that is served until this is dropped.
#[derive(Debug)]
pub struct Serving {
    url: String,
    task: JoinHandle<()>,
}

impl Serving {
    /// Serves in a task of its own.
    pub(crate) fn start<F>(
        mut listener: Listener,
        identity: Option<TlsIdentity>,
        path: &str,
        serve: impl FnOnce(Listener) -> F,
    ) -> io::Result<Self>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let scheme = if identity.is_some() { "wss" } else { "ws" };
        if let Some(identity) = identity {
            listener = listener.with_tls(identity);
        }
        let address = listener.local_addr()?;
        let serving = serve(listener);
        let task = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the scripted server ended");
            }
        });
        Ok(Self { url: format!("{scheme}://{address}{path}"), task })
    }

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

/// A server that neither pings nor gives up by itself: what it does stands in the script.
pub(crate) fn acceptor() -> Acceptor {
    let mut options = AcceptorOptions::default();
    options.ping_interval = Duration::from_secs(86_400);
    options.silence_limit = Duration::from_secs(2 * 86_400);
    options.max_message = 32 * 1024 * 1024;
    options.max_connections = 10_000;
    Acceptor::new(options)
}

/// One connection, from its first frame to its last.
pub(crate) async fn converse<B: Behaviour>(
    book: &Arc<Book>,
    socket: ServerSocket,
    number: u32,
    mut player: Player<B>,
    frames: Frames,
) {
    let _open = OpenConnection::new(book);
    player.since(book.began.into_std());
    talk(book, socket, number, &mut player, frames).await;
    if let Some(failure) = player.take_failure().or_else(|| player.unfinished()) {
        lock(&book.failures).push(format!("connection {number}, {failure}"));
    }
}

/// Counts a connection as open until it is dropped.
struct OpenConnection(Arc<Book>);

impl OpenConnection {
    fn new(book: &Arc<Book>) -> Self {
        book.open.fetch_add(1, Ordering::SeqCst);
        Self(book.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn talk<B: Behaviour>(
    book: &Book,
    mut socket: ServerSocket,
    number: u32,
    player: &mut Player<B>,
    frames: Frames,
) {
    loop {
        while let Some(output) = player.poll(now()) {
            let frame = match output {
                Output::Text(text) => {
                    book.record(number, Side::Server, &text);
                    match frames {
                        Frames::Text => Frame::Text(text.into()),
                        Frames::Binary => Frame::Binary(text.into_bytes().into()),
                    }
                }
                Output::Binary(bytes) => {
                    book.record(number, Side::Server, &binary(bytes.len()));
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
                    book.record(number, Side::Client, &text);
                    player.frame(&text, now());
                }
                Some(Ok(Frame::Binary(bytes))) => {
                    // Most servers take only text: it is refused as one that cannot be read.
                    let text = binary(bytes.len());
                    book.record(number, Side::Client, &text);
                    player.frame(&text, now());
                }
                Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
                Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
            },
            () = wake => {}
        }
    }
}

/// What stands for a binary frame where texts are recorded.
fn binary(size: usize) -> String {
    format!("binary frame of {size} bytes")
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Tokio's clock, which tests may pause.
pub(crate) fn now() -> std::time::Instant {
    Instant::now().into_std()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
