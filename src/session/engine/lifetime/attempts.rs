//! Which provider a connection is tried with next, and when.

use std::time::{Duration, Instant};

use antiphon_live::LiveError;

use crate::session::ReconnectPolicy;

/// A connection that lived this long is believed in: the count of attempts starts again.
const STABLE: Duration = Duration::from_secs(30);

/// The attempts to connect. The session's own provider is the first of its candidates; those it falls
/// back on follow in their order.
///
/// A round of attempts tries each candidate once, without waiting between them; before each round
/// there is a wait, which grows. Who refused for good is left out until connections are next changed
/// by plan.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: ReconnectPolicy,
    /// Rounds since a connection was good.
    rounds: u32,
    connected_at: Option<Instant>,
    /// Whether each candidate may be tried.
    may_try: Vec<bool>,
    current: usize,
    chance: Chance,
}

/// The next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// Its round, from 1.
    pub(crate) attempt: u32,
    pub(crate) wait: Duration,
}

impl Attempts {
    /// `fallbacks`: candidates beside the first. `random`: any number.
    pub(crate) fn new(policy: ReconnectPolicy, fallbacks: usize, random: u64) -> Self {
        Self {
            policy,
            rounds: 0,
            connected_at: None,
            may_try: vec![true; fallbacks + 1],
            current: 0,
            chance: Chance::new(random),
        }
    }

    /// Whether connections are replaced at all.
    pub(crate) fn is_on(&self) -> bool {
        self.policy.max_attempts > 0
    }

    /// The candidate that is connected with, or is tried.
    pub(crate) fn provider(&self) -> usize {
        self.current
    }

    /// A connection stands.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// A reply came to its end: the connection is good.
    pub(crate) fn worked(&mut self) {
        self.rounds = 0;
    }

    /// The first connection of the session was not made: whether there is another candidate for it.
    pub(crate) fn first_failed(&mut self) -> bool {
        self.may_try[self.current] = false;
        self.take_after_current()
    }

    /// A connection is lost. `expected`: the provider had said that it goes away.
    pub(crate) fn lost(&mut self, error: &LiveError, expected: bool, now: Instant) -> Option<Next> {
        self.rest_if_stable(now);
        if expected || error.is_recoverable() {
            return self.next_round(error);
        }
        // An orderly end is one for everybody.
        if matches!(error, LiveError::Closed { code: 1000, .. }) {
            return None;
        }
        self.may_try[self.current] = false;
        let next = self.next_round(error)?;
        Some(Next { wait: Duration::ZERO, ..next })
    }

    /// An attempt failed.
    pub(crate) fn failed(&mut self, error: &LiveError, now: Instant) -> Option<Next> {
        self.rest_if_stable(now);
        if !error.is_recoverable() {
            self.may_try[self.current] = false;
        }
        if self.is_on() && self.take_after_current() {
            return Some(Next { attempt: self.rounds.max(1), wait: Duration::ZERO });
        }
        self.next_round(error)
    }

    /// A change of connections that is planned: at once, and back to the first candidate.
    pub(crate) fn planned(&mut self, now: Instant) -> u32 {
        self.rest_if_stable(now);
        self.may_try.fill(true);
        self.current = 0;
        self.rounds += 1;
        self.rounds
    }

    fn next_round(&mut self, error: &LiveError) -> Option<Next> {
        let first = self.may_try.iter().position(|may| *may)?;
        if self.rounds >= self.policy.max_attempts {
            return None;
        }
        self.current = first;
        let doubled = 1u32.checked_shl(self.rounds).unwrap_or(u32::MAX);
        let longest =
            self.policy.initial_backoff.saturating_mul(doubled).min(self.policy.max_backoff);
        // Many sessions that lost their server at once do not all come back at once.
        let jitter = u32::from(self.policy.jitter_percent.min(100));
        let backoff = longest - longest * self.chance.percent_below(jitter) / 100;
        self.rounds += 1;
        let wait = match error {
            LiveError::RateLimited { retry_after: Some(after), .. } => backoff.max(*after),
            _ => backoff,
        };
        Some(Next { attempt: self.rounds, wait })
    }

    fn take_after_current(&mut self) -> bool {
        let after = self.current + 1;
        let next = self.may_try.iter().skip(after).position(|may| *may);
        if let Some(next) = next {
            self.current = after + next;
        }
        next.is_some()
    }

    fn rest_if_stable(&mut self, now: Instant) {
        if self.connected_at.take().is_some_and(|at| now.duration_since(at) >= STABLE) {
            self.rounds = 0;
        }
    }
}

