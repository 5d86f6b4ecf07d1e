//! The client's side of the HTTP upgrade.

use std::{future::poll_fn, time::Duration};

use http_body_util::{BodyExt, Empty};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{self, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};

use super::{WebSocketOptions, metered::Metered, tcp::Address};
use crate::{Connector, Handshake, LiveError, Refusal, WireProtocol, socket::limits};

/// Taken at once from what was read ahead, in bytes; a longer frame gets a buffer of its length.
const READ_BUFFER: usize = 2 * 1024;
/// The head of an answer may be so long.
const MAX_HEAD: usize = 64 * 1024;
/// Of the body of a refusal so much is kept.
const MAX_BODY: usize = 64 * 1024;
/// How long the body of a refusal is waited for.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than this nobody is told to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3_600);

/// Dials and upgrades.
pub(super) async fn upgrade(
    protocol: &impl WireProtocol,
    handshake: Handshake,
    connector: &dyn Connector,
    options: &WebSocketOptions,
) -> Result<WebSocketStream<Metered>, LiveError> {
    let address = Address::parse(&handshake.url).map_err(LiveError::InvalidConfig)?;
    let key = generate_key();
    let request = request(&handshake, &address.uri, &key)?;
    let transport = connector.connect(&handshake.url).await.map_err(|error| {
        let message = error.to_string();
        match error.kind() {
            std::io::ErrorKind::InvalidInput => LiveError::InvalidConfig(message),
            // Such as a certificate that is not trusted: trying again mends nothing.
            std::io::ErrorKind::InvalidData => LiveError::Failed {
                provider: protocol.provider().into(),
                message,
                status: crate::types::Status::FailedPrecondition,
            },
            _ => LiveError::Transport(message),
        }
    })?;
    let io = TokioIo::new(Metered::new(transport));
    let (mut sender, mut connection) = http1::Builder::new()
        .title_case_headers(true)
        .max_buf_size(MAX_HEAD)
        .handshake::<_, Empty<Bytes>>(io)
        .await
        .map_err(http_error)?;
    let answer = sender.send_request(request);
    let answer = while_polled(&mut connection, answer).await?.map_err(http_error)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(protocol, answer, &mut connection).await);
    }
    check(answer.headers(), &key, &handshake.subprotocols).map_err(LiveError::Protocol)?;
    // The connection ends itself as soon as it knows of the upgrade.
    poll_fn(|cx| connection.poll_without_shutdown(cx)).await.map_err(http_error)?;
    let parts = connection.into_parts();
    Ok(WebSocketStream::from_partially_read(
        parts.io.into_inner(),
        parts.read_buf.to_vec(),
        Role::Client,
        Some(limits(options.max_message, READ_BUFFER)),
    )
    .await)
}

fn request(
    handshake: &Handshake,
    uri: &Uri,
    key: &str,
) -> Result<Request<Empty<Bytes>>, LiveError> {
    // The value of a header is secret, so no error quotes it.
    let bad = |name: &str| LiveError::InvalidConfig(format!("the header {name} is malformed"));
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    // Credentials in an address are not sent as part of the host's name.
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path)
        .header(header::HOST, host)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, key)
        .body(Empty::new())
        .map_err(|error| LiveError::InvalidConfig(error.to_string()))?;
    let headers = request.headers_mut();
    if !handshake.subprotocols.is_empty() {
        let value = HeaderValue::try_from(handshake.subprotocols.join(", "))
            .map_err(|_| bad("Sec-WebSocket-Protocol"))?;
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    for (name, value) in &handshake.headers {
        let header = HeaderName::try_from(*name).map_err(|_| bad(name))?;
        let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| bad(name))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(request)
}

const USER_AGENT: &str = concat!("antiphon/", env!("CARGO_PKG_VERSION"));

type HttpConnection = http1::Connection<TokioIo<Metered>, Empty<Bytes>>;

/// Waits for `future` while the connection does its work.
async fn while_polled<F: Future>(
    connection: &mut HttpConnection,
    future: F,
) -> Result<F::Output, LiveError> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| {
        use std::task::Poll;

        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let ended = connection.poll_without_shutdown(cx);
        // It may have brought what the future waits for.
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        match ended {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(Err(LiveError::Closed {
                code: 1006,
                reason: "the socket ended within the handshake".into(),
            })),
            Poll::Ready(Err(error)) => Poll::Ready(Err(http_error(error))),
        }
    })
    .await
}

async fn refused(
    protocol: &impl WireProtocol,
    answer: Response<Incoming>,
    connection: &mut HttpConnection,
) -> LiveError {
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get(header::RETRY_AFTER);
    let seconds = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = while_polled(connection, body_prefix(answer.into_body(), MAX_BODY));
    // A refusal without its words is still a refusal.
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => String::from_utf8_lossy(&body).into_owned(),
        _ => String::new(),
    };
    let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT));
    protocol.refused(&Refusal::new(status, retry_after, body))
}

/// Of an HTTP body the first `limit` bytes.
async fn body_prefix(mut body: Incoming, limit: usize) -> Bytes {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            let room = limit - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() >= room {
                break;
            }
        }
    }
    bytes.into()
}

/// Whether the answer completes the upgrade (RFC 6455, section 4.1).
fn check(headers: &HeaderMap, key: &str, offered: &[String]) -> Result<(), String> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let says = |name, word: &str| {
        text(name).is_some_and(|value| {
            value.split(',').any(|token| token.trim().eq_ignore_ascii_case(word))
        })
    };
    if !says(header::UPGRADE, "websocket") || !says(header::CONNECTION, "upgrade") {
        return Err("the server upgrades to something else than a WebSocket".into());
    }
    if text(header::SEC_WEBSOCKET_ACCEPT) != Some(derive_accept_key(key.as_bytes()).as_str()) {
        return Err("the server answers another handshake than ours".into());
    }
    if headers.contains_key(header::SEC_WEBSOCKET_EXTENSIONS) {
        return Err("the server uses an extension that was not offered".into());
    }
    match headers.get(header::SEC_WEBSOCKET_PROTOCOL) {
        Some(chosen) if !offered.iter().any(|offer| offer.as_bytes() == chosen.as_bytes()) => {
            Err("the server chose a subprotocol that was not offered".into())
        }
        _ => Ok(()),
    }
}

fn http_error(error: hyper::Error) -> LiveError {
    let mut reason = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    if error.is_parse() {
        LiveError::Protocol(format!("the answer to the handshake is not HTTP: {reason}"))
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        LiveError::Closed { code: 1006, reason: format!("within the handshake: {reason}") }
    } else {
        LiveError::Transport(reason)
    }
}
