//! What the tests have in common.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use antiphon::{
    agent::{Authorizer, CallContext, Outcome, Verdict},
    audio::{AudioFormat, AudioFrame},
    live::{LiveCommand, LiveConfig, LiveEvent, ReplyId, ReplyOutcome, TextUpdate},
    session::*,
    types::{JsonObject, ToolArguments, ToolCall, ToolCallRequest, ToolResponse},
};
use antiphon_testkit::{FarEnd, ScriptedProvider, Speaker, SpeakerControl, full_capabilities};
use async_trait::async_trait;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Samples of a millisecond of the scripted provider's voice.
pub const PER_MS: usize = 24;

/// A running session and everything around it.
pub struct Rig {
    pub provider: ScriptedProvider,
    pub session: AgentSession,
    pub far: FarEnd,
    pub speaker: SpeakerControl,
    pub events: EventStream,
}

/// A rig before it is started.
pub struct Setup {
    pub provider: ScriptedProvider,
    pub builder: SessionBuilder,
    pub config: LiveConfig,
    pub idle: IdleConfig,
    pub speaker: SpeakerControl,
}

impl Setup {
    pub fn new() -> Self {
        Self::over(ScriptedProvider::default())
    }

    /// With capabilities changed.
    pub fn able(edit: impl FnOnce(&mut antiphon::live::Capabilities)) -> Self {
        let mut capabilities = full_capabilities();
        edit(&mut capabilities);
        Self::over(ScriptedProvider::new(capabilities))
    }

    pub fn over(provider: ScriptedProvider) -> Self {
        let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
        Self {
            builder: AgentSession::builder(Arc::new(provider.clone())).sink(sink),
            provider,
            config: LiveConfig::new(),
            idle: IdleConfig::OFF,
            speaker,
        }
    }

    pub fn build(mut self, edit: impl FnOnce(SessionBuilder) -> SessionBuilder) -> Self {
        self.builder = edit(self.builder);
        self
    }

    pub fn config(mut self, edit: impl FnOnce(LiveConfig) -> LiveConfig) -> Self {
        self.config = edit(self.config);
        self
    }

    pub fn idle(mut self, remind: Option<u64>, stop: Option<u64>) -> Self {
        self.idle = IdleConfig::new(remind.map(Duration::from_secs), stop.map(Duration::from_secs));
        self
    }

    /// A session that is not started, and the rest.
    pub fn ready(self) -> (AgentSession, ScriptedProvider, LiveConfig, IdleConfig, SpeakerControl) {
        let session = self.builder.build().unwrap();
        (session, self.provider, self.config, self.idle, self.speaker)
    }

    pub async fn start(self) -> Rig {
        let (session, provider, config, idle, speaker) = self.ready();
        let events = session.events();
        session.start(config, idle).await.unwrap();
        let far = provider.far_end().await;
        Rig { provider, session, far, speaker, events }
    }
}

/// A session with nothing special.
pub async fn start() -> Rig {
    Setup::new().start().await
}

impl Rig {
    /// The events up to the first that `is` wanted; fails when it does not come within a virtual
    /// hour.
    pub async fn until(&mut self, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        until(&mut self.events, is).await
    }

    /// All events of what is under way, once nothing moves any more.
    pub async fn now(&mut self) -> Vec<EventKind> {
        now(&mut self.events).await
    }

