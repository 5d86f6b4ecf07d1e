//! The tasks of tool calls: observers, the tool itself, and the verdict before both.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    sync::Arc,
};

use antiphon_agent::{
    Admission, AdmittedCall, CallContext, Executed, InvocationContext, Memory, ModelResponseChunk,
    OnInterruption, Outcome, Parking, RunContext, ToolExecutor,
};
use antiphon_types::{
    JsonObject, ToolArguments, ToolBehavior, ToolCall, ToolCallRequest, ToolResponse,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::hook_task::Runner;
use crate::session::{
    SessionContext,
    approvals::{Desk, Speaking},
    engine::{Barred, Decision, Input, Manner, Ticket},
    inside,
    whole::WholeOutputs,
};

/// Pieces of progress of one call, and of all, that may wait; tools wait then.
const MAX_PROGRESS: usize = 16;
/// Why a call is denied over which a person is to decide.
const NOBODY_DECIDES: &str = "the policy has a person decide, and the session has no agent whose store \
                              keeps account of calls that wait";

/// What a task of a call ends with.
pub(crate) enum Done {
    Judged(Ticket, Admission),
    Executed(Ticket, Executed, Option<u64>),
    Observed,
}

/// A call that may run, since when.
struct Admitted {
    call: AdmittedCall,
    since: Instant,
}

/// A call that did not start so long after it was admitted has waited: the policy looks at it again.
const WAITED: Duration = Duration::from_millis(250);

/// How a call is asked for.
pub(crate) struct Asked {
    /// The user said yes to it.
    pub(crate) confirmed: bool,
    /// The provider runs it itself.
    pub(crate) by_provider: bool,
    pub(crate) turn: u64,
}

/// All tasks of a session's calls. Dropping it aborts them.
pub(crate) struct CallTasks {
    tasks: JoinSet<Done>,
    admitted: HashMap<Ticket, Admitted>,
    /// Calls that the host is to be handed, by their ids.
    hosted: HashMap<Ticket, Arc<str>>,
    running: HashMap<Ticket, CancellationToken>,
    progress: mpsc::Receiver<(Ticket, Box<ModelResponseChunk>)>,
    progress_sender: mpsc::Sender<(Ticket, Box<ModelResponseChunk>)>,
    /// What is told before anything else is looked for: a call's progress before its end.
    due: VecDeque<Input>,
    whole: Arc<WholeOutputs>,
    executor: Arc<ToolExecutor>,
    runner: Runner,
    memory: Arc<dyn Memory>,
    session_id: Arc<str>,
    denied_replies: u64,
    /// Attends to calls that wait for a person, and how they do; `None`: none can.
    desk: Option<(Arc<Desk>, Parking)>,
}

impl CallTasks {
    pub(crate) fn new(
        executor: Arc<ToolExecutor>,
        runner: Runner,
        memory: Arc<dyn Memory>,
        session_id: Arc<str>,
        whole: Arc<WholeOutputs>,
        desk: Option<(Arc<Desk>, Parking)>,
    ) -> Self {
        let (progress_sender, progress) = mpsc::channel(MAX_PROGRESS);
        Self {
            tasks: JoinSet::new(),
            admitted: HashMap::new(),
            hosted: HashMap::new(),
            running: HashMap::new(),
            progress,
            progress_sender,
            due: VecDeque::new(),
            whole,
            executor,
            runner,
            memory,
            session_id,
            denied_replies: 0,
            desk,
        }
    }

    pub(crate) fn executor(&self) -> &ToolExecutor {
        &self.executor
    }

    /// Another agent's tools run from now on.
    pub(crate) fn hand_over(&mut self, to: Speaking) {
        self.executor = to.executor;
        if let Some((_, parking)) = &mut self.desk {
            parking.speaker = to.agent;
        }
    }

    /// Calls that come from now on have nothing to do with those of before, whatever their ids.
    pub(crate) fn forget_ids(&mut self) {
        self.executor = Arc::new(self.executor.with_new_ids());
    }

    /// Has the policy judge a call, beside the audio path.
    pub(crate) fn judge(
        &mut self,
        ticket: Ticket,
        request: ToolCallRequest,
        asked: Asked,
        invocation: InvocationContext,
    ) {
        let mut context =
            CallContext::new(self.session_id.clone(), asked.turn, self.memory.clone());
        context.invocation = invocation;
        (context.confirmed, context.by_provider) = (asked.confirmed, asked.by_provider);
        let executor = self.executor.clone();
        let deadline = self.runner.limits.authorize_deadline;
        self.tasks.spawn(async move {
            Done::Judged(ticket, executor.admit_within(&context, request, deadline).await)
        });
    }

    /// Refuses a call for what the user said, without asking the policy.
    pub(crate) fn bar(
        &mut self,
        ticket: Ticket,
        request: &ToolCallRequest,
        turn: u64,
        invocation: InvocationContext,
        barred: Barred,
    ) {
        let mut context = CallContext::new(self.session_id.clone(), turn, self.memory.clone());
        context.invocation = invocation;
        let Barred { reason, notice } = barred;
        let mut refused = self.executor.refuse_in(&context, request, Outcome::Denied, reason);
        refused.response = ToolResponse::error(request.id.clone(), request.name.clone(), notice);
        self.tasks.spawn(async move { Done::Judged(ticket, Admission::Refused(refused)) });
    }

    /// Has the policy's witness write down that words of the agent were denied: as a refused call of
    /// `reply`, which is no tool.
    pub(crate) fn reply_denied(&mut self, turn: u64, invocation: InvocationContext, reason: &str) {
        let mut context = CallContext::new(self.session_id.clone(), turn, self.memory.clone());
        context.invocation = invocation;
        self.denied_replies += 1;
        let request = ToolCallRequest {
            id: format!("denied-reply-{}", self.denied_replies).into(),
            name: "reply".into(),
            arguments: ToolArguments::Object(JsonObject::new()),
        };
        self.executor.refuse_in(&context, &request, Outcome::Denied, reason);
    }

    /// Runs an admitted call: observers, tool, observers. An output with more than `max_output` bytes
    /// is cut. `again`: the policy looks at it once more in any case.
    pub(crate) fn invoke(
        &mut self,
        ticket: Ticket,
        turn: u64,
        again: bool,
        invocation: InvocationContext,
        max_output: usize,
    ) {
        let Some(Admitted { call: admitted, since }) = self.admitted.remove(&ticket) else {
            return;
        };
        let cancelled = CancellationToken::new();
        self.running.insert(ticket, cancelled.clone());
        let (chunks, stream) = mpsc::channel(MAX_PROGRESS);
        let mut context =
            RunContext::new(self.session_id.clone(), turn, self.memory.clone(), cancelled.clone())
                .with_invocation(invocation)
                .with_stream(chunks, None)
                .cut_outputs_at(max_output);
        let desk = self.desk.as_ref().map(|(desk, parking)| {
            context = context.clone().parking(parking.clone());
            desk.clone()
        });
        let (executor, runner) = (self.executor.clone(), self.runner.clone());
        let (kept, tools) = (self.whole.clone(), self.executor.clone());
        let mut progress = Progress::new(ticket, stream, self.progress_sender.clone());
        let call = admitted.call().clone();
        self.tasks.spawn(inside::run(self.runner.mark, async move {
            // Whoever cancels the call does not wait for its observers either.
            let observed = cancelled.run_until_cancelled(runner.call_starts(&call)).await;
            let mut executed = match observed {
                Some(()) => {
                    context.waited = again || since.elapsed() >= WAITED;
                    tokio::select! {
                        biased;
                        executed = executor.run(admitted, context) => executed,
                        never = progress.forward() => match never {},
                    }
                }
                None => cancelled_output(&call),
            };
            progress.flush().await;
            if let (Some(desk), Some(parked)) = (desk, &executed.approval) {
                desk.parked(parked, &tools);
            }
            let whole = executed.whole.take().and_then(|whole| kept.keep(&call.id, whole));
            runner.call_ended(&call, &executed).await;
            Done::Executed(ticket, executed, whole)
        }));
    }

    /// Tells the observers of a call that the host answers itself.
    pub(crate) fn observe_start(&mut self, call: ToolCall) {
        self.hosted.retain(|_, id| *id != call.id);
        self.executor.handed_over(&call.id);
        let runner = self.runner.clone();
        self.tasks.spawn(inside::run(self.runner.mark, async move {
            runner.call_starts(&call).await;
            Done::Observed
        }));
    }

    /// Tells the observers of an output that no tool made.
    pub(crate) fn observe_end(&mut self, ticket: Ticket, call: ToolCall, executed: Executed) {
        self.hosted.remove(&ticket);
        let (runner, executor) = (self.runner.clone(), self.executor.clone());
        self.tasks.spawn(inside::run(self.runner.mark, async move {
            let executed = executor.answered_by_host(executed).await;
            runner.call_ended(&call, &executed).await;
            Done::Executed(ticket, executed, None)
        }));
    }

    /// A call that nobody allowed has its output: the policy's witness is told why.
    pub(crate) fn refuse(
        &mut self,
        request: &ToolCallRequest,
        outcome: Outcome,
        turn: u64,
        invocation: InvocationContext,
    ) {
        let mut context = CallContext::new(self.session_id.clone(), turn, self.memory.clone());
        context.invocation = invocation;
        self.executor.refuse_in(&context, request, outcome, outcome.fixed_text());
    }

    /// Forgets an admitted call.
    pub(crate) fn discard(&mut self, ticket: Ticket) {
        self.admitted.remove(&ticket);
        if let Some(id) = self.hosted.remove(&ticket) {
            self.executor.not_handed_over(&id);
        }
    }

    /// Cancels a running call; it still ends by itself.
    pub(crate) fn cancel(&mut self, ticket: Ticket) {
        if let Some(token) = self.running.get(&ticket) {
            token.cancel();
        }
    }

    /// The next end of a task, as an input for the engine.
    pub(crate) fn poll(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Input>> {
        use std::task::Poll;
        if let Some(input) = self.due.pop_front() {
            return Poll::Ready(Some(input));
        }
        if let Poll::Ready(Some((ticket, progress))) = self.progress.poll_recv(cx) {
            return Poll::Ready(Some(Input::ToolProgress { ticket, progress }));
        }
        match self.tasks.poll_join_next(cx) {
            Poll::Ready(Some(Ok(done))) => {
                // What it told of its progress may have come since that was looked for.
                for _ in 0..MAX_PROGRESS {
                    let Ok((ticket, progress)) = self.progress.try_recv() else { break };
                    self.due.push_back(Input::ToolProgress { ticket, progress });
                }
                let end = self.take(done);
                self.due.extend(end);
                Poll::Ready(self.due.pop_front())
            }
            Poll::Ready(Some(Err(error))) => {
                // Everything foreign is caught inside, so this is only an abort.
                tracing::debug!(%error, "a task of a call ended early");
                Poll::Ready(None)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Ends all tasks; those that ignore it are left behind once `within` is over.
    pub(crate) async fn finish(mut self, within: std::time::Duration) {
        for token in self.running.values() {
            token.cancel();
        }
        if tokio::time::timeout(within, self.tasks.shutdown()).await.is_err() {
            self.tasks.detach_all();
        }
    }

    fn take(&mut self, done: Done) -> Option<Input> {
        match done {
            Done::Observed => None,
            Done::Executed(ticket, executed, whole_bytes) => {
                self.running.remove(&ticket);
                Some(Input::ToolDone { ticket, executed: executed.into(), whole_bytes })
            }
            Done::Judged(ticket, admission) => {
                let decision = match admission {
                    // The model would tell the user that it waits, and nobody could ever decide.
                    Admission::Run(admitted)
                        if self.desk.is_none() && admitted.asks().is_some() =>
                    {
                        Decision::Refused(admitted.withdraw(Outcome::Denied, NOBODY_DECIDES))
                    }
                    Admission::Run(admitted) => {
                        let call = admitted.call().clone();
                        let manner = Manner {
                            non_blocking: admitted.behavior() == ToolBehavior::NonBlocking,
                            ends_on_interruption: admitted.on_interruption()
                                == OnInterruption::Cancel,
                        };
                        let since = Instant::now();
                        self.admitted.insert(ticket, Admitted { call: admitted, since });
                        Decision::Run { call, manner }
                    }
                    Admission::Host(call) => {
                        self.hosted.insert(ticket, call.id.clone());
                        Decision::Host { call }
                    }
                    Admission::Refused(refused) => Decision::Refused(refused),
                    Admission::Confirm { read_back, .. } => Decision::Confirm { read_back },
                    Admission::Duplicate => Decision::Duplicate,
                    _ => Decision::NoVerdict { reason: "an unknown kind of verdict" },
                };
                Some(Input::Admission { ticket, decision })
            }
        }
    }
}

/// Hands on what a call tells of its progress, in order and before its end.
struct Progress {
    ticket: Ticket,
    stream: mpsc::Receiver<ModelResponseChunk>,
    to_driver: mpsc::Sender<(Ticket, Box<ModelResponseChunk>)>,
    /// What the driver has no room for yet.
    next: Option<Box<ModelResponseChunk>>,
}

impl Progress {
    fn new(
        ticket: Ticket,
        stream: mpsc::Receiver<ModelResponseChunk>,
        to_driver: mpsc::Sender<(Ticket, Box<ModelResponseChunk>)>,
    ) -> Self {
        Self { ticket, stream, to_driver, next: None }
    }

    /// Hands on what comes for as long as the call runs. Loses nothing when it is dropped.
    async fn forward(&mut self) -> Infallible {
        loop {
            self.hand_on().await;
            match self.stream.recv().await {
                Some(chunk) => self.next = Some(chunk.into()),
                None => std::future::pending().await,
            }
        }
    }

    /// Hands on what was told right before the end.
    async fn flush(&mut self) {
        self.stream.close();
        self.hand_on().await;
        while let Ok(chunk) = self.stream.try_recv() {
            self.next = Some(chunk.into());
            self.hand_on().await;
        }
    }

    async fn hand_on(&mut self) {
        if self.next.is_none() {
            return;
        }
        // The driver is only gone when the whole session is.
        let Ok(room) = self.to_driver.reserve().await else { return };
        if let Some(chunk) = self.next.take() {
            room.send((self.ticket, chunk));
        }
    }
}

impl Runner {
    /// The raw observer first, then the hook.
    async fn call_starts(&self, call: &ToolCall) {
        self.callback("on_tool_call", |host| host.on_tool_call(call)).await;
        if let Some(hooks) = &self.hooks {
            self.hook("on_tool_call", hooks.on_tool_call(&self.context, call)).await;
        }
    }

    async fn call_ended(&self, call: &ToolCall, executed: &Executed) {
        let Some(hooks) = &self.hooks else { return };
        let receipt = executed.receipt.as_deref().cloned();
        let context = SessionContext { receipt, ..self.context.clone() };
        let response = &executed.response;
        self.hook("on_tool_result", hooks.on_tool_result(&context, call, response)).await;
    }
}

fn cancelled_output(call: &ToolCall) -> Executed {
    let text = Outcome::Cancelled.fixed_text();
    let response = ToolResponse::error(call.id.clone(), call.name.clone(), text);
    Executed::new(response, Outcome::Cancelled)
}
