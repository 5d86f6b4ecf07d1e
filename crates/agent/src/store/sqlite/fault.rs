//! What went wrong below the store, before it is known at which path.

use std::{fmt, io, path::Path, sync::Arc};

use rusqlite::ErrorCode;

use super::lineage::Broken;
use crate::store::{StoreError, StoreErrorKind};

/// A failure of the database, or of what it holds.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    File(io::Error),
    Other(StoreErrorKind, String),
}

impl Fault {
    pub(super) fn of(kind: StoreErrorKind, reason: impl fmt::Display) -> Self {
        Self::Other(kind, reason.to_string())
    }

    pub(super) fn corrupt(reason: impl fmt::Display) -> Self {
        Self::of(StoreErrorKind::Corrupt, reason)
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sql(error) if sql_kind(error) == StoreErrorKind::Busy)
    }

    /// The same at the path of the store.
    pub(super) fn at(self, path: impl Into<Arc<Path>>) -> StoreError {
        let (kind, reason) = match self {
            Self::Sql(error) => (sql_kind(&error), error.to_string()),
            Self::File(error) => (file_kind(&error), error.to_string()),
            Self::Other(kind, reason) => (kind, reason),
        };
        StoreError::new(kind, path, reason)
    }
}

fn sql_kind(error: &rusqlite::Error) -> StoreErrorKind {
    let rusqlite::Error::SqliteFailure(failure, _) = error else {
        // What a column holds is not what it must hold.
        return StoreErrorKind::Corrupt;
    };
    match failure.code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreErrorKind::Busy,
        ErrorCode::DiskFull => StoreErrorKind::Full,
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => StoreErrorKind::ReadOnly,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreErrorKind::Corrupt,
        ErrorCode::TooBig => StoreErrorKind::TooLarge,
        // Tables or columns are missing: whoever wrote the file, it was not this program.
        ErrorCode::Unknown => StoreErrorKind::Corrupt,
        _ => StoreErrorKind::Io,
    }
}

fn file_kind(error: &io::Error) -> StoreErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreErrorKind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreErrorKind::ReadOnly
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StoreErrorKind::Full
        }
        _ => StoreErrorKind::Io,
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::corrupt(format_args!("it holds JSON that cannot be read: {error}"))
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::corrupt(broken.0)
    }
}
