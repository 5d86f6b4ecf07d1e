//! Turns that ended and wait to be written: how many there are, and how many there may be.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use antiphon_types::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RuntimeLimits;
use crate::{RuntimeError, session::State, state::SessionState};

/// What waits to be written.
#[derive(Debug)]
pub(super) struct Backlog {
    room: Arc<Semaphore>,
    /// At least 1.
    max_turns: usize,
    bytes: AtomicUsize,
    max_bytes: usize,
}

impl Backlog {
    pub(super) fn new(limits: &RuntimeLimits) -> Arc<Self> {
        let max_turns = limits.unwritten_turns.max(1);
        Arc::new(Self {
            room: Arc::new(Semaphore::new(max_turns)),
            max_turns,
            bytes: AtomicUsize::new(0),
            max_bytes: limits.unwritten_bytes,
        })
    }

    /// The most turns that wait.
    pub(super) fn max_turns(&self) -> usize {
        self.max_turns
    }

    /// How many turns wait, or are open.
    pub(super) fn turns(&self) -> usize {
        self.max_turns - self.room.available_permits()
    }

    /// The place of a turn that begins. How much is in it is known when it ends, so the last one may
    /// go beyond the bytes, however large it is.
    pub(super) fn reserve(self: &Arc<Self>) -> Result<Place, RuntimeError> {
        let (turns, bytes) = (self.turns(), self.bytes.load(Relaxed));
        let full = || {
            RuntimeError::new(
                Status::ResourceExhausted,
                format!("{turns} turns of {bytes} bytes wait to be written"),
            )
        };
        if bytes > 0 && bytes >= self.max_bytes {
            return Err(full());
        }
        let room = self.room.clone().try_acquire_owned().map_err(|_| full())?;
        Ok(Place { backlog: self.clone(), _room: room, bytes: 0 })
    }
}

/// A place in the backlog, until it goes.
#[derive(Debug)]
pub(super) struct Place {
    backlog: Arc<Backlog>,
    _room: OwnedSemaphorePermit,
    bytes: usize,
}

impl Place {
    /// The turn ended, and so much of it is to be written.
    pub(super) fn fill(&mut self, bytes: usize) {
        self.backlog.bytes.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.backlog.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// About how many bytes a turn added to messages and artifacts. What custom state comes to is only
/// known when it is written.
pub(super) fn added_bytes<S: State>(before: &SessionState<S>, after: &SessionState<S>) -> usize {
    let shared = after.messages.shared_prefix(&before.messages);
    let messages = after.messages.range(shared).map(|message| message.weight());
    let known = |artifact| before.artifacts.iter().any(|other| Arc::ptr_eq(other, artifact));
    let artifacts = after.artifacts.iter().enumerate().filter(|(at, artifact)| {
        // Most stay where they are.
        !before.artifacts.get(*at).is_some_and(|other| Arc::ptr_eq(other, artifact))
            && !known(artifact)
    });
    messages.sum::<usize>() + artifacts.map(|(_, artifact)| artifact.weight()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        message::{Message, Part},
        state::Artifact,
    };

    fn limits(turns: usize, bytes: usize) -> RuntimeLimits {
        RuntimeLimits { unwritten_turns: turns, unwritten_bytes: bytes, ..Default::default() }
    }

    #[test]
    fn either_bound_refuses_until_something_is_written() {
        let backlog = Backlog::new(&limits(3, 100));
        let mut places: Vec<_> = (0..2).map(|_| backlog.reserve().unwrap()).collect();
        places[0].fill(99);
        let third = backlog.reserve().unwrap();
        assert_eq!(backlog.reserve().unwrap_err().status(), Status::ResourceExhausted);
        drop(third);
        places[1].fill(500);
        assert!(backlog.reserve().is_err(), "by bytes");
        places.pop();
        assert!(backlog.reserve().is_ok());
        places.pop();
        assert_eq!(backlog.turns(), 0);
    }

    #[test]
    fn one_turn_has_a_place_whatever_the_bounds_are() {
        let backlog = Backlog::new(&limits(0, 0));
        let mut place = backlog.reserve().unwrap();
        place.fill(1);
        drop(place);
        assert!(backlog.reserve().is_ok());
    }

    #[test]
    fn only_what_a_turn_added_is_counted() {
        let mut before = SessionState::<Value>::default();
        before.messages.extend((0..200).map(|_| Message::user("x".repeat(1_000))));
        let artifact = |size| Arc::new(Artifact::new("a", vec![Part::text("x".repeat(size))]));
        before.artifacts.push(artifact(1_000));
        let mut after = before.clone();
        assert_eq!(added_bytes(&before, &after), 0);
        after.messages.push(Message::user("y".repeat(5_000)));
        let message = added_bytes(&before, &after);
        assert!((5_000..6_000).contains(&message), "{message}");
        after.artifacts.push(artifact(3_000));
        let both = added_bytes(&before, &after) - message;
        assert!((3_000..4_000).contains(&both), "{both}");
    }
}
