//! The WebSocket driver: any [`WireProtocol`] over any byte stream is a [`LiveConnection`].
//!
//! The connection is polled by the session's one task; nothing is spawned. Its protocol stays pure:
//! the driver gives it frames, commands and the time, and carries out what stands in its
//! [`Outbox`](crate::Outbox).
//!
//! ```no_run
//! use antiphon_live::{
//!     ConnectRequest, LiveConnection, LiveError, Secrets, WireProtocol,
//!     websocket::{self, TcpConnector, WebSocketOptions},
//! };
//!
//! async fn connect(
//!     protocol: impl WireProtocol + 'static,
//!     request: &ConnectRequest,
//! ) -> Result<Box<dyn LiveConnection>, LiveError> {
//!     let secrets = Secrets::resolve(&request.config).await?;
//!     let options = WebSocketOptions::default();
//!     websocket::connect(protocol, request, secrets, &TcpConnector::new(), &options).await
//! }
//! ```

mod connection;
mod handshake;
mod link;
mod metered;
mod tcp;

use std::{future::poll_fn, time::Duration};

use self::{connection::Connection, link::Link};
use crate::{
    ConnectRequest, Connector, LiveConnection, LiveError, Secrets, WireProtocol,
    protocol::CONNECT_TIMEOUT, socket,
};

pub use self::tcp::TcpConnector;

/// How the driver behaves. Times are on tokio's clock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WebSocketOptions {
    /// A ping is sent so often: some servers hang up on a client of which they hear nothing for ten
    /// seconds, though it only listens. Default: 8 s.
    pub ping_interval: Duration,
    /// While something is sent, a ping goes with it so often: its pong tells that the server has read
    /// all that came before. Default: 500 ms.
    pub acknowledge_interval: Duration,
    /// A server of which no byte came for so long is given up. Pongs of 8 to 30 s have been seen on
    /// healthy connections. Default: 60 s.
    pub silence_limit: Duration,
    /// A server that took no byte for so long, of those that wait for it, is given up. Default: 30 s.
    pub write_limit: Duration,
    /// How long closing waits for the server's answer. Default: 2 s.
    pub close_timeout: Duration,
    /// The largest message and frame, in either direction, in bytes. Default: 16 MiB.
    pub max_message: usize,
}

impl Default for WebSocketOptions {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(8),
            acknowledge_interval: Duration::from_millis(500),
            silence_limit: Duration::from_secs(60),
            write_limit: Duration::from_secs(30),
            close_timeout: Duration::from_secs(2),
            max_message: socket::MAX_MESSAGE,
        }
    }
}

/// Opens a connection: dials, upgrades, and resolves once the protocol has put
/// [`LiveEvent::Ready`](crate::LiveEvent::Ready) into its outbox, which is then the first event. All
/// of it may take [`LiveConfig::connect_timeout`](crate::LiveConfig::connect_timeout).
///
/// # Errors
///
/// What the protocol makes of a refused upgrade ([`WireProtocol::refused`]) or of a refused session;
/// [`LiveError::Closed`] when the server closed before it was ready; [`LiveError::InvalidConfig`]
/// for an address that is none; [`LiveError::Transport`], [`LiveError::Protocol`] and
/// [`LiveError::Timeout`].
///
/// Cancel safe: dropping the future closes the socket.
pub async fn connect(
    protocol: impl WireProtocol + 'static,
    request: &ConnectRequest,
    secrets: Secrets,
    connector: &dyn Connector,
    options: &WebSocketOptions,
) -> Result<Box<dyn LiveConnection>, LiveError> {
    let within = request.config.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    let opening = async {
        let upgrade = protocol.handshake(&request.config, &secrets, request.resume.as_ref())?;
        let socket = handshake::upgrade(&protocol, upgrade, connector, options).await?;
        let mut link = Link::open(socket, protocol, options.clone());
        let capabilities = poll_fn(|cx| link.poll_opened(cx)).await?;
        Ok(Box::new(Connection::new(link, capabilities)) as Box<dyn LiveConnection>)
    };
    match tokio::time::timeout(within, opening).await {
        Ok(result) => result,
        Err(_) => Err(LiveError::Timeout { what: "connection".into(), after: within }),
    }
}
