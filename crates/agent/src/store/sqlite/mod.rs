//! The store in a SQLite file.

mod calls;
mod connection;
mod database;
mod fault;
mod lineage;
mod list;
mod memory;
mod options;
mod read;
mod recent;
mod row;
mod schema;
mod watch;
mod write;

use std::{fmt, future::Future, path::Path, sync::Arc};

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use self::{
    database::{Database, Done, Work},
    write::Commit,
};
pub use self::{
    memory::SqliteMemory,
    options::{Durability, SqliteOptions},
};
use super::{
    SessionStore, SessionSummary, SnapshotMetadataReader, SnapshotReader, SnapshotSubscriber,
    SnapshotSummary, SnapshotUpdate, SnapshotWriter, StoreError, StoreErrorKind, kept_row,
    required,
};
use crate::{
    InvocationContext, RuntimeError,
    id::new_id,
    ledger::CallLedger,
    state::{SessionSnapshot, SnapshotStatus},
};

/// A store in one SQLite file, for any number of sessions and tenants: what an assistant or a
/// server keeps its conversations in. Clones share the open file; open it once in a process.
/// Several processes may have it open at once.
///
/// # What a turn costs
///
/// Each message is in the file once. A turn writes what is new in it, a row of about a hundred
/// bytes, and a custom state that changed; the artifacts that did not change stay where they are.
/// Forks share what they have in common. What a rewrite of a row replaced stays in the file. Reading
/// brings back exactly what was saved.
///
/// # What is on the disk when
///
/// A write that returned survives the end of the process at any moment, also by `kill -9`, and by
/// default a loss of power: it has been synchronised ([`Durability`]). Writes that wait at the same
/// time, of any sessions, share a transaction and one synchronisation of the disk. The latest of
/// them are in a file beside this one with `-wal` at the end of its name: who copies the file while
/// it is open copies both, or nothing of use.
///
/// A file that is corrupt, newer or another program's is refused with [`RuntimeError::Store`] and
/// left as it is; so are writes to a full disk or a file that may only be read. (A limit of the
/// process on the size of files is [`StoreErrorKind::Io`]: SQLite does not tell it apart.)
///
/// ```no_run
/// # async fn example() -> Result<(), antiphon_agent::RuntimeError> {
/// use std::sync::Arc;
///
/// use antiphon_agent::{Memory, SqliteSessionStore};
///
/// let store = SqliteSessionStore::open("conversations.db").await?;
/// let memory: Arc<dyn Memory> = Arc::new(store.memory());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteSessionStore {
    database: Arc<Database>,
}

/// How often a write is tried anew where others keep changing its row.
const ATTEMPTS: u32 = 100;

impl SqliteSessionStore {
    /// Opens the file, or makes it; its directory must exist. A new file can be read by its owner
    /// only.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, RuntimeError> {
        SqliteOptions::new(path).open().await
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    /// A memory in the same file.
    pub fn memory(&self) -> SqliteMemory {
        SqliteMemory::new(self.database.clone())
    }

    /// The tenants that have ever written something, sorted by name.
    pub async fn scopes(&self) -> Result<Vec<Arc<str>>, RuntimeError> {
        self.within(&InvocationContext::new(), self.read(|connection, _| list::scopes(connection)))
            .await
    }

