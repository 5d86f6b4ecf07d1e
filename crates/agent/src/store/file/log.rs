//! The log of a session: what its snapshots are made of.
//!
//! Records are only ever appended, under a lock that all processes respect, and a row points at
//! them by place, so that readers need no lock: what a row points at was on the disk before the row.
//! What a writer that was killed left at the end is pointed at by nobody, and passed over.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufRead, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    failure::{corrupt, failed},
    record::{self, Kind, Place},
};
use crate::{
    RuntimeError,
    message::{Message, Messages},
    store::{StoreError, StoreErrorKind},
};

/// What is read at once where many records are read.
const WINDOW: u64 = 1 << 20;
/// What is read at once where the last record is looked for.
const TAIL: u64 = 4096;

/// A row and when it was made: what the latest of a session is found by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) created_at: Timestamp,
    pub(super) id: Arc<str>,
}

/// The last record of all that were written with a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) row: Entry,
    /// The latest row of the session before that.
    pub(super) latest: Option<Entry>,
}

/// The first record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LogHeader {
    pub(super) session: Arc<str>,
    /// The tenant.
    pub(super) scope: Option<Arc<str>>,
}

/// Messages that follow others.
#[derive(Deserialize)]
struct Block {
    /// The record that holds the last of the messages before.
    before: Option<Place>,
    /// How many there are before.
    start: usize,
    items: Vec<Arc<Message>>,
}

/// A [`Block`] to be written.
#[derive(Serialize)]
pub(super) struct NewBlock<'a> {
    pub(super) before: Option<Place>,
    pub(super) start: usize,
    pub(super) items: &'a [Arc<Message>],
}

impl NewBlock<'_> {
    /// Whether what was encoded from it is read back as it is.
    pub(super) fn is(&self, line: &[u8]) -> bool {
        record::decode::<Block>(line, Kind::Messages).is_ok_and(|block| block.items == self.items)
    }
}

/// A log that is open to be read.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    len: u64,
    /// What was read last, and where it begins.
    window: (u64, Vec<u8>),
    /// How much is read at once, at least.
    reach: u64,
}

