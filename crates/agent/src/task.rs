//! Work that goes on in the background.

use std::{fmt, sync::Arc, time::Duration};

use antiphon_types::Status;
use async_trait::async_trait;
use futures_util::{Stream, stream};
use serde_json::Value;

use crate::{
    InvocationContext, RuntimeError,
    protocol::GetSnapshotRequest,
    state::{SessionSnapshot, SnapshotStatus},
};

/// The snapshots of one agent as it shows them: an agent, a handle of one, or a client's transport
/// to one. `C` is the custom state.
#[async_trait]
pub trait SnapshotAccess<C: Send + 'static = Value>: Send + Sync {
    /// Reads a snapshot.
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<C>, RuntimeError>;

    /// Waits until the snapshot is settled, next to the store, and reads it.
    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<C>, RuntimeError>;

    /// Asks the work behind a snapshot to stop. Returns where it stands after that; `None` where
    /// there is no such snapshot.
    async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError>;
}

#[async_trait]
impl<C: Send + 'static, T: SnapshotAccess<C> + ?Sized> SnapshotAccess<C> for Arc<T> {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<C>, RuntimeError> {
        (**self).get_snapshot(cx, request).await
    }

    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot<C>, RuntimeError> {
        (**self).wait_for_snapshot(cx, request).await
    }

    async fn abort(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        (**self).abort(cx, snapshot_id).await
    }
}

/// Work that goes on in the background, followed through its snapshot: pending while it runs, and
/// rewritten in place when it is done. The snapshot's id is all there is to it, so it can be found
/// again from another process.
pub struct DetachedTask<C = Value> {
    access: Arc<dyn SnapshotAccess<C>>,
    cx: InvocationContext,
    snapshot_id: Arc<str>,
}

impl<C: Send + 'static> DetachedTask<C> {
    /// The task behind a snapshot. Nothing is read yet: an unknown id shows when it is.
    ///
    /// `cx` says who asks; neither its deadline nor its cancellation holds for the task.
    pub fn new(
        access: Arc<dyn SnapshotAccess<C>>,
        cx: &InvocationContext,
        snapshot_id: impl Into<Arc<str>>,
    ) -> Self {
        Self { access, cx: cx.uncancelled(), snapshot_id: snapshot_id.into() }
    }

    /// The same task, read in another call's name, within its deadline and until it is taken back.
    pub fn with_context(mut self, cx: InvocationContext) -> Self {
        self.cx = cx;
        self
    }

    /// The snapshot behind it.
    pub fn snapshot_id(&self) -> &Arc<str> {
        &self.snapshot_id
    }

    /// Reads the snapshot once. Its status says where the work stands.
    pub async fn poll(&self) -> Result<SessionSnapshot<C>, RuntimeError> {
        self.access.get_snapshot(&self.cx, self.request()).await
    }

    /// Reads the snapshot once, without its state.
    pub async fn poll_metadata(&self) -> Result<SessionSnapshot<C>, RuntimeError> {
        let request = GetSnapshotRequest { metadata_only: true, ..self.request() };
        self.access.get_snapshot(&self.cx, request).await
    }

    /// Waits until the work is settled. One that failed, was aborted or expired is a snapshot too,
    /// not an error.
    pub async fn wait(&self) -> Result<SessionSnapshot<C>, RuntimeError> {
        self.access.wait_for_snapshot(&self.cx, self.request()).await
    }

    /// Reads the snapshot now and every `interval` (at least a millisecond) after the last reading,
    /// up to and with the first that is settled, or an error.
    pub fn updates(
        &self,
        interval: Duration,
    ) -> impl Stream<Item = Result<SessionSnapshot<C>, RuntimeError>> + Send + use<C> {
        let interval = interval.max(Duration::from_millis(1));
        stream::unfold((self.clone(), Next::Now), move |(task, next)| async move {
            match next {
                Next::Now => {}
                Next::Later => tokio::select! {
                    biased;
                    ended = task.cx.ended() => {
                        return Some((Err(task.ended(ended)), (task, Next::Never)));
                    }
                    () = tokio::time::sleep(interval) => {}
                },
                Next::Never => return None,
            }
            let read = task.poll().await;
            let over = read.as_ref().map_or(true, |snapshot| snapshot.status().is_terminal());
            Some((read, (task, if over { Next::Never } else { Next::Later })))
        })
    }

    /// Asks the work to stop, and returns where the snapshot stands after that; `None` where there
    /// is no such snapshot.
    pub async fn abort(&self) -> Result<Option<SnapshotStatus>, RuntimeError> {
        self.access.abort(&self.cx, &self.snapshot_id).await
    }

    fn ended(&self, status: Status) -> RuntimeError {
        let what = format!("waiting for the work behind snapshot {:?}", self.snapshot_id);
        match status {
            Status::DeadlineExceeded => RuntimeError::DeadlineExceeded(what),
            _ => RuntimeError::Cancelled(what),
        }
    }

    fn request(&self) -> GetSnapshotRequest {
        GetSnapshotRequest {
            snapshot_id: Some(self.snapshot_id.clone()),
            ..GetSnapshotRequest::default()
        }
    }
}

/// When the next reading is due.
enum Next {
    Now,
    Later,
    Never,
}

impl<C> Clone for DetachedTask<C> {
    fn clone(&self) -> Self {
        Self {
            access: self.access.clone(),
            cx: self.cx.clone(),
            snapshot_id: self.snapshot_id.clone(),
        }
    }
}

impl<C> fmt::Debug for DetachedTask<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedTask")
            .field("snapshot_id", &self.snapshot_id)
            .finish_non_exhaustive()
    }
}
