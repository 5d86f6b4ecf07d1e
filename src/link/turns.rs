//! From what a session tells to the messages of its turns, and when a turn is over.
//!
//! Pure: whoever drives it hands events in with the time, and takes out what is to be committed.

mod message;

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_agent::{
    AgentFinishReason, Message, Outcome, RuntimeError,
    types::{JsonObject, Status, ToolArguments, ToolCallRequest, Usage},
};
use antiphon_live::ReplyOutcome;
use serde_json::{Value, json};

use self::message::{Parked, Settled, Speaker};
use crate::session::{
    EndReason, EventKind, Heard, SessionEvent, SessionState,
    journal::{Note, ReplyNote, UtteranceNote},
};

pub use self::message::VOICE;
pub(super) use self::message::is_note;

/// Calls that may have been asked for without anything more being told of them.
const MAX_REQUESTED: usize = 256;
/// The output of a call that never got one.
const NO_OUTPUT: &str = "the session ended before the tool had an output";
/// Why a turn failed of which nobody said more.
const REPLY_FAILED: &str = "the reply failed";

/// The turns of a session as they are told.
///
/// What was said and done waits as entries. A turn is over when the session says so and the user's
/// words are there; after an interruption, once the next turn begins; and in any case some seconds
/// after nothing more happens. All entries are committed then, but for calls that have no output yet:
/// request and output go into one commit. What is told of a turn that was committed already stands in
/// the next commit, marked as late.
#[derive(Debug)]
pub(super) struct Turns {
    speaker: Speaker,
    /// The provider tells the user's words, so that they are worth waiting for.
    transcripts: bool,
    /// A turn that is over is committed this long after that at the latest, although words of it are
    /// missing.
    settle: Duration,
    entries: Vec<Entry>,
    requested: VecDeque<Asked>,
    finished: VecDeque<Finished>,
    phase: Phase,
    /// The newest turn.
    number: u64,
    /// The newest turn of which something was committed.
    committed: u64,
    /// The user's words of the newest turn are complete.
    user_is_done: bool,
    listening: bool,
    playing: bool,
    latency_ms: Option<u64>,
    /// What the provider said went wrong in this turn.
    failure: Option<String>,
    /// How the newest reply of this turn ended at the provider.
    outcome: Option<ReplyOutcome>,
    /// What replies took that no commit tells of yet.
    usage: Option<Usage>,
    /// What is known of the message that is told next.
    utterance: Option<UtteranceNote>,
    reply: Option<ReplyNote>,
    /// Counts calls and the rounds that they make up.
    calls: u64,
    round: u64,
    round_is_over: bool,
    settle_at: Option<Instant>,
}

/// How far the newest turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None goes on.
    Quiet,
    /// It goes on.
    Going,
    /// It was interrupted: more may be told of it.
    Interrupted,
    /// It is answered, and the user's words are missing.
    Answered,
}

/// Something that is to be committed.
#[derive(Debug)]
pub(super) struct Finished {
    /// The newest turn in it.
    pub(super) turn: u64,
    pub(super) messages: Vec<Message>,
    /// Why the turn ended.
    pub(super) reason: AgentFinishReason,
    /// Why it failed, or was stopped.
    pub(super) error: Option<RuntimeError>,
}

/// A call of which nothing more was told.
#[derive(Debug)]
struct Asked {
    request: ToolCallRequest,
    number: u64,
    round: u64,
}

/// Something that was said or done.
#[derive(Debug)]
struct Entry {
    turn: u64,
    t_ms: u64,
    /// The turn that it belongs to was committed before.
    late: bool,
    /// Whose voice the agent's was.
    speaker: Speaker,
    content: Content,
}

#[derive(Debug)]
enum Content {
    User { text: String, noted: Option<UtteranceNote> },
    Agent(Said),
    Call(Box<Call>),
    Settled(Settled),
}

