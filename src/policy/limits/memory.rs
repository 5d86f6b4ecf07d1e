//! Limits of one process, forgotten when it ends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;

use super::{
    Draw, LimitError, LimitStore, ReservationId, Reserved,
    window::{Room, Used, Window, total},
};
use crate::policy::Spent;

/// Counts that are kept at the same time; further ones are refused, and so the calls under them.
const MAX_KEYS: usize = 100_000;
/// What cannot be forgotten is not looked for again before so much time has passed.
const SWEEP_MS: u64 = 1_000;

/// Limits of one process, forgotten when it ends. For tests, and for limits per session.
#[derive(Debug, Default)]
pub struct InMemoryLimits(Mutex<Counts>);

impl InMemoryLimits {
    /// Nothing is used yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing foreign runs under this lock, so a poisoned one still guards whole data.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Counts {
    max_keys: usize,
    /// When those that do not count any more were looked for.
    swept: Option<i64>,
    /// By key, then by when a step ends and how long it is.
    used: HashMap<String, (Window, BTreeMap<Step, Used>)>,
    reservations: HashMap<u64, Vec<(String, Step, u64)>>,
    next: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            max_keys: MAX_KEYS,
            swept: None,
            used: HashMap::new(),
            reservations: HashMap::new(),
            next: 0,
        }
    }
}

type Step = (i64, i64);

impl Counts {
    fn used(&self, now: Timestamp, draw: &Draw) -> Vec<Used> {
        let Some((_, steps)) = self.used.get(&draw.key) else { return Vec::new() };
        let begins = Window::of(draw.window).begins(now);
        steps.range((begins.saturating_add(1), i64::MIN)..).map(|(_, used)| *used).collect()
    }

    /// Forgets keys of which nothing counts any more. A clock that jumps is not believed before something
    /// was used by it.
    fn forget(&mut self, now: Timestamp) {
        let ends = self.used.values().filter_map(|(_, steps)| steps.last_key_value());
        let newest = ends.map(|((end, _), _)| *end).max();
        self.used.retain(|_, (window, steps)| {
            *steps = steps.split_off(&(window.forgettable(now, newest), i64::MIN));
            !steps.is_empty()
        });
    }
}

impl Counts {
    /// Whether there is room for the keys of these that are new.
    fn has_room_for(&mut self, now: Timestamp, draws: &[Draw]) -> bool {
        let new = |used: &HashMap<String, _>| {
            draws.iter().filter(|draw| !used.contains_key(&draw.key)).count()
        };
        let missing = new(&self.used);
        if missing == 0 || self.used.len() + missing <= self.max_keys {
            return true;
        }
        let at = now.as_millisecond();
        if self.swept.is_none_or(|swept| swept.abs_diff(at) >= SWEEP_MS) {
            self.swept = Some(at);
            self.forget(now);
        }
        self.used.len() + new(&self.used) <= self.max_keys
    }
}

impl LimitStore for InMemoryLimits {
    fn reserve(&self, now: Timestamp, draws: &[Draw]) -> Result<Reserved, LimitError> {
        let mut counts = self.lock();
        for draw in draws {
            let until = match Window::of(draw.window).room(&counts.used(now, draw), draw) {
                Room::Yes => continue,
                Room::At(until) => Some(until),
                Room::Never => None,
            };
            return Ok(Reserved::No { limit: draw.limit.clone(), until });
        }
        if !counts.has_room_for(now, draws) {
            let most = counts.max_keys;
            return Err(LimitError(format!("more than {most} counts at the same time")));
        }
        let mut taken = Vec::with_capacity(draws.len());
        for draw in draws {
            let window = Window::of(draw.window);
            let (start, length) = window.step_of(now);
            let step = (start.saturating_add(length), length);
            let (kept_for, steps) =
                counts.used.entry(draw.key.clone()).or_insert_with(|| (window, BTreeMap::new()));
            *kept_for = window.longer(*kept_for);
            let newest = steps.last_key_value().map(|((end, _), _)| *end);
            let forgettable = kept_for.forgettable(now, newest);
            while let Some(oldest) = steps.first_entry()
                && oldest.key().0 < forgettable
            {
                oldest.remove();
            }
            let used = steps.entry(step).or_insert(Used { start, length, ..Used::default() });
            used.calls = used.calls.saturating_add(1);
            used.amount = used.amount.saturating_add(draw.amount);
            taken.push((draw.key.clone(), step, draw.amount));
        }
        counts.next += 1;
        let id = counts.next;
        counts.reservations.insert(id, taken);
        Ok(Reserved::Yes(ReservationId(id)))
    }

    fn settle(&self, reservation: ReservationId) -> Result<(), LimitError> {
        self.lock().reservations.remove(&reservation.0);
        Ok(())
    }

    fn give_back(&self, reservation: ReservationId) -> Result<(), LimitError> {
        let mut counts = self.lock();
        for (key, step, amount) in counts.reservations.remove(&reservation.0).unwrap_or_default() {
            let steps = counts.used.get_mut(&key).map(|(_, steps)| steps);
            if let Some(used) = steps.and_then(|steps| steps.get_mut(&step)) {
                used.calls = used.calls.saturating_sub(1);
                used.amount = used.amount.saturating_sub(amount);
            }
        }
        Ok(())
    }

    fn spent(&self, now: Timestamp, draws: &[Draw]) -> Result<Vec<Spent>, LimitError> {
        let counts = self.lock();
        let spent = draws.iter().map(|draw| {
            let (calls, amount) = total(&counts.used(now, draw));
            Spent::new(draw.limit.clone(), calls, amount)
        });
        Ok(spent.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn draw(key: &str) -> Draw {
        Draw {
            limit: "l".into(),
            key: key.into(),
            window: Duration::from_secs(60),
            max_calls: Some(10),
            max_amount: None,
            amount: 0,
        }
    }

    #[test]
    fn counts_that_are_over_make_room_and_those_that_are_known_need_none() {
        let limits = InMemoryLimits::new();
        limits.lock().max_keys = 100;
        let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
        let takes = |key: &str, seconds| limits.reserve(at(seconds), &[draw(key)]);
        for caller in 0..100 {
            takes(&caller.to_string(), 0).unwrap();
        }
        assert!(takes("one more", 1).is_err(), "there is no room");
        assert!(matches!(takes("7", 1), Ok(Reserved::Yes(_))), "it has a count");
        // Ten windows later nobody's counts any more, but for the one that was used meanwhile.
        assert!(matches!(takes("7", 600), Ok(Reserved::Yes(_))));
        for caller in 200..299 {
            assert!(matches!(takes(&caller.to_string(), 602), Ok(Reserved::Yes(_))), "{caller}");
        }
        assert_eq!(limits.spent(at(602), &[draw("7")]).unwrap()[0].calls, 1);
    }
}
