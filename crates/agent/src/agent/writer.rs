//! Writes the snapshots of an invocation, in order.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use antiphon_types::Status;
use futures_util::FutureExt;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};

use super::{
    RuntimeLimits,
    backlog::{Backlog, Place},
    invoke::Settled,
    limits::later,
    outlet::Outlet,
    start::Tip,
};
use crate::{
    InvocationContext, RuntimeError, ledger::Account, protocol::TurnEnd, state::SessionSnapshot,
    store::SessionStore,
};

/// How long after a write that failed it is tried again, at first; then twice as long each time.
const RETRY: Duration = Duration::from_millis(50);
/// The longest time between two tries.
const MAX_RETRY: Duration = Duration::from_secs(2);

/// Makes the row of a turn that goes on from the given snapshot.
pub(super) type MakeRow =
    Box<dyn FnOnce(Option<&Tip>) -> Result<SessionSnapshot, RuntimeError> + Send>;

/// Hands turns that ended to the one task that writes them. The task ends with the last of its
/// handles, after it wrote what it was handed.
pub(super) struct Writer {
    commands: mpsc::Sender<Command>,
    backlog: Arc<Backlog>,
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
        settled: oneshot::Sender<Settled>,
        _place: Place,
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
        account: Option<Arc<Account>>,
        outlet: Arc<Outlet>,
        tip: Option<Tip>,
        limits: &RuntimeLimits,
    ) -> Self {
        let backlog = Backlog::new(limits);
        // One place more each for a suspension and a flush.
        let (commands, receiver) = mpsc::channel(backlog.max_turns() + 2);
        let lineage = Arc::new(Mutex::new(Lineage { written: tip, ..Lineage::default() }));
        let (limit, patience) = (limits.store, limits.on_store_stall.patience());
        let task = Task { cx, store, account, outlet, limit, patience, lineage: lineage.clone() };
        tokio::spawn(task.run(receiver));
        Self { commands, backlog, lineage }
    }

    /// Reserves the place of a turn that begins. Errs where too much waits to be written.
    pub(super) fn reserve(&self) -> Result<Place, RuntimeError> {
        self.backlog.reserve()
    }

    /// How many turns wait to be written, or are open.
    pub(super) fn unwritten(&self) -> usize {
        self.backlog.turns()
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
        place: Place,
    ) -> oneshot::Receiver<Settled> {
        let (settled, receiver) = oneshot::channel();
        if let Some((id, _)) = &row {
            lock(&self.lineage).sealed = Some(id.clone());
        }
        // There is room: `place` is one of as many as the channel holds. And the task lives as long
        // as this handle.
        let _ = self.commands.try_send(Command::Turn { row, end, settled, _place: place });
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
    account: Option<Arc<Account>>,
    outlet: Arc<Outlet>,
    /// How long the store may take.
    limit: Duration,
    /// For how long a write that failed is tried again.
    patience: Duration,
    lineage: Arc<Mutex<Lineage>>,
}

impl Task {
    async fn run(self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            match command {
                Command::Turn { row, mut end, settled, _place } => {
                    let mut error = None;
                    if let Some((id, make)) = row {
                        match self.write(id, make).await {
                            Ok(id) => end.snapshot_id = id,
                            Err(failure) => error = Some(failure),
                        }
                    }
                    self.outlet.chunk(end.clone());
                    let _ = settled.send(Settled { end, error });
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

    /// Writes a row; `None` where none is to be written. A turn whose row cannot be written still
    /// ended: that is logged, and the snapshot before stays the one to go on from.
    async fn write(&self, id: Arc<str>, make: MakeRow) -> Result<Option<Arc<str>>, RuntimeError> {
        let suspended = lock(&self.lineage).suspended;
        let result = match suspended {
            true => Ok(None),
            false => self.save(&id, make).await.map(Some),
        };
        let mut lineage = lock(&self.lineage);
        if lineage.sealed.as_ref() == Some(&id) {
            lineage.sealed = None;
        }
        match result {
            Ok(None) => Ok(None),
            Ok(Some(tip)) => {
                lineage.written = Some(tip);
                drop(lineage);
                if let Some(account) = &self.account {
                    account.written(&id);
                }
                Ok(Some(id))
            }
            Err(error) => {
                tracing::error!(snapshot_id = &*id, %error, "a turn could not be written");
                Err(error)
            }
        }
    }

    /// Saves a row, with patience.
    async fn save(&self, id: &Arc<str>, make: MakeRow) -> Result<Tip, RuntimeError> {
        let parent = lock(&self.lineage).written.clone();
        let row = guarded(async { make(parent.as_ref()) }).await?;
        let until = later(Instant::now(), self.patience);
        let mut pause = RETRY;
        loop {
            // A write that nobody waits for in vain has all its time; one that is tried again has
            // what is left.
            let left = until.saturating_duration_since(Instant::now());
            let limit = if self.patience.is_zero() { self.limit } else { self.limit.min(left) };
            let Err(error) = guarded(self.save_once(id, &row, limit)).await else {
                return Ok(Tip { id: id.clone(), created_at: row.created_at });
            };
            if Instant::now() + pause >= until || !may_pass(&error) {
                return Err(error);
            }
            tracing::warn!(snapshot_id = &**id, %error, "a turn could not be written yet");
            sleep(pause).await;
            pause = (2 * pause).min(MAX_RETRY);
        }
    }

    async fn save_once(
        &self,
        id: &str,
        row: &SessionSnapshot,
        limit: Duration,
    ) -> Result<(), RuntimeError> {
        let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
        let saved = timeout(limit, self.store.save_snapshot(&self.cx, Some(id), &update)).await;
        saved.map_err(|_| {
            let message = format!("the session store gave no answer within {limit:?}");
            RuntimeError::new(Status::Unavailable, message)
        })??;
        Ok(())
    }
}

/// Whether a write that failed so may succeed later.
fn may_pass(error: &RuntimeError) -> bool {
    !matches!(
        error.status(),
        Status::InvalidArgument | Status::FailedPrecondition | Status::DataLoss
    )
}

/// A store that panics must not end the writer.
async fn guarded<T>(
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(RuntimeError::internal("the session store panicked")))
}

fn lock(lineage: &Mutex<Lineage>) -> MutexGuard<'_, Lineage> {
    lineage.lock().unwrap_or_else(PoisonError::into_inner)
}
