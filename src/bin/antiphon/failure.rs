//! How a command fails.

use std::{fmt, process::ExitCode};

/// Why a command did not do its work. `Display` is one line.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The command line, or a file named on it, is wrong. Exit status 2.
    Usage(String),
    /// Everything else. Exit status 1.
    Failed(String),
    /// Like `Failed`, but the user was told already.
    Told,
}

impl Failure {
    /// Wrong usage.
    pub fn usage(reason: impl fmt::Display) -> Self {
        Self::Usage(reason.to_string())
    }

    /// A failure at work.
    pub fn failed(reason: impl fmt::Display) -> Self {
        Self::Failed(reason.to_string())
    }

    /// The exit status.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) | Self::Told => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            Self::Usage(reason) | Self::Failed(reason) => reason,
            Self::Told => return Ok(()),
        };
        // Reasons from elsewhere may hold line breaks; the user gets one line.
        f.write_str(&reason.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}
