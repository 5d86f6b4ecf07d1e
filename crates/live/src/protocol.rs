//! The client half of a WebSocket dialect as a pure state machine, and where its bytes come from.

use std::{collections::VecDeque, time::Instant};

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{LiveCommand, LiveConfig, LiveError, LiveEvent, Resumption};

/// The client half of one WebSocket dialect. No I/O, no clock.
///
/// The driver keeps one invariant: after each call it drains the [`Outbox`] (frames to the wire,
/// events to the session, each in order), then asks for [`WireProtocol::deadline`] and calls
/// [`WireProtocol::timeout`] when that instant is reached.
pub trait WireProtocol: Send {
    /// Where to connect and with what headers.
    fn handshake(
        &self,
        config: &LiveConfig,
        secrets: &Secrets,
        resume: Option<&Resumption>,
    ) -> Result<Handshake, LiveError>;

    /// The upgrade succeeded: set-up frames go to the outbox. [`LiveEvent::Ready`] follows once the
    /// provider accepted them.
    fn opened(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError>;

    /// The session asks for something.
    fn command(
        &mut self,
        command: LiveCommand,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError>;

    /// A frame came. May be answered with frames of its own.
    fn frame(&mut self, frame: Frame, now: Instant, out: &mut Outbox) -> Result<(), LiveError>;

    /// The instant that [`WireProtocol::deadline`] named is reached.
    fn timeout(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let _ = (now, out);
        Ok(())
    }

    /// When to call [`WireProtocol::timeout`] next.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// One WebSocket frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// UTF-8 text.
    Text(Bytes),
    /// Bytes.
    Binary(Bytes),
    /// A ping and its payload.
    Ping(Bytes),
    /// A pong and its payload.
    Pong(Bytes),
    /// A close with code and reason, if given.
    Close(Option<(u16, String)>),
}

/// What one step of a protocol gives. Reused between steps.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Frames to write, in order.
    pub frames: VecDeque<Frame>,
    /// Events to hand up, in order.
    pub events: VecDeque<LiveEvent>,
}

/// What the WebSocket handshake needs.
#[derive(Debug)]
pub struct Handshake {
    /// `ws://` or `wss://` address with path and query.
    pub url: String,
    /// Request headers; values are secret.
    pub headers: Vec<(&'static str, SecretString)>,
    /// Subprotocols to offer.
    pub subprotocols: Vec<String>,
}

/// Credentials resolved for one connection.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// What goes into the authorisation of the handshake.
    pub bearer: Option<SecretString>,
}

/// Where a connection's bytes come from: TCP and TLS outside, an in-memory pipe in tests on paused
/// time.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Opens a byte stream to the host of `url`.
    async fn connect(&self, url: &str) -> std::io::Result<Box<dyn Transport>>;
}

/// A byte stream.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}
