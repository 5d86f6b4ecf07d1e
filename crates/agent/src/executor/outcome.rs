//! How calls end.

use antiphon_types::Status;
use serde::{Deserialize, Serialize};

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The tool gave a result.
    Success,
    /// The tool gave an error.
    Error,
    /// The policy refused it, erred, panicked or was late.
    Denied,
    /// The policy refused it for now: too much was done lately.
    RateLimited,
    /// The user did not confirm it.
    NotConfirmed,
    /// No tool has the name.
    UnknownTool,
    /// The arguments are no JSON object, or break the schema.
    InvalidArguments,
    /// The tool panicked.
    Panicked,
    /// The tool took too long.
    TimedOut,
    /// The model or the host took the call back.
    Cancelled,
    /// The reply that held it was interrupted before the call started.
    Interrupted,
    /// The output was larger than allowed.
    OutputTooLarge,
    /// The tool waits for somebody's answer: [`Executed::interrupt`](crate::Executed::interrupt) says why.
    Paused,
    /// A person was asked and did not approve it.
    NotApproved,
    /// A person was asked and did not decide in time.
    Expired,
}

impl Outcome {
    /// What the model is told of this outcome where there is nothing more to tell; discloses
    /// nothing of the host.
    pub const fn fixed_text(self) -> &'static str {
        match self {
            Self::Success => "no output",
            Self::Error | Self::Panicked => "the tool failed",
            Self::Denied => "tool call denied by host policy",
            Self::RateLimited => "the host's policy allows no more of this for now",
            Self::NotConfirmed => "the user did not confirm the tool call",
            Self::UnknownTool => "unknown tool",
            Self::InvalidArguments => "invalid arguments",
            Self::TimedOut => "the tool timed out",
            Self::Cancelled => "the tool call was cancelled",
            Self::Interrupted => "the tool call was interrupted before it started",
            Self::OutputTooLarge => "the output of the tool is too large",
            Self::Paused => "the tool waits for somebody's answer and has not done it yet",
            Self::NotApproved => "the tool call was not approved",
            Self::Expired => "nobody decided over the tool call in time; it was not done",
        }
    }

    /// The canonical code: `None` where nothing went wrong.
    pub const fn status(self) -> Option<Status> {
        match self {
            Self::Success | Self::Paused => None,
            Self::Error | Self::Panicked => Some(Status::Internal),
            Self::Denied | Self::NotConfirmed | Self::NotApproved => Some(Status::PermissionDenied),
            Self::UnknownTool => Some(Status::NotFound),
            Self::InvalidArguments => Some(Status::InvalidArgument),
            Self::TimedOut | Self::Expired => Some(Status::DeadlineExceeded),
            Self::Cancelled | Self::Interrupted => Some(Status::Cancelled),
            Self::OutputTooLarge | Self::RateLimited => Some(Status::ResourceExhausted),
        }
    }
}