/// What the agent said.
#[derive(Debug)]
struct Said {
    /// What was heard.
    text: String,
    interrupted: bool,
    /// All of it, where that is more.
    generated: Option<String>,
    heard: Option<Heard>,
    noted: Option<ReplyNote>,
    latency_ms: Option<u64>,
}

/// A call, from when somebody was told of it.
#[derive(Debug)]
struct Call {
    id: Arc<str>,
    name: Arc<str>,
    /// As the model asked for it.
    input: Value,
    /// The approved arguments, where they are others.
    approved: Option<JsonObject>,
    /// The place of the call among all.
    number: u64,
    /// Calls of one round are asked for by one message.
    round: u64,
    /// When it had its output.
    answered_ms: u64,
    /// What the policy, or the user, said to it; `None` where nobody was asked.
    verdict: Option<Judged>,
    /// The session, or the host, works on it.
    runs: bool,
    /// It waits for a person; its output says so.
    parked: Option<Parked>,
    /// When it began to run, in milliseconds since the session started.
    began_ms: Option<u64>,
    output: Option<Done>,
}

/// What was said to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    Allowed,
    /// With other arguments than the model gave.
    AllowedWith,
    Denied,
    /// The user is asked.
    Asked,
    /// The user said yes.
    Confirmed,
    /// The user did not say yes.
    NotConfirmed,
    /// Another person is asked, and the call waits.
    Parked,
}

/// The output of a call.
#[derive(Debug)]
struct Done {
    response: JsonObject,
    outcome: Outcome,
    /// How long the call ran, if it did.
    took_ms: Option<u64>,
}

impl Turns {
    /// `transcripts`: the provider tells the user's words. `settle`: how long these are waited for
    /// once a turn is over.
    pub(super) fn new(transcripts: bool, settle: Duration) -> Self {
        Self {
            speaker: Speaker::default(),
            transcripts,
            settle,
            entries: Vec::new(),
            requested: VecDeque::new(),
            finished: VecDeque::new(),
            phase: Phase::Quiet,
            number: 0,
            committed: 0,
            user_is_done: false,
            listening: false,
            playing: false,
            latency_ms: None,
            failure: None,
            outcome: None,
            usage: None,
            utterance: None,
            reply: None,
            calls: 0,
            round: 0,
            round_is_over: true,
            settle_at: None,
        }
    }

    /// The model asks for a tool in this turn; [`Turns::poll`] afterwards. What it gave as arguments is
    /// not told again.
    pub(super) fn requested(&mut self, turn: u64, request: &ToolCallRequest) {
        if turn > self.number {
            self.begin_turn(turn);
        }
        if self.requested.iter().any(|known| known.request.id == request.id) {
            return;
        }
        if self.requested.len() == MAX_REQUESTED {
            self.requested.pop_front();
        }
        let (number, round) = self.next_call();
        self.requested.push_back(Asked { request: request.clone(), number, round });
    }

    /// The place of the next call among all, and its round. One ends with the reply that it is of, and
    /// with the first output of a tool that ran: a refusal comes while others of it are still judged.
    fn next_call(&mut self) -> (u64, u64) {
        self.round += u64::from(std::mem::take(&mut self.round_is_over));
        self.calls += 1;
        (self.calls, self.round)
    }

