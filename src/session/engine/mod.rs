//! The whole behaviour of a voice session, without I/O, clock or task.
//!
//! # The contract
//!
//! Whoever drives an [`Engine`] keeps one invariant: **after each call of [`Engine::handle`] or
//! [`Engine::handle_timeout`], [`Engine::poll_output`] is called until it gives `None`.** The engine
//! then holds nothing that anybody waits for, and memory stays bounded. The loop is:
//!
//! 1. Drain [`Engine::poll_output`], doing what each output says.
//! 2. If the last one was [`Output::Ended`], stop.
//! 3. While the wire takes more, hand it what [`Engine::poll_uplink`] gives: the user's audio is
//!    pulled, everything else is pushed.
//! 4. Wait for an input, or until [`Engine::next_deadline`].
//! 5. Read the clock once, and call [`Engine::handle`] or [`Engine::handle_timeout`] with it.
//! 6. Go to 1.
//!
//! Outputs come in two streams. What touches audio or the wire comes at once. What people see
//! (events, prompts, the start of tools) comes in order, and waits while a call is judged: after
//! [`Output::Admit`], nothing of that stream is given out until [`Input::Admission`] answers it, so
//! that nobody sees anything after a call before it is decided.

mod attention;
mod bounds;
mod calls;
mod confirm;
mod floor;
mod guard;
mod hand_off;
mod hangup;
mod host;
mod idle;
mod io;
mod ledger;
mod lifecycle;
mod lifetime;
mod marks;
mod notes;
mod progress;
mod prompts;
mod provider;
mod read_back;
mod reconnect;
mod replies;
mod screen;
mod sequencer;
mod timers;
mod tools;
mod transcripts;
mod unanswered;
mod uplink;
mod watchdog;
mod workflow;

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_audio::PositionSource;
use antiphon_live::{Capabilities, LiveCommand, LiveConfig, LiveError};
use antiphon_types::AudioFormat;
use serde::{Deserialize, Serialize};

use self::{
    attention::Attention,
    bounds::Ending,
    calls::Calls,
    floor::Floor,
    hand_off::Agents,
    lifetime::{Attempts, Chance, Named},
    notes::Speeches,
    prompts::{Language, Prompts},
    reconnect::Reconnect,
    screen::Screening,
    sequencer::{Latency, Sequencer},
    timers::{Timer, Timers},
    tools::Unsent,
    transcripts::Utterances,
    unanswered::Unanswered,
    uplink::Uplink,
    workflow::Workflow,
};
use super::{
    BargeIn, EndReason, EventKind, IdleConfig, ReconnectPolicy, SessionEvent, SessionLimits,
    SessionState, SessionStats,
    guard::{InputRules, OutputRules},
    journal::{Committed, Linked, Seed},
    statistics::Times,
};

pub(crate) use self::{
    hand_off::{HandOff, Persona},
    io::{
        Barred, Decision, End, HookTrouble, HostCommand, Input, Manner, NeverBegan, Origin, Output,
        Ticket,
    },
    lifetime::{LifetimeConfig, Named as NamedProvider},
    prompts::frame_untrusted,
};

/// Events that may wait for one verdict; more, and the call is denied.
const MAX_GATED: usize = 4_096;

/// What an engine is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EngineConfig {
    pub(crate) session_id: Arc<str>,
    pub(crate) provider: Arc<str>,
    pub(crate) model: Arc<str>,
    /// With all tools, and the caller's instructions.
    pub(crate) live: LiveConfig,
    pub(crate) idle: IdleConfig,
    pub(crate) limits: SessionLimits,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) barge_in: BargeIn,
    /// The sink's format; `None` is the provider's.
    pub(crate) sink_format: Option<AudioFormat>,
    /// Above every generation that the sink has seen.
    pub(crate) first_generation: u64,
    /// The conversation that it goes on from.
    pub(crate) seed: Option<Seed>,
    #[serde(default)]
    pub(crate) lifetime: LifetimeConfig,
    /// The agent whose turns those of the session are.
    #[serde(default)]
    pub(crate) linked: Option<Linked>,
    /// How the agent's voice is held back, where a guard judges its words.
    #[serde(default)]
    pub(crate) output_guard: Option<OutputRules>,
    /// How calls wait for the user's words, where a guard judges those.
    #[serde(default)]
    pub(crate) input_guard: Option<InputRules>,
}

