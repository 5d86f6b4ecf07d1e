//! Writes the snapshots of an invocation, in order.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};

use super::{outlet::Outlet, start::Tip};
use crate::{
    InvocationContext, RuntimeError, protocol::TurnEnd, state::SessionSnapshot, store::SessionStore,
};

/// Makes the row of a turn that goes on from the given snapshot.
pub(super) type MakeRow =
    Box<dyn FnOnce(Option<&Tip>) -> Result<SessionSnapshot, RuntimeError> + Send>;

/// Hands turns that ended to the one task that writes them. The task ends with the last of its
/// handles, after it wrote what it was handed.
pub(super) struct Writer {
    commands: mpsc::Sender<Command>,
    room: Arc<Semaphore>,
    bound: usize,
    lineage: Arc<Mutex<Lineage>>,
}

/// Which snapshots there are.
#[derive(Default)]
struct Lineage {
    written: Option<Tip>,
    /// The reserved id of the last turn that ended, while it is not written.
    sealed: Option<Arc<str>>,
    /// No row is written.
    suspended: bool,
}

enum Command {
    /// A turn ended. Without a row it only is to be told.
    Turn {
        row: Option<(Arc<str>, MakeRow)>,
        end: TurnEnd,
        written: oneshot::Sender<TurnEnd>,
        _room: OwnedSemaphorePermit,
    },
    /// From now on no row is written.
    Suspend(oneshot::Sender<Option<Tip>>),
    /// Says when all before it is done.
    Flush(oneshot::Sender<Option<Tip>>),
}

impl Writer {
    /// Starts the task. `cx` should end neither by time nor by cancellation: what was committed is
    /// written.
    pub(super) fn spawn(
        cx: InvocationContext,
        store: Arc<dyn SessionStore>,
        outlet: Arc<Outlet>,
        tip: Option<Tip>,
        bound: usize,
        limit: Duration,
    ) -> Self {
        let bound = bound.max(1);
        // One place more each for a suspension and a flush.
        let (commands, receiver) = mpsc::channel(bound + 2);
        let lineage = Arc::new(Mutex::new(Lineage { written: tip, ..Lineage::default() }));
        let task = Task { cx, store, outlet, limit, lineage: lineage.clone() };
        tokio::spawn(task.run(receiver));
        Self { commands, room: Arc::new(Semaphore::new(bound)), bound, lineage }
    }

