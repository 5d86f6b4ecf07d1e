//! What the server's errors and close codes mean. Mostly the reason of a close is all there is.

use antiphon_live::{LiveError, Refusal};
use antiphon_types::Status;
use serde_json::Value;

use super::NAME;
use crate::wire::{ApiError, ServerMessage};

/// When a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before the session began. `resuming`: by a handle.
    SetUp { resuming: bool },
    /// Within it. `announced`: the server had said that it would close.
    Session { announced: bool },
}

/// The server closed. `told`: its last error before.
pub(super) fn closed(
    close: Option<(u16, String)>,
    told: Option<&ApiError>,
    when: When,
) -> LiveError {
    let (code, mut reason) = close.unwrap_or((1005, String::new()));
    if reason.trim().is_empty()
        && let Some(told) = told
    {
        reason = describe(told);
    }
    let words = reason.to_ascii_lowercase();
    let says = |what: &str| words.contains(what);
    let shown = || format!("close {code}: {reason}");
    let failed = |status| LiveError::Failed { provider: NAME.into(), message: shown(), status };
    // The same code is used for many things (quirks 41, 42).
    if says("api key") || says("unauthenticated") || says("invalid authentication") {
        return LiveError::Unauthorized(shown());
    }
    if says("exceeded your current quota") || says("resource_exhausted") {
        return LiveError::RateLimited { message: shown(), retry_after: None };
    }
    match (code, when) {
        (1007, _) if says("location is not supported") => failed(Status::FailedPrecondition),
        (1007, When::SetUp { .. }) => LiveError::InvalidConfig(shown()),
        (1008, _) if says("not implemented, or supported, or enabled") => {
            // The model lacks the feature, or this version of the API does (quirk 45).
            failed(Status::Unimplemented)
        }
        (1008, When::SetUp { resuming: true }) => LiveError::NoResumableSession,
        (1008, When::SetUp { .. }) if says("not found") => failed(Status::NotFound),
        // Such as after the output of a tool: the conversation goes on elsewhere (quirk 46).
        (1008, When::Session { .. }) if says("requested entity was not found") => {
            LiveError::Transport(shown())
        }
        // The session's end, of which it had warned, is not the conversation's (quirk 63).
        (1000 | 1005, When::Session { announced: true }) => {
            LiveError::Closed { code: 1001, reason: shown() }
        }
        _ => LiveError::Closed { code, reason },
    }
}

/// An error that came as a message before the session began.
pub(super) fn refused_setup(error: &ApiError, resuming: bool) -> LiveError {
    let message = describe(error);
    let code = error.code.map_or(0, |code| code.count());
    let lower = message.to_ascii_lowercase();
    if lower.contains("api key") {
        return LiveError::Unauthorized(message);
    }
    match code {
        404 if resuming => LiveError::NoResumableSession,
        _ => by_status(code, message, None),
    }
}

/// The server refused the upgrade; its body may say more than the status.
pub(super) fn refused_upgrade(refusal: &Refusal) -> LiveError {
    let body = ServerMessage::decode(refusal.body.as_bytes()).ok();
    let body = body.and_then(|body| body.error).or_else(|| {
        // Some services wrap it in a list.
        let list: Vec<Value> = serde_json::from_str(&refusal.body).ok()?;
        let first = list.first()?.to_string();
        ServerMessage::decode(first.as_bytes()).ok()?.error
    });
    let Some(error) = body else { return refusal.to_error(NAME) };
    let message = describe(&error);
    if message.to_ascii_lowercase().contains("api key") {
        return LiveError::Unauthorized(message);
    }
    by_status(u64::from(refusal.status), message, refusal.retry_after)
}

fn by_status(status: u64, message: String, retry_after: Option<std::time::Duration>) -> LiveError {
    match status {
        401 | 403 => LiveError::Unauthorized(message),
        404 => LiveError::Failed { provider: NAME.into(), message, status: Status::NotFound },
        429 => LiveError::RateLimited { message, retry_after },
        408 | 425 | 500.. => LiveError::Transport(message),
        _ => LiveError::InvalidConfig(message),
    }
}

