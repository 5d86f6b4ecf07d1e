//! How a recording is written: one JSON object a line.

use std::{
    collections::BTreeSet,
    io::{BufRead, Read},
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::RecordingError;
use crate::session::engine::{EngineConfig, Input};

/// The version of the form. Another one is refused.
pub(super) const VERSION: u32 = 1;
/// Bytes that a line may have.
const MAX_LINE: u64 = 128 * 1024 * 1024;
/// The longest session that is believed.
const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) antiphon_recording: u32,
    /// The version of the toolkit that wrote it. Another one may do otherwise.
    pub(super) toolkit: String,
    /// Milliseconds since 1970 at the start of the session.
    pub(super) unix_ms: u64,
    /// Whether the samples are in it; otherwise they are zeros.
    pub(super) audio: bool,
    pub(super) config: EngineConfig,
}

/// The head of any version.
#[derive(Deserialize)]
struct AnyHeader {
    antiphon_recording: u32,
}

/// Every other line.
#[derive(Clone, Debug)]
pub(super) enum Line {
    Step(Box<Step>),
    End(End),
}

/// One call into the engine, and what it gave afterwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Step {
    /// Nanoseconds since the session was made.
    #[serde(rename = "t")]
    pub(super) at_ns: u64,
    /// What happened. Without one the deadline was reached, or, in the first step, the engine was made.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<Box<Input>>,
    /// Where the input tells a position of playout: when that was true, from the same zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) played_at_ns: Option<i64>,
    /// What was taken from the engine, in order: a name and a digest each.
    #[serde(rename = "out", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) taken: Vec<String>,
    /// Outputs were left when the next call came: it was made while one of these was acted on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) more: bool,
}

/// The last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// Everything up to the session's end is in it.
    pub(super) complete: bool,
    /// Steps that are missing before this line, because the disk was too slow.
    #[serde(default)]
    pub(super) dropped: u64,
}

/// The last line as it is written.
#[derive(Serialize, Deserialize)]
pub(super) struct EndLine {
    pub(super) end: End,
}

/// The lines of a recording.
pub(super) struct Lines<R> {
    reader: R,
    number: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, number: 0, buffer: Vec::new() }
    }

    /// The number of the line that was read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The first line.
    pub(super) fn header(&mut self) -> Result<Header, RecordingError> {
        let foreign = |why: &str| RecordingError::Foreign { why: why.to_owned() };
        if !self.read()? {
            return Err(foreign("the file is empty"));
        }
        let head: AnyHeader = serde_json::from_slice(&self.buffer)
            .map_err(|_| foreign("its first line has no \"antiphon_recording\""))?;
        if head.antiphon_recording != VERSION {
            return Err(RecordingError::Version { found: head.antiphon_recording });
        }
        serde_json::from_slice(&self.buffer).map_err(|error| self.invalid(&error))
    }

    /// The next line; `None` after the last.
    pub(super) fn next_line(&mut self) -> Result<Option<Line>, RecordingError> {
        if !self.read()? {
            return Ok(None);
        }
        let error = match serde_json::from_slice::<Step>(&self.buffer) {
            Ok(step) if Duration::from_nanos(step.at_ns) > MAX_TIME => {
                let why = "its time is that of no session".to_owned();
                return Err(RecordingError::Line { line: self.number, why });
            }
            Ok(step) => return Ok(Some(Line::Step(Box::new(step)))),
            Err(error) => error,
        };
        match serde_json::from_slice::<EndLine>(&self.buffer) {
            Ok(line) => Ok(Some(Line::End(line.end))),
            Err(_) => Err(self.invalid(&error)),
        }
    }

    fn invalid(&self, error: &serde_json::Error) -> RecordingError {
        if !self.buffer.ends_with(b"\n") {
            return RecordingError::Torn { line: self.number };
        }
        RecordingError::Line { line: self.number, why: error.to_string() }
    }

    fn read(&mut self) -> Result<bool, RecordingError> {
        self.buffer.clear();
        let read = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| RecordingError::Read(error.to_string()))?;
        self.number += u64::from(read > 0);
        if read as u64 == MAX_LINE {
            let why = format!("it has more than {MAX_LINE} bytes");
            return Err(RecordingError::Line { line: self.number, why });
        }
        Ok(read > 0)
    }
}

/// The name of a command, a hook or a reason, which programs have as a constant. (As a reference,
/// serde would borrow it from the text.)
pub(crate) type Name = &'static str;

/// Reads a [`Name`].
pub(crate) fn name<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
    /// Names that a program has; a recording with more is none of ours.
    const MAX_NAMES: usize = 256;
    static NAMES: LazyLock<Mutex<BTreeSet<Name>>> = LazyLock::new(Mutex::default);
    let name = String::deserialize(deserializer)?;
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return Ok(known);
    }
    if names.len() >= MAX_NAMES || name.len() > 256 {
        return Err(serde::de::Error::custom("too many names of commands and hooks"));
    }
    let name: Name = name.leak();
    names.insert(name);
    Ok(name)
}

/// A position of playout. Its time is written beside the input: see [`Step::played_at_ns`].
pub(crate) mod played {
    use antiphon_audio::{Generation, Played, PositionSource};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Form {
        generation: Generation,
        samples: u64,
        complete: bool,
        source: PositionSource,
    }

    impl From<&Played> for Form {
        fn from(played: &Played) -> Self {
            let Played { generation, samples, complete, source, at: _ } = *played;
            Self { generation, samples, complete, source }
        }
    }

    impl From<Form> for Played {
        fn from(form: Form) -> Self {
            let Form { generation, samples, complete, source } = form;
            Self { generation, samples, complete, source, at: *super::SOME_TIME }
        }
    }

    pub(crate) fn serialize<S: Serializer>(
        played: &Played,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Form::from(played).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Played, D::Error> {
        Form::deserialize(deserializer).map(Played::from)
    }
}

/// A position of playout, where there is one.
pub(crate) mod maybe_played {
    use antiphon_audio::Played;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::played::Form;

    pub(crate) fn serialize<S: Serializer>(
        played: &Option<Played>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        played.as_ref().map(Form::from).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Played>, D::Error> {
        Ok(Option::<Form>::deserialize(deserializer)?.map(Played::from))
    }
}

/// Bytes of which only the number is kept.
pub(crate) mod size {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    const MAX: usize = 64 * 1024 * 1024;

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.len().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        match usize::deserialize(deserializer)? {
            size if size <= MAX => Ok(Bytes::from(vec![0; size])),
            size => Err(D::Error::custom(format!("{size} bytes are too many"))),
        }
    }
}

/// What a time is until [`Step::played_at_ns`] says it.
static SOME_TIME: LazyLock<Instant> = LazyLock::new(Instant::now);
