//! How files fail.

use std::{fmt, io, path::Path};

use crate::{
    RuntimeError,
    store::{StoreError, StoreErrorKind},
};

/// The system refused to `what` the file.
pub(super) fn failed(path: &Path, what: &str, error: &io::Error) -> RuntimeError {
    use io::ErrorKind as Kind;
    let kind = match error.kind() {
        // The last one is a limit on the process.
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => StoreErrorKind::Full,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => StoreErrorKind::ReadOnly,
        Kind::NotFound => StoreErrorKind::NotFound,
        _ => StoreErrorKind::Io,
    };
    StoreError::new(kind, path, format_args!("cannot {what}: {error}")).into()
}

/// What is in the file is not what a store wrote.
pub(super) fn corrupt(path: &Path, reason: impl fmt::Display) -> RuntimeError {
    StoreError::new(StoreErrorKind::Corrupt, path, format_args!("damaged: {reason}")).into()
}

/// The file is not to be touched.
pub(super) fn refused(
    kind: StoreErrorKind,
    path: &Path,
    reason: impl fmt::Display,
) -> RuntimeError {
    StoreError::new(kind, path, reason).into()
}
