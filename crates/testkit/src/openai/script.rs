//! What a scripted server does, as data.

use antiphon_openai::wire::Dialect;
use serde::Deserialize;
use serde_json::Value;

use crate::scripted::{Fault, Pace, Refusal, Rule, Step, Transcript};

/// What the server does on a connection. See the [module's documentation](super) for the format of
/// script files. Every field may be left out; an empty script behaves like the vendor's server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Script {
    /// Answers the upgrade so, instead of with a WebSocket.
    pub refuse: Option<Refusal>,
    /// The keys that are let in; others are refused with 401. Without it every key is.
    pub keys: Option<Vec<String>>,
    /// The words that the server speaks, and what it refuses.
    pub dialect: Dialect,
    /// Merged into the session that `session.created` tells of.
    pub session: Value,
    /// Leaves out of sessions what the vendor's own types do not know: `id`, `object` and
    /// `expires_at`. For validators that forbid unknown keys.
    pub plain_sessions: bool,
    /// Which reply follows what; the first that fits is taken.
    pub replies: Vec<Rule>,
    /// What the user's audio turns say, in order.
    pub transcripts: Vec<Transcript>,
    /// How fast replies come.
    pub pace: Pace,
    /// What goes wrong beside.
    pub faults: Vec<Fault>,
    /// Exact steps, instead of behaving; see [`Step::Auto`].
    pub steps: Option<Vec<Step>>,
    /// The session expires after so many seconds: an error, then close 1001. Default: one hour.
    pub expires_in_s: Option<u64>,
    /// One script for each connection, in order; the last is used for all that follow. What stands
    /// beside it does not count.
    pub connections: Vec<Script>,
}

impl Script {
    /// A server that behaves like the vendor's.
    pub fn auto() -> Self {
        Self::default()
    }

    /// A server that goes through these steps.
    pub fn steps(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: Some(steps.into_iter().collect()), ..Self::default() }
    }

    /// One script for each connection, in order.
    pub fn connections(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self { connections: scripts.into_iter().collect(), ..Self::default() }
    }

    /// From the text of a script file.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Adds a rule.
    pub fn reply(mut self, rule: Rule) -> Self {
        self.replies.push(rule);
        self
    }

    /// Sets the words that the server speaks.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Adds what the next audio turn of the user says.
    pub fn transcript(mut self, words: impl Into<String>) -> Self {
        self.transcripts.push(Transcript::Words(words.into()));
        self
    }

    /// Adds a fault.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Sets the pace.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Refuses the upgrade with this status.
    pub fn refuse(status: u16, body: impl Into<String>) -> Self {
        let refuse = Refusal { status, body: body.into(), ..Refusal::default() };
        Self { refuse: Some(refuse), ..Self::default() }
    }

    /// The script of a connection, counted from 0.
    pub(super) fn of_connection(&self, number: usize) -> &Self {
        match self.connections.get(number).or(self.connections.last()) {
            Some(script) => script.of_connection(number),
            None => self,
        }
    }
}
