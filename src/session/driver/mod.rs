//! The one task of a session: moves bytes, time and results in and out of the engine. It has no
//! behaviour of its own.
//!
//! Wire, sink, tools, commands and timer are polled together, so nothing is cancelled half-way and
//! audio makes no task hop. Each has a waker of its own, and only who woke the task is asked.

mod audio_tap;
mod guards;
mod hook_task;
mod player;
mod tasks;
mod wakers;
mod wire;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon_agent::{InvocationContext, ToolExecutor};
use antiphon_audio::{ClockedSink, Generation, Played, SinkError};
use antiphon_live::Capabilities;
use tokio::{
    sync::{mpsc, oneshot},
    time::Sleep,
};

use self::{
    audio_tap::AudioTap,
    guards::{Guards, Question},
    hook_task::{HookTask, Job, Runner},
    player::Player,
    tasks::{Asked, CallTasks},
    wakers::{Sources, Wakers},
    wire::Wire,
};
use super::{
    EndReason, EndRecord, EventKind, SessionEvent, SessionState, SessionStats, StartError,
    approvals::Desk,
    engine::{End, EngineConfig, HostCommand, Input, NeverBegan, Output},
    inbox::{Delivery, Inbox},
    journal::{Journal, Told, called_by},
    recording::{NewFile, RecordedEngine},
    shared::{ParkedSink, Shared},
};

/// Inputs of hooks that may wait for the driver.
const MAX_HOOK_INPUTS: usize = 64;
/// The store has so long for the last word on work that a caller left behind.
const LEFT_WORK: Duration = Duration::from_secs(10 * 60);
/// For how long the last turns of a session are waited for at most, however patient the agent is: whoever
/// hung up wants to be gone.
const LAST_TURNS: Duration = Duration::from_secs(20);
/// After this many wake-ups without a pause, other tasks get their turn.
const WAKE_UPS_PER_TURN: u32 = 64;

/// What a run of a session is made of.
pub(crate) struct Start {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) sink: ParkedSink,
    /// As far as they are known before connecting.
    pub(crate) capabilities: Arc<Capabilities>,
    pub(crate) engine: EngineConfig,
    pub(crate) executor: ToolExecutor,
    pub(crate) journal: Option<Box<dyn Journal>>,
    /// Attends to calls that wait for a person, where an agent is linked.
    pub(crate) desk: Option<Arc<Desk>>,
    /// Where the session is recorded, if it is.
    pub(crate) recording: Option<NewFile>,
    pub(crate) started: oneshot::Sender<Result<(), StartError>>,
}

/// The session's task.
pub(crate) struct Driver {
    engine: RecordedEngine,
    wire: Wire,
    player: Option<Player>,
    tap: Option<AudioTap>,
    /// Frames that it was too slow for.
    tap_dropped: u64,
    /// Partial transcripts that the hooks were too slow for.
    partials_dropped: u64,
    /// Chunks that the client of the agent was too slow for.
    chunks_dropped: u64,
    tasks: Option<CallTasks>,
    guards: Option<Guards>,
    hooks: Option<HookTask>,
    from_hooks: mpsc::Receiver<Box<Input>>,
    journal: Option<Box<dyn Journal>>,
    inbox: Arc<Inbox>,
    delivery: Delivery,
    /// Who is asked in the next wake-up, woken or not.
    due: Sources,
    /// Something else happened than that the user's audio went on.
    touched: bool,
    /// The user's audio that was dropped so far.
    dropped: Duration,
    timer: Pin<Box<Sleep>>,
    timer_at: Option<Instant>,
    /// When the sink has news by time alone, as of when it was last used.
    sink_at: Option<Instant>,
    shared: Arc<Shared>,
    started: Option<oneshot::Sender<Result<(), StartError>>>,
    /// A sink of the host's; one of our own is not kept.
    hosts_sink: bool,
    end: Option<End>,
    last_event: Option<SessionEvent>,
    released: bool,
}

