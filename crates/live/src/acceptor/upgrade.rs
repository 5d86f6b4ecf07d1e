//! The server's side of the HTTP upgrade (RFC 6455, section 4.2).

use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use super::{
    AcceptError, Accepted, AcceptorOptions, Answer, Gate, HttpAnswer, Request, ServerSocket,
};
use crate::{Transport, socket::limits};

/// Read from a client at once, in bytes.
const READ_BUFFER: usize = 8 * 1024;
/// The least that hyper takes as the limit of a head.
const SMALLEST_HEAD: usize = 8 * 1024;
/// Headers of one request.
const MAX_HEADERS: usize = 64;

pub(super) async fn upgrade(
    transport: Box<dyn Transport>,
    gate: &dyn Gate,
    options: &AcceptorOptions,
) -> Result<Option<Accepted>, AcceptError> {
    let upgraded = Mutex::new(None);
    let service = service_fn(|request| {
        let response = respond(request, gate, options.max_body, &upgraded);
        async { Ok::<_, Infallible>(response.await) }
    });
    let head = options.max_head.max(SMALLEST_HEAD);
    let connection = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(head)
        .serve_connection(TokioIo::new(transport), service);
    let parts = connection.without_shutdown().await.map_err(http_error)?;
    let mut transport = parts.io.into_inner();
    let request = upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(request) = request else {
        // Best effort: the answer is sent, and the peer may be gone.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut transport).await;
        return Ok(None);
    };
    let socket = WebSocketStream::from_partially_read(
        transport,
        parts.read_buf.to_vec(),
        Role::Server,
        Some(limits(options.max_message, READ_BUFFER)),
    );
    let socket = ServerSocket::new(socket.await, options.clone());
    Ok(Some(Accepted { socket, request, peer: None }))
}

async fn respond(
    request: hyper::Request<Incoming>,
    gate: &dyn Gate,
    max_body: usize,
    upgraded: &Mutex<Option<Request>>,
) -> Response<Full<Bytes>> {
    let mut response = decide(request, gate, max_body, upgraded).await;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // One request per connection: nothing has to watch idle ones.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

async fn decide(
    request: hyper::Request<Incoming>,
    gate: &dyn Gate,
    max_body: usize,
    upgraded: &Mutex<Option<Request>>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let is_upgrade = says(&head.headers, header::CONNECTION, "upgrade")
        && says(&head.headers, header::UPGRADE, "websocket");
    let body = if is_upgrade {
        Bytes::new()
    } else {
        match Limited::new(body, max_body).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n"),
        }
    };
    let request = Request {
        method: head.method.as_str().to_owned(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body,
        is_upgrade,
    };
    let (subprotocol, headers) = match gate.answer(&request).await {
        Answer::Http(answer) => return http(answer),
        Answer::Upgrade { subprotocol, headers } => (subprotocol, headers),
    };
    let key = match accept_key(&request) {
        Ok(key) => key,
        Err(refusal) => return *refusal,
    };
    let mut response = plain(StatusCode::SWITCHING_PROTOCOLS, "");
    let out = response.headers_mut();
    add(out, headers);
    out.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    out.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    out.insert(header::SEC_WEBSOCKET_ACCEPT, key);
    let chosen = subprotocol.filter(|chosen| request.subprotocols().any(|offer| offer == chosen));
    if let Some(value) = chosen.and_then(|chosen| HeaderValue::try_from(chosen).ok()) {
        out.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    *upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
    response
}

/// The answer to the client's key, or what to say when it cannot be upgraded.
fn accept_key(request: &Request) -> Result<HeaderValue, Box<Response<Full<Bytes>>>> {
    let needs = |status, why: &'static str| {
        let mut response = plain(status, why);
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        Err(Box::new(response))
    };
    if !request.is_upgrade {
        return needs(StatusCode::UPGRADE_REQUIRED, "this address speaks WebSocket\n");
    }
    if request.method != "GET" {
        return needs(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket begins with GET\n");
    }
    if request.header("sec-websocket-version") != Some("13") {
        return needs(StatusCode::UPGRADE_REQUIRED, "WebSocket version 13 is needed\n");
    }
    let key = request.header("sec-websocket-key").map(str::trim).filter(|key| !key.is_empty());
    let accept = key.and_then(|key| HeaderValue::try_from(derive_accept_key(key.as_bytes())).ok());
    accept.map_or_else(|| needs(StatusCode::BAD_REQUEST, "no WebSocket key\n"), Ok)
}

fn says(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(word))
}

fn http(answer: HttpAnswer) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(answer.status).ok().filter(|status| status.as_u16() >= 200);
    let mut response = plain(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), answer.body);
    add(response.headers_mut(), answer.headers);
    response
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

fn add(headers: &mut HeaderMap, more: Vec<(String, String)>) {
    for (name, value) in more {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.append(name, value);
        }
    }
}

fn http_error(error: hyper::Error) -> AcceptError {
    AcceptError::Http(error.to_string())
}
