//! The store that ends with the process.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    SessionStore, SnapshotMetadataReader, SnapshotReader, SnapshotSubscriber, SnapshotUpdate,
    SnapshotWriter, kept_row, required,
};
use crate::{
    InvocationContext, RuntimeError,
    id::new_id,
    ledger::{CallChange, CallLedger, CallRecord, CallUpdate, in_order, kept},
    state::{SessionSnapshot, SnapshotStatus},
};

/// A store that ends with the process: for tests, and for conversations that may be forgotten. It
/// does all that a store can do.
///
/// It grows with every turn, by what is new in it: rows share their messages and artifacts. Only
/// [`max_snapshots_per_session`] and [`remove_session`] let it shrink.
///
/// [`max_snapshots_per_session`]: Self::max_snapshots_per_session
/// [`remove_session`]: Self::remove_session
#[derive(Default)]
pub struct InMemorySessionStore {
    tenants: Mutex<Tenants>,
    max_per_session: Option<NonZeroUsize>,
}

impl InMemorySessionStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps at most so many snapshots of each session: a new one pushes out the oldest that is
    /// settled. Nobody can go on from that one any more; rows that name it as their parent stay as
    /// they are.
    pub fn max_snapshots_per_session(mut self, max: NonZeroUsize) -> Self {
        self.max_per_session = Some(max);
        self
    }

    /// Forgets a session. What is still at work for it fails to find its row.
    pub fn remove_session(&self, cx: &InvocationContext, session_id: &str) {
        if let Some(tenant) = self.lock().of_mut(cx) {
            tenant.calls.retain(|_, call| *call.session_id != *session_id);
            for (_, snapshot_id) in tenant.sessions.remove(session_id).unwrap_or_default() {
                tenant.rows.remove(&snapshot_id);
            }
        }
    }

    fn row(&self, cx: &InvocationContext, id: &str) -> Result<Option<Stored>, RuntimeError> {
        required("snapshot id", id)?;
        Ok(self.lock().of(cx).and_then(|tenant| Some(tenant.rows.get(id)?.snapshot.clone())))
    }

    fn call_of(&self, cx: &InvocationContext, key: &str) -> Option<Arc<CallRecord>> {
        self.lock().of(cx).and_then(|tenant| tenant.calls.get(key).cloned())
    }

    fn latest(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<Stored>, RuntimeError> {
        required("session id", session)?;
        Ok(self.lock().of(cx).and_then(|tenant| {
            let (_, latest) = tenant.sessions.get(session)?.last()?;
            Some(tenant.rows.get(latest)?.snapshot.clone())
        }))
    }

    /// Held for operations on maps only, never over foreign code or an await.
    fn lock(&self) -> MutexGuard<'_, Tenants> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl SnapshotReader for InMemorySessionStore {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        Ok(self.row(cx, snapshot_id)?.map(Arc::unwrap_or_clone))
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        Ok(self.latest(cx, session_id)?.map(Arc::unwrap_or_clone))
    }
}

#[async_trait]
impl SnapshotMetadataReader for InMemorySessionStore {
    async fn get_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        Ok(self.row(cx, snapshot_id)?.map(|row| row.to_metadata()))
    }

    async fn get_latest_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        Ok(self.latest(cx, session_id)?.map(|row| row.to_metadata()))
    }
}

#[async_trait]
impl SnapshotWriter for InMemorySessionStore {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        let id: Arc<str> = match snapshot_id {
            Some(id) => required("snapshot id", id)?.into(),
            None => new_id(),
        };
        loop {
            // The update runs outside of the lock; what it was made from must still stand then.
            let before = self.row(cx, &id)?;
            let Some(after) = update(before.as_deref())? else { return Ok(None) };
            let after = Arc::new(kept_row(after, &id, before.as_deref())?);
            if self.lock().of_mut_or_new(cx).replace(before, &after, self.max_per_session) {
                return Ok(Some(Arc::unwrap_or_clone(after)));
            }
        }
    }
}

impl SnapshotSubscriber for InMemorySessionStore {
    fn on_snapshot_status_change(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> BoxStream<'static, SnapshotStatus> {
        let subscribed = self.lock().of_mut(cx).and_then(|tenant| tenant.subscribe(snapshot_id));
        let Some(mut statuses) = subscribed else { return stream::empty().boxed() };
        statuses.mark_changed();
        let next = async |(mut statuses, cx): (watch::Receiver<_>, InvocationContext)| {
            tokio::select! {
                biased;
                _ = cx.ended() => None,
                // It errs when the row or the whole store is gone.
                changed = statuses.changed() => {
                    changed.ok()?;
                    let status = *statuses.borrow_and_update();
                    Some((status, (statuses, cx)))
                }
            }
        };
        stream::unfold((statuses, cx.clone()), next).boxed()
    }
}

impl SessionStore for InMemorySessionStore {
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

#[async_trait]
impl CallLedger for InMemorySessionStore {
    async fn call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        required("call key", key)?;
        Ok(self.call_of(cx, key).map(Arc::unwrap_or_clone))
    }

