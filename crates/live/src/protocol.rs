//! The client half of a WebSocket dialect as a pure state machine, and where its bytes come from.

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncWrite};
use tungstenite::Utf8Bytes;

use crate::{LiveCommand, LiveConfig, LiveError, LiveEvent, Resumption};

/// How long connecting may take where [`LiveConfig::connect_timeout`] does not say.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Of a server's words an error quotes so much.
const MAX_QUOTED_CHARS: usize = 500;

/// The client half of one WebSocket dialect. No I/O, no clock.
///
/// The driver keeps one invariant: after each call it drains the [`Outbox`] (frames to the wire,
/// events to the session, each in order), then asks for [`WireProtocol::deadline`] and calls
/// [`WireProtocol::timeout`] when that instant is reached.
pub trait WireProtocol: Send {
    /// The provider's name, for errors. The same as [`crate::LiveProvider::name`].
    fn provider(&self) -> &str;

    /// Where to connect and with what headers.
    fn handshake(
        &self,
        config: &LiveConfig,
        secrets: &Secrets,
        resume: Option<&Resumption>,
    ) -> Result<Handshake, LiveError>;

    /// The server answered the handshake with something else than an upgrade. The default knows
    /// what the status says; a dialect may read the body.
    fn refused(&self, refusal: &Refusal) -> LiveError {
        refusal.to_error(self.provider())
    }

    /// The upgrade succeeded: set-up frames go to the outbox. [`LiveEvent::Ready`] follows once the
    /// provider accepted them.
    fn opened(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError>;

    /// The session asks for something that the capabilities of [`LiveEvent::Ready`] allow; audio is
    /// in the input format and texts are not blank, the driver has seen to that. What cannot be sent
    /// is an [`LiveError::InvalidCommand`], and the connection goes on.
    fn command(
        &mut self,
        command: LiveCommand,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError>;

    /// A frame came. May be answered with frames of its own. An `Err` ends the connection. Pings and
    /// pongs are the driver's business and do not come here. After [`Frame::Close`] nothing comes;
    /// the driver ends the connection with [`LiveError::Closed`] unless the protocol returns an error
    /// that says more.
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
    /// Text, known to be UTF-8.
    Text(Utf8Bytes),
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

/// What the WebSocket handshake needs. `Debug` shows neither the query, which may hold a key, nor
/// any value.
pub struct Handshake {
    /// `ws://` or `wss://` address with path and query.
    pub url: String,
    /// Request headers; values are secret.
    pub headers: Vec<(&'static str, SecretString)>,
    /// Subprotocols to offer.
    pub subprotocols: Vec<String>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Handshake")
            .field("url", &self.url.split('?').next().unwrap_or_default())
            .field("headers", &names)
            .field("subprotocols", &self.subprotocols.len())
            .finish()
    }
}

/// How a server refused the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The HTTP status; not 101.
    pub status: u16,
    /// From `Retry-After`, where it gives seconds.
    pub retry_after: Option<Duration>,
    /// The body, at most 64 KiB of it; what is not UTF-8 is replaced.
    pub body: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: u16, retry_after: Option<Duration>, body: impl Into<String>) -> Self {
        Self { status, retry_after, body: body.into() }
    }

    /// What the status alone says: 401 and 403 are [`LiveError::Unauthorized`], 429 is
    /// [`LiveError::RateLimited`], 5xx and time-outs are [`LiveError::Transport`] and may be tried
    /// again, anything else is [`LiveError::InvalidConfig`]: this address, with these parameters,
    /// does not speak the protocol.
    pub fn to_error(&self, provider: &str) -> LiveError {
        let status = self.status;
        let mut message = format!("{provider} answers HTTP {status}");
        let words: String = self.body.trim().chars().take(MAX_QUOTED_CHARS).collect();
        if !words.is_empty() {
            message = format!("{message}: {words}");
        }
        match status {
            401 | 403 => LiveError::Unauthorized(message),
            429 => LiveError::RateLimited { message, retry_after: self.retry_after },
            408 | 425 | 500.. => LiveError::Transport(message),
            _ => LiveError::InvalidConfig(message),
        }
    }
}

/// Credentials resolved for one connection.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// What goes into the authorisation of the handshake.
    pub bearer: Option<SecretString>,
}

impl Secrets {
    /// What the configuration says: its bearer source, asked for at most
    /// [`LiveConfig::connect_timeout`], before its key. Neither is an empty answer; whether that
    /// will do is the provider's business.
    pub async fn resolve(config: &LiveConfig) -> Result<Self, LiveError> {
        let Some(source) = &config.bearer else {
            return Ok(Self { bearer: config.api_key.clone() });
        };
        let within = config.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        match tokio::time::timeout(within, source.token()).await {
            Ok(token) => Ok(Self { bearer: Some(token?) }),
            Err(_) => Err(LiveError::Timeout { what: "bearer token".into(), after: within }),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BearerSource;

    #[test]
    fn a_refusal_says_whether_to_try_again() {
        let error = |status| {
            Refusal::new(status, Some(Duration::from_secs(3)), " no such model ").to_error("openai")
        };
        assert!(matches!(error(401), LiveError::Unauthorized(_)));
        assert!(matches!(error(403), LiveError::Unauthorized(_)));
        assert!(matches!(error(404), LiveError::InvalidConfig(_)));
        assert!(matches!(error(200), LiveError::InvalidConfig(_)));
        assert!(error(503).is_recoverable());
        let LiveError::RateLimited { retry_after, .. } = error(429) else { panic!() };
        assert_eq!(retry_after, Some(Duration::from_secs(3)));
        assert!(error(404).to_string().ends_with("openai answers HTTP 404: no such model"));
    }

    #[test]
    fn a_handshake_shows_no_secret() {
        let handshake = Handshake {
            url: "wss://host/path?key=secret".into(),
            headers: vec![("Authorization", SecretString::from("secret"))],
            subprotocols: vec!["insecure-api-key.secret".into()],
        };
        let shown = format!("{handshake:?}");
        assert!(shown.contains("wss://host/path") && shown.contains("Authorization"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_bearer_source_wins_over_the_key_and_must_answer_in_time() {
        let mut config = LiveConfig::new().api_key("key");
        let key = Secrets::resolve(&config).await.unwrap().bearer.unwrap();
        assert_eq!(secrecy::ExposeSecret::expose_secret(&key), "key");
        config.bearer = Some(BearerSource::new(|| async { Ok(SecretString::from("token")) }));
        let token = Secrets::resolve(&config).await.unwrap().bearer.unwrap();
        assert_eq!(secrecy::ExposeSecret::expose_secret(&token), "token");
        config.bearer = Some(BearerSource::new(std::future::pending));
        let error = Secrets::resolve(&config).await.unwrap_err();
        assert!(matches!(error, LiveError::Timeout { .. }), "{error}");
    }
}
