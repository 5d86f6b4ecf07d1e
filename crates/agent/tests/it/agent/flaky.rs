//! A store that misbehaves when told to.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use antiphon_agent::{
    InMemorySessionStore, InvocationContext, RuntimeError, SessionSnapshot, SessionStore,
    SnapshotMetadataReader, SnapshotReader, SnapshotStatus, SnapshotSubscriber, SnapshotUpdate,
    SnapshotWriter, StoreError, StoreErrorKind, types::Status,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream::BoxStream};

/// A store in memory with faults.
#[derive(Default)]
pub struct FlakyStore {
    inner: InMemorySessionStore,
    fail_writes: AtomicBool,
    /// Writes fail so, as those of a store on disk do.
    refuse_writes: Mutex<Option<StoreErrorKind>>,
    hang_writes: AtomicBool,
    panic_writes: AtomicBool,
    /// So many reads fail.
    failing_reads: AtomicUsize,
    /// What it answers whoever asks for a latest.
    latest: Mutex<Option<String>>,
    /// Rows that no other store would take.
    planted: Mutex<HashMap<String, SessionSnapshot>>,
    /// It answers whoever asks for a snapshot with this one.
    answer: Mutex<Option<String>>,
    /// Its subscriptions panic.
    panic_subscriptions: AtomicBool,
    /// It cannot tell of changes.
    mute: bool,
    /// Its subscriptions end at once.
    deaf: bool,
    pub full_reads: AtomicUsize,
    pub metadata_reads: AtomicUsize,
}

impl FlakyStore {
    pub fn mute() -> Self {
        Self { mute: true, ..Self::default() }
    }

    pub fn deaf() -> Self {
        Self { deaf: true, ..Self::default() }
    }

    pub fn fail_writes(&self, fails: bool) {
        self.fail_writes.store(fails, SeqCst);
    }

    pub fn refuse_writes(&self, kind: impl Into<Option<StoreErrorKind>>) {
        *self.refuse_writes.lock().unwrap() = kind.into();
    }

    pub fn hang_writes(&self, hangs: bool) {
        self.hang_writes.store(hangs, SeqCst);
    }

    pub fn panic_writes(&self, panics: bool) {
        self.panic_writes.store(panics, SeqCst);
    }

    pub fn fail_reads(&self, reads: usize) {
        self.failing_reads.store(reads, SeqCst);
    }

    pub fn answer_latest_of(&self, session: &str) {
        *self.latest.lock().unwrap() = Some(session.to_owned());
    }

    pub fn answer_with(&self, id: &str) {
        *self.answer.lock().unwrap() = Some(id.to_owned());
    }

    pub fn panic_subscriptions(&self) {
        self.panic_subscriptions.store(true, SeqCst);
    }

    pub fn plant(&self, row: SessionSnapshot) {
        self.planted.lock().unwrap().insert(row.snapshot_id.to_string(), row);
    }

    fn read(&self, count: &AtomicUsize) -> Result<(), RuntimeError> {
        count.fetch_add(1, SeqCst);
        match self.failing_reads.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(RuntimeError::new(Status::Unavailable, "the store is away")),
            Err(_) => Ok(()),
        }
    }
}

#[async_trait]
impl SnapshotReader for FlakyStore {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.read(&self.full_reads)?;
        if let Some(row) = self.planted.lock().unwrap().get(id) {
            return Ok(Some(row.clone()));
        }
        let other = self.answer.lock().unwrap().clone();
        self.inner.get_snapshot(cx, other.as_deref().unwrap_or(id)).await
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.read(&self.full_reads)?;
        let other = self.latest.lock().unwrap().clone();
        self.inner.get_latest_snapshot(cx, other.as_deref().unwrap_or(session)).await
    }
}

#[async_trait]
impl SnapshotWriter for FlakyStore {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        if self.hang_writes.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        assert!(!self.panic_writes.load(SeqCst), "told to");
        if self.fail_writes.load(SeqCst) {
            return Err(RuntimeError::new(Status::Unavailable, "the store is full"));
        }
        let refusal = *self.refuse_writes.lock().unwrap();
        if let Some(kind) = refusal {
            return Err(StoreError::new(kind, Path::new("/secret/place"), "no").into());
        }
        self.inner.save_snapshot(cx, id, update).await
    }
}

#[async_trait]
impl SnapshotMetadataReader for FlakyStore {
    async fn get_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.read(&self.metadata_reads)?;
        self.inner.get_snapshot_metadata(cx, id).await
    }

    async fn get_latest_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.read(&self.metadata_reads)?;
        self.inner.get_latest_snapshot_metadata(cx, session).await
    }
}

impl SnapshotSubscriber for FlakyStore {
    fn on_snapshot_status_change(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> BoxStream<'static, SnapshotStatus> {
        assert!(!self.panic_subscriptions.load(SeqCst), "told to");
        match self.deaf {
            true => futures_util::stream::empty().boxed(),
            false => self.inner.on_snapshot_status_change(cx, id),
        }
    }
}

impl SessionStore for FlakyStore {
    fn subscriber(&self) -> Option<&dyn SnapshotSubscriber> {
        (!self.mute).then_some(self)
    }

    fn metadata_reader(&self) -> Option<&dyn SnapshotMetadataReader> {
        Some(self)
    }
}