    /// Takes an event in; [`Turns::poll`] afterwards.
    pub(super) fn handle(&mut self, event: &SessionEvent, now: Instant) {
        if event.turn > self.number {
            self.begin_turn(event.turn);
        }
        let before = self.entries.len();
        let phase = self.phase;
        let mut told = false;
        match &event.kind {
            EventKind::SessionStarted { provider, model, .. } => {
                self.speaker = Speaker::new(provider.clone(), model.clone());
            }
            EventKind::ProviderChanged { provider, model } => {
                self.speaker.speak_by(provider.clone(), model.clone());
            }
            EventKind::HandedOff { to, .. } => self.speaker.agent.clone_from(to),
            EventKind::State { state } => self.listening = *state == SessionState::Listening,
            EventKind::UserTranscript { done: false, .. } if event.turn == self.number => {
                self.user_is_done = false;
            }
            EventKind::UserMessage { text } => self.on_user_message(event, text),
            EventKind::AgentMessage { text, interrupted, generated, heard } => {
                let said = Said {
                    text: text.clone(),
                    interrupted: *interrupted,
                    generated: generated.clone(),
                    heard: *heard,
                    noted: self.reply.take(),
                    latency_ms: None,
                };
                self.on_agent_message(event, said);
            }
            EventKind::PlaybackStarted => self.playing = true,
            EventKind::PlaybackFinished => self.playing = false,
            EventKind::ToolCall { id, name, args } | EventKind::HostToolCall { id, name, args } => {
                let call = self.call(event, id, name);
                call.runs = true;
                call.began_ms = Some(event.t_ms);
                let same = call.input.as_object() == Some(args);
                call.verdict = Some(match call.verdict {
                    Some(Judged::Asked) => Judged::Confirmed,
                    _ if same => Judged::Allowed,
                    _ => Judged::AllowedWith,
                });
                call.approved = (!same).then(|| args.clone());
            }
            EventKind::ToolDenied { id, name, .. } => {
                self.call(event, id, name).verdict = Some(Judged::Denied);
            }
            EventKind::ToolConfirm { id, name, .. } => {
                let call = self.call(event, id, name);
                (call.runs, call.verdict) = (false, Some(Judged::Asked));
            }
            EventKind::ApprovalRequested { approval, id, name, question, .. } => {
                let call = self.call(event, id, name);
                let (key, question) = (approval.clone(), question.clone());
                call.parked = Some(Parked { key, question, is_over: false });
                call.verdict = Some(Judged::Parked);
            }
            EventKind::ApprovalSettled { approval, name, args, outcome, output, .. } => {
                let settled = Settled {
                    key: approval.clone(),
                    name: name.clone(),
                    args: args.clone(),
                    outcome: *outcome,
                    output: output.clone(),
                };
                self.add(event, Content::Settled(settled));
                told = true;
            }
            EventKind::ToolResult { id, name, response, outcome, .. } => {
                self.on_output(event, id, name, response, *outcome);
                told = true;
            }
            EventKind::Error { kind, message } if &**kind == "provider" => {
                self.failure.get_or_insert_with(|| message.clone());
            }
            EventKind::Interrupted if self.phase == Phase::Going => {
                self.phase = Phase::Interrupted;
            }
            EventKind::TurnFinished { latency_ms } => {
                self.latency_ms = *latency_ms;
                self.phase = Phase::Answered;
            }
            EventKind::SessionEnded { reason, .. } => return self.end(reason),
            _ => {}
        }
        if self.phase == Phase::Answered && (self.user_is_done || !self.transcripts) {
            let error = self.failure_of_turn();
            return self.commit(error);
        }
        let told = told || self.entries.len() != before || self.phase != phase;
        self.set_deadline(told, now);
    }

    /// Whether the provider tells the user's words from now on: another one may.
    pub(super) fn transcribed(&mut self, transcripts: bool) {
        self.transcripts = transcripts;
    }

