//! What a server's errors and close codes mean: harmless, told, or the end.

use antiphon_live::{LiveError, Refusal};
use antiphon_types::Status;
use serde_json::Value;

use super::NAME;
use crate::wire::ApiError;

/// The server refuses a request for a reply because there is one already.
pub(super) const ALREADY_ACTIVE: &str = "conversation_already_has_active_response";
/// The server has no reply that it could stop.
pub(super) const NOTHING_TO_CANCEL: &str = "response_cancel_not_active";
/// The server refuses to change the voice after the model has spoken.
pub(super) const CANNOT_UPDATE_VOICE: &str = "cannot_update_voice";
/// The server refuses to cut an item of which there is no audio yet.
const NOTHING_TO_TRUNCATE: &str = "Only model output audio messages can be truncated";

/// Errors that answer a race and change nothing (quirks 2, 35, 39).
pub(super) fn is_benign(error: &ApiError) -> bool {
    let code = error.code.as_deref().unwrap_or_default();
    matches!(
        code,
        NOTHING_TO_CANCEL
            | "input_audio_buffer_commit_empty"
            | "item_truncate_invalid_item_id"
            | "item_delete_invalid_item_id"
            | "item_retrieve_invalid_item_id"
    ) || is_late_truncation(error)
        || error.message.contains(NOTHING_TO_TRUNCATE)
}

/// "Audio content of 9250ms is already shorter than 57340ms", mostly without a code.
fn is_late_truncation(error: &ApiError) -> bool {
    error.message.starts_with("Audio content of") && error.message.contains("already shorter")
}

/// Whether the server refused to cut an item because it has no audio of it (quirk 5).
pub(super) fn is_nothing_to_truncate(error: &ApiError) -> bool {
    error.message.contains(NOTHING_TO_TRUNCATE)
}

/// The error after which the server closes, or the session is of no use.
pub(super) fn fatal(error: &ApiError) -> Option<LiveError> {
    by_code(error.code.as_deref()?, &error.message)
}

/// The server refuses the session that was asked for.
pub(super) fn refused_session(error: &ApiError) -> LiveError {
    if let Some(error) = fatal(error) {
        return error;
    }
    let message = describe(error);
    match error.code.as_deref() {
        Some("rate_limit_exceeded") => LiveError::RateLimited { message, retry_after: None },
        _ if error.kind == "server_error" => LiveError::Transport(message),
        _ => LiveError::InvalidConfig(message),
    }
}

/// The server closed. `told`: the last error before.
pub(super) fn closed(close: Option<(u16, String)>, told: Option<&ApiError>) -> LiveError {
    let (code, reason) = close.unwrap_or((1005, String::new()));
    // Such as `invalid_request_error.invalid_api_key` (quirk 31), or the words alone (quirk 25).
    let word = reason.split([' ', ':']).next().unwrap_or_default();
    let word = word.rsplit('.').next().unwrap_or_default();
    if let Some(error) = by_code(word, &reason) {
        return error;
    }
    if let Some(told) = told
        && code != 1000
    {
        if told.code.as_deref() == Some("rate_limit_exceeded") {
            return LiveError::RateLimited { message: describe(told), retry_after: None };
        }
        if reason.is_empty() {
            return LiveError::Closed { code, reason: describe(told) };
        }
    }
    match code {
        // The vendor's own codes: refusals, which another attempt does not change.
        3000 => LiveError::Unauthorized(format!("close {code} {reason}")),
        3001..=4999 => LiveError::Failed {
            provider: NAME.into(),
            message: format!("close {code} {reason}"),
            status: Status::FailedPrecondition,
        },
        _ => LiveError::Closed { code, reason },
    }
}

/// The server refused the upgrade; its body may say more than the status.
pub(super) fn refused_upgrade(refusal: &Refusal) -> LiveError {
    let body: Option<Value> = serde_json::from_str(&refusal.body).ok();
    let error = body.as_ref().map(|body| body.get("error").unwrap_or(body));
    let code = error.and_then(|error| error.get("code")).and_then(Value::as_str);
    let message = error.and_then(|error| error.get("message")).and_then(Value::as_str);
    code.and_then(|code| by_code(code, message.unwrap_or(&refusal.body)))
        .unwrap_or_else(|| refusal.to_error(NAME))
}

/// An error in words.
pub(super) fn describe(error: &ApiError) -> String {
    let message: String = error.message.chars().take(1_000).collect();
    match (&error.code, &error.param) {
        (Some(code), Some(param)) => format!("{code} ({param}): {message}"),
        (Some(code), None) => format!("{code}: {message}"),
        (None, Some(param)) => format!("({param}): {message}"),
        (None, None) => message,
    }
}

fn by_code(code: &str, message: &str) -> Option<LiveError> {
    let message: String = message.chars().take(1_000).collect();
    let failed =
        |status| LiveError::Failed { provider: NAME.into(), message: message.clone(), status };
    Some(match code {
        // A new session goes on with the history (quirks 29, 30).
        "session_expired" => LiveError::Closed { code: 1001, reason: format!("{code}: {message}") },
        "invalid_api_key"
        | "missing_api_key"
        | "invalid_authentication"
        | "account_deactivated" => LiveError::Unauthorized(format!("{code}: {message}")),
        "beta_api_shape_disabled" => LiveError::InvalidConfig(format!(
            "{code}: the server does not speak the beta any more: {message}"
        )),
        "model_not_found" => failed(Status::NotFound),
        "insufficient_quota" => failed(Status::ResourceExhausted),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(code: u16, reason: &str) -> LiveError {
        closed(Some((code, reason.to_owned())), None)
    }

    #[test]
    fn quirks_24_25_30_31_every_close_code_says_what_it_means() {
        assert!(matches!(
            close(3000, "invalid_request_error.invalid_api_key"),
            LiveError::Unauthorized(_)
        ));
        assert!(matches!(
            close(4000, "invalid_request_error.beta_api_shape_disabled"),
            LiveError::InvalidConfig(_)
        ));
        assert!(matches!(close(4008, "odd"), LiveError::Failed { .. }));
        assert!(close(1001, "").is_recoverable());
        assert!(close(1011, "server fault").is_recoverable());
        assert!(!close(1000, "").is_recoverable());
        let LiveError::Closed { code: 1009, reason } = close(1009, "too big") else { panic!() };
        assert_eq!(reason, "too big");
    }

    #[test]
    fn the_error_before_a_close_is_kept() {
        let told = ApiError::invalid_request("rate_limit_exceeded", "Slow down.");
        let error = closed(Some((1011, String::new())), Some(&told));
        assert!(matches!(error, LiveError::RateLimited { .. }), "{error}");
        let told = ApiError::invalid_request("odd", "Odd.");
        let error = closed(None, Some(&told));
        assert!(error.to_string().contains("odd: Odd."), "{error}");
    }

    #[test]
    fn quirk_32_a_refused_upgrade_is_read_too() {
        let body = r#"{"error":{"code":"model_not_found","message":"No such model."}}"#;
        let error = refused_upgrade(&Refusal::new(404, None, body));
        assert!(matches!(error, LiveError::Failed { status: Status::NotFound, .. }), "{error}");
        let body = r#"{"error":{"code":"insufficient_quota","message":"Pay."}}"#;
        let error = refused_upgrade(&Refusal::new(429, None, body));
        assert!(!error.is_recoverable(), "{error}");
        assert!(refused_upgrade(&Refusal::new(503, None, "<html>")).is_recoverable());
        let error = refused_upgrade(&Refusal::new(403, None, ""));
        assert!(matches!(error, LiveError::Unauthorized(_)));
    }
}
