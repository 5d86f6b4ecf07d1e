//! Why the agent was silent, cut off or late.

use std::{collections::BTreeMap, fmt, io::BufRead, time::Duration};

use antiphon_agent::Outcome;
use antiphon_live::{LiveEvent, ReplyOutcome};

use super::{
    RecordingError,
    replay::{Act, Replayed, Scene, Stage},
};
use crate::session::{
    EndReason, EventKind, HostPromptStage, RequestEnd, RequestOrigin, ResumeCause, SessionEvent,
    SessionStats,
    engine::{Decision, HostCommand, Input, Output, Ticket},
};

/// An answer that begins later than this after the user's words is late.
const LATE: Duration = Duration::from_millis(1_500);
/// What takes less than this is not worth a word.
const BRIEF: Duration = Duration::from_millis(10);

/// Says of each turn of a recorded session what the agent did, and what it waited for. A recording
/// that breaks off is explained up to there.
pub fn explain(recording: impl BufRead) -> Result<Explanation, RecordingError> {
    let stage = Stage::open(recording)?;
    let mut story = Story::default();
    let mut note = None;
    match stage.run(|scene| story.scene(&scene)) {
        Ok(Replayed { complete: true, difference: None, .. }) => {}
        Ok(replayed) => note = Some(replayed.to_string()),
        Err(error @ RecordingError::Torn { .. }) => note = Some(error.to_string()),
        Err(error) => return Err(error),
    }
    Ok(story.told(note))
}

/// A session in words. `Display` is for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// What happened before the first turn; empty where nothing did.
    pub before: Vec<Fact>,
    /// The turns, in order.
    pub turns: Vec<ExplainedTurn>,
    /// What is to be said of the session as a whole: how it ended, what was dropped.
    pub session: Vec<String>,
    /// Why this is not all, where it is not.
    pub note: Option<String>,
}

/// One turn in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedTurn {
    /// Its number.
    pub number: u64,
    /// Since the session's start.
    pub at: Duration,
    /// What the user said.
    pub user: Vec<String>,
    /// What the agent was in it; may be several. Empty: it answered in time and to the end.
    pub faults: Vec<Fault>,
    /// What happened, in order.
    pub facts: Vec<Fact>,
}

/// What an agent may have been in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing was heard of it.
    Silent,
    /// It began later than a second and a half after the user's words.
    Late,
    /// It did not say all it had to say.
    CutOff,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// Since the session's start.
    pub at: Duration,
    /// What, in words.
    pub what: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fact in &self.before {
            writeln!(f, "{fact}")?;
        }
        for turn in &self.turns {
            write!(f, "{turn}")?;
        }
        for line in &self.session {
            writeln!(f, "{line}")?;
        }
        match &self.note {
            Some(note) => writeln!(f, "{note}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ExplainedTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, at, user, faults, facts } = self;
        write!(f, "Turn {number}, {:.3} s", at.as_secs_f64())?;
        for fault in faults {
            write!(f, ", {fault}")?;
        }
        writeln!(f)?;
        for words in user {
            writeln!(f, "            the user: {}", quoted(words))?;
        }
        facts.iter().try_for_each(|fact| writeln!(f, "{fact}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "SILENT",
            Self::Late => "LATE",
            Self::CutOff => "CUT OFF",
        })
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s {}", self.at.as_secs_f64(), self.what)
    }
}

/// What is known while the session runs again.
#[derive(Default)]
struct Story {
    before: Vec<Fact>,
    turns: Vec<ExplainedTurn>,
    session: Vec<String>,
    now: Duration,
    /// What the engine was given last: what it tells comes of that.
    cause: Cause,
    /// The user waits for an answer.
    wait: Option<Wait>,
    /// The turn whose answer is waited for, or was heard.
    heard: BTreeMap<u64, bool>,
    connected: bool,
    user_speaks: bool,
    words_due: bool,
    /// The provider answers the user's words, not the sound of them.
    answers_words: bool,
    /// Calls that are judged.
    judged: Vec<Ticket>,
    /// Names of calls that were approved.
    approved: BTreeMap<Ticket, String>,
    /// Tools that run, by call.
    running: BTreeMap<Ticket, (String, Duration)>,
    /// Calls that the host or the user holds, by id.
    held: BTreeMap<String, Held>,
}

/// Why the engine does what it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cause {
    #[default]
    Other,
    UserSpoke,
    UserByHand,
    ProviderInterrupted,
    ProviderStopped,
    ReplyFailed,
    ReplyIncomplete,
    HostStopped,
    ConnectionLost,
    SessionStopped,
    Deadline,
}

/// Who holds a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Host(String),
    User(String),
}

/// A wait for an answer, and what it is spent on.
struct Wait {
    since: Duration,
    until: Duration,
    spent: Vec<(String, Duration)>,
}

