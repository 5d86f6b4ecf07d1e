//! What a scripted server does, as data.

use std::time::Duration;

use serde::Deserialize;

use crate::scripted::{Fault, Pace, Refusal, Rule, Step, Transcript};

/// What the server does on a connection. See the [module's documentation](super) for the format of
/// script files. Every field may be left out; an empty script behaves like the vendor's server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Script {
    /// Answers the upgrade so, instead of with a WebSocket.
    pub refuse: Option<Refusal>,
    /// The keys and tokens that are let in. Without it every one is.
    pub keys: Option<Vec<String>>,
    /// Writes text frames.
    pub text_frames: bool,
    /// Which reply follows what; the first that fits is taken.
    pub replies: Vec<Rule>,
    /// What the user's audio turns say, in order.
    pub transcripts: Vec<Transcript>,
    /// How fast replies come.
    pub pace: Pace,
    /// Turns end when all was said, not when it would have been heard.
    pub ends_at_once: bool,
    /// Milliseconds from `setup` to `setupComplete`. Default: 5.
    pub setup_ms: Option<u64>,
    /// Seconds that a connection lasts. Default: 600.
    pub lifetime_s: Option<u64>,
    /// Seconds before its end, at which `goAway` says so. Default: 50.
    pub notice_s: Option<u64>,
    /// Seconds that a handle is good after its connection ended. Default: 7,200.
    pub handle_valid_s: Option<u64>,
    /// What goes wrong beside.
    pub faults: Vec<Fault>,
    /// Exact steps, instead of behaving; see [`Step::Auto`].
    pub steps: Option<Vec<Step>>,
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

    /// Ends turns when all was said.
    pub fn ends_at_once(mut self) -> Self {
        self.ends_at_once = true;
        self
    }

    /// Sets how long connections last, and how long before their end they say so.
    pub fn lifetime(mut self, lifetime_s: u64, notice_s: u64) -> Self {
        (self.lifetime_s, self.notice_s) = (Some(lifetime_s), Some(notice_s));
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

    pub(super) fn setup_time(&self) -> Duration {
        Duration::from_millis(self.setup_ms.unwrap_or(5))
    }

    pub(super) fn lifetime_of_connections(&self) -> Duration {
        Duration::from_secs(self.lifetime_s.unwrap_or(600))
    }

    pub(super) fn notice(&self) -> Duration {
        Duration::from_secs(self.notice_s.unwrap_or(50))
    }

    pub(super) fn handles_last(&self) -> Duration {
        Duration::from_secs(self.handle_valid_s.unwrap_or(7_200))
    }
}
