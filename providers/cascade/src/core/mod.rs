//! The conversation as a pure state machine.
//!
//! It does no I/O, reads no clock and spawns nothing: commands, results of jobs and the time come
//! in; events for the session and jobs to run come out. After each call the driver drains
//! [`Core::poll_effect`] and [`Core::poll_event`], then asks for [`Core::deadline`].
//!
//! A job is named by a [`JobId`] that is never used again. A result whose job nobody waits for any
//! more is stale and dropped in one place, [`Core::job`].

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_agent::{ModelChunk, ModelRequest};
use antiphon_audio::TurnDetector;
use antiphon_live::{
    ActivityHandling, ErrorInfo, HistoryItem, LiveCommand, LiveEvent, ReplyId, ReplyOutcome,
    VoiceActivity,
};
use antiphon_types::{
    AudioFormat, AudioFrame, ToolBehavior, ToolDefinition, ToolResponse, ToolResponseScheduling,
};

use self::{
    ears::{Ears, Heard},
    history::{Accepted, History, OpenCall},
    reply::Reply,
};
use crate::{SpeechRequest, Transcript, Utterance};

mod ears;
mod history;
mod reply;
mod sentences;

/// Replies, texts and notes that may wait for the active reply. Further ones are refused.
const MAX_QUEUE: usize = 64;
/// Replies in a row that did nothing but call tools, after which the model is stopped.
const MAX_TOOL_ROUNDS: u32 = 32;
/// Ids of calls that are remembered so that none is given twice.
const MAX_CALL_IDS: usize = 1_024;

/// What stays the same for the whole connection.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) input: AudioFormat,
    pub(crate) output: AudioFormat,
    pub(crate) voice_activity: VoiceActivity,
    pub(crate) handling: ActivityHandling,
    /// The user's spoken turns are answered when the session asks for it.
    pub(crate) session_answers: bool,
    pub(crate) prefix_padding: Duration,
    pub(crate) silence: Duration,
    pub(crate) input_transcripts: bool,
    pub(crate) output_transcripts: bool,
    pub(crate) voice: Option<Arc<str>>,
    pub(crate) locale: Option<Arc<str>>,
    pub(crate) vocabulary: Arc<[String]>,
    /// Appended to the instructions.
    pub(crate) refinement: Option<String>,
    /// Messages that the model is given at most.
    pub(crate) history_limit: usize,
}

impl Settings {
    /// The user's audio up to `sample`, in milliseconds.
    pub(crate) fn input_ms(&self, sample: u64) -> u64 {
        self.input.duration_of(sample).as_millis() as u64
    }
}

/// Names a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobId(u64);

/// Work for the recogniser, the model or the synthesiser.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Recognize(Utterance),
    Generate(ModelRequest),
    Synthesize(SpeechRequest),
}

/// What a job gave.
#[derive(Clone, Debug)]
pub(crate) enum JobOutput {
    /// The words of a [`Job::Recognize`]; nothing follows.
    Transcript(Transcript),
    /// A piece of a [`Job::Generate`].
    Chunk(ModelChunk),
    /// A piece of a [`Job::Synthesize`].
    Frame(AudioFrame),
    /// A streaming job is over.
    Finished,
    /// The job failed, panicked or was late; nothing follows.
    Failed(String),
}

/// What the driver is to do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Run a job beside all others.
    Start(JobId, Job),
    /// Nobody waits for the job any more.
    Cancel(JobId),
}

/// What a step of the core gives, in order.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    events: VecDeque<LiveEvent>,
    effects: VecDeque<Effect>,
    jobs: u64,
    call_ids: VecDeque<Arc<str>>,
    calls: u64,
}

impl Outputs {
    fn event(&mut self, event: LiveEvent) {
        self.events.push_back(event);
    }

    fn error(&mut self, code: &'static str, message: impl Into<String>) {
        self.event(LiveEvent::Error(ErrorInfo::new(code, message)));
    }

