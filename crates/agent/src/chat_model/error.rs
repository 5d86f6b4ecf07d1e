//! Errors of servers with canonical codes.

use antiphon_types::Status;
use genai::{
    Error,
    webc::{self, StreamTimeout},
};
use reqwest::StatusCode;

use crate::{ModelError, text::shorten};

/// The longest text of a server that is passed on, in bytes.
const MAX_TEXT_BYTES: usize = 600;

/// What went wrong, without addresses, which may hold keys.
pub(super) fn model_error(model: &str, error: &Error) -> ModelError {
    let (status, text) = describe(error);
    ModelError::new(model, status, shorten(&text, MAX_TEXT_BYTES))
}

fn describe(error: &Error) -> (Status, String) {
    match error {
        Error::WebAdapterCall { webc_error, .. } | Error::WebModelCall { webc_error, .. } => {
            match webc_error {
                webc::Error::ResponseFailedStatus { status, body, .. } => answered(*status, body),
                webc::Error::Reqwest(error) => transport(error),
                other => (Status::Unavailable, other.to_string()),
            }
        }
        Error::HttpError { status, body, .. } => answered(*status, body),
        Error::ChatResponse { body, .. } => (Status::Unavailable, said(&body.to_string())),
        Error::WebStream { error, .. } => streamed(&**error),
        Error::StreamParse { serde_error, .. } => {
            (Status::Unavailable, format!("the answer is not as it should be: {serde_error}"))
        }
        Error::RequiresApiKey { .. } | Error::NoAuthResolver { .. } | Error::NoAuthData { .. } => {
            (Status::Unauthenticated, "it needs a key".into())
        }
        Error::MessageRoleNotSupported { .. }
        | Error::MessageContentTypeNotSupported { .. }
        | Error::AdapterNotSupported { .. } => (Status::InvalidArgument, error.to_string()),
        other => (Status::Unavailable, other.to_string()),
    }
}

fn answered(status: StatusCode, body: &str) -> (Status, String) {
    let canonical = match status.as_u16() {
        401 => Status::Unauthenticated,
        403 => Status::PermissionDenied,
        404 => Status::NotFound,
        408 | 504 => Status::DeadlineExceeded,
        409 => Status::Aborted,
        429 => Status::ResourceExhausted,
        400..=499 => Status::InvalidArgument,
        _ => Status::Unavailable,
    };
    (canonical, format!("the server answered {status}: {}", said(body)))
}

/// The words of a server's error, where it has them in one of the usual places.
fn said(body: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let places = ["/error/message", "/message", "/0/error/message", "/error"];
    let words = places.iter().find_map(|place| json.pointer(place)?.as_str());
    words.unwrap_or(body).trim().to_owned()
}

fn transport(error: &reqwest::Error) -> (Status, String) {
    if error.is_timeout() {
        return late_answer("the connection timed out");
    }
    // The innermost cause says most, and none but the outermost names the address.
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let what = if error.is_connect() { "no connection" } else { "the connection broke" };
    match std::ptr::addr_eq(cause, error) {
        true => (Status::Unavailable, what.into()),
        false => (Status::Unavailable, format!("{what}: {cause}")),
    }
}

/// An error within a stream, which may be of any layer.
fn streamed(error: &(dyn std::error::Error + 'static)) -> (Status, String) {
    let mut layer = Some(error);
    while let Some(error) = layer {
        if let Some(error) = error.downcast_ref::<Error>() {
            return describe(error);
        }
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return transport(error);
        }
        if let Some(late) = error.downcast_ref::<StreamTimeout>() {
            return match late {
                StreamTimeout::Headers => late_answer("it did not begin to answer"),
                StreamTimeout::Read => late_answer("it fell silent within its answer"),
            };
        }
        layer = error.source();
    }
    (Status::Unavailable, "the answer broke off".into())
}

fn late_answer(what: &str) -> (Status, String) {
    (Status::DeadlineExceeded, format!("the server took too long: {what}"))
}
