//! Plays a script over the engine: exact steps, behaviour, and what goes wrong. Pure: the driver
//! gives it frames and time and carries out what it polls.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use serde_json::{Map, Value};

use super::script::{Fault, Step};

/// The close code of a server whose script the client left.
const LEFT_THE_SCRIPT: u16 = 4900;
/// Frames that wait for a step to expect them; audio beyond that is forgotten.
const MAX_INBOX: usize = 10_000;

/// What is to be written.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    Text(String),
    Binary(Vec<u8>),
    Close(u16, String),
    Drop,
}

enum Queued {
    Output(Output),
    Pause(Duration),
    Until(Instant),
    Stall(Duration),
}

#[derive(PartialEq)]
enum Mode {
    Steps,
    Auto { until: Option<String>, left: u32 },
}

/// A server that behaves: frames and time in, what to say out. It reads no clock and owns no socket.
pub(crate) trait Behaviour {
    /// The connection is open. `greet`: the first word was not said by a step.
    fn opened(&mut self, now: Instant, greet: bool);

    /// A frame of the client.
    fn frame(&mut self, text: &str, now: Instant);

    /// Time has passed.
    fn timeout(&mut self, now: Instant);

    /// When time matters next.
    fn deadline(&self) -> Option<Instant>;

    /// What it says next.
    fn next(&mut self) -> Option<Saying>;

    /// Adds to a step's event what the server puts into all; tells whether it is the first word.
    fn complete(&mut self, event: &mut Value) -> bool;

    /// An error with these fields.
    fn error(&self, fields: &Value) -> Value;

    /// Whether a frame of the client, or what a step expects of one, is audio.
    fn is_audio(frame: &str) -> bool;
}

/// What a server that behaves says.
#[derive(Debug)]
pub(crate) enum Saying {
    /// An event; without a text, the server's words have none for it.
    Event { kind: String, text: Option<String> },
    /// The end.
    Close(u16, String),
}

/// One connection's play.
pub(crate) struct Player<B> {
    engine: B,
    mode: Mode,
    steps: VecDeque<Step>,
    /// Steps done, for the message of a failure.
    done: usize,
    faults: Vec<(Fault, u32)>,
    /// The session was told of, by a step or by the engine.
    greeted: bool,
    opened: bool,
    inbox: VecDeque<String>,
    /// What expectations kept.
    kept: HashMap<String, Value>,
    /// Goes out after the next event.
    swapped: Option<String>,
    /// When the server was made.
    began: Option<Instant>,
    queue: VecDeque<Queued>,
    held_until: Option<Instant>,
    stalled_until: Option<Instant>,
    failure: Option<String>,
}

impl<B: Behaviour> Player<B> {
    /// A play of exact steps, if there are any, and of what goes wrong beside.
    pub(crate) fn new(engine: B, steps: Option<&[Step]>, faults: &[Fault]) -> Self {
        let mode = match steps {
            Some(_) => Mode::Steps,
            None => Mode::Auto { until: None, left: 0 },
        };
        Self {
            engine,
            mode,
            steps: steps.unwrap_or_default().iter().cloned().collect(),
            done: 0,
            faults: faults.iter().cloned().map(|fault| (fault, 0)).collect(),
            greeted: false,
            opened: false,
            inbox: VecDeque::new(),
            kept: HashMap::new(),
            swapped: None,
            began: None,
            queue: VecDeque::new(),
            held_until: None,
            stalled_until: None,
            failure: None,
        }
    }

    /// When the server was made, from which times are counted.
    pub(crate) fn since(&mut self, began: Instant) {
        self.began = Some(began);
    }

    /// A text frame of the client.
    pub(crate) fn frame(&mut self, text: &str, now: Instant) {
        match self.mode {
            Mode::Auto { .. } => {
                self.open_engine(now);
                self.engine.frame(text, now);
            }
            Mode::Steps if self.inbox.len() < MAX_INBOX || !B::is_audio(text) => {
                self.inbox.push_back(text.to_owned());
            }
            Mode::Steps => {}
        }
    }

