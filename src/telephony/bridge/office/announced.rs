//! What webhooks have told of calls: each is announced once, and each message counts once.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use crate::telephony::{bridge::AnsweredBy, dialect::Carrier};

/// A carrier that was not answered asks again within this time, and is answered as before.
const AGAIN: Duration = Duration::from_secs(15);
/// That a call was answered is known for so long: its webhook opens nothing a second time.
const KNOWN: Duration = Duration::from_secs(86_400);
/// Signed messages are known for so long; older ones are refused by their time.
const SEEN: Duration = Duration::from_secs(660);
/// What was told of a call whose stream has not begun is kept for so long.
const EARLY: Duration = Duration::from_secs(60);
/// A call that is over is told to be so within this time.
const ENDED: Duration = Duration::from_secs(300);
/// Of each kind so much is known, at most; then the oldest is forgotten. A call that is announced again
/// after that gets a token for a call that is long over.
const MOST: usize = 500_000;

/// A call, by the carrier's name of it.
type Key = (Carrier, String);

/// What was told lately.
pub(super) struct Announced {
    calls: Recent<Key, ()>,
    answers: Recent<Key, String>,
    seen: Recent<String, ()>,
    answered_by: Recent<Key, (AnsweredBy, bool)>,
    ended: Recent<Key, ()>,
}

/// Whether a webhook is a call's first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    /// It is.
    Yes,
    /// It was asked a moment ago, and answered so.
    Again(String),
    /// It is not.
    No,
}

impl Default for Announced {
    fn default() -> Self {
        Self {
            calls: Recent::new(KNOWN, MOST),
            answers: Recent::new(AGAIN, MOST),
            seen: Recent::new(SEEN, MOST),
            answered_by: Recent::new(EARLY, MOST),
            ended: Recent::new(ENDED, MOST),
        }
    }
}

impl Announced {
    /// Looks whether a call was announced before. Times are since 1970.
    pub(super) fn look(&mut self, carrier: Carrier, call: &str, now: Duration) -> First {
        let key = (carrier, call.to_owned());
        match self.answers.get(&key, now) {
            Some(answer) => First::Again(answer.clone()),
            None if self.calls.get(&key, now).is_some() => First::No,
            None => First::Yes,
        }
    }

    /// Notes how a call was answered.
    pub(super) fn answered(&mut self, carrier: Carrier, call: &str, answer: &str, now: Duration) {
        let key = (carrier, call.to_owned());
        self.calls.insert(key.clone(), (), now);
        self.answers.insert(key, answer.to_owned(), now);
    }

    /// Whether a message is new.
    pub(super) fn is_new(&mut self, id: &str, now: Duration) -> bool {
        let id: String = id.chars().take(128).collect();
        if self.seen.get(&id, now).is_some() {
            return false;
        }
        self.seen.insert(id, (), now);
        true
    }

    /// Keeps who has answered a call whose stream has not begun.
    pub(super) fn keep_answered_by(
        &mut self,
        key: &Key,
        who: AnsweredBy,
        waits: bool,
        now: Duration,
    ) {
        self.answered_by.insert(key.clone(), (who, waits), now);
    }

    /// Who has answered a call, as it was told before its stream began.
    pub(super) fn answered_by(&mut self, key: &Key, now: Duration) -> Option<(AnsweredBy, bool)> {
        self.answered_by.get(key, now).copied()
    }

    /// Notes that a call was held, and is over.
    pub(super) fn ended(&mut self, key: &Key, now: Duration) {
        self.ended.insert(key.clone(), (), now);
    }

    /// Whether a call was held until lately.
    pub(super) fn has_ended(&mut self, key: &Key, now: Duration) -> bool {
        self.ended.get(key, now).is_some()
    }
}

/// A map that forgets, by age, and the oldest where there is too much.
struct Recent<K, V> {
    keep: Duration,
    most: usize,
    map: HashMap<K, (Duration, V)>,
    /// By age; what was inserted again stands here more than once.
    order: VecDeque<(Duration, K)>,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn new(keep: Duration, most: usize) -> Self {
        Self { keep, most, map: HashMap::new(), order: VecDeque::new() }
    }

    fn get(&mut self, key: &K, now: Duration) -> Option<&V> {
        self.forget(now);
        self.map.get(key).filter(|(at, _)| *at + self.keep > now).map(|(_, value)| value)
    }

    fn insert(&mut self, key: K, value: V, now: Duration) {
        self.forget(now);
        self.order.push_back((now, key.clone()));
        self.map.insert(key, (now, value));
        while self.order.len() > self.most {
            self.forget_oldest();
        }
    }

    fn forget(&mut self, now: Duration) {
        while self.order.front().is_some_and(|(at, _)| *at + self.keep <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((at, key)) = self.order.pop_front() else { return };
        // Unless it was inserted anew.
        if self.map.get(&key).is_some_and(|(newest, _)| *newest == at) {
            self.map.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    #[test]
    fn a_call_is_announced_once_and_an_impatient_carrier_is_answered_as_before() {
        let mut announced = Announced::default();
        assert_eq!(announced.look(Carrier::Twilio, "CA1", NOW), First::Yes);
        announced.answered(Carrier::Twilio, "CA1", "<x/>", NOW);
        let soon = NOW + Duration::from_secs(3);
        assert_eq!(announced.look(Carrier::Twilio, "CA1", soon), First::Again("<x/>".into()));
        assert_eq!(announced.look(Carrier::SignalWire, "CA1", soon), First::Yes);
        assert_eq!(announced.look(Carrier::Twilio, "CA1", NOW + AGAIN), First::No);
        assert!(announced.is_new("e1", NOW));
        assert!(!announced.is_new("e1", NOW + Duration::from_secs(299)));
    }

    #[test]
    fn the_oldest_is_forgotten_and_the_newest_never_refused() {
        let mut recent = Recent::new(KNOWN, 3);
        for key in 0..5 {
            recent.insert(key, key, NOW + Duration::from_secs(key));
        }
        let later = NOW + Duration::from_secs(5);
        let known: Vec<_> = (0..5).filter(|key| recent.get(key, later).is_some()).collect();
        assert_eq!(known, [2, 3, 4]);
        // What is told again is as young as its last time.
        recent.insert(2, 2, later);
        recent.insert(6, 6, later);
        assert!(recent.get(&2, later).is_some() && recent.get(&3, later).is_none());
        assert!(recent.get(&6, later + KNOWN).is_none());
    }
}
