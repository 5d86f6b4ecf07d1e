//! A call that the agent ends: once its goodbye was heard.

use std::time::{Duration, Instant};

use super::{CallEnd, Conversation, GOODBYE};
use crate::session::SessionState;

/// A goodbye that was asked for is waited for so long at most.
const ENDING: Duration = Duration::from_secs(30);
/// Of a longer one that is still being heard, so much.
const LONGEST_ENDING: Duration = Duration::from_secs(180);
/// When nobody has said anything for so long after the hang-up was asked for, nobody will.
const QUIET: Duration = Duration::from_millis(1_500);

/// The call ends once the goodbye was heard.
pub(super) struct Ending {
    until: Instant,
    /// However long the goodbye is.
    last: Instant,
    quiet_since: Option<Instant>,
}

impl Ending {
    /// Asked for now; what is to be heard begins within `begins`, where that is known.
    pub(super) fn new(begins: Option<Duration>, now: Instant) -> Self {
        let until = now + ENDING + begins.unwrap_or_default();
        Self { until, last: now + LONGEST_ENDING, quiet_since: begins.map(|begins| now + begins) }
    }
}

impl Conversation<'_> {
    /// Whether the goodbye was heard; else when to look again.
    pub(super) fn is_over(&mut self, now: Instant) -> Result<Option<Instant>, CallEnd> {
        let silent = self.voice.is_idle();
        let quiet = silent && self.session.state() == SessionState::Listening;
        let ends_at = self.voice.ends_at().filter(|_| !silent);
        let Some(ending) = &mut self.ending else { return Ok(None) };
        if let Some(ends_at) = ends_at {
            // A long goodbye is heard to its end.
            ending.until = ending.until.max(ends_at + GOODBYE).min(ending.last);
        }
        if !quiet {
            ending.quiet_since = None;
            // The session tells when it changes; a goodbye has its longest time.
            return if now >= ending.until {
                Err(CallEnd::AgentHungUp)
            } else {
                Ok(Some(ending.until))
            };
        }
        let since = *ending.quiet_since.get_or_insert(now);
        let over = (since + QUIET).min(ending.until);
        if now >= over { Err(CallEnd::AgentHungUp) } else { Ok(Some(over)) }
    }
}