    async fn open_calls(
        &self,
        cx: &InvocationContext,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError> {
        let open = |call: &&Arc<CallRecord>| {
            !call.settled && session_id.is_none_or(|session| *call.session_id == *session)
        };
        let mut calls: Vec<_> = {
            let tenants = self.lock();
            let calls = tenants.of(cx).into_iter().flat_map(|tenant| tenant.calls.values());
            calls.filter(open).map(|call| CallRecord::clone(call)).collect()
        };
        in_order(&mut calls);
        Ok(calls)
    }

    async fn save_call(
        &self,
        cx: &InvocationContext,
        key: &str,
        update: &CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        required("call key", key)?;
        loop {
            // The update runs outside of the lock; what it was made from must still stand then.
            let before = self.call_of(cx, key);
            let after = match kept(key, update(before.as_deref())?) {
                CallChange::Keep => return Ok(before.map(Arc::unwrap_or_clone)),
                CallChange::Write(record) => Some(Arc::new(*record)),
                CallChange::Remove => None,
            };
            if self.lock().of_mut_or_new(cx).replace_call(key, before.as_ref(), after.as_ref()) {
                return Ok(after.map(Arc::unwrap_or_clone));
            }
        }
    }
}

impl fmt::Debug for InMemorySessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenants = self.lock();
        let all = || tenants.scoped.values().chain([&tenants.unscoped]);
        f.debug_struct("InMemorySessionStore")
            .field("sessions", &all().map(|tenant| tenant.sessions.len()).sum::<usize>())
            .field("snapshots", &all().map(|tenant| tenant.rows.len()).sum::<usize>())
            .finish_non_exhaustive()
    }
}

type Stored = Arc<SessionSnapshot>;

#[derive(Default)]
struct Tenants {
    unscoped: Tenant,
    scoped: HashMap<Arc<str>, Tenant>,
}

impl Tenants {
    fn of(&self, cx: &InvocationContext) -> Option<&Tenant> {
        match cx.scope() {
            Some(scope) => self.scoped.get(scope),
            None => Some(&self.unscoped),
        }
    }

    fn of_mut(&mut self, cx: &InvocationContext) -> Option<&mut Tenant> {
        match cx.scope() {
            Some(scope) => self.scoped.get_mut(scope),
            None => Some(&mut self.unscoped),
        }
    }

    fn of_mut_or_new(&mut self, cx: &InvocationContext) -> &mut Tenant {
        match cx.scope() {
            Some(scope) => self.scoped.entry(scope.into()).or_default(),
            None => &mut self.unscoped,
        }
    }
}

/// What belongs to one tenant.
#[derive(Default)]
struct Tenant {
    rows: HashMap<Arc<str>, Row>,
    /// The rows of each session in the order in which they were created.
    sessions: HashMap<Arc<str>, BTreeSet<(Timestamp, Arc<str>)>>,
    calls: HashMap<Arc<str>, Arc<CallRecord>>,
}

struct Row {
    snapshot: Stored,
    /// Once somebody asked to be told of changes.
    statuses: Option<watch::Sender<SnapshotStatus>>,
}

impl Tenant {
    /// Writes `after` where the row is still the one `before`.
    fn replace(
        &mut self,
        before: Option<Stored>,
        after: &Stored,
        max_per_session: Option<NonZeroUsize>,
    ) -> bool {
        let (id, session) = (&after.snapshot_id, after.session_id.clone().unwrap_or_default());
        match (self.rows.get_mut(id), &before) {
            (None, None) => {
                let row = Row { snapshot: after.clone(), statuses: None };
                self.rows.insert(id.clone(), row);
            }
            (Some(row), Some(before)) if Arc::ptr_eq(&row.snapshot, before) => {
                row.snapshot = after.clone();
                if let Some(statuses) = &row.statuses {
                    statuses.send_if_modified(|last| {
                        std::mem::replace(last, after.status()) != after.status()
                    });
                }
            }
            _ => return false,
        }
        let created = self.sessions.entry(session.clone()).or_default();
        if let Some(before) = &before {
            created.remove(&(before.created_at, id.clone()));
        }
        created.insert((after.created_at, id.clone()));
        if before.is_none() && max_per_session.is_some_and(|max| created.len() > max.get()) {
            self.drop_oldest(&session);
        }
        true
    }

    /// Puts `after` in the place of the record `before`, where that still stands.
    fn replace_call(
        &mut self,
        key: &str,
        before: Option<&Arc<CallRecord>>,
        after: Option<&Arc<CallRecord>>,
    ) -> bool {
        let stands = match (self.calls.get(key), before) {
            (None, None) => true,
            (Some(there), Some(before)) => Arc::ptr_eq(there, before),
            _ => false,
        };
        if stands {
            match after {
                Some(after) => self.calls.insert(key.into(), after.clone()),
                None => self.calls.remove(key),
            };
        }
        stands
    }

    /// Drops the oldest row of the session that is settled and not its latest.
    fn drop_oldest(&mut self, session: &str) {
        let Some(created) = self.sessions.get_mut(session) else { return };
        let settled = |(_, id): &&(Timestamp, Arc<str>)| {
            self.rows.get(id).is_some_and(|row| row.snapshot.status().is_terminal())
        };
        let oldest = created.iter().take(created.len() - 1).find(settled).cloned();
        if let Some(oldest) = oldest {
            created.remove(&oldest);
            self.rows.remove(&oldest.1);
        }
    }

    fn subscribe(&mut self, id: &str) -> Option<watch::Receiver<SnapshotStatus>> {
        let row = self.rows.get_mut(id)?;
        let statuses =
            row.statuses.get_or_insert_with(|| watch::Sender::new(row.snapshot.status()));
        Some(statuses.subscribe())
    }
}
