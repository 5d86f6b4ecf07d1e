//! Why a store on disk cannot be used.

use std::{fmt, path::Path, sync::Arc};

use antiphon_types::Status;

/// Why a store on disk could not be opened, read or written. What was refused was left as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store {}: {reason}", path.display())]
#[non_exhaustive]
pub struct StoreError {
    /// What kind of failure it is.
    pub kind: StoreErrorKind,
    /// The file or directory.
    pub path: Arc<Path>,
    /// In words.
    pub reason: String,
}

/// The kinds of failure of a store on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is nothing at the path, or nothing can be made there.
    NotFound,
    /// The system, or the way in which it was opened, does not allow it.
    ReadOnly,
    /// The disk is full, or the store has reached its bound.
    Full,
    /// Others kept it locked for too long.
    Busy,
    /// The row was changed by others each time it was to be written.
    Contended,
    /// It is damaged.
    Corrupt,
    /// A later version wrote it, which this one does not understand.
    NewerVersion,
    /// It belongs to another program.
    Foreign,
    /// What was to be stored is too large for it.
    TooLarge,
    /// The system failed to read or write.
    Io,
}

impl StoreError {
    /// A failure of the store at `path`.
    pub fn new(
        kind: StoreErrorKind,
        path: impl Into<Arc<Path>>,
        reason: impl fmt::Display,
    ) -> Self {
        Self { kind, path: path.into(), reason: reason.to_string() }
    }

    /// The canonical code.
    pub fn status(&self) -> Status {
        match self.kind {
            StoreErrorKind::NotFound => Status::NotFound,
            StoreErrorKind::ReadOnly => Status::PermissionDenied,
            StoreErrorKind::Full => Status::ResourceExhausted,
            StoreErrorKind::Busy | StoreErrorKind::Io => Status::Unavailable,
            StoreErrorKind::Contended => Status::Aborted,
            StoreErrorKind::Corrupt => Status::DataLoss,
            StoreErrorKind::NewerVersion | StoreErrorKind::Foreign => Status::FailedPrecondition,
            StoreErrorKind::TooLarge => Status::InvalidArgument,
        }
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::ReadOnly => "read-only",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Contended => "contended",
            Self::Corrupt => "corrupt",
            Self::NewerVersion => "of a newer version",
            Self::Foreign => "not a store",
            Self::TooLarge => "too large",
            Self::Io => "failed to read or write",
        })
    }
}