    /// The next thing to write now.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Output> {
        loop {
            if self.held_until.is_some_and(|until| now < until) {
                return None;
            }
            self.held_until = None;
            match self.queue.pop_front() {
                Some(Queued::Output(output)) => return Some(output),
                Some(Queued::Pause(time)) => self.held_until = Some(now + time),
                Some(Queued::Until(at)) => self.held_until = Some(at),
                Some(Queued::Stall(time)) => {
                    self.held_until = Some(now + time);
                    self.stalled_until = self.held_until;
                }
                None if self.advance(now) => {}
                None => return None,
            }
        }
    }

    /// Whether frames are read now.
    pub(crate) fn reads(&self, now: Instant) -> bool {
        self.stalled_until.is_none_or(|until| until <= now)
    }

    /// When to poll again, though no frame came.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.held_until.is_some() {
            return self.held_until;
        }
        match self.mode {
            Mode::Auto { .. } => self.engine.deadline(),
            Mode::Steps => None,
        }
    }

    /// How the client left the script, once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// What the client left undone: the step that waits, if one does.
    pub(crate) fn unfinished(&self) -> Option<String> {
        let Some(Step::Expect(wanted)) = self.steps.front() else { return None };
        Some(format!("step {}: {wanted} was expected and did not come", self.done))
    }

    /// Makes more to write. `false`: there is nothing now.
    fn advance(&mut self, now: Instant) -> bool {
        if let Mode::Auto { .. } = self.mode {
            self.open_engine(now);
            self.engine.timeout(now);
            return match self.engine.next() {
                Some(Saying::Event { kind, text }) => {
                    self.pass(&kind, text);
                    true
                }
                Some(Saying::Close(code, reason)) => {
                    self.write(Output::Close(code, reason));
                    true
                }
                None => false,
            };
        }
        let Some(step) = self.steps.front() else { return false };
        if let Step::Expect(wanted) = step {
            let wanted = wanted.clone();
            if !self.expect(&wanted) {
                return false;
            }
        }
        let step = self.steps.pop_front();
        self.done += 1;
        match step {
            Some(Step::Expect(_)) | None => {}
            Some(Step::Auto { until, times }) => {
                self.mode = Mode::Auto { until, left: times };
                self.open_engine(now);
                for text in std::mem::take(&mut self.inbox) {
                    self.engine.frame(&text, now);
                }
            }
            Some(step) => self.perform(&step, None),
        }
        true
    }

    fn open_engine(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.opened, true) {
            self.engine.opened(now, !self.greeted);
        }
    }

    /// Whether what is wanted came. A client that does something else has left the script.
    fn expect(&mut self, wanted: &Value) -> bool {
        let wants_audio = B::is_audio(&wanted.to_string());
        while let Some(text) = self.inbox.pop_front() {
            if B::is_audio(&text) && !wants_audio {
                continue;
            }
            let came: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
            let mut kept = Vec::new();
            if holds(&came, wanted, &mut kept) {
                self.kept.extend(kept);
                return true;
            }
            if !B::is_audio(&text) {
                let message = format!("step {}: {wanted} was expected, {text} came", self.done);
                self.failure = Some(message.clone());
                self.steps.clear();
                self.write(Output::Close(LEFT_THE_SCRIPT, message));
                return true;
            }
        }
        false
    }

    /// Writes an event of the engine, and what goes wrong at it.
    fn pass(&mut self, kind: &str, text: Option<String>) {
        if let Some(text) = text {
            let mut steps = Vec::new();
            let mut instead = false;
            for (fault, seen) in self.faults.iter_mut().filter(|(fault, _)| fault.at == kind) {
                *seen += 1;
                if (fault.nth..fault.nth.saturating_add(fault.times)).contains(seen) {
                    instead |= fault.instead;
                    steps.extend(fault.steps.iter().cloned());
                }
            }
            if !instead {
                self.write_event(text.clone());
            }
            for step in steps {
                self.perform(&step, Some(&text));
            }
        }
        if let Mode::Auto { until: Some(until), left } = &mut self.mode
            && until == kind
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.mode = Mode::Steps;
            }
        }
    }

    /// Does a step. `event` is that of the engine at which it stands.
    fn perform(&mut self, step: &Step, event: Option<&str>) {
        match step {
            Step::Emit(event) => self.emit(event),
            Step::Error(fields) => {
                let error = self.engine.error(fields);
                self.emit(&error);
            }
            Step::Raw(text) => self.write(Output::Text(text.clone())),
            Step::Binary(size) => self.write(Output::Binary(vec![0; *size])),
            Step::Big(size) => {
                let filler = "x".repeat(*size);
                self.write(Output::Text(format!("{{\"type\":\"big\",\"filler\":\"{filler}\"}}")));
            }
            Step::AtMs(ms) => {
                let at = self.began.map(|began| began + Duration::from_millis(*ms));
                self.queue.extend(at.map(Queued::Until));
            }
            Step::DelayMs(ms) => self.queue.push_back(Queued::Pause(Duration::from_millis(*ms))),
            Step::StallMs(ms) => self.queue.push_back(Queued::Stall(Duration::from_millis(*ms))),
            Step::Close { code, reason } => self.write(Output::Close(*code, reason.clone())),
            Step::Drop => self.write(Output::Drop),
            Step::Duplicate => {
                if let Some(text) = event {
                    self.write(Output::Text(text.to_owned()));
                }
            }
            Step::Swap => self.swapped = event.map(str::to_owned),
            // Only exact scripts wait.
            Step::Expect(_) | Step::Auto { .. } => {}
        }
    }

    /// Writes an event with its variables filled in.
    fn emit(&mut self, event: &Value) {
        let mut event = fill(event, &self.kept);
        self.greeted |= self.engine.complete(&mut event);
        self.write_event(event.to_string());
    }

    fn write_event(&mut self, text: String) {
        self.write(Output::Text(text));
        if let Some(swapped) = self.swapped.take() {
            self.write(Output::Text(swapped));
        }
    }

    fn write(&mut self, output: Output) {
        self.queue.push_back(Queued::Output(output));
    }
}

/// Whether `value` holds all of `wanted`; what stands where `wanted` has `"$name"` is kept.
fn holds(value: &Value, wanted: &Value, kept: &mut Vec<(String, Value)>) -> bool {
    match (value, wanted) {
        (value, Value::String(name)) if name.starts_with('$') => {
            kept.push((name[1..].to_owned(), value.clone()));
            true
        }
        (Value::Object(value), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| holds(value.get(key).unwrap_or(&Value::Null), wanted, kept)),
        (Value::Array(value), Value::Array(wanted)) => {
            value.len() == wanted.len()
                && value.iter().zip(wanted).all(|(value, wanted)| holds(value, wanted, kept))
        }
        (value, wanted) => value == wanted,
    }
}

/// `value` with what was kept in place of `"$name"`.
fn fill(value: &Value, kept: &HashMap<String, Value>) -> Value {
    match value {
        Value::String(name) => match name.strip_prefix('$').and_then(|name| kept.get(name)) {
            Some(kept) => kept.clone(),
            None => value.clone(),
        },
        Value::Array(values) => values.iter().map(|value| fill(value, kept)).collect(),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), fill(value, kept)))
                .collect::<Map<_, _>>(),
        ),
        other => other.clone(),
    }
}
