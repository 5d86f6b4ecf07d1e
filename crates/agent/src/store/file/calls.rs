//! Records of tool calls: a file for each. All of this blocks.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    disk::Disk,
    failure::{corrupt, failed},
    layout::sync_directory,
    log::lock,
    record::{self, Kind},
};
use crate::{
    RuntimeError,
    ledger::{CallRecord, in_order},
};

/// How long a writer waits for those of other processes.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

impl Disk {
    /// The record of a call.
    pub(super) fn call(
        &self,
        scope: Option<&str>,
        key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        // It only ever moves from the one place to the other.
        for path in self.layout.call(scope, key) {
            if let Some(record) = read(&path)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The records that are not settled, in the order in which they were made.
    pub(super) fn open_calls(
        &self,
        scope: Option<&str>,
        session: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError> {
        let directory = self.layout.open_calls(scope);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&directory, "read", &error)),
        };
        let mut calls = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(&directory, "read", &error))?.path();
            if path.extension().is_none_or(|extension| extension != "call") {
                continue;
            }
            // One that was settled meanwhile is gone.
            calls.extend(
                read(&path)?
                    .filter(|call| session.is_none_or(|session| *call.session_id == *session)),
            );
        }
        in_order(&mut calls);
        Ok(calls)
    }

    /// Puts `after` in the place of the record, where that still is as it was `seen`; on the disk when
    /// this returns. Whether it is.
    pub(super) fn save_call(
        &self,
        scope: Option<&str>,
        key: &str,
        seen: Option<&CallRecord>,
        after: Option<&CallRecord>,
    ) -> Result<bool, RuntimeError> {
        let [open, settled] = self.layout.call(scope, key);
        self.layout.make_directory_of(&open)?;
        let _lock = CallsLock::take(&self.layout.calls_lock(scope))?;
        if self.call(scope, key)?.as_ref() != seen {
            return Ok(false);
        }
        let Some(after) = after else {
            remove(&open)?;
            remove(&settled)?;
            return Ok(true);
        };
        let mut text = Vec::with_capacity(1024);
        let encoded = record::encode(&mut text, Kind::Call, after);
        encoded.map_err(|error| RuntimeError::InvalidArgument(format!("a call: {error}")))?;
        let place = if after.settled { &settled } else { &open };
        self.layout.make_directory_of(place)?;
        self.layout.write_aside(&text)?.replace(place)?;
        if after.settled {
            remove(&open)?;
        }
        Ok(true)
    }
}

/// Held by whoever changes the records of a tenant.
struct CallsLock(#[allow(dead_code)] File); // unlocked where it is closed

impl CallsLock {
    fn take(path: &Path) -> Result<Self, RuntimeError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(path).map_err(|error| failed(path, "open", &error))?;
        lock(&file, path, LOCK_PATIENCE)?;
        Ok(Self(file))
    }
}

fn read(path: &PathBuf) -> Result<Option<CallRecord>, RuntimeError> {
    match fs::read(path) {
        Ok(text) => {
            record::decode(&text, Kind::Call).map(Some).map_err(|damaged| corrupt(path, damaged))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, "read", &error)),
    }
}

fn remove(path: &Path) -> Result<(), RuntimeError> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path.parent()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path, "remove", &error)),
    }
}
