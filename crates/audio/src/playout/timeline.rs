//! A sink that writes down what a listener would have heard.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufWriter, Seek, Write},
    path::Path,
    task::{Context, Poll},
    time::Instant,
};

use antiphon_types::{AudioFormat, AudioFrame};

use super::{BOUND, NewsWaker, check_format};
use crate::{
    AudioError, AudioSink, Generation, Played, PlayoutClock, PlayoutStats, PositionSource,
    SinkError, Span, WavWriter, pcm,
};

/// A sink whose WAV file is the session's time line: sample `n` of the file is what was to be heard
/// `n / sample_rate_hz` seconds after the start. Where nobody spoke, or audio came late, there is
/// silence; a reply that was cleared ends at the very sample that had been heard.
///
/// The file is complete when the sink is dropped, up to the last time it was told; use
/// [`TimelineSink::close`] to bring it up to now and to learn of errors.
#[derive(Debug)]
pub struct TimelineSink<W: Write + Seek = BufWriter<File>> {
    clock: PlayoutClock,
    waker: NewsWaker,
    tape: Tape<W>,
}

impl TimelineSink {
    /// Creates the file, or empties it. The time line begins at `start`.
    pub fn create(
        path: impl AsRef<Path>,
        sample_rate_hz: u32,
        start: Instant,
    ) -> Result<Self, AudioError> {
        Ok(Self::new(WavWriter::create(path, sample_rate_hz)?, start))
    }
}

impl<W: Write + Seek> TimelineSink<W> {
    /// A time line that begins at `start`, written by `writer`. It holds up to one second.
    pub fn new(writer: WavWriter<W>, start: Instant) -> Self {
        let format = AudioFormat::pcm16(writer.sample_rate_hz());
        let clock = PlayoutClock::new(format, BOUND, PositionSource::DeviceClock);
        Self {
            clock: clock.starting_at(start),
            waker: NewsWaker::default(),
            tape: Tape {
                writer,
                queue: VecDeque::new(),
                samples: Vec::new(),
                failure: None,
                told: false,
            },
        }
    }

    /// What went by so far.
    pub fn stats(&self) -> PlayoutStats {
        self.clock.stats()
    }

    /// Brings the time line up to `now` and completes the file. What is queued is not heard any
    /// more.
    pub fn close(mut self, now: Instant) -> Result<(), AudioError> {
        let Self { clock, tape, .. } = &mut self;
        clock.advance(now, |span| tape.write(span));
        match self.tape.failure {
            Some(error) => Err(error),
            None => self.tape.writer.finish(),
        }
    }

    fn advance(&mut self, now: Instant) -> Result<(), SinkError> {
        let Self { clock, tape, .. } = self;
        clock.advance(now, |span| tape.write(span));
        tape.check()
    }
}

impl<W: Write + Seek + Send> AudioSink for TimelineSink<W> {
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
        self.advance(now)?;
        let written = self.clock.write(generation, frame.samples(), now);
        if written.is_ok() && !frame.is_empty() {
            self.tape.queue.push_back((generation, frame.slice(0, frame.samples())));
        }
        self.waker.wake_if_news(&self.clock);
        written
    }

    fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        self.advance(now)?;
        let finished = self.clock.finish(generation, now);
        self.waker.wake_if_news(&self.clock);
        finished
    }

    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError> {
        self.advance(now)?;
        let heard = self.clock.clear(next, now);
        self.tape.queue.retain(|&(generation, _)| generation >= next);
        self.waker.wake_if_news(&self.clock);
        Ok(heard)
    }

    fn pause(&mut self, now: Instant) -> Result<(), SinkError> {
        self.advance(now)?;
        self.clock.pause(now);
        Ok(())
    }

    fn resume(&mut self, now: Instant) -> Result<(), SinkError> {
        self.advance(now)?;
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
        if let Err(error) = self.advance(now)
            && !std::mem::replace(&mut self.tape.told, true)
        {
            return Poll::Ready(Err(error));
        }
        let played = self.waker.poll(&mut self.clock, cx, now);
        if matches!(played, Poll::Ready(Played { complete: true, .. })) {
            // A crash after this leaves a file that holds every reply so far.
            self.tape.flush();
        }
        played.map(Ok)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.clock.next_deadline()
    }
}

/// The audio that is not played yet, and where it goes when it is.
#[derive(Debug)]
struct Tape<W: Write + Seek> {
    writer: WavWriter<W>,
    queue: VecDeque<(Generation, AudioFrame)>,
    /// The samples of one frame; kept for its memory.
    samples: Vec<i16>,
    failure: Option<AudioError>,
    /// `failure` was told by `poll_progress`.
    told: bool,
}

impl<W: Write + Seek> Tape<W> {
    fn write(&mut self, span: Span) {
        if self.failure.is_some() {
            return;
        }
        let written = match span {
            Span::Silence { samples } => self.writer.write_silence(samples),
            Span::Audio { samples, .. } => self.write_audio(samples as usize),
        };
        self.note(written);
    }

    fn write_audio(&mut self, samples: usize) -> Result<(), AudioError> {
        let mut left = samples;
        while left > 0 {
            // The clock plays no more than was written to it, and the queue holds the same frames.
            let Some((_, frame)) = self.queue.front_mut() else { break };
            let part = frame.slice(0, left);
            *frame = frame.slice(part.samples(), usize::MAX);
            if frame.is_empty() {
                self.queue.pop_front();
            }
            left -= part.samples();
            self.samples.clear();
            pcm::bytes_to_samples(&part.data, &mut self.samples);
            self.writer.write(&self.samples)?;
        }
        Ok(())
    }

    fn flush(&mut self) {
        let flushed = self.writer.flush();
        self.note(flushed);
    }

    fn note(&mut self, result: Result<(), AudioError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    fn check(&self) -> Result<(), SinkError> {
        match &self.failure {
            Some(error) => Err(SinkError::Io(error.to_string())),
            None => Ok(()),
        }
    }
}