/// An error in words.
pub(super) fn describe(error: &ApiError) -> String {
    let message: String =
        error.message.as_deref().unwrap_or("an error without words").chars().take(1_000).collect();
    match (&error.status, error.code) {
        (Some(status), _) => format!("{status}: {message}"),
        (None, Some(code)) => format!("{}: {message}", code.0),
        (None, None) => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: When = When::SetUp { resuming: false };
    const TALK: When = When::Session { announced: false };

    fn close(code: u16, reason: &str, when: When) -> LiveError {
        closed(Some((code, reason.to_owned())), None, when)
    }

    #[test]
    fn quirks_41_42_the_reason_tells_what_the_code_does_not() {
        let invalid = close(1007, "Request contains an invalid argument.", SETUP);
        assert!(matches!(&invalid, LiveError::InvalidConfig(why) if why.contains("argument")));
        let key = close(1007, "API key not valid. Please pass a valid API key.", SETUP);
        assert!(matches!(key, LiveError::Unauthorized(_)));
        let expired = close(1007, "API key expired. Please renew the API key.", SETUP);
        assert!(matches!(&expired, LiveError::Unauthorized(why) if why.contains("expired")));
        let place = close(1007, "User location is not supported for the API use.", SETUP);
        assert_eq!(place.status(), Status::FailedPrecondition);
        let LiveError::Closed { code: 1007, reason } =
            close(1007, "Request contains an invalid argument.", TALK)
        else {
            panic!()
        };
        assert_eq!(reason, "Request contains an invalid argument.");
    }

    #[test]
    fn quirk_45_a_feature_that_is_missing_is_told_as_that() {
        let why = "Operation is not implemented, or supported, or enabled.";
        assert_eq!(close(1008, why, SETUP).status(), Status::Unimplemented);
        assert!(!close(1008, why, TALK).is_recoverable());
        let model = "models/x is not found for API version v1beta";
        assert_eq!(close(1008, model, SETUP).status(), Status::NotFound);
    }

    #[test]
    fn quirk_46_the_random_end_after_tool_outputs_is_survived() {
        assert!(close(1008, "Requested entity was not found.", TALK).is_recoverable());
        assert!(close(1011, "Internal error encountered.", TALK).is_recoverable());
    }

    #[test]
    fn quirk_63_the_end_of_life_is_survived() {
        let deadline = "Deadline expired before operation could complete.";
        assert!(close(1011, deadline, TALK).is_recoverable());
        assert!(close(1000, "", When::Session { announced: true }).is_recoverable());
        assert!(!close(1000, "", TALK).is_recoverable());
        assert!(close(1006, "", TALK).is_recoverable());
    }

    #[test]
    fn a_stale_handle_is_told_as_that() {
        let resuming = When::SetUp { resuming: true };
        let error = close(1008, "Requested entity was not found.", resuming);
        assert!(matches!(error, LiveError::NoResumableSession));
        let error = close(1011, "Internal error", resuming);
        assert!(error.is_recoverable(), "the old socket may still be open");
    }

    #[test]
    fn quota_is_no_fault() {
        let error = close(1011, "You exceeded your current quota, please check your plan.", TALK);
        assert!(matches!(error, LiveError::RateLimited { .. }));
    }

    #[test]
    fn an_error_before_a_close_without_a_reason_is_kept() {
        let told = ApiError { message: Some("Odd.".into()), ..ApiError::default() };
        let error = closed(Some((1011, String::new())), Some(&told), TALK);
        assert!(error.to_string().contains("Odd."));
    }

    #[test]
    fn a_refused_upgrade_is_read() {
        let refused = |status, body: &str| refused_upgrade(&Refusal::new(status, None, body));
        let body =
            r#"{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT"}}"#;
        assert!(matches!(refused(400, body), LiveError::Unauthorized(_)));
        assert!(matches!(refused(400, &format!("[{body}]")), LiveError::Unauthorized(_)));
        let body = r#"{"error":{"code":404,"message":"No.","status":"NOT_FOUND"}}"#;
        assert_eq!(refused(404, body).status(), Status::NotFound);
        assert!(refused(503, "<html>").is_recoverable());
        assert!(matches!(refused(403, ""), LiveError::Unauthorized(_)));
    }
}
