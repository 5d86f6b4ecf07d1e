//! What the handles of a session and its task share.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use antiphon_agent::{Authorizer, Caller, Memory, Parking, ScopedMemory, ToolRegistry};
use antiphon_audio::AudioSink;
use antiphon_live::{Capabilities, LiveProvider};
use antiphon_types::ToolDefinition;
use tokio::sync::{oneshot, watch};

use super::{
    AgentSession, BargeIn, Callbacks, EndReason, EndRecord, InputGuard, LifecycleHooks,
    MemoryScope, OutputGuard, ReconnectPolicy, SendError, SessionContext, SessionEvent,
    SessionLimits, SessionState, SessionStats, StartError,
    approvals::{ATTENDED, Desk, Speaking},
    engine::HostCommand,
    fallback::Candidate,
    feed::Feed,
    hand_off::Team,
    inbox::{Inbox, Stop},
    journal::Link,
    recording::Recording,
    whole::WholeOutputs,
};

/// Agents that the conversation may be about to go over to; the last one counts.
const MAX_HAND_OFFS: usize = 16;

/// The part of a session that outlives its runs.
pub(crate) struct Shared {
    pub(crate) provider: Arc<dyn LiveProvider>,
    /// Whom it falls back on, in this order.
    pub(crate) fallbacks: Vec<Candidate>,
    /// `None`: the host has none, so that nobody needs to be called.
    pub(crate) callbacks: Option<Arc<dyn Callbacks>>,
    pub(crate) hooks: Option<Arc<dyn LifecycleHooks>>,
    pub(crate) policy: Option<Arc<dyn Authorizer>>,
    pub(crate) registry: Arc<ToolRegistry>,
    pub(crate) memory: Arc<dyn Memory>,
    memory_scope: MemoryScope,
    pub(crate) caller: Option<Caller>,
    pub(crate) link: Option<Arc<dyn Link>>,
    parking: Parking,
    desk: Mutex<Option<Arc<Desk>>>,
    pub(crate) limits: SessionLimits,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) barge_in: BargeIn,
    pub(crate) output_guard: Option<OutputGuard>,
    pub(crate) input_guard: Option<InputGuard>,
    pub(crate) events: Feed<SessionEvent>,
    pub(crate) whole_outputs: Arc<WholeOutputs>,
    pub(crate) team: Team,
    /// What runs the tools of agents that the conversation is about to go over to, by number.
    executors: Mutex<Vec<(u64, Speaking)>>,
    /// The tools that the host answers itself, while the session's own agent has the conversation.
    host_tools: Mutex<Vec<ToolDefinition>>,
    /// Changes only where a start resumes a snapshot, which says whose session it is.
    session_id: Mutex<Arc<str>>,
    recording: Mutex<RecordingState>,
    sink: Mutex<ParkedSink>,
    live: Mutex<Live>,
    run: watch::Sender<Run>,
    answers: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    next_answer: AtomicU64,
}

/// The sink between two runs. It remembers generations, so they go on counting.
#[derive(Default)]
pub(crate) struct ParkedSink {
    pub(crate) sink: Option<Box<dyn AudioSink>>,
    pub(crate) next_generation: u64,
}

/// What is recorded, and where.
#[derive(Default)]
struct RecordingState {
    /// Of runs that begin.
    wanted: Option<Recording>,
    /// The file of the present run, or the last one.
    file: Option<PathBuf>,
}

/// What can be asked at any time.
#[derive(Default)]
struct Live {
    state: SessionState,
    stats: SessionStats,
    capabilities: Option<Arc<Capabilities>>,
    inbox: Option<Arc<Inbox>>,
}

/// Whether a run is on, and how the last one ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Counts the runs.
    number: u64,
    running: bool,
    /// How the last run that had begun ended.
    pub(crate) record: Option<EndRecord>,
    pub(crate) close_timed_out: bool,
}

