//! A loudspeaker that plays as much as the test says.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use antiphon_audio::{AudioSink, Generation, Played, PositionSource, SinkError};
use antiphon_types::{AudioFormat, AudioFrame};

/// An [`AudioSink`] whose playout clock is in the test's hands.
pub struct Speaker {
    state: Arc<Mutex<State>>,
}

/// The test's side of a [`Speaker`].
#[derive(Clone)]
pub struct SpeakerControl {
    state: Arc<Mutex<State>>,
}

/// One `clear` that the session asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// From which generation on audio counts again.
    pub next: Generation,
    /// What had been played of the one before.
    pub played: Option<Played>,
}

struct State {
    format: AudioFormat,
    room: usize,
    current: Option<Current>,
    waiting: VecDeque<Current>,
    fence: Generation,
    heard: Vec<(Generation, Vec<u8>)>,
    clears: Vec<Cleared>,
    paused: bool,
    lost: Option<String>,
    news: VecDeque<Played>,
    waker: Option<Waker>,
    stale_writes: usize,
}

struct Current {
    generation: Generation,
    queued: VecDeque<u8>,
    played: u64,
    finished: bool,
}

impl Speaker {
    /// A speaker and its control. `room` is in samples.
    pub fn new(format: AudioFormat, room: usize) -> (Self, SpeakerControl) {
        let state = Arc::new(Mutex::new(State {
            format,
            room,
            current: None,
            waiting: VecDeque::new(),
            fence: Generation(0),
            heard: Vec::new(),
            clears: Vec::new(),
            paused: false,
            lost: None,
            news: VecDeque::new(),
            waker: None,
            stale_writes: 0,
        }));
        (Self { state: state.clone() }, SpeakerControl { state })
    }
}

impl SpeakerControl {
    /// Plays up to so many samples of what is queued; returns how many there were. Tells the
    /// session when a generation is complete, and that there is room again.
    pub fn play(&self, samples: usize) -> usize {
        let mut state = lock(&self.state);
        if state.paused {
            return 0;
        }
        let mut left = samples;
        let width = state.format.bytes_per_sample();
        while left > 0 {
            if state.current.is_none() {
                state.current = state.waiting.pop_front();
            }
            let Some(current) = state.current.as_mut() else { break };
            let take = left.min(current.queued.len() / width);
            let bytes: Vec<u8> = current.queued.drain(..take * width).collect();
            current.played += take as u64;
            left -= take;
            let generation = current.generation;
            let complete = current.finished && current.queued.is_empty();
            let drained = current.queued.is_empty();
            let played = played(current, complete);
            match state.heard.last_mut().filter(|(last, _)| *last == generation) {
                Some((_, heard)) => heard.extend_from_slice(&bytes),
                None => state.heard.push((generation, bytes)),
            }
            if complete || take > 0 {
                state.news.push_back(played);
            }
            if complete {
                state.current = None;
            } else if drained {
                break;
            }
        }
        state.wake();
        samples - left
    }

    /// Plays everything that is queued.
    pub fn play_all(&self) -> usize {
        self.play(usize::MAX)
    }

    /// The bytes that were heard of a generation.
    pub fn heard(&self, generation: Generation) -> Vec<u8> {
        let state = lock(&self.state);
        let of = state.heard.iter().filter(|(of, _)| *of == generation);
        of.flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }

    /// All that was heard, in order, as samples of 16-bit PCM.
    pub fn heard_samples(&self) -> Vec<i16> {
        let state = lock(&self.state);
        let bytes: Vec<u8> =
            state.heard.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    /// The generations that were heard, in order.
    pub fn generations(&self) -> Vec<Generation> {
        lock(&self.state).heard.iter().map(|(generation, _)| *generation).collect()
    }

    /// Samples handed over and not played yet.
    pub fn queued(&self) -> usize {
        let state = lock(&self.state);
        let width = state.format.bytes_per_sample();
        let queues = state.current.iter().chain(&state.waiting);
        queues.map(|current| current.queued.len() / width).sum()
    }

    /// Every `clear` so far.
    pub fn clears(&self) -> Vec<Cleared> {
        lock(&self.state).clears.clone()
    }

    /// Writes of cleared generations that were refused.
    pub fn stale_writes(&self) -> usize {
        lock(&self.state).stale_writes
    }

    /// Whether the session paused playout.
    pub fn is_paused(&self) -> bool {
        lock(&self.state).paused
    }

    /// Unplugs the speaker.
    pub fn lose(&self, why: &str) {
        let mut state = lock(&self.state);
        state.lost = Some(why.into());
        state.wake();
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn check(&self) -> Result<(), SinkError> {
        match &self.lost {
            Some(why) => Err(SinkError::Lost(why.clone())),
            None => Ok(()),
        }
    }

    fn of(&mut self, generation: Generation) -> &mut Current {
        let fresh = Current { generation, queued: VecDeque::new(), played: 0, finished: false };
        let is_last = |current: &Current| current.generation == generation;
        if self.waiting.back().is_some_and(is_last) {
            return self.waiting.back_mut().expect("the back was just seen");
        }
        if self.waiting.is_empty() && self.current.as_ref().is_none_or(is_last) {
            return self.current.get_or_insert(fresh);
        }
        self.waiting.push_back(fresh);
        self.waiting.back_mut().expect("just pushed")
    }
}

impl AudioSink for Speaker {
    fn format(&self) -> AudioFormat {
        lock(&self.state).format
    }

    fn room(&self, _: Instant) -> usize {
        let state = lock(&self.state);
        let width = state.format.bytes_per_sample();
        let queues = state.current.iter().chain(&state.waiting);
        let queued: usize = queues.map(|current| current.queued.len() / width).sum();
        state.room.saturating_sub(queued)
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        _: Instant,
    ) -> Result<(), SinkError> {
        let mut state = lock(&self.state);
        state.check()?;
        if frame.format != state.format {
            return Err(SinkError::FormatMismatch { expected: state.format, got: frame.format });
        }
        if generation < state.fence {
            state.stale_writes += 1;
            return Err(SinkError::Stale);
        }
        state.of(generation).queued.extend(frame.data.iter());
        Ok(())
    }

    fn finish(&mut self, generation: Generation, _: Instant) -> Result<(), SinkError> {
        let mut state = lock(&self.state);
        state.check()?;
        if generation < state.fence {
            return Err(SinkError::Stale);
        }
        let current = state.of(generation);
        current.finished = true;
        if current.queued.is_empty() {
            let news = played(current, true);
            state.news.push_back(news);
            if state.current.as_ref().is_some_and(|current| current.generation == generation) {
                state.current = None;
            }
            state.waiting.retain(|current| current.generation != generation);
            state.wake();
        }
        Ok(())
    }

    fn clear(&mut self, next: Generation, _: Instant) -> Result<Option<Played>, SinkError> {
        let mut state = lock(&self.state);
        state.check()?;
        let position = state.current.as_ref().map(|current| played(current, false));
        state.current = None;
        state.waiting.clear();
        state.news.clear();
        state.fence = next;
        state.paused = false;
        state.clears.push(Cleared { next, played: position });
        Ok(position)
    }

    fn pause(&mut self, _: Instant) -> Result<(), SinkError> {
        lock(&self.state).paused = true;
        Ok(())
    }

    fn resume(&mut self, _: Instant) -> Result<(), SinkError> {
        lock(&self.state).paused = false;
        Ok(())
    }

    fn position(&self, _: Instant) -> Option<Played> {
        lock(&self.state).current.as_ref().map(|current| played(current, false))
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        _: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        let mut state = lock(&self.state);
        if let Err(error) = state.check() {
            return Poll::Ready(Err(error));
        }
        if let Some(played) = state.news.pop_front() {
            return Poll::Ready(Ok(played));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn played(current: &Current, complete: bool) -> Played {
    Played {
        generation: current.generation,
        samples: current.played,
        complete,
        at: tokio::time::Instant::now().into_std(),
        source: PositionSource::DeviceClock,
    }
}

fn lock(mutex: &Mutex<State>) -> MutexGuard<'_, State> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
