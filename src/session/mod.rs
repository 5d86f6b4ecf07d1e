//! [`AgentSession`]: a live provider with tools, hooks, idle timers and memory.
//!
//! The behaviour is a pure state machine (`engine`); one task (`driver`) moves bytes, time and
//! results in and out of it. Handles leave commands in a bounded inbox and never wait for audio.

pub(crate) mod approvals;
pub(crate) mod authorize;
mod barge_in;
mod builder;
mod config;
pub(crate) mod digest;
mod driver;
mod engine;
mod error;
mod events;
mod fallback;
mod feed;
pub(crate) mod guard;
mod hand_off;
mod hooks;
mod inbox;
mod inside;
pub(crate) mod journal;
mod price;
mod probe;
pub mod recording;
mod shared;
mod statistics;
mod stream;
mod summarizer;
mod whole;

use std::{
    collections::HashSet,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use antiphon_agent::{
    Authorizer, ExecutorLimits, Memory, MemoryError, ToolExecutor, ToolRegistry, cut_output,
};
use antiphon_live::{
    ActivityHandling, Capabilities, LiveCommand, LiveConfig, LiveError, LiveProvider, OutputWords,
    VoiceActivity,
};
use antiphon_types::{AudioFrame, ToolDefinition, ToolResponse};
use bytes::Bytes;
use tokio::sync::oneshot;

pub(crate) use self::hand_off::MakePolicy;
use self::{
    approvals::{Desk, Speaking},
    authorize::PolicyThenHook,
    driver::{Driver, Start},
    engine::{EngineConfig, HostCommand, LifetimeConfig, NamedProvider, frame_untrusted},
    fallback::Candidate,
    journal::{Linked, Opened, Opening, Place, called_by},
    recording::{NewFile, Recording},
    shared::{Parts, Shared},
};

#[doc(hidden)]
pub use self::probe::EngineProbe;
pub use self::{
    barge_in::{BargeIn, SpeechJudge, UserAudio},
    builder::SessionBuilder,
    config::{
        HistoryLimits, IdleConfig, MemoryScope, OnHangup, OnStall, ReconnectPolicy, SayOptions,
        SessionLimits,
    },
    error::{SendError, ShutdownError, StartError},
    events::{
        Confidence, Continuity, EndReason, EndRecord, EventKind, Heard, HostPrompt, HostPromptKind,
        HostPromptStage, RequestEnd, RequestOrigin, Restored, ResumeCause, ResumeNote, ResumedFrom,
        SessionEvent, SessionState, SessionStats,
    },
    guard::{Guard, GuardDenial, GuardVerdict, InputGuard, OutputGuard, WithoutTranscript, Words},
    hand_off::SessionAgent,
    hooks::{Callbacks, DeniedCall, LifecycleHooks, NoCallbacks, NoHooks, SessionContext},
    price::{Cost, PriceTable},
    statistics::TimeStats,
    stream::EventStream,
    summarizer::Summarizer,
};

/// A voice session with its tools. A cheap handle: clones share the session; dropping the last
/// one stops it. (Handles that hooks are given do not count.)
#[derive(Clone)]
pub struct AgentSession {
    shared: Arc<Shared>,
    /// Stops the session when the last of the host's handles goes.
    _alive: Option<Arc<StopOnDrop>>,
}

impl AgentSession {
    /// A session over `provider`. `registry` `None` is an empty one, `memory` `None` one that is
    /// kept in memory.
    pub fn new(
        provider: Arc<dyn LiveProvider>,
        callbacks: impl Callbacks,
        registry: Option<Arc<ToolRegistry>>,
        hooks: impl LifecycleHooks,
        memory: Option<Arc<dyn Memory>>,
    ) -> Self {
        let mut builder = Self::builder(provider).callbacks(callbacks).hooks(hooks);
        if let Some(registry) = registry {
            builder = builder.registry(registry);
        }
        if let Some(memory) = memory {
            builder = builder.memory(memory);
        }
        builder.into_session()
    }

    /// A builder, for more than [`AgentSession::new`] takes.
    pub fn builder(provider: Arc<dyn LiveProvider>) -> SessionBuilder {
        SessionBuilder::new(provider)
    }

    /// Connects and begins. On `Ok` the start hook has returned, and
    /// [`EventKind::SessionStarted`] was told. After `Err` nothing runs and the session can be
    /// started again. Needs a tokio runtime. Dropping the future stops the session.
    ///
    /// The provider is told of `config`'s tools and, after them and sorted by name, of the
    /// registry's. Calls to the first are for the host to answer:
    /// [`AgentSession::send_tool_response`].
    ///
    /// With an agent linked its session is opened first, and the provider is told its instructions
    /// (before those of `config`) and the conversation so far.
    pub async fn start(&self, config: LiveConfig, idle: IdleConfig) -> Result<(), StartError> {
        if self.shared.is_running() {
            return Err(StartError::AlreadyActive(self.state()));
        }
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|_| StartError::InvalidConfig("a tokio runtime is needed".into()))?;
        let opened = self.open_agent().await?;
        let mut live = config;
        if let Some(opened) = &opened {
            let own = live.instructions.take();
            let all = [Some(opened.instructions.clone()), own].into_iter().flatten();
            let all: Vec<_> = all.filter(|text| !text.trim().is_empty()).collect();
            live.instructions = Some(all.join("\n\n")).filter(|all| !all.is_empty());
        }
        self.set_barge_in(&mut live)?;
        // What decides over tools does so over those of the provider's own, too.
        live.tools_ask |= self.shared.policy.is_some() || self.shared.hooks.is_some();
        // Guards judge words.
        live.policies.output_transcription |= self.shared.output_guard.is_some();
        live.policies.input_transcription |= self.shared.input_guard.is_some();
        let capabilities = Arc::new(self.check(&*self.shared.provider, &live)?);
        let fallbacks = self.check_fallbacks(&live)?;
        let (mut conversation, waiting) =
            opened.map(|opened| (opened.conversation, opened.waiting)).unzip();
        if let Some(conversation) = &mut conversation {
            conversation.look_for_handle(self.places(&live)).await;
        }
        let seed = conversation.as_ref().and_then(|it| it.seed());
        let executor = self.executor(&live.tools)?;
        let provider = &self.shared.provider;
        let model = provider.model(&live);
        self.shared.set_host_tools(&live.tools);
        live.tools = self.all_tools(&live.tools);
        let engine = EngineConfig {
            session_id: self.session_id(),
            provider: provider.name().into(),
            model,
            live,
            idle,
            limits: self.shared.limits.clone(),
            reconnect: self.shared.reconnect.clone(),
            barge_in: self.shared.barge_in.clone(),
            sink_format: None,
            first_generation: 1,
            seed,
            lifetime: LifetimeConfig {
                random: random(),
                takes_no_history: !capabilities.history,
                fallbacks,
            },
            linked: self.shared.link.as_ref().map(|link| Linked { detaches: link.detaches() }),
            output_guard: self.shared.output_guard.as_ref().map(|guard| guard.rules.clone()),
            input_guard: self.shared.input_guard.as_ref().map(|guard| guard.rules.clone()),
        };
        let recording = self.new_recording().await?;
        let (started, outcome) = oneshot::channel();
        let (inbox, sink) = match self.shared.claim(capabilities.clone()) {
            Ok(claimed) => claimed,
            Err(error) => {
                if let Some(NewFile { path, .. }) = recording {
                    // Of a session that does not begin there is nothing to keep.
                    let _ = std::fs::remove_file(path);
                }
                return Err(error);
            }
        };
        self.shared.set_recording_file(recording.as_ref().map(|file| file.path.clone()));
        let shared = self.shared.clone();
        let journal = conversation.map(|conversation| conversation.journal(&capabilities));
        let own = Speaking { agent: None, executor: Arc::new(executor.clone()) };
        let desk = waiting.flatten().map(|waiting| Desk::open(waiting, own, &shared));
        shared.set_desk(desk.clone());
        let start = Start {
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
        };
        runtime.spawn(Driver::new(start).run());
        let mut unfinished = StopOnDrop::new(&self.shared);
        let result = outcome.await.unwrap_or(Err(StartError::Stopped));
        unfinished.disarm();
        result
    }

    /// Records every run that starts from now on, each into a file of its own: see
    /// [`recording`]. A folder alone means a recording without samples.
    pub fn record(&self, recording: impl Into<Recording>) {
        self.shared.record(Some(recording.into()));
    }

    /// Records no run that starts from now on. Default.
    pub fn record_nothing(&self) {
        self.shared.record(None);
    }

    /// The file of the present run, or of the last one, where that is recorded. It is complete once
    /// the session has ended.
    pub fn recording_file(&self) -> Option<PathBuf> {
        self.shared.recording_file()
    }

    /// Signals the end; safe anywhere, hooks and tools included.
    pub fn stop(&self) {
        self.shared.stop(EndReason::Stopped, None);
    }

    /// Stops and waits: as long as it takes for work that is left behind
    /// ([`OnHangup::Detach`]), else at most `within` for tools, then at most [`SessionLimits::close`] each for
    /// the connection and the hooks. Idempotent; inside the session's own hooks it signals and
    /// returns at once, and the body of a tool that waits here is cancelled by the end it asked
    /// for. On `Err` the session is over all the same.
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        if !self.shared.is_running() {
            return Ok(());
        }
        self.shared.stop(EndReason::Stopped, Some(within));
        if self.is_inside() {
            return Ok(());
        }
        let run = self.shared.wait_for_end().await;
        let detached = run.record.map(|record| record.detached_tools).unwrap_or_default();
        if !detached.is_empty() {
            let names = detached.iter().map(ToString::to_string).collect();
            return Err(ShutdownError::ToolsRunning(names));
        }
        if run.close_timed_out { Err(ShutdownError::CloseTimedOut) } else { Ok(()) }
    }

    /// Waits for the end. `None` when the session was never started, or inside its own hooks. (The
    /// body of a tool that waits here is cancelled by the end.)
    pub async fn ended(&self) -> Option<EndRecord> {
        if self.is_inside() {
            return None;
        }
        self.shared.wait_for_end().await.record
    }

    /// The id, constant over restarts. A session that resumes a snapshot has the id of the snapshot's
    /// session once it was started.
    pub fn session_id(&self) -> Arc<str> {
        self.shared.session_id()
    }

    /// The tools.
    pub fn registry(&self) -> Arc<ToolRegistry> {
        self.shared.registry.clone()
    }

    /// The memory, with raw keys.
    pub fn memory(&self) -> Arc<dyn Memory> {
        self.shared.memory.clone()
    }

    /// The memory as hooks, policies and tools see it: [`SessionBuilder::memory_scope`].
    pub fn scoped_memory(&self) -> Arc<dyn Memory> {
        self.shared.scoped_memory()
    }

    /// Deletes all that the hooks, policies and tools of this session, or of its caller where the
    /// memory is theirs, have in the memory. Returns how many keys there were.
    pub async fn forget(&self) -> Result<u64, MemoryError> {
        self.shared.scoped_memory().forget("").await
    }

    /// The state now.
    pub fn state(&self) -> SessionState {
        self.shared.state()
    }

    /// The name of the session's own provider, whichever it is connected with.
    pub fn provider_name(&self) -> &str {
        self.shared.provider.name()
    }

    /// Counters so far, of this run or the last.
    pub fn stats(&self) -> SessionStats {
        self.shared.stats()
    }

    /// What the connection can do; before the first connection of a run what is known of it.
    /// `None` before the first start.
    pub fn capabilities(&self) -> Option<Arc<Capabilities>> {
        self.shared.capabilities()
    }

    /// All events from here on. Bounded: a consumer that lags loses the oldest and is told how
    /// many.
    pub fn events(&self) -> EventStream {
        EventStream::new(self.shared.events.subscribe())
    }

    /// A handle that does not keep the session running; for tools and hooks that hold on to it.
    pub fn downgrade(&self) -> WeakAgentSession {
        WeakAgentSession { shared: Arc::downgrade(&self.shared) }
    }

    /// The user's audio in any PCM rate or G.711; converted to what the provider takes. Never
    /// waits: the oldest queued audio is dropped and counted when the wire is slow.
    pub fn send_audio(&self, frame: AudioFrame) -> Result<(), SendError> {
        check_frame(&frame)?;
        self.send(HostCommand::Audio(frame))
    }

    /// The user's audio ends for now. With manual turns, or none, this ends the user's turn.
    pub fn end_audio(&self) -> Result<(), SendError> {
        self.send(HostCommand::EndAudio)
    }

    /// Forgets the user's audio that was not yet taken as a turn.
    pub fn clear_audio(&self) -> Result<(), SendError> {
        self.send_able(HostCommand::ClearAudio, &LiveCommand::ClearAudio)
    }

    /// A user's turn as text. While a reply is under way it waits for its end. It is told as a user
    /// message. While a call waits for the user's confirmation, it is the answer to that.
    pub fn send_text(&self, text: impl Into<String>) -> Result<(), SendError> {
        let text = not_blank(text.into())?;
        let command = LiveCommand::Text { text: String::new(), reply: true };
        self.send_able(HostCommand::Text(text), &command)
    }

    /// An image as part of the user's turn.
    pub fn send_image(
        &self,
        media_type: impl Into<Arc<str>>,
        data: Bytes,
    ) -> Result<(), SendError> {
        let media_type = media_type.into();
        if data.is_empty() || media_type.is_empty() {
            return Err(SendError::Invalid("an image needs a media type and data".into()));
        }
        let command = LiveCommand::Image { media_type: media_type.clone(), data: Bytes::new() };
        self.send_able(HostCommand::Image { media_type, data }, &command)
    }

    /// Manual turns: the user begins.
    pub fn activity_start(&self) -> Result<(), SendError> {
        self.send_able(HostCommand::ActivityStart, &LiveCommand::ActivityStart)
    }

    /// Manual turns: the user stops.
    pub fn activity_end(&self) -> Result<(), SendError> {
        self.send_able(HostCommand::ActivityEnd, &LiveCommand::ActivityEnd)
    }

    /// Stops the agent's reply, as the user's voice would. Without a reply it does nothing.
    pub fn interrupt(&self) -> Result<(), SendError> {
        self.send(HostCommand::Interrupt)
    }

    /// [`AgentSession::interrupt`], unless what the agent says is protected
    /// ([`SayOptions::protected`]): for keys that a caller presses.
    pub fn cut_in(&self) -> Result<(), SendError> {
        self.send(HostCommand::CutIn)
    }

    /// Has the agent speak this text after the current reply.
    pub fn say(&self, text: impl Into<String>) -> Result<(), SendError> {
        let text = not_blank(text.into())?;
        let command = LiveCommand::Say { request: 0, text: String::new() };
        let options = SayOptions::default();
        self.send_able(HostCommand::Say { text, options, request: None }, &command)
    }

    /// [`AgentSession::say`] with options. How it ends is told once by an
    /// [`EventKind::ReplyRequest`] of the number that is given here.
    ///
    /// Speech that is protected and whose user's audio is kept needs a provider that does not stop
    /// its replies by itself: any [`SessionBuilder::barge_in`] but [`BargeIn::Immediate`].
    pub fn say_with(&self, text: impl Into<String>, options: SayOptions) -> Result<u64, SendError> {
        let text = not_blank(text.into())?;
        let wire = LiveCommand::Say { request: 0, text: String::new() };
        self.send_numbered(
            options,
            |capabilities| capabilities.check(&wire),
            |request| HostCommand::Say { text, options, request },
        )
    }

    /// Plays host audio (a chime) after what is queued.
    pub fn play(&self, frame: AudioFrame) -> Result<(), SendError> {
        check_frame(&frame)?;
        if frame.is_empty() {
            return Ok(());
        }
        self.send(HostCommand::Play { frame, options: SayOptions::default(), request: None })
    }

    /// [`AgentSession::play`] with options; for these see [`AgentSession::say_with`].
    pub fn play_with(&self, frame: AudioFrame, options: SayOptions) -> Result<(), SendError> {
        check_frame(&frame)?;
        if frame.is_empty() {
            return Ok(());
        }
        let command = HostCommand::Play { frame, options, request: None };
        self.shared.send(command, |capabilities| can_protect(options, capabilities))
    }

    /// Whether the agent's voice is removed from the user's audio by now, as whoever cancels the echo
    /// reports. See [`SpeechJudge::echo_guard`].
    pub fn set_echo_cancelled(&self, cancelled: bool) -> Result<(), SendError> {
        self.send(HostCommand::EchoCancelled(cancelled))
    }

    /// The output of a call that the host answers itself, or another one for a call whose output the
    /// provider did not take. One with `will_continue` `Some(true)` is
    /// sent and more may follow. For a call that does not wait an [`EventKind::Error`] of the kind
    /// `tool` is told.
    ///
    /// An output with more than [`Capabilities::tool_output_bytes`] is cut and marked as that of a tool
    /// is; [`AgentSession::whole_output`] gives all of it.
    pub fn send_tool_response(&self, mut response: ToolResponse) -> Result<(), SendError> {
        if let Some(cut) = cut_output(&response.response, self.shared.max_tool_output()) {
            let whole = std::mem::replace(&mut response.response, cut);
            self.shared.whole_outputs.keep(&response.id, whole.into());
        }
        self.send(HostCommand::ToolResponse(response))
    }

    /// All of an output that was cut because it was too large for the model
    /// ([`EventKind::ToolResult`] says so); `None` once newer ones took its place.
    pub fn whole_output(&self, call_id: &str) -> Option<Arc<serde_json::Value>> {
        self.shared.whole_outputs.of(call_id)
    }

    /// Cancels an open call of this id. It still has its one output.
    pub fn cancel_tool(&self, id: impl Into<Arc<str>>) -> Result<(), SendError> {
        self.send(HostCommand::CancelTool { id: id.into() })
    }

    /// Replaces the instructions of the session's own agent, for this connection and those that replace
    /// it. While another agent has the conversation they wait until it is handed back.
    pub fn update_instructions(&self, instructions: impl Into<String>) -> Result<(), SendError> {
        let command = LiveCommand::UpdateInstructions(String::new());
        self.send_able(HostCommand::UpdateInstructions(instructions.into()), &command)
    }

    /// Declares the registry's tools again, with these of the host's beside them: to the session's own
    /// agent, and so once the conversation is handed back where another has it.
    pub fn update_tools(&self, host_tools: Vec<ToolDefinition>) -> Result<(), SendError> {
        self.executor(&host_tools).map_err(|error| SendError::Invalid(error.to_string()))?;
        let all: Arc<[ToolDefinition]> = self.all_tools(&host_tools).into();
        let command = LiveCommand::UpdateTools(all.clone());
        self.shared.set_host_tools(&host_tools);
        self.send_able(HostCommand::UpdateTools { all, hosts: host_tools }, &command)
    }

    /// Replaces the connection by a new one that is told the conversation so far, as after a loss; for
    /// hosts that find that the provider does no good any more. What it is at work on ends.
    pub fn reconnect(&self) -> Result<(), SendError> {
        self.send(HostCommand::Reconnect)
    }

    /// Goes to the next step of the workflow. Without one, and after its last step, nothing happens.
    pub fn advance_workflow_step(&self) -> Result<(), SendError> {
        self.send(HostCommand::AdvanceWorkflow)
    }

    /// Replaces the idle timers. The silence so far counts.
    pub fn set_idle(&self, idle: IdleConfig) -> Result<(), SendError> {
        self.send(HostCommand::SetIdle(idle))
    }

    /// Lets the model speak about progress of the host's own work, if the session is listening and
    /// [`Callbacks::on_host_prompt`] does not veto. Whether it was sent. Inside one of the session's
    /// own hooks it does not wait: `true` is that it was asked for.
    pub async fn send_agent_progress(&self, text: impl Into<String>) -> Result<bool, SendError> {
        let text = text.into();
        self.prompt(|token| HostCommand::Progress { token, text }).await
    }

    /// Gives the model output that must not be trusted (a web page, a log), framed so that nothing
    /// in it passes for an instruction; otherwise like [`AgentSession::send_agent_progress`].
    /// `source` (64 characters) says where it is from, `lead` (200) what to do with it; of `output`
    /// 2,000 characters are used.
    pub async fn send_untrusted_tool_output(
        &self,
        source: &str,
        lead: &str,
        output: &str,
    ) -> Result<bool, SendError> {
        let mut nonce = [0u8; 8];
        getrandom::fill(&mut nonce)
            .map_err(|error| SendError::Invalid(format!("no randomness: {error}")))?;
        let text = frame_untrusted(u64::from_le_bytes(nonce), source, lead, output);
        self.prompt(|token| HostCommand::ToolOutput { token, text }).await
    }

    /// The file of a run that starts, where it is to be recorded.
    async fn new_recording(&self) -> Result<Option<NewFile>, StartError> {
        let Some(recording) = self.shared.recording() else { return Ok(None) };
        let session_id = self.session_id();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_ms = since_1970.unwrap_or_default().as_millis() as u64;
        let created =
            tokio::task::spawn_blocking(move || recording.create(&session_id, unix_ms)).await;
        match created {
            Ok(Ok(file)) => Ok(Some(file)),
            Ok(Err(error)) => Err(StartError::Recording(error.to_string())),
            Err(error) => Err(StartError::Recording(error.to_string())),
        }
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        let shared = Shared::new(parts);
        Self { _alive: Some(Arc::new(StopOnDrop::new(&shared))), shared }
    }

    /// A handle that does not keep the session running.
    pub(crate) fn inner(shared: Arc<Shared>) -> Self {
        Self { shared, _alive: None }
    }

    async fn prompt(&self, command: impl FnOnce(u64) -> HostCommand) -> Result<bool, SendError> {
        let (token, answer) = self.shared.await_answer();
        let sent = self.send(command(token));
        if sent.is_err() || self.is_inside() {
            self.shared.answer(token, false);
            return sent.map(|()| true);
        }
        Ok(answer.await.unwrap_or(false))
    }

    /// Whether the caller is one of this session's own hooks, or the body of one of its tools,
    /// which runs on a task of its own.
    fn is_inside(&self) -> bool {
        inside::is_inside(self.shared.mark())
            || antiphon_agent::current_session().is_some_and(|id| id == self.session_id())
    }

    fn send(&self, command: HostCommand) -> Result<(), SendError> {
        self.shared.send(command, |_| Ok(()))
    }

    fn send_able(&self, command: HostCommand, wire: &LiveCommand) -> Result<(), SendError> {
        self.shared.send(command, |capabilities| capabilities.check(wire))
    }

    fn send_numbered(
        &self,
        options: SayOptions,
        able: impl FnOnce(&Capabilities) -> Result<(), &'static str>,
        command: impl FnOnce(Option<u64>) -> HostCommand,
    ) -> Result<u64, SendError> {
        let number = self.shared.new_number();
        self.shared.send(command(Some(number)), |capabilities| {
            able(capabilities)?;
            can_protect(options, capabilities)
        })?;
        Ok(number)
    }

    /// Has the provider leave to the session what its barge-in policy decides.
    fn set_barge_in(&self, config: &mut LiveConfig) -> Result<(), StartError> {
        let activity = &mut config.policies.activity;
        match &self.shared.barge_in {
            BargeIn::Immediate => {}
            BargeIn::Never { .. } => activity.handling = ActivityHandling::NoInterruption,
            BargeIn::Judged(judge) => {
                judge.check().map_err(StartError::InvalidConfig)?;
                if activity.handling == ActivityHandling::NoInterruption {
                    let what = "speech cannot be judged where it never interrupts";
                    return Err(StartError::InvalidConfig(what.into()));
                }
                activity.handling = ActivityHandling::NoInterruption;
                activity.session_answers = config.voice_activity == VoiceActivity::Auto;
            }
        }
        Ok(())
    }

    /// Refuses a barge-in policy that cannot be kept.
    fn check_barge_in(
        &self,
        config: &LiveConfig,
        capabilities: &Capabilities,
    ) -> Result<(), &'static str> {
        let refuse = |is: bool, what| if is { Err(what) } else { Ok(()) };
        let judge = match &self.shared.barge_in {
            BargeIn::Immediate => return Ok(()),
            BargeIn::Never { .. } => None,
            BargeIn::Judged(judge) => Some(judge),
        };
        refuse(capabilities.interrupts, "the provider stops its replies by itself")?;
        let Some(judge) = judge else { return Ok(()) };
        refuse(!capabilities.cancel_reply, "the provider cannot stop a reply that was judged")?;
        if config.voice_activity != VoiceActivity::Auto {
            return Ok(());
        }
        refuse(
            !capabilities.session_answers || !capabilities.create_reply,
            "the provider answers by itself, so that speech cannot be judged",
        )?;
        let transcripts = capabilities.input_transcripts;
        let by_words = judge.min_words > 0 || capabilities.answers_words;
        refuse(by_words && !transcripts, "words cannot be judged without input transcripts")?;
        refuse(judge.pause && !self.shared.has_sink(), "without a sink nothing can be paused")
    }

    /// Opens the session of the agent that is linked.
    async fn open_agent(&self) -> Result<Option<Opened>, StartError> {
        let Some(link) = &self.shared.link else { return Ok(None) };
        let caller = called_by(self.shared.caller.as_ref());
        let opening = Opening { session_id: self.session_id(), caller };
        let opened = link.open(opening).await.map_err(StartError::Agent)?;
        if self.shared.is_running() {
            return Err(StartError::AlreadyActive(self.state()));
        }
        self.shared.set_session_id(opened.session_id.clone());
        Ok(Some(opened))
    }

    /// What the provider could do with this configuration; refuses what it cannot.
    fn check(
        &self,
        provider: &dyn LiveProvider,
        config: &LiveConfig,
    ) -> Result<Capabilities, StartError> {
        let invalid = |what: &str| Err(StartError::InvalidConfig(what.into()));
        let capabilities = provider.capabilities(config).map_err(|error| match error {
            LiveError::InvalidConfig(reason) => StartError::InvalidConfig(reason),
            other => StartError::Connect(other),
        })?;
        let turns = config.voice_activity;
        if turns == VoiceActivity::Manual && !capabilities.manual_activity {
            return invalid("the provider cannot take turns by hand");
        }
        if turns == VoiceActivity::Auto && !capabilities.voice_activity {
            return invalid("the provider cannot hear when the user has spoken");
        }
        let has_tools = !config.tools.is_empty() || !self.shared.registry.is_empty();
        if has_tools && !capabilities.tools {
            return invalid("the provider cannot take tools");
        }
        if let Err(what) = self.check_barge_in(config, &capabilities) {
            return invalid(what);
        }
        if let Err(what) = self.check_guards(&capabilities) {
            return invalid(what);
        }
        if !capabilities.unsupported_options.is_empty() {
            let options = &capabilities.unsupported_options;
            tracing::debug!(?options, "the provider does not know these options");
        }
        Ok(capabilities)
    }

    /// Whom the session falls back on. Refuses one that cannot do what the session needs.
    /// Guards judge words that the provider has to give.
    fn check_guards(&self, capabilities: &Capabilities) -> Result<(), &'static str> {
        let held = self
            .shared
            .output_guard
            .as_ref()
            .is_some_and(|guard| guard.rules.without_transcript != WithoutTranscript::Release);
        if held && capabilities.output_words == OutputWords::None {
            return Err("the provider does not tell the agent's words, which a guard is to judge");
        }
        let waits = self.shared.input_guard.as_ref().is_some_and(|guard| !guard.rules.runs_unheard);
        if waits && !capabilities.input_transcripts {
            return Err("the provider does not tell the user's words, which a guard is to judge");
        }
        Ok(())
    }

    fn check_fallbacks(&self, config: &LiveConfig) -> Result<Vec<NamedProvider>, StartError> {
        let named = |candidate: &Candidate| {
            let (provider, config) = (&candidate.provider, candidate.config(config));
            let name: Arc<str> = provider.name().into();
            match self.check(&**provider, &config) {
                Ok(can) => Ok(NamedProvider {
                    provider: name,
                    model: provider.model(&config),
                    takes_no_history: !can.history,
                }),
                Err(error) => {
                    let what = format!("the fallback {name} cannot be used: {error}");
                    Err(StartError::InvalidConfig(what))
                }
            }
        };
        self.shared.fallbacks.iter().map(named).collect()
    }

    /// Whom a run may be connected with: the session's own provider, and those that it falls back on.
    fn places(&self, config: &LiveConfig) -> Vec<Place> {
        let own = Candidate::own(self.shared.provider.clone());
        let all = std::iter::once(&own).chain(&self.shared.fallbacks);
        let place = |candidate: &Candidate| {
            let (provider, config) = (&candidate.provider, candidate.config(config));
            Place {
                provider: provider.name().into(),
                model: provider.model(&config),
                account: provider.account(&config),
            }
        };
        all.map(place).collect()
    }

    /// The executor of a run. Refuses tools of the host that are invalid or have a name twice.
    fn executor(&self, host_tools: &[ToolDefinition]) -> Result<ToolExecutor, StartError> {
        let shared = &self.shared;
        self.executor_over(shared.registry.clone(), shared.policy.clone(), host_tools)
    }

    /// The executor over these tools and this policy.
    fn executor_over(
        &self,
        registry: Arc<ToolRegistry>,
        policy: Option<Arc<dyn Authorizer>>,
        host_tools: &[ToolDefinition],
    ) -> Result<ToolExecutor, StartError> {
        let shared = &self.shared;
        // Where nobody could refuse a call, none waits to be judged.
        let judged = policy.is_some() || shared.hooks.is_some();
        let authorizer = judged.then(|| -> Arc<dyn Authorizer> {
            Arc::new(PolicyThenHook {
                policy: policy.clone(),
                hooks: shared.hooks.clone(),
                context: shared.context(),
                mark: shared.mark(),
                questions: Default::default(),
            })
        });
        let mut limits = ExecutorLimits::default();
        limits.authorize_deadline = shared.limits.authorize_deadline;
        limits.max_concurrent = shared.limits.tools;
        let executor = ToolExecutor::new(registry, authorizer).limits(limits);
        executor
            .set_host_tools(host_tools)
            .map_err(|error| StartError::InvalidConfig(error.to_string()))?;
        Ok(executor)
    }

    /// The host's tools, then the registry's by name.
    fn all_tools(&self, host_tools: &[ToolDefinition]) -> Vec<ToolDefinition> {
        let names: HashSet<_> = host_tools.iter().map(|tool| tool.name.clone()).collect();
        let registered = self.shared.registry.definitions();
        let others = registered.into_iter().filter(|tool| !names.contains(&tool.name));
        host_tools.iter().cloned().chain(others).collect()
    }
}

