//! The one task that runs hooks and callbacks, in event order, behind a bounded queue.

use std::{
    collections::VecDeque,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use antiphon_types::ToolCall;
use futures_util::FutureExt;
use tokio::{sync::Notify, sync::mpsc, task::JoinHandle, time::Instant};

use crate::session::{
    Callbacks, EventKind, HostPrompt, LifecycleHooks, SessionContext, SessionEvent, SessionLimits,
    SessionState,
    engine::{HookTrouble, Input},
    inside,
};

/// Beyond this many waiting jobs, what is only a step on the way (a partial transcript) is dropped.
const MAX_PARTIALS: usize = 256;
/// Beyond this many the session cannot go on: nothing that matters may be lost.
const MAX_JOBS: usize = 4_096;

/// Something for the hooks.
#[allow(clippy::large_enum_variant)] // most of them are events, which a box would only slow down
pub(crate) enum Job {
    Event(SessionEvent),
    State(SessionState),
    Start,
    Prompt(HostPrompt),
}

/// The near end of the hook task. Dropping it lets the task end after what it still has.
pub(crate) struct HookTask {
    queue: Arc<Queue>,
    task: Option<JoinHandle<()>>,
    flooded: bool,
    dropped: u64,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    more: Notify,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl HookTask {
    pub(crate) fn spawn(runner: Runner) -> Self {
        let queue = Arc::new(Queue::default());
        let theirs = queue.clone();
        let mark = runner.mark;
        let task = tokio::spawn(inside::run(mark, async move {
            while let Some(job) = theirs.next().await {
                runner.serve(job).await;
            }
        }));
        Self { queue, task: Some(task), flooded: false, dropped: 0 }
    }

    /// Leaves a job. `Err` once: so many wait that the session cannot go on.
    pub(crate) fn push(&mut self, job: Job) -> Result<(), HookTrouble> {
        let mut state = self.queue.lock();
        if state.jobs.len() >= MAX_PARTIALS && job.is_partial() {
            self.dropped += 1;
            return Ok(());
        }
        if state.jobs.len() >= MAX_JOBS && !job.is_end() {
            let first = !std::mem::replace(&mut self.flooded, true);
            return if first { Err(HookTrouble::Flooded) } else { Ok(()) };
        }
        state.jobs.push_back(job);
        drop(state);
        self.queue.more.notify_one();
        Ok(())
    }

    /// Partial transcripts that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Lets the task end after what it still has, and waits for it that long.
    pub(crate) async fn finish(mut self, within: Duration) {
        self.queue.close();
        let Some(mut task) = self.task.take() else { return };
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
        }
    }
}

impl Drop for HookTask {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Queue {
    async fn next(&self) -> Option<Job> {
        loop {
            {
                let mut state = self.lock();
                if let Some(job) = state.jobs.pop_front() {
                    return Some(job);
                }
                if state.closed {
                    return None;
                }
            }
            self.more.notified().await;
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    /// The last job of all; there is room for it even where too many wait.
    fn is_end(&self) -> bool {
        matches!(self, Self::Event(SessionEvent { kind: EventKind::SessionEnded { .. }, .. }))
    }

    fn is_partial(&self) -> bool {
        matches!(
            self,
            Self::Event(SessionEvent {
                kind: EventKind::UserTranscript { done: false, .. }
                    | EventKind::AgentTranscript { done: false, .. }
                    | EventKind::AgentText { done: false, .. },
                ..
            })
        )
    }
}

/// Calls hooks and callbacks: catches, bounds, reports.
#[derive(Clone)]
pub(crate) struct Runner {
    pub(crate) callbacks: Option<Arc<dyn Callbacks>>,
    pub(crate) hooks: Option<Arc<dyn LifecycleHooks>>,
    pub(crate) context: SessionContext,
    pub(crate) limits: SessionLimits,
    /// Boxed, since a channel has room for many at once from the beginning.
    pub(crate) to_driver: mpsc::Sender<Box<Input>>,
    pub(crate) mark: usize,
    /// `on_interrupted` is called elsewhere, in order with the audio.
    pub(crate) interrupts_elsewhere: bool,
}

impl Runner {
    async fn serve(&self, job: Job) {
        match job {
            Job::Event(event) => self.event(event.kind).await,
            Job::State(state) => {
                self.callback("on_state_change", |host| host.on_state_change(state)).await;
            }
            Job::Start => {
                if let Some(hooks) = &self.hooks {
                    self.hook("on_session_start", hooks.on_session_start(&self.context)).await;
                }
                let _ = self.to_driver.send(Input::StartHookDone.into()).await;
            }
            Job::Prompt(prompt) => {
                let mut allowed = true;
                if let Some(host) = &self.callbacks {
                    // A callback that panics has not allowed anything.
                    allowed = false;
                    self.hook("on_host_prompt", async {
                        allowed = host.on_host_prompt(&prompt);
                    })
                    .await;
                }
                let verdict = Input::PromptVerdict { id: prompt.id, allowed };
                let _ = self.to_driver.send(verdict.into()).await;
            }
        }
    }

    async fn event(&self, kind: EventKind) {
        match kind {
            EventKind::State { state } => {
                self.callback("on_state_change", |host| host.on_state_change(state)).await;
            }
            EventKind::UserTranscript { text, done } => {
                self.callback("on_input_transcript", |host| host.on_input_transcript(&text, done))
                    .await;
            }
            EventKind::UserMessage { text } => {
                if let Some(hooks) = &self.hooks {
                    self.hook("on_user_message", hooks.on_user_message(&self.context, &text)).await;
                }
            }
            EventKind::AgentTranscript { text, done } => {
                self.callback("on_output_transcript", |host| {
                    host.on_output_transcript(&text, done)
                })
                .await;
            }
            EventKind::AgentText { text, .. } => {
                self.callback("on_text", |host| host.on_text(&text)).await;
            }
            EventKind::AgentMessage { text, interrupted, .. } => {
                if let Some(hooks) = &self.hooks {
                    let call = hooks.on_agent_message(&self.context, &text, interrupted);
                    self.hook("on_agent_message", call).await;
                }
            }
            EventKind::ApprovalRequested { approval, id, name, args, question, .. } => {
                if let Some(hooks) = &self.hooks {
                    let call = ToolCall { id, name, args };
                    let told =
                        hooks.on_approval_requested(&self.context, &approval, &call, &question);
                    self.hook("on_approval_requested", told).await;
                }
            }
            EventKind::ToolCallsCancelled { ids } => {
                self.callback("on_tool_call_cancellation", |host| {
                    host.on_tool_call_cancellation(&ids);
                })
                .await;
            }
            EventKind::Interrupted if !self.interrupts_elsewhere => {
                self.callback("on_interrupted", |host| host.on_interrupted()).await;
            }
            EventKind::HostPrompt(prompt) => {
                self.callback("on_host_prompt", |host| {
                    host.on_host_prompt(&prompt);
                })
                .await;
            }
            EventKind::Error { kind, message } => {
                self.callback("on_error", |host| host.on_error(&kind, &message)).await;
            }
            EventKind::SessionEnded { reason, .. } => {
                self.callback("on_session_end", |host| host.on_session_end(&reason)).await;
                if let Some(hooks) = &self.hooks {
                    self.hook("on_session_end", hooks.on_session_end(&self.context, &reason)).await;
                }
            }
            _ => {}
        }
    }

    /// Calls the host's callbacks, if it has any.
    pub(crate) async fn callback(&self, name: &'static str, call: impl FnOnce(&dyn Callbacks)) {
        if let Some(host) = &self.callbacks {
            self.hook(name, async { call(&**host) }).await;
        }
    }

    /// Runs a hook: a panic is reported and goes no further, a hang is told, and what takes too
    /// long is given up.
    pub(crate) async fn hook(&self, hook: &'static str, call: impl Future<Output = ()>) {
        let mut call = std::pin::pin!(AssertUnwindSafe(call).catch_unwind());
        let began = Instant::now();
        let give_up = began + self.limits.hook;
        loop {
            let tell = (Instant::now() + self.limits.stall).min(give_up);
            match tokio::time::timeout_at(tell, &mut call).await {
                Ok(Ok(())) => return,
                Ok(Err(_)) => return self.report(HookTrouble::Panicked { hook }),
                Err(_) if Instant::now() >= give_up => {
                    return self.report(HookTrouble::GivenUp { hook });
                }
                Err(_) => {
                    let ms = began.elapsed().as_millis() as u64;
                    self.report(HookTrouble::Stalled { hook, ms });
                }
            }
        }
    }

    fn report(&self, trouble: HookTrouble) {
        let _ = self.to_driver.try_send(Input::HookTrouble { trouble }.into());
    }
}