    /// Takes in what is not told to hosts; [`Turns::poll`] afterwards.
    pub(super) fn note(&mut self, turn: u64, note: &Note, now: Instant) {
        if turn > self.number {
            self.begin_turn(turn);
        }
        match note {
            Note::Utterance(noted) => self.utterance = Some(noted.clone()),
            Note::Reply(noted) => self.reply = Some(noted.clone()),
            Note::Unheard { reply, generated, heard, t_ms } => {
                let said = Said {
                    text: String::new(),
                    interrupted: true,
                    generated: Some(generated.clone()),
                    heard: *heard,
                    noted: Some(reply.clone()),
                    latency_ms: None,
                };
                let (late, speaker) = (self.is_late(turn), self.speaker.clone());
                let content = Content::Agent(said);
                self.entries.push(Entry { turn, t_ms: *t_ms, late, speaker, content });
                self.set_deadline(true, now);
            }
            Note::ReplyDone { outcome, usage } => {
                self.round_is_over = true;
                if outcome.is_some() && turn == self.number {
                    self.outcome = *outcome;
                }
                if let Some(usage) = usage {
                    self.usage.get_or_insert_default().add(usage);
                }
            }
            // Of what a provider can go on by no message tells.
            Note::Resumable(_) | Note::NotResumable => {}
        }
    }

    /// The next turn to be committed.
    pub(super) fn poll(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Whether all that was told is committed, and no turn goes on.
    pub(super) fn is_at_rest(&self) -> bool {
        self.phase == Phase::Quiet && self.entries.is_empty()
    }

    /// When to call [`Turns::timeout`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.settle_at
    }

    /// The instant that [`Turns::deadline`] named is reached.
    pub(super) fn timeout(&mut self, now: Instant) {
        if self.settle_at.is_some_and(|at| at <= now) {
            let error = self.failure_if_answered();
            let goes_on = self.phase == Phase::Going;
            self.commit(error);
            if goes_on {
                self.phase = Phase::Going;
            }
        }
    }

    fn begin_turn(&mut self, number: u64) {
        // Words that got no answer are part of the next turn, which answers them.
        if matches!(self.phase, Phase::Interrupted | Phase::Answered) {
            let error = self.failure_if_answered();
            self.commit(error);
        }
        self.number = number;
        self.phase = Phase::Going;
        self.user_is_done = false;
        self.failure = None;
        self.outcome = None;
    }

    fn on_user_message(&mut self, event: &SessionEvent, text: &str) {
        self.user_is_done |= event.turn == self.number;
        let noted = self.utterance.take();
        let entry = self.entry(event, Content::User { text: text.to_owned(), noted });
        // The user's words often come after what they led to, and stand before it.
        let answers = |known: &Entry| {
            known.turn >= event.turn && !matches!(known.content, Content::User { .. })
        };
        let at = self.entries.iter().position(answers).unwrap_or(self.entries.len());
        self.entries.insert(at, entry);
    }

    /// What the agent said is told once it was heard: it stands before outputs of calls that came
    /// after it began.
    fn on_agent_message(&mut self, event: &SessionEvent, said: Said) {
        let began_ms = said.heard.map_or(event.t_ms, |heard| heard.began_ms);
        let entry = self.entry(event, Content::Agent(said));
        let stands_before = |known: &Entry| match &known.content {
            Content::Call(call) => call.output.is_some() && call.answered_ms <= began_ms,
            _ => true,
        };
        let at = self.entries.iter().rposition(stands_before).map_or(0, |last| last + 1);
        self.entries.insert(at, entry);
    }

    /// The open call of this id, which begins here where nothing was told of it before.
    fn call(&mut self, event: &SessionEvent, id: &Arc<str>, name: &Arc<str>) -> &mut Call {
        let at = self.open_call(id).unwrap_or_else(|| {
            let call = self.new_call(id, name);
            self.add(event, Content::Call(Box::new(call)));
            self.entries.len() - 1
        });
        match &mut self.entries[at].content {
            Content::Call(call) => call,
            _ => unreachable!("both ways lead to a call"),
        }
    }

    fn open_call(&self, id: &str) -> Option<usize> {
        self.entries.iter().rposition(|entry| {
            matches!(&entry.content, Content::Call(call) if *call.id == *id && call.output.is_none())
        })
    }

