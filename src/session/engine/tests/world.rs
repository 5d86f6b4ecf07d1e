//! Does for an engine what a driver does.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_agent::{AgentFinishReason, ModelResponseChunk, Outcome, Part, Role};
use antiphon_audio::{Generation, Played, PositionSource};
use antiphon_live::{
    ErrorInfo, LiveCommand, LiveConfig, LiveError, LiveEvent, ReplyId, ReplyOutcome, Resumption,
    TextUpdate, WordTime,
};
use antiphon_types::{
    AudioFormat, AudioFrame, JsonObject, ToolArguments, ToolCall, ToolCallRequest, ToolResponse,
};
use bytes::Bytes;

use super::{
    Fault, Invariants, Step,
    able::{BOUNDED, JUDGED, capabilities},
};
use crate::session::{
    BargeIn, EndReason, GuardDenial, GuardVerdict, IdleConfig, InputGuard, OutputGuard,
    ReconnectPolicy, SayOptions, SessionLimits, SpeechJudge, UserAudio, Words,
    engine::{
        Decision, EngineConfig, HandOff, HookTrouble, HostCommand, Input, MAX_GATED, Manner,
        Origin, Output, Persona, Ticket, io::not_run,
    },
    journal::{Committed, Linked},
    recording::RecordedEngine,
};

/// Does for an engine what a driver does, and has it watched.
pub(super) struct World {
    engine: RecordedEngine,
    watch: Invariants,
    fault: Fault,
    now: Instant,
    epoch: u32,
    connecting: Option<u32>,
    /// A connection that stands beside the one of `epoch`.
    beside: Option<u32>,
    to_judge: VecDeque<(Ticket, ToolCallRequest)>,
    running: Vec<(Ticket, ToolCallRequest)>,
    requests: HashMap<Ticket, ToolCallRequest>,
    prompts: VecDeque<u64>,
    last_request: Option<u64>,
    generation: Generation,
    next_call: u64,
    /// The reply that the provider is at work on.
    active: Option<ReplyId>,
    /// The last that was: what still comes of it is stale.
    last_done: Option<ReplyId>,
    asked_calls: Vec<Arc<str>>,
    able: u8,
    protects: Option<UserAudio>,
    reply_audio: Duration,
}

/// How long work goes on whose caller hung up.
const LEFT_WORK: Duration = Duration::from_secs(20);

fn pass(_: &Words<'_>) -> GuardVerdict {
    GuardVerdict::Pass
}

/// What a guard says of words, by their length alone.
fn judged(text: &str) -> GuardVerdict {
    match text.len() % 7 {
        0 => GuardVerdict::Deny(GuardDenial::new("seven")),
        1 => GuardVerdict::Hold { from: text.floor_char_boundary(text.len() / 2) },
        _ => GuardVerdict::Pass,
    }
}

impl World {
    /// A life with these abilities of the provider. `recorded`: [`World::script`] is asked for.
    pub(super) fn new(capabilities: u8, fault: Fault, recorded: bool) -> Self {
        let now = Instant::now();
        let judged = capabilities & JUDGED > 0;
        let barge_in = if judged {
            BargeIn::Judged(SpeechJudge::default().min_words(u32::from(capabilities & 1)))
        } else {
            BargeIn::default()
        };
        let mut limits = SessionLimits::default();
        if capabilities & BOUNDED > 0 {
            limits.max_length = Some(Duration::from_secs(120));
            limits.max_silence = Some(Duration::from_secs(40));
        }
        limits.detached = LEFT_WORK;
        let config = EngineConfig {
            session_id: "s".into(),
            provider: "p".into(),
            model: "m".into(),
            live: LiveConfig::new(),
            idle: IdleConfig::new(Some(Duration::from_secs(20)), Some(Duration::from_secs(60))),
            limits,
            reconnect: ReconnectPolicy::default(),
            barge_in,
            sink_format: None,
            first_generation: 1,
            seed: None,
            lifetime: Default::default(),
            linked: capabilities.is_multiple_of(3).then_some(Linked { detaches: true }),
            output_guard: capabilities.is_multiple_of(5).then(|| OutputGuard::new(pass).rules),
            input_guard: capabilities.is_multiple_of(7).then(|| InputGuard::new(pass).rules),
        };
        let reply_audio = config.limits.reply_audio;
        let mut world = Self {
            engine: if recorded {
                RecordedEngine::in_memory(config, now)
            } else {
                RecordedEngine::new(config, now, None)
            },
            watch: Invariants::default(),
            fault,
            now,
            epoch: 0,
            connecting: None,
            beside: None,
            to_judge: VecDeque::new(),
            running: Vec::new(),
            requests: HashMap::new(),
            prompts: VecDeque::new(),
            last_request: None,
            generation: Generation(0),
            next_call: 0,
            active: None,
            last_done: None,
            asked_calls: Vec::new(),
            able: capabilities,
            protects: judged.then_some(UserAudio::Keep),
            reply_audio,
        };
        world.drain();
        world.connect(capabilities);
        world.input(Input::StartHookDone);
        world
    }

