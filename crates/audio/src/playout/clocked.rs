//! A sink that plays into nothing.

use std::{
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon_types::{AudioFormat, AudioFrame};

use super::{BOUND, NewsWaker, check_format};
use crate::{AudioSink, Generation, Played, PlayoutClock, PlayoutStats, PositionSource, SinkError};

/// A sink that plays into nothing, in real time: for sessions whose audio goes to a callback, or
/// nowhere. Its position is what a listener without any delay would have heard.
#[derive(Debug)]
pub struct ClockedSink {
    clock: PlayoutClock,
    waker: NewsWaker,
}

impl ClockedSink {
    /// Whoever plays the audio needs about this long to make it heard.
    const ERROR: Duration = Duration::from_millis(20);

    /// A sink for audio in `format`. It holds up to one second.
    pub fn new(format: AudioFormat) -> Self {
        let source = PositionSource::Estimate { error: Self::ERROR };
        Self { clock: PlayoutClock::new(format, BOUND, source), waker: NewsWaker::default() }
    }

    /// What went by so far.
    pub fn stats(&self) -> PlayoutStats {
        self.clock.stats()
    }
}

impl AudioSink for ClockedSink {
    fn format(&self) -> AudioFormat {
        self.clock.format()
    }

    fn room(&self, now: Instant) -> usize {
        self.clock.room(now)
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError> {
        check_format(self.format(), frame)?;
        let written = self.clock.write(generation, frame.samples(), now);
        self.waker.wake_if_news(&self.clock);
        written
    }

    fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        let finished = self.clock.finish(generation, now);
        self.waker.wake_if_news(&self.clock);
        finished
    }

    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError> {
        let heard = self.clock.clear(next, now);
        self.waker.wake_if_news(&self.clock);
        Ok(heard)
    }

    fn pause(&mut self, now: Instant) -> Result<(), SinkError> {
        self.clock.pause(now);
        Ok(())
    }

    fn resume(&mut self, now: Instant) -> Result<(), SinkError> {
        self.clock.resume(now);
        Ok(())
    }

    fn position(&self, now: Instant) -> Option<Played> {
        self.clock.position(now)
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        self.waker.poll(&mut self.clock, cx, now).map(Ok)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.clock.next_deadline()
    }
}
