//! What goes wrong while the offline preset is loaded.

use std::path::PathBuf;

use antiphon_types::Status;

/// Why the offline preset could not be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfflineError {
    /// No directory holds the model files.
    #[error("no speech models found; looked in {}", list(.looked_in))]
    ModelsNotFound {
        /// The directories that were tried, in order.
        looked_in: Vec<PathBuf>,
    },
    /// A model file is missing from a directory that was named.
    #[error("model file {} is missing", .path.display())]
    ModelMissing {
        /// The file.
        path: PathBuf,
    },
    /// A model file is there, but reading it failed.
    #[error("model file {} cannot be read: {reason}", .path.display())]
    ModelUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A model file is not the one that this version expects.
    #[error("model file {} is corrupt: its BLAKE3 sum is {got}, not {expected}", .path.display())]
    ModelCorrupt {
        /// The file.
        path: PathBuf,
        /// The sum it should have, in hexadecimal digits.
        expected: String,
        /// The sum it has.
        got: String,
    },
    /// A model file has the right sum but cannot be used.
    #[error("model {model} cannot be used: {reason}")]
    ModelUnusable {
        /// The file's name.
        model: String,
        /// Why not.
        reason: String,
    },
    /// A loader ended without a result.
    #[error("loading the speech models failed: {reason}")]
    LoadFailed {
        /// What is known of it.
        reason: String,
    },
}

impl OfflineError {
    /// The canonical code.
    pub const fn status(&self) -> Status {
        match self {
            Self::ModelsNotFound { .. } | Self::ModelMissing { .. } => Status::NotFound,
            Self::ModelUnreadable { .. } => Status::Unavailable,
            Self::ModelCorrupt { .. } => Status::DataLoss,
            Self::ModelUnusable { .. } => Status::FailedPrecondition,
            Self::LoadFailed { .. } => Status::Internal,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
