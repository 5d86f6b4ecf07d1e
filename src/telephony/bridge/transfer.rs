//! Handing a call on: what the agent says with it is heard first, then the carrier is asked, and then
//! somebody answers there, or nobody does and the agent has the call again.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::ControlError;

/// What is said with it is waited for so long at most.
const ANNOUNCING: Duration = Duration::from_secs(30);
/// When nothing has been heard for so long, nothing more comes.
const QUIET: Duration = Duration::from_millis(300);
/// The carrier says within this time how the other number's ringing ended.
const RINGING: Duration = Duration::from_secs(75);
/// A dialplan that takes the call asks for its number within this time.
const ASKING: Duration = Duration::from_secs(10);

/// Where the outcome goes.
pub(super) type Done = oneshot::Sender<Result<(), ControlError>>;

/// A call that is being handed on.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) to: String,
    done: Done,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The caller hears what is said with it.
    Announcing { until: Instant, quiet_since: Option<Instant> },
    /// The carrier is asked.
    Asked,
    /// The other number rings.
    Ringing { until: Instant },
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Look again then.
    At(Instant),
    /// Ask the carrier.
    Ask,
    /// Nobody has said how it ended, and nobody will.
    Unknown,
    /// Whoever wanted it does not want it any more.
    Dropped,
    /// Nothing.
    Nothing,
}

impl Transfer {
    pub(super) fn new(to: String, done: Done, now: Instant) -> Self {
        let stage = Stage::Announcing { until: now + ANNOUNCING, quiet_since: None };
        Self { to, done, stage }
    }

    /// Looks at the time. `quiet`: the caller hears nothing, and nothing is on its way.
    pub(super) fn due(&mut self, quiet: bool, now: Instant) -> Due {
        match &mut self.stage {
            Stage::Announcing { .. } if self.done.is_closed() => Due::Dropped,
            Stage::Announcing { until, quiet_since } => {
                if !quiet {
                    *quiet_since = None;
                }
                let over = match quiet {
                    true => (*quiet_since.get_or_insert(now) + QUIET).min(*until),
                    false => *until,
                };
                if now >= over { Due::Ask } else { Due::At(over) }
            }
            Stage::Asked => Due::Nothing,
            Stage::Ringing { until } if now >= *until => Due::Unknown,
            Stage::Ringing { until } => Due::At(*until),
        }
    }

    pub(super) fn asked(&mut self) {
        self.stage = Stage::Asked;
    }

    /// The other number rings, as far as we know.
    pub(super) fn rings(&mut self, now: Instant) {
        self.stage = Stage::Ringing { until: now + RINGING };
    }

    /// The dialplan will ask for the number.
    pub(super) fn offered(&mut self, now: Instant) {
        self.stage = Stage::Ringing { until: now + ASKING };
    }

    /// Whether the carrier has been asked: the stream may end because of it.
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Announcing { .. })
    }

    /// Tells how it ended. Whoever asked may be gone.
    pub(super) fn tell(self, outcome: Result<(), ControlError>) {
        let _ = self.done.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(now: Instant) -> (Transfer, oneshot::Receiver<Result<(), ControlError>>) {
        let (done, outcome) = oneshot::channel();
        (Transfer::new("+15550001".into(), done, now), outcome)
    }

    #[test]
    fn what_is_said_with_it_is_heard_before_the_carrier_is_asked() {
        let now = Instant::now();
        let (mut transfer, _outcome) = transfer(now);
        assert_eq!(transfer.due(false, now), Due::At(now + ANNOUNCING));
        let later = now + Duration::from_secs(4);
        assert_eq!(transfer.due(true, later), Due::At(later + QUIET));
        // More of it comes after all.
        assert_eq!(transfer.due(false, later + QUIET), Due::At(now + ANNOUNCING));
        let end = later + Duration::from_secs(3);
        assert_eq!(transfer.due(true, end), Due::At(end + QUIET));
        assert_eq!(transfer.due(true, end + QUIET), Due::Ask);
    }

    #[test]
    fn speech_without_end_does_not_keep_it_for_ever() {
        let now = Instant::now();
        let (mut transfer, _outcome) = transfer(now);
        assert_eq!(transfer.due(false, now + ANNOUNCING), Due::Ask);
        transfer.rings(now + ANNOUNCING);
        assert!(transfer.is_under_way());
        assert_eq!(transfer.due(true, now + ANNOUNCING + RINGING), Due::Unknown);
    }

    #[test]
    fn it_is_dropped_when_its_tool_was_cancelled() {
        let now = Instant::now();
        let (mut transfer, outcome) = transfer(now);
        drop(outcome);
        assert_eq!(transfer.due(true, now), Due::Dropped);
    }
}
