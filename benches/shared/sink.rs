//! A loudspeaker that is watched.

use std::{
    task::{Context, Poll},
    time::Instant,
};

use antiphon::audio::{
    AudioFormat, AudioFrame, AudioSink, ClockedSink, Generation, Played, SinkError,
};

/// What happens to a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Written,
    Cleared,
}

/// A sink that tells what happens to it, at once.
pub struct Watched<W> {
    inner: ClockedSink,
    watch: W,
}

impl<W: FnMut(Seen) + Send + 'static> Watched<W> {
    /// Of 24 kHz.
    pub fn new(watch: W) -> Self {
        Self { inner: ClockedSink::new(AudioFormat::pcm16(24_000)), watch }
    }
}

impl<W: FnMut(Seen) + Send + 'static> AudioSink for Watched<W> {
    fn format(&self) -> AudioFormat {
        self.inner.format()
    }

    fn room(&self, now: Instant) -> usize {
        self.inner.room(now)
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError> {
        (self.watch)(Seen::Written);
        self.inner.write(generation, frame, now)
    }

    fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        self.inner.finish(generation, now)
    }

    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError> {
        let cleared = self.inner.clear(next, now);
        (self.watch)(Seen::Cleared);
        cleared
    }

    fn pause(&mut self, now: Instant) -> Result<(), SinkError> {
        self.inner.pause(now)
    }

    fn resume(&mut self, now: Instant) -> Result<(), SinkError> {
        self.inner.resume(now)
    }

    fn position(&self, now: Instant) -> Option<Played> {
        self.inner.position(now)
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        self.inner.poll_progress(cx, now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
}