    /// Reserves the place of a turn that begins. `None`: too many wait to be written.
    pub(super) fn reserve(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// How many turns wait to be written, or are open.
    pub(super) fn unwritten(&self) -> usize {
        self.bound - self.room.available_permits()
    }

    /// The snapshot that the next turn goes on from, written or about to be.
    pub(super) fn parent(&self) -> Option<Arc<str>> {
        let lineage = lock(&self.lineage);
        lineage.sealed.clone().or_else(|| lineage.written.as_ref().map(|tip| tip.id.clone()))
    }

    /// The last snapshot that was written.
    pub(super) fn written(&self) -> Option<Arc<str>> {
        lock(&self.lineage).written.as_ref().map(|tip| tip.id.clone())
    }

    /// Hands over a turn that ended. What comes back is told once the row is written.
    pub(super) fn turn(
        &self,
        row: Option<(Arc<str>, MakeRow)>,
        end: TurnEnd,
        room: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<TurnEnd> {
        let (written, receiver) = oneshot::channel();
        if let Some((id, _)) = &row {
            lock(&self.lineage).sealed = Some(id.clone());
        }
        // There is a place: `room` is one of as many as the channel holds. And the task lives as
        // long as this handle.
        let _ = self.commands.try_send(Command::Turn { row, end, written, _room: room });
        receiver
    }

    /// Lets what was handed over be written and nothing after it, unless the suspension is dropped
    /// without having been [kept](Suspension::keep).
    pub(super) async fn suspend(&self) -> Suspension {
        // Made before the wait, which may be dropped after the answer was sent.
        let mut suspension = Suspension { lineage: Some(self.lineage.clone()), tip: None };
        suspension.tip = self.ask(Command::Suspend).await;
        suspension
    }

    /// Waits until what was handed over is written. Returns the last snapshot.
    pub(super) async fn flush(&self) -> Option<Tip> {
        self.ask(Command::Flush).await
    }

    async fn ask(&self, command: fn(oneshot::Sender<Option<Tip>>) -> Command) -> Option<Tip> {
        // The task bounds each of its writes, so this ends.
        let (answer, receiver) = oneshot::channel();
        self.commands.send(command(answer)).await.ok()?;
        receiver.await.ok().flatten()
    }
}

/// While it is there turns that end are not written.
pub(super) struct Suspension {
    lineage: Option<Arc<Mutex<Lineage>>>,
    /// The last snapshot that was written.
    pub(super) tip: Option<Tip>,
}

impl Suspension {
    /// Something else stands for all turns to come.
    pub(super) fn keep(mut self) {
        self.lineage = None;
    }
}

impl Drop for Suspension {
    fn drop(&mut self) {
        if let Some(lineage) = &self.lineage {
            lock(lineage).suspended = false;
        }
    }
}

struct Task {
    cx: InvocationContext,
    store: Arc<dyn SessionStore>,
    outlet: Arc<Outlet>,
    limit: Duration,
    lineage: Arc<Mutex<Lineage>>,
}

impl Task {
    async fn run(self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            match command {
                Command::Turn { row, mut end, written, _room } => {
                    if let Some((id, make)) = row {
                        end.snapshot_id = self.write(id, make).await;
                    }
                    self.outlet.chunk(end.clone());
                    let _ = written.send(end);
                }
                Command::Suspend(answer) => {
                    let written = {
                        let mut lineage = lock(&self.lineage);
                        lineage.suspended = true;
                        lineage.written.clone()
                    };
                    if answer.send(written).is_err() {
                        // Whoever asked is gone, and nothing stands for the turns to come.
                        lock(&self.lineage).suspended = false;
                    }
                }
                Command::Flush(answer) => {
                    let _ = answer.send(lock(&self.lineage).written.clone());
                }
            }
        }
    }

    /// Writes a row. A turn whose row cannot be written still ended: that is logged, and the
    /// snapshot before stays the one to go on from.
    async fn write(&self, id: Arc<str>, make: MakeRow) -> Option<Arc<str>> {
        let suspended = lock(&self.lineage).suspended;
        let result = match suspended {
            true => Ok(None),
            // A store that panics must not end the writer.
            false => AssertUnwindSafe(self.save(&id, make))
                .catch_unwind()
                .await
                .unwrap_or_else(|_| Err(RuntimeError::internal("the session store panicked"))),
        };
        let mut lineage = lock(&self.lineage);
        if lineage.sealed.as_ref() == Some(&id) {
            lineage.sealed = None;
        }
        match result {
            Ok(tip) => {
                let tip = tip?;
                lineage.written = Some(tip);
                Some(id)
            }
            Err(error) => {
                tracing::error!(snapshot_id = &*id, %error, "a turn could not be written");
                None
            }
        }
    }

    async fn save(&self, id: &Arc<str>, make: MakeRow) -> Result<Option<Tip>, RuntimeError> {
        let parent = lock(&self.lineage).written.clone();
        let row = make(parent.as_ref())?;
        let tip = Tip { id: id.clone(), created_at: row.created_at };
        let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
        timeout(self.limit, self.store.save_snapshot(&self.cx, Some(id), &update))
            .await
            .map_err(|_| RuntimeError::internal(format!("no answer within {:?}", self.limit)))??;
        Ok(Some(tip))
    }
}

fn lock(lineage: &Mutex<Lineage>) -> MutexGuard<'_, Lineage> {
    lineage.lock().unwrap_or_else(PoisonError::into_inner)
}
