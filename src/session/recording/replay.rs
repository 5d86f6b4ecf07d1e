//! Running a recorded session again.

use std::{
    fmt,
    io::BufRead,
    time::{Duration, Instant},
};

use super::{
    RecordingError,
    form::{End, Header, Line, Lines, Step},
    tape::{is_uplink, mark_output, mark_uplink, set_played_at},
};
use crate::session::{
    EndReason,
    engine::{Engine, Input, Output},
};

/// Runs a recorded session again, on a clock of its own and without waiting.
///
/// ```no_run
/// use std::{fs::File, io::BufReader};
///
/// let replayed = antiphon::session::recording::replay(BufReader::new(File::open("call.jsonl")?))?;
/// assert!(replayed.difference.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replay(recording: impl BufRead) -> Result<Replayed, RecordingError> {
    Stage::open(recording)?.run(|_| {})
}

/// The same, with somebody who watches.
#[cfg(test)]
pub(crate) fn watch(
    recording: impl BufRead,
    watch: impl FnMut(Scene<'_>),
) -> Result<Replayed, RecordingError> {
    Stage::open(recording)?.run(watch)
}

/// What came of running a recorded session again.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Replayed {
    /// Inputs and time-outs that the engine was given.
    pub inputs: u64,
    /// Outputs that were compared.
    pub outputs: u64,
    /// How long the session lasted.
    pub length: Duration,
    /// Why it ended, where its end was reached.
    pub ended: Option<EndReason>,
    /// Where the engine first did otherwise. What comes after is not looked at.
    pub difference: Option<Difference>,
    /// The recording ends with the session; otherwise it was given up, or the program was.
    pub complete: bool,
    /// Steps that are missing at its end because the disk was too slow.
    pub dropped: u64,
    /// The version of the toolkit that recorded it.
    pub recorded_by: String,
}

impl Replayed {
    /// Whether the whole session was the same.
    pub fn is_same(&self) -> bool {
        self.complete && self.difference.is_none()
    }
}

/// One line, and one more for each thing that is not as it should be.
impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inputs, outputs, length, .. } = self;
        let seconds = length.as_secs_f64();
        write!(f, "{inputs} inputs and {outputs} outputs over {seconds:.3} s: ")?;
        match &self.difference {
            None => write!(f, "the same")?,
            Some(difference) => write!(f, "not the same\n{difference}")?,
        }
        if self.difference.is_some() && self.recorded_by != env!("CARGO_PKG_VERSION") {
            write!(f, "\nit was recorded by version {}", self.recorded_by)?;
        }
        match (self.dropped, self.complete) {
            (0, true) => Ok(()),
            (0, false) => write!(f, "\nthe recording ends before the session does"),
            (dropped, _) => write!(f, "\nthe recording was given up; {dropped} steps are missing"),
        }
    }
}

/// Where a session went another way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The line of the recording, from 1.
    pub line: u64,
    /// Since the session's start.
    pub at: Duration,
    /// What the engine was given, by name.
    pub input: String,
    /// The name and digest of what came of it then; `None`: nothing more.
    pub recorded: Option<String>,
    /// What comes of it now; `None`: nothing more.
    pub replayed: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, at, input, recorded, replayed } = self;
        let what =
            |output: &Option<String>| output.clone().unwrap_or_else(|| "nothing more".into());
        write!(
            f,
            "line {line}, {:.3} s, after {input}: it was {}, and is {}",
            at.as_secs_f64(),
            what(recorded),
            what(replayed)
        )
    }
}

/// What happens while a session runs again.
#[derive(Debug)]
pub(crate) enum Act<'a> {
    /// The engine is given something.
    Input(&'a Input),
    /// Its deadline is reached.
    Timeout,
    /// It gives something.
    Output(&'a Output),
}

/// An act and its time.
pub(crate) struct Scene<'a> {
    pub(crate) at: Duration,
    pub(crate) act: Act<'a>,
    /// Before it is given something, after it gave something.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look into it"))]
    pub(crate) engine: &'a Engine,
}

/// A recorded session that can run.
pub(super) struct Stage<R> {
    lines: Lines<R>,
    engine: Engine,
    /// The session's start on the clock of this run.
    began: Instant,
    replayed: Replayed,
}

impl<R: BufRead> Stage<R> {
    pub(super) fn open(recording: R) -> Result<Self, RecordingError> {
        let mut lines = Lines::new(recording);
        let Header { config, toolkit, .. } = lines.header()?;
        let began = Instant::now();
        let replayed = Replayed {
            inputs: 0,
            outputs: 0,
            length: Duration::ZERO,
            ended: None,
            difference: None,
            complete: false,
            dropped: 0,
            recorded_by: toolkit,
        };
        Ok(Self { lines, engine: Engine::new(config, began), began, replayed })
    }

