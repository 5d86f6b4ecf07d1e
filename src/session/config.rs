//! Idle timers, bounds, reconnecting.

use std::time::Duration;

/// What happens when the user is silent. `None` switches a timer off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLimits {
    /// How long `authorize_tool_call` may take before the call is denied. `None`: no deadline.
    /// Default: 100 ms.
    pub authorize_deadline: Option<Duration>,
    /// The user's audio kept while the wire is slow. Default: 2 seconds.
    pub uplink: Duration,
    /// A reply's audio not yet played, after which the reply is cancelled. Default: 120 seconds.
    pub reply_audio: Duration,
    /// Without a sign that a reply is over, the session listens again this long after its last audio
    /// or transcript; when 30 seconds later nothing has come, what waits for its end goes ahead.
    /// Default: 900 ms.
    pub settle: Duration,
    /// Without any event after the user's turn, `stalled` is told. Default: 10 seconds.
    pub stall: Duration,
    /// How long the user's answer to a read-back is waited for. Default: 60 seconds.
    pub confirm: Duration,
    /// How long the host may take to answer a call of its own. Default: 2 minutes.
    pub host_tool: Duration,
    /// How long a hook may take before it is given up; one that blocks its thread is waited for
    /// all the same. Default: 30 seconds.
    pub hook: Duration,
    /// How long closing may take. Default: 3 seconds.
    pub close: Duration,
    /// Commands that may wait for the session's task. Default: 256.
    pub commands: usize,
    /// Events kept for a lagging consumer of the event stream. Default: 512.
    pub events: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            authorize_deadline: Some(Duration::from_millis(100)),
            uplink: Duration::from_secs(2),
            reply_audio: Duration::from_secs(120),
            settle: Duration::from_millis(900),
            stall: Duration::from_secs(10),
            confirm: Duration::from_secs(60),
            host_tool: Duration::from_secs(120),
            hook: Duration::from_secs(30),
            close: Duration::from_secs(3),
            commands: 256,
            events: 512,
        }
    }
}

/// How a lost connection is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconnectPolicy {
    /// Attempts before the session fails. 0: never reconnect. Default: 5.
    pub max_attempts: u32,
    /// The first wait; each later one is twice as long. Default: 250 ms.
    pub initial_backoff: Duration,
    /// The longest wait. Default: 8 seconds.
    pub max_backoff: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial_backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(8),
        }
    }
}
