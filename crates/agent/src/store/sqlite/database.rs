//! The open file: the one writer, and the readers.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    SqliteOptions,
    calls::CallWrite,
    connection::{Access, Identity, connect, create, one_name, use_log},
    fault::Fault,
    read::Known,
    schema,
    watch::Watches,
    write::{Applied, Commit, Draft},
};
use crate::store::{StoreError, StoreErrorKind};

/// An open file.
pub(super) struct Database {
    pub(super) path: Arc<Path>,
    pub(super) options: SqliteOptions,
    pub(super) known: Known,
    pub(super) watches: Watches,
    identity: Identity,
    readers: Pool,
    queue: Mutex<Queue>,
    room: Arc<Semaphore>,
    /// Taken by whoever drains the queue. A new one is opened where it went with a panic.
    writer: Mutex<Option<Connection>>,
}

/// What the writer is to do.
pub(super) enum Work {
    Commit(Commit),
    /// Memory: the value of a key, or none.
    Remember(String, Option<String>),
    /// A tool call.
    Call(Box<CallWrite>),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It is on the disk.
    Written,
    /// The row is not the one that the commit was made from.
    Stale,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Somebody drains it.
    drained: bool,
}

struct Waiting {
    work: Work,
    answer: oneshot::Sender<Result<Done, StoreError>>,
    _room: OwnedSemaphorePermit,
}

/// How many pieces of work a transaction takes.
const GROUP: usize = 512;

impl Database {
    /// Opens the file. Blocks.
    pub(super) fn open(options: SqliteOptions) -> Result<Self, StoreError> {
        let path: Arc<Path> = match one_name(&options.path) {
            Ok(path) => path.into(),
            Err(fault) => return Err(fault.at(&*options.path)),
        };
        Self::open_at(path.clone(), options).map_err(|fault| fault.at(path))
    }

    fn open_at(path: Arc<Path>, options: SqliteOptions) -> Result<Self, Fault> {
        let exists = schema::inspect(&path)?;
        if options.read_only {
            if !exists {
                return Err(Fault::of(StoreErrorKind::NotFound, "there is no store"));
            }
            let connection = connect(&path, &options, Access::Reader)?;
            schema::check(&connection)?;
        } else {
            if !exists {
                create(&path)?;
            }
            let mut connection = connect(&path, &options, Access::Writer)?;
            if connection.is_readonly("main")? {
                return Err(Fault::of(StoreErrorKind::ReadOnly, "the file may not be written"));
            }
            schema::migrate(&mut connection, schema::MIGRATIONS)?;
            use_log(&connection, options.deadline)?;
        }
        Ok(Self {
            identity: Identity::of(&path)?,
            known: Known::new(options.cache_bytes),
            watches: Watches::default(),
            readers: Pool::new(options.readers),
            queue: Mutex::default(),
            room: Arc::new(Semaphore::new(options.queue.max(1))),
            writer: Mutex::new(None),
            path,
            options,
        })
    }

