//! Who wants to be told of the status of which row.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::state::SnapshotStatus;

/// The rows that somebody of this process listens to.
#[derive(Default)]
pub(super) struct Statuses {
    rows: Mutex<HashMap<Key, watch::Sender<Told>>>,
}

/// A tenant and a row.
type Key = (Option<Arc<str>>, Arc<str>);

/// The status in a version of a row; `None` until this process writes one.
pub(super) type Told = Option<(u64, SnapshotStatus)>;

impl Statuses {
    pub(super) fn subscribe(&self, scope: Option<&str>, id: &str) -> watch::Receiver<Told> {
        let mut rows = self.lock();
        // Those to which nobody listens any more.
        rows.retain(|_, row| row.receiver_count() > 0);
        let key = (scope.map(Arc::from), Arc::from(id));
        rows.entry(key).or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    /// This process wrote the row.
    pub(super) fn tell(&self, scope: Option<&str>, id: &str, version: u64, status: SnapshotStatus) {
        let rows = self.lock();
        if rows.is_empty() {
            return;
        }
        if let Some(row) = rows.get(&(scope.map(Arc::from), Arc::from(id))) {
            row.send_if_modified(|told| {
                let newer = told.is_none_or(|(last, _)| last < version);
                if newer {
                    *told = Some((version, status));
                }
                newer
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<Told>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