    fn new_call(&mut self, id: &Arc<str>, name: &Arc<str>) -> Call {
        let asked = self.requested.iter().position(|asked| asked.request.id == *id);
        let (input, (number, round)) = match asked.and_then(|at| self.requested.remove(at)) {
            Some(Asked { request, number, round }) => {
                (input_of(request.arguments), (number, round))
            }
            None => (json!({}), self.next_call()),
        };
        Call {
            id: id.clone(),
            name: name.clone(),
            input,
            approved: None,
            number,
            round,
            answered_ms: 0,
            verdict: None,
            runs: false,
            began_ms: None,
            output: None,
            parked: None,
        }
    }

    fn on_output(
        &mut self,
        event: &SessionEvent,
        id: &Arc<str>,
        name: &Arc<str>,
        response: &JsonObject,
        outcome: Outcome,
    ) {
        let call = self.call(event, id, name);
        let took_ms = call.began_ms.map(|began| event.t_ms.saturating_sub(began));
        if call.verdict == Some(Judged::Asked) {
            call.verdict = Some(Judged::NotConfirmed);
        }
        call.output = Some(Done { response: response.clone(), outcome, took_ms });
        call.answered_ms = event.t_ms;
        call.runs = false;
        self.round_is_over |= took_ms.is_some();
        // What was said while the tool ran stands before its round.
        let settled = self.entries.iter().rposition(|entry| {
            matches!(&entry.content, Content::Call(call) if call.id == *id && call.output.is_some())
        });
        if let Some(at) = settled {
            let mut entry = self.entries.remove(at);
            entry.late = self.is_late(entry.turn);
            self.entries.push(entry);
        }
    }

    fn add(&mut self, event: &SessionEvent, content: Content) {
        let entry = self.entry(event, content);
        self.entries.push(entry);
    }

    fn entry(&self, event: &SessionEvent, content: Content) -> Entry {
        let (late, speaker) = (self.is_late(event.turn), self.speaker.clone());
        Entry { turn: event.turn, t_ms: event.t_ms, late, speaker, content }
    }

    /// Whether the turn is committed. Before the first there is none that could be.
    fn is_late(&self, turn: u64) -> bool {
        turn != 0 && turn <= self.committed
    }

    fn set_deadline(&mut self, told: bool, now: Instant) {
        let complete = self.entries.iter().any(Entry::is_complete);
        let works = self.playing || self.entries.iter().any(Entry::runs);
        // A turn that nobody works on any more was given up.
        let waits = complete && (self.phase != Phase::Going || self.listening && !works);
        self.settle_at = match self.settle_at {
            _ if !waits => None,
            Some(at) if !told => Some(at),
            _ => Some(now + self.settle),
        };
    }

    /// Why a turn failed that is over but for the user's words.
    fn failure_if_answered(&mut self) -> Option<RuntimeError> {
        if self.phase == Phase::Answered { self.failure_of_turn() } else { None }
    }

    /// Why a turn failed, if it did: its last reply did, or something went wrong at the provider and
    /// the agent said nothing.
    fn failure_of_turn(&mut self) -> Option<RuntimeError> {
        let failure = self.failure.take();
        match self.outcome {
            Some(ReplyOutcome::Failed) => {
                let message = failure.unwrap_or_else(|| REPLY_FAILED.to_owned());
                return Some(RuntimeError::new(Status::Unavailable, message));
            }
            // Some tell of a filter as of an error, too.
            Some(ReplyOutcome::Blocked | ReplyOutcome::Incomplete) => return None,
            _ => {}
        }
        let answered = self.entries.iter().any(|entry| match &entry.content {
            Content::Agent(_) => true,
            Content::Call(call) => call.has_succeeded(),
            Content::User { .. } | Content::Settled(_) => false,
        });
        let message = failure.filter(|_| !answered)?;
        Some(RuntimeError::new(Status::Unavailable, message))
    }

    /// Why a turn ended that did not fail.
    fn reason(&self) -> AgentFinishReason {
        match self.outcome {
            Some(ReplyOutcome::Incomplete) => AgentFinishReason::Length,
            Some(ReplyOutcome::Blocked) => AgentFinishReason::Blocked,
            _ => AgentFinishReason::Stop,
        }
    }