impl Driver {
    pub(crate) fn new(start: Start) -> Self {
        let Start {
            shared,
            inbox,
            sink,
            capabilities,
            engine,
            executor,
            journal,
            desk,
            recording,
            started,
        } = start;
        let now = tokio::time::Instant::now().into_std();
        let hosts_sink = sink.sink.is_some();
        let device = sink.sink.unwrap_or_else(|| Box::new(ClockedSink::new(capabilities.output)));
        let player = Player::new(device);
        let mark = shared.mark();
        let tap = match (&shared.callbacks, hosts_sink) {
            (Some(callbacks), false) => Some(AudioTap::spawn(callbacks.clone(), mark)),
            _ => None,
        };
        let (to_driver, from_hooks) = mpsc::channel(MAX_HOOK_INPUTS);
        let runner = Runner {
            callbacks: shared.callbacks.clone(),
            hooks: shared.hooks.clone(),
            context: shared.context(),
            limits: shared.limits.clone(),
            to_driver,
            mark,
            interrupts_elsewhere: tap.is_some(),
        };
        let tasks = CallTasks::new(
            Arc::new(executor),
            runner.clone(),
            shared.scoped_memory(),
            shared.session_id(),
            shared.whole_outputs.clone(),
            desk.map(|desk| (desk, shared.parking())),
        );
        let (output, input) = (shared.output_guard.clone(), shared.input_guard.clone());
        let guarded = output.is_some() || input.is_some();
        let engine = EngineConfig {
            sink_format: Some(player.format()),
            first_generation: sink.next_generation,
            ..engine
        };
        Self {
            engine: RecordedEngine::new(engine, now, recording),
            wire: Wire::new(shared.candidates(), capabilities, shared.limits.gap_audio),
            player: Some(player),
            tap,
            tap_dropped: 0,
            partials_dropped: 0,
            chunks_dropped: 0,
            tasks: Some(tasks),
            guards: guarded.then(|| Guards::new(output, input)),
            hooks: Some(HookTask::spawn(runner)),
            from_hooks,
            journal,
            inbox,
            delivery: Delivery::default(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            due: Sources::ALL,
            touched: true,
            dropped: Duration::ZERO,
            timer_at: None,
            sink_at: None,
            shared,
            started: Some(started),
            hosts_sink,
            end: None,
            last_event: None,
            released: false,
        }
    }

    /// Runs the session to its end.
    pub(crate) async fn run(mut self) {
        let wakers = Wakers::new();
        let mut wake_ups = 0u32;
        self.drain(now());
        while self.end.is_none() {
            if std::mem::take(&mut self.touched) {
                self.publish();
                self.set_timer(&wakers);
            }
            poll_fn(|cx| self.poll_wake(cx, &wakers)).await;
            wake_ups += 1;
            if wake_ups.is_multiple_of(WAKE_UPS_PER_TURN) {
                tokio::task::yield_now().await;
            }
        }
        self.wind_down().await;
    }

    /// Everything that woke the session, in one poll.
    fn poll_wake(&mut self, cx: &mut Context<'_>, wakers: &Wakers) -> Poll<()> {
        let mut woken = wakers.take(cx) | std::mem::take(&mut self.due);
        if woken.is_empty() {
            return Poll::Pending;
        }
        let now = now();
        if woken.has(Sources::TIMER) || self.sink_at.is_some_and(|at| at <= now) {
            woken |= Sources::SINK;
        }
        self.touched |= woken.has(Sources::SINK);
        let mut progress = false;
        if woken.has(Sources::INBOX) {
            progress |= self.poll_inbox(&mut wakers.context(Sources::INBOX), now);
        }
        if woken.has(Sources::WIRE) {
            progress |= self.poll_wire(&mut wakers.context(Sources::WIRE), now);
        }
        // What came from the wire may be for the sink, and for the tasks.
        woken |= self.due;
        if woken.has(Sources::SINK) {
            self.due.remove(Sources::SINK);
            progress |= self.poll_sink(&mut wakers.context(Sources::SINK), now);
        }
        if woken.has(Sources::TASKS) {
            self.due.remove(Sources::TASKS);
            progress |= self.poll_tasks(&mut wakers.context(Sources::TASKS), now);
        }
        if woken.has(Sources::HOOKS) {
            progress |= self.poll_hooks(&mut wakers.context(Sources::HOOKS), now);
        }
        if woken.has(Sources::TIMER) {
            progress |= self.poll_timer(&mut wakers.context(Sources::TIMER), now);
        }
        // Commands go out last, so that one wake-up serves what all the others asked for. What the
        // connection has to say of them wakes who reads from it.
        progress |= self.poll_wire_out(&mut wakers.context(Sources::WIRE), now);
        let over = self.end.is_some() || !self.due.is_empty();
        if progress || over { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_inbox(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        if self.inbox.poll(cx, &mut self.delivery).is_pending() {
            return false;
        }
        while let Some(command) = self.delivery.commands.pop_front() {
            self.input(Input::Host(command), now);
        }
        if let Some(calls) = self.delivery.at_work.take() {
            self.input(Input::ApprovedAtWork { calls }, now);
        }
        if let Some(stop) = self.delivery.stop.take() {
            self.input(Input::Stop { reason: stop.reason, within: stop.within }, now);
        }
        let dropped = self.delivery.dropped + self.engine.uplink_dropped();
        self.touched |= std::mem::replace(&mut self.dropped, dropped) != dropped;
        true
    }

    fn poll_wire(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        for taken in 0..wire::EVENTS_PER_WAKE_UP {
            let Poll::Ready(input) = self.wire.poll_input(cx) else { return taken > 0 };
            if let Input::Connected { epoch, capabilities } = &input
                && self.wire.uses(*epoch)
            {
                self.serves(capabilities.clone());
            }
            self.input(input, now);
        }
        self.due |= Sources::WIRE;
        true
    }

    /// A connection that can do this is the one that is used.
    fn serves(&mut self, capabilities: Arc<Capabilities>) {
        if let Some(journal) = &mut self.journal {
            journal.serves(&capabilities);
        }
        self.shared.publish_capabilities(capabilities);
    }

    fn poll_wire_out(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut progress = false;
        while let Poll::Ready(input) = self.wire.poll_output(cx, &mut self.engine) {
            self.input(input, now);
            progress = true;
        }
        progress
    }

    fn poll_sink(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut progress = false;
        while let Some(Poll::Ready(news)) =
            self.player.as_mut().map(|player| player.poll_progress(cx, now))
        {
            progress = true;
            match news {
                Ok(played) => self.input(Input::Played(played), now),
                Err(error) => self.sink_failed(error, now),
            }
        }
        if progress && self.engine.wants_position() {
            self.tell_position(now);
        }
        self.drain(now);
        progress
    }

    fn poll_tasks(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut progress = false;
        while let Some(Poll::Ready(input)) = self.tasks.as_mut().map(|tasks| tasks.poll(cx)) {
            progress = true;
            if let Some(input) = input {
                self.input(input, now);
            }
        }
        while let Some(Poll::Ready(verdict)) = self.guards.as_mut().map(|guards| guards.poll(cx)) {
            progress = true;
            self.input(verdict, now);
        }
        progress
    }

    fn poll_hooks(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some(input)) = self.from_hooks.poll_recv(cx) {
            self.input(*input, now);
            progress = true;
        }
        while let Some(Poll::Ready(Some(told))) =
            self.journal.as_mut().map(|journal| journal.poll_told(cx))
        {
            self.input(input_of(told), now);
            progress = true;
        }
        progress
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        if self.timer_at.is_none() || self.timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.timer_at = None;
        self.engine.handle_timeout(now);
        if let Some(journal) = &mut self.journal
            && journal.deadline().is_some_and(|at| at <= now)
        {
            journal.timeout(now);
        }
        self.drain(now);
        true
    }

    fn input(&mut self, input: Input, now: Instant) {
        self.touched |= !matches!(input, Input::Host(HostCommand::Audio(_)));
        self.engine.handle(input, now);
        self.drain(now);
        // Audio is mostly no news, but somebody's voice may be waited for.
        let sooner = |due| self.timer_at.is_none_or(|at| due < at);
        self.touched |= self.engine.next_deadline().is_some_and(sooner);
    }

    /// Does all that the engine wants done.
    fn drain(&mut self, now: Instant) {
        while let Some(output) = self.engine.poll_output() {
            self.act(output, now);
        }
    }

    fn act(&mut self, output: Output, now: Instant) {
        match output {
            Output::Connect { request, provider } => {
                let within = request.config.connect_timeout;
                // Some servers count anew on each connection, and their calls are other ones.
                if request.epoch > 1 && request.resume.is_none() && !self.wire.is_open() {
                    self.forget_ids();
                }
                self.wire.connect(request, provider, within);
                self.due |= Sources::WIRE;
            }
            Output::Close { epoch } => {
                if let Some(next) = self.wire.close(epoch) {
                    self.serves(next.capabilities);
                    if !next.resumes {
                        self.forget_ids();
                    }
                }
                self.due |= Sources::WIRE;
            }
            Output::Send { epoch, command, origin } => self.wire.send(epoch, command, origin),
            Output::Play { generation, frame } => {
                if let Some(tap) = &mut self.tap
                    && !tap.frame(generation, frame.clone())
                {
                    self.tap_dropped += 1;
                    let message = "on_audio is too slow; audio was dropped".to_owned();
                    self.engine.handle(Input::SinkFailed { message }, now);
                }
                self.due |= Sources::SINK;
                let played = self.player.as_mut().map(|player| player.play(generation, frame, now));
                self.check_sink(played, now);
                if self.engine.wants_position() {
                    self.tell_position(now);
                }
            }
            Output::FinishPlayback { generation } => {
                self.due |= Sources::SINK;
                let finished = self.player.as_mut().map(|player| player.finish(generation, now));
                self.check_sink(finished, now);
            }
            Output::PausePlayback => {
                self.due |= Sources::SINK;
                let paused = self.player.as_mut().map(|player| player.pause(now));
                self.check_sink(paused, now);
            }
            Output::ResumePlayback => {
                self.due |= Sources::SINK;
                let resumed = self.player.as_mut().map(|player| player.resume(now));
                self.check_sink(resumed, now);
            }
            Output::ClearPlayback { next } => self.clear(next, now),
            Output::StartHook => self.push_job(Job::Start, now),
            Output::Started => {
                if let Some(started) = self.started.take() {
                    let _ = started.send(Ok(()));
                }
            }
            Output::Guard { reply, check, text, complete } => {
                let text = text.into();
                self.ask_guards(Question::Said { reply, check, text, complete });
            }
            Output::Screen { turn, text } => {
                self.ask_guards(Question::Heard { turn, text: text.into() });
            }
            Output::Admit { ticket, request, confirmed, turn, barred, by_provider } => {
                if let Some(journal) = &mut self.journal {
                    journal.requested(turn, &request);
                }
                let invocation = self.call_context();
                if let Some(tasks) = &mut self.tasks {
                    match barred {
                        Some(barred) => tasks.bar(ticket, &request, turn, invocation, barred),
                        None => {
                            let manner = Asked { confirmed, by_provider, turn };
                            tasks.judge(ticket, request, manner, invocation);
                        }
                    }
                    self.due |= Sources::TASKS;
                }
            }
            Output::Emit(event) => self.emit(event, now),
            Output::Note { turn, note } => {
                if let Some(journal) = &mut self.journal {
                    journal.note(turn, &note, now);
                }
            }
            Output::StateOnly(state) => self.push_job(Job::State(state), now),
            Output::AskPrompt { event, prompt } => {
                self.tell(&event, now);
                self.push_job(Job::Prompt(prompt), now);
            }
            Output::HungUp { turn } => {
                if let Some(journal) = &mut self.journal {
                    journal.hang_up(turn);
                }
            }
            Output::PromptAnswer { token, sent } => self.shared.answer(token, sent),
            Output::Ended { end } => self.end = Some(end),
            other => self.act_on_calls(other),
        }
    }

    fn forget_ids(&mut self) {
        if let Some(tasks) = self.tasks.as_mut().filter(|_| !self.engine.has_open_calls()) {
            tasks.forget_ids();
        }
    }

    fn act_on_calls(&mut self, output: Output) {
        let invocation = match output {
            Output::Invoke { .. } | Output::Unapproved { .. } => self.call_context(),
            _ => InvocationContext::new(),
        };
        let Some(tasks) = &mut self.tasks else { return };
        self.due |= Sources::TASKS;
        match output {
            Output::Discard { ticket } => tasks.discard(ticket),
            Output::Invoke { ticket, turn, again } => {
                let max_output = self.shared.max_tool_output();
                tasks.invoke(ticket, turn, again, invocation, max_output);
            }
            Output::Unapproved { request, outcome, turn } => {
                tasks.refuse(&request, outcome, turn, invocation);
            }
            Output::ObserveHostCall { call } => tasks.observe_start(call),
            Output::Observe { ticket, call, executed } => {
                tasks.observe_end(ticket, call, *executed)
            }
            Output::CancelTool { ticket } => tasks.cancel(ticket),
            Output::HandOver { number } => {
                if let Some(speaking) = self.shared.take_executor(number) {
                    if let Some(desk) = self.shared.desk() {
                        desk.hand_over(speaking.clone());
                    }
                    tasks.hand_over(speaking);
                }
            }
            Output::HostTools { definitions } => {
                if let Err(error) = tasks.executor().set_host_tools(&definitions) {
                    tracing::warn!(%error, "the host's tools were not replaced");
                }
            }
            _ => {}
        }
    }

    fn ask_guards(&mut self, question: Question) {
        if let Some(guards) = &mut self.guards {
            guards.ask(question);
            self.due |= Sources::TASKS;
        }
    }

    /// What policy and tools know of who calls, and of the agent that is linked.
    fn call_context(&mut self) -> InvocationContext {
        match &mut self.journal {
            Some(journal) => journal.context(),
            None => called_by(self.shared.caller.as_ref()),
        }
    }

    fn tell(&mut self, event: &SessionEvent, now: Instant) {
        let Some(journal) = &mut self.journal else { return self.shared.tell(event) };
        journal.event(event, now);
        // The end is told once the last turn is on disk.
        if !matches!(event.kind, EventKind::SessionEnded { .. }) {
            self.shared.tell(event);
        }
    }

    fn emit(&mut self, mut event: SessionEvent, now: Instant) {
        if let EventKind::SessionEnded { stats, .. } = &mut event.kind {
            // With what was dropped before it came to the engine, and after.
            **stats = self.stats();
        }
        self.tell(&event, now);
        if let EventKind::ReplyDenied { reason, .. } = &event.kind {
            let invocation = self.call_context();
            if let Some(tasks) = &mut self.tasks {
                tasks.reply_denied(event.turn, invocation, reason);
            }
        }
        match &event.kind {
            // The hooks hear of the end after everything else.
            EventKind::SessionEnded { .. } => self.last_event = Some(event),
            EventKind::Interrupted => {
                if let Some(tap) = &self.tap {
                    tap.interrupted();
                }
                self.push_job(Job::Event(event), now);
            }
            _ => self.push_job(Job::Event(event), now),
        }
    }

    fn push_job(&mut self, job: Job, now: Instant) {
        let wanted = self.shared.callbacks.is_some() || self.shared.hooks.is_some();
        let answered = matches!(job, Job::Start | Job::Prompt(_));
        if !wanted && !answered {
            return;
        }
        let Some(hooks) = &mut self.hooks else { return };
        let pushed = hooks.push(job);
        self.partials_dropped = hooks.dropped();
        if let Err(trouble) = pushed {
            self.engine.handle(Input::HookTrouble { trouble }, now);
        }
    }

    fn clear(&mut self, next: Generation, now: Instant) {
        self.due |= Sources::SINK;
        if let Some(tap) = &self.tap {
            tap.clear(next);
        }
        let played = match self.player.as_mut().map(|player| player.clear(next, now)) {
            Some(Ok(played)) => played,
            Some(Err(error)) => {
                self.sink_failed(error, now);
                None
            }
            None => None,
        };
        self.engine.handle(Input::Cleared { next, played }, now);
    }

    fn check_sink(&mut self, result: Option<Result<(), SinkError>>, now: Instant) {
        if let Some(Err(error)) = result {
            self.sink_failed(error, now);
        }
    }

    fn sink_failed(&mut self, error: SinkError, now: Instant) {
        self.due |= Sources::SINK;
        let next = Generation(self.engine.next_generation());
        if let Some(player) = &mut self.player {
            player.replace_lost_sink(next, now);
        }
        self.engine.handle(Input::SinkFailed { message: error.to_string() }, now);
        // What the lost sink had is taken as heard, so that no turn waits for it.
        let at = now;
        let source = antiphon_audio::PositionSource::Estimate { error: Default::default() };
        let generation = Generation(next.0.saturating_sub(1));
        let lost = Played { generation, samples: 0, complete: true, at, source };
        self.engine.handle(Input::Played(lost), now);
    }

    fn tell_position(&mut self, now: Instant) {
        if let Some(played) = self.player.as_ref().and_then(|player| player.position(now)) {
            self.engine.handle(Input::Played(Played { complete: false, ..played }), now);
        }
    }

    fn set_timer(&mut self, wakers: &Wakers) {
        self.sink_at = self.player.as_ref().and_then(Player::next_deadline);
        let journal_at = self.journal.as_ref().and_then(|journal| journal.deadline());
        let all = [self.engine.next_deadline(), self.sink_at, journal_at];
        let at = all.into_iter().flatten().min();
        if at == self.timer_at {
            return;
        }
        self.timer_at = at;
        let Some(at) = at else { return };
        self.timer.as_mut().reset(tokio::time::Instant::from_std(at));
        if self.timer.as_mut().poll(&mut wakers.context(Sources::TIMER)).is_ready() {
            self.due |= Sources::TIMER;
        }
    }

    fn publish(&self) {
        self.shared.publish(self.engine.state(), self.stats());
    }

    fn stats(&self) -> SessionStats {
        let mut stats = self.engine.stats();
        stats.uplink_dropped_ms += self.inbox.dropped_ms();
        stats.undelivered_commands += self.wire.undelivered();
        stats.callback_frames_dropped = self.tap_dropped;
        stats.callback_partials_dropped = self.partials_dropped;
        stats.agent_chunks_dropped = match &self.journal {
            Some(journal) => journal.dropped(),
            None => self.chunks_dropped,
        };
        stats.unrecorded_inputs = self.engine.unrecorded();
        stats
    }

    /// Closes the connection, ends tools and hooks, and leaves no task behind.
    async fn wind_down(&mut self) {
        let Some(end) = self.end.take() else { return };
        let limit = self.shared.limits.close;
        self.shared.publish(SessionState::Deactivating, self.stats());
        // Where work may be left behind, that of calls which were approved is: unless it was left, and
        // was aborted or took too long.
        let leaves = self.shared.link.as_ref().is_some_and(|link| link.detaches());
        let is_over = self.journal.as_ref().is_some_and(|journal| journal.is_left());
        let work = if leaves && !is_over { LEFT_WORK } else { limit };
        if let Some(desk) = self.shared.desk()
            && tokio::time::timeout(work + limit, desk.close(work)).await.is_err()
        {
            tracing::warn!("the store is slow: calls that wait seem attended for a while");
        }
        self.finish_journal(limit).await;
        if let Some(desk) = self.shared.desk()
            && tokio::time::timeout(limit, desk.deliver()).await.is_err()
        {
            tracing::warn!("the store is slow: outcomes wait for whoever goes on with the session");
        }
        let closed = self.wire.finish(limit).await;
        if let Some(tasks) = self.tasks.take() {
            tasks.finish(limit).await;
        }
        if let Some(event) = self.last_event.take() {
            self.push_job(Job::Event(event), now());
        }
        if let Some(hooks) = self.hooks.take() {
            hooks.finish(limit).await;
        }
        if let Some(tap) = self.tap.take() {
            let mut task = tap.finish();
            if tokio::time::timeout(limit, &mut task).await.is_err() {
                task.abort();
            }
        }
        if let Some(recording) = self.engine.finish() {
            recording.finish(limit).await;
        }
        self.release(end, !closed);
    }

    /// Waits until the turns are on disk, so long or as long as the store may take for one, and tells
    /// the end then. Work that a caller left behind is waited for to its end: the agent bounds how often
    /// its store is tried.
    async fn finish_journal(&mut self, limit: Duration) {
        let Some(journal) = &self.journal else { return };
        let patience = journal.patience().min(LAST_TURNS);
        let limit = if journal.is_left() { LEFT_WORK } else { limit.max(patience) };
        let until = tokio::time::Instant::now() + limit;
        loop {
            let next = poll_fn(|cx| match &mut self.journal {
                Some(journal) => journal.poll_told(cx),
                None => Poll::Ready(None),
            });
            let next = tokio::time::timeout_at(until, next).await;
            match next {
                Ok(Some(told)) => self.input(input_of(told), now()),
                Ok(None) => break,
                Err(_) => {
                    tracing::warn!("the session is over and its last turns are not written yet");
                    let given_up = self.journal.as_mut().map(|journal| journal.give_up());
                    for committed in given_up.unwrap_or_default() {
                        self.input(input_of(Told::Committed(committed)), now());
                    }
                    break;
                }
            }
        }
        if let Some(event) = &self.last_event {
            self.shared.tell(event);
        }
        self.chunks_dropped = self.journal.take().map_or(0, |journal| journal.dropped());
    }

    fn release(&mut self, end: End, close_timed_out: bool) {
        self.released = true;
        if let Some(desk) = self.shared.set_desk(None) {
            desk.abort();
        }
        let record = EndRecord {
            reason: end.reason.clone(),
            detached_tools: end.detached,
            stats: self.stats(),
        };
        let began = end.never_began.is_none();
        let never_started = match end.never_began {
            Some(NeverBegan::Connect(error)) => StartError::Connect(error),
            None if end.reason != EndReason::Stopped => StartError::Ended(end.reason),
            Some(NeverBegan::Stopped) | None => StartError::Stopped,
        };
        let sink = ParkedSink {
            sink: self.player.take().and_then(Player::into_sink).filter(|_| self.hosts_sink),
            next_generation: self.engine.next_generation(),
        };
        self.shared.release(sink, began.then_some(record), close_timed_out);
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(never_started));
        }
    }
}

impl Drop for Driver {
    /// The task was dropped with its runtime: the session is over all the same.
    fn drop(&mut self) {
        if !self.released {
            let reason = EndReason::Cancelled;
            self.release(End { never_began: None, reason, detached: Vec::new() }, false);
        }
    }
}

/// What a journal tells, as an input of the engine.
fn input_of(told: Told) -> Input {
    match told {
        Told::Committed(committed) => Input::Committed(committed.into()),
        Told::Detached(snapshot_id) => Input::Detached { snapshot_id },
        Told::NotDetached(why) => Input::NotDetached { why },
        Told::Aborted => Input::WorkAborted,
        Told::Failed => Input::AgentFailed,
    }
}

/// The time of this wake-up; virtual where the runtime's is.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
