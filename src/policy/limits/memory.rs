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

#[derive(Debug, Default)]
struct Counts {
    /// By key, then by when a step ends and how long it is.
    used: HashMap<String, (Window, BTreeMap<Step, Used>)>,
    reservations: HashMap<u64, Vec<(String, Step, u64)>>,
    next: u64,
}

type Step = (i64, i64);

impl Counts {
    fn used(&self, now: Timestamp, draw: &Draw) -> Vec<Used> {
        let Some((_, steps)) = self.used.get(&draw.key) else { return Vec::new() };
        let begins = Window::of(draw.window).begins(now);
        steps.range((begins.saturating_add(1), i64::MIN)..).map(|(_, used)| *used).collect()
    }

    fn forget(&mut self, now: Timestamp) {
        self.used.retain(|_, (window, steps)| {
            let newest = steps.last_key_value().map(|((end, _), _)| *end);
            *steps = steps.split_off(&(window.forgettable(now, newest), i64::MIN));
            !steps.is_empty()
        });
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
        if counts.used.len() + draws.len() > MAX_KEYS {
            counts.forget(now);
            if counts.used.len() + draws.len() > MAX_KEYS {
                return Err(LimitError(format!("more than {MAX_KEYS} counts at the same time")));
            }
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
