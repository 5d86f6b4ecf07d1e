//! The steps of a random life.

use std::fmt;

use proptest::prelude::*;

/// One step of a random life. Numbers choose among few replies, items and calls, so that they meet.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Speech(bool),
    Heard {
        item: u8,
        text: u8,
        done: bool,
    },
    Start {
        reply: u8,
        answers: bool,
    },
    Words {
        done: bool,
    },
    Voice {
        ms: u16,
    },
    Calls {
        count: u8,
    },
    CallsBack(u8),
    Done {
        outcome: u8,
    },
    Interrupted(Option<u8>),
    Trouble(u8),
    Host(u8),
    Judge(u8),
    ToolEnds(u8),
    /// A tool tells how far it is: what it says, and whether it has a piece of output.
    Progress {
        says: bool,
        gives: bool,
    },
    /// A turn is on disk, or could not be written.
    Committed(bool),
    /// The user speaks while the agent is heard: it pauses, where speech is judged.
    Over {
        ms: u16,
    },
    Heed {
        prompt: bool,
    },
    Played {
        complete: bool,
    },
    Wait(u32),
}

/// The names of the kinds of steps.
pub(super) const KINDS: [&str; 19] = [
    "speech",
    "user words",
    "reply started",
    "agent words",
    "audio",
    "tool calls",
    "calls cancelled",
    "reply done",
    "interrupted",
    "trouble",
    "host",
    "verdict",
    "tool done",
    "tool progress",
    "committed",
    "speech over the agent",
    "prompt verdict",
    "played",
    "time",
];

impl Step {
    fn kind(&self) -> usize {
        match self {
            Self::Speech(_) => 0,
            Self::Heard { .. } => 1,
            Self::Start { .. } => 2,
            Self::Words { .. } => 3,
            Self::Voice { .. } => 4,
            Self::Calls { .. } => 5,
            Self::CallsBack(_) => 6,
            Self::Done { .. } => 7,
            Self::Interrupted(_) => 8,
            Self::Trouble(_) => 9,
            Self::Host(_) => 10,
            Self::Judge(_) => 11,
            Self::ToolEnds(_) => 12,
            Self::Progress { .. } => 13,
            Self::Committed(_) => 14,
            Self::Over { .. } => 15,
            Self::Heed { .. } => 16,
            Self::Played { .. } => 17,
            Self::Wait(_) => 18,
        }
    }
}

pub(super) fn step() -> impl Strategy<Value = Step> {
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
        (1..4u8).prop_map(|count| Step::Calls { count }),
        (0..8u8).prop_map(Step::CallsBack),
        (0..5u8).prop_map(|outcome| Step::Done { outcome }),
        proptest::option::of(0..6u8).prop_map(Step::Interrupted),
        (0..16u8).prop_map(Step::Trouble),
        (0..16u8).prop_map(Step::Host),
        (0..8u8).prop_map(Step::Judge),
        (0..8u8).prop_map(Step::ToolEnds),
        any::<(bool, bool)>().prop_map(|(says, gives)| Step::Progress { says, gives }),
        any::<bool>().prop_map(Step::Committed),
        (0..1_500u16).prop_map(|ms| Step::Over { ms }),
        any::<bool>().prop_map(|prompt| Step::Heed { prompt }),
        any::<bool>().prop_map(|complete| Step::Played { complete }),
        (0..20_000u32).prop_map(Step::Wait),
    ]
}

/// How often a step of one kind came right after one of another, in the same life.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    counts: [[u64; KINDS.len()]; KINDS.len()],
    steps: u64,
}

impl Pairs {
    /// A step was taken after `last`.
    pub(super) fn met(&mut self, last: Option<&Step>, step: &Step) {
        self.steps += 1;
        if let Some(last) = last {
            self.counts[last.kind()][step.kind()] += 1;
        }
    }

    /// The pairs that never met.
    pub(super) fn never(&self) -> Vec<(&'static str, &'static str)> {
        let mut never = Vec::new();
        for (before, row) in self.counts.iter().enumerate() {
            for (after, count) in row.iter().enumerate() {
                if *count == 0 {
                    never.push((KINDS[before], KINDS[after]));
                }
            }
        }
        never
    }
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} steps; how often each kind (left) was followed by each (above):",
            self.steps
        )?;
        write!(f, "{:>16}", "")?;
        KINDS.iter().try_for_each(|kind| write!(f, " {:>6.6}", kind))?;
        for (kind, row) in KINDS.iter().zip(&self.counts) {
            write!(f, "\n{kind:>16}")?;
            row.iter().try_for_each(|count| write!(f, " {count:>6}"))?;
        }
        Ok(())
    }
}