impl Log {
    /// Opens the log; `None` where there is none.
    pub(super) fn open(path: PathBuf) -> Result<Option<Self>, RuntimeError> {
        match File::open(&path) {
            Ok(file) => Self::of(path, file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path, "open", &error)),
        }
    }

    fn of(path: PathBuf, file: File) -> Result<Self, RuntimeError> {
        let len = file.metadata().map_err(|error| failed(&path, "read", &error))?.len();
        Ok(Self { path, file, len, window: (0, Vec::new()), reach: 0 })
    }

    /// What the record at `place` holds.
    pub(super) fn read<T: DeserializeOwned>(
        &mut self,
        place: Place,
        kind: Kind,
    ) -> Result<T, RuntimeError> {
        self.line(place)?;
        record::decode(self.cached(place), kind).map_err(|damaged| self.damaged(place, damaged))
    }

    /// Whether the record at `place` is the same as `line`.
    pub(super) fn holds(&mut self, place: Place, line: &[u8]) -> Result<bool, RuntimeError> {
        if place.len != line.len() as u64 {
            return Ok(false);
        }
        self.line(place)?;
        Ok(self.cached(place) == line)
    }

    /// All messages up to the last in the record at `place`. What `known` has of records before is
    /// not read again.
    pub(super) fn messages(
        &mut self,
        place: Place,
        known: impl Fn(Place) -> Option<Messages>,
    ) -> Result<Messages, RuntimeError> {
        self.reach = WINDOW;
        let mut messages = Messages::new();
        // From the last back.
        let mut blocks: Vec<Vec<Arc<Message>>> = Vec::new();
        let (mut next, mut wanted) = (Some(place), None);
        while let Some(place) = next {
            if let Some(mut known) = known(place) {
                let wanted = wanted.unwrap_or(known.len());
                if known.len() < wanted {
                    return Err(self.damaged(place, "messages are missing"));
                }
                known.truncate(wanted);
                messages = known;
                break;
            }
            let Block { before, start, mut items } = self.read(place, Kind::Messages)?;
            let len = start.saturating_add(items.len());
            let wanted_here = wanted.unwrap_or(len);
            if len < wanted_here {
                return Err(self.damaged(place, "messages are missing"));
            }
            if wanted_here > start {
                items.truncate(wanted_here - start);
                blocks.push(items);
            }
            wanted = Some(wanted_here.min(start));
            next = match before {
                _ if wanted == Some(0) => None,
                // Always to the front, so this ends.
                Some(before) if before.end() <= place.at => Some(before),
                _ => return Err(self.damaged(place, "messages are missing")),
            };
        }
        self.reach = 0;
        blocks.into_iter().rev().for_each(|block| messages.extend(block));
        Ok(messages)
    }

    /// The last row that was written, by the log.
    pub(super) fn last_written(&mut self) -> Result<Option<Written>, RuntimeError> {
        let mut size = TAIL;
        loop {
            let start = self.len.saturating_sub(size);
            let tail = self.bytes(start, self.len - start)?;
            // What comes before the first line feed may be the end of a record.
            let from = match start {
                0 => Some(0),
                _ => tail.iter().position(|byte| *byte == b'\n').map(|at| at + 1),
            };
            let lines = from.map(|from| &tail[from..]).unwrap_or_default();
            let found = lines
                .split_inclusive(|byte| *byte == b'\n')
                .rev()
                .filter(|line| record::claims(line, Kind::Written))
                .find_map(|line| record::decode(line, Kind::Written).ok());
            if found.is_some() || start == 0 {
                return Ok(found);
            }
            size *= 4;
        }
    }

    /// Reads the beginning: whose it is, and the first row. `None` where no row was written.
    pub(super) fn begin(&mut self) -> Result<Option<(LogHeader, Entry)>, RuntimeError> {
        let mut header = None;
        let mut first = None;
        self.lines(|line| {
            if record::claims(line, Kind::Written) {
                first = record::decode::<Written>(line, Kind::Written).ok();
            } else if record::claims(line, Kind::Header) {
                header = header.take().or(record::decode(line, Kind::Header).ok());
            }
            first.is_none() || header.is_none()
        })?;
        Ok(header.zip(first.map(|written: Written| written.row)))
    }

    /// Each time that a row was written, oldest first.
    pub(super) fn scan(&mut self) -> Result<Vec<Written>, RuntimeError> {
        let mut written = Vec::new();
        self.lines(|line| {
            if record::claims(line, Kind::Written) {
                written.extend(record::decode::<Written>(line, Kind::Written).ok());
            }
            true
        })?;
        Ok(written)
    }

    /// Hands out line by line while `more`.
    fn lines(&mut self, mut more: impl FnMut(&[u8]) -> bool) -> Result<(), RuntimeError> {
        let failed = |error| failed(&self.path, "read", &error);
        (&self.file).seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut reader = io::BufReader::with_capacity(64 * 1024, (&self.file).take(self.len));
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 || !more(&line) {
                return Ok(());
            }
        }
    }

    /// Has the bytes of the record at `place` in the window.
    fn line(&mut self, place: Place) -> Result<(), RuntimeError> {
        if place.end() > self.len {
            return Err(self.damaged(place, "it is cut off"));
        }
        let (start, bytes) = &self.window;
        if place.at < *start || place.end() > start + bytes.len() as u64 {
            // Records are read from the last back.
            let start = place.end().saturating_sub(self.reach).min(place.at);
            self.window = (0, Vec::new());
            self.window = (start, self.bytes(start, place.end() - start)?);
        }
        Ok(())
    }

    /// What [`line`](Self::line) brought in.
    fn cached(&self, place: Place) -> &[u8] {
        let (start, bytes) = &self.window;
        let from = (place.at - start) as usize;
        &bytes[from..from + place.len as usize]
    }

    fn bytes(&mut self, start: u64, len: u64) -> Result<Vec<u8>, RuntimeError> {
        let read = |file: &mut File| {
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        read(&mut self.file).map_err(|error| failed(&self.path, "read", &error))
    }

    fn damaged(&self, place: Place, reason: impl std::fmt::Display) -> RuntimeError {
        corrupt(&self.path, format_args!("at byte {}: {reason}", place.at))
    }
}

/// A log that this writer alone may append to, until it is dropped.
pub(super) struct LockedLog {
    log: Log,
}

impl LockedLog {
    /// Opens the log, or makes it, and waits until nobody else writes to it, up to `patience`. Its
    /// directory must exist.
    pub(super) fn open(path: &Path, patience: Duration) -> Result<Self, RuntimeError> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| failed(path, "open", &error))?;
        lock(&file, path, patience)?;
        Ok(Self { log: Log::of(path.to_owned(), file)? })
    }

    /// To be read from.
    pub(super) fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    pub(super) fn len(&self) -> u64 {
        self.log.len
    }

    /// What has to be appended first, so that the next record begins a line.
    pub(super) fn line_break(&mut self) -> Result<&'static [u8], RuntimeError> {
        let len = self.log.len;
        let whole = len == 0 || self.log.bytes(len - 1, 1)? == b"\n";
        Ok(if whole { b"" } else { b"\n" })
    }

    /// Appends bytes, on the disk when this returns.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), RuntimeError> {
        let log = &mut self.log;
        match log.file.write_all(bytes).and_then(|()| log.file.sync_data()) {
            Ok(()) => {
                log.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Nobody points at it yet. Where this fails as well, it is passed over.
                let _ = log.file.set_len(log.len);
                Err(failed(&log.path, "write", &error))
            }
        }
    }
}
/// Locks a file against other processes, up to `patience`; until it is closed.
pub(super) fn lock(file: &File, path: &Path, patience: Duration) -> Result<(), RuntimeError> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_micros(50);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(failed(path, "lock", &error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let reason = "another process has it locked";
                return Err(StoreError::new(StoreErrorKind::Busy, path, reason).into());
            }
            Err(TryLockError::WouldBlock) => {
                // A wait of the system's own could not be bounded.
                thread::sleep(pause);
                pause = (2 * pause).min(Duration::from_millis(5));
            }
        }
    }
}