/// A voice session as a state machine. See the head of this module.
#[derive(Debug)]
pub(crate) struct Engine {
    session_id: Arc<str>,
    provider_name: Arc<str>,
    model: Arc<str>,
    live: Arc<LiveConfig>,
    limits: SessionLimits,
    linked: Option<Linked>,
    language: Language,
    sink_format: Option<AudioFormat>,

    started_at: Instant,
    /// When the user last did something.
    last_activity: Instant,
    /// A bound is nearly reached.
    ending: Option<Ending>,
    now: Instant,
    phase: Phase,
    state: SessionState,
    epoch: u32,
    connected: bool,
    going_away: bool,
    capabilities: Option<Arc<Capabilities>>,

    /// Audio and wire: given out at once.
    prompt_outputs: VecDeque<Output>,
    /// What people see: given out in order, held by `gate`.
    ordered_outputs: VecDeque<Output>,
    gate: Option<Gate>,

    timers: Timers,
    replies: Sequencer,
    /// How the sink knows what was heard, as it last told.
    position_source: Option<PositionSource>,
    /// The playout is being cleared; what was heard is told once it is.
    clearing: bool,
    calls: Calls,
    /// The parked call whose read-back is being spoken or answered, and since when it may be.
    asking: Option<(u64, Option<Instant>)>,
    /// Outputs that wait for a connection.
    unsent_responses: Vec<Unsent>,
    /// Calls whose outputs the provider did not take.
    refused_outputs: VecDeque<Arc<str>>,
    output_rules: Option<OutputRules>,
    input_rules: Option<InputRules>,
    screening: Screening,
    utterances: Utterances,
    speeches: Speeches,
    uplink: Uplink,
    unanswered: Unanswered,
    uplink_sent: Duration,
    attention: Attention,
    floor: Floor,
    prompts: Prompts,
    workflow: Option<Workflow>,
    reconnect: Reconnect,
    takes_no_history: bool,
    fallbacks: Vec<Named>,
    /// Why connecting with the first candidate failed, while others are tried.
    first_error: Option<LiveError>,
    chance: Chance,
    agents: Agents,
    latency: Latency,
    times: Times,
    turn: Turn,
    stalled: Stalled,
    /// The turn in which something was last done about a silent provider.
    reacted_in: Option<u64>,
    detached: Vec<Arc<str>>,
    /// The caller hung up for this reason, and the work goes on.
    hung_up: Option<EndReason>,
    /// Calls that a person approved and that are at work.
    approved_at_work: u32,
    stats: SessionStats,
}

/// Where in its life a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The first connection is being made.
    Connecting,
    /// The start hook runs.
    Starting,
    /// It runs, or replaces a lost connection.
    Running,
    /// It ends as soon as its tools have.
    Closing(EndReason),
    /// It is over.
    Ended,
}

/// What the ordered outputs wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    StartHook,
    Admission(Ticket),
}

/// The user's turn.
#[derive(Debug, Default)]
struct Turn {
    /// From 1; 0 before the first.
    number: u64,
    /// It is not finished.
    open: bool,
    /// A reply to it is over.
    replied: bool,
    /// The user spoke or acted, and no turn was counted for it yet.
    pending: bool,
    /// The last reply to it failed without a word: it is over unless the connection is lost now.
    failed: bool,
}

/// How often and since when nothing came from the provider.
#[derive(Debug, Default)]
struct Stalled {
    since: Option<Instant>,
    times: u32,
}

