//! How a file is opened.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{SqliteSessionStore, database::Database};
use crate::{
    RuntimeError,
    store::{StoreError, StoreErrorKind},
};

/// What a write that returned survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The end of the process, of the system, and of the power: the disk was told to write it down
    /// and said that it did.
    #[default]
    PowerLoss,
    /// The end of the process at any moment, by `kill -9` as well. When the system crashes or the
    /// power fails, the last seconds may be missing, and the file is whole. For disks that take
    /// long.
    Crash,
}

/// How a [`SqliteSessionStore`] is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) read_only: bool,
    pub(super) readers: usize,
    pub(super) queue: usize,
    pub(super) deadline: Duration,
    pub(super) poll_interval: Duration,
    pub(super) cache_bytes: usize,
    pub(super) max_bytes: Option<u64>,
}

impl SqliteOptions {
    /// The file at `path`, as [`SqliteSessionStore::open`] opens it.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().into(),
            durability: Durability::default(),
            read_only: false,
            readers: 4,
            queue: 1024,
            deadline: Duration::from_secs(10),
            poll_interval: Duration::from_millis(100),
            cache_bytes: 64 << 20,
            max_bytes: None,
        }
    }

    /// Sets what a write that returned survives. Default: a loss of power.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Refuses all writes. The file must exist. Its directory is written to all the same, unless
    /// another process has the file open.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets how many reads may run at once. Default: 4.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// Sets how many writes may wait for the writer; more wait for a place. Default: 1024.
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// Sets how long a read or a write may take, waiting for others included. At most an hour.
    /// Default: 10 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(Duration::from_secs(3600));
        self
    }

    /// Sets how often the file is looked at for changes of other processes, while somebody wants to
    /// be told. At least 1 ms. Default: 100 ms.
    pub fn poll_interval(mut self, poll_interval: Duration) -> Self {
        self.poll_interval = poll_interval.max(Duration::from_millis(1));
        self
    }

    /// Sets about how many bytes of conversations are remembered that the file has anyway: those of
    /// running sessions need not be read for each turn. Default: 64 MiB.
    pub fn cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Sets what the file may grow to, about; writes that need more fail with
    /// [`StoreErrorKind::Full`]. Default: as far as the disk allows.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = Some(max_bytes);
        self
    }

    /// Opens the file.
    pub async fn open(self) -> Result<SqliteSessionStore, RuntimeError> {
        let path = self.path.clone();
        let database = tokio::task::spawn_blocking(move || Database::open(self))
            .await
            .map_err(|error| StoreError::new(StoreErrorKind::Io, &*path, error))??;
        Ok(SqliteSessionStore { database: Arc::new(database) })
    }
}
