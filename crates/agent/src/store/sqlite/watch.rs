//! Being told of changes: at once of those of this process, and of those of others by looking at the
//! file now and then.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use rusqlite::{Connection, params};
use tokio::{sync::watch, time::timeout};

use super::{
    connection::Access,
    database::Database,
    fault::Fault,
    read::{one, scope_no},
    row::{IdRef, Name},
};
use crate::{InvocationContext, state::SnapshotStatus, store::StoreErrorKind};

/// The snapshots that somebody wants to be told of.
#[derive(Default)]
pub(super) struct Watches(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    rows: HashMap<Key, watch::Sender<Option<SnapshotStatus>>>,
    /// Somebody looks at the file.
    polled: bool,
}

/// Scope and id.
type Key = (Option<Arc<str>>, Arc<str>);

impl Watches {
    /// This process wrote the row.
    pub(super) fn tell(&self, scope: Option<&str>, id: &Arc<str>, status: SnapshotStatus) {
        let watched = self.lock();
        if !watched.rows.is_empty() {
            watched.tell(&(scope.map(Arc::from), id.clone()), status);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn tell(&self, key: &Key, status: SnapshotStatus) {
        if let Some(row) = self.rows.get(key) {
            row.send_if_modified(|last| last.replace(status) != Some(status));
        }
    }
}

/// The status of a snapshot, now and whenever it has changed.
pub(super) fn statuses(
    database: Arc<Database>,
    cx: InvocationContext,
    snapshot_id: Arc<str>,
) -> BoxStream<'static, SnapshotStatus> {
    let first = async move {
        let key = (cx.scope().map(Arc::from), snapshot_id);
        // Watched from before the first look on, so that nothing falls between.
        let mut watch = Watch::new(database, key);
        let status = tokio::select! {
            biased;
            _ = cx.ended() => None,
            status = watch.read() => status,
        };
        let first = stream::iter(status);
        let following = stream::unfold((watch, cx), async |(mut watch, cx)| {
            tokio::select! {
                biased;
                _ = cx.ended() => None,
                status = watch.changed() => Some((status?, (watch, cx))),
            }
        });
        match status {
            Some(_) => first.chain(following).boxed(),
            None => first.boxed(),
        }
    };
    stream::once(first).flatten().boxed()
}

/// One subscription.
struct Watch {
    database: Arc<Database>,
    key: Key,
    changes: watch::Receiver<Option<SnapshotStatus>>,
}

impl Watch {
    fn new(database: Arc<Database>, key: Key) -> Self {
        let (changes, poll) = {
            let mut watched = database.watches.lock();
            let row = watched.rows.entry(key.clone()).or_insert_with(|| watch::Sender::new(None));
            (row.subscribe(), !std::mem::replace(&mut watched.polled, true))
        };
        if poll {
            let polling = Polling { database: Arc::downgrade(&database), ended: false };
            tokio::spawn(polling.run(database.options.poll_interval));
        }
        Self { database, key, changes }
    }

    /// What the file says; nothing where it cannot be read.
    async fn read(&mut self) -> Option<SnapshotStatus> {
        let key = self.key.clone();
        let status = self.database.read(move |connection, _| status(connection, &key));
        timeout(self.database.options.deadline, status).await.ok()?.ok()?
    }

    /// It ends where nobody can tell any more.
    async fn changed(&mut self) -> Option<SnapshotStatus> {
        loop {
            self.changes.changed().await.ok()?;
            if let Some(status) = *self.changes.borrow_and_update() {
                return Some(status);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.database.watches.lock();
        let last = watched.rows.get(&self.key).is_some_and(|row| row.receiver_count() <= 1);
        if last {
            watched.rows.remove(&self.key);
        }
    }
}

fn status(connection: &Connection, key: &Key) -> Result<Option<SnapshotStatus>, Fault> {
    let Some(scope) = scope_no(connection, key.0.as_deref())? else { return Ok(None) };
    let sql = "SELECT status FROM snapshots WHERE scope = ?1 AND id = ?2";
    let status = one(connection, sql, params![scope, IdRef(&key.1)])?;
    Ok(status.map(|Name(status)| status))
}

/// The one of a process that looks at the file.
struct Polling {
    database: Weak<Database>,
    ended: bool,
}

/// What it knows from one look to the next.
#[derive(Default)]
struct Look {
    connection: Option<Connection>,
    /// SQLite's number of the state of the file, as the connection sees it.
    version: Option<i64>,
}

/// So many looks in a row may fail.
const PATIENCE: u32 = 10;

impl Polling {
    async fn run(mut self, interval: Duration) {
        let (mut look, mut failed) = (Look::default(), 0);
        loop {
            // Whoever is subscribed holds the database.
            let Some(database) = self.database.upgrade() else { return };
            if self.is_over(&database) {
                return database.put_back(look.connection);
            }
            let looked = tokio::task::spawn_blocking(move || {
                let result = look.at(&database);
                (look, result)
            });
            let Ok((back, result)) = looked.await else { return };
            look = back;
            match result {
                Ok(()) => failed = 0,
                Err(fault) => {
                    failed += 1;
                    look = Look::default();
                    let error = fault.at(std::path::Path::new(""));
                    let lasting = error.kind == StoreErrorKind::Corrupt;
                    if failed >= PATIENCE || lasting {
                        tracing::error!(reason = error.reason, "changes cannot be told any more");
                        return;
                    }
                }
            }
            tokio::time::sleep(interval).await;
        }
    }

    /// Nobody is subscribed.
    fn is_over(&mut self, database: &Database) -> bool {
        let mut watched = database.watches.lock();
        if watched.rows.is_empty() {
            watched.polled = false;
            self.ended = true;
        }
        self.ended
    }
}

impl Drop for Polling {
    /// Where it ends otherwise, nobody tells of changes any more, and the subscriptions end.
    fn drop(&mut self) {
        if let Some(database) = self.database.upgrade()
            && !self.ended
        {
            let mut watched = database.watches.lock();
            watched.polled = false;
            watched.rows.clear();
        }
    }
}

impl Look {
    fn at(&mut self, database: &Database) -> Result<(), Fault> {
        let connection = match &self.connection {
            Some(connection) => connection,
            None => self.connection.insert(database.connect(Access::Reader)?),
        };
        let version = connection.pragma_query_value(None, "data_version", |row| row.get(0))?;
        if self.version == Some(version) {
            return Ok(());
        }
        // Asked after the version: what is watched later is read after it.
        let keys: Vec<Key> = database.watches.lock().rows.keys().cloned().collect();
        for key in keys {
            if let Some(status) = status(connection, &key)? {
                database.watches.lock().tell(&key, status);
            }
        }
        self.version = Some(version);
        Ok(())
    }
}
