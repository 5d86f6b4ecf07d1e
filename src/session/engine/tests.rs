//! The engine against random inputs.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_agent::Outcome;
use antiphon_audio::{Generation, Played, PositionSource};
use antiphon_live::{
    Capabilities, ErrorInfo, LiveCommand, LiveConfig, LiveError, LiveEvent, ReplyId, ReplyOutcome,
    TextUpdate,
};
use antiphon_types::{
    AudioFormat, AudioFrame, JsonObject, ToolArguments, ToolCall, ToolCallRequest, ToolResponse,
};
use proptest::prelude::*;

use super::{io::not_run, *};
use crate::session::{BargeIn, SayOptions, SpeechJudge, UserAudio};

/// One step of a random life. Numbers choose among few replies, items and calls, so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Speech(bool),
    Heard { item: u8, text: u8, done: bool },
    Start { reply: u8, answers: bool },
    Words { done: bool },
    Voice { ms: u16 },
    Calls { count: u8 },
    CallsBack(u8),
    Done { outcome: u8 },
    Interrupted(Option<u8>),
    Trouble(u8),
    Host(u8),
    Judge(u8),
    ToolEnds(u8),
    Heed { prompt: bool },
    Played { complete: bool },
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<bool>().prop_map(Step::Speech),
        (0..4u8, 0..4u8, any::<bool>()).prop_map(|(item, text, done)| Step::Heard {
            item,
            text,
            done
        }),
        (0..6u8, any::<bool>()).prop_map(|(reply, answers)| Step::Start { reply, answers }),
        any::<bool>().prop_map(|done| Step::Words { done }),
        (0..3_000u16).prop_map(|ms| Step::Voice { ms }),
        (1..3u8).prop_map(|count| Step::Calls { count }),
        (0..8u8).prop_map(Step::CallsBack),
        (0..5u8).prop_map(|outcome| Step::Done { outcome }),
        proptest::option::of(0..6u8).prop_map(Step::Interrupted),
        (0..6u8).prop_map(Step::Trouble),
        (0..9u8).prop_map(Step::Host),
        (0..7u8).prop_map(Step::Judge),
        (0..8u8).prop_map(Step::ToolEnds),
        any::<bool>().prop_map(|prompt| Step::Heed { prompt }),
        any::<bool>().prop_map(|complete| Step::Played { complete }),
        (0..20_000u32).prop_map(Step::Wait),
    ]
}

/// Does for an engine what a driver does, and watches it.
struct World {
    engine: Engine,
    now: Instant,
    epoch: u32,
    connecting: Option<u32>,
    to_judge: VecDeque<(Ticket, ToolCallRequest)>,
    running: Vec<(Ticket, ToolCallRequest)>,
    requests: HashMap<Ticket, ToolCallRequest>,
    prompts: VecDeque<u64>,
    last_request: Option<u64>,
    generation: Generation,
    next_call: u64,
    /// What was asked for and neither begun nor given up, as the wire saw it.
    active: Option<ReplyId>,
    /// The last that was: what still comes of it is stale.
    last_done: Option<ReplyId>,
    outputs: HashMap<Arc<str>, usize>,
    asked_calls: Vec<Arc<str>>,
    state: Option<SessionState>,
    ends: usize,
    able: u8,
    protects: Option<UserAudio>,
    paused: bool,
}

/// Speech is judged.
const JUDGED: u8 = 64;
/// The session is bounded in time.
const BOUNDED: u8 = 128;

