//! When and how often a lost connection is replaced.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_live::{HistoryItem, HistoryRole, LiveError, Resumption};

use crate::session::{ReconnectPolicy, ResumedFrom, journal::Seed};

/// A connection that lived this long is believed in: the count of attempts starts again.
const STABLE: Duration = Duration::from_secs(30);
/// What a later connection is told of the conversation, at most.
const MAX_HISTORY: usize = 200;

/// The state of reconnecting.
#[derive(Debug)]
pub(crate) struct Reconnect {
    policy: ReconnectPolicy,
    attempts: u32,
    connected_at: Option<Instant>,
    /// The newest handle of the provider.
    pub(crate) handle: Option<Resumption>,
    /// The present connection continues an earlier one: it knows the calls of before.
    pub(crate) resumed: bool,
    /// What the session goes on from, until it was told.
    pub(crate) resumed_from: Option<ResumedFrom>,
    /// With the turn that each belongs to; 0 is before the session.
    history: VecDeque<(u64, HistoryItem)>,
}

impl Reconnect {
    /// `seed`: what was said before the session.
    pub(crate) fn new(policy: ReconnectPolicy, seed: Option<Seed>) -> Self {
        let (history, resumed_from) = match seed {
            Some(Seed { history, told }) => (history, Some(told)),
            None => (Vec::new(), None),
        };
        Self {
            policy,
            attempts: 0,
            connected_at: None,
            handle: None,
            resumed: false,
            resumed_from,
            history: history.into_iter().map(|item| (0, item)).collect(),
        }
    }

    /// Whether connections are replaced at all.
    pub(crate) fn is_on(&self) -> bool {
        self.policy.max_attempts > 0
    }

    /// A connection stands.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// A reply came to its end: the connection is good.
    pub(crate) fn worked(&mut self) {
        self.attempts = 0;
    }

    /// The connection is lost, or an attempt failed. `Some((attempt, wait))`: try again so.
    pub(crate) fn next_attempt(
        &mut self,
        error: &LiveError,
        now: Instant,
    ) -> Option<(u32, Duration)> {
        if self.connected_at.take().is_some_and(|at| now.duration_since(at) >= STABLE) {
            self.attempts = 0;
        }
        if !error.is_recoverable() || self.attempts >= self.policy.max_attempts {
            return None;
        }
        let doubled = 1u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        let backoff =
            self.policy.initial_backoff.saturating_mul(doubled).min(self.policy.max_backoff);
        self.attempts += 1;
        let wait = match error {
            LiveError::RateLimited { retry_after: Some(after), .. } => backoff.max(*after),
            _ => backoff,
        };
        Some((self.attempts, wait))
    }

    /// A change of connections that the provider asked for: at once.
    pub(crate) fn planned_attempt(&mut self) -> u32 {
        self.connected_at = None;
        self.attempts += 1;
        self.attempts
    }

    /// Remembers what was said or done in a turn. The user's words often come after the calls and
    /// the reply that they led to; here they stand before them.
    pub(crate) fn remember(&mut self, turn: u64, item: HistoryItem) {
        if self.history.len() >= MAX_HISTORY {
            self.history.pop_front();
        }
        let answers = |(of, known): &(u64, HistoryItem)| *of >= turn && !is_users(known);
        let at = match is_users(&item) {
            true => self.history.iter().position(answers),
            false => None,
        };
        self.history.insert(at.unwrap_or(self.history.len()), (turn, item));
    }

    /// The conversation so far.
    pub(crate) fn history(&self) -> Vec<HistoryItem> {
        self.history.iter().map(|(_, item)| item.clone()).collect()
    }
}

fn is_users(item: &HistoryItem) -> bool {
    matches!(item, HistoryItem::Message { role: HistoryRole::User, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_words_of_the_user_stand_before_what_they_led_to() {
        let mut reconnect = Reconnect::new(ReconnectPolicy::default(), None);
        let message = |role, text: &str| HistoryItem::Message { role, text: text.into() };
        for (turn, role, text) in [
            (1, HistoryRole::User, "one"),
            (1, HistoryRole::Agent, "first"),
            (2, HistoryRole::Agent, "second"),
            (2, HistoryRole::User, "two"),
            (1, HistoryRole::Agent, "late"),
            (3, HistoryRole::User, "three"),
        ] {
            reconnect.remember(turn, message(role, text));
        }
        let texts: Vec<_> = reconnect
            .history()
            .into_iter()
            .map(|item| match item {
                HistoryItem::Message { text, .. } => text,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(texts, ["one", "first", "two", "second", "late", "three"]);
    }

    fn lost() -> LiveError {
        LiveError::Transport("reset".into())
    }

    #[test]
    fn waits_double_up_to_the_longest_and_end() {
        let now = Instant::now();
        let policy = ReconnectPolicy {
            max_attempts: 4,
            initial_backoff: Duration::from_millis(250),
            max_backoff: Duration::from_millis(800),
        };
        let mut reconnect = Reconnect::new(policy, None);
        let waits: Vec<_> = std::iter::from_fn(|| reconnect.next_attempt(&lost(), now)).collect();
        let ms = |ms| Duration::from_millis(ms);
        assert_eq!(waits, [(1, ms(250)), (2, ms(500)), (3, ms(800)), (4, ms(800))]);
    }

    #[test]
    fn what_cannot_be_mended_is_not_tried_again() {
        let mut reconnect = Reconnect::new(ReconnectPolicy::default(), None);
        let closed = LiveError::Closed { code: 1000, reason: String::new() };
        assert_eq!(reconnect.next_attempt(&closed, Instant::now()), None);
    }

    #[test]
    fn a_stable_connection_starts_the_count_again() {
        let now = Instant::now();
        let mut reconnect = Reconnect::new(ReconnectPolicy::default(), None);
        reconnect.next_attempt(&lost(), now);
        reconnect.connected(now);
        assert_eq!(reconnect.next_attempt(&lost(), now).unwrap().0, 2);
        reconnect.connected(now);
        assert_eq!(reconnect.next_attempt(&lost(), now + STABLE).unwrap().0, 1);
    }

    #[test]
    fn the_providers_own_wait_is_kept() {
        let mut reconnect = Reconnect::new(ReconnectPolicy::default(), None);
        let limited = LiveError::RateLimited {
            message: "slow down".into(),
            retry_after: Some(Duration::from_secs(20)),
        };
        let (_, wait) = reconnect.next_attempt(&limited, Instant::now()).unwrap();
        assert_eq!(wait, Duration::from_secs(20));
    }
}