impl Engine {
    /// A session that begins to connect at `now`.
    pub(crate) fn new(config: EngineConfig, now: Instant) -> Self {
        let EngineConfig {
            session_id,
            provider,
            model,
            mut live,
            idle,
            limits,
            reconnect,
            barge_in,
            sink_format,
            first_generation,
            seed,
            lifetime,
            linked,
            output_guard,
            input_guard,
        } = config;
        let attempts = Attempts::new(reconnect, lifetime.fallbacks.len(), lifetime.random);
        let workflow = Workflow::new(&live);
        if let Some(instructions) = workflow.as_ref().and_then(Workflow::instructions) {
            live.instructions = Some(instructions);
        }
        let mut engine = Self {
            session_id,
            provider_name: provider,
            model,
            linked,
            language: Language::of(live.locale.as_deref()),
            live: Arc::new(live),
            sink_format,
            started_at: now,
            last_activity: now,
            ending: None,
            now,
            phase: Phase::Connecting,
            state: SessionState::Inactive,
            epoch: 0,
            connected: false,
            going_away: false,
            capabilities: None,
            prompt_outputs: VecDeque::new(),
            ordered_outputs: VecDeque::new(),
            gate: None,
            timers: Timers::default(),
            replies: Sequencer::new(first_generation),
            position_source: None,
            clearing: false,
            calls: Calls::default(),
            asking: None,
            unsent_responses: Vec::new(),
            refused_outputs: VecDeque::new(),
            output_rules: output_guard,
            input_rules: input_guard,
            screening: Screening::default(),
            utterances: Utterances::default(),
            speeches: Speeches::default(),
            uplink: Uplink::new(limits.uplink),
            unanswered: Unanswered::new(limits.gap_audio),
            uplink_sent: Duration::ZERO,
            attention: Attention::new(idle),
            floor: Floor::new(barge_in),
            prompts: Prompts::default(),
            workflow,
            reconnect: Reconnect::new(attempts, seed),
            takes_no_history: lifetime.takes_no_history,
            fallbacks: lifetime.fallbacks,
            first_error: None,
            chance: Chance::new(lifetime.random),
            agents: Agents::default(),
            latency: Latency::default(),
            times: Times::default(),
            turn: Turn::default(),
            stalled: Stalled::default(),
            reacted_in: None,
            detached: Vec::new(),
            hung_up: None,
            approved_at_work: 0,
            stats: SessionStats::default(),
            limits,
        };
        engine.begin_connecting();
        engine
    }

    /// Takes an input at `now`. Cheap; drain the outputs afterwards.
    pub(crate) fn handle(&mut self, input: Input, now: Instant) {
        self.now = self.now.max(now);
        let input = match input {
            // The last turn of a session is written when all else is over.
            Input::Committed(committed) => return self.on_committed(*committed),
            Input::Detached { snapshot_id } => return self.on_detached(snapshot_id),
            _ if self.phase == Phase::Ended => return,
            // The most frequent input by far; nothing but the uplink depends on it.
            Input::Host(HostCommand::Audio(frame)) => return self.on_host_audio(frame),
            other => other,
        };
        match input {
            Input::Connected { epoch, capabilities } => self.on_connected(epoch, capabilities),
            Input::ConnectFailed { epoch, error } => self.on_connect_failed(epoch, error),
            Input::Disconnected { epoch, error } => self.on_disconnected(epoch, error),
            Input::Returned { commands, lost, unheld, .. } => {
                return self.on_returned(commands, lost, unheld);
            }
            Input::StartHookDone => self.on_start_hook_done(),
            Input::NotDetached { why } => self.on_not_detached(&why),
            Input::WorkAborted => self.end_hung_up(),
            Input::AgentFailed => {
                let message = "the agent's invocation was cancelled".to_owned();
                self.begin_close(EndReason::Failed { message }, None);
            }
            Input::ApprovedAtWork { calls } => self.approved_at_work = calls,
            Input::Stop { reason, within } => self.on_stop(reason, within),
            Input::Provider { epoch, event } => self.on_provider(epoch, event),
            Input::Refused { epoch, command, origin, error } => {
                self.on_refused(epoch, command, origin, error);
            }
            Input::PromptSent { id } => self.on_prompt_sent(id),
            Input::Host(command) => self.on_host(command),
            Input::Admission { ticket, decision } => self.on_admission(ticket, decision),
            Input::ToolDone { ticket, executed, whole_bytes } => {
                self.on_tool_done(ticket, *executed, whole_bytes);
            }
            Input::ToolProgress { ticket, progress } => self.on_tool_progress(ticket, &progress),
            Input::PromptVerdict { id, allowed } => self.on_prompt_verdict(id, allowed),
            Input::Played(played) => self.on_played(played),
            Input::Cleared { next, played } => self.on_cleared(next, played),
            Input::SinkFailed { message } => self.emit_error("sink", message),
            Input::HookTrouble { trouble } => self.on_hook_trouble(trouble),
            Input::Guarded { reply, check, bytes, verdict } => {
                self.on_guarded(reply, check, bytes, verdict);
            }
            Input::Screened { turn, verdict } => self.on_screened(turn, verdict),
            Input::Committed(_) | Input::Detached { .. } => {}
        }
        self.settle();
    }