    /// Whether there was a connection to be made.
    fn connect(&mut self, able: u8) -> bool {
        let Some(epoch) = self.connecting.take() else { return false };
        if self.watch.is_connected() {
            self.beside = Some(epoch);
        } else {
            self.uses(epoch);
        }
        self.input(Input::Connected { epoch, capabilities: Arc::new(capabilities(able)) });
        true
    }

    fn uses(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.active = None;
        self.last_done = None;
    }

    fn input(&mut self, input: Input) {
        self.give(input);
        self.drain();
        // What is due at once is not waited for.
        self.wait(Duration::ZERO);
    }

    fn give(&mut self, input: Input) {
        self.watch.input(&input);
        self.engine.handle(input, self.now);
    }

    fn event(&mut self, event: LiveEvent) {
        match &event {
            LiveEvent::ReplyStarted { reply, .. } => self.active = Some(reply.clone()),
            LiveEvent::ReplyDone { reply, .. } if self.active.as_ref() == Some(reply) => {
                self.last_done = self.active.take();
            }
            _ => {}
        }
        let epoch = self.epoch;
        self.input(Input::Provider { epoch, event });
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            self.fault.watch(&output, &self.engine, &mut self.watch);
            self.act(output);
        }
        let engine = &self.engine;
        let (calls, groups) = (engine.calls.iter().count(), engine.calls.groups());
        for (what, size, most) in [
            ("prompt outputs", engine.prompt_outputs.len(), 0),
            ("held outputs", engine.ordered_outputs.len(), MAX_GATED + 1),
            ("open calls", calls, 128),
            ("groups of calls", groups, 256),
            ("unsent outputs", engine.unsent_responses.len(), 256),
        ] {
            self.watch.check(size <= most, || format!("{size} {what}"));
        }
        // Host audio may wait beside a reply's.
        let unheard = engine.replies.unheard();
        let most = self.reply_audio + Duration::from_secs(60);
        self.watch.check(unheard <= most, || format!("{unheard:?} wait to be heard"));
        if engine.next_deadline().is_some() {
            let ended = self.watch.has_ended();
            self.watch.check(!ended, || "a deadline after the end".into());
        }
    }

    fn act(&mut self, output: Output) {
        match output {
            Output::Connect { request, .. } => self.connecting = Some(request.epoch),
            Output::Close { epoch } => {
                self.connecting.take_if(|connecting| *connecting == epoch);
                self.beside.take_if(|beside| *beside == epoch);
                if epoch == self.epoch
                    && let Some(beside) = self.beside.take()
                {
                    self.uses(beside);
                }
            }
            Output::Send {
                command: LiveCommand::Say { request, .. } | LiveCommand::CreateReply { request },
                ..
            } => self.last_request = Some(request),
            Output::Play { generation, .. } => self.generation = generation,
            Output::ClearPlayback { next } => {
                let played = Some(self.played(100, false));
                self.generation = next;
                self.give(Input::Cleared { next, played });
            }
            Output::Admit { ticket, request, .. } => {
                self.requests.insert(ticket, request.clone());
                self.to_judge.push_back((ticket, request));
            }
            Output::Invoke { ticket, .. } => {
                self.running.push((ticket, self.requests[&ticket].clone()));
            }
            Output::CancelTool { ticket } => self.end_tool(ticket, Outcome::Cancelled),
            Output::Observe { ticket, executed, .. } => {
                self.give(Input::ToolDone { ticket, executed, whole_bytes: None });
            }
            Output::HungUp { turn } => self.give(match turn % 2 {
                0 => Input::Detached { snapshot_id: "row".into() },
                _ => Input::NotDetached { why: "the disk is full".into() },
            }),
            Output::AskPrompt { prompt, .. } => self.prompts.push_back(prompt.id),
            Output::Guard { reply, check, text, .. } => {
                let (bytes, verdict) = (text.len(), judged(&text));
                self.give(Input::Guarded { reply, check, bytes, verdict });
            }
            Output::Screen { turn, text } => {
                self.give(Input::Screened { turn, verdict: judged(&text) });
            }
            _ => {}
        }
    }

    fn end_tool(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(at) = self.running.iter().position(|(running, _)| *running == ticket) else {
            return;
        };
        let (ticket, request) = self.running.remove(at);
        self.tool_done(ticket, request, outcome);
    }

    fn tool_done(&mut self, ticket: Ticket, request: ToolCallRequest, outcome: Outcome) {
        let response = ToolResponse::new(request.id, request.name, JsonObject::new());
        let executed = not_run(response, outcome);
        let executed = executed.into();
        self.give(Input::ToolDone { ticket, executed, whole_bytes: None });
    }

    fn played(&self, samples: u64, complete: bool) -> Played {
        Played {
            generation: self.generation,
            samples,
            complete,
            at: self.now,
            source: PositionSource::DeviceClock,
        }
    }

    /// A verdict comes; where none is due, one that is late.
    fn judge(&mut self, how: u8) -> bool {
        let Some((ticket, request)) = self.to_judge.pop_front().or_else(|| self.stale_call())
        else {
            return false;
        };
        let call = ToolCall {
            id: request.id.clone(),
            name: request.name.clone(),
            args: JsonObject::new(),
        };
        let decision = match how {
            0 => Decision::Refused(antiphon_agent::Refused {
                response: ToolResponse::error(request.id, request.name, "no"),
                outcome: Outcome::Denied,
                reason: "no".into(),
                args: None,
                until: None,
            }),
            1 => Decision::Confirm { read_back: "Really?".into() },
            2 => Decision::NoVerdict { reason: "late" },
            3 => Decision::Host { call },
            _ => {
                let manner = Manner { non_blocking: how == 4, ends_on_interruption: how == 5 };
                Decision::Run { call, manner }
            }
        };
        self.input(Input::Admission { ticket, decision });
        true
    }

    /// A call that the engine may have forgotten.
    fn stale_call(&self) -> Option<(Ticket, ToolCallRequest)> {
        let known = self.requests.iter().max_by_key(|(ticket, _)| **ticket);
        known.map(|(ticket, request)| (*ticket, request.clone()))
    }

    /// Takes a step. Whether there was one to take; what is broken, if anything is.
    pub(super) fn step(&mut self, step: &Step) -> Result<bool, String> {
        let taken = self.take(step);
        if !matches!(step, Step::Host(_)) {
            // Otherwise the wire is slow.
            while self.engine.poll_uplink().is_some() {}
        }
        match &self.watch.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(taken),
        }
    }

    fn take(&mut self, step: &Step) -> bool {
        match *step {
            Step::Speech(true) => self.event(LiveEvent::SpeechStarted { audio_start_ms: None }),
            Step::Speech(false) => {
                self.event(LiveEvent::SpeechStopped { audio_end_ms: None });
                // Some name what they heard before its words come.
                if self.next_call.is_multiple_of(2) {
                    let item = format!("u0-{}", self.next_call).as_str().into();
                    self.event(LiveEvent::InputCommitted { item });
                }
            }
            Step::Heard { item, text, done } => {
                let words = ["", "yes", "no", "what time is it"][usize::from(text)].to_owned();
                let text =
                    if done { TextUpdate::Final(Some(words)) } else { TextUpdate::Delta(words) };
                let item = format!("u{item}-{}", self.next_call).as_str().into();
                self.event(LiveEvent::InputTranscript { item, text, speaker: None });
            }
            Step::Start { reply, answers } => {
                // A provider keeps its contract (one reply at a time, ids that do not return), but
                // one that forgets to end a reply now and then.
                if self.active.is_some() && reply > 0 {
                    return false;
                }
                let reply = self.new_reply(reply);
                let request = self.last_request.take().filter(|_| answers);
                self.event(LiveEvent::ReplyStarted { reply, request });
            }
            Step::Words { done } => {
                let reply = self.some_reply();
                let text = if done {
                    TextUpdate::Final(None)
                } else {
                    TextUpdate::Delta("some words ".into())
                };
                let item = item_of(&reply);
                if self.next_call.is_multiple_of(3) {
                    let words = vec![WordTime::new("some", Duration::from_millis(300))];
                    let (reply, item) = (reply.clone(), item.clone());
                    self.event(LiveEvent::WordTimes { reply, item, words });
                }
                self.event(LiveEvent::OutputTranscript { reply, item, text });
            }
            Step::Voice { ms } => {
                let reply = self.some_reply();
                let frame = silence(usize::from(ms) * 48);
                let item = item_of(&reply);
                self.event(LiveEvent::Audio { reply, item, content_index: 0, frame });
            }
            Step::Calls { count } => {
                let calls: Vec<_> = (0..count).map(|_| self.new_call()).collect();
                let reply = self.active.clone();
                self.event(LiveEvent::ToolCalls { reply, calls });
            }
            Step::CallsBack(which) => {
                let ids = self.asked_calls.iter().rev().nth(usize::from(which)).cloned();
                self.event(LiveEvent::ToolCallsCancelled { ids: ids.into_iter().collect() });
            }
            Step::Done { outcome } => {
                let outcomes = [
                    ReplyOutcome::Completed,
                    ReplyOutcome::Cancelled,
                    ReplyOutcome::Interrupted,
                    ReplyOutcome::Incomplete,
                    ReplyOutcome::Failed,
                ];
                // Without an active one it is the end of one that ended already.
                let reply = self.active.clone().or_else(|| self.last_done.clone());
                let reply = reply.unwrap_or_else(|| "r-unknown".into());
                let outcome = outcomes[usize::from(outcome)];
                self.event(LiveEvent::ReplyDone { reply, outcome, usage: None });
            }
            Step::Interrupted(reply) => {
                let reply = reply.and(self.active.clone());
                self.event(LiveEvent::Interrupted { reply });
            }
            Step::Trouble(kind) => self.trouble(kind),
            Step::Host(kind) => self.host(kind),
            Step::Judge(how) => return self.judge(how),
            Step::ToolEnds(which) => {
                let which = usize::from(which) % self.running.len().max(1);
                match self.running.get(which) {
                    Some((ticket, _)) => self.end_tool(*ticket, Outcome::Success),
                    None => {
                        let Some((ticket, request)) = self.stale_call() else { return false };
                        // A verdict that is still due must not be overtaken.
                        if self.to_judge.iter().any(|(judged, _)| *judged == ticket) {
                            return false;
                        }
                        self.tool_done(ticket, request, Outcome::Success);
                    }
                }
                self.drain();
            }
            Step::Progress { says, gives } => {
                let running = self.running.first().map(|(ticket, request)| (*ticket, request));
                let stale = self.stale_call();
                let stale = stale.as_ref().map(|(ticket, request)| (*ticket, request));
                let Some((ticket, request)) = running.or(stale) else { return false };
                let mut parts = Vec::new();
                if says {
                    parts.push(Part::text("half done"));
                }
                if gives {
                    let (name, id) = (request.name.clone(), request.id.clone());
                    parts.push(Part::tool_response(name, Some(id), "half"));
                }
                let progress = ModelResponseChunk::new(Role::Tool, 0, parts).into();
                self.input(Input::ToolProgress { ticket, progress });
            }
            Step::Committed(written) => {
                let snapshot_id = written.then(|| "snapshot".into());
                let finish_reason = Some(AgentFinishReason::Stop);
                // One that must not be lost ends the session, which is tried now and then only.
                let ends_session = self.able == BOUNDED;
                let turn = self.engine.turn.number;
                self.input(Input::Committed(Box::new(Committed {
                    turn,
                    snapshot_id,
                    parent_id: None,
                    finish_reason,
                    error: (!written).then(|| "the disk is full".to_owned()),
                    ends_session,
                })));
            }
            Step::Over { ms } => {
                let reply = self.some_reply();
                let (item, frame) = (item_of(&reply), silence(500 * 48));
                self.event(LiveEvent::Audio { reply, item, content_index: 0, frame });
                self.event(LiveEvent::SpeechStarted { audio_start_ms: None });
                self.wait(Duration::from_millis(u64::from(ms)));
            }
            Step::Heed { prompt } => {
                // Without one that waits it is the answer to one that is over.
                let id = self.prompts.pop_front().unwrap_or_default();
                self.input(Input::PromptVerdict { id, allowed: prompt });
                self.connect(self.able | 63);
            }
            Step::Played { complete } => {
                let played = self.played(24_000, complete);
                self.input(Input::Played(played));
            }
            Step::Wait(ms) => self.wait(Duration::from_millis(u64::from(ms))),
        }
        true
    }

    fn new_reply(&mut self, number: u8) -> ReplyId {
        self.next_call += 1;
        format!("r{number}-{}", self.next_call).as_str().into()
    }

    /// The active reply, else what is left of the last, else one that was never announced.
    fn some_reply(&mut self) -> ReplyId {
        if let Some(reply) = self.active.clone().or_else(|| self.last_done.clone()) {
            return reply;
        }
        let reply = self.new_reply(9);
        self.active = Some(reply.clone());
        reply
    }

    fn new_call(&mut self) -> ToolCallRequest {
        self.next_call += 1;
        let id: Arc<str> = format!("c{}", self.next_call).as_str().into();
        self.asked_calls.push(id.clone());
        let arguments = ToolArguments::Object(JsonObject::new());
        ToolCallRequest { id, name: "tool".into(), arguments }
    }

    fn trouble(&mut self, kind: u8) {
        let epoch = self.epoch;
        match kind {
            0 => self.event(LiveEvent::Error(ErrorInfo::new("oops", "oops"))),
            1 => self.event(LiveEvent::GoingAway { time_left: None }),
            2 => {
                let error = Some(LiveError::Transport("reset".into()));
                self.active = None;
                self.last_done = None;
                self.input(Input::Disconnected { epoch, error });
            }
            3 => self.input(Input::SinkFailed { message: "gone".into() }),
            4 => {
                let error = LiveError::Transport("refused".into());
                // Without one to be made it is one that is given up already.
                let epoch = self.connecting.take().unwrap_or_default();
                self.input(Input::ConnectFailed { epoch, error });
            }
            5 => {
                let error = LiveError::InvalidCommand("no".into());
                let (command, origin) = ("create_reply", Origin::Asked);
                self.input(Input::Refused { epoch, command, origin, error });
            }
            6 => self.input(Input::HookTrouble { trouble: HookTrouble::Panicked { hook: "h" } }),
            7 => self.event(LiveEvent::Ignored { kind: "x".into() }),
            8 | 9 => {
                let handle = "h".to_owned().into();
                self.event(LiveEvent::Resumable(Resumption { handle }));
            }
            10 => self.event(LiveEvent::NotResumable),
            11 => {
                let time_left = Some(Duration::from_secs(30));
                self.event(LiveEvent::GoingAway { time_left });
            }
            12 => {
                // Lost with something on the way.
                let frame = HostCommand::Audio(silence(480));
                let commands = vec![frame, HostCommand::EndAudio];
                let lost = Duration::from_millis(u64::from(self.able) % 3);
                let unheld = vec![HostCommand::Audio(silence(480))];
                self.input(Input::Returned { epoch, commands, lost, unheld });
                self.trouble(2);
            }
            13 => self.input(Input::Host(HostCommand::Reconnect)),
            kind => {
                let persona = Persona {
                    instructions: Some("Be another.".into()),
                    tools: Vec::new(),
                    voice: (kind == 14).then(|| "v".into()),
                };
                let persona = self.next_call.is_multiple_of(2).then_some(persona);
                let to = persona.as_ref().map(|_| "a".into());
                let order = HandOff { number: self.next_call, to, persona, speaks: kind == 14 };
                self.input(Input::Host(HostCommand::HandOff(order)));
            }
        }
    }

    fn host(&mut self, kind: u8) {
        let frame = AudioFrame::from_pcm16(16_000, &[0; 320]);
        self.input(Input::Host(match kind {
            0 => HostCommand::Text("hello".into()),
            1 => {
                let (text, mut options) = ("hello".to_owned(), SayOptions::default());
                options.protected = self.protects;
                HostCommand::Say { text, options, request: Some(9) }
            }
            2 => HostCommand::Interrupt,
            3 => HostCommand::Play { frame, options: SayOptions::default(), request: None },
            4 => HostCommand::EndAudio,
            5 => HostCommand::Progress { token: 1, text: "half done".into() },
            6 => match self.asked_calls.last() {
                Some(id) => HostCommand::CancelTool { id: id.clone() },
                None => HostCommand::Audio(frame),
            },
            7 => match self.asked_calls.last() {
                Some(id) => HostCommand::ToolResponse(ToolResponse::new(
                    id.clone(),
                    "tool",
                    JsonObject::new(),
                )),
                None => HostCommand::Audio(frame),
            },
            8 => HostCommand::ActivityStart,
            9 => HostCommand::ActivityEnd,
            10 => HostCommand::SetIdle(IdleConfig::new(Some(Duration::from_secs(9)), None)),
            11 => HostCommand::UpdateInstructions("be kind".into()),
            12 => HostCommand::ToolOutput { token: 2, text: "a letter".into() },
            13 => HostCommand::ClearAudio,
            _ => HostCommand::Audio(frame),
        }));
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..10_000 {
            let Some(deadline) = self.engine.next_deadline().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(deadline);
            self.engine.handle_timeout(self.now);
            self.drain();
            let next = self.engine.next_deadline();
            let passes = next.is_none_or(|next| next > self.now);
            self.watch.check(passes, || "a deadline that does not pass".into());
            if !passes {
                return;
            }
        }
        self.watch.check(false, || "time does not go on".into());
    }

    pub(super) fn has_ended(&self) -> bool {
        self.watch.has_ended()
    }

    /// Ends the life, if it has not ended.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        if !self.watch.has_ended() {
            self.input(Input::Stop { reason: EndReason::Stopped, within: None });
            self.wait(LEFT_WORK + Duration::from_secs(10));
        }
        self.watch.finish();
        self.watch.broken.take().map_or(Ok(()), Err)
    }

    /// The life as a recording.
    pub(super) fn script(&mut self) -> String {
        self.engine.script()
    }
}

/// So many bytes of silence at 24 kHz, which cost nothing.
fn silence(bytes: usize) -> AudioFrame {
    static ZEROS: [u8; 3_000 * 48] = [0; 3_000 * 48];
    AudioFrame::new(AudioFormat::pcm16(24_000), Bytes::from_static(&ZEROS[..bytes]))
}

fn item_of(reply: &ReplyId) -> Arc<str> {
    format!("i-{reply}").as_str().into()
}
