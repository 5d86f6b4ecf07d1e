//! Session-scoped key-value memory.

use antiphon_types::Status;
use async_trait::async_trait;

/// A store of strings by key. Keys are kept verbatim; hooks and tools of a session get a view that
/// prefixes `{session_id}/`.
#[async_trait]
pub trait Memory: Send + Sync + 'static {
    /// The value, if there is one.
    async fn get(&self, key: &str) -> Result<Option<String>, MemoryError>;
    /// Sets the value.
    async fn set(&self, key: &str, value: &str) -> Result<(), MemoryError>;
    /// The keys that begin with `prefix`, sorted; an empty prefix is all.
    async fn list(&self, prefix: &str) -> Result<Vec<String>, MemoryError>;
    /// Removes the key; a missing one is fine.
    async fn delete(&self, key: &str) -> Result<(), MemoryError>;
}

/// Why memory could not be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("memory: {message}")]
#[non_exhaustive]
pub struct MemoryError {
    /// What happened.
    pub message: String,
    /// The canonical code.
    pub status: Status,
}