/// Numbers that look random, from one that is (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(random: u64) -> Self {
        Self(random)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`; 0 where that is 0.
    fn percent_below(&mut self, bound: u32) -> u32 {
        match bound {
            0 => 0,
            bound => (self.next() % u64::from(bound)) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn lost() -> LiveError {
        LiveError::Transport("reset".into())
    }

    fn refused() -> LiveError {
        LiveError::Unauthorized("no".into())
    }

    fn policy(max_attempts: u32, jitter_percent: u8) -> ReconnectPolicy {
        ReconnectPolicy {
            max_attempts,
            initial_backoff: 250 * MS,
            max_backoff: 800 * MS,
            jitter_percent,
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_end() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(4, 0), 0, 1);
        let waits: Vec<_> = std::iter::from_fn(|| attempts.lost(&lost(), false, now))
            .map(|next| next.wait)
            .collect();
        assert_eq!(waits, [250 * MS, 500 * MS, 800 * MS, 800 * MS]);
    }

    #[test]
    fn waits_are_shortened_by_chance_and_never_by_more_than_allowed() {
        let now = Instant::now();
        let mut seen = std::collections::BTreeSet::new();
        for random in 0..200 {
            let wait =
                Attempts::new(policy(4, 20), 0, random).lost(&lost(), false, now).unwrap().wait;
            assert!(wait > 200 * MS && wait <= 250 * MS, "{wait:?}");
            seen.insert(wait);
        }
        assert!(seen.len() > 10, "{seen:?}");
        let again = |random| Attempts::new(policy(4, 20), 0, random).lost(&lost(), false, now);
        assert_eq!(again(7), again(7), "chance is an input");
    }

    #[test]
    fn what_cannot_be_mended_is_not_tried_again() {
        let now = Instant::now();
        let closed = |code| LiveError::Closed { code, reason: String::new() };
        for error in
            [closed(1000), closed(1003), closed(1007), closed(1008), closed(4001), refused()]
        {
            let mut attempts = Attempts::new(ReconnectPolicy::default(), 0, 1);
            assert_eq!(attempts.lost(&error, false, now), None, "{error}");
            let mut attempts = Attempts::new(ReconnectPolicy::default(), 0, 1);
            assert_eq!(attempts.failed(&error, now), None, "{error}");
        }
        let mut attempts = Attempts::new(ReconnectPolicy::default(), 0, 1);
        assert!(attempts.lost(&closed(1000), true, now).is_some(), "it had said so");
        assert!(attempts.lost(&closed(1011), false, now).is_some());
    }

    #[test]
    fn a_stable_connection_starts_the_count_again() {
        let now = Instant::now();
        let mut attempts = Attempts::new(ReconnectPolicy::default(), 0, 1);
        attempts.lost(&lost(), false, now);
        attempts.connected(now);
        assert_eq!(attempts.lost(&lost(), false, now).unwrap().attempt, 2);
        attempts.connected(now);
        assert_eq!(attempts.lost(&lost(), false, now + STABLE).unwrap().attempt, 1);
        for _ in 0..200 {
            attempts.connected(now);
            assert_eq!(attempts.planned(now + STABLE), 1, "changes by plan do not add up");
        }
    }

    #[test]
    fn the_providers_own_wait_is_kept() {
        let mut attempts = Attempts::new(ReconnectPolicy::default(), 0, 1);
        let limited = LiveError::RateLimited {
            message: "slow down".into(),
            retry_after: Some(Duration::from_secs(20)),
        };
        let next = attempts.lost(&limited, false, Instant::now()).unwrap();
        assert_eq!(next.wait, Duration::from_secs(20));
    }

    #[test]
    fn a_round_tries_each_candidate_once_and_a_plan_goes_back_to_the_first() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(2, 0), 2, 1);
        let at = |next: Option<Next>, attempts: &Attempts| {
            next.map(|next| (attempts.provider(), next.attempt, next.wait))
        };
        let next = attempts.lost(&lost(), false, now);
        assert_eq!(at(next, &attempts), Some((0, 1, 250 * MS)));
        let next = attempts.failed(&lost(), now);
        assert_eq!(at(next, &attempts), Some((1, 1, Duration::ZERO)));
        let next = attempts.failed(&refused(), now);
        assert_eq!(at(next, &attempts), Some((2, 1, Duration::ZERO)));
        let next = attempts.failed(&lost(), now);
        assert_eq!(at(next, &attempts), Some((0, 2, 500 * MS)));
        let next = attempts.failed(&lost(), now);
        assert_eq!(at(next, &attempts), Some((2, 2, Duration::ZERO)), "who refused is left out");
        assert_eq!(attempts.failed(&lost(), now), None);

        attempts.connected(now);
        attempts.planned(now + STABLE);
        assert_eq!(attempts.provider(), 0);
        let next = attempts.lost(&refused(), false, now);
        assert_eq!(at(next, &attempts), Some((1, 2, Duration::ZERO)), "a dead one is left at once");
    }
}