    /// Runs `read` on a connection for reading. The caller bounds how long that may take.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection, &Known) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        // Never closed.
        let Ok(permit) = self.readers.permits.clone().acquire_owned().await else {
            return Err(self.stopped());
        };
        let database = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            // Held to the end of the work, though its caller may be gone.
            let _permit = permit;
            let connection = database.readers.take();
            let connection = match connection {
                Some(connection) => connection,
                None => database.connect(Access::Reader)?,
            };
            let result = read(&connection, &database.known);
            if result.is_ok() {
                database.readers.put(connection);
            }
            result
        });
        match work.await {
            Ok(result) => result.map_err(|fault| fault.at(self.path.clone())),
            Err(_) => Err(self.stopped()),
        }
    }

    /// Hands work to the writer and waits until it is on the disk. What is dropped before its turn
    /// has come is not done; after that it is done as a whole.
    pub(super) async fn write(self: &Arc<Self>, work: Work) -> Result<Done, StoreError> {
        if self.options.read_only {
            let reason = "it was opened for reading only";
            return Err(StoreError::new(StoreErrorKind::ReadOnly, self.path.clone(), reason));
        }
        let Ok(room) = self.room.clone().acquire_owned().await else {
            return Err(self.stopped());
        };
        let (answer, receiver) = oneshot::channel();
        let start = {
            let mut queue = lock(&self.queue);
            queue.waiting.push_back(Waiting { work, answer, _room: room });
            !std::mem::replace(&mut queue.drained, true)
        };
        if start {
            let drain = Drain { database: self.clone(), ended: false };
            tokio::task::spawn_blocking(move || drain.run());
        }
        receiver.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    /// Opens another connection to the same file.
    pub(super) fn connect(&self, access: Access) -> Result<Connection, Fault> {
        self.identity.check(&self.path)?;
        connect(&self.path, &self.options, access)
    }

    /// Keeps a connection for reading for whoever needs one next.
    pub(super) fn put_back(&self, connection: Option<Connection>) {
        if let Some(connection) = connection {
            self.readers.put(connection);
        }
    }

    fn stopped(&self) -> StoreError {
        let reason = "the work was given up, as the runtime stops or by a panic";
        StoreError::new(StoreErrorKind::Io, self.path.clone(), reason)
    }

    /// Does what waits, in as few transactions as possible.
    fn work_off(&self, group: Vec<Waiting>) {
        let mut writer = lock(&self.writer).take();
        let connection = match &mut writer {
            Some(connection) => Ok(connection),
            None => self.connect(Access::Writer).map(|new| writer.insert(new)),
        };
        // A file that is gone can still be written to, for nobody.
        let ready = connection.and_then(|connection| {
            self.identity.check(&self.path)?;
            Ok(connection)
        });
        let connection = match ready {
            Ok(connection) => connection,
            Err(fault) => return refuse(group, &fault.at(self.path.clone())),
        };
        let mut prepared = Vec::with_capacity(group.len());
        for Waiting { work, answer, _room } in group {
            match self.prepare(connection, work) {
                Ok(task) => prepared.push((task, answer)),
                Err(fault) => {
                    let _ = answer.send(Err(fault.at(self.path.clone())));
                }
            }
        }
        match transact(connection, prepared.iter().map(|(task, _)| task)) {
            Ok(results) => {
                for ((task, answer), result) in prepared.into_iter().zip(results) {
                    self.tell(task, answer, result);
                }
            }
            Err(fault) => {
                let error = fault.at(self.path.clone());
                let alone = prepared.len() == 1;
                let too_much = [StoreErrorKind::Full, StoreErrorKind::TooLarge];
                for (task, answer) in prepared {
                    if alone || !too_much.contains(&error.kind) {
                        let _ = answer.send(Err(error.clone()));
                        continue;
                    }
                    // What is too much together, or for one of them, need not be for the others.
                    let result = transact(connection, [&task].into_iter())
                        .and_then(|mut results| results.pop().unwrap_or(Ok(Applied::Stale)));
                    self.tell(task, answer, result);
                }
            }
        }
        if connection.is_autocommit() {
            *lock(&self.writer) = writer;
        }
    }

    fn prepare(&self, connection: &Connection, work: Work) -> Result<Task, Fault> {
        Ok(match work {
            Work::Commit(commit) => {
                Task::Commit(Box::new(Draft::new(connection, &self.known, commit)?))
            }
            Work::Remember(key, value) => Task::Remember(key, value),
            Work::Call(call) => Task::Call(call),
        })
    }

    fn tell(
        &self,
        task: Task,
        answer: oneshot::Sender<Result<Done, StoreError>>,
        result: Result<Applied, Fault>,
    ) {
        let done = match result {
            Ok(Applied::Stale) => Ok(Done::Stale),
            Ok(Applied::Written(new)) => {
                if let Task::Commit(draft) = task {
                    let Commit { scope, row, .. } = draft.commit();
                    self.watches.tell(scope.as_deref(), &row.snapshot_id, row.status());
                    draft.learn(&self.known, new);
                }
                Ok(Done::Written)
            }
            Err(fault) => Err(fault.at(self.path.clone())),
        };
        let _ = answer.send(done);
    }
}

