//! What was heard, by the time that passed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_types::AudioFormat;

use crate::{Generation, Played, PositionSource, SinkError};

/// Accounts for audio that is played at its sample rate from the moment it is there: what of which
/// [`Generation`] was heard, and when something will have been. Pure: the caller says what time it
/// is. [`ClockedSink`](crate::ClockedSink) and [`TimelineSink`](crate::TimelineSink) are this with a mouth.
///
/// Time is counted in ticks of one sample since the clock's origin, and each tick is either one
/// sample of audio or one of silence. So nothing drifts, however long a session lasts.
#[derive(Debug)]
pub struct PlayoutClock {
    format: AudioFormat,
    source: PositionSource,
    /// Samples that may be queued.
    bound: u64,
    /// When tick 0 began; the first time that the clock was told.
    origin: Option<Instant>,
    /// Up to here, time is accounted for.
    tick: u64,
    /// What is to be played, oldest first. The first one is playing, or waiting for more.
    queue: VecDeque<Segment>,
    /// What was last heard of a generation that is no longer in the queue.
    last: Option<Played>,
    /// The oldest generation that is not void.
    newest: Generation,
    paused: bool,
    /// The queue was above half of its bound: falling to half will be news.
    filled: bool,
    /// Completions that nobody was told of yet, oldest first.
    completed: VecDeque<Played>,
    /// Other news: room again, or an underrun.
    progress: bool,
    stats: PlayoutStats,
}

/// What a [`PlayoutClock`] saw go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlayoutStats {
    /// Samples heard.
    pub played: u64,
    /// Samples that were cleared unheard.
    pub cleared: u64,
    /// How often a generation's audio ran out before it was finished.
    pub underruns: u64,
    /// Samples of silence that this put into replies.
    pub underrun_samples: u64,
    /// Writes and finishes that were refused because their generation was cleared or finished.
    pub stale: u64,
}

/// What a stretch of time was filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Nothing was there to be played.
    Silence {
        /// Its length.
        samples: u64,
    },
    /// The next samples of the queue.
    Audio {
        /// Whose audio.
        generation: Generation,
        /// Its length.
        samples: u64,
    },
}

#[derive(Clone, Debug)]
struct Segment {
    generation: Generation,
    written: u64,
    played: u64,
    finished: bool,
    /// Its audio ran out, and nobody was told before.
    starved: bool,
}

impl Segment {
    fn left(&self) -> u64 {
        self.written - self.played
    }
}

/// More generations than this are not queued, nor are more completions remembered.
const MAX_QUEUED_GENERATIONS: usize = 32;

impl PlayoutClock {
    /// A clock for audio in `format` of which at most `bound` is queued (at least 20 ms). Positions
    /// say that they are known from `source`. Time begins with the first call that tells it.
    pub fn new(format: AudioFormat, bound: Duration, source: PositionSource) -> Self {
        Self {
            format,
            source,
            bound: format.samples_in(bound.max(Duration::from_millis(20))),
            origin: None,
            tick: 0,
            queue: VecDeque::new(),
            last: None,
            newest: Generation::default(),
            paused: false,
            filled: false,
            completed: VecDeque::new(),
            progress: false,
            stats: PlayoutStats::default(),
        }
    }

    /// Time begins at `origin` instead.
    pub fn starting_at(mut self, origin: Instant) -> Self {
        self.origin = Some(origin);
        self
    }

    /// The format of the audio.
    pub fn format(&self) -> AudioFormat {
        self.format
    }

    /// What went by so far.
    pub fn stats(&self) -> PlayoutStats {
        self.stats
    }

    /// Samples that may be written now.
    pub fn room(&self, now: Instant) -> usize {
        self.bound.saturating_sub(self.queued(now)) as usize
    }

    /// Samples that are written and not yet heard.
    pub fn queued(&self, now: Instant) -> u64 {
        let queued = self.left();
        let played = if self.paused { 0 } else { self.ticks_until(now).min(queued) };
        queued - played
    }

    /// Lets time pass up to `now` and tells what it was filled with, in order. The other methods
    /// that change something do this too, and tell nobody.
    pub fn advance(&mut self, now: Instant, mut filled: impl FnMut(Span)) {
        self.origin.get_or_insert(now);
        let mut ticks = self.ticks_until(now);
        while ticks > 0 {
            let span = self.next_span(ticks);
            let (Span::Silence { samples } | Span::Audio { samples, .. }) = span;
            filled(span);
            self.tick += samples;
            ticks -= samples;
            self.settle();
        }
    }

    /// `samples` more of `generation` are there. Ends older generations: they get no more audio.
    pub fn write(
        &mut self,
        generation: Generation,
        samples: usize,
        now: Instant,
    ) -> Result<(), SinkError> {
        self.advance(now, |_| ());
        self.check(generation)?;
        if samples > self.room(now) {
            return Err(SinkError::Full);
        }
        let segment = self.open(generation)?;
        segment.written += samples as u64;
        segment.starved &= samples == 0;
        self.filled |= self.left() > self.bound / 2;
        Ok(())
    }

