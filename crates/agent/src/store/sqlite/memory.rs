//! Memory in a SQLite file.

use std::{fmt, path::Path, sync::Arc};

use antiphon_types::Status;
use async_trait::async_trait;
use tokio::time::timeout;

use super::{
    SqliteSessionStore,
    database::{Database, Work},
    read::one,
};
use crate::{
    RuntimeError,
    memory::{Memory, MemoryError},
    store::StoreError,
};

/// A memory in a SQLite file, which several processes may have open at once. A change is on the
/// disk when it returns, as a snapshot is: see [`SqliteSessionStore`], of which it may share the
/// file ([`SqliteSessionStore::memory`]). Clones share the open file.
///
/// A key and its value together may have 16 MiB.
#[derive(Clone)]
pub struct SqliteMemory {
    database: Arc<Database>,
}

const MAX_BYTES: usize = 16 << 20;

impl SqliteMemory {
    /// Opens the file, or makes it, as [`SqliteSessionStore::open`] does.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, RuntimeError> {
        Ok(SqliteSessionStore::open(path).await?.memory())
    }

    pub(super) fn new(database: Arc<Database>) -> Self {
        Self { database }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    async fn write(&self, key: &str, value: Option<&str>) -> Result<(), MemoryError> {
        if key.len() + value.map_or(0, str::len) > MAX_BYTES {
            let message = format!("a key and its value have more than {MAX_BYTES} bytes");
            return Err(MemoryError::new(Status::ResourceExhausted, message));
        }
        let work = Work::Remember(key.into(), value.map(str::to_owned));
        self.within(self.database.write(work)).await?;
        Ok(())
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, MemoryError> {
        let deadline = self.database.options.deadline;
        let late = |_| {
            let path = self.path().display();
            let message = format!("{path}: no answer within {} ms", deadline.as_millis());
            MemoryError::new(Status::DeadlineExceeded, message)
        };
        timeout(deadline, work).await.map_err(late)?.map_err(Into::into)
    }
}

#[async_trait]
impl Memory for SqliteMemory {
    async fn get(&self, key: &str) -> Result<Option<String>, MemoryError> {
        let key = key.to_owned();
        let value = self.database.read(move |connection, _| {
            one(connection, "SELECT value FROM memory WHERE key = ?1", [key])
        });
        self.within(value).await
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), MemoryError> {
        self.write(key, Some(value)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, MemoryError> {
        let prefix = prefix.to_owned();
        let keys = self.database.read(move |connection, _| {
            let sql = "SELECT key FROM memory WHERE key >= ?1 ORDER BY key";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query([&prefix])?;
            let mut keys = Vec::new();
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                if !key.starts_with(&prefix) {
                    break;
                }
                keys.push(key);
            }
            Ok(keys)
        });
        self.within(keys).await
    }

    async fn delete(&self, key: &str) -> Result<(), MemoryError> {
        self.write(key, None).await
    }
}

impl fmt::Debug for SqliteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteMemory").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl From<StoreError> for MemoryError {
    fn from(error: StoreError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}