impl fmt::Debug for AgentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSession")
            .field("session_id", &self.shared.session_id())
            .field("provider", &self.provider_name())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A handle that keeps a session neither running nor in memory. See [`AgentSession::downgrade`].
#[derive(Clone)]
pub struct WeakAgentSession {
    shared: std::sync::Weak<Shared>,
}

impl WeakAgentSession {
    /// The session, if it is still there. The handle does not keep it running.
    pub fn upgrade(&self) -> Option<AgentSession> {
        self.shared.upgrade().map(AgentSession::inner)
    }
}

impl fmt::Debug for WeakAgentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakAgentSession")
    }
}

/// Ends the session when whoever owned it is gone.
struct StopOnDrop(Option<Arc<Shared>>);

impl StopOnDrop {
    fn new(shared: &Arc<Shared>) -> Self {
        Self(Some(shared.clone()))
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.stop(EndReason::Cancelled, None);
        }
    }
}

/// Any number; without randomness always the same, which only makes waits equal.
fn random() -> u64 {
    let mut bytes = [0u8; 8];
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

fn not_blank(text: String) -> Result<String, SendError> {
    if text.trim().is_empty() {
        Err(SendError::Invalid("the text is blank".into()))
    } else {
        Ok(text)
    }
}

/// A provider that stops its replies by itself must not hear the user during protected speech.
fn can_protect(options: SayOptions, capabilities: &Capabilities) -> Result<(), &'static str> {
    if options.protected == Some(UserAudio::Keep) && capabilities.interrupts {
        return Err("go on speaking while it hears the user");
    }
    Ok(())
}

fn check_frame(frame: &AudioFrame) -> Result<(), SendError> {
    let rate = frame.format.sample_rate_hz();
    if !(8_000..=48_000).contains(&rate) {
        return Err(SendError::Invalid(format!("{rate} Hz is outside of 8,000 to 48,000")));
    }
    if !frame.data.len().is_multiple_of(frame.format.bytes_per_sample()) {
        return Err(SendError::Invalid("the frame ends within a sample".into()));
    }
    Ok(())
}
