//! What the gate sees, and what it says.

use std::{borrow::Cow, fmt};

use async_trait::async_trait;
use bytes::Bytes;
use hyper::{HeaderMap, header};

/// Decides what becomes of a request. Functions from `&Request` to [`Answer`] are gates.
#[async_trait]
pub trait Gate: Send + Sync {
    /// The answer. It must come within the handshake's time limit.
    async fn answer(&self, request: &Request) -> Answer;
}

#[async_trait]
impl<F> Gate for F
where
    F: Fn(&Request) -> Answer + Send + Sync,
{
    async fn answer(&self, request: &Request) -> Answer {
        self(request)
    }
}

/// One HTTP request. `Debug` shows neither query nor headers: they may hold keys.
#[derive(Clone)]
pub struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) is_upgrade: bool,
}

impl Request {
    /// The method, such as `GET`.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path as sent, not decoded.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The query as sent, without the question mark.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The first value of a parameter of the query, decoded.
    pub fn parameter(&self, name: &str) -> Option<Cow<'_, str>> {
        let query = self.query.as_deref()?.as_bytes();
        form_urlencoded::parse(query).find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// A header's value, if it is ASCII. Names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The token of `Authorization: Bearer`.
    pub fn bearer(&self) -> Option<&str> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    }

    /// The subprotocols that the client offers, in its order.
    pub fn subprotocols(&self) -> impl Iterator<Item = &str> {
        let values = self.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|offer| !offer.is_empty())
    }

    /// Whether it asks to become a WebSocket.
    pub fn is_upgrade(&self) -> bool {
        self.is_upgrade
    }

    /// The body; empty where it asks to become a WebSocket.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("is_upgrade", &self.is_upgrade)
            .finish_non_exhaustive()
    }
}

/// What becomes of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// It becomes a WebSocket. A request that does not ask for that is answered with 426.
    Upgrade {
        /// One of the offered subprotocols. Any other is left out of the answer.
        subprotocol: Option<String>,
        /// More headers of the answer; those that are malformed are left out.
        headers: Vec<(String, String)>,
    },
    /// It is answered so, and the connection closed.
    Http(HttpAnswer),
}

impl Answer {
    /// It becomes a WebSocket without a subprotocol.
    pub fn upgrade() -> Self {
        Self::Upgrade { subprotocol: None, headers: Vec::new() }
    }

    /// It becomes a WebSocket with this subprotocol, if the client offered it.
    pub fn upgrade_as(subprotocol: impl Into<String>) -> Self {
        Self::Upgrade { subprotocol: Some(subprotocol.into()), headers: Vec::new() }
    }

    /// A plain answer, such as a refusal.
    pub fn http(status: u16, body: impl Into<Bytes>) -> Self {
        Self::Http(HttpAnswer { status, headers: Vec::new(), body: body.into() })
    }

    /// A plain answer in JSON.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self::http(status, body.to_string()).header("content-type", "application/json")
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (Self::Upgrade { headers, .. } | Self::Http(HttpAnswer { headers, .. })) = &mut self;
        headers.push((name.into(), value.into()));
        self
    }
}

/// A plain answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpAnswer {
    /// The status, 200 to 599; any other is sent as 500.
    pub status: u16,
    /// The headers; those that are malformed are left out.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}
