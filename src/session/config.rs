//! Idle timers, bounds, reconnecting.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cost, PriceTable, UserAudio};

/// What happens when the user is silent. `None` switches a timer off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IdleConfig {
    /// The agent asks whether the user is still there. Default: 5 minutes.
    pub reminder_after: Option<Duration>,
    /// The session says goodbye and ends. Default: 15 minutes.
    pub deactivate_after: Option<Duration>,
}

impl Default for IdleConfig {
    fn default() -> Self {
        Self {
            reminder_after: Some(Duration::from_secs(5 * 60)),
            deactivate_after: Some(Duration::from_secs(15 * 60)),
        }
    }
}

impl IdleConfig {
    /// Neither timer.
    pub const OFF: Self = Self { reminder_after: None, deactivate_after: None };

    /// These timers.
    pub const fn new(reminder_after: Option<Duration>, deactivate_after: Option<Duration>) -> Self {
        Self { reminder_after, deactivate_after }
    }
}

/// Bounds and deadlines of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SessionLimits {
    /// How long `authorize_tool_call` may take before the call is denied. `None`: no deadline.
    /// Default: 100 ms.
    pub authorize_deadline: Option<Duration>,
    /// The user's audio kept while the wire is slow. Default: 2 seconds.
    pub uplink: Duration,
    /// The user's audio kept while a connection is replaced; the next one gets it. Default: 30 seconds.
    pub gap_audio: Duration,
    /// A connection is replaced by plan after so long, as before a limit that the provider tells: for a
    /// proxy or a load balancer that ends connections earlier. Default: `None`.
    pub connection: Option<Duration>,
    /// A reply's audio not yet played, after which the reply is cancelled. Default: 120 seconds.
    pub reply_audio: Duration,
    /// Without a sign that a reply is over, the session listens again this long after its last audio
    /// or transcript; when 30 seconds later nothing has come, what waits for its end goes ahead.
    /// Default: 900 ms.
    pub settle: Duration,
    /// With an agent linked: how long a turn that is over waits for the user's words, and, after its
    /// audio should have ended, for the sink's word that it was heard. Then it is committed without.
    /// Default: 5 seconds.
    pub turn_settle: Duration,
    /// Without any event after the user's turn, `stalled` is told. The turn is over with the user's words
    /// or, where none come, with their speech: as the provider tells it, and where it tells none, as it is
    /// heard in their audio. Default: 10 seconds.
    pub stall: Duration,
    /// What is done about that. Default: [`OnStall::Tell`].
    pub on_stall: OnStall,
    /// How long the provider may take to begin a reply, from when it is asked for it; see also
    /// [`SayOptions::begin_within`]. Default: 10 seconds.
    pub reply_start: Duration,
    /// How long the session may last. `None`: no bound. Default: none.
    pub max_length: Option<Duration>,
    /// How long the user may be silent, whatever the agent does meanwhile; beside
    /// [`IdleConfig`], for which time stands still while the agent speaks or works. `None`: no
    /// bound. Default: none.
    pub max_silence: Option<Duration>,
    /// What the session may cost by [`SessionLimits::prices`]. `None`: no bound. Default: none.
    pub max_cost: Option<Cost>,
    /// What its tokens cost. `None`, the default: nobody counts.
    pub prices: Option<PriceTable>,
    /// The agent takes leave so long before the session ends by its length or the user's silence, and
    /// has so long for it when it ends by its cost. Default: 15 seconds.
    pub wrap_up: Duration,
    /// Tools that run at the same time; further calls wait, within their time-outs. Default: 16.
    pub tools: usize,
    /// Bytes of JSON text of outputs too large for the model that are kept whole for the host
    /// ([`AgentSession::whole_output`](super::AgentSession::whole_output)); the oldest goes.
    /// Default: 64 MiB.
    pub whole_outputs: usize,
    /// How long the user's answer to a read-back is waited for. Default: 60 seconds.
    pub confirm: Duration,
    /// How long the host may take to answer a call of its own. Default: 2 minutes.
    pub host_tool: Duration,
    /// How long a hook may take before it is given up; one that blocks its thread is waited for
    /// all the same. Default: 30 seconds.
    pub hook: Duration,
    /// How long work may take that a caller left behind by hanging up ([`OnHangup::Detach`]); then it
    /// is aborted. Default: 15 minutes.
    pub detached: Duration,
    /// How long closing may take. Default: 3 seconds.
    pub close: Duration,
    /// Commands that may wait for the session's task. Default: 256.
    pub commands: usize,
    /// Events kept for a lagging consumer of the event stream. Default: 512.
    pub events: usize,
}

/// What is to happen after this may as well never happen.
pub(crate) const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

impl SessionLimits {
    /// With times that a clock can reach: hosts mean "never" by [`Duration::MAX`].
    pub(crate) fn within_reach(mut self) -> Self {
        let times = [
            &mut self.uplink,
            &mut self.gap_audio,
            &mut self.reply_audio,
            &mut self.settle,
            &mut self.turn_settle,
            &mut self.stall,
            &mut self.reply_start,
            &mut self.wrap_up,
            &mut self.confirm,
            &mut self.host_tool,
            &mut self.hook,
            &mut self.detached,
            &mut self.close,
        ];
        let maybe = [
            &mut self.authorize_deadline,
            &mut self.connection,
            &mut self.max_length,
            &mut self.max_silence,
        ];
        for time in times.into_iter().chain(maybe.into_iter().flatten()) {
            *time = NEVER.min(*time);
        }
        self
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            authorize_deadline: Some(Duration::from_millis(100)),
            uplink: Duration::from_secs(2),
            gap_audio: Duration::from_secs(30),
            connection: None,
            reply_audio: Duration::from_secs(120),
            settle: Duration::from_millis(900),
            turn_settle: Duration::from_secs(5),
            stall: Duration::from_secs(10),
            on_stall: OnStall::Tell,
            reply_start: Duration::from_secs(10),
            max_length: None,
            max_silence: None,
            max_cost: None,
            prices: None,
            wrap_up: Duration::from_secs(15),
            tools: 16,
            whole_outputs: 64 * 1024 * 1024,
            confirm: Duration::from_secs(60),
            host_tool: Duration::from_secs(120),
            hook: Duration::from_secs(30),
            detached: Duration::from_secs(15 * 60),
            close: Duration::from_secs(3),
            commands: 256,
            events: 512,
        }
    }
}

