//! The idle clock: how long the session has waited for a silent user.

use std::time::{Duration, Instant};

use crate::session::IdleConfig;

/// Counts the time in which the session waits and the user says nothing. Only the user's activity
/// sets it back; while the agent speaks or works it stands still, so an answer to the reminder
/// neither brings the end closer nor puts it off.
#[derive(Debug)]
pub(crate) struct IdleClock {
    config: IdleConfig,
    silent: Duration,
    /// Since when time counts; `None` while it stands still.
    counting_since: Option<Instant>,
    reminded: bool,
    deactivated: bool,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleAction {
    /// Ask whether the user is still there.
    Remind,
    /// Say goodbye and end.
    Deactivate,
}

impl IdleClock {
    pub(crate) fn new(config: IdleConfig) -> Self {
        Self {
            config,
            silent: Duration::ZERO,
            counting_since: None,
            reminded: false,
            deactivated: false,
        }
    }

    /// Replaces the configuration; the time counted so far stays.
    pub(crate) fn configure(&mut self, config: IdleConfig) {
        self.config = config;
    }

    /// The configured time to the reminder.
    pub(crate) fn reminder_after(&self) -> Option<Duration> {
        self.config.reminder_after
    }

    /// The user did something.
    pub(crate) fn activity(&mut self, now: Instant) {
        self.silent = Duration::ZERO;
        self.reminded = false;
        self.deactivated = false;
        if let Some(since) = &mut self.counting_since {
            *since = now;
        }
    }

    /// Whether the session is busy: time stands still.
    pub(crate) fn set_busy(&mut self, busy: bool, now: Instant) {
        match (busy, self.counting_since) {
            (true, Some(since)) => {
                self.silent += now.saturating_duration_since(since);
                self.counting_since = None;
            }
            (false, None) => self.counting_since = Some(now),
            _ => {}
        }
    }

    /// When something is due next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let since = self.counting_since?;
        let (_, after) = self.next()?;
        Some(since + after.saturating_sub(self.silent))
    }

    /// What is due now; each at most once between two activities of the user.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<IdleAction> {
        if self.deadline()? > now {
            return None;
        }
        let (action, _) = self.next()?;
        match action {
            IdleAction::Remind => self.reminded = true,
            IdleAction::Deactivate => self.deactivated = true,
        }
        Some(action)
    }

    fn next(&self) -> Option<(IdleAction, Duration)> {
        let remind = self
            .config
            .reminder_after
            .filter(|_| !self.reminded && !self.deactivated)
            .map(|after| (IdleAction::Remind, after));
        let deactivate = self
            .config
            .deactivate_after
            .filter(|_| !self.deactivated)
            .map(|after| (IdleAction::Deactivate, after));
        match (remind, deactivate) {
            (Some(remind), Some(deactivate)) if remind.1 < deactivate.1 => Some(remind),
            (_, Some(deactivate)) => Some(deactivate),
            (remind, None) => remind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn clock(now: Instant) -> IdleClock {
        let mut clock = IdleClock::new(IdleConfig::new(Some(3 * SECOND), Some(6 * SECOND)));
        clock.set_busy(false, now);
        clock
    }

    #[test]
    fn reminds_once_then_deactivates() {
        let now = Instant::now();
        let mut clock = clock(now);
        assert_eq!(clock.deadline(), Some(now + 3 * SECOND));
        assert_eq!(clock.take_due(now + 2 * SECOND), None);
        assert_eq!(clock.take_due(now + 3 * SECOND), Some(IdleAction::Remind));
        assert_eq!(clock.deadline(), Some(now + 6 * SECOND));
        assert_eq!(clock.take_due(now + 6 * SECOND), Some(IdleAction::Deactivate));
        assert_eq!(clock.deadline(), None);
    }

    #[test]
    fn the_agents_own_speech_stops_the_clock_and_does_not_set_it_back() {
        let now = Instant::now();
        let mut clock = clock(now);
        assert_eq!(clock.take_due(now + 3 * SECOND), Some(IdleAction::Remind));
        clock.set_busy(true, now + 3 * SECOND);
        assert_eq!(clock.deadline(), None);
        clock.set_busy(false, now + 10 * SECOND);
        assert_eq!(clock.deadline(), Some(now + 13 * SECOND));
        assert_eq!(clock.take_due(now + 13 * SECOND), Some(IdleAction::Deactivate));
    }

    #[test]
    fn the_user_sets_it_back() {
        let now = Instant::now();
        let mut clock = clock(now);
        clock.take_due(now + 3 * SECOND);
        clock.activity(now + 5 * SECOND);
        assert_eq!(clock.deadline(), Some(now + 8 * SECOND));
        assert_eq!(clock.take_due(now + 8 * SECOND), Some(IdleAction::Remind));
    }

    #[test]
    fn another_configuration_holds_at_once_and_the_time_so_far_counts() {
        let now = Instant::now();
        let mut clock = clock(now);
        clock.configure(IdleConfig::new(Some(5 * SECOND), None));
        assert_eq!(clock.deadline(), Some(now + 5 * SECOND));
        assert_eq!(clock.take_due(now + 4 * SECOND), None);
        assert_eq!(clock.reminder_after(), Some(5 * SECOND));
        assert_eq!(clock.take_due(now + 5 * SECOND), Some(IdleAction::Remind));
        assert_eq!(clock.deadline(), None, "nothing comes after the reminder");
    }

    #[test]
    fn who_is_to_be_gone_by_then_is_not_reminded() {
        let now = Instant::now();
        for remind in [3, 6] {
            let config = IdleConfig::new(Some(remind * SECOND), Some(3 * SECOND));
            let mut clock = IdleClock::new(config);
            clock.set_busy(false, now);
            assert_eq!(clock.deadline(), Some(now + 3 * SECOND));
            assert_eq!(clock.take_due(now + 3 * SECOND), Some(IdleAction::Deactivate));
            assert_eq!((clock.deadline(), clock.take_due(now + 9 * SECOND)), (None, None));
        }
    }

    #[test]
    fn time_counts_in_pieces() {
        let now = Instant::now();
        let mut clock = clock(now);
        clock.set_busy(true, now + SECOND);
        clock.set_busy(true, now + 2 * SECOND);
        clock.set_busy(false, now + 5 * SECOND);
        clock.set_busy(false, now + 6 * SECOND);
        assert_eq!(clock.deadline(), Some(now + 7 * SECOND), "one second of three is over");
        clock.set_busy(true, now + 6 * SECOND);
        clock.activity(now + 8 * SECOND);
        assert_eq!(clock.deadline(), None, "it is busy whoever acts");
        clock.set_busy(false, now + 9 * SECOND);
        assert_eq!(clock.deadline(), Some(now + 12 * SECOND));
    }

    #[test]
    fn off_is_off() {
        let now = Instant::now();
        let mut clock = IdleClock::new(IdleConfig::OFF);
        clock.set_busy(false, now);
        assert_eq!(clock.deadline(), None);
        assert_eq!(clock.take_due(now + 1_000_000 * SECOND), None);
    }
}
