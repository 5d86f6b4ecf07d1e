//! What is known of sessions without reading them again.
//!
//! What a place in a log holds never changes, so what was read or written once holds for ever. It
//! makes a turn cost what is new in it: the messages of the turn before are the same ones.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{log::Entry, record::Place};
use crate::{message::Messages, state::Artifact};

/// How many sessions are known at most.
const MAX_SESSIONS: usize = 4096;
/// How many bytes of logs they stand for at most, besides the one that is in use.
const MAX_BYTES: u64 = 64 << 20;
/// How many lists of messages, which share what they have in common.
const MAX_LISTS: usize = 8;
const MAX_VALUES: usize = 64;

/// The sessions that were used last.
#[derive(Default)]
pub(super) struct Cache {
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    by_key: HashMap<Key, Used>,
    /// Counts uses.
    clock: u64,
}

/// A tenant and a session of it.
type Key = (Option<Arc<str>>, Arc<str>);

struct Used {
    last: u64,
    session: Arc<KnownSession>,
}

/// A session, as far as it is known.
#[derive(Default)]
pub(super) struct KnownSession {
    /// Held by whoever writes, so that writers of this process queue up fairly.
    pub(super) writing: Arc<tokio::sync::Mutex<()>>,
    known: Mutex<Known>,
}

impl KnownSession {
    /// Held for operations on the tables only.
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a session.
#[derive(Default)]
pub(super) struct Known {
    messages: Recent<Messages>,
    artifacts: Recent<Arc<[StoredArtifact]>>,
    /// By their checksums and lengths.
    values: VecDeque<(u32, Place)>,
    /// How long the log was, and the latest row then.
    pub(super) latest: Option<(u64, Option<Entry>)>,
}

/// An artifact and where it is.
#[derive(Clone)]
pub(super) struct StoredArtifact {
    pub(super) artifact: Arc<Artifact>,
    pub(super) place: Place,
}

impl Known {
    /// All messages up to the last in the record at `place`.
    pub(super) fn messages(&mut self, place: Place) -> Option<Messages> {
        self.messages.find(place)
    }

    pub(super) fn keep_messages(&mut self, place: Place, messages: Messages) {
        self.messages.keep(place, messages);
    }

    /// Of the lists that are known the one of which `messages` has most.
    pub(super) fn base_of(&self, messages: &Messages) -> Option<(Place, Messages)> {
        let shared = |list: &Messages| messages.shared_prefix(list);
        // Of those of the same merit the last that was used.
        let best = self.messages.0.iter().max_by_key(|(_, list)| shared(list))?;
        (shared(&best.1) > 0).then(|| best.clone())
    }

    /// The list of artifacts at `place`.
    pub(super) fn artifacts(&mut self, place: Place) -> Option<Arc<[StoredArtifact]>> {
        self.artifacts.find(place)
    }

    pub(super) fn keep_artifacts(&mut self, place: Place, list: Arc<[StoredArtifact]>) {
        self.artifacts.keep(place, list);
    }

    /// The lists of artifacts that are known, the last used first.
    pub(super) fn artifact_lists(&self) -> impl Iterator<Item = &(Place, Arc<[StoredArtifact]>)> {
        self.artifacts.0.iter().rev()
    }

    /// Records that may be the same as `line`.
    pub(super) fn values_like(&self, line: &[u8]) -> Vec<Place> {
        let (checksum, len) = (crc32fast::hash(line), line.len() as u64);
        let like = self.values.iter().filter(|(crc, place)| *crc == checksum && place.len == len);
        like.map(|(_, place)| *place).collect()
    }

    pub(super) fn keep_value(&mut self, line: &[u8], place: Place) {
        if self.values.len() == MAX_VALUES {
            self.values.pop_front();
        }
        self.values.push_back((crc32fast::hash(line), place));
    }

    /// How many bytes of the log it stands for.
    fn bytes(&self) -> u64 {
        self.messages.0.iter().map(|(place, _)| place.end()).max().unwrap_or(0)
    }
}

/// The last few lists by their places, the last used at the end.
struct Recent<T>(VecDeque<(Place, T)>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Clone> Recent<T> {
    fn find(&mut self, place: Place) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| *known == place)?;
        let found = self.0.remove(at)?;
        let list = found.1.clone();
        self.0.push_back(found);
        Some(list)
    }

    fn keep(&mut self, place: Place, list: T) {
        self.0.retain(|(known, _)| *known != place);
        if self.0.len() == MAX_LISTS {
            self.0.pop_front();
        }
        self.0.push_back((place, list));
    }
}

impl Cache {
    /// What is known of a session.
    pub(super) fn session(&self, scope: Option<&str>, session: &str) -> Arc<KnownSession> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.clock += 1;
        let last = sessions.clock;
        let key: Key = (scope.map(Arc::from), Arc::from(session));
        let used =
            sessions.by_key.entry(key).or_insert_with(|| Used { last, session: Arc::default() });
        used.last = last;
        let session = used.session.clone();
        if last.is_multiple_of(64) {
            sessions.shrink();
        }
        session
    }
}

impl Sessions {
    /// Forgets what was not used for longest, down to the bounds.
    fn shrink(&mut self) {
        let mut idle: Vec<_> = self
            .by_key
            .iter()
            // One in use is held elsewhere too.
            .filter(|(_, used)| Arc::strong_count(&used.session) == 1)
            .map(|(key, used)| (used.last, used.session.known().bytes(), key.clone()))
            .collect();
        idle.sort_unstable_by_key(|(last, ..)| std::cmp::Reverse(*last));
        let mut bytes = 0;
        for (number, (_, of_session, key)) in idle.into_iter().enumerate() {
            bytes += of_session;
            if number >= MAX_SESSIONS || bytes > MAX_BYTES && number > 0 {
                self.by_key.remove(&key);
            }
        }
    }
}