/// What is done about a provider that should be answering and is silent, though its connection
/// stands. In any case [`EventKind::Stalled`](super::EventKind::Stalled) tells of it: of words again and
/// again, and after the third time the turn is given up; of speech of which there are no words once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnStall {
    /// Nothing else.
    #[default]
    Tell,
    /// It is asked again, once for each turn.
    Nudge,
    /// Its connection is replaced, once for each turn, and the next one is asked. Speech of which there
    /// are no words it hears again.
    Resume,
    /// The session ends.
    Fail,
}

/// How something is said or played; [`Default`] is nothing special.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SayOptions {
    /// The user's speech does not interrupt it, and this becomes of the speech. `None`, the default:
    /// it interrupts as it does elsewhere.
    pub protected: Option<UserAudio>,
    /// It must have begun so long after it was asked for, the time in which it waited for another
    /// reply to end included; after that nobody wants to hear it. `None`, the default: it waits as
    /// long as it takes, and then the provider has [`SessionLimits::reply_start`].
    pub begin_within: Option<Duration>,
}

impl SayOptions {
    /// Nothing special.
    pub fn new() -> Self {
        Self::default()
    }

    /// The user's speech does not interrupt it.
    pub fn protected(mut self, audio: UserAudio) -> Self {
        self.protected = Some(audio);
        self
    }

    /// Sets how soon it must have begun.
    pub fn begin_within(mut self, within: Duration) -> Self {
        self.begin_within = Some(within);
        self
    }
}

/// How much of a long conversation a speech model is told when a session resumes it: the newest
/// messages and rounds of tools that are within all bounds, beginning with words of the user. A round
/// of tools is told whole or not at all. What is left out stays in the history of the agent; a
/// [`SessionBuilder::summarizer`](super::SessionBuilder::summarizer) puts it into a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryLimits {
    /// How many messages and calls. Default: 160.
    pub items: usize,
    /// How many tokens of text, of which each is reckoned as four bytes. Default: 8,000.
    pub tokens: usize,
    /// How many of the newest turns, each of which begins with words of the user. Default: any number.
    pub turns: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self::new(160, 8_000)
    }
}

impl HistoryLimits {
    /// At most so many messages and calls, and tokens.
    pub const fn new(items: usize, tokens: usize) -> Self {
        Self { items, tokens, turns: usize::MAX }
    }

    /// At most so many of the newest turns.
    pub const fn turns(mut self, turns: usize) -> Self {
        self.turns = turns;
        self
    }
}

/// Whose memory hooks, policies and tools of a session see. The raw memory keeps keys verbatim:
/// [`AgentSession::memory`](super::AgentSession::memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryScope {
    /// The session's own: keys are under `{session_id}/`, or `/{tenant}/{session_id}/` where the caller
    /// has a tenant.
    #[default]
    Session,
    /// The caller's, which all sessions of the caller share: keys are under `{caller_id}/`, or
    /// `/{tenant}/{caller_id}/`. Needs a [`SessionBuilder::caller`](super::SessionBuilder::caller).
    Caller,
}

/// What becomes of work that is under way when the caller hangs up: the session is stopped, or its
/// last handle dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnHangup {
    /// It is aborted, and what was said and done so far is committed.
    #[default]
    Abort,
    /// It goes on in the background: tools run on, and the model answers to their outputs, with nobody
    /// to hear it. A pending snapshot stands for it, which
    /// [`EventKind::Detached`](super::EventKind::Detached) names; by that the work can be waited for,
    /// looked after and aborted from any process, with the agent's
    /// [`task`](antiphon_agent::Agent::task). Once all is done the snapshot is what it came to,
    /// [`EventKind::TurnCommitted`](super::EventKind::TurnCommitted) tells of it, and the session
    /// ends: waiting for its end is waiting for the work. A process that dies before leaves the
    /// snapshot to be seen as expired within the agent's
    /// [`stale_after`](antiphon_agent::RuntimeLimits::stale_after).
    ///
    /// Needs an agent whose store tells of changes. Calls that are to be confirmed by the caller are
    /// refused, and so are those that the host answers, whose handles are closed. The work has
    /// [`SessionLimits::detached`]; bounds on the length of a call and on silence do not hold for it.
    Detach,
}

/// How a lost connection is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ReconnectPolicy {
    /// Attempts before the session fails, of which each tries the providers that the session falls back
    /// on as well. 0: never reconnect. Default: 5.
    pub max_attempts: u32,
    /// The first wait; each later one is twice as long. Default: 250 ms.
    pub initial_backoff: Duration,
    /// The longest wait. Default: 8 seconds.
    pub max_backoff: Duration,
    /// Each wait is shortened by chance, by less than so many percent, so that sessions that lost
    /// their server together do not all come back at once. 0 to 100. Default: 20.
    pub jitter_percent: u8,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial_backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(8),
            jitter_percent: 20,
        }
    }
}