    /// The events up to the end, and why.
    pub async fn end(&mut self) -> (Vec<EventKind>, EndReason) {
        let events = self.until(|kind| matches!(kind, EventKind::SessionEnded { .. })).await;
        match events.last() {
            Some(EventKind::SessionEnded { reason, .. }) => {
                let reason = reason.clone();
                (events, reason)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The configuration of the first connection.
    pub fn config(&self) -> LiveConfig {
        LiveConfig::clone(&self.provider.requests()[0].config)
    }

    pub fn emit(&self, event: LiveEvent) -> &Self {
        self.far.emit(event);
        self
    }

    /// The user says this, and the provider has understood.
    pub fn user_says(&self, item: &str, text: &str) -> &Self {
        self.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
            .emit(LiveEvent::SpeechStopped { audio_end_ms: None })
            .emit(heard(item, TextUpdate::Final(Some(text.into()))))
    }

    pub fn reply(&self, id: &str) -> &Self {
        self.emit(LiveEvent::ReplyStarted { reply: id.into(), request: None })
    }

    pub fn reply_to(&self, id: &str, request: u64) -> &Self {
        self.emit(LiveEvent::ReplyStarted { reply: id.into(), request: Some(request) })
    }

    pub fn words(&self, reply: &str, text: &str) -> &Self {
        self.emit(LiveEvent::OutputTranscript {
            reply: reply.into(),
            item: format!("{reply}-item").as_str().into(),
            text: TextUpdate::Delta(text.into()),
        })
    }

    pub fn audio(&self, reply: &str, ms: usize) -> &Self {
        self.emit(LiveEvent::Audio {
            reply: reply.into(),
            item: format!("{reply}-item").as_str().into(),
            content_index: 0,
            frame: AudioFrame::from_pcm16(24_000, &vec![7; ms * PER_MS]),
        })
    }

    pub fn done(&self, reply: &str) -> &Self {
        self.done_as(reply, ReplyOutcome::Completed)
    }

    pub fn done_as(&self, reply: &str, outcome: ReplyOutcome) -> &Self {
        self.emit(LiveEvent::ReplyDone { reply: reply.into(), outcome, usage: None })
    }

    /// A whole spoken reply.
    pub fn says(&self, reply: &str, text: &str, ms: usize) -> &Self {
        self.reply(reply).words(reply, text).audio(reply, ms).done(reply)
    }

    pub fn calls(&self, reply: &str, calls: &[(&str, &str, &str)]) -> &Self {
        let reply = Some(ReplyId::from(reply));
        let calls = calls.iter().map(|(id, name, args)| request(id, name, args)).collect();
        self.emit(LiveEvent::ToolCalls { reply, calls })
    }

    /// In this reply the provider asks whether it may run a tool of its own.
    pub fn asks(&self, reply: &str, id: &str, name: &str, args: &str) -> &Self {
        let (reply, call) = (Some(ReplyId::from(reply)), request(id, name, args));
        self.emit(LiveEvent::ToolPermission { reply, call })
    }

    /// A reply that is nothing but this call.
    pub fn calls_tool(&self, reply: &str, id: &str, name: &str, args: &str) -> &Self {
        self.reply(reply).calls(reply, &[(id, name, args)]).done(reply)
    }

    /// Lets everything that can happen now happen.
    pub async fn settle(&self) {
        tokio::time::sleep(MS).await;
    }

    /// Commands that are not audio, as far as they have come.
    pub async fn commands(&mut self) -> Vec<LiveCommand> {
        self.settle().await;
        self.far.drain_control()
    }

    /// The tool outputs among [`Rig::commands`].
    pub async fn outputs(&mut self) -> Vec<ToolResponse> {
        outputs(self.commands().await)
    }
}

pub fn outputs(commands: Vec<LiveCommand>) -> Vec<ToolResponse> {
    commands
        .into_iter()
        .filter_map(|command| match command {
            LiveCommand::ToolResponse(response) => Some(response),
            _ => None,
        })
        .collect()
}

pub async fn until(events: &mut EventStream, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
    let mut seen = Vec::new();
    loop {
        let next = tokio::time::timeout(3_600 * SECOND, events.next()).await;
        match next {
            Ok(Some(event)) => {
                let found = is(&event.kind);
                seen.push(event.kind);
                if found {
                    return seen;
                }
            }
            other => panic!("{other:?} after {seen:#?}"),
        }
    }
}

pub async fn now(events: &mut EventStream) -> Vec<EventKind> {
    let mut seen = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(MS, events.next()).await {
        seen.push(event.kind);
    }
    seen
}

pub fn heard(item: &str, text: TextUpdate) -> LiveEvent {
    LiveEvent::InputTranscript { item: item.into(), text, speaker: None }
}

pub fn request(id: &str, name: &str, args: &str) -> ToolCallRequest {
    ToolCallRequest {
        id: id.into(),
        name: name.into(),
        arguments: ToolArguments::Json(args.into()),
    }
}

/// The states among events.
pub fn states(events: &[EventKind]) -> Vec<SessionState> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::State { state } => Some(*state),
            _ => None,
        })
        .collect()
}

