//! The words in which a trial is written: what the provider, the user and the host do, and when.

use antiphon::{agent::OnInterruption, session::*};
use antiphon_testkit::openai::Step;

use super::people::People;

/// One step of a trial. Replies are counted from 1 as they begin, and what belongs to a reply is the
/// newest one's; the user's utterances likewise.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// The user begins to speak.
    Starts,
    /// The user falls silent.
    Stops,
    /// These are the words of the last speech; none is a noise.
    Heard(&'static str),
    /// The next reply begins.
    Begins,
    /// It says this, a sentence with a blank after it.
    Words(&'static str),
    /// So many milliseconds of its voice come.
    Voice(usize),
    /// Voice in another item of the reply.
    VoiceOf(&'static str, usize),
    /// It calls a tool: id, name, arguments.
    Call(&'static str, &'static str, &'static str),
    /// It calls a tool with so many bytes of arguments.
    CallOf(&'static str, &'static str, usize),
    /// It is over.
    Done,
    /// It is over because the client stopped it.
    Cancelled,
    /// It is over because the user spoke.
    Interrupted,
    /// It is over, and was paid for: a thousand audio tokens out, and 800 in of which 500 were read
    /// from a cache.
    Paid,
    /// It could not be made, through a fault of the provider's.
    Fails,
    /// The provider says that a reply is active already; with the name of the request, or without.
    Busy { named: bool },
    /// The provider refuses the output of the last call.
    Rejects(&'static str),
    /// The connection is lost without a word. What the provider does later it does on the next one.
    Drop,
    /// The provider closes, with a code and a reason.
    Close(u16, &'static str),
    /// The connection has lasted as long as the provider lets any, and ends as it ends them.
    Expires,
    /// The provider gives a handle to go on by, where it has such.
    Handle(&'static str),
    /// It says that it closes in so many seconds, where it says such things.
    GoesAway(u64),
    /// It neither reads nor writes for so many milliseconds, pongs among it.
    Stalls(u64),
    /// The client leaves its connection by itself.
    Leaves,
    /// So many milliseconds of the user's audio in which nobody speaks.
    Sound(u32),
    /// The host writes.
    Text(&'static str),
    /// The host has this said.
    Say(&'static str),
    /// The host stops the agent.
    Interrupt,
    /// The host answers a call by itself.
    Answer(&'static str),
    /// The host wants another connection.
    Reconnect,
    /// So many milliseconds are heard.
    Play(usize),
    /// All that is queued is heard.
    PlayAll,
    /// The tool `slow` finishes.
    Release,
    /// Somebody approves the call that waits; with arguments that were not shown, or as it is.
    Approve { changed: bool },
}

impl Do {
    /// Whether the provider's next steps are on another connection.
    fn ends_connection(self) -> bool {
        let ends = matches!(self, Self::Drop | Self::Close(..) | Self::Expires);
        ends || matches!(self, Self::Reconnect | Self::Leaves)
    }
}

/// A step and when it is taken, in milliseconds since the session began.
pub type Timed = (u64, Do);

/// What was seen of a trial.
#[derive(Debug, Default)]
pub struct Seen {
    /// What the provider was sent, without audio, in order.
    pub sent: Vec<Sent>,
    /// What the session told.
    pub events: Vec<EventKind>,
    /// Milliseconds that were heard.
    pub heard_ms: usize,
    /// Milliseconds that wait to be heard.
    pub queued_ms: usize,
    /// Ids of the calls that a tool was run for.
    pub ran: Vec<String>,
    /// Milliseconds of the user's audio that the provider was sent.
    pub uplink_ms: usize,
    /// Connections that the provider saw.
    pub connections: u32,
    /// The handles that connections were asked to go on by.
    pub resumed_by: Vec<String>,
    /// What those were told who approved.
    pub decided: Vec<String>,
    pub state: SessionState,
    pub stats: SessionStats,
}

/// One thing that the provider was sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    /// A reply is asked for.
    Create,
    /// A reply is to stop.
    Cancel,
    /// Of an item of a reply so many milliseconds were heard.
    Truncate(String, u64),
    /// The output of a call; `false`: it is an error.
    Output(String, bool),
    /// The user's words.
    Text(String),
}

impl Seen {
    pub fn count(&self, is: impl Fn(&Sent) -> bool) -> usize {
        self.sent.iter().filter(|sent| is(sent)).count()
    }

    pub fn creates(&self) -> usize {
        self.count(|sent| *sent == Sent::Create)
    }

    pub fn cancels(&self) -> usize {
        self.count(|sent| *sent == Sent::Cancel)
    }

    pub fn truncations(&self) -> Vec<(&str, u64)> {
        self.sent
            .iter()
            .filter_map(|sent| match sent {
                Sent::Truncate(item, ms) => Some((item.as_str(), *ms)),
                _ => None,
            })
            .collect()
    }

    /// The ids of the calls that have an output, and whether it is no error.
    pub fn outputs(&self) -> Vec<(&str, bool)> {
        self.sent
            .iter()
            .filter_map(|sent| match sent {
                Sent::Output(id, good) => Some((id.as_str(), *good)),
                _ => None,
            })
            .collect()
    }

    pub fn told(&self, is: impl Fn(&EventKind) -> bool) -> usize {
        self.events.iter().filter(|kind| is(kind)).count()
    }

    /// What each connection after the first was told to know.
    pub fn restored(&self) -> Vec<Continuity> {
        let told = self.events.iter().filter_map(|kind| match kind {
            EventKind::StateRestored { restored, .. } => Some(*restored),
            _ => None,
        });
        told.collect()
    }

    pub fn messages(&self) -> Vec<(String, bool)> {
        crate::rig::agent_messages(&self.events)
    }

    pub fn users(&self) -> Vec<String> {
        crate::rig::user_messages(&self.events)
    }
}

/// A trial.
pub struct Trial {
    /// The line of the list of faults.
    pub name: &'static str,
    /// What happens.
    pub script: &'static [Timed],
    /// How the session is set up.
    pub setup: Setup,
    /// What must have come of it.
    pub holds: fn(&Seen),
    /// Lines that cannot show it, and why.
    pub not: &'static [(&'static str, &'static str)],
}

impl Trial {
    /// The steps of a scripted server, of each connection in its order. `set_up` begins them all;
    /// `said` is what the provider says at a step.
    pub fn connections(
        &self,
        set_up: impl Fn() -> Vec<Step>,
        mut said: impl FnMut(&Do) -> Vec<Step>,
    ) -> Vec<Vec<Step>> {
        let mut connections = vec![set_up()];
        for (at, step) in self.script {
            let steps = match step {
                Do::Drop => vec![Step::Drop],
                Do::Close(code, reason) => vec![Step::close(*code, *reason)],
                Do::Stalls(ms) => vec![Step::StallMs(*ms)],
                other => said(other),
            };
            if let Some(last) = connections.last_mut()
                && !steps.is_empty()
            {
                last.push(Step::AtMs(*at));
                last.extend(steps);
            }
            if step.ends_connection() {
                connections.push(set_up());
            }
        }
        connections
    }
}

/// How the session of a trial is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Speech is judged.
    pub judged: bool,
    /// Seconds to the reminder.
    pub remind: Option<u64>,
    /// What an interruption does to the tool `slow`.
    pub slow: OnInterruption,
    /// The policy denies everything.
    pub denies: bool,
    /// The tool `mine` is the host's.
    pub hosts: bool,
    /// The session is over at the end.
    pub ends: bool,
    /// Who else there is.
    pub people: People,
}

impl Setup {
    pub const PLAIN: Self = Self {
        judged: false,
        remind: None,
        slow: OnInterruption::Keep,
        denies: false,
        hosts: false,
        ends: false,
        people: People::Nobody,
    };
    pub const JUDGED: Self = Self { judged: true, ..Self::PLAIN };
}