impl Drop for Database {
    /// The last connection that is closed moves the log into the file, which may take a moment.
    fn drop(&mut self) {
        let connections = (self.readers.take_all(), lock(&self.writer).take());
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(connections))),
            Err(_) => drop(connections),
        }
    }
}

enum Task {
    Commit(Box<Draft>),
    Remember(String, Option<String>),
    Call(Box<CallWrite>),
}

impl Task {
    fn apply(&self, connection: &Connection) -> Result<Applied, Fault> {
        match self {
            Self::Commit(draft) => draft.apply(connection),
            Self::Call(call) => call.apply(connection),
            Self::Remember(key, value) => {
                match value {
                    Some(value) => connection
                        .prepare_cached(
                            "INSERT INTO memory (key, value) VALUES (?1, ?2) \
                             ON CONFLICT DO UPDATE SET value = excluded.value",
                        )?
                        .execute([key, value])?,
                    None => connection
                        .prepare_cached("DELETE FROM memory WHERE key = ?1")?
                        .execute([key])?,
                };
                Ok(Applied::Written(Default::default()))
            }
        }
    }
}

/// Does all of them in one transaction; one that fails leaves no trace. An error: nothing was done.
fn transact<'a>(
    connection: &mut Connection,
    tasks: impl Iterator<Item = &'a Task>,
) -> Result<Vec<Result<Applied, Fault>>, Fault> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut results = Vec::new();
    for task in tasks {
        let savepoint = transaction.savepoint()?;
        let result = task.apply(&savepoint);
        if result.is_ok() {
            savepoint.commit()?;
        } else {
            // Some failures end the whole transaction, and the savepoint with it.
            if savepoint.is_autocommit() {
                return Err(result.err().unwrap_or_else(|| Fault::corrupt("it cannot be written")));
            }
            drop(savepoint);
        }
        results.push(result);
    }
    transaction.commit()?;
    Ok(results)
}

/// Whoever empties the queue.
struct Drain {
    database: Arc<Database>,
    ended: bool,
}

impl Drain {
    fn run(mut self) {
        while let Some(group) = self.next() {
            self.database.work_off(group);
        }
    }

    /// What waits, without what nobody waits for any more.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut queue = lock(&self.database.queue);
        let mut group = Vec::new();
        while group.len() < GROUP {
            let Some(waiting) = queue.waiting.pop_front() else { break };
            if !waiting.answer.is_closed() {
                group.push(waiting);
            }
        }
        if group.is_empty() {
            queue.drained = false;
            self.ended = true;
            return None;
        }
        Some(group)
    }
}

impl Drop for Drain {
    /// Where the end was not reached, by a panic or as the runtime stops, nobody is left to wait
    /// in vain.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let left = {
            let mut queue = lock(&self.database.queue);
            queue.drained = false;
            std::mem::take(&mut queue.waiting)
        };
        refuse(left, &self.database.stopped());
    }
}

fn refuse(waiting: impl IntoIterator<Item = Waiting>, error: &StoreError) {
    for Waiting { answer, .. } in waiting {
        let _ = answer.send(Err(error.clone()));
    }
}

/// Connections for reading that nobody uses.
struct Pool {
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    fn new(size: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(size.max(1))), idle: Mutex::default() }
    }

    fn take(&self) -> Option<Connection> {
        lock(&self.idle).pop()
    }

    fn put(&self, connection: Connection) {
        lock(&self.idle).push(connection);
    }

    fn take_all(&self) -> Vec<Connection> {
        std::mem::take(&mut lock(&self.idle))
    }
}

/// Held for operations on collections only, never over foreign code or the disk.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
