//! Session-scoped key-value memory.

mod file;

use std::{
    collections::BTreeMap,
    fmt,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock},
};

use antiphon_types::Status;
use async_trait::async_trait;

use crate::Caller;

pub use self::file::FileMemory;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SqliteMemory;

/// A store of strings by key. Keys are kept verbatim; hooks and tools of a session get a view that
/// prefixes the session, and its tenant where it has one: [`ScopedMemory`].
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a memory",
    note = "implement `antiphon_agent::Memory`, or use `InMemory` or `FileMemory`"
)]
pub trait Memory: Send + Sync + 'static {
    /// The value, if there is one.
    async fn get(&self, key: &str) -> Result<Option<String>, MemoryError>;
    /// Sets the value.
    async fn set(&self, key: &str, value: &str) -> Result<(), MemoryError>;
    /// The keys that begin with `prefix`, sorted; an empty prefix is all.
    async fn list(&self, prefix: &str) -> Result<Vec<String>, MemoryError>;
    /// Removes the key; a missing one is fine.
    async fn delete(&self, key: &str) -> Result<(), MemoryError>;

    /// Removes every key that begins with `prefix`; all of them where that is empty. Returns how many.
    /// An error says that some may be left. Keys that are set meanwhile may stay.
    async fn forget(&self, prefix: &str) -> Result<u64, MemoryError> {
        let keys = self.list(prefix).await?;
        for key in &keys {
            self.delete(key).await?;
        }
        Ok(keys.len() as u64)
    }
}

/// Why memory could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory: {message}")]
#[non_exhaustive]
pub struct MemoryError {
    /// What happened.
    pub message: String,
    /// The canonical code.
    pub status: Status,
}

impl MemoryError {
    /// An error with this code.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { message: message.into(), status }
    }

    /// The canonical code.
    pub fn status(&self) -> Status {
        self.status
    }
}

/// A memory that ends with the process. Bounded: what would make keys and values together larger
/// than the bound is refused with [`Status::ResourceExhausted`].
#[derive(Debug)]
pub struct InMemory {
    table: RwLock<Table>,
}

impl InMemory {
    /// An empty memory of at most 16 MiB.
    pub fn new() -> Self {
        Self::with_max_bytes(DEFAULT_MAX_BYTES)
    }

    /// An empty memory of at most this many bytes of keys and values.
    pub fn with_max_bytes(max_bytes: usize) -> Self {
        Self { table: RwLock::new(Table::new(max_bytes)) }
    }
}

impl Default for InMemory {
    fn default() -> Self {
        Self::new()
    }
}

// The lock is held for map operations only, never over an await or foreign code, so a poisoned one
// still guards a whole table.
#[async_trait]
impl Memory for InMemory {
    async fn get(&self, key: &str) -> Result<Option<String>, MemoryError> {
        Ok(self.table.read().unwrap_or_else(PoisonError::into_inner).get(key))
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), MemoryError> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).set(key, value)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, MemoryError> {
        Ok(self.table.read().unwrap_or_else(PoisonError::into_inner).list(prefix))
    }

    async fn delete(&self, key: &str) -> Result<(), MemoryError> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).delete(key);
        Ok(())
    }
}

/// A view of another memory in which every key has the prefix `{scope}/`, usually the session's id.
/// What lies outside cannot be reached through it: `/` and `%` of the scope are `%2F` and `%25` in
/// the prefix, so that no scope lies within another.
#[derive(Clone)]
pub struct ScopedMemory {
    inner: Arc<dyn Memory>,
    prefix: Arc<str>,
}

impl ScopedMemory {
    /// The view of `inner` under `scope`.
    pub fn new(inner: Arc<dyn Memory>, scope: &str) -> Self {
        Self { inner, prefix: format!("{}/", escaped(scope)).into() }
    }

    /// The view of a session of a [tenant](crate::Caller::scope), under `/{tenant}/{session}/`; of a
    /// session of nobody in particular it is [`ScopedMemory::new`]. Two tenants may have sessions of
    /// the same id.
    pub fn of_tenant(inner: Arc<dyn Memory>, tenant: Option<&str>, session: &str) -> Self {
        match tenant {
            // No session's own prefix begins with a slash.
            Some(tenant) => {
                let prefix = format!("/{}/{}/", escaped(tenant), escaped(session)).into();
                Self { inner, prefix }
            }
            None => Self::new(inner, session),
        }
    }

    /// The view of a caller, which all of their sessions share: under `{caller}/`, or
    /// `/{tenant}/{caller}/` of a caller who has a [tenant](crate::Caller::scope).
    pub fn of_caller(inner: Arc<dyn Memory>, caller: &Caller) -> Self {
        Self::of_tenant(inner, caller.scope.as_deref(), &caller.id)
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

#[async_trait]
impl Memory for ScopedMemory {
    async fn get(&self, key: &str) -> Result<Option<String>, MemoryError> {
        self.inner.get(&self.key(key)).await
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), MemoryError> {
        self.inner.set(&self.key(key), value).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, MemoryError> {
        let keys = self.inner.list(&self.key(prefix)).await?;
        Ok(keys
            .iter()
            .filter_map(|key| key.strip_prefix(&*self.prefix).map(str::to_owned))
            .collect())
    }

    async fn delete(&self, key: &str) -> Result<(), MemoryError> {
        self.inner.delete(&self.key(key)).await
    }

    async fn forget(&self, prefix: &str) -> Result<u64, MemoryError> {
        self.inner.forget(&self.key(prefix)).await
    }
}

impl fmt::Debug for ScopedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedMemory").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn escaped(scope: &str) -> String {
    scope.replace('%', "%25").replace('/', "%2F")
}

const DEFAULT_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Strings by key, sorted, within a bound.
#[derive(Clone, Debug)]
struct Table {
    entries: BTreeMap<String, String>,
    bytes: usize,
    max_bytes: usize,
}

impl Table {
    fn new(max_bytes: usize) -> Self {
        Self { entries: BTreeMap::new(), bytes: 0, max_bytes }
    }

    fn get(&self, key: &str) -> Option<String> {
        self.entries.get(key).cloned()
    }

    /// The table of these entries; `None` when they are more than `max_bytes`.
    fn from_entries(entries: BTreeMap<String, String>, max_bytes: usize) -> Option<Self> {
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        (bytes <= max_bytes).then_some(Self { entries, bytes, max_bytes })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), MemoryError> {
        let freed = self.entries.get(key).map_or(0, |old| key.len() + old.len());
        let bytes = self.bytes - freed + key.len() + value.len();
        if bytes > self.max_bytes {
            return Err(MemoryError::new(
                Status::ResourceExhausted,
                format!("full: {bytes} bytes, at most {}", self.max_bytes),
            ));
        }
        self.bytes = bytes;
        self.entries.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn list(&self, prefix: &str) -> Vec<String> {
        self.entries
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(prefix))
            .cloned()
            .collect()
    }

    fn delete(&mut self, key: &str) {
        if let Some(old) = self.entries.remove(key) {
            self.bytes -= key.len() + old.len();
        }
    }
}
