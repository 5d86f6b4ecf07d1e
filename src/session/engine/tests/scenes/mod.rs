//! Scenes that are played by hand: an engine between a provider, a sink and a host that do what a
//! test says, one thing after the other.

mod bounds;
mod calls;
mod connections;
mod silent;
mod turns;

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_agent::{Executed, Outcome};
use antiphon_audio::{Generation, Played, PositionSource};
use antiphon_live::{
    Capabilities, LiveCommand, LiveConfig, LiveError, LiveEvent, ReplyId, ReplyOutcome, TextUpdate,
};
use antiphon_types::{
    AudioFormat, AudioFrame, JsonObject, ToolArguments, ToolCall, ToolCallRequest, ToolResponse,
};

use crate::session::{
    BargeIn, EndReason, EventKind, IdleConfig, ReconnectPolicy, SessionLimits,
    engine::{
        Decision, Engine, EngineConfig, HostCommand, Input, Manner, Output, Ticket, io::not_run,
    },
};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A scene; what is not said otherwise goes well.
struct Scene {
    engine: Engine,
    can: Capabilities,
    now: Instant,
    generation: Generation,
    /// What was heard of the audio that is cleared next.
    heard: Duration,
    /// Since they were last looked at.
    outputs: Vec<Output>,
}

impl Scene {
    /// A session that has begun, with a provider that can do much.
    fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// As [`Scene::new`], with something changed.
    fn with(edit: impl FnOnce(&mut EngineConfig, &mut Capabilities)) -> Self {
        let mut scene = Self::before(edit);
        scene.connect();
        scene.give(Input::StartHookDone);
        scene.outputs.clear();
        scene
    }

    /// A session that connects.
    fn before(edit: impl FnOnce(&mut EngineConfig, &mut Capabilities)) -> Self {
        let now = Instant::now();
        let format = AudioFormat::pcm16(24_000);
        let mut can = Capabilities::conversation(AudioFormat::pcm16(16_000), format);
        can.manual_activity = true;
        can.input_transcripts = true;
        let mut config = EngineConfig {
            session_id: "s".into(),
            provider: "p".into(),
            model: "m".into(),
            live: LiveConfig::new(),
            idle: IdleConfig::OFF,
            limits: SessionLimits::default(),
            reconnect: ReconnectPolicy::default(),
            barge_in: BargeIn::default(),
            sink_format: None,
            first_generation: 1,
            seed: None,
            lifetime: Default::default(),
            linked: None,
            output_guard: None,
            input_guard: None,
        };
        edit(&mut config, &mut can);
        let mut scene = Self {
            engine: Engine::new(config, now),
            can,
            now,
            generation: Generation(0),
            heard: Duration::ZERO,
            outputs: Vec::new(),
        };
        scene.drain();
        scene
    }

    /// The connection that is being made stands.
    fn connect(&mut self) -> &mut Self {
        let (epoch, capabilities) = (self.engine.epoch, Arc::new(self.can.clone()));
        self.give(Input::Connected { epoch, capabilities })
    }

    /// The connection breaks.
    fn lose(&mut self) -> &mut Self {
        let epoch = self.engine.epoch;
        let error = Some(LiveError::Transport("reset".into()));
        self.give(Input::Disconnected { epoch, error })
    }

    /// The connection breaks, and the next one stands.
    fn reconnect(&mut self) -> &mut Self {
        self.lose().wait(5 * SECOND).connect()
    }

    fn give(&mut self, input: Input) -> &mut Self {
        self.engine.handle(input, self.now);
        self.drain();
        self
    }

    fn host(&mut self, command: HostCommand) -> &mut Self {
        self.give(Input::Host(command))
    }

    fn event(&mut self, event: LiveEvent) -> &mut Self {
        let epoch = self.engine.epoch;
        self.give(Input::Provider { epoch, event })
    }

    fn stop(&mut self) -> &mut Self {
        self.give(Input::Stop { reason: EndReason::Stopped, within: None })
    }