/// The parts that a builder collects.
pub(crate) struct Parts {
    pub(crate) provider: Arc<dyn LiveProvider>,
    pub(crate) fallbacks: Vec<Candidate>,
    pub(crate) callbacks: Option<Arc<dyn Callbacks>>,
    pub(crate) hooks: Option<Arc<dyn LifecycleHooks>>,
    pub(crate) policy: Option<Arc<dyn Authorizer>>,
    pub(crate) registry: Arc<ToolRegistry>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) memory_scope: MemoryScope,
    pub(crate) session_id: Arc<str>,
    pub(crate) sink: Option<Box<dyn AudioSink>>,
    pub(crate) limits: SessionLimits,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) barge_in: BargeIn,
    pub(crate) output_guard: Option<OutputGuard>,
    pub(crate) input_guard: Option<InputGuard>,
    pub(crate) caller: Option<Caller>,
    pub(crate) link: Option<Arc<dyn Link>>,
    pub(crate) team: Team,
    /// How calls wait for a person.
    pub(crate) parking: Parking,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let events = Feed::new(parts.limits.events);
        let whole_outputs = Arc::new(WholeOutputs::new(parts.limits.whole_outputs));
        let (run, _) = watch::channel(Run::default());
        Arc::new(Self {
            provider: parts.provider,
            fallbacks: parts.fallbacks,
            callbacks: parts.callbacks,
            hooks: parts.hooks,
            policy: parts.policy,
            registry: parts.registry,
            memory: parts.memory,
            memory_scope: parts.memory_scope,
            session_id: Mutex::new(parts.session_id),
            caller: parts.caller,
            link: parts.link,
            parking: parts.parking,
            desk: Mutex::default(),
            limits: parts.limits,
            reconnect: parts.reconnect,
            barge_in: parts.barge_in,
            output_guard: parts.output_guard,
            input_guard: parts.input_guard,
            events,
            whole_outputs,
            team: parts.team,
            executors: Mutex::default(),
            host_tools: Mutex::default(),
            recording: Mutex::default(),
            sink: Mutex::new(ParkedSink { sink: parts.sink, next_generation: 1 }),
            live: Mutex::default(),
            run,
            answers: Mutex::default(),
            next_answer: AtomicU64::new(1),
        })
    }

    /// The session's own provider, and those that it falls back on.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let own = Candidate::own(self.provider.clone());
        std::iter::once(own).chain(self.fallbacks.iter().cloned()).collect()
    }

    /// Names this session among all of the process.
    pub(crate) fn mark(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// What hooks are given. The handle in it does not keep the session running.
    pub(crate) fn context(self: &Arc<Self>) -> SessionContext {
        SessionContext {
            session_id: self.session_id(),
            memory: self.scoped_memory(),
            registry: self.registry.clone(),
            session: AgentSession::inner(self.clone()),
            receipt: None,
        }
    }

    /// The memory as tools, policies and hooks see it.
    pub(crate) fn scoped_memory(&self) -> Arc<dyn Memory> {
        let memory = self.memory.clone();
        let view = match (self.memory_scope, &self.caller) {
            (MemoryScope::Caller, Some(caller)) => ScopedMemory::of_caller(memory, caller),
            (_, caller) => {
                let tenant = caller.as_ref().and_then(|caller| caller.scope.as_deref());
                ScopedMemory::of_tenant(memory, tenant, &self.session_id())
            }
        };
        Arc::new(view)
    }

    /// How calls wait for a person while the session lives.
    pub(crate) fn parking(&self) -> Parking {
        let mut parking = self.parking.clone();
        parking.attended = Some(ATTENDED);
        if let (MemoryScope::Caller, Some(caller)) = (self.memory_scope, &self.caller) {
            parking.memory_of = Some(caller.id.clone());
        }
        parking
    }

    /// Who attends to the calls of the run that wait for a person.
    pub(crate) fn desk(&self) -> Option<Arc<Desk>> {
        lock(&self.desk).clone()
    }

    /// Sets who attends. Returns who did.
    pub(crate) fn set_desk(&self, desk: Option<Arc<Desk>>) -> Option<Arc<Desk>> {
        std::mem::replace(&mut *lock(&self.desk), desk)
    }

    pub(crate) fn session_id(&self) -> Arc<str> {
        lock(&self.session_id).clone()
    }

    /// The agent's session is another than was thought.
    pub(crate) fn set_session_id(&self, session_id: Arc<str>) {
        *lock(&self.session_id) = session_id;
    }

    /// Whether and where runs that begin are recorded.
    pub(crate) fn record(&self, recording: Option<Recording>) {
        lock(&self.recording).wanted = recording;
    }

    pub(crate) fn recording(&self) -> Option<Recording> {
        lock(&self.recording).wanted.clone()
    }

    pub(crate) fn set_recording_file(&self, file: Option<PathBuf>) {
        lock(&self.recording).file = file;
    }

    pub(crate) fn recording_file(&self) -> Option<PathBuf> {
        lock(&self.recording).file.clone()
    }

    /// The host answers these tools itself.
    pub(crate) fn set_host_tools(&self, tools: &[ToolDefinition]) {
        *lock(&self.host_tools) = tools.to_vec();
    }

    pub(crate) fn host_tools(&self) -> Vec<ToolDefinition> {
        lock(&self.host_tools).clone()
    }

    /// Leaves what runs an agent's tools for the session's task.
    pub(crate) fn leave_executor(&self, number: u64, speaking: Speaking) {
        let mut waiting = lock(&self.executors);
        if waiting.len() == MAX_HAND_OFFS {
            waiting.remove(0);
        }
        waiting.push((number, speaking));
    }

    /// What was left under this number; what was left before is of no use any more.
    pub(crate) fn take_executor(&self, number: u64) -> Option<Speaking> {
        let mut waiting = lock(&self.executors);
        let taken = waiting.iter().find(|(known, _)| *known == number).cloned();
        waiting.retain(|(known, _)| *known > number);
        taken.map(|(_, speaking)| speaking)
    }

    /// Begins a run, unless one is on.
    pub(crate) fn claim(
        &self,
        capabilities: Arc<Capabilities>,
    ) -> Result<(Arc<Inbox>, ParkedSink), StartError> {
        let mut live = lock(&self.live);
        let mut claimed = false;
        self.run.send_if_modified(|run| {
            if !run.running {
                run.running = true;
                run.number += 1;
                claimed = true;
            }
            claimed
        });
        if !claimed {
            return Err(StartError::AlreadyActive(live.state));
        }
        let inbox = Arc::new(Inbox::new(self.limits.commands, self.limits.uplink));
        live.state = SessionState::Connecting;
        live.stats = SessionStats::default();
        live.capabilities = Some(capabilities);
        live.inbox = Some(inbox.clone());
        Ok((inbox, std::mem::take(&mut lock(&self.sink))))
    }

    /// Ends a run. `record`: `None` when it had not begun.
    pub(crate) fn release(
        &self,
        sink: ParkedSink,
        record: Option<EndRecord>,
        close_timed_out: bool,
    ) {
        *lock(&self.sink) = sink;
        let mut live = lock(&self.live);
        live.state = SessionState::Inactive;
        if let Some(inbox) = live.inbox.take() {
            inbox.close();
        }
        // Only now can nobody leave a command any more that waits for an answer.
        lock(&self.answers).clear();
        if let Some(record) = &record {
            live.stats = record.stats.clone();
        }
        self.run.send_modify(|run| {
            run.running = false;
            run.close_timed_out = close_timed_out;
            if record.is_some() {
                run.record = record;
            }
        });
    }

    /// Tells the event streams, if there are any.
    pub(crate) fn tell(&self, event: &SessionEvent) {
        self.events.tell(|| event.clone());
    }

    /// The run goes on; this is how it is.
    pub(crate) fn publish(&self, state: SessionState, stats: SessionStats) {
        let mut live = lock(&self.live);
        live.state = state;
        live.stats = stats;
    }

    /// The connection stands; this is what it can do.
    pub(crate) fn publish_capabilities(&self, capabilities: Arc<Capabilities>) {
        lock(&self.live).capabilities = Some(capabilities);
    }

    /// Bytes that the output of a tool may have for the present provider.
    pub(crate) fn max_tool_output(&self) -> usize {
        self.capabilities().map_or(usize::MAX, |capabilities| capabilities.tool_output_bytes)
    }

    pub(crate) fn capabilities(&self) -> Option<Arc<Capabilities>> {
        lock(&self.live).capabilities.clone()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.run.borrow().running
    }

    pub(crate) fn state(&self) -> SessionState {
        lock(&self.live).state
    }

    pub(crate) fn stats(&self) -> SessionStats {
        lock(&self.live).stats.clone()
    }

    /// Leaves a command for the session's task, if the provider is able to do it.
    pub(crate) fn send(
        &self,
        command: HostCommand,
        able: impl FnOnce(&Capabilities) -> Result<(), &'static str>,
    ) -> Result<(), SendError> {
        let live = lock(&self.live);
        let inbox = live.inbox.clone().ok_or(SendError::NotActive)?;
        if live.state == SessionState::Deactivating {
            return Err(SendError::NotActive);
        }
        if let Some(capabilities) = &live.capabilities {
            able(capabilities).map_err(SendError::Unsupported)?;
        }
        drop(live);
        inbox.push(command)
    }

    /// Leaves a command of the session's own, which may also come after its end was asked for.
    pub(crate) fn send_own(&self, command: HostCommand) -> Result<(), SendError> {
        self.inbox().ok_or(SendError::NotActive)?.push_own(command)
    }

    /// Says how many calls that a person approved are at work.
    pub(crate) fn tell_at_work(&self, calls: u32) {
        if let Some(inbox) = self.inbox() {
            inbox.at_work(calls);
        }
    }

    /// The inbox of a run that can still be told something.
    fn inbox(&self) -> Option<Arc<Inbox>> {
        let live = lock(&self.live);
        live.inbox.clone().filter(|_| live.state != SessionState::Deactivating)
    }

    /// Asks the run to end.
    pub(crate) fn stop(&self, reason: EndReason, within: Option<Duration>) {
        let inbox = lock(&self.live).inbox.clone();
        if let Some(inbox) = inbox {
            inbox.stop(Stop { reason, within });
        }
    }

    /// Waits until no run is on.
    pub(crate) async fn wait_for_end(&self) -> Run {
        let mut run = self.run.subscribe();
        match run.wait_for(|run| !run.running).await {
            Ok(run) => run.clone(),
            Err(_) => Run::default(),
        }
    }

    /// A number that no other request or answer of this session has.
    pub(crate) fn new_number(&self) -> u64 {
        self.next_answer.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the host gave a sink, and no run has it.
    pub(crate) fn has_sink(&self) -> bool {
        lock(&self.sink).sink.is_some()
    }

    /// A place for an answer of the session's task.
    pub(crate) fn await_answer(&self) -> (u64, oneshot::Receiver<bool>) {
        let token = self.new_number();
        let (sender, receiver) = oneshot::channel();
        lock(&self.answers).insert(token, sender);
        (token, receiver)
    }

    /// Gives an answer, or nobody waits for it any more.
    pub(crate) fn answer(&self, token: u64, answer: bool) {
        if let Some(sender) = lock(&self.answers).remove(&token) {
            let _ = sender.send(answer);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