    /// Runs it to its end, or to where it is not the same any more.
    pub(super) fn run(
        mut self,
        mut watch: impl FnMut(Scene<'_>),
    ) -> Result<Replayed, RecordingError> {
        let mut first = true;
        while let Some(line) = self.lines.next_line()? {
            match line {
                Line::Step(step) => {
                    self.step(*step, std::mem::take(&mut first), &mut watch)?;
                    if self.replayed.difference.is_some() {
                        return Ok(self.replayed);
                    }
                }
                Line::End(End { complete, dropped }) => {
                    self.replayed.complete = complete;
                    self.replayed.dropped = dropped;
                    return Ok(self.replayed);
                }
            }
        }
        Ok(self.replayed)
    }

    fn step(
        &mut self,
        step: Step,
        first: bool,
        watch: &mut impl FnMut(Scene<'_>),
    ) -> Result<(), RecordingError> {
        let Step { at_ns, input, played_at_ns, taken, more } = step;
        let at = Duration::from_nanos(at_ns);
        let name = match &input {
            Some(input) => name_of(input),
            None if first => "the start".to_owned(),
            None => "a deadline".to_owned(),
        };
        self.replayed.length = self.replayed.length.max(at);
        match input {
            Some(mut input) => {
                if let Some(played_at) = played_at_ns.and_then(|ns| self.instant(ns)) {
                    set_played_at(&mut input, played_at);
                }
                watch(Scene { at, act: Act::Input(&input), engine: &self.engine });
                self.replayed.inputs += 1;
                self.engine.handle(*input, self.began + at);
            }
            None if first => {}
            None => {
                watch(Scene { at, act: Act::Timeout, engine: &self.engine });
                self.replayed.inputs += 1;
                self.engine.handle_timeout(self.began + at);
            }
        }
        for recorded in taken {
            self.replayed.outputs += 1;
            let replayed = if is_uplink(&recorded) {
                self.take_uplink(&recorded)
            } else {
                self.take_output(&recorded, at, watch)
            };
            if let Some(replayed) = replayed {
                self.differs(at, name, Some(recorded), replayed);
                return Ok(());
            }
        }
        if !more && let Some(output) = self.engine.poll_output() {
            self.differs(at, name, None, Some(told(mark_output(&output), &output)));
        }
        Ok(())
    }

    /// `Some`: not what was recorded, but this.
    fn take_output(
        &mut self,
        recorded: &str,
        at: Duration,
        watch: &mut impl FnMut(Scene<'_>),
    ) -> Option<Option<String>> {
        let Some(output) = self.engine.poll_output() else { return Some(None) };
        watch(Scene { at, act: Act::Output(&output), engine: &self.engine });
        if let Output::Ended { end } = &output {
            self.replayed.ended = Some(end.reason.clone());
        }
        let mark = mark_output(&output);
        (mark != recorded).then(|| Some(told(mark, &output)))
    }

    /// `Some`: not what was recorded, but this.
    fn take_uplink(&mut self, recorded: &str) -> Option<Option<String>> {
        let Some(command) = self.engine.poll_uplink() else { return Some(None) };
        let mark = mark_uplink(&command);
        (mark != recorded).then(|| Some(told(mark, &command)))
    }

    fn differs(
        &mut self,
        at: Duration,
        input: String,
        recorded: Option<String>,
        replayed: Option<String>,
    ) {
        let line = self.lines.number();
        self.replayed.difference = Some(Difference { line, at, input, recorded, replayed });
    }

    /// A time of the recording on the clock of this run.
    fn instant(&self, ns: i64) -> Option<Instant> {
        let away = Duration::from_nanos(ns.unsigned_abs());
        if ns < 0 { self.began.checked_sub(away) } else { self.began.checked_add(away) }
    }
}

/// A mark, and as much of what it stands for as a line holds.
fn told(mark: String, what: &impl fmt::Debug) -> String {
    const LONGEST: usize = 400;
    let mut what = format!("{what:?}");
    if what.len() > LONGEST {
        what.truncate(what.floor_char_boundary(LONGEST));
        what.push('…');
    }
    format!("{mark} ({what})")
}

fn name_of(input: &Input) -> String {
    use super::tape::variant;

    match input {
        Input::Provider { event, .. } => format!("the provider's {}", event.name()),
        Input::Host(command) => format!("the host's {}", variant(command)),
        other => variant(other),
    }
}
