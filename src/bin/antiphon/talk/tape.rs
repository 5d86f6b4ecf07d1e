//! The output file.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Instant as StdInstant,
};

use antiphon::{
    audio::{AudioFormat, AudioSink, Generation, Played, SinkError, TimelineSink},
    types::AudioFrame,
};
use tokio::time::Instant;

use crate::failure::Failure;

/// The rate of the agent's voice in the file.
const OUTPUT_RATE_HZ: u32 = 24_000;

/// The output file, shared with the session, so that it can be closed in order afterwards.
#[derive(Clone)]
pub struct Tape(Arc<Mutex<Option<TimelineSink>>>);

impl Tape {
    /// Creates the file; the time line begins now.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let start = Instant::now().into_std();
        let sink = TimelineSink::create(path, OUTPUT_RATE_HZ, start).map_err(Failure::usage)?;
        Ok(Self(Arc::new(Mutex::new(Some(sink)))))
    }

    /// Brings the file up to now and completes it.
    pub fn close(self) -> Result<(), Failure> {
        let sink = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match sink {
            Some(sink) => sink.close(Instant::now().into_std()).map_err(Failure::failed),
            None => Ok(()),
        }
    }

    fn with<T>(&self, closed: T, act: impl FnOnce(&mut TimelineSink) -> T) -> T {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(sink) => act(sink),
            None => closed,
        }
    }

    fn lost<T>() -> Result<T, SinkError> {
        Err(SinkError::Lost("the file is closed".to_owned()))
    }
}

impl AudioSink for Tape {
    fn format(&self) -> AudioFormat {
        self.with(AudioFormat::pcm16(OUTPUT_RATE_HZ), |sink| sink.format())
    }

    fn room(&self, now: StdInstant) -> usize {
        self.with(0, |sink| sink.room(now))
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        now: StdInstant,
    ) -> Result<(), SinkError> {
        self.with(Self::lost(), |sink| sink.write(generation, frame, now))
    }

    fn finish(&mut self, generation: Generation, now: StdInstant) -> Result<(), SinkError> {
        self.with(Self::lost(), |sink| sink.finish(generation, now))
    }

    fn clear(&mut self, next: Generation, now: StdInstant) -> Result<Option<Played>, SinkError> {
        self.with(Self::lost(), |sink| sink.clear(next, now))
    }

    fn pause(&mut self, now: StdInstant) -> Result<(), SinkError> {
        self.with(Self::lost(), |sink| sink.pause(now))
    }

    fn resume(&mut self, now: StdInstant) -> Result<(), SinkError> {
        self.with(Self::lost(), |sink| sink.resume(now))
    }

    fn position(&self, now: StdInstant) -> Option<Played> {
        self.with(None, |sink| sink.position(now))
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: StdInstant,
    ) -> Poll<Result<Played, SinkError>> {
        self.with(Poll::Pending, |sink| sink.poll_progress(cx, now))
    }

    fn next_deadline(&self) -> Option<StdInstant> {
        self.with(None, |sink| sink.next_deadline())
    }
}
