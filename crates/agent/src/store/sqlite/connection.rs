//! Connections to the file, and which file that is.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};

use super::{Durability, SqliteOptions, fault::Fault};
use crate::store::StoreErrorKind;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Reader,
    Writer,
}

pub(super) fn connect(
    path: &Path,
    options: &SqliteOptions,
    access: Access,
) -> Result<Connection, Fault> {
    let may_write = match options.read_only {
        true => OpenFlags::SQLITE_OPEN_READ_ONLY,
        false => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    // Each connection is used by one thread at a time.
    let connection =
        Connection::open_with_flags(path, may_write | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // It is to run out before the deadline does, since it knows the reason.
    connection.busy_timeout(options.deadline.mul_f32(0.75))?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    if access == Access::Reader {
        connection.pragma_update(None, "query_only", true)?;
        return Ok(connection);
    }
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(
        None,
        "synchronous",
        match options.durability {
            Durability::PowerLoss => "FULL",
            Durability::Crash => "NORMAL",
        },
    )?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    if let Some(max_bytes) = options.max_bytes {
        let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = (max_bytes / page.unsigned_abs().max(1)).clamp(1, u32::MAX.into());
        connection.pragma_update(None, "max_page_count", pages as i64)?;
    }
    Ok(connection)
}

/// What the log is cut to after it grew.
const LOG_BYTES: i64 = 8 << 20;

/// An empty file that only its owner can read; those that SQLite puts beside it are like it.
pub(super) fn create(path: &Path) -> Result<(), Fault> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop).map_err(Fault::File)
}

/// Has the file keep a write-ahead log. That is noted in the file, and needs a moment in which
/// nobody else uses it.
pub(super) fn use_log(connection: &Connection, patience: Duration) -> Result<(), Fault> {
    let asked = std::time::Instant::now();
    loop {
        let mode = connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        let mode = match mode.map_err(Fault::from) {
            Ok(mode) => mode,
            Err(fault) if fault.is_busy() && asked.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(fault) => return Err(fault),
        };
        return match mode.as_str() {
            "wal" => Ok(()),
            mode => Err(Fault::of(
                StoreErrorKind::Io,
                format_args!("the file system allows no write-ahead log, but {mode}"),
            )),
        };
    }
}

/// The one name of the file, through links, even where it does not exist yet. Its log lies beside
/// it under that name, and two logs of one file would be its ruin.
pub(super) fn one_name(path: &Path) -> Result<PathBuf, Fault> {
    match fs::canonicalize(path) {
        Ok(path) if path.is_dir() => Err(Fault::of(StoreErrorKind::Foreign, "it is a directory")),
        // Opening a pipe would wait for whoever writes to it.
        Ok(path) if !path.is_file() => Err(Fault::of(StoreErrorKind::Foreign, "it is no file")),
        Ok(path) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(Fault::File(error))?;
            let directory = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            Ok(fs::canonicalize(directory).map_err(Fault::File)?.join(name))
        }
        Err(error) => Err(Fault::File(error)),
    }
}

/// Which file it is, whatever its name.
#[derive(PartialEq, Eq)]
pub(super) struct Identity(Option<(u64, u64)>);

impl Identity {
    pub(super) fn of(path: &Path) -> Result<Self, Fault> {
        let metadata = fs::metadata(path).map_err(Fault::File)?;
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let identity = {
            drop(metadata);
            None
        };
        Ok(Self(identity))
    }

    /// Whether the file is still the one at the path: what is written to one that was removed or
    /// replaced is lost, and what is remembered of one is wrong for another.
    pub(super) fn check(&self, path: &Path) -> Result<(), Fault> {
        if Self::of(path)? == *self {
            return Ok(());
        }
        Err(Fault::of(StoreErrorKind::Io, "another file has taken its place"))
    }
}