    fn end(&mut self, reason: &EndReason) {
        for entry in &mut self.entries {
            if let Content::Call(call) = &mut entry.content
                && call.output.is_none()
            {
                let response = JsonObject::from_iter([("error".to_owned(), NO_OUTPUT.into())]);
                let outcome = Outcome::Cancelled;
                call.output = Some(Done { response, outcome, took_ms: None });
            }
        }
        let error = match (self.phase, reason) {
            (Phase::Going, EndReason::Limit { .. }) => {
                Some(RuntimeError::LimitReached(reason.to_string()))
            }
            (
                Phase::Going,
                EndReason::ProviderClosed { .. }
                | EndReason::Failed { .. }
                | EndReason::StoreFailed { .. },
            ) => Some(RuntimeError::new(Status::Unavailable, reason.to_string())),
            (Phase::Going, _) => Some(RuntimeError::Cancelled(reason.to_string())),
            _ => self.failure_if_answered(),
        };
        self.commit(error);
    }

    /// Whatever is complete is to be committed, and no turn goes on.
    fn commit(&mut self, error: Option<RuntimeError>) {
        (self.phase, self.settle_at) = (Phase::Quiet, None);
        let (mut complete, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.entries).into_iter().partition(Entry::is_complete);
        self.entries = open;
        let latency_ms = self.latency_ms.take();
        let reason = match &error {
            None => self.reason(),
            Some(error) if error.is_callers_stop() => AgentFinishReason::Aborted,
            Some(_) => AgentFinishReason::Failed,
        };
        self.outcome = None;
        if complete.is_empty() {
            return;
        }
        let first_said = complete.iter_mut().find_map(|entry| match &mut entry.content {
            Content::Agent(said) if entry.turn == self.number => Some(said),
            _ => None,
        });
        if let Some(said) = first_said {
            said.latency_ms = latency_ms;
        }
        close_settled(&mut complete);
        let waits = complete.iter().any(Entry::waits);
        let reason = match reason {
            AgentFinishReason::Stop if waits => AgentFinishReason::Interrupted,
            other => other,
        };
        let messages = message::messages(complete, self.usage.take());
        self.committed = self.number;
        self.finished.push_back(Finished { turn: self.number, messages, reason, error });
    }
}

impl Entry {
    fn is_complete(&self) -> bool {
        !matches!(&self.content, Content::Call(call) if call.output.is_none())
    }

    /// Whether it waits for a person when its turn is over.
    fn waits(&self) -> bool {
        matches!(&self.content, Content::Call(call) if call.waits())
    }

    fn runs(&self) -> bool {
        matches!(&self.content, Content::Call(call) if call.runs)
    }
}

impl Call {
    fn waits(&self) -> bool {
        self.parked.as_ref().is_some_and(|parked| !parked.is_over)
    }

    fn has_succeeded(&self) -> bool {
        matches!(&self.output, Some(done) if done.outcome == Outcome::Success)
    }
}

/// Calls that were decided over before their turn was: they do not wait at its end.
fn close_settled(entries: &mut [Entry]) {
    let keys: Vec<_> = entries
        .iter()
        .filter_map(|entry| match &entry.content {
            Content::Settled(settled) => Some(settled.key.clone()),
            _ => None,
        })
        .collect();
    for entry in entries {
        if let Content::Call(call) = &mut entry.content
            && let Some(parked) = &mut call.parked
        {
            parked.is_over = keys.contains(&parked.key);
        }
    }
}

/// What the model gave as arguments; text that is no JSON stays text.
fn input_of(arguments: ToolArguments) -> Value {
    match arguments {
        ToolArguments::Object(object) => Value::Object(object),
        ToolArguments::Json(text) if text.trim().is_empty() => json!({}),
        ToolArguments::Json(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
    }
}
