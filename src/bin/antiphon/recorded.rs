//! `antiphon replay` and `antiphon explain`.

use std::{
    fs::File,
    io::{self, BufReader, Write},
    path::Path,
};

use antiphon::session::recording::{self, RecordingError};

use crate::{args::RecordingArguments, failure::Failure};

/// Runs a recording again. Fails where it does not go the same way to its end.
pub fn replay(arguments: &RecordingArguments) -> Result<(), Failure> {
    let file = open(&arguments.file)?;
    let replayed = recording::replay(file).map_err(|error| wrong(&arguments.file, &error))?;
    print(&format!("{replayed}\n"))?;
    if replayed.is_same() { Ok(()) } else { Err(Failure::Told) }
}

/// Says what the agent did in each turn, and why.
pub fn explain(arguments: &RecordingArguments) -> Result<(), Failure> {
    let file = open(&arguments.file)?;
    let explanation = recording::explain(file).map_err(|error| wrong(&arguments.file, &error))?;
    print(&explanation.to_string())?;
    if explanation.note.is_none() { Ok(()) } else { Err(Failure::Told) }
}

fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let file = File::open(path).map_err(|error| Failure::usage(named(path, &error)))?;
    Ok(BufReader::new(file))
}

/// A file that is no recording is the wrong argument; one that is damaged is another matter.
fn wrong(path: &Path, error: &RecordingError) -> Failure {
    match error {
        RecordingError::Foreign { .. } | RecordingError::Version { .. } => {
            Failure::usage(named(path, error))
        }
        error => Failure::failed(named(path, error)),
    }
}

fn named(path: &Path, what: &dyn std::fmt::Display) -> String {
    format!("{}: {what}", path.display())
}

/// Who closes the pipe has read enough.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
