//! The store in a directory.

mod batch;
mod cache;
mod calls;
mod disk;
mod failure;
mod layout;
mod listing;
mod log;
mod record;
mod row;
mod statuses;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::{Semaphore, watch};

use self::{
    disk::{Disk, Loaded},
    statuses::{Statuses, Told},
};
use super::{
    SessionStore, SessionSummary, SnapshotMetadataReader, SnapshotReader, SnapshotSubscriber,
    SnapshotSummary, SnapshotUpdate, SnapshotWriter, StoreError, StoreErrorKind, kept_row,
    required,
};
use crate::{
    InvocationContext, RuntimeError,
    id::new_id,
    ledger::{CallChange, CallLedger, CallRecord, CallUpdate, kept},
    state::{SessionSnapshot, SnapshotStatus},
};

/// A store in a directory, for one process or several.
///
/// What is on the disk when [`save_snapshot`] returns survives the end of the process, however
/// abrupt, and the loss of power. A write costs what is new: messages, artifacts and custom states
/// are appended to the log of their session once, and the rows of the session, small files, point at
/// them. Heartbeats and changes of a status write the row alone.
///
/// Processes on one machine may use the directory at the same time. A write waits for others to the
/// same session, by locks of the operating system that end with their process; reads wait for
/// nobody. The directory may be copied while it is in use, the `snapshots` before the `sessions`.
///
/// Directories that hold something else, stores of newer versions, and files that are damaged are
/// refused, with the path and the reason, and left as they are.
///
/// [`save_snapshot`]: SnapshotWriter::save_snapshot
#[derive(Clone)]
pub struct FileSessionStore {
    shared: Arc<Shared>,
    poll: Duration,
    deadline: Duration,
}

struct Shared {
    disk: Disk,
    statuses: Statuses,
    /// A place for each operation that blocks.
    lanes: Arc<Semaphore>,
}

/// How many operations block at the same time. Writers wait for the disk most of the time, which
/// serves several at once.
const LANES: usize = 64;
/// How often a write is tried where others to the same row come between.
const MAX_RACES: usize = 1000;
/// The longest interval at which the rows that somebody listens to are looked at.
const MAX_POLL: Duration = Duration::from_secs(2);

