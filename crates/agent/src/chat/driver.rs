//! What happens in a turn of a chat.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use antiphon_types::Status;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use super::{AgentTransport, TurnRun, chunk::Accumulated, local::Local, response::Completed};
use crate::{
    InvocationContext, RuntimeError,
    message::Message,
    protocol::{AgentInput, AgentOutput, AgentStreamChunk, GetSnapshotRequest},
    state::{AgentErrorDetails, AgentFinishReason, add_artifact},
};

/// How long a turn that was aborted may take to say where to go on from: longer than an agent lets
/// its function have for that.
const GRACE: Duration = Duration::from_secs(5);

/// How long the output may take once nothing streams any more.
const OUTPUT_DEADLINE: Duration = Duration::from_secs(60);

/// How long reading up on a snapshot may take.
const LOAD_DEADLINE: Duration = Duration::from_secs(10);

/// What the handles of one chat share.
pub(super) struct Shared {
    pub(super) transport: Arc<dyn AgentTransport>,
    local: Mutex<Local>,
    /// A turn is under way.
    busy: AtomicBool,
}

impl Shared {
    pub(super) fn new(transport: Arc<dyn AgentTransport>, local: Local) -> Self {
        Self { transport, local: Mutex::new(local), busy: AtomicBool::new(false) }
    }

    /// Held for moments only, never over foreign code or an await.
    pub(super) fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what the snapshot holds that the chat goes on from. Where that does not succeed the
    /// chat stays as it is.
    pub(super) async fn refresh(&self, cx: &InvocationContext) -> Result<(), RuntimeError> {
        let Some(snapshot_id) = self.local().snapshot_id.clone() else { return Ok(()) };
        let request = GetSnapshotRequest {
            snapshot_id: Some(snapshot_id.clone()),
            ..GetSnapshotRequest::default()
        };
        let read = tokio::select! {
            biased;
            read = timeout(LOAD_DEADLINE, self.transport.get_snapshot(cx, request)) => read,
            status = cx.ended() => return Err(ended(status).into()),
        };
        let late = |_| RuntimeError::DeadlineExceeded(format!("reading snapshot {snapshot_id:?}"));
        let snapshot = read.map_err(late)??;
        let mut local = self.local();
        if local.snapshot_id == Some(snapshot_id) {
            local.load(snapshot);
        }
        Ok(())
    }
}

/// [`Shared::refresh`] between turns; an error while one is under way.
pub(super) async fn refresh(
    shared: &Arc<Shared>,
    cx: &InvocationContext,
) -> Result<(), RuntimeError> {
    match Slot::take(shared.clone()) {
        Some(_slot) => shared.refresh(cx).await,
        None => Err(busy().into()),
    }
}

/// What comes of a turn, in order: any number of chunks, then the end.
pub(super) enum Event {
    Chunk { raw: Box<AgentStreamChunk>, custom: Option<Arc<Value>>, accumulated: Accumulated },
    Done(Box<Outcome>),
}

/// How a turn ended; one that failed has the error.
pub(super) struct Outcome {
    pub(super) completed: Completed,
    pub(super) error: Option<AgentErrorDetails>,
}

/// Runs a turn. Nothing happens until it is polled; dropped before its end, it leaves the chat as
/// it was before.
pub(super) fn drive(
    shared: Arc<Shared>,
    cx: InvocationContext,
    input: AgentInput,
) -> BoxStream<'static, Event> {
    let slot = Slot::take(shared);
    let begin = Turn::Begin { slot, input };
    stream::unfold(begin, move |turn| next(cx.clone(), turn)).boxed()
}

enum Turn {
    Begin { slot: Option<Slot>, input: AgentInput },
    Running(Running),
    Over,
}

async fn next(cx: InvocationContext, turn: Turn) -> Option<(Event, Turn)> {
    let running = match turn {
        Turn::Begin { slot: None, .. } => {
            return Some((Event::Done(Outcome::busy().into()), Turn::Over));
        }
        Turn::Begin { slot: Some(slot), input } => match begin(&cx, slot, input).await {
            Ok(running) => running,
            Err(outcome) => return Some((Event::Done(outcome), Turn::Over)),
        },
        Turn::Running(running) => running,
        Turn::Over => return None,
    };
    let (event, running) = running.next(&cx).await;
    Some((event, running.map_or(Turn::Over, Turn::Running)))
}

