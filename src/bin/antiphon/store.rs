//! The store that the command line names.

use std::{path::Path, sync::Arc};

use antiphon::agent::{
    FileSessionStore, InvocationContext, Memory, RuntimeError, SessionSnapshot, SessionStore,
    SessionSummary, SnapshotMetadataReader, SnapshotReader, SnapshotSummary, SqliteSessionStore,
    memory::SqliteMemory,
};

use crate::failure::Failure;

/// The file of the memory in a store that is a directory: several programs may have it open at once.
const MEMORY: &str = "memory.db";

/// How much is read at once.
const PAGE: usize = 500;

/// A store on disk.
pub enum Store {
    Directory(FileSessionStore),
    File(SqliteSessionStore),
}

impl Store {
    /// Opens a store, or makes it.
    pub async fn open(path: &Path) -> Result<Self, Failure> {
        let directory = path.is_dir() || path.as_os_str().to_string_lossy().ends_with('/');
        let opened = match directory {
            true => FileSessionStore::open(path).await.map(Self::Directory),
            false => SqliteSessionStore::open(path).await.map(Self::File),
        };
        opened.map_err(Failure::usage)
    }

    /// Opens a store that is there.
    pub async fn open_existing(path: &Path) -> Result<Self, Failure> {
        if !path.exists() {
            return Err(Failure::usage(format!("there is no store {}", path.display())));
        }
        Self::open(path).await
    }

    pub fn shared(&self) -> Arc<dyn SessionStore> {
        match self {
            Self::Directory(store) => Arc::new(store.clone()),
            Self::File(store) => Arc::new(store.clone()),
        }
    }

    /// The memory of the store's sessions, as long as none is named.
    pub async fn memory(&self) -> Result<Arc<dyn Memory>, Failure> {
        Ok(match self {
            Self::File(store) => Arc::new(store.memory()),
            Self::Directory(store) => {
                let memory = SqliteMemory::open(store.path().join(MEMORY)).await;
                Arc::new(memory.map_err(Failure::usage)?)
            }
        })
    }

    /// All sessions, those begun last first.
    pub async fn sessions(&self, cx: &InvocationContext) -> Result<Vec<SessionSummary>, Failure> {
        let mut all: Vec<SessionSummary> = Vec::new();
        loop {
            let after = all.last().map(|session| session.session_id.clone());
            let page = match self {
                Self::Directory(store) => store.sessions(cx, after.as_deref(), PAGE).await,
                Self::File(store) => store.sessions(cx, after.as_deref(), PAGE).await,
            };
            let page = page.map_err(Failure::failed)?;
            let over = page.len() < PAGE;
            all.extend(page);
            if over {
                return Ok(all);
            }
        }
    }

    /// All snapshots of a session, in the order in which they were made.
    pub async fn snapshots(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Vec<SnapshotSummary>, Failure> {
        let mut all: Vec<SnapshotSummary> = Vec::new();
        loop {
            let after = all.last().map(|summary| summary.snapshot.snapshot_id.clone());
            let page = match self {
                Self::Directory(store) => {
                    store.snapshots(cx, session, after.as_deref(), PAGE).await
                }
                Self::File(store) => store.snapshots(cx, session, after.as_deref(), PAGE).await,
            };
            let page = page.map_err(Failure::failed)?;
            let over = page.len() < PAGE;
            all.extend(page);
            if over {
                return Ok(all);
            }
        }
    }

    /// A snapshot with its state.
    pub async fn snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, Failure> {
        let read = match self {
            Self::Directory(store) => store.get_snapshot(cx, id).await,
            Self::File(store) => store.get_snapshot(cx, id).await,
        };
        read.map_err(Failure::failed)
    }

    /// The snapshot of this id, or the latest one of the session of this id; without its state.
    pub async fn find(&self, cx: &InvocationContext, id: &str) -> Result<SessionSnapshot, Failure> {
        if id.is_empty() {
            return Err(Failure::usage("the id is empty"));
        }
        match self.metadata(cx, id).await.map_err(Failure::failed)? {
            Some(snapshot) => Ok(snapshot),
            None => Err(Failure::usage(format!("there is neither snapshot nor session {id:?}"))),
        }
    }

    /// Whether calls of this session are written down of which no snapshot tells.
    pub async fn has_calls(&self, cx: &InvocationContext, session: &str) -> Result<bool, Failure> {
        if session.is_empty() {
            return Ok(false);
        }
        let store = self.shared();
        let Some(ledger) = store.call_ledger() else { return Ok(false) };
        let open = ledger.open_calls(cx, Some(session)).await.map_err(Failure::failed)?;
        Ok(!open.is_empty())
    }

    async fn metadata(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let (snapshot, session) = match self {
            Self::Directory(store) => (
                store.get_snapshot_metadata(cx, id).await?,
                store.get_latest_snapshot_metadata(cx, id).await?,
            ),
            Self::File(store) => (
                store.get_snapshot_metadata(cx, id).await?,
                store.get_latest_snapshot_metadata(cx, id).await?,
            ),
        };
        Ok(snapshot.or(session))
    }

    /// The latest snapshot of all sessions, without its state.
    pub async fn latest(&self, cx: &InvocationContext) -> Result<SessionSnapshot, Failure> {
        let sessions = self.sessions(cx).await?;
        let latest = sessions.into_iter().map(|session| session.latest);
        let latest = latest.max_by_key(|row| (row.created_at, row.snapshot_id.clone()));
        latest.ok_or_else(|| Failure::usage("there is no conversation in the store"))
    }
}
