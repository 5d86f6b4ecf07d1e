//! Every deadline of a voice session, as data.

use std::time::{Duration, Instant};

use crate::session::config::NEVER;

/// When `wait` will be over. Hosts and providers mean "never" by times that no clock can reach.
pub(crate) fn at(now: Instant, wait: Duration) -> Instant {
    now + wait.min(NEVER)
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Timer {
    /// A reply that gives no more audio and never says that it is over is taken as over.
    Settle,
    /// Nothing came of a reply since it was taken as over, and its end did not either.
    LostEnd,
    /// The user's turn is over and nothing came from the provider.
    Stall,
    /// The user has spoken and nothing came from the provider.
    Answer,
    /// The provider has not begun a reply that it was asked for.
    Request,
    /// The provider has not ended a reply that it was asked to stop.
    CancelAck,
    /// A tool has been running for long.
    ToolStall,
    /// The host has not answered a call of its own.
    HostTool,
    /// The user has not answered a read-back.
    Confirm,
    /// The host has not judged a prompt of the session's own.
    PromptVerdict,
    /// The user was silent for as long as the idle configuration says.
    Idle,
    /// The user finished speaking; the words are still awaited.
    TranscriptWait,
    /// A reply is over and the user's words before it never became final.
    TranscriptFlush,
    /// The user's speech over the agent's has lasted long enough, or its words did not come.
    BargeIn,
    /// The goodbye is over, or was never said.
    Goodbye,
    /// A bound of the session is nearly reached.
    WrapUp,
    /// A bound of the session is reached.
    HardEnd,
    /// Work that a caller left behind must be done by now.
    HungUp,
    /// All audio should have been heard by now, and the sink has not said so.
    Marks,
    /// Audio was held back long enough.
    HoldBack,
    /// A call has waited long enough for the user's words.
    Words,
    /// The next attempt to connect.
    Backoff,
    /// The connection comes near its longest life; it is replaced at the next quiet moment.
    Expiry,
    /// The provider goes away; a new connection must be made now.
    GoingAway,
    /// A provider that is better than the present one may be back.
    Home,
    /// The moment may be quiet enough by now to replace the connection.
    Quiet,
    /// Tools must have ended by now; the session closes without them.
    Close,
}

const TIMERS: [Timer; 27] = [
    Timer::Settle,
    Timer::LostEnd,
    Timer::Stall,
    Timer::Answer,
    Timer::Request,
    Timer::CancelAck,
    Timer::ToolStall,
    Timer::HostTool,
    Timer::Confirm,
    Timer::PromptVerdict,
    Timer::Idle,
    Timer::TranscriptWait,
    Timer::TranscriptFlush,
    Timer::BargeIn,
    Timer::Goodbye,
    Timer::WrapUp,
    Timer::HardEnd,
    Timer::HungUp,
    Timer::Marks,
    Timer::HoldBack,
    Timer::Words,
    Timer::Backoff,
    Timer::Expiry,
    Timer::GoingAway,
    Timer::Home,
    Timer::Quiet,
    Timer::Close,
];

/// The table of deadlines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    at: [Option<Instant>; TIMERS.len()],
}

impl Timers {
    /// Sets `timer` to fire at `at`, whatever it was set to before.
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        self.at[timer as usize] = Some(at);
    }

    /// Sets or stops `timer`.
    pub(crate) fn set_to(&mut self, timer: Timer, at: Option<Instant>) {
        self.at[timer as usize] = at;
    }

    /// `timer` fires at `at`, or earlier if it was going to.
    pub(crate) fn bring_forward(&mut self, timer: Timer, at: Instant) {
        let slot = &mut self.at[timer as usize];
        *slot = Some(slot.map_or(at, |present| present.min(at)));
    }

    /// `timer` does not fire.
    pub(crate) fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = None;
    }

    /// Whether `timer` is going to fire.
    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.at[timer as usize].is_some()
    }

    /// Nothing fires.
    pub(crate) fn stop_all(&mut self) {
        self.at = Default::default();
    }

    /// When `timer` is going to fire.
    pub(crate) fn due(&self, timer: Timer) -> Option<Instant> {
        self.at[timer as usize]
    }

    /// When the next one fires.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.at.iter().flatten().min().copied()
    }

    /// Takes the earliest timer that has fired by `now`.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Timer> {
        let (index, at) = self
            .at
            .iter()
            .enumerate()
            .filter_map(|(index, at)| at.map(|at| (index, at)))
            .min_by_key(|(_, at)| *at)?;
        if at > now {
            return None;
        }
        self.at[index] = None;
        Some(TIMERS[index])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_fire_in_the_order_of_their_deadlines_and_once() {
        let now = Instant::now();
        let mut timers = Timers::default();
        timers.set(Timer::Settle, now + Duration::from_secs(2));
        timers.set(Timer::Close, now + Duration::from_secs(1));
        assert_eq!(timers.next(), Some(now + Duration::from_secs(1)));
        assert_eq!(timers.take_expired(now), None);
        let later = now + Duration::from_secs(3);
        assert_eq!(timers.take_expired(later), Some(Timer::Close));
        assert_eq!(timers.take_expired(later), Some(Timer::Settle));
        assert_eq!(timers.take_expired(later), None);
    }

    #[test]
    fn never_is_a_time_too() {
        let now = Instant::now();
        assert_eq!(at(now, Duration::from_secs(1)), now + Duration::from_secs(1));
        assert_eq!(at(now, Duration::MAX), now + NEVER);
        assert!(at(now + NEVER, Duration::MAX) > now + NEVER);
    }

    #[test]
    fn each_timer_has_its_own_place() {
        let now = Instant::now();
        for timer in TIMERS {
            let mut timers = Timers::default();
            timers.set(timer, now);
            assert_eq!(timers.take_expired(now), Some(timer));
        }
    }
}
