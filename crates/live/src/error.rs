//! Errors of a provider.

use std::{sync::Arc, time::Duration};

use antiphon_types::Status;
use serde::{Deserialize, Serialize};

/// What goes wrong between a session and a provider.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveError {
    /// The provider cannot do this; nothing was sent.
    #[error("{provider} cannot {what}")]
    Unsupported {
        /// The provider's name.
        provider: Arc<str>,
        /// What was asked, as a verb phrase: `truncate a reply`.
        what: Arc<str>,
    },
    /// The configuration is wrong; nothing was sent.
    #[error("invalid configuration: {0}")]
    InvalidConfig(String),
    /// A command is wrong (a blank text, audio in the wrong format); nothing was sent.
    #[error("invalid command: {0}")]
    InvalidCommand(String),
    /// No key and no bearer token where the provider needs one.
    #[error("no API key for {provider}")]
    MissingApiKey {
        /// The provider's name.
        provider: Arc<str>,
    },
    /// No endpoint where the provider has no default one.
    #[error("no endpoint for {provider}")]
    MissingEndpoint {
        /// The provider's name.
        provider: Arc<str>,
    },
    /// No usable resumption handle.
    #[error("no session to resume")]
    NoResumableSession,
    /// The provider refused the credentials (HTTP 401 or 403, or its own word for it).
    #[error("refused: {0}")]
    Unauthorized(String),
    /// The provider refused for now (HTTP 429 and its like).
    #[error("rate limited: {message}")]
    RateLimited {
        /// The provider's words.
        message: String,
        /// When to try again, if it said so.
        retry_after: Option<Duration>,
    },
    /// The connection is closed, or was never opened.
    #[error("not connected")]
    NotConnected,
    /// The provider closed the connection.
    #[error("closed by the provider: {code} {reason}")]
    Closed {
        /// The WebSocket close code; 1006 when the socket ended without one.
        code: u16,
        /// The provider's words.
        reason: String,
    },
    /// The transport failed: name resolution, connection, TLS, reset.
    #[error("transport: {0}")]
    Transport(String),
    /// The peer sent what the protocol does not allow.
    #[error("protocol: {0}")]
    Protocol(String),
    /// Something did not come in time.
    #[error("no {what} within {after:?}")]
    Timeout {
        /// What was waited for.
        what: Arc<str>,
        /// For how long.
        after: Duration,
    },
    /// The provider failed for good: model missing, file corrupt, session expired.
    #[error("{provider} failed: {message}")]
    Failed {
        /// The provider's name.
        provider: Arc<str>,
        /// What it said.
        message: String,
        /// The canonical code.
        status: Status,
    },
}

impl LiveError {
    /// An [`LiveError::Unsupported`].
    pub fn unsupported(provider: impl Into<Arc<str>>, what: impl Into<Arc<str>>) -> Self {
        Self::Unsupported { provider: provider.into(), what: what.into() }
    }

    /// Whether a new connection may succeed where this one failed. Everything else needs another
    /// configuration, other credentials, or another command.
    pub fn is_recoverable(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Transport(_)
            | Self::Timeout { .. }
            | Self::NotConnected => true,
            // 1000 is an ordinary end and 1008 a policy violation; 4000 and above are the
            // provider's own and mean what its dialect says, which maps them to other variants.
            Self::Closed { code, .. } => !matches!(code, 1000 | 1003 | 1007 | 1008 | 4000..),
            _ => false,
        }
    }

    /// The canonical status code.
    pub fn status(&self) -> Status {
        match self {
            Self::Unsupported { .. } => Status::Unimplemented,
            Self::InvalidConfig(_) | Self::InvalidCommand(_) => Status::InvalidArgument,
            Self::MissingApiKey { .. } | Self::Unauthorized(_) => Status::Unauthenticated,
            Self::MissingEndpoint { .. } | Self::NoResumableSession | Self::NotConnected => {
                Status::FailedPrecondition
            }
            Self::RateLimited { .. } => Status::ResourceExhausted,
            Self::Closed { .. } | Self::Transport(_) => Status::Unavailable,
            Self::Protocol(_) => Status::Internal,
            Self::Timeout { .. } => Status::DeadlineExceeded,
            Self::Failed { status, .. } => *status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_mends_what_the_last_one_lost() {
        let closed = |code| LiveError::Closed { code, reason: String::new() };
        for error in [LiveError::NotConnected, LiveError::Transport("reset".into()), closed(1006)] {
            assert!(error.is_recoverable(), "{error}");
        }
        for error in [
            closed(1000),
            closed(1008),
            LiveError::Unauthorized("no".into()),
            LiveError::NoResumableSession,
            LiveError::InvalidCommand("blank".into()),
        ] {
            assert!(!error.is_recoverable(), "{error}");
        }
    }
}