impl Story {
    fn scene(&mut self, scene: &Scene<'_>) {
        self.pass(scene.at);
        match scene.act {
            Act::Input(input) => self.input(input),
            Act::Timeout => self.cause = Cause::Deadline,
            Act::Output(output) => self.output(output),
        }
    }

    /// Time goes on; a wait is spent on what is waited for.
    fn pass(&mut self, at: Duration) {
        self.now = self.now.max(at);
        let Some(mut wait) = self.wait.take() else { return };
        let spent = self.now.saturating_sub(wait.until);
        wait.until = self.now;
        if !spent.is_zero() {
            let what = self.waits_for();
            match wait.spent.iter_mut().find(|(known, _)| *known == what) {
                Some((_, sum)) => *sum += spent,
                None => wait.spent.push((what, spent)),
            }
        }
        self.wait = Some(wait);
    }

    fn waits_for(&self) -> String {
        if !self.connected {
            return "a new connection".into();
        }
        if !self.judged.is_empty() {
            return "the verdict over a tool call".into();
        }
        if let Some((name, _)) = self.running.values().next() {
            return format!("the tool {name}");
        }
        match self.held.values().next() {
            Some(Held::Host(name)) => return format!("the host's answer to {name}"),
            Some(Held::User(name)) => return format!("the user's yes or no to {name}"),
            None => {}
        }
        if self.user_speaks {
            return "the end of the user's speech".into();
        }
        let words = self.words_due && self.answers_words;
        if words { "the user's words" } else { "the provider" }.into()
    }

    fn input(&mut self, input: &Input) {
        // That the sink was cleared is told while the engine still says why.
        if !matches!(input, Input::Cleared { .. }) {
            self.cause = Cause::Other;
        }
        match input {
            Input::Connected { capabilities, .. } => {
                self.connected = true;
                self.answers_words = capabilities.answers_words;
            }
            Input::Disconnected { .. } => {
                self.connected = false;
                self.cause = Cause::ConnectionLost;
            }
            Input::Provider { event, .. } => self.provider(event),
            Input::Host(command) => self.host(command),
            Input::Admission { ticket, decision } => {
                self.judged.retain(|judged| judged != ticket);
                if let Decision::Run { call, .. } = decision {
                    self.approved.insert(*ticket, call.name.to_string());
                }
            }
            Input::ToolDone { ticket, .. } => {
                self.approved.remove(ticket);
                if let Some((name, since)) = self.running.remove(ticket) {
                    let took = seconds(self.now.saturating_sub(since));
                    self.fact(None, format!("the tool {name} took {took}"));
                }
            }
            Input::Stop { .. } => self.cause = Cause::SessionStopped,
            _ => {}
        }
    }