    /// The sessions of the tenant of `cx`, at most `limit`, those begun last first. The next page is
    /// that `after` the last session of this one.
    pub async fn sessions(
        &self,
        cx: &InvocationContext,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, RuntimeError> {
        let (scope, after) = (owned(cx.scope()), owned(after));
        let sessions = self.read(move |connection, _| {
            list::sessions(connection, scope.as_deref(), after.as_deref(), limit)
        });
        self.within(cx, sessions).await
    }

    /// The snapshots of a session without their states, at most `limit`, in the order in which they
    /// were first written. The next page is that `after` the last snapshot of this one.
    pub async fn snapshots(
        &self,
        cx: &InvocationContext,
        session_id: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<SnapshotSummary>, RuntimeError> {
        let session_id: Arc<str> = required("session id", session_id)?.into();
        let (scope, after) = (owned(cx.scope()), owned(after));
        let snapshots = self.read(move |connection, _| {
            list::snapshots(connection, scope.as_deref(), &session_id, after.as_deref(), limit)
        });
        self.within(cx, snapshots).await
    }

    async fn save(
        &self,
        cx: &InvocationContext,
        snapshot_id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let id: Arc<str> = match snapshot_id {
            Some(id) => id.into(),
            None => new_id(),
        };
        let scope = owned(cx.scope());
        for _ in 0..ATTEMPTS {
            let before = match snapshot_id {
                Some(_) => self.row(scope.clone(), id.clone()).await?,
                None => None,
            };
            let row = before.as_ref().map(|before| &before.snapshot);
            let Some(after) = update(row)? else { return Ok(None) };
            let after = Arc::new(kept_row(after, &id, row)?);
            let (written, parts) = before.map(|before| (before.written, before.parts)).unzip();
            let commit = Commit {
                scope: scope.clone(),
                row: after.clone(),
                before: written,
                parts: parts.flatten(),
            };
            match self.database.write(Work::Commit(commit)).await? {
                Done::Written => return Ok(Some(Arc::unwrap_or_clone(after))),
                Done::Stale => {}
            }
        }
        let reason = format!("others changed the snapshot {id:?} {ATTEMPTS} times meanwhile");
        Err(self.error(StoreErrorKind::Contended, reason).into())
    }

    async fn row(
        &self,
        scope: Option<Arc<str>>,
        id: Arc<str>,
    ) -> Result<Option<Seen>, RuntimeError> {
        self.read(move |connection, known| {
            let scope = scope.as_deref();
            let Some(row) = read::row(connection, scope, &id)? else { return Ok(None) };
            let parts = row.state.as_ref().map(|state| state.parts.clone());
            let written = row.written;
            let snapshot = read::snapshot(connection, known, scope, row)?;
            Ok(Some(Seen { snapshot, written, parts }))
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&rusqlite::Connection, &read::Known) -> Result<T, fault::Fault>
        + Send
        + 'static,
    ) -> Result<T, RuntimeError> {
        Ok(self.database.read(read).await?)
    }

    /// Bounds `work` by the time that the store has for it, and by what bounds the call.
    async fn within<T>(
        &self,
        cx: &InvocationContext,
        work: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let ended = |status| RuntimeError::ended(status, "the store was at work");
        if let Some(status) = cx.has_ended() {
            return Err(ended(status));
        }
        let deadline = self.database.options.deadline;
        tokio::select! {
            biased;
            done = work => done,
            status = cx.ended() => Err(ended(status)),
            () = tokio::time::sleep(deadline) => {
                let reason = format!("no answer within {} ms", deadline.as_millis());
                Err(self.error(StoreErrorKind::Busy, reason).into())
            }
        }
    }

    fn error(&self, kind: StoreErrorKind, reason: String) -> StoreError {
        StoreError::new(kind, self.database.path.clone(), reason)
    }
}

#[async_trait]
impl SnapshotReader for SqliteSessionStore {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let id: Arc<str> = required("snapshot id", snapshot_id)?.into();
        let row = self.within(cx, self.row(owned(cx.scope()), id)).await?;
        Ok(row.map(|row| row.snapshot))
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let session: Arc<str> = required("session id", session_id)?.into();
        let scope = owned(cx.scope());
        let latest = self.read(move |connection, known| {
            let scope = scope.as_deref();
            let Some(row) = read::latest_row(connection, scope, &session)? else { return Ok(None) };
            read::snapshot(connection, known, scope, row).map(Some)
        });
        self.within(cx, latest).await
    }
}

#[async_trait]
impl SnapshotMetadataReader for SqliteSessionStore {
    async fn get_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let id: Arc<str> = required("snapshot id", snapshot_id)?.into();
        let scope = owned(cx.scope());
        let row = self.read(move |connection, _| read::row(connection, scope.as_deref(), &id));
        Ok(self.within(cx, row).await?.map(|row| row.snapshot))
    }

    async fn get_latest_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let session: Arc<str> = required("session id", session_id)?.into();
        let scope = owned(cx.scope());
        let row = self
            .read(move |connection, _| read::latest_row(connection, scope.as_deref(), &session));
        Ok(self.within(cx, row).await?.map(|row| row.snapshot))
    }
}

#[async_trait]
impl SnapshotWriter for SqliteSessionStore {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        if let Some(id) = snapshot_id {
            required("snapshot id", id)?;
        }
        self.within(cx, self.save(cx, snapshot_id, update)).await
    }
}

impl SnapshotSubscriber for SqliteSessionStore {
    fn on_snapshot_status_change(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> BoxStream<'static, SnapshotStatus> {
        watch::statuses(self.database.clone(), cx.clone(), snapshot_id.into())
    }
}

impl SessionStore for SqliteSessionStore {
    fn subscriber(&self) -> Option<&dyn SnapshotSubscriber> {
        Some(self)
    }

    fn metadata_reader(&self) -> Option<&dyn SnapshotMetadataReader> {
        Some(self)
    }

    fn call_ledger(&self) -> Option<&dyn CallLedger> {
        Some(self)
    }
}

impl fmt::Debug for SqliteSessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteSessionStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// A row with its state, as it was read.
struct Seen {
    snapshot: SessionSnapshot,
    /// Which of its writes it is of.
    written: row::Written,
    /// What its state is made of.
    parts: Option<row::Parts>,
}

fn owned(text: Option<&str>) -> Option<Arc<str>> {
    text.map(Arc::from)
}