impl FileSessionStore {
    /// Opens the directory, or makes it where there is none; the one that it is in must exist. A new
    /// one can be entered by its owner only.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, RuntimeError> {
        let path = path.into();
        let disk = tokio::task::spawn_blocking(move || Disk::open(&path))
            .await
            .map_err(|error| RuntimeError::internal(error.to_string()))??;
        let lanes = Arc::new(Semaphore::new(LANES));
        Ok(Self {
            shared: Arc::new(Shared { disk, statuses: Statuses::default(), lanes }),
            poll: Duration::from_millis(250),
            deadline: Duration::from_secs(30),
        })
    }

    /// Sets how soon a change by another process is told of, 10 milliseconds to 2 seconds. Default:
    /// 250 milliseconds. Changes by this store are told of at once.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll = interval.clamp(Duration::from_millis(10), MAX_POLL);
        self
    }

    /// Sets how long an operation may take, waiting for others included. When it is over, a write
    /// may still reach the disk, as a whole. Default: 30 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        self.shared.disk.root()
    }

    /// The tenants that have ever written something, sorted by name.
    pub async fn scopes(&self) -> Result<Vec<Arc<str>>, RuntimeError> {
        self.blocking(&InvocationContext::new(), |shared| shared.disk.scopes()).await
    }

    /// The sessions of the tenant of `cx`, at most `limit`, those begun last first. The next page is
    /// that `after` the last session of this one.
    pub async fn sessions(
        &self,
        cx: &InvocationContext,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, RuntimeError> {
        let (scope, after) = (scope_of(cx), after.map(str::to_owned));
        self.blocking(cx, move |shared| {
            shared.disk.sessions(scope.as_deref(), after.as_deref(), limit)
        })
        .await
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
        let session = required("session id", session_id)?.to_owned();
        let (scope, after) = (scope_of(cx), after.map(str::to_owned));
        self.blocking(cx, move |shared| {
            shared.disk.snapshots(scope.as_deref(), &session, after.as_deref(), limit)
        })
        .await
    }

    /// Does what blocks where that is allowed, up to the deadline and the end of `cx`. What was begun
    /// is finished in any case.
    async fn blocking<T: Send + 'static>(
        &self,
        cx: &InvocationContext,
        work: impl FnOnce(&Shared) -> Result<T, RuntimeError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        self.bounded(cx, self.lane(work)).await
    }

    async fn lane<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, RuntimeError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let lane = self.shared.lanes.clone().acquire_owned().await;
        let lane = lane.map_err(|error| RuntimeError::internal(error.to_string()))?;
        let shared = self.shared.clone();
        let work = tokio::task::spawn_blocking(move || {
            let _lane = lane;
            work(&shared)
        });
        work.await.map_err(|error| RuntimeError::internal(error.to_string()))?
    }

    async fn bounded<T>(
        &self,
        cx: &InvocationContext,
        work: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        tokio::select! {
            biased;
            done = tokio::time::timeout(self.deadline, work) => match done {
                Ok(done) => done,
                Err(_) => {
                    let reason = format!("no answer within {} ms", self.deadline.as_millis());
                    Err(StoreError::new(StoreErrorKind::Busy, self.path(), reason).into())
                }
            },
            status = cx.ended() => {
                Err(RuntimeError::ended(status, "the session store was still at work"))
            }
        }
    }

    async fn load(&self, cx: &InvocationContext, id: &str) -> Result<Option<Loaded>, RuntimeError> {
        let (scope, id) = (scope_of(cx), id.to_owned());
        self.blocking(cx, move |shared| shared.disk.snapshot(scope.as_deref(), &id)).await
    }

    /// Writes `after` where the row is still as it was seen. Gives both back.
    async fn commit(
        &self,
        cx: &InvocationContext,
        seen: Option<Loaded>,
        after: SessionSnapshot,
    ) -> Result<(bool, SessionSnapshot), RuntimeError> {
        let scope = scope_of(cx);
        let session = after.session_id.clone().unwrap_or_default();
        let commit = async {
            let known = self.shared.disk.session(scope.as_deref(), &session);
            // Held by the work, not by this future.
            let writing = known.writing.clone().lock_owned().await;
            self.lane(move |shared| {
                let _writing = writing;
                let scope = scope.as_deref();
                let version = shared.disk.commit(scope, seen.as_ref(), &after)?;
                if let Some(version) = version {
                    let (id, status) = (&after.snapshot_id, after.status());
                    shared.statuses.tell(scope, id, version, status);
                }
                Ok((version.is_some(), after))
            })
            .await
        };
        self.bounded(cx, commit).await
    }
}

#[async_trait]
impl SnapshotReader for FileSessionStore {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        required("snapshot id", snapshot_id)?;
        Ok(self.load(cx, snapshot_id).await?.map(|loaded| loaded.snapshot))
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        required("session id", session_id)?;
        let (scope, session) = (scope_of(cx), session_id.to_owned());
        let latest = self.blocking(cx, move |shared| {
            let row = shared.disk.latest(scope.as_deref(), &session)?;
            row.map(|row| shared.disk.load(scope.as_deref(), row)).transpose()
        });
        Ok(latest.await?.map(|loaded| loaded.snapshot))
    }
}

#[async_trait]
impl SnapshotMetadataReader for FileSessionStore {
    async fn get_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        required("snapshot id", snapshot_id)?;
        let (scope, id) = (scope_of(cx), snapshot_id.to_owned());
        let row = self.blocking(cx, move |shared| shared.disk.row(scope.as_deref(), &id));
        Ok(row.await?.map(|row| row.row))
    }

    async fn get_latest_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        required("session id", session_id)?;
        let (scope, session) = (scope_of(cx), session_id.to_owned());
        let row = self.blocking(cx, move |shared| shared.disk.latest(scope.as_deref(), &session));
        Ok(row.await?.map(|row| row.row))
    }
}

#[async_trait]
impl SnapshotWriter for FileSessionStore {
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
        for _ in 0..MAX_RACES {
            // The update runs without a lock; what it was made from must still stand then.
            let seen = self.load(cx, &id).await?;
            let before = seen.as_ref().map(|seen| &seen.snapshot);
            let Some(after) = update(before)? else { return Ok(None) };
            let after = kept_row(after, &id, before)?;
            let (written, after) = self.commit(cx, seen, after).await?;
            if written {
                return Ok(Some(after));
            }
        }
        let reason = format!("snapshot {id:?} was written by others {MAX_RACES} times meanwhile");
        Err(StoreError::new(StoreErrorKind::Contended, self.path(), reason).into())
    }
}

