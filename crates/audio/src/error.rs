//! Errors of the audio crate.

use antiphon_types::{AudioFormat, Status};

/// What goes wrong with audio.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// A frame has another format than it must have here.
    #[error("audio is {got:?} where {expected:?} is expected")]
    FormatMismatch {
        /// What it must be.
        expected: AudioFormat,
        /// What it is.
        got: AudioFormat,
    },
    /// A rate or format that cannot be handled.
    #[error("unsupported audio: {0}")]
    Unsupported(String),
    /// A frame of 16-bit PCM with an odd number of bytes: half a sample is missing or too many.
    #[error("{bytes} bytes are no whole number of 16-bit samples")]
    HalfSample {
        /// The bytes in the frame.
        bytes: usize,
    },
    /// A file is no WAV, or one that cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No usable device.
    #[error("no audio device: {0}")]
    NoDevice(String),
    /// A device failed or went away.
    #[error("audio device: {0}")]
    Device(String),
    /// A codec failed.
    #[error("codec: {0}")]
    Codec(String),
}

impl AudioError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::FormatMismatch { .. }
            | Self::Unsupported(_)
            | Self::HalfSample { .. }
            | Self::File { .. } => Status::InvalidArgument,
            Self::NoDevice(_) => Status::NotFound,
            Self::Device(_) => Status::Unavailable,
            Self::Codec(_) => Status::DataLoss,
        }
    }
}
