//! The events of a session on their way to its streams: bounded, shared, and no larger than what
//! waits.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// Above so many places an empty feed gives its memory back.
const KEPT_PLACES: usize = 32;

/// The near end. Dropping it ends the streams, after what they still have.
pub(crate) struct Feed<T> {
    shared: Arc<Shared<T>>,
}

/// The far end. It is given what is told after it was made.
pub(crate) struct Reader<T> {
    shared: Arc<Shared<T>>,
    id: u64,
}

/// What a [`Reader`] finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    /// The next one.
    Next(Arc<T>),
    /// So many were dropped because this reader was too slow.
    Lost(u64),
    /// Nothing more comes.
    End,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// At most so many wait.
    limit: usize,
}

struct State<T> {
    waiting: VecDeque<Arc<T>>,
    /// The number of the first that waits.
    first: u64,
    /// Few, and mostly one.
    places: Vec<Place>,
    next_id: u64,
    closed: bool,
}

/// How far a reader is.
struct Place {
    id: u64,
    /// The number of what it reads next.
    next: u64,
    waker: Option<Waker>,
}

impl<T> Feed<T> {
    /// A feed of which at most `limit` wait for the slowest reader; the oldest goes then.
    pub(crate) fn new(limit: usize) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            first: 0,
            places: Vec::new(),
            next_id: 0,
            closed: false,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), limit: limit.max(1) }) }
    }

    pub(crate) fn subscribe(&self) -> Reader<T> {
        let mut state = self.shared.lock();
        let (id, next) = (state.next_id, state.end());
        state.next_id += 1;
        state.places.push(Place { id, next, waker: None });
        drop(state);
        Reader { shared: self.shared.clone(), id }
    }

    /// Tells the readers; `make` is not called when there are none.
    pub(crate) fn tell(&self, make: impl FnOnce() -> T) {
        if self.shared.lock().places.is_empty() {
            return;
        }
        let told = Arc::new(make());
        let mut state = self.shared.lock();
        state.waiting.push_back(told);
        if state.waiting.len() > self.shared.limit {
            state.waiting.pop_front();
            state.first += 1;
        }
        state.forget_read();
        state.wake_all();
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.wake_all();
    }
}

impl<T> Reader<T> {
    /// The next thing for this reader. Who is dropped while it waits has lost nothing.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Found<T>> {
        let mut state = self.shared.lock();
        let State { waiting, first, places, closed, .. } = &mut *state;
        let Some(place) = places.iter_mut().find(|place| place.id == self.id) else {
            return Poll::Ready(Found::End);
        };
        if place.next < *first {
            let lost = *first - place.next;
            place.next = *first;
            return Poll::Ready(Found::Lost(lost));
        }
        let Some(found) = waiting.get((place.next - *first) as usize).cloned() else {
            if *closed {
                return Poll::Ready(Found::End);
            }
            match &mut place.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        place.next += 1;
        state.forget_read();
        Poll::Ready(Found::Next(found))
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.places.retain(|place| place.id != self.id);
        state.forget_read();
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    /// The number of the next that is told.
    fn end(&self) -> u64 {
        self.first + self.waiting.len() as u64
    }

    /// Forgets what everybody has read.
    fn forget_read(&mut self) {
        let end = self.end();
        let slowest = self.places.iter().map(|place| place.next).min().unwrap_or(end);
        while self.first < slowest && self.waiting.pop_front().is_some() {
            self.first += 1;
        }
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT_PLACES {
            self.waiting = VecDeque::new();
        }
    }

    fn wake_all(&mut self) {
        for place in &mut self.places {
            if let Some(waker) = place.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &mut Reader<u32>) -> Option<Found<u32>> {
        match reader.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => Some(found),
            Poll::Pending => None,
        }
    }

    fn next(number: u32) -> Option<Found<u32>> {
        Some(Found::Next(Arc::new(number)))
    }

    #[test]
    fn each_reader_reads_all_from_its_beginning_on() {
        let feed = Feed::new(8);
        feed.tell(|| unreachable!("nobody listens"));
        let mut early = feed.subscribe();
        feed.tell(|| 1);
        let mut late = feed.subscribe();
        feed.tell(|| 2);
        assert_eq!(
            [read(&mut early), read(&mut early), read(&mut early)],
            [next(1), next(2), None]
        );
        assert_eq!([read(&mut late), read(&mut late)], [next(2), None]);
        drop(feed);
        assert_eq!(read(&mut late), Some(Found::End));
    }

    #[test]
    fn who_lags_loses_the_oldest_and_is_told_how_many() {
        let feed = Feed::new(4);
        let (mut slow, mut quick) = (feed.subscribe(), feed.subscribe());
        for number in 1..=6 {
            feed.tell(|| number);
            assert_eq!(read(&mut quick), next(number));
        }
        drop(feed);
        assert_eq!(read(&mut slow), Some(Found::Lost(2)));
        for number in 3..=6 {
            assert_eq!(read(&mut slow), next(number));
        }
        assert_eq!(read(&mut slow), Some(Found::End));
    }

    #[test]
    fn what_everybody_has_read_takes_no_memory() {
        let feed = Feed::new(1_000);
        let (mut reader, idle) = (feed.subscribe(), feed.subscribe());
        (0..500).for_each(|number| feed.tell(|| number));
        while read(&mut reader).is_some() {}
        assert_eq!(feed.shared.lock().waiting.len(), 500);
        drop(idle);
        assert_eq!(feed.shared.lock().waiting.capacity(), 0);
    }
}
