//! From the engine's audio to the sink: conversion, and a queue for what the sink has no room for.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
    time::Instant,
};

use antiphon_audio::{
    AudioFormat, AudioFrame, AudioSink, ClockedSink, Converter, Generation, Played, SinkError,
};

/// Hands audio to the sink as it has room. The queue is bounded by the engine, which counts what
/// was not heard.
pub(crate) struct Player {
    sink: Box<dyn AudioSink>,
    queue: VecDeque<Item>,
    converter: Option<(Generation, Converter)>,
    /// The sink was lost; what plays now plays into nothing.
    lost: bool,
}

enum Item {
    Audio(Generation, AudioFrame),
    Finish(Generation),
}

impl Player {
    pub(crate) fn new(sink: Box<dyn AudioSink>) -> Self {
        Self { sink, queue: VecDeque::new(), converter: None, lost: false }
    }

    /// The format that is heard.
    pub(crate) fn format(&self) -> AudioFormat {
        self.sink.format()
    }

    /// Gives the sink back; `None` when it was lost.
    pub(crate) fn into_sink(self) -> Option<Box<dyn AudioSink>> {
        (!self.lost).then_some(self.sink)
    }

    /// Appends audio of `generation`.
    pub(crate) fn play(
        &mut self,
        generation: Generation,
        frame: AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError> {
        let Some(frame) = self.convert(generation, frame)? else { return Ok(()) };
        self.queue.push_back(Item::Audio(generation, frame));
        self.pump(now)
    }

    /// No more audio of `generation` comes.
    pub(crate) fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        if let Some((of, mut converter)) = self.converter.take()
            && of == generation
            && let Some(rest) = converter.flush()
        {
            self.queue.push_back(Item::Audio(generation, rest));
        }
        self.queue.push_back(Item::Finish(generation));
        self.pump(now)
    }

    /// Silence at once.
    pub(crate) fn clear(
        &mut self,
        next: Generation,
        now: Instant,
    ) -> Result<Option<Played>, SinkError> {
        self.queue.clear();
        self.converter = None;
        self.sink.clear(next, now)
    }

    /// Stops at the present sample and keeps what is queued.
    pub(crate) fn pause(&mut self, now: Instant) -> Result<(), SinkError> {
        self.sink.pause(now)
    }

    /// Goes on at that sample.
    pub(crate) fn resume(&mut self, now: Instant) -> Result<(), SinkError> {
        self.sink.resume(now)?;
        self.pump(now)
    }

    /// How far playout is.
    pub(crate) fn position(&self, now: Instant) -> Option<Played> {
        self.sink.position(now)
    }

    /// Hands over what the sink has room for.
    pub(crate) fn pump(&mut self, now: Instant) -> Result<(), SinkError> {
        while let Some(item) = self.queue.front_mut() {
            match item {
                Item::Finish(generation) => {
                    let finished = self.sink.finish(*generation, now);
                    self.queue.pop_front();
                    ignore_stale(finished)?;
                }
                Item::Audio(generation, frame) => {
                    let generation = *generation;
                    let room = self.sink.room(now);
                    if room == 0 {
                        return Ok(());
                    }
                    let samples = frame.samples();
                    let written = if samples <= room {
                        self.sink.write(generation, frame, now)
                    } else {
                        let part = frame.slice(0, room);
                        let written = self.sink.write(generation, &part, now);
                        if written.is_ok() {
                            *frame = frame.slice(room, samples);
                            continue;
                        }
                        written
                    };
                    match written {
                        Err(SinkError::Full) => return Ok(()),
                        other => {
                            self.queue.pop_front();
                            ignore_stale(other)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// News of the sink.
    pub(crate) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        let news = self.sink.poll_progress(cx, now);
        if let Poll::Ready(Ok(_)) = &news {
            self.pump(now)?;
        }
        news
    }

    /// When the sink has news by time alone.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.sink.next_deadline()
    }

    /// The sink is gone: goes on as if somebody listened, so that turns come to their end.
    pub(crate) fn replace_lost_sink(&mut self, next: Generation, now: Instant) {
        let mut silence: Box<dyn AudioSink> = Box::new(ClockedSink::new(self.sink.format()));
        // Nothing of before is heard any more, and nothing of it is to come back.
        let _ = silence.clear(next, now);
        self.sink = silence;
        self.queue.clear();
        self.converter = None;
        self.lost = true;
    }

    fn convert(
        &mut self,
        generation: Generation,
        frame: AudioFrame,
    ) -> Result<Option<AudioFrame>, SinkError> {
        let format = self.sink.format();
        if frame.format == format {
            return Ok(Some(frame));
        }
        let mismatch = SinkError::FormatMismatch { expected: format, got: frame.format };
        let fits = self
            .converter
            .as_ref()
            .is_some_and(|(of, converter)| *of == generation && converter.input() == frame.format);
        if !fits {
            let converter = Converter::new(frame.format, format).map_err(|_| mismatch.clone())?;
            self.converter = Some((generation, converter));
        }
        let Some((_, converter)) = &mut self.converter else { return Ok(None) };
        let converted = converter.convert(&frame).map_err(|_| mismatch)?;
        Ok((!converted.is_empty()).then_some(converted))
    }
}

fn ignore_stale(result: Result<(), SinkError>) -> Result<(), SinkError> {
    match result {
        Err(SinkError::Stale) => Ok(()),
        other => other,
    }
}