impl SnapshotSubscriber for FileSessionStore {
    fn on_snapshot_status_change(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> BoxStream<'static, SnapshotStatus> {
        let subscription = Subscription {
            // Before the row is read, so that no change is missed.
            told: self.shared.statuses.subscribe(cx.scope(), snapshot_id),
            store: Arc::downgrade(&self.shared),
            poll: self.poll,
            deadline: self.deadline,
            cx: cx.clone(),
            id: snapshot_id.into(),
            last: None,
        };
        let next = async |mut subscription: Subscription| {
            let status = subscription.next().await?;
            Some((status, subscription))
        };
        stream::unfold(subscription, next).boxed()
    }
}

impl SessionStore for FileSessionStore {
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
impl CallLedger for FileSessionStore {
    async fn call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        let (scope, key) = (scope_of(cx), required("call key", key)?.to_owned());
        self.blocking(cx, move |shared| shared.disk.call(scope.as_deref(), &key)).await
    }

    async fn open_calls(
        &self,
        cx: &InvocationContext,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError> {
        let (scope, session) = (scope_of(cx), session_id.map(str::to_owned));
        let calls =
            move |shared: &Shared| shared.disk.open_calls(scope.as_deref(), session.as_deref());
        self.blocking(cx, calls).await
    }

    async fn save_call(
        &self,
        cx: &InvocationContext,
        key: &str,
        update: &CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        for _ in 0..MAX_RACES {
            let seen = self.call(cx, key).await?;
            let after = match kept(key, update(seen.as_ref())?) {
                CallChange::Keep => return Ok(seen),
                CallChange::Write(record) => Some(*record),
                CallChange::Remove => None,
            };
            let (scope, key) = (scope_of(cx), key.to_owned());
            let saved = self.blocking(cx, move |shared| {
                let (seen, scope) = (seen.as_ref(), scope.as_deref());
                let saved = shared.disk.save_call(scope, &key, seen, after.as_ref())?;
                Ok(saved.then_some(after))
            });
            if let Some(after) = saved.await? {
                return Ok(after);
            }
        }
        let reason = format!("call {key:?} was written by others {MAX_RACES} times meanwhile");
        Err(StoreError::new(StoreErrorKind::Contended, self.path(), reason).into())
    }
}

impl fmt::Debug for FileSessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSessionStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// Somebody who listens to a row. It looks at the row itself, so that nothing is left of it once it
/// is dropped.
struct Subscription {
    store: Weak<Shared>,
    told: watch::Receiver<Told>,
    poll: Duration,
    deadline: Duration,
    cx: InvocationContext,
    id: Arc<str>,
    /// The last version that was told of.
    last: Option<(u64, SnapshotStatus)>,
}

impl Subscription {
    async fn next(&mut self) -> Option<SnapshotStatus> {
        loop {
            let seen = match self.last {
                None => self.read().await?,
                Some(last) => {
                    let changed = tokio::select! {
                        biased;
                        _ = self.cx.ended() => return None,
                        // It errs once the store is gone.
                        changed = self.told.changed() => Some(changed.ok()?),
                        () = tokio::time::sleep(self.poll) => None,
                    };
                    match changed {
                        Some(()) => (*self.told.borrow_and_update()).unwrap_or(last),
                        None => self.read().await?,
                    }
                }
            };
            let last = self.last;
            if last.is_none_or(|(version, _)| version < seen.0) {
                self.last = Some(seen);
                if last.is_none_or(|(_, status)| status != seen.1) {
                    return Some(seen.1);
                }
            }
        }
    }

    /// The row as it is on the disk.
    async fn read(&self) -> Option<(u64, SnapshotStatus)> {
        let shared = self.store.upgrade()?;
        let store = FileSessionStore { shared, poll: self.poll, deadline: self.deadline };
        let (scope, id) = (scope_of(&self.cx), self.id.clone());
        let row = store.blocking(&self.cx, move |shared| shared.disk.row(scope.as_deref(), &id));
        match row.await {
            Ok(row) => row.map(|row| (row.version, row.row.status())),
            Err(error) => {
                tracing::debug!(snapshot_id = &*self.id, %error, "a status cannot be told");
                None
            }
        }
    }
}

fn scope_of(cx: &InvocationContext) -> Option<Arc<str>> {
    cx.scope().map(Arc::from)
}
