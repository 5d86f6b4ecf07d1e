//! Which provider a connection is tried with next, and when.

use std::time::{Duration, Instant};

use antiphon_live::LiveError;

use crate::session::{ReconnectPolicy, engine::timers::at};

/// A connection that lived this long is believed in: the count of attempts starts again.
const STABLE: Duration = Duration::from_secs(30);
/// The wait that a provider asks for is kept up to this: somebody is on the line.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The attempts to connect. The session's own provider is the first of its candidates; those it falls
/// back on follow in their order.
///
/// A round of attempts tries each candidate once, without waiting between them, and last those with
/// whom connecting failed when it was last tried; before each round there is a wait, which grows. Who
/// refused for good is left out until connections are next changed by plan, who asked for time until
/// that is over.
///
/// By plan the next connection is made beside the present one, with a better candidate if one may be
/// back ([`Attempts::better`]): nobody leaves one that works for one that may be dead.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: ReconnectPolicy,
    /// Rounds since a connection was good.
    rounds: u32,
    connected_at: Option<Instant>,
    candidates: Vec<Candidate>,
    current: usize,
    chance: Chance,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    may_try: bool,
    /// It asked not to be tried earlier.
    not_before: Option<Instant>,
    /// The last that is known of it is a failure.
    doubtful: bool,
    /// Its last connection was lost before it had done anything.
    shaky: bool,
    /// It had its turn in this round.
    tried: bool,
    /// It was looked for since connections were last changed.
    looked_for: bool,
    /// A connection beside the present one was refused for good.
    refused: bool,
}

impl Candidate {
    const NEW: Self = Self {
        may_try: true,
        not_before: None,
        doubtful: false,
        shaky: false,
        tried: false,
        looked_for: false,
        refused: false,
    };

