//! The one task of a connection: moves commands, results of jobs and the time into the core, and
//! events and jobs out of it. No behaviour of its own.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use antiphon_live::{LiveCommand, LiveEvent};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use crate::{
    core::{Core, Effect, JobId, JobOutput},
    jobs::{self, Parts},
};

/// With so many events not yet taken by the session, it is not given more to do: jobs and commands
/// wait.
const MAX_PENDING_EVENTS: usize = 64;
/// Results that may wait for the core.
const MAX_PENDING_RESULTS: usize = 16;

/// Moves everything until the connection is gone.
pub(crate) struct Driver {
    pub(crate) core: Core,
    pub(crate) parts: Arc<Parts>,
    pub(crate) commands: mpsc::Receiver<LiveCommand>,
    pub(crate) events: mpsc::Sender<LiveEvent>,
    /// Bytes of audio that wait in `commands`.
    pub(crate) unsent: Arc<AtomicUsize>,
}

impl Driver {
    /// Runs until the other half is closed or dropped. Dropping the future stops all jobs.
    pub(crate) async fn run(self) {
        let Self { mut core, parts, mut commands, events, unsent } = self;
        let (results, mut finished) = mpsc::channel(MAX_PENDING_RESULTS);
        let mut jobs = Jobs::new(parts, results);
        loop {
            while let Some(effect) = core.poll_effect() {
                jobs.apply(effect);
            }
            let deadline = core.deadline();
            let room = core.pending_events() < MAX_PENDING_EVENTS;
            tokio::select! {
                biased;
                permit = events.reserve(), if core.pending_events() > 0 => {
                    let Ok(permit) = permit else { return };
                    if let Some(event) = core.poll_event() {
                        permit.send(event);
                    }
                }
                command = commands.recv(), if room => {
                    let Some(command) = command else { return };
                    if let LiveCommand::AppendAudio(frame) = &command {
                        unsent.fetch_sub(frame.data.len(), Ordering::Relaxed);
                    }
                    core.command(command, Instant::now().into_std());
                    // However many commands come, results get their turn.
                    if let Ok((job, output)) = finished.try_recv() {
                        core.job(job, output);
                    }
                }
                result = finished.recv(), if room => {
                    if let Some((job, output)) = result {
                        core.job(job, output);
                    }
                }
                () = sleep_until(deadline.map_or_else(far_away, Instant::from_std)),
                    if deadline.is_some() =>
                {
                    core.timeout(Instant::now().into_std());
                }
                _ = jobs.running.join_next(), if !jobs.running.is_empty() => jobs.forget_ended(),
            }
        }
    }
}

/// The running jobs. Dropping it stops them.
struct Jobs {
    parts: Arc<Parts>,
    results: mpsc::Sender<(JobId, JobOutput)>,
    running: JoinSet<()>,
    handles: HashMap<JobId, AbortHandle>,
}

impl Jobs {
    fn new(parts: Arc<Parts>, results: mpsc::Sender<(JobId, JobOutput)>) -> Self {
        Self { parts, results, running: JoinSet::new(), handles: HashMap::new() }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Start(id, job) => {
                let job = jobs::run(self.parts.clone(), id, job, self.results.clone());
                self.handles.insert(id, self.running.spawn(job));
            }
            Effect::Cancel(id) => {
                if let Some(handle) = self.handles.remove(&id) {
                    handle.abort();
                }
            }
        }
    }

    fn forget_ended(&mut self) {
        self.handles.retain(|_, handle| !handle.is_finished());
    }
}

/// A time that never comes, for a timer that is not set.
fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
