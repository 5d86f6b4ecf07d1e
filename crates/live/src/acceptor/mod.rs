//! The server side: HTTP requests that become WebSockets.
//!
//! An [`Acceptor`] answers the requests of one byte stream until one of them is upgraded. A
//! [`Gate`] sees each request and decides: upgrade it, refuse it, or answer it as plain HTTP. A
//! [`Listener`] does so for every connection of a TCP port, with TLS if given a [`TlsIdentity`].
//!
//! ```no_run
//! use antiphon_live::acceptor::{Accepted, Acceptor, Answer, Listener, Request};
//!
//! # async fn example() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0", Acceptor::default()).await?;
//! let gate = |request: &Request| match request.path() {
//!     "/echo" => Answer::upgrade(),
//!     _ => Answer::http(404, "not here\n"),
//! };
//! listener
//!     .serve(gate, |accepted: Accepted| async move {
//!         let mut socket = accepted.socket;
//!         while let Some(Ok(frame)) = socket.recv().await {
//!             if socket.send(frame).await.is_err() {
//!                 break;
//!             }
//!         }
//!     })
//!     .await
//! # }
//! ```
//!
//! Offers of permessage-deflate are not taken up: messages here are small or do not compress.

mod listener;
mod request;
mod server_socket;
mod tls;
mod upgrade;

use std::time::Duration;

use antiphon_types::Status;

use crate::{Transport, socket};

pub use self::{
    listener::Listener,
    request::{Answer, Gate, HttpAnswer, Request},
    server_socket::ServerSocket,
    tls::TlsIdentity,
};

/// Limits of the server side. Times are on tokio's clock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcceptorOptions {
    /// A connection must be upgraded, or answered, within this time, TLS included. Default: 10 s.
    pub handshake_timeout: Duration,
    /// The largest head of a request, in bytes; larger is answered with 431. At least 8 KiB.
    /// Default: 16 KiB.
    pub max_head: usize,
    /// The largest body of a plain request, in bytes; larger is answered with 413. Default: 256 KiB.
    pub max_body: usize,
    /// The largest message and frame, in either direction, in bytes. Default: 16 MiB.
    pub max_message: usize,
    /// A peer that is silent for so long is pinged. Default: 20 s.
    pub ping_interval: Duration,
    /// A peer that is silent for so long is given up. Default: 60 s.
    pub silence_limit: Duration,
    /// A peer that does not take a frame for so long is given up. Default: 30 s.
    pub write_timeout: Duration,
    /// How long closing waits for the peer's answer. Default: 2 s.
    pub close_timeout: Duration,
    /// A [`Listener`] serves so many connections at once and answers more with 503. Default: 1,024.
    pub max_connections: usize,
}

impl Default for AcceptorOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            max_head: 16 * 1024,
            max_body: 256 * 1024,
            max_message: socket::MAX_MESSAGE,
            ping_interval: Duration::from_secs(20),
            silence_limit: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(2),
            max_connections: 1_024,
        }
    }
}

/// Turns byte streams into WebSockets.
#[derive(Clone, Debug, Default)]
pub struct Acceptor {
    options: AcceptorOptions,
}

/// A request that became a WebSocket.
#[derive(Debug)]
#[non_exhaustive]
pub struct Accepted {
    /// The socket.
    pub socket: ServerSocket,
    /// What was asked for.
    pub request: Request,
    /// Where from; `None` where the byte stream is not a [`Listener`]'s.
    pub peer: Option<std::net::SocketAddr>,
}

impl Acceptor {
    /// An acceptor with these limits.
    pub fn new(options: AcceptorOptions) -> Self {
        Self { options }
    }

    /// Serves one byte stream. `None`: its request was answered as `gate` said, without an upgrade,
    /// and the stream was closed. Cancel safe: dropping the future closes the stream.
    pub async fn accept(
        &self,
        transport: Box<dyn Transport>,
        gate: &dyn Gate,
    ) -> Result<Option<Accepted>, AcceptError> {
        let after = self.options.handshake_timeout;
        let upgrade = upgrade::upgrade(transport, gate, &self.options);
        tokio::time::timeout(after, upgrade).await.unwrap_or(Err(AcceptError::Timeout { after }))
    }
}

/// Why a connection did not become a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The handshake was not complete in time.
    #[error("no handshake within {after:?}")]
    Timeout {
        /// The limit.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// What came was not HTTP, or ended within a request.
    #[error("not a request: {0}")]
    Http(String),
    /// A certificate or its key cannot be used.
    #[error("bad certificate or key: {0}")]
    Identity(String),
}

impl AcceptError {
    /// The canonical status code.
    pub fn status(&self) -> Status {
        match self {
            Self::Timeout { .. } => Status::DeadlineExceeded,
            Self::Tls(_) => Status::Unavailable,
            Self::Http(_) | Self::Identity(_) => Status::InvalidArgument,
        }
    }
}