    fn may_try_at(&self, now: Instant) -> bool {
        self.may_try && self.not_before.is_none_or(|from| from <= now)
    }
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
            candidates: vec![Candidate::NEW; fallbacks + 1],
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
        let candidate = &mut self.candidates[self.current];
        (candidate.not_before, candidate.doubtful, candidate.refused) = (None, false, false);
    }

    /// A reply came to its end: the connection is good.
    pub(crate) fn worked(&mut self) {
        self.rounds = 0;
        self.candidates[self.current].shaky = false;
    }

    /// The first connection of the session was not made: whether there is another candidate for it.
    pub(crate) fn first_failed(&mut self, error: &LiveError, now: Instant) -> bool {
        self.keep_away(self.current, error, now);
        let candidate = &mut self.candidates[self.current];
        candidate.may_try &= error.is_recoverable();
        (candidate.doubtful, candidate.tried) = (true, true);
        self.take_untried(now)
    }

    /// A connection is lost. `expected`: the provider had said that it goes away.
    pub(crate) fn lost(&mut self, error: &LiveError, expected: bool, now: Instant) -> Option<Next> {
        self.rest_if_stable(now);
        self.keep_away(self.current, error, now);
        if expected || error.is_recoverable() {
            // One that is lost over and over before it has done anything is no better than none.
            let candidate = &mut self.candidates[self.current];
            candidate.doubtful = std::mem::replace(&mut candidate.shaky, true);
            return self.next_round(now);
        }
        // An orderly end is one for everybody.
        if matches!(error, LiveError::Closed { code: 1000, .. }) {
            return None;
        }
        let candidate = &mut self.candidates[self.current];
        (candidate.may_try, candidate.doubtful) = (false, true);
        let next = self.next_round(now)?;
        let waits = !self.candidates[self.current].may_try_at(now);
        Some(if waits { next } else { Next { wait: Duration::ZERO, ..next } })
    }

    /// An attempt failed.
    pub(crate) fn failed(&mut self, error: &LiveError, now: Instant) -> Option<Next> {
        self.rest_if_stable(now);
        self.keep_away(self.current, error, now);
        let candidate = &mut self.candidates[self.current];
        candidate.doubtful = true;
        candidate.may_try &= error.is_recoverable();
        if self.is_on() && self.take_untried(now) {
            return Some(Next { attempt: self.rounds.max(1), wait: Duration::ZERO });
        }
        self.next_round(now)
    }

    /// The candidate that serves is no good, though its connection stands. Whether there is another one
    /// to go to.
    pub(crate) fn doubt(&mut self, now: Instant) -> bool {
        self.candidates[self.current].doubtful = true;
        self.candidates.iter().any(|of| !of.doubtful && of.may_try_at(now))
    }

    /// Whether everybody has refused another connection while the present one was used: it is the last.
    pub(crate) fn all_refused(&self) -> bool {
        self.candidates.iter().all(|of| of.refused)
    }

    /// No attempt follows the present one.
    pub(crate) fn is_last(&self) -> bool {
        self.rounds >= self.policy.max_attempts
    }

    /// A better candidate may be looked for once more.
    pub(crate) fn look_again(&mut self) {
        self.candidates.iter_mut().for_each(|of| of.looked_for = false);
    }

    /// How long a connection that the provider wants to be left is used on first. Who sends everybody
    /// away as soon as they come is not to be asked over and over.
    pub(crate) fn wait_before_leaving(&mut self, now: Instant) -> Duration {
        if self.is_stable(now) || self.rounds == 0 { Duration::ZERO } else { self.backoff() }
    }

    /// Whom the session would rather be connected with, if there is anybody. Whether one with whom
    /// connecting failed is back is found out once for each change of connections.
    pub(crate) fn better(&self, now: Instant) -> Option<usize> {
        let better = self.candidates.iter().take(self.current).enumerate();
        let mut due = better.filter(|(_, of)| of.not_before.is_none_or(|from| from <= now));
        due.find(|(_, of)| !of.doubtful || !of.looked_for).map(|(candidate, _)| candidate)
    }

    /// A candidate that asked for time is not to be tried earlier.
    pub(crate) fn not_before(&self, candidate: usize) -> Option<Instant> {
        self.candidates[candidate].not_before
    }

    /// Whether another connection may follow the present one by plan: not where too many followed each
    /// other.
    pub(crate) fn may_plan(&self, now: Instant) -> bool {
        self.is_stable(now) || self.rounds < self.policy.max_attempts
    }

    /// A connection with this candidate is made beside the present one.
    pub(crate) fn look_for(&mut self, candidate: usize) {
        self.candidates[candidate].looked_for = true;
    }

    /// It stands, or failed. That says nothing of who serves meanwhile.
    pub(crate) fn looked_for(
        &mut self,
        candidate: usize,
        failed: Option<&LiveError>,
        now: Instant,
    ) {
        self.candidates[candidate].refused = failed.is_some_and(|error| !error.is_recoverable());
        if candidate != self.current {
            self.candidates[candidate].doubtful = failed.is_some();
        }
        if let Some(error) = failed {
            self.keep_away(candidate, error, now);
        }
    }

    /// The conversation goes over to a connection with this candidate, which stands. Gives the number
    /// to tell it by.
    pub(crate) fn go_over(&mut self, candidate: usize, now: Instant) -> u32 {
        if !self.is_stable(now) && candidate == self.current {
            self.rounds += 1;
        }
        self.rest_if_stable(now);
        self.candidates.iter_mut().for_each(|of| (of.may_try, of.looked_for) = (true, false));
        self.current = candidate;
        self.rounds.max(1)
    }

    /// A change of connections that is planned: at once, with the first candidate that is not known
    /// to fail. `wished`: by the host, which may do so as often as it likes. `None`: too many followed
    /// each other.
    pub(crate) fn planned(&mut self, wished: bool, now: Instant) -> Option<u32> {
        if self.is_stable(now) {
            self.rounds = 0;
        } else if !wished {
            if !self.may_plan(now) {
                return None;
            }
            self.rounds += 1;
        }
        self.connected_at = None;
        for candidate in &mut self.candidates {
            (candidate.may_try, candidate.tried, candidate.looked_for) = (true, false, false);
        }
        let may_try = self.candidates.iter().enumerate().filter(|(_, of)| of.may_try_at(now));
        let best = may_try.min_by_key(|(at, of)| (of.doubtful || of.refused, *at));
        self.current = best.map_or(0, |(at, _)| at);
        self.candidates[self.current].tried = true;
        Some(self.rounds.max(1))
    }

    /// Who asked for time gets it.
    fn keep_away(&mut self, candidate: usize, error: &LiveError, now: Instant) {
        if let LiveError::RateLimited { retry_after: Some(after), .. } = error {
            let after = *after.min(&LONGEST_WAIT);
            self.candidates[candidate].not_before = Some(now + after);
        }
    }

    /// The best candidate that may be tried after the wait, else who may be tried soonest.
    fn next_round(&mut self, now: Instant) -> Option<Next> {
        if self.rounds >= self.policy.max_attempts || !self.candidates.iter().any(|of| of.may_try) {
            return None;
        }
        let ready = at(now, self.backoff());
        let may_try = self.candidates.iter().enumerate().filter(|(_, of)| of.may_try);
        let times = may_try.map(|(at, of)| (of.not_before.max(Some(ready)), of.doubtful, at));
        let (from, _, current) = times.min()?;
        self.candidates.iter_mut().for_each(|candidate| candidate.tried = false);
        self.candidates[current].tried = true;
        self.current = current;
        self.rounds += 1;
        let wait = from.map_or(Duration::ZERO, |from| from.saturating_duration_since(now));
        Some(Next { attempt: self.rounds, wait })
    }

    /// The wait before the next round.
    fn backoff(&mut self) -> Duration {
        let doubled = 1u32.checked_shl(self.rounds).unwrap_or(u32::MAX);
        let longest =
            self.policy.initial_backoff.saturating_mul(doubled).min(self.policy.max_backoff);
        // Many sessions that lost their server at once do not all come back at once.
        let jitter = u32::from(self.policy.jitter_percent.min(100));
        longest - longest / 100 * self.chance.percent_below(jitter)
    }

    /// The best of those who had no turn in this round.
    fn take_untried(&mut self, now: Instant) -> bool {
        let left = self.candidates.iter().enumerate();
        let left = left.filter(|(_, of)| !of.tried && of.may_try_at(now));
        let Some((next, _)) = left.min_by_key(|(at, of)| (of.doubtful, *at)) else { return false };
        self.candidates[next].tried = true;
        self.current = next;
        true
    }

    fn is_stable(&self, now: Instant) -> bool {
        self.connected_at.is_some_and(|at| now.duration_since(at) >= STABLE)
    }

    fn rest_if_stable(&mut self, now: Instant) {
        if self.is_stable(now) {
            self.worked();
        }
        self.connected_at = None;
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
    fn chance_is_that_of_its_generator() {
        // The first numbers of SplitMix64 from 0, as its author gives them.
        let mut chance = Chance::new(0);
        let numbers = [chance.next(), chance.next(), chance.next()];
        let expected = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!(numbers, expected);
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
            assert_eq!(attempts.planned(false, now + STABLE), Some(1), "these do not add up");
        }
    }

    #[test]
    fn a_server_that_sends_everybody_away_is_asked_ever_later_and_not_for_ever() {
        let mut now = Instant::now();
        let mut attempts = Attempts::new(policy(4, 20), 0, 1);
        let mut waits = Vec::new();
        attempts.connected(now);
        now += STABLE;
        loop {
            let wait = attempts.wait_before_leaving(now);
            now += wait;
            if attempts.planned(false, now).is_none() {
                break;
            }
            waits.push(wait.as_millis());
            attempts.connected(now);
        }
        let longest = [0, 0, 500, 800, 800];
        assert_eq!(waits.len(), longest.len(), "{waits:?}");
        let fits = |(wait, most): (&u128, u128)| *wait <= most && *wait >= most * 8 / 10;
        assert!(waits.iter().zip(longest).all(fits), "{waits:?}");
        // It stays, and is believed in one day.
        now += STABLE;
        assert_eq!(attempts.wait_before_leaving(now), Duration::ZERO);
        assert_eq!(attempts.planned(false, now), Some(1));
    }

    #[test]
    fn what_the_host_wishes_takes_no_attempt_from_a_loss() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(2, 0), 0, 1);
        for _ in 0..5 {
            attempts.connected(now);
            assert_eq!(attempts.planned(true, now), Some(1));
        }
        attempts.connected(now);
        assert_eq!(attempts.lost(&lost(), false, now).unwrap().attempt, 1);
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
    fn nobody_waits_for_years() {
        let never = ReconnectPolicy {
            max_attempts: u32::MAX,
            initial_backoff: Duration::MAX,
            max_backoff: Duration::MAX,
            jitter_percent: 100,
        };
        let now = Instant::now();
        let waits = |after| LiveError::RateLimited { message: "no".into(), retry_after: after };
        for after in [Duration::from_secs(86_400), Duration::from_secs(u64::MAX), Duration::MAX] {
            let mut attempts = Attempts::new(policy(4, 0), 0, 1);
            let next = attempts.failed(&waits(Some(after)), now).unwrap();
            assert_eq!(next.wait, LONGEST_WAIT);
            let mut attempts = Attempts::new(never.clone(), 0, 1);
            assert!(attempts.failed(&waits(Some(after)), now).is_some(), "nothing overflows");
        }
    }

    #[test]
    fn the_wait_of_one_is_not_that_of_another() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(9, 0), 1, 1);
        let limited = LiveError::RateLimited {
            message: "slow down".into(),
            retry_after: Some(Duration::from_secs(40)),
        };
        let next =
            |attempts: &Attempts, next: Option<Next>| (attempts.provider(), next.unwrap().wait);
        let lost_it = attempts.lost(&lost(), false, now);
        assert_eq!(next(&attempts, lost_it), (0, 250 * MS));
        let failed = attempts.failed(&lost(), now);
        assert_eq!(next(&attempts, failed), (1, Duration::ZERO));
        let failed = attempts.failed(&limited, now);
        assert_eq!(next(&attempts, failed), (0, 500 * MS), "the first one asked for nothing");
        let failed = attempts.failed(&limited, now);
        assert_eq!(next(&attempts, failed), (0, Duration::from_secs(40)), "both did: the first");
    }

    #[test]
    fn a_round_tries_each_candidate_once_and_a_plan_goes_back_to_the_first() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(2, 0), 2, 1);
        let tried = |next: Option<Next>, attempts: &Attempts| {
            next.map(|next| (attempts.provider(), next.attempt, next.wait))
        };
        let next = attempts.lost(&lost(), false, now);
        assert_eq!(tried(next, &attempts), Some((0, 1, 250 * MS)));
        let next = attempts.failed(&lost(), now);
        assert_eq!(tried(next, &attempts), Some((1, 1, Duration::ZERO)));
        let next = attempts.failed(&refused(), now);
        assert_eq!(tried(next, &attempts), Some((2, 1, Duration::ZERO)));
        let next = attempts.failed(&lost(), now);
        assert_eq!(tried(next, &attempts), Some((0, 2, 500 * MS)));
        let next = attempts.failed(&lost(), now);
        assert_eq!(tried(next, &attempts), Some((2, 2, Duration::ZERO)), "who refused is left out");
        assert_eq!(attempts.failed(&lost(), now), None);
    }

    #[test]
    fn who_could_not_be_reached_first_is_tried_again_and_who_refused_is_not() {
        let now = Instant::now();
        for (error, tried) in [(lost(), true), (refused(), false)] {
            let mut attempts = Attempts::new(policy(2, 0), 1, 1);
            assert!(attempts.first_failed(&error, now));
            attempts.connected(now);
            assert_eq!(attempts.provider(), 1);
            attempts.lost(&lost(), false, now);
            assert_eq!(attempts.provider(), 1, "who was good last");
            attempts.failed(&lost(), now);
            assert_eq!(attempts.provider() == 0, tried, "{error}");
        }
    }

    #[test]
    fn whether_a_better_one_is_back_is_found_out_before_anything_is_left_for_it() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(4, 0), 2, 1);
        attempts.connected(now);
        assert_eq!(attempts.better(now), None);
        attempts.lost(&lost(), false, now);
        attempts.failed(&lost(), now);
        attempts.failed(&lost(), now);
        assert_eq!(attempts.provider(), 2);
        attempts.connected(now);
        let later = now + STABLE;
        for (candidate, error) in [(0, lost()), (1, refused())] {
            assert_eq!(attempts.better(later), Some(candidate));
            attempts.look_for(candidate);
            attempts.looked_for(candidate, Some(&error), later);
        }
        assert_eq!(attempts.better(later), None, "once each");
        assert_eq!((attempts.planned(false, later), attempts.provider()), (Some(1), 2));
        // At the next change the first one is back.
        attempts.connected(later);
        let later = later + STABLE;
        assert_eq!(attempts.better(later), Some(0));
        attempts.look_for(0);
        attempts.looked_for(0, None, later);
        assert_eq!(attempts.better(later), Some(0), "it is back, and was not gone over to yet");
        assert_eq!((attempts.planned(false, later), attempts.provider()), (Some(1), 0));
        // A dead one is left at once, for who was good last.
        let next = attempts.lost(&refused(), false, later).unwrap();
        assert_eq!((attempts.provider(), next.wait), (2, Duration::ZERO));
    }

    #[test]
    fn who_refused_another_connection_is_left_only_for_somebody_else() {
        let now = Instant::now();
        for fallbacks in [0, 1] {
            let mut attempts = Attempts::new(policy(4, 0), fallbacks, 1);
            attempts.connected(now);
            attempts.look_for(0);
            attempts.looked_for(0, Some(&lost()), now);
            assert!(!attempts.all_refused(), "it may be back");
            attempts.looked_for(0, Some(&refused()), now);
            assert_eq!(attempts.all_refused(), fallbacks == 0);
            let planned = attempts.planned(false, now + STABLE).unwrap();
            assert_eq!((planned, attempts.provider()), (1, fallbacks));
            attempts.connected(now);
            assert!(!attempts.all_refused());
        }
    }

    #[test]
    fn one_that_is_lost_over_and_over_makes_room_for_another() {
        let now = Instant::now();
        let mut attempts = Attempts::new(policy(4, 0), 1, 1);
        attempts.connected(now);
        attempts.lost(&lost(), false, now);
        assert_eq!(attempts.provider(), 0, "once may happen to anybody");
        attempts.connected(now);
        attempts.lost(&lost(), false, now);
        assert_eq!(attempts.provider(), 1);
        // What is lost is tried before who is known to fail.
        attempts.connected(now);
        attempts.worked();
        attempts.lost(&lost(), false, now);
        assert_eq!(attempts.provider(), 1);
        attempts.failed(&lost(), now);
        assert_eq!(attempts.provider(), 0, "and in the same round the other");
    }
}