impl World {
    fn new(capabilities: u8) -> Self {
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
        };
        let mut world = Self {
            engine: Engine::new(config, now),
            now,
            epoch: 0,
            connecting: None,
            to_judge: VecDeque::new(),
            running: Vec::new(),
            requests: HashMap::new(),
            prompts: VecDeque::new(),
            last_request: None,
            generation: Generation(0),
            next_call: 0,
            active: None,
            last_done: None,
            outputs: HashMap::new(),
            asked_calls: Vec::new(),
            state: None,
            ends: 0,
            able: capabilities,
            protects: judged.then_some(UserAudio::Keep),
            paused: false,
        };
        world.drain();
        world.connect(capabilities);
        world.input(Input::StartHookDone);
        world
    }

    fn connect(&mut self, able: u8) {
        let Some(epoch) = self.connecting.take() else { return };
        let format = AudioFormat::pcm16(24_000);
        let mut can = Capabilities::audio_only(AudioFormat::pcm16(16_000), format);
        can.text_input = true;
        can.tools = true;
        can.cancel_reply = true;
        can.truncate = true;
        can.say = able & 1 > 0;
        can.create_reply = able & 2 > 0;
        can.interrupts = able & 4 > 0;
        can.tools_after_reply = able & 8 > 0;
        can.replies_after_tools = able & 16 > 0;
        can.input_transcripts = able & 32 > 0;
        can.session_answers = able & JUDGED > 0;
        can.interrupts &= able & JUDGED == 0;
        self.epoch = epoch;
        self.active = None;
        self.last_done = None;
        self.input(Input::Connected { epoch, capabilities: Arc::new(can) });
    }

    fn input(&mut self, input: Input) {
        self.engine.handle(input, self.now);
        self.drain();
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
            assert_eq!(self.ends, 0, "{output:?} after the end");
            self.act(output);
        }
        assert!(self.engine.prompt_outputs.is_empty());
        assert!(self.engine.ordered_outputs.len() <= MAX_GATED + 1);
        if let Some(deadline) = self.engine.next_deadline() {
            assert_eq!(self.ends, 0, "a deadline {deadline:?} after the end");
        }
    }

    fn act(&mut self, output: Output) {
        match output {
            Output::Connect { request } => self.connecting = Some(request.epoch),
            Output::Close { epoch } => {
                self.connecting.take_if(|connecting| *connecting == epoch);
            }
            Output::Send { command, .. } => match command {
                LiveCommand::Say { request, .. } | LiveCommand::CreateReply { request } => {
                    assert!(self.active_reply().is_none(), "asked for a reply beside another");
                    self.last_request = Some(request);
                }
                LiveCommand::Text { reply: true, .. } => {
                    assert!(self.active_reply().is_none(), "asked for a reply beside another");
                }
                _ => {}
            },
            Output::Play { generation, .. } => {
                assert!(generation >= self.generation, "audio of a generation that is over");
                self.generation = generation;
            }
            Output::PausePlayback => {
                assert!(!std::mem::replace(&mut self.paused, true), "paused twice");
            }
            Output::ResumePlayback => {
                assert!(std::mem::take(&mut self.paused), "goes on without a pause");
            }
            Output::ClearPlayback { next } => {
                self.paused = false;
                assert!(next > self.generation);
                let played = Some(self.played(100, false));
                self.generation = next;
                self.engine.handle(Input::Cleared { next, played }, self.now);
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
                self.engine
                    .handle(Input::ToolDone { ticket, executed, whole_bytes: None }, self.now);
            }
            Output::AskPrompt { prompt, .. } => self.prompts.push_back(prompt.id),
            Output::Emit(event) => self.see(event),
            Output::Ended { .. } => self.ends += 1,
            _ => {}
        }
    }

    /// The provider's reply, unless the engine gave it up.
    fn active_reply(&self) -> Option<&ReplyId> {
        self.active.as_ref().filter(|reply| !self.engine.replies.was_done(reply))
    }

    fn see(&mut self, event: SessionEvent) {
        match event.kind {
            EventKind::ToolResult { id, .. } => *self.outputs.entry(id).or_default() += 1,
            EventKind::State { state } => {
                assert_ne!(self.state, Some(state), "a state twice");
                self.state = Some(state);
            }
            _ => {}
        }
    }

    fn end_tool(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(at) = self.running.iter().position(|(running, _)| *running == ticket) else {
            return;
        };
        let (ticket, request) = self.running.remove(at);
        let response = ToolResponse::new(request.id, request.name, JsonObject::new());
        let executed = not_run(response, outcome);
        self.engine.handle(
            Input::ToolDone { ticket, executed: executed.into(), whole_bytes: None },
            self.now,
        );
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

    fn judge(&mut self, how: u8) {
        let Some((ticket, request)) = self.to_judge.pop_front() else { return };
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
            }),
            1 => Decision::Confirm { read_back: "Really?".into() },
            2 => Decision::NoVerdict { reason: "late" },
            3 => Decision::Host { call },
            _ => Decision::Run { call, manner: Manner::default() },
        };
        self.input(Input::Admission { ticket, decision });
    }

    fn step(&mut self, step: Step) {
        if self.ends > 0 {
            return;
        }
        match step {
            Step::Speech(true) => self.event(LiveEvent::SpeechStarted { audio_start_ms: None }),
            Step::Speech(false) => self.event(LiveEvent::SpeechStopped { audio_end_ms: None }),
            Step::Heard { item, text, done } => {
                let words = ["", "yes", "no", "what time is it"][usize::from(text)].to_owned();
                let text =
                    if done { TextUpdate::Final(Some(words)) } else { TextUpdate::Delta(words) };
                let item = format!("u{item}-{}", self.next_call).as_str().into();
                self.event(LiveEvent::InputTranscript { item, text, speaker: None });
            }
            Step::Start { reply, answers } => {
                // A provider keeps its contract: one reply at a time, ids that do not return.
                if self.active.is_none() {
                    self.next_call += 1;
                    let reply = format!("r{reply}-{}", self.next_call).as_str().into();
                    let request = self.last_request.take().filter(|_| answers);
                    self.event(LiveEvent::ReplyStarted { reply, request });
                }
            }
            Step::Words { done } => {
                let Some(reply) = self.active.clone().or_else(|| self.last_done.clone()) else {
                    return;
                };
                let text = if done {
                    TextUpdate::Final(None)
                } else {
                    TextUpdate::Delta("some words ".into())
                };
                self.event(LiveEvent::OutputTranscript { reply, item: "i".into(), text });
            }
            Step::Voice { ms } => {
                let Some(reply) = self.active.clone().or_else(|| self.last_done.clone()) else {
                    return;
                };
                let frame = AudioFrame::from_pcm16(24_000, &vec![0; usize::from(ms) * 24]);
                let item = "i".into();
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
                if let Some(reply) = self.active.clone() {
                    let outcome = outcomes[usize::from(outcome)];
                    self.event(LiveEvent::ReplyDone { reply, outcome, usage: None });
                }
            }
            Step::Interrupted(reply) => {
                let reply = reply.and(self.active.clone());
                self.event(LiveEvent::Interrupted { reply });
            }
            Step::Trouble(kind) => self.trouble(kind),
            Step::Host(kind) => self.host(kind),
            Step::Judge(how) => self.judge(how),
            Step::ToolEnds(which) => {
                let which = usize::from(which) % self.running.len().max(1);
                if let Some((ticket, _)) = self.running.get(which) {
                    self.end_tool(*ticket, Outcome::Success);
                    self.drain();
                }
            }
            Step::Heed { prompt } => {
                if let Some(id) = self.prompts.pop_front() {
                    self.input(Input::PromptVerdict { id, allowed: prompt });
                }
                self.connect(63);
            }
            Step::Played { complete } => {
                let played = self.played(24_000, complete);
                self.input(Input::Played(played));
            }
            Step::Wait(ms) => self.wait(Duration::from_millis(u64::from(ms))),
        }
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
            3 => self.connect(self.able | 63),
            _ => {}
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
            assert!(next.is_none_or(|next| next > self.now), "a deadline that does not pass");
        }
        panic!("time does not go on");
    }

    fn finish(&mut self) {
        if self.ends == 0 {
            self.input(Input::Stop { reason: EndReason::Stopped, within: None });
            self.wait(Duration::from_secs(10));
        }
        assert_eq!(self.ends, 1, "one end");
        assert!(!self.paused, "nothing stays paused");
        for id in &self.asked_calls {
            let outputs = self.outputs.get(id).copied().unwrap_or_default();
            assert!(outputs <= 1, "{id} has {outputs} outputs");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_stays_in_order_and_ends_once(
        able: u8,
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(able);
        for step in steps {
            world.step(step);
        }
        world.finish();
        // Every call that was taken in has its one output.
        let told: usize = world.outputs.values().sum();
        prop_assert_eq!(told as u64, world.engine.stats().tool_calls);
        for ticket in world.requests.values() {
            prop_assert_eq!(world.outputs.get(&ticket.id), Some(&1), "{}", ticket.id);
        }
    }
}
