//! Errors of the agent runtime.

use std::sync::Arc;

use antiphon_types::Status;
use serde_json::Value;

use crate::{ModelError, state::AgentErrorDetails, store::StoreError};

/// Why something of an agent, a session or a store could not be done. [`RuntimeError::status`] is
/// the canonical code.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// No snapshot has the id.
    #[error("there is no snapshot {0:?}")]
    SnapshotNotFound(Arc<str>),
    /// The session has no snapshots.
    #[error("there is no session {0:?}")]
    SessionNotFound(Arc<str>),
    /// The operation needs a store, and the agent has none.
    #[error("agent {0:?} has no session store: give it one where it is defined")]
    SessionStoreNotConfigured(Arc<str>),
    /// The store cannot tell of changes, which is needed to stop work in the background.
    #[error("the session store of agent {0:?} cannot tell of changes: work cannot go on detached")]
    NotAbortable(Arc<str>),
    /// A snapshot came to a store without a session.
    #[error("a snapshot needs a session id")]
    SessionIdRequired,
    /// The invocation is over; nothing can be sent to it.
    #[error("the invocation is over; its output says how it ended")]
    Completed,
    /// The caller took the call back.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The time of the call is up.
    #[error("out of time: {0}")]
    DeadlineExceeded(String),
    /// What the caller passed is wrong.
    #[error("{0}")]
    InvalidArgument(String),
    /// Things are not as the call needs them.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The snapshot stands for work that was lost with its process, or stopped, and has no state to go on
    /// from.
    #[error("{message}")]
    WorkLost {
        /// The snapshot.
        snapshot_id: Arc<str>,
        /// The one before it, from which the conversation can go on.
        parent_id: Option<Arc<str>>,
        /// What can be done, in words.
        message: String,
    },
    /// The run reached a bound that its caller had set, such as a number of rounds of tools.
    #[error("{0}")]
    LimitReached(String),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A store on disk cannot be used, or not for this.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Something else, of the host or of a store.
    #[error("{}", .0.message)]
    Other(AgentErrorDetails),
}

impl RuntimeError {
    /// An error of this code.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        match status {
            Status::InvalidArgument => Self::InvalidArgument(message.into()),
            Status::FailedPrecondition => Self::FailedPrecondition(message.into()),
            _ => Self::Other(AgentErrorDetails::new(status, message)),
        }
    }

    /// Something that should hold does not.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Status::Internal, message)
    }

    /// Adds details for whoever reads the error on the wire.
    pub fn with_details(self, details: Value) -> Self {
        let mut own = self.to_details();
        own.details = Some(details);
        Self::Other(own)
    }

    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::SnapshotNotFound(_) | Self::SessionNotFound(_) => Status::NotFound,
            Self::SessionStoreNotConfigured(_)
            | Self::NotAbortable(_)
            | Self::Completed
            | Self::WorkLost { .. }
            | Self::FailedPrecondition(_) => Status::FailedPrecondition,
            Self::SessionIdRequired | Self::InvalidArgument(_) => Status::InvalidArgument,
            Self::Cancelled(_) => Status::Cancelled,
            Self::DeadlineExceeded(_) => Status::DeadlineExceeded,
            Self::LimitReached(_) => Status::Aborted,
            Self::Model(error) => error.status(),
            Self::Store(error) => error.status(),
            Self::Other(details) => details.status,
        }
    }

    /// The error of a call that ended in this way, and what it was doing then.
    pub(crate) fn ended(status: Status, what: impl Into<String>) -> Self {
        match status {
            Status::DeadlineExceeded => Self::DeadlineExceeded(what.into()),
            _ => Self::Cancelled(what.into()),
        }
    }

    /// Whether this is the caller's own doing: it took the call back, let its time run out, or set
    /// the bound that was reached. The same codes from somebody else's answer are not.
    pub fn is_callers_stop(&self) -> bool {
        matches!(self, Self::Cancelled(_) | Self::DeadlineExceeded(_) | Self::LimitReached(_))
    }

    /// As it is stored and told to clients. They are not told where a store lies.
    pub fn to_details(&self) -> AgentErrorDetails {
        match self {
            Self::Other(details) => details.clone(),
            Self::Store(error) => {
                let message = format!("the session store cannot do this: {}", error.kind);
                AgentErrorDetails::new(error.status(), message)
            }
            error => AgentErrorDetails::new(error.status(), error.to_string()),
        }
    }
}

impl From<AgentErrorDetails> for RuntimeError {
    fn from(details: AgentErrorDetails) -> Self {
        match details {
            AgentErrorDetails { status, message, details: None } => Self::new(status, message),
            details => Self::Other(details),
        }
    }
}