    fn wait(&mut self, time: Duration) -> &mut Self {
        let until = self.now + time;
        while let Some(at) = self.engine.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
        self
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match &output {
                Output::Play { generation, .. } => self.generation = *generation,
                Output::ClearPlayback { next } => {
                    let played = Some(self.played(self.heard, false));
                    self.engine.handle(Input::Cleared { next: *next, played }, self.now);
                    self.generation = *next;
                }
                Output::Observe { ticket, executed, .. } => {
                    let (ticket, executed) = (*ticket, executed.clone());
                    let done = Input::ToolDone { ticket, executed, whole_bytes: None };
                    self.engine.handle(done, self.now);
                }
                _ => {}
            }
            self.outputs.push(output);
        }
    }

    fn played(&self, heard: Duration, complete: bool) -> Played {
        Played {
            generation: self.generation,
            samples: heard.as_millis() as u64 * 24,
            complete,
            at: self.now,
            source: PositionSource::DeviceClock,
        }
    }

    /// All that was handed over is heard.
    fn play_all(&mut self) -> &mut Self {
        let played = self.played(Duration::ZERO, true);
        self.give(Input::Played(played))
    }

    /// The user says this, and it is understood at once.
    fn user_says(&mut self, item: &str, text: &str) -> &mut Self {
        self.speaks().falls_silent().understood(item, text)
    }

    fn speaks(&mut self) -> &mut Self {
        self.event(LiveEvent::SpeechStarted { audio_start_ms: None })
    }

    fn falls_silent(&mut self) -> &mut Self {
        self.event(LiveEvent::SpeechStopped { audio_end_ms: None })
    }

    fn understood(&mut self, item: &str, text: &str) -> &mut Self {
        self.hears(item, TextUpdate::Final(Some(text.into())))
    }

    fn hears(&mut self, item: &str, text: TextUpdate) -> &mut Self {
        self.event(LiveEvent::InputTranscript { item: item.into(), text, speaker: None })
    }

    fn reply(&mut self, id: &str) -> &mut Self {
        self.event(LiveEvent::ReplyStarted { reply: id.into(), request: None })
    }

    fn reply_to(&mut self, id: &str, request: u64) -> &mut Self {
        self.event(LiveEvent::ReplyStarted { reply: id.into(), request: Some(request) })
    }

    fn words(&mut self, id: &str, text: &str) -> &mut Self {
        let text = TextUpdate::Delta(text.into());
        self.event(LiveEvent::OutputTranscript { reply: id.into(), item: id.into(), text })
    }

    fn audio(&mut self, id: &str, ms: usize) -> &mut Self {
        let frame = AudioFrame::from_pcm16(24_000, &vec![7; ms * 24]);
        let (reply, item) = (id.into(), id.into());
        self.event(LiveEvent::Audio { reply, item, content_index: 0, frame })
    }

    fn done(&mut self, id: &str) -> &mut Self {
        self.done_as(id, ReplyOutcome::Completed)
    }

    fn done_as(&mut self, id: &str, outcome: ReplyOutcome) -> &mut Self {
        self.event(LiveEvent::ReplyDone { reply: id.into(), outcome, usage: None })
    }

    /// A whole reply that is heard to its end.
    fn says(&mut self, id: &str, text: &str) -> &mut Self {
        self.reply(id).words(id, text).audio(id, 500).done(id).play_all()
    }

    /// The reply calls tools of these names, which are the ids of the calls as well.
    fn calls(&mut self, id: &str, names: &[&str]) -> &mut Self {
        let calls = names.iter().map(|name| ToolCallRequest {
            id: (*name).into(),
            name: (*name).into(),
            arguments: ToolArguments::Object(JsonObject::new()),
        });
        let reply = Some(ReplyId::from(id));
        let calls = calls.collect();
        self.event(LiveEvent::ToolCalls { reply, calls })
    }

    /// The policy says this of all calls that it was asked about.
    fn judge(&mut self, decide: impl Fn(ToolCall) -> Decision) -> &mut Self {
        while let Some((ticket, request)) = self.take(|output| match output {
            Output::Admit { ticket, request, .. } => Some((*ticket, request.clone())),
            _ => None,
        }) {
            let call = ToolCall { id: request.id, name: request.name, args: JsonObject::new() };
            self.give(Input::Admission { ticket, decision: decide(call) });
        }
        self
    }

    /// All calls that were asked about may run.
    fn allow(&mut self) -> &mut Self {
        self.judge(|call| Decision::Run { call, manner: Manner::default() })
    }

    /// As [`Scene::allow`], and the model does not wait for them.
    fn allow_beside(&mut self) -> &mut Self {
        let manner = Manner { non_blocking: true, ends_on_interruption: false };
        self.judge(|call| Decision::Run { call, manner })
    }

    /// The tool that began to run first has its output.
    fn tool_ends(&mut self, outcome: Outcome) -> &mut Self {
        let ticket = self.begun();
        self.ends(ticket, outcome)
    }

    /// The call that began to run first.
    fn begun(&mut self) -> Ticket {
        let begun = self.take(|output| match output {
            Output::Invoke { ticket, .. } => Some(*ticket),
            _ => None,
        });
        begun.expect("a tool that runs")
    }

    fn ends(&mut self, ticket: Ticket, outcome: Outcome) -> &mut Self {
        let request = self.engine.calls.find(ticket).map(|call| call.request.clone());
        let (id, name) = match request {
            Some(request) => (request.id, request.name),
            None => ("gone".into(), "gone".into()),
        };
        let output = JsonObject::from_iter([("found".to_owned(), 3.into())]);
        let executed: Executed = not_run(ToolResponse::new(id, name, output), outcome);
        let executed = executed.into();
        self.give(Input::ToolDone { ticket, executed, whole_bytes: None })
    }

    /// Takes the first output of which `of` makes something.
    fn take<T>(&mut self, of: impl Fn(&Output) -> Option<T>) -> Option<T> {
        let at = self.outputs.iter().position(|output| of(output).is_some())?;
        of(&self.outputs.remove(at))
    }

    /// Takes all outputs of which `of` makes something.
    fn take_all<T>(&mut self, of: impl Fn(&Output) -> Option<T>) -> Vec<T> {
        let (taken, rest): (Vec<_>, Vec<_>) =
            mem::take(&mut self.outputs).into_iter().partition(|output| of(output).is_some());
        self.outputs = rest;
        taken.iter().filter_map(of).collect()
    }

    /// What the provider was sent beside the user's audio since it was last looked at.
    fn sent(&mut self) -> Vec<LiveCommand> {
        self.take_all(|output| match output {
            Output::Send { command, .. } => Some(command.clone()),
            _ => None,
        })
    }

    /// The names of [`Scene::sent`].
    fn names(&mut self) -> Vec<&'static str> {
        self.sent().iter().map(LiveCommand::name).collect()
    }

    /// What the host was told since it was last looked at.
    fn told(&mut self) -> Vec<EventKind> {
        self.take_all(|output| match output {
            Output::Emit(event) => Some(event.kind.clone()),
            _ => None,
        })
    }

    /// What goes up with the user's audio.
    fn uplink(&mut self) -> Vec<LiveCommand> {
        std::iter::from_fn(|| self.engine.poll_uplink()).collect()
    }

    /// The connections that were asked for since it was last looked at.
    fn connects(&mut self) -> usize {
        let connect = |output: &Output| matches!(output, Output::Connect { .. }).then_some(());
        self.take_all(connect).len()
    }

    /// Why the session ended, if it did.
    fn end(&mut self) -> Option<EndReason> {
        self.take(|output| match output {
            Output::Ended { end } => Some(end.reason.clone()),
            _ => None,
        })
    }

    fn has(&self, is: impl Fn(&Output) -> bool) -> bool {
        self.outputs.iter().any(is)
    }
}

/// Twenty milliseconds of the user's audio.
fn frame(value: i16) -> AudioFrame {
    AudioFrame::from_pcm16(16_000, &[value; 320])
}