    /// The instant that [`Engine::next_deadline`] named is reached.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(timer) = self.timers.take_expired(self.now) {
            self.on_timer(timer);
            self.settle();
        }
    }

    /// What is to be done next; `None` when nothing is.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.prompt_outputs.pop_front() {
            return Some(output);
        }
        if self.gate.is_some() {
            return None;
        }
        let output = self.ordered_outputs.pop_front()?;
        if let Output::Admit { ticket, .. } = &output {
            self.gate = Some(Gate::Admission(*ticket));
        }
        Some(output)
    }

    /// The next of the user's audio, and of what must not overtake it. Call when the wire is ready.
    pub(crate) fn poll_uplink(&mut self) -> Option<LiveCommand> {
        if !self.has_uplink() {
            return None;
        }
        let command = self.uplink.pop()?;
        if let LiveCommand::AppendAudio(frame) = &command {
            self.uplink_sent += frame.duration();
            self.unanswered.taken(frame);
        }
        Some(command)
    }

    /// Whether [`Engine::poll_uplink`] has something.
    pub(crate) fn has_uplink(&self) -> bool {
        self.connected && !self.uplink.is_empty()
    }

    /// Whether any call has no output yet.
    pub(crate) fn has_open_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// When to call [`Engine::handle_timeout`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether the driver should tell how far playout is: a long reply is queued, and the sink
    /// tells of its own only when something is over.
    pub(crate) fn wants_position(&self) -> bool {
        self.replies.unheard() > self.limits.reply_audio / 2
    }

    /// The state.
    pub(crate) fn state(&self) -> SessionState {
        self.state
    }

    /// The counters.
    pub(crate) fn stats(&self) -> SessionStats {
        SessionStats {
            uplink_dropped_ms: self.uplink.dropped_ms(),
            answer_time: self.times.answers.stats(),
            barge_in_time: self.times.silences.stats(),
            tool_time: self.times.tools.stats(),
            ..self.stats.clone()
        }
    }

    /// The user's audio that was dropped because the wire was slow.
    pub(crate) fn uplink_dropped(&self) -> Duration {
        self.uplink.dropped()
    }

    /// The lowest generation that was not used.
    pub(crate) fn next_generation(&self) -> u64 {
        self.replies.next_generation().0
    }

    /// Brings everything into its right place after an input or a time-out.
    fn settle(&mut self) {
        match self.phase {
            Phase::Running => {}
            Phase::Closing(_) => return self.try_finish(),
            Phase::Starting => return self.bound_gated(),
            Phase::Connecting | Phase::Ended => return,
        }
        self.admit_held();
        self.start_approved_calls();
        self.release_held();
        self.finish_groups();
        self.ask_next_read_back();
        self.hand_off_if_clean();
        self.pump();
        self.finish_turn();
        self.leave_if_idle();
        self.end_after_goodbye();
        self.end_after_leave();
        self.end_after_work();
        self.refresh_timers();
        self.bound_gated();
        if matches!(self.phase, Phase::Closing(_)) {
            self.try_finish();
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Settle => self.on_settle(),
            Timer::LostEnd => self.on_lost_end(),
            Timer::Stall => self.on_stall(),
            Timer::Answer => self.on_unanswered(),
            Timer::Request => self.on_request_late(),
            Timer::CancelAck => self.on_cancel_unacknowledged(),
            Timer::ToolStall => self.on_tool_stall(),
            Timer::HostTool => self.on_host_tool_late(),
            Timer::Confirm => self.on_confirm_late(),
            Timer::PromptVerdict => self.on_prompt_verdict_late(),
            Timer::Idle => self.on_idle(),
            Timer::TranscriptWait => self.on_transcript_wait_over(),
            Timer::TranscriptFlush => self.flush_utterances(),
            Timer::BargeIn => self.on_barge_in_timer(),
            Timer::Goodbye => self.on_goodbye_over(),
            Timer::WrapUp => self.on_wrap_up(),
            Timer::HardEnd => self.on_hard_end(),
            Timer::HungUp => self.end_hung_up(),
            Timer::Marks => self.on_marks_late(),
            // What is due is looked for after each timer.
            Timer::HoldBack | Timer::Words => {}
            Timer::Backoff => self.connect_again(),
            Timer::Expiry => self.on_expiry(),
            Timer::GoingAway => self.replace_connection(),
            Timer::Home => self.look_home(),
            // What is due is looked for after each timer.
            Timer::Quiet => {}
            Timer::Close => self.finish(),
        }
    }

    fn refresh_timers(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        self.refresh_deafness();
        let busy = self.is_busy();
        self.attention.set_busy(busy, self.now);
        self.await_marks();
        self.timers.set_to(Timer::Idle, self.unless_hung_up(self.attention.deadline()));
        self.timers.set_to(Timer::WrapUp, self.unless_hung_up(self.wrap_up_deadline()));
        self.timers.set_to(Timer::Request, self.replies.deadline());
        self.timers.set_to(Timer::Confirm, self.calls.confirm_deadline());
        self.timers.set_to(Timer::HostTool, self.calls.host_deadline());
        self.timers.set_to(Timer::PromptVerdict, self.prompts.deadline());
        self.timers.set_to(Timer::HoldBack, self.release_due());
        self.timers.set_to(Timer::Words, self.words_due());
        match self.calls.longest_running() {
            None => self.timers.stop(Timer::ToolStall),
            Some((_, since)) if !self.timers.is_set(Timer::ToolStall) => {
                self.timers.set(Timer::ToolStall, since + self.limits.stall);
            }
            Some(_) => {}
        }
    }

    /// A verdict that keeps too many events waiting is no verdict, and a start hook that does lets
    /// the session end.
    fn bound_gated(&mut self) {
        if self.ordered_outputs.len() <= MAX_GATED {
            return;
        }
        match self.gate {
            Some(Gate::Admission(ticket)) => {
                let reason = "too many events waited for the policy";
                self.on_admission(ticket, Decision::NoVerdict { reason });
            }
            Some(Gate::StartHook) => {
                self.begin_close(EndReason::Limit { limit: "start_hook".into() }, None);
                self.try_finish();
            }
            None => {}
        }
    }

    fn set_state(&mut self, state: SessionState) {
        if self.state == state {
            return;
        }
        self.state = state;
        if state == SessionState::Processing {
            self.stalled = Stalled { since: Some(self.now), times: 0 };
            self.timers.set(Timer::Stall, self.now + self.limits.stall);
        } else {
            self.stalled = Stalled::default();
            self.timers.stop(Timer::Stall);
        }
        self.emit(EventKind::State { state });
    }

    fn emit(&mut self, kind: EventKind) {
        self.emit_in(self.turn.number, kind);
    }

    fn emit_in(&mut self, turn: u64, kind: EventKind) {
        let event = self.event_in(turn, kind);
        self.ordered_outputs.push_back(Output::Emit(event));
    }

    fn event_in(&self, turn: u64, kind: EventKind) -> SessionEvent {
        let t_ms = self.now.saturating_duration_since(self.started_at).as_millis() as u64;
        SessionEvent { t_ms, epoch: self.epoch, turn, kind }
    }

    fn emit_error(&mut self, kind: &str, message: impl Into<String>) {
        self.emit(EventKind::Error { kind: kind.into(), message: message.into() });
    }

    /// Hands a command to the connection, if there is one that can do it.
    fn send(&mut self, command: LiveCommand, origin: Origin) -> bool {
        if !self.connected || !self.can(|capabilities| capabilities.check(&command).is_ok()) {
            return false;
        }
        let epoch = self.epoch;
        self.prompt_outputs.push_back(Output::Send { epoch, command, origin });
        true
    }

    fn can(&self, ability: impl FnOnce(&Capabilities) -> bool) -> bool {
        self.capabilities.as_ref().is_some_and(|capabilities| ability(capabilities))
    }

    fn on_committed(&mut self, committed: Committed) {
        let Committed { turn, snapshot_id, parent_id, finish_reason, error, ends_session } =
            committed;
        let why = ends_session.then(|| error.clone().unwrap_or_default());
        self.emit_in(
            turn,
            EventKind::TurnCommitted { snapshot_id, parent_id, finish_reason, error },
        );
        if let Some(message) = why {
            self.begin_close(EndReason::StoreFailed { message }, None);
            self.settle();
        }
    }

    fn on_hook_trouble(&mut self, trouble: HookTrouble) {
        match trouble {
            HookTrouble::Panicked { hook } => self.emit_error("hook", format!("{hook} panicked")),
            HookTrouble::GivenUp { hook } => {
                self.emit_error("hook", format!("{hook} took too long and was given up"));
            }
            HookTrouble::Stalled { hook, ms } => {
                tracing::debug!(hook, ms, "a hook takes long");
                self.emit(EventKind::Stalled { what: "hook".into(), ms, reaction: None });
            }
            HookTrouble::Flooded => {
                self.emit_error("hook", "too many events wait for the hooks");
                self.begin_close(EndReason::Limit { limit: "hook_queue".into() }, None);
            }
        }
    }
}