/// The right to run a turn of the chat. Dropped before the turn is over, it puts the chat back to
/// where it was.
struct Slot {
    shared: Arc<Shared>,
    before: Option<Local>,
}

impl Slot {
    fn take(shared: Arc<Shared>) -> Option<Self> {
        let free = !shared.busy.swap(true, Ordering::Acquire);
        // Not made where it is not free: its end would make it free.
        free.then(|| Self { shared, before: None })
    }

    fn put_back(&mut self) {
        if let Some(before) = self.before.take() {
            *self.shared.local() = before;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.put_back();
        self.shared.busy.store(false, Ordering::Release);
    }
}

async fn begin(
    cx: &InvocationContext,
    mut slot: Slot,
    input: AgentInput,
) -> Result<Running, Box<Outcome>> {
    let shared = slot.shared.clone();
    if shared.local().stale
        && let Err(error) = shared.refresh(cx).await
    {
        // The agent decides whether the turn can go on from there.
        tracing::debug!(%error, "what the snapshot holds could not be read");
    }
    let said = input.message.clone().map(Arc::new);
    let init = {
        let mut local = shared.local();
        let init = local.init(shared.transport.state_management());
        slot.before = Some(local.clone());
        if !input.detach {
            local.messages.extend(said.clone());
        }
        init
    };
    let said = said.filter(|_| input.detach);
    match init {
        Ok(init) => {
            let run = shared.transport.run_turn(cx, input, init);
            let accumulated = Accumulated::default();
            Ok(Running { slot, run, said, accumulated, aborted: None, streamed: false })
        }
        Err(error) => {
            slot.put_back();
            let output = failed(error.to_details());
            Err(Box::new(Outcome::failed(&slot.shared, output)))
        }
    }
}

struct Running {
    slot: Slot,
    run: TurnRun,
    /// What the user said, where it was not added to the messages yet.
    said: Option<Arc<Message>>,
    accumulated: Accumulated,
    /// Since when, and why, the turn is being aborted.
    aborted: Option<(Instant, Status)>,
    /// Nothing more streams.
    streamed: bool,
}

impl Running {
    async fn next(mut self, cx: &InvocationContext) -> (Event, Option<Self>) {
        while !self.streamed {
            let chunk = tokio::select! {
                biased;
                status = ends(cx, self.aborted) => {
                    match self.aborted {
                        Some((_, status)) => return self.give_up(status).await,
                        None => self.aborted = Some((Instant::now(), status)),
                    }
                    continue;
                }
                chunk = self.run.stream.next() => chunk,
            };
            match chunk {
                // After an abort nothing more is passed on.
                Some(chunk) if self.aborted.is_none() => return (self.take(chunk), Some(self)),
                Some(_) => {}
                None => self.streamed = true,
            }
        }
        let late = Instant::now() + OUTPUT_DEADLINE;
        // An abort that comes now came too late, but its caller shall not wait for long.
        let mut leaving = self.aborted;
        let output = loop {
            tokio::select! {
                biased;
                output = &mut self.run.output => break output,
                status = ends(cx, leaving) => match leaving {
                    Some((_, status)) => return self.give_up(status).await,
                    None => leaving = Some((Instant::now(), status)),
                },
                () = sleep_until(late) => break failed(AgentErrorDetails::new(
                    Status::DeadlineExceeded,
                    format!("nothing streams any more, but no output came for {OUTPUT_DEADLINE:?}"),
                )),
            }
        };
        self.resolve(cx, output).await
    }

    fn take(&mut self, chunk: AgentStreamChunk) -> Event {
        let mut local = self.slot.shared.local();
        if let Some(artifact) = &chunk.artifact {
            add_artifact(&mut local.artifacts, Arc::new(artifact.clone()));
        }
        let custom = chunk.custom_patch.as_ref().and_then(|patch| {
            local.patch(patch);
            local.custom.clone()
        });
        if let Some(model_chunk) = &chunk.model_chunk {
            self.accumulated.push(model_chunk);
        }
        Event::Chunk { raw: chunk.into(), custom, accumulated: self.accumulated.clone() }
    }

