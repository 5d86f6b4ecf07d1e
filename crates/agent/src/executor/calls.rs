//! Which call ids were seen, within a bound.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use antiphon_types::ToolCallRequest;
use serde::Serialize;

/// The ids of recent calls and how far each is.
pub(super) struct Calls {
    seen: HashMap<Arc<str>, Stage>,
    order: VecDeque<Arc<str>>,
    capacity: usize,
    hasher: RandomState,
}

enum Stage {
    /// Being decided, or decided.
    Entered,
    /// Has its one output; a decision that comes late changes nothing.
    Settled,
    /// Read back to the user.
    Asked(Asked),
}

/// What the user was asked.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// Fingerprint of the call as it came.
    pub request: u64,
    /// Fingerprint of what the user's yes stands for.
    pub shown: u64,
    /// Fingerprint of the words alone.
    pub words: u64,
    pub by: AskedBy,
}

/// Who wanted the call read back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AskedBy {
    Policy,
    Tool,
}

/// May the call be decided?
pub(super) enum Entry {
    /// Its id is new, or it was confirmed elsewhere.
    New,
    /// The user confirmed it.
    Confirmed(Asked),
    /// The confirmed call is not the one that was read back.
    Changed,
    Duplicate,
}

impl Calls {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            seen: HashMap::new(),
            order: VecDeque::new(),
            capacity: capacity.max(1),
            hasher: RandomState::new(),
        }
    }

    /// Takes the id of `request`, unless it is taken.
    pub(super) fn enter(&mut self, request: &ToolCallRequest, confirmed: bool) -> Entry {
        match self.seen.get_mut(&request.id) {
            None => {
                self.remember(request.id.clone(), Stage::Entered);
                Entry::New
            }
            Some(stage @ Stage::Asked(_)) if confirmed => {
                let Stage::Asked(asked) = std::mem::replace(stage, Stage::Entered) else {
                    return Entry::Duplicate;
                };
                if asked.request == self.fingerprint(request) {
                    Entry::Confirmed(asked)
                } else {
                    Entry::Changed
                }
            }
            Some(_) => Entry::Duplicate,
        }
    }

    /// The user is to be asked about `request`, which entered.
    pub(super) fn ask(&mut self, request: &ToolCallRequest, shown: u64, words: &str, by: AskedBy) {
        let request_print = self.fingerprint(request);
        let asked = Asked { request: request_print, shown, words: self.fingerprint(&words), by };
        if let Some(stage @ Stage::Entered) = self.seen.get_mut(&request.id) {
            *stage = Stage::Asked(asked);
        }
    }

    /// Whatever stage the call is in, it has its output.
    pub(super) fn settle(&mut self, id: &Arc<str>) {
        match self.seen.get_mut(id) {
            Some(stage) => *stage = Stage::Settled,
            None => self.remember(id.clone(), Stage::Settled),
        }
    }

    pub(super) fn is_settled(&self, id: &Arc<str>) -> bool {
        matches!(self.seen.get(id), Some(Stage::Settled))
    }

    /// A keyed hash of `value`'s JSON: nobody outside can make two values meet.
    pub(super) fn fingerprint(&self, value: &impl Serialize) -> u64 {
        // What cannot be serialised does not occur; it would only ever equal itself.
        self.hasher.hash_one(serde_json::to_string(value).unwrap_or_default())
    }

    fn remember(&mut self, id: Arc<str>, stage: Stage) {
        if self.order.len() >= self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.seen.insert(id, stage);
    }
}

/// Nothing foreign runs under this lock, so a poisoned one still guards whole data.
pub(super) fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
