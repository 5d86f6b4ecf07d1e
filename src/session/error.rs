//! Errors of a session.

use antiphon_agent::RuntimeError;
use antiphon_live::LiveError;
use antiphon_types::Status;

use super::{EndReason, SessionState};

/// Why a session did not start.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It runs already; the running session is untouched.
    #[error("the session is active already ({0})")]
    AlreadyActive(SessionState),
    /// The configuration cannot work.
    #[error("invalid configuration: {0}")]
    InvalidConfig(String),
    /// The session of the agent that is linked could not be opened.
    #[error("the agent's session cannot be opened: {0}")]
    Agent(#[source] RuntimeError),
    /// Connecting failed.
    #[error("connect failed: {0}")]
    Connect(#[source] LiveError),
    /// It is to be recorded, and the file cannot be made.
    #[error("the session cannot be recorded: {0}")]
    Recording(String),
    /// It was stopped while it connected or while the start hook ran.
    #[error("stopped before it had begun")]
    Stopped,
    /// It ended by itself while the start hook ran.
    #[error("ended before it had begun: {0}")]
    Ended(EndReason),
}

/// Why something could not be sent. Nothing was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The session does not run.
    #[error("the session is not active")]
    NotActive,
    /// The bounded command queue is full.
    #[error("too many commands wait")]
    QueueFull,
    /// The provider cannot do it.
    #[error("the provider cannot {0}")]
    Unsupported(&'static str),
    /// The argument is wrong.
    #[error("{0}")]
    Invalid(String),
}

/// Why a session could not be shut down in order. It is inactive all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Tools did not end in time; they are detached.
    #[error("tool calls still running: {}", .0.join(", "))]
    ToolsRunning(Vec<String>),
    /// The provider did not close in time.
    #[error("the provider did not close in time")]
    CloseTimedOut,
}

impl StartError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::AlreadyActive(_) => Status::FailedPrecondition,
            Self::InvalidConfig(_) => Status::InvalidArgument,
            Self::Agent(error) => error.status(),
            Self::Connect(error) => error.status(),
            Self::Recording(_) => Status::FailedPrecondition,
            Self::Stopped => Status::Cancelled,
            Self::Ended(reason) => reason.status(),
        }
    }
}

impl SendError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::NotActive => Status::FailedPrecondition,
            Self::QueueFull => Status::ResourceExhausted,
            Self::Unsupported(_) => Status::Unimplemented,
            Self::Invalid(_) => Status::InvalidArgument,
        }
    }
}

impl ShutdownError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        Status::DeadlineExceeded
    }
}
