//! Canonical status codes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The canonical status codes that every error of Antiphon maps to with `status()`. The names on
/// the wire are those of `google.rpc.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Status {
    /// The caller ended the operation.
    Cancelled,
    /// None of the other codes fits.
    Unknown,
    /// The caller passed something that is wrong whatever the state of the system.
    InvalidArgument,
    /// The operation did not end in its time.
    DeadlineExceeded,
    /// What was asked for does not exist.
    NotFound,
    /// What was to be made exists already.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// A bound was reached: queue, size, rate.
    ResourceExhausted,
    /// The system is not in the state the operation needs.
    FailedPrecondition,
    /// The operation lost against a concurrent one.
    Aborted,
    /// A position lies outside what exists.
    OutOfRange,
    /// The operation is not offered here.
    Unimplemented,
    /// Something that should hold does not.
    Internal,
    /// The service cannot be reached now; trying again may help.
    Unavailable,
    /// Data is lost or corrupt.
    DataLoss,
    /// The caller has not proven who it is.
    Unauthenticated,
}

impl Status {
    /// The canonical name, such as `INVALID_ARGUMENT`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