    fn start(&mut self, job: Job) -> JobId {
        self.jobs += 1;
        let id = JobId(self.jobs);
        self.effects.push_back(Effect::Start(id, job));
        id
    }

    fn cancel(&mut self, job: JobId) {
        self.effects.push_back(Effect::Cancel(job));
    }

    /// The model's own id of a call, unless it is blank or was used before.
    fn unique_call_id(&mut self, wanted: &Arc<str>) -> Arc<str> {
        let mut id = wanted.clone();
        while id.trim().is_empty() || self.call_ids.contains(&id) {
            self.calls += 1;
            id = format!("call_{}", self.calls).into();
        }
        if self.call_ids.len() == MAX_CALL_IDS {
            self.call_ids.pop_front();
        }
        self.call_ids.push_back(id.clone());
        id
    }
}

/// One conversation.
pub(crate) struct Core {
    settings: Arc<Settings>,
    instructions: Option<String>,
    tools: Arc<[ToolDefinition]>,
    ears: Ears,
    history: History,
    reply: Option<Reply>,
    replies: u64,
    queue: VecDeque<Waiting>,
    /// Outputs of calls that nobody waited for, until the active reply is over.
    beside: VecDeque<(OpenCall, ToolResponse)>,
    /// All outputs of the last reply's calls are in and the model has not gone on yet.
    continues: bool,
    tool_rounds: u32,
    /// A reply was interrupted by speech that still goes on: nothing else talks into it.
    hold: bool,
    stale: u64,
    out: Outputs,
}

/// What waits for the active reply to end.
#[derive(Debug)]
enum Waiting {
    /// The user said or wrote something that is to be answered.
    Turn { words: Transcript, spoken: bool },
    /// Something for the conversation only; the item, where the user said it.
    Note { words: Transcript, item: Option<Arc<str>> },
    /// The host wants a reply.
    Create { request: u64 },
    /// The host wants this to be said.
    Say { request: u64, text: String },
}

impl Core {
    /// A conversation that goes on from `earlier`.
    pub(crate) fn new(
        settings: Arc<Settings>,
        instructions: Option<String>,
        tools: Arc<[ToolDefinition]>,
        turns: Option<TurnDetector>,
        earlier: Vec<HistoryItem>,
    ) -> Self {
        Self {
            ears: Ears::new(settings.clone(), turns),
            history: History::new(settings.history_limit, earlier),
            settings,
            instructions,
            tools,
            reply: None,
            replies: 0,
            queue: VecDeque::new(),
            beside: VecDeque::new(),
            continues: false,
            tool_rounds: 0,
            hold: false,
            stale: 0,
            out: Outputs::default(),
        }
    }

    /// The next event for the session.
    pub(crate) fn poll_event(&mut self) -> Option<LiveEvent> {
        self.out.events.pop_front()
    }

    /// Events that wait for [`Core::poll_event`].
    pub(crate) fn pending_events(&self) -> usize {
        self.out.events.len()
    }

