//! Recordings of sessions, to run them again and to explain them.
//!
//! A recording holds every input of the session's engine with its time, and a digest of what the
//! engine gave. Since the engine is a pure state machine, the same inputs at the same times give the
//! same session: [`replay`] runs it again without provider, tools, devices or waiting, and says at
//! which line it did otherwise; [`explain`] says of each turn why the agent was silent, cut off or
//! late.
//!
//! ```no_run
//! # async fn f(session: antiphon::session::AgentSession) -> Result<(), Box<dyn std::error::Error>> {
//! use antiphon::session::recording::{Recording, explain};
//!
//! session.record(Recording::new("recordings"));
//! session.start(Default::default(), Default::default()).await?;
//! session.ended().await;
//! let file = session.recording_file().ok_or("nothing was recorded")?;
//! println!("{}", explain(std::io::BufReader::new(std::fs::File::open(file)?))?);
//! # Ok(())
//! # }
//! ```
//!
//! # What is in it
//!
//! Transcripts, messages, instructions, tool arguments and tool outputs are in it: whoever reads it
//! reads the conversation, so files are made for their owner alone. Samples are in it only where
//! [`Recording::audio`] asks for them; otherwise the length of each frame is. Of images only the size
//! is. Keys, tokens, handles to resume by, the endpoint and the provider's options never are.
//!
//! # What it costs
//!
//! The session's task hands each input to a bounded queue; another task writes. Where the disk is
//! so slow that the queue fills up, the recording ends there and says how much is missing
//! ([`SessionStats::unrecorded_inputs`](super::SessionStats::unrecorded_inputs)); the session goes on.

mod explain;
pub(crate) mod form;
mod replay;
mod tape;
mod writer;

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use antiphon_types::Status;

#[cfg(test)]
pub(crate) use self::replay::{Act, watch};
pub use self::{
    explain::{ExplainedTurn, Explanation, Fact, Fault, explain},
    replay::{Difference, Replayed, replay},
};
pub(crate) use self::{tape::RecordedEngine, writer::NewFile};

/// That and where a session is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    dir: PathBuf,
    audio: bool,
}

impl Recording {
    /// Into a new file in `dir`, which is made where it is not there, for each start of the session.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), audio: false }
    }

    /// Sets whether the samples of both voices are recorded. Default: no.
    pub fn audio(mut self, audio: bool) -> Self {
        self.audio = audio;
        self
    }

    /// Makes the file of a session that starts now. Blocks.
    pub(crate) fn create(&self, session_id: &str, unix_ms: u64) -> io::Result<NewFile> {
        fs::create_dir_all(&self.dir)?;
        let id: String = session_id
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        for again in 0..100 {
            let again = if again == 0 { String::new() } else { format!("-{again}") };
            let path = self.dir.join(format!("{unix_ms}-{id}{again}.jsonl"));
            match create_private(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return Ok(NewFile { file: file?, path, audio: self.audio, unix_ms }),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl<P: Into<PathBuf>> From<P> for Recording {
    fn from(dir: P) -> Self {
        Self::new(dir)
    }
}

/// A file that others may not read.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Why a recording cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(String),
    /// It is something else.
    #[error("no recording of a session: {why}")]
    Foreign {
        /// How that is known.
        why: String,
    },
    /// It is written in another form.
    #[error("a recording of form {found}; this program reads form {}", form::VERSION)]
    Version {
        /// Its form.
        found: u32,
    },
    /// It breaks off in the middle of a line: whoever wrote it was killed, or still writes.
    #[error("line {line} is torn: the recording breaks off there")]
    Torn {
        /// The line, from 1.
        line: u64,
    },
    /// A line is wrong.
    #[error("line {line}: {why}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
}

impl RecordingError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::Read(_) => Status::Unavailable,
            Self::Foreign { .. } | Self::Version { .. } => Status::InvalidArgument,
            Self::Torn { .. } | Self::Line { .. } => Status::DataLoss,
        }
    }
}
