//! A sink that plays into nothing.

use std::{
    fmt,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon_types::{AudioFormat, AudioFrame};

use super::{BOUND, NewsWaker, check_format};
use crate::{AudioSink, Generation, Played, PlayoutClock, PlayoutStats, PositionSource, SinkError};

/// A sink that plays into nothing, in real time: for sessions whose audio goes to a callback, or
/// nowhere. Its position is what a listener without any delay would have heard.
pub struct ClockedSink {
    clock: PlayoutClock,
    waker: NewsWaker,
    observer: Option<Observer>,
}

type Observer = Box<dyn FnMut(&AudioFrame, Instant) + Send>;

impl ClockedSink {
    /// Whoever plays the audio needs about this long to make it heard.
    const ERROR: Duration = Duration::from_millis(20);

    /// A sink for audio in `format`. It holds up to one second.
    pub fn new(format: AudioFormat) -> Self {
        let source = PositionSource::Estimate { error: Self::ERROR };
        let clock = PlayoutClock::new(format, BOUND, source);
        Self { clock, waker: NewsWaker::default(), observer: None }
    }

    /// Calls `observer` with each frame that is written and the time at which it begins to be
    /// heard, unless it is cleared before. It is called on the session's task: it must not wait.
    pub fn observed_by(
        mut self,
        observer: impl FnMut(&AudioFrame, Instant) + Send + 'static,
    ) -> Self {
        self.observer = Some(Box::new(observer));
        self
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
        let queued = self.clock.queued(now);
        let written = self.clock.write(generation, frame.samples(), now);
        self.waker.wake_if_news(&self.clock);
        if let (Ok(()), Some(observer)) = (&written, &mut self.observer) {
            observer(frame, now + self.clock.format().duration_of(queued));
        }
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

impl fmt::Debug for ClockedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClockedSink").field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_observer_is_told_when_each_frame_will_be_heard() {
        let (told, heard) = mpsc::channel();
        let mut sink = ClockedSink::new(AudioFormat::pcm16(24_000))
            .observed_by(move |frame, at| told.send((frame.samples(), at)).unwrap());
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let frame = AudioFrame::from_pcm16(24_000, &[1; 480]);
        sink.write(Generation(1), &frame, start).unwrap();
        sink.write(Generation(1), &frame, at(5)).unwrap();
        sink.write(Generation(1), &frame, at(100)).unwrap();
        sink.clear(Generation(2), at(110)).unwrap();
        sink.write(Generation(1), &frame, at(111)).unwrap_err();
        sink.write(Generation(2), &frame, at(111)).unwrap();
        let heard: Vec<_> = heard.try_iter().collect();
        assert_eq!(heard, [(480, start), (480, at(20)), (480, at(100)), (480, at(111))]);
    }
}