    /// The next thing to do for the driver.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.out.effects.pop_front()
    }

    /// When to call [`Core::timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.ears.deadline()
    }

    /// The instant that [`Core::deadline`] named is reached.
    pub(crate) fn timeout(&mut self, now: Instant) {
        self.ears.timeout(now, &mut self.out);
        self.listen();
    }

    /// The session asks for something. What capabilities exclude, blank texts and audio in a wrong
    /// format never come here.
    pub(crate) fn command(&mut self, command: LiveCommand, now: Instant) {
        match command {
            LiveCommand::AppendAudio(frame) => self.ears.audio(&frame, now, &mut self.out),
            LiveCommand::EndAudio => self.ears.end(&mut self.out),
            LiveCommand::ClearAudio => self.ears.clear(&mut self.out),
            LiveCommand::ActivityStart => self.ears.start(&mut self.out),
            LiveCommand::ActivityEnd => self.ears.stop(&mut self.out),
            LiveCommand::Text { text, reply: true } => {
                let words = Transcript::new(text);
                self.enqueue(Waiting::Turn { words, spoken: false }, None);
            }
            LiveCommand::Text { text, reply: false } => {
                self.enqueue(Waiting::Note { words: Transcript::new(text), item: None }, None);
            }
            LiveCommand::CreateReply { request } => {
                self.enqueue(Waiting::Create { request }, Some(request));
            }
            LiveCommand::Say { request, text } => {
                self.enqueue(Waiting::Say { request, text }, Some(request));
            }
            LiveCommand::CancelReply { reply } => self.cancel(reply.as_ref()),
            LiveCommand::Truncate { item, audio_end_ms, heard_text, .. } => {
                self.truncate(&item, heard_text.as_deref(), audio_end_ms);
            }
            LiveCommand::ForgetInput { item } => self.forget(&item),
            LiveCommand::ToolResponse(response) => self.tool_response(response),
            LiveCommand::UpdateInstructions(text) => self.instructions = Some(text),
            LiveCommand::UpdateTools(tools) => self.tools = tools,
            _ => self.out.error("command", "this command is not known here"),
        }
        self.listen();
    }

    /// A job gave something.
    pub(crate) fn job(&mut self, job: JobId, output: JobOutput) {
        if self.ears.job(job, &output, &mut self.out) {
            return self.listen();
        }
        let Some(reply) = &mut self.reply else { return self.drop_stale() };
        if reply.is_generated_by(job) {
            match output {
                JobOutput::Chunk(chunk) => reply.chunk(chunk, &mut self.out),
                JobOutput::Failed(message) => self.fail("model", message),
                _ => reply.generated(&mut self.out),
            }
        } else if reply.is_spoken_by(job) {
            match output {
                JobOutput::Frame(frame) => {
                    if let Err(message) = reply.frame(job, frame, &mut self.out) {
                        self.fail("synthesizer", message);
                    }
                }
                JobOutput::Failed(message) => self.fail("synthesizer", message),
                _ => reply.spoken(job, &mut self.out),
            }
        } else {
            return self.drop_stale();
        }
        if self.reply.as_ref().is_some_and(Reply::is_over) {
            self.finish(None);
        }
        self.advance();
    }

    fn drop_stale(&mut self) {
        self.stale += 1;
        tracing::trace!(stale = self.stale, "a job's late result is dropped");
    }

    /// Takes in what the ears heard.
    fn listen(&mut self) {
        while let Some(heard) = self.ears.heard.pop_front() {
            match heard {
                Heard::Started => self.interrupt(),
                Heard::Stopped => self.hold = false,
                Heard::Turn(item, words) => self.take_spoken(item, words),
            }
        }
        self.advance();
    }

    /// The user's words wait for their turn; joined to those before if these were not answered
    /// yet, since it was one thing said with a pause.
    fn take_spoken(&mut self, item: Arc<str>, words: Transcript) {
        if self.settings.session_answers {
            return self.enqueue(Waiting::Note { words, item: Some(item) }, None);
        }
        if let Some(Waiting::Turn { words: before, spoken: true }) = self.queue.back_mut() {
            *before = std::mem::take(before).followed_by(words);
            return;
        }
        self.enqueue(Waiting::Turn { words, spoken: true }, None);
    }

    fn enqueue(&mut self, waiting: Waiting, request: Option<u64>) {
        if self.queue.len() < MAX_QUEUE {
            return self.queue.push_back(waiting);
        }
        let mut error = ErrorInfo::new("queue_full", "too much waits for the active reply");
        if let Some(request) = request {
            error = error.for_request(request);
        }
        self.out.event(LiveEvent::Error(error));
    }

    /// The user begins to speak.
    fn interrupt(&mut self) {
        if self.settings.handling == ActivityHandling::NoInterruption {
            return;
        }
        if let Some(reply) = &self.reply {
            self.out.event(LiveEvent::Interrupted { reply: Some(reply.id.clone()) });
            self.finish(Some(ReplyOutcome::Interrupted));
            self.hold = true;
        }
    }

    fn cancel(&mut self, wanted: Option<&ReplyId>) {
        let Some(reply) = &self.reply else { return };
        if wanted.is_none_or(|wanted| *wanted == reply.id) {
            self.finish(Some(ReplyOutcome::Cancelled));
        }
    }

    fn truncate(&mut self, item: &str, heard: Option<&str>, audio_end_ms: u32) {
        if let Some(reply) = &mut self.reply
            && reply.truncate(item, heard, audio_end_ms)
        {
            return;
        }
        if !self.history.truncate(item, heard, audio_end_ms) {
            self.out.error("unknown_item", format!("there is no item {item:?} to truncate"));
        }
    }

    /// What the user said was nothing: a noise that left no words is not here either.
    fn forget(&mut self, item: &str) {
        let waiting = |waiting: &Waiting| match waiting {
            Waiting::Note { item: known, .. } => known.as_deref() == Some(item),
            _ => false,
        };
        match self.queue.iter().position(waiting) {
            Some(at) => drop(self.queue.remove(at)),
            None => self.history.forget(item),
        }
    }

    fn tool_response(&mut self, response: ToolResponse) {
        let id = response.id.clone();
        let interim = response.will_continue == Some(true);
        if let Some(call) = (!interim).then(|| self.history.take_aside(&id)).flatten() {
            return self.output_beside(call, response);
        }
        match self.history.tool_output(response) {
            Accepted::Unknown => {
                let message = format!("no call {id:?} waits for an output");
                return self.out.error("unknown_call", message);
            }
            Accepted::All { silent } => self.continues = !silent,
            Accepted::Waiting => {}
        }
        self.out.event(LiveEvent::ToolResultAccepted { id });
    }

    /// The output of a call that nobody waited for is there: it is taken in between two replies.
    fn output_beside(&mut self, call: OpenCall, response: ToolResponse) {
        self.out.event(LiveEvent::ToolResultAccepted { id: response.id.clone() });
        let cuts_in = response.scheduling == ToolResponseScheduling::Interrupt;
        if let Some(reply) = self.reply.as_ref().filter(|_| cuts_in) {
            self.out.event(LiveEvent::Interrupted { reply: Some(reply.id.clone()) });
            self.finish(Some(ReplyOutcome::Interrupted));
        }
        self.beside.push_back((call, response));
    }

    fn fail(&mut self, part: &'static str, message: String) {
        self.out.error(part, message);
        self.finish(Some(ReplyOutcome::Failed));
    }

    /// Ends the active reply; `None`: as it wants to end by itself.
    fn finish(&mut self, outcome: Option<ReplyOutcome>) {
        let Some(mut reply) = self.reply.take() else { return };
        let heard = reply.take_heard();
        let said = reply.finish(outcome, &mut self.out);
        let item = said.item.clone();
        self.tool_rounds = if said.calls.is_empty() { 0 } else { self.tool_rounds + 1 };
        let aside = self.tools.iter().filter(|tool| tool.behavior == ToolBehavior::NonBlocking);
        let aside: Vec<_> = aside.map(|tool| tool.name.clone()).collect();
        if self.continues {
            // The host had it said while the last output came, and the model is still to go on.
            self.history.said_beside(said);
        } else {
            self.history.model(said, |name| aside.iter().any(|tool| **tool == *name));
        }
        if let Some((text, audio_end_ms)) = heard {
            self.history.truncate(&item, text.as_deref(), audio_end_ms);
        }
    }

    /// Starts what may start now.
    fn advance(&mut self) {
        while self.reply.is_none() && self.start_next() {}
    }

    /// Takes the next thing that waits, if it may start. False: there is nothing to do now.
    fn start_next(&mut self) -> bool {
        while let Some((call, response)) = self.beside.pop_front() {
            self.continues |= response.scheduling != ToolResponseScheduling::Silent;
            self.history.move_to_end(call, response.response);
        }
        if self.history.is_waiting() {
            return self.start_beside_tools();
        }
        if self.continues {
            return self.go_on_after_tools();
        }
        let in_the_way = match self.queue.front() {
            None => true,
            Some(Waiting::Note { .. }) => false,
            Some(Waiting::Turn { spoken: true, .. }) => {
                self.ears.is_open() || self.ears.is_recognizing()
            }
            Some(_) => self.is_held(),
        };
        if in_the_way {
            return false;
        }
        match self.queue.pop_front() {
            Some(Waiting::Note { words, item }) => self.history.user(words, item),
            Some(Waiting::Turn { words, .. }) => {
                self.history.user(words, None);
                self.generate(None);
            }
            Some(Waiting::Create { request }) => self.generate(Some(request)),
            Some(Waiting::Say { request, text }) => self.say(request, &text),
            None => {}
        }
        true
    }

    /// While outputs of calls are out the model has nothing to say: words only go into the
    /// conversation. What the host wants said is said.
    fn start_beside_tools(&mut self) -> bool {
        let held = self.is_held();
        let next = self.queue.iter().position(|waiting| match waiting {
            Waiting::Turn { .. } | Waiting::Note { .. } => true,
            Waiting::Say { .. } => !held,
            Waiting::Create { .. } => false,
        });
        match next.and_then(|index| self.queue.remove(index)) {
            Some(Waiting::Turn { words, .. }) => self.history.user(words, None),
            Some(Waiting::Note { words, item }) => self.history.user(words, item),
            Some(Waiting::Say { request, text }) => self.say(request, &text),
            _ => return false,
        }
        true
    }

    fn go_on_after_tools(&mut self) -> bool {
        if self.ears.is_open() && self.settings.handling == ActivityHandling::Interrupts {
            return false;
        }
        self.continues = false;
        if self.tool_rounds >= MAX_TOOL_ROUNDS {
            self.tool_rounds = 0;
            self.out.error("model", format!("{MAX_TOOL_ROUNDS} replies in a row only call tools"));
            return true;
        }
        let asked = self.queue.iter().position(|waiting| matches!(waiting, Waiting::Create { .. }));
        let request = match asked.and_then(|index| self.queue.remove(index)) {
            Some(Waiting::Create { request }) => Some(request),
            _ => None,
        };
        self.generate(request);
        true
    }

    fn is_held(&self) -> bool {
        self.hold && self.ears.is_open()
    }

    fn generate(&mut self, request: Option<u64>) {
        let id = self.begin_reply(request);
        let mut model_request = ModelRequest::new(self.history.messages());
        let parts = [self.instructions.as_deref(), self.settings.refinement.as_deref()];
        let instructions: Vec<&str> =
            parts.into_iter().flatten().filter(|part| !part.trim().is_empty()).collect();
        model_request.instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
        model_request.tools = self.tools.clone();
        model_request.locale.clone_from(&self.settings.locale);
        let mut reply = Reply::generate(id, self.settings.clone(), model_request, &mut self.out);
        reply.add_input_ms(self.ears.take_recognized_ms());
        self.reply = Some(reply);
    }

    fn say(&mut self, request: u64, text: &str) {
        let id = self.begin_reply(Some(request));
        self.reply = Some(Reply::say(id, self.settings.clone(), text, &mut self.out));
        if self.reply.as_ref().is_some_and(Reply::is_over) {
            self.finish(None);
        }
    }

    fn begin_reply(&mut self, request: Option<u64>) -> ReplyId {
        self.replies += 1;
        let id = ReplyId::from(format!("reply_{}", self.replies).as_str());
        self.out.event(LiveEvent::ReplyStarted { reply: id.clone(), request });
        id
    }
}