    /// The transport did not come to an end in time after the turn was aborted.
    async fn give_up(mut self, status: Status) -> (Event, Option<Self>) {
        self.slot.put_back();
        let output = AgentOutput {
            finish_reason: Some(AgentFinishReason::Aborted),
            error: Some(ended(status)),
            ..AgentOutput::default()
        };
        (Event::Done(Outcome::aborted(&self.slot.shared, output).into()), None)
    }

    async fn resolve(
        mut self,
        cx: &InvocationContext,
        output: AgentOutput,
    ) -> (Event, Option<Self>) {
        let shared = self.slot.shared.clone();
        let went_well = output.error.is_none()
            && !matches!(
                output.finish_reason,
                Some(AgentFinishReason::Failed | AgentFinishReason::Aborted)
            );
        if went_well {
            self.slot.before = None;
            shared.local().complete(&output, self.said.take());
        } else {
            self.slot.put_back();
            let elsewhere = shared.local().resume_from(&output);
            if elsewhere && let Err(error) = shared.refresh(&cx.uncancelled()).await {
                // It is tried again before the next turn.
                tracing::debug!(%error, "what the snapshot holds could not be read");
            }
        }
        let aborted =
            self.aborted.is_some() || output.finish_reason == Some(AgentFinishReason::Aborted);
        let outcome = match (aborted, went_well) {
            (true, _) => Outcome::aborted(&shared, output),
            (false, true) => Outcome::went_well(&shared, output),
            (false, false) => Outcome::failed(&shared, output),
        };
        (Event::Done(outcome.into()), None)
    }
}

impl Outcome {
    fn went_well(shared: &Shared, output: AgentOutput) -> Self {
        Self { completed: Completed::new(&shared.local(), output), error: None }
    }

    fn aborted(shared: &Shared, output: AgentOutput) -> Self {
        let mut completed = Completed::new(&shared.local(), output);
        completed.finish_reason = AgentFinishReason::Aborted;
        Self { completed, error: None }
    }

    fn failed(shared: &Shared, output: AgentOutput) -> Self {
        let error = output.error.clone().unwrap_or_else(|| {
            AgentErrorDetails::new(Status::Unknown, "the turn failed and does not say why")
        });
        let mut completed = Completed::new(&shared.local(), output);
        completed.finish_reason = AgentFinishReason::Failed;
        Self { completed, error: Some(error) }
    }

    /// Of a turn that was begun while another was under way.
    fn busy() -> Self {
        Self::apart(busy())
    }

    /// Of a turn that ended without saying how.
    pub(super) fn lost() -> Self {
        Self::apart(AgentErrorDetails::new(Status::Internal, "the turn was lost"))
    }

    /// A failure that says nothing of the chat.
    fn apart(error: AgentErrorDetails) -> Self {
        let completed = Completed::new(&Local::default(), failed(error.clone()));
        Self { completed, error: Some(error) }
    }
}

fn busy() -> AgentErrorDetails {
    AgentErrorDetails::new(
        Status::FailedPrecondition,
        "the chat is at a turn already: wait for its response, or abort it",
    )
}

fn failed(error: AgentErrorDetails) -> AgentOutput {
    AgentOutput {
        finish_reason: Some(AgentFinishReason::Failed),
        error: Some(error),
        ..AgentOutput::default()
    }
}

fn ended(status: Status) -> AgentErrorDetails {
    let message = match status {
        Status::DeadlineExceeded => "the time for the turn was up",
        _ => "the turn was aborted",
    };
    AgentErrorDetails::new(status, message)
}

/// Waits until the turn is to be aborted, or, when it is, until it had the time for that.
async fn ends(cx: &InvocationContext, aborted: Option<(Instant, Status)>) -> Status {
    match aborted {
        None => cx.ended().await,
        Some((since, status)) => {
            sleep_until(since + GRACE).await;
            status
        }
    }
}