/// The outcome of each call among events.
pub fn outcomes(events: &[EventKind]) -> Vec<(String, Outcome)> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::ToolResult { id, outcome, .. } => Some((id.to_string(), *outcome)),
            _ => None,
        })
        .collect()
}

/// What was said, and whether it was cut off.
pub fn agent_messages(events: &[EventKind]) -> Vec<(String, bool)> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::AgentMessage { text, interrupted, .. } => Some((text.clone(), *interrupted)),
            _ => None,
        })
        .collect()
}

pub fn user_messages(events: &[EventKind]) -> Vec<String> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::UserMessage { text } => Some(text.clone()),
            _ => None,
        })
        .collect()
}

pub fn is_turn_finished(kind: &EventKind) -> bool {
    matches!(kind, EventKind::TurnFinished { .. })
}

/// Everything that hooks and callbacks were told, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, start: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(start)).count()
    }

    pub fn position(&self, start: &str) -> usize {
        let lines = self.lines();
        lines
            .iter()
            .position(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("no {start:?} in {lines:#?}"))
    }
}

/// Callbacks that write a log.
pub struct LoggingCallbacks(pub Log);

impl Callbacks for LoggingCallbacks {
    fn on_state_change(&self, state: SessionState) {
        self.0.add(format!("state {state}"));
    }
    fn on_audio(&self, frame: &AudioFrame) {
        self.0.add(format!("audio {}", frame.samples()));
    }
    fn on_text(&self, text: &str) {
        self.0.add(format!("text {text}"));
    }
    fn on_input_transcript(&self, text: &str, done: bool) {
        self.0.add(format!("input {text} {done}"));
    }
    fn on_output_transcript(&self, text: &str, done: bool) {
        self.0.add(format!("output {text} {done}"));
    }
    fn on_tool_call(&self, call: &ToolCall) {
        self.0.add(format!("raw call {}", call.id));
    }
    fn on_tool_call_cancellation(&self, ids: &[Arc<str>]) {
        self.0.add(format!("cancelled {}", ids.join(",")));
    }
    fn on_interrupted(&self) {
        self.0.add("interrupted");
    }
    fn on_error(&self, kind: &str, message: &str) {
        self.0.add(format!("error {kind} {message}"));
    }
    fn on_session_end(&self, reason: &EndReason) {
        self.0.add(format!("end callback {reason:?}"));
    }
}

/// Hooks that write a log.
pub struct LoggingHooks(pub Log);

#[async_trait]
impl LifecycleHooks for LoggingHooks {
    async fn on_session_start(&self, cx: &SessionContext) {
        self.0.add(format!("start {}", cx.session_id));
    }
    async fn on_user_message(&self, _: &SessionContext, text: &str) {
        self.0.add(format!("user {text}"));
    }
    fn authorize_tool_call(
        &self,
        _: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        self.0.add(format!("authorize {}", call.id));
        Ok(call.args.clone())
    }
    async fn on_tool_call(&self, _: &SessionContext, call: &ToolCall) {
        let args = serde_json::to_string(&call.args).unwrap();
        self.0.add(format!("call {} {args}", call.id));
    }
    async fn on_tool_result(&self, _: &SessionContext, call: &ToolCall, response: &ToolResponse) {
        let output = serde_json::to_string(&response.response).unwrap();
        self.0.add(format!("result {} {output}", call.id));
    }
    async fn on_agent_message(&self, _: &SessionContext, text: &str, interrupted: bool) {
        self.0.add(format!("agent {text} {interrupted}"));
    }
    async fn on_session_end(&self, _: &SessionContext, reason: &EndReason) {
        self.0.add(format!("end {reason:?}"));
    }
}

/// A policy from a closure over the call.
pub fn policy(decide: impl Fn(&ToolCall) -> Verdict + Send + Sync + 'static) -> impl Authorizer {
    move |cx: &CallContext, call: &ToolCall| match decide(call) {
        Verdict::Confirm { .. } if cx.confirmed => Verdict::Allow,
        verdict => verdict,
    }
}