    /// No more of `generation` comes.
    pub fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        self.advance(now, |_| ());
        self.check(generation)?;
        self.open(generation)?.finished = true;
        self.settle();
        Ok(())
    }

    /// Generations before `next` are void: their audio is gone, and so is news of them. Ends a
    /// pause. Returns the position before.
    pub fn clear(&mut self, next: Generation, now: Instant) -> Option<Played> {
        self.advance(now, |_| ());
        let heard = self.position(now);
        self.newest = self.newest.max(next);
        self.paused = false;
        self.stats.cleared +=
            self.queue.iter().filter(|s| s.generation < next).map(Segment::left).sum::<u64>();
        self.queue.retain(|segment| segment.generation >= next);
        self.completed.retain(|played| played.generation >= next);
        self.last = self.last.filter(|played| played.generation >= next);
        self.filled &= self.left() > self.bound / 2;
        self.progress = false;
        // A generation that was kept may have no audio of its own.
        self.settle();
        heard
    }

    /// Time goes on, audio does not.
    pub fn pause(&mut self, now: Instant) {
        self.advance(now, |_| ());
        self.paused = true;
    }

    /// Audio goes on.
    pub fn resume(&mut self, now: Instant) {
        self.advance(now, |_| ());
        self.paused = false;
    }

    /// How far the generation is that is playing or was last.
    pub fn position(&self, now: Instant) -> Option<Played> {
        let ticks = if self.paused { 0 } else { self.ticks_until(now) };
        let mut passed = 0;
        let mut position = self.last;
        for segment in &self.queue {
            let heard = segment.left().min(ticks - passed);
            passed += heard;
            let samples = segment.played + heard;
            let complete = segment.finished && samples == segment.written;
            let ended = self.time_of(self.tick + passed).filter(|_| complete);
            position = Some(Played {
                generation: segment.generation,
                samples,
                complete,
                at: ended.unwrap_or(now),
                source: self.source,
            });
            if !complete {
                break;
            }
        }
        position
    }

    /// The next piece of news, if there is any: each completed generation once, and the position
    /// when there is room again or audio ran out.
    pub fn news(&mut self, now: Instant) -> Option<Played> {
        self.advance(now, |_| ());
        if let Some(played) = self.completed.pop_front() {
            // This is news of room as well.
            self.progress = false;
            return Some(played);
        }
        if std::mem::take(&mut self.progress) { self.position(now) } else { None }
    }

    /// Whether [`PlayoutClock::news`] has any without that time passes.
    pub fn has_news(&self) -> bool {
        self.progress || !self.completed.is_empty()
    }

    /// When [`PlayoutClock::news`] will have some by the passing of time alone.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.has_news() {
            return self.time_of(self.tick);
        }
        let front = self.queue.front().filter(|front| front.left() > 0 && !self.paused)?;
        let front_ends = front.left();
        let half_empty = if self.filled { self.left() - self.bound / 2 } else { u64::MAX };
        self.time_of(self.tick + front_ends.min(half_empty))
    }

    fn left(&self) -> u64 {
        self.queue.iter().map(Segment::left).sum()
    }

    fn ticks_until(&self, now: Instant) -> u64 {
        let elapsed = self.origin.map(|origin| now.saturating_duration_since(origin));
        self.format.samples_in(elapsed.unwrap_or_default()).saturating_sub(self.tick)
    }

    /// When `tick` begins: the first instant at which the ticks before it have passed.
    fn time_of(&self, tick: u64) -> Option<Instant> {
        // `duration_of` rounds down to the nanosecond, which may be before it.
        Some(self.origin? + self.format.duration_of(tick) + Duration::from_nanos(1))
    }

    /// What the next ticks, `limit` at most, are filled with.
    fn next_span(&mut self, limit: u64) -> Span {
        let silence = Span::Silence { samples: limit };
        let Some(segment) = self.queue.front_mut().filter(|_| !self.paused) else {
            return silence;
        };
        if segment.left() == 0 {
            if segment.written > 0 {
                self.stats.underrun_samples += limit;
            }
            return silence;
        }
        let samples = segment.left().min(limit);
        segment.played += samples;
        self.stats.played += samples;
        Span::Audio { generation: segment.generation, samples }
    }

    /// Draws the conclusions of what was just played or finished.
    fn settle(&mut self) {
        while let Some(segment) = self.queue.front_mut().filter(|segment| segment.left() == 0) {
            if !segment.finished {
                if segment.written > 0 && !segment.starved {
                    segment.starved = true;
                    self.stats.underruns += 1;
                    self.progress = true;
                }
                break;
            }
            let Segment { generation, played: samples, .. } = *segment;
            self.queue.pop_front();
            self.complete(generation, samples);
        }
        if self.filled && self.left() <= self.bound / 2 {
            self.filled = false;
            self.progress = true;
        }
    }

    fn complete(&mut self, generation: Generation, samples: u64) {
        let Some(at) = self.time_of(self.tick) else { return };
        let played = Played { generation, samples, complete: true, at, source: self.source };
        self.last = Some(played);
        if self.completed.len() == MAX_QUEUED_GENERATIONS {
            self.completed.pop_front();
        }
        self.completed.push_back(played);
    }

    fn check(&mut self, generation: Generation) -> Result<(), SinkError> {
        let back = self.queue.back();
        let finished = back.is_some_and(|back| back.generation == generation && back.finished)
            || self.last.is_some_and(|last| last.generation == generation);
        if generation < self.newest || finished {
            self.stats.stale += 1;
            return Err(SinkError::Stale);
        }
        Ok(())
    }

    /// The queue's segment of `generation`, which [`PlayoutClock::check`] has let through.
    fn open(&mut self, generation: Generation) -> Result<&mut Segment, SinkError> {
        if self.queue.back().is_none_or(|back| back.generation != generation) {
            if self.queue.len() == MAX_QUEUED_GENERATIONS {
                return Err(SinkError::Full);
            }
            if let Some(older) = self.queue.back_mut() {
                older.finished = true;
            }
            self.newest = generation;
            self.queue.push_back(Segment {
                generation,
                written: 0,
                played: 0,
                finished: false,
                starved: false,
            });
            self.settle();
        }
        // Just pushed, unless it was there; unfinished segments are not settled away.
        self.queue.back_mut().ok_or(SinkError::Full)
    }
}
