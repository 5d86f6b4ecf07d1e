//! Why calls are not decided over.

use std::sync::Arc;

use antiphon_types::Status;

use crate::{
    Outcome, RuntimeError,
    ledger::{CallRecord, CallState},
};

/// Why a call was not decided over.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApprovalError {
    /// The store keeps no account of calls.
    #[error("the store keeps no account of tool calls")]
    Unsupported,
    /// No call has this key, or it never waited for anybody.
    #[error("no call {0:?} waits for a person")]
    NotFound(Arc<str>),
    /// It does not wait any more: it was decided over, or its time is up.
    #[error("{}", stale(.0))]
    NotWaiting(Box<CallRecord>),
    /// Its arguments are not those that the person was shown.
    #[error("the arguments of call {0:?} are not those that were shown")]
    ChangedArguments(Arc<str>),
    /// It is another agent's.
    #[error("call {key:?} is one of agent {agent:?}")]
    AnotherAgent {
        /// The call.
        key: Arc<str>,
        /// Whose it is.
        agent: Arc<str>,
    },
    /// There is no such tool here.
    #[error("there is no tool {0:?} here that could run")]
    NoTool(Arc<str>),
    /// The store or the runtime failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl ApprovalError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::Unsupported | Self::NotWaiting(_) => Status::FailedPrecondition,
            Self::NotFound(_) | Self::NoTool(_) => Status::NotFound,
            Self::ChangedArguments(_) | Self::AnotherAgent { .. } => Status::InvalidArgument,
            Self::Runtime(error) => error.status(),
        }
    }
}

fn stale(record: &CallRecord) -> String {
    let key = &record.key;
    let by = record.approval.as_ref().and_then(|approval| approval.decision.as_ref());
    let by = by.and_then(|decision| decision.by.as_deref());
    let by = by.map(|name| format!(" by {name}")).unwrap_or_default();
    match &record.state {
        CallState::Waiting => format!("call {key:?} waits"),
        CallState::Running { .. } => format!("call {key:?} was approved already{by}, and runs"),
        CallState::Ended { outcome: Outcome::NotApproved, .. } => {
            format!("call {key:?} was refused already{by}")
        }
        CallState::Ended { outcome: Outcome::Expired, .. } => {
            format!("nobody decided over call {key:?} in time: it expired")
        }
        CallState::Ended { outcome: Outcome::Cancelled, .. } if by.is_empty() => {
            format!("call {key:?} does not wait any more: the turn that asked for it was undone")
        }
        CallState::Ended { .. } => format!("call {key:?} was decided over already{by}"),
    }
}

impl From<ApprovalError> for RuntimeError {
    fn from(error: ApprovalError) -> Self {
        match error {
            ApprovalError::Runtime(error) => error,
            error => Self::new(error.status(), error.to_string()),
        }
    }
}