    fn provider(&mut self, event: &LiveEvent) {
        match event {
            LiveEvent::SpeechStarted { .. } => {
                self.cause = Cause::UserSpoke;
                self.user_speaks = true;
            }
            LiveEvent::SpeechStopped { .. } => {
                self.user_speaks = false;
                self.words_due = true;
                self.user_is_done();
            }
            LiveEvent::Interrupted { .. } => self.cause = Cause::ProviderInterrupted,
            LiveEvent::ReplyDone { outcome, .. } => {
                self.cause = match outcome {
                    ReplyOutcome::Cancelled | ReplyOutcome::Interrupted => Cause::ProviderStopped,
                    ReplyOutcome::Failed => Cause::ReplyFailed,
                    ReplyOutcome::Incomplete | ReplyOutcome::Blocked => Cause::ReplyIncomplete,
                    _ => Cause::Other,
                };
                match outcome {
                    ReplyOutcome::Incomplete => {
                        self.fact(None, "the reply ran into a bound of the provider");
                    }
                    ReplyOutcome::Blocked => self.fact(None, "a filter stopped the reply"),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn host(&mut self, command: &HostCommand) {
        match command {
            HostCommand::ActivityStart => {
                self.cause = Cause::UserByHand;
                self.user_speaks = true;
            }
            HostCommand::ActivityEnd => {
                self.user_speaks = false;
                self.user_is_done();
            }
            HostCommand::Text(_) => self.user_is_done(),
            HostCommand::Interrupt | HostCommand::CutIn => self.cause = Cause::HostStopped,
            _ => {}
        }
    }

    /// The user has finished, and waits.
    fn user_is_done(&mut self) {
        self.wait = Some(Wait { since: self.now, until: self.now, spent: Vec::new() });
    }

    fn output(&mut self, output: &Output) {
        match output {
            Output::Play { .. } => self.first_sound(),
            Output::Close { .. } => self.connected = false,
            Output::Admit { ticket, .. } => self.judged.push(*ticket),
            Output::Invoke { ticket, .. } => {
                if let Some(name) = self.approved.remove(ticket) {
                    self.running.insert(*ticket, (name, self.now));
                }
            }
            Output::Emit(event) => self.event(event),
            Output::Ended { end } => {
                if let Some(never) = &end.never_began {
                    self.session.push(format!("It never began: {never:?}."));
                }
                for tool in &end.detached {
                    self.session.push(format!("The tool {tool} still ran when it was over."));
                }
            }
            _ => {}
        }
    }

    /// The agent's voice begins.
    fn first_sound(&mut self) {
        let Some(wait) = self.wait.take() else { return };
        let Some(turn) = self.turns.last_mut() else { return };
        let waited = self.now.saturating_sub(wait.since);
        self.heard.insert(turn.number, true);
        if waited > LATE {
            turn.faults.push(Fault::Late);
        }
        let what = format!(
            "it began to speak, {} after the user had finished{}",
            seconds(waited),
            wait.spent_on()
        );
        turn.facts.push(Fact { at: self.now, what });
    }

    fn event(&mut self, event: &SessionEvent) {
        let SessionEvent { turn, kind, .. } = event;
        let of = Some(*turn);
        match kind {
            EventKind::SessionStarted { session_id, provider, model } => {
                let what = format!("the session {session_id} with {provider} ({model}) began");
                self.fact(of, what);
            }
            EventKind::UserMessage { text } => {
                self.words_due = false;
                if self.wait.is_none() && !self.heard.contains_key(turn) {
                    self.user_is_done();
                }
                let text = text.clone();
                if let Some(turn) = self.turn(*turn) {
                    turn.user.push(text);
                }
            }
            EventKind::AgentMessage { text, interrupted, generated, .. } => {
                self.message(*turn, text, *interrupted, generated.as_deref());
            }
            EventKind::Interrupted => {
                let why = self.why();
                self.fault(*turn, Fault::CutOff);
                self.fact(of, format!("it was cut off: {why}"));
            }
            EventKind::PlaybackPaused => {
                self.fact(of, "it paused: the user spoke, and it was not clear whether to stop");
            }
            EventKind::PlaybackResumed { cause } => {
                self.wait = None;
                let what = match cause {
                    ResumeCause::Noise => "it was a noise",
                    ResumeCause::Backchannel => "the user only listened",
                    ResumeCause::TooFewWords => "the words were too few to interrupt",
                };
                self.fact(of, format!("it went on: {what}"));
            }
            EventKind::ReplyRequest { origin, outcome, .. } => {
                let what = match outcome {
                    RequestEnd::Started => return,
                    RequestEnd::Superseded => "gave way to something else",
                    RequestEnd::Refused => "was refused",
                    RequestEnd::TimedOut => "was not begun in its time",
                };
                self.fact(
                    of,
                    format!("a reply on behalf of the {} {what}", origin_in_words(*origin)),
                );
            }
            EventKind::ToolDenied { name, reason, .. } => {
                self.fact(of, format!("the policy refused {name}: {reason}"));
            }
            EventKind::ToolConfirm { id, name, .. } => {
                self.held.insert(id.to_string(), Held::User(name.to_string()));
                self.fact(of, format!("the user was to be asked about {name}"));
            }
            EventKind::HostToolCall { id, name, .. } => {
                self.held.insert(id.to_string(), Held::Host(name.to_string()));
            }
            EventKind::ToolResult { id, name, outcome, .. } => {
                self.held.remove(&**id);
                match outcome {
                    Outcome::Success | Outcome::Denied | Outcome::RateLimited => {}
                    other => {
                        self.fact(of, format!("{name} gave no result: {}", other.fixed_text()))
                    }
                }
            }
            EventKind::Reconnecting { attempt, cause } => {
                self.fact(of, format!("the connection was replaced, attempt {attempt}: {cause}"));
            }
            EventKind::StateRestored { gap_ms, audio_lost_ms, .. } => {
                let gap = seconds(Duration::from_millis(*gap_ms));
                let mut what = format!("a new connection stood after {gap}");
                if *audio_lost_ms > 0 {
                    what += &format!("; {audio_lost_ms} ms of the user's audio were lost");
                }
                self.fact(of, what);
            }
            EventKind::ProviderChanged { provider, model } => {
                self.fact(of, format!("the session went on with {provider} ({model})"));
            }
            EventKind::HandedOff { to, .. } => {
                let to = to.as_deref().unwrap_or("the session's own agent");
                self.fact(of, format!("the conversation went over to {to}"));
            }
            EventKind::Stalled { what, ms, .. } => {
                let time = seconds(Duration::from_millis(*ms));
                self.fact(
                    of,
                    match &**what {
                        "provider" => format!("nothing had come from the provider for {time}"),
                        what => format!("a {what} had been at work for {time}"),
                    },
                );
            }
            EventKind::Error { kind, message } => {
                self.fact(of, format!("error of the {kind}: {message}"));
            }
            EventKind::HostPrompt(prompt) => match prompt.stage {
                HostPromptStage::Started => {}
                stage => self.fact(of, format!("the session's {:?}: {stage:?}", prompt.prompt)),
            },
            EventKind::SessionEnded { reason, stats } => self.ended(reason, stats),
            _ => {}
        }
    }

    fn message(&mut self, turn: u64, text: &str, interrupted: bool, generated: Option<&str>) {
        let mut what = format!("it said {}", quoted(text));
        if interrupted {
            self.fault(turn, Fault::CutOff);
            match generated {
                Some(all) => what += &format!(" of {}", quoted(all)),
                None => what += " and no more",
            }
            if let Cause::ReplyFailed | Cause::ConnectionLost = self.cause {
                what += &format!(": {}", self.why());
            }
        }
        self.heard.insert(turn, true);
        self.fact(Some(turn), what);
    }

    fn why(&self) -> &'static str {
        match self.cause {
            Cause::UserSpoke => "the user spoke",
            Cause::UserByHand => "the user took the turn by hand",
            Cause::ProviderInterrupted => "the user spoke, and the provider stopped the reply",
            Cause::ProviderStopped => "the provider stopped the reply",
            Cause::ReplyFailed => "the reply failed",
            Cause::ReplyIncomplete => "the reply ran into a bound of the provider",
            Cause::HostStopped => "the host stopped it",
            Cause::ConnectionLost => "the connection was lost",
            Cause::SessionStopped => "the session was stopped",
            Cause::Deadline => "something took too long",
            Cause::Other => "the session went on to something else",
        }
    }

    fn ended(&mut self, reason: &EndReason, stats: &SessionStats) {
        self.session.push(format!("The session ended: {reason}."));
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                self.session.push(format!("{count} {what}."));
            }
        };
        say(
            stats.uplink_dropped_ms,
            "ms of the user's audio were dropped, since the wire was slow",
        );
        say(stats.stale_audio_frames, "frames of replies that were over were dropped");
        say(stats.undelivered_commands, "commands were lost with their connection");
        say(stats.late_tool_results, "tool results came too late to be sent");
    }

    fn fault(&mut self, turn: u64, fault: Fault) {
        if let Some(turn) = self.turn(turn)
            && !turn.faults.contains(&fault)
        {
            turn.faults.push(fault);
        }
    }

    fn fact(&mut self, turn: Option<u64>, what: impl Into<String>) {
        let fact = Fact { at: self.now, what: what.into() };
        let number = turn.unwrap_or_else(|| self.turns.last().map_or(0, |turn| turn.number));
        match self.turn(number) {
            Some(turn) => turn.facts.push(fact),
            None => self.before.push(fact),
        }
    }

    fn turn(&mut self, number: u64) -> Option<&mut ExplainedTurn> {
        if number == 0 {
            return None;
        }
        let known = self.turns.iter().rposition(|turn| turn.number == number);
        let index = match known {
            Some(index) => index,
            None => {
                self.silence();
                self.turns.push(ExplainedTurn { number, at: self.now, ..Default::default() });
                self.turns.len() - 1
            }
        };
        self.turns.get_mut(index)
    }

    /// The last turn is over; nothing may have been heard of the agent in it.
    fn silence(&mut self) {
        let Some(turn) = self.turns.last_mut() else { return };
        if self.heard.contains_key(&turn.number) {
            return;
        }
        self.heard.insert(turn.number, false);
        turn.faults.insert(0, Fault::Silent);
        let waited = self.wait.as_ref().map(Wait::spent_on).unwrap_or_default();
        turn.facts.push(Fact { at: self.now, what: format!("nothing was heard of it{waited}") });
    }

    fn told(mut self, note: Option<String>) -> Explanation {
        self.silence();
        let Self { before, turns, session, .. } = self;
        Explanation { before, turns, session, note }
    }
}

impl Wait {
    /// `, 1.2 s of it for the tool weather, ...`
    fn spent_on(&self) -> String {
        let mut text = String::new();
        for (what, time) in self.spent.iter().filter(|(_, time)| *time >= BRIEF) {
            text += if text.is_empty() { "; it waited " } else { ", " };
            text += &format!("{} for {what}", seconds(*time));
        }
        text
    }
}

fn origin_in_words(origin: RequestOrigin) -> &'static str {
    match origin {
        RequestOrigin::User => "user",
        RequestOrigin::Host => "host",
        RequestOrigin::Tools => "tools' outputs",
        RequestOrigin::ReadBack => "read-back of a call",
        RequestOrigin::Prompt => "session's own prompt",
        RequestOrigin::Progress => "progress of a tool",
        RequestOrigin::Guard => "guard",
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// Words in quotes, shortened.
fn quoted(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("“{}…”", &text[..cut]),
        None => format!("“{text}”"),
    }
}
