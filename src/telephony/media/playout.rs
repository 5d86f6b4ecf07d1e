//! What is sent to a carrier, when, and what the caller has heard of it.

mod marks;
mod segment;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_audio::{AudioFormat, AudioFrame, Generation, Played, PositionSource, SinkError};

use self::{marks::Mark, segment::Segment};
use super::conceal;
use crate::telephony::dialect::{Capabilities, MarkMeaning, Pacing};

/// Audio that waits here, at most.
const BOUND: Duration = Duration::from_secs(1);
/// A mark that should have come so long ago does not come any more.
const MARK_LATE: Duration = Duration::from_secs(2);
/// Audio of one message, where there is as much and the carrier paces.
const MESSAGE: Duration = Duration::from_millis(100);
/// Generations that are queued, and completions that nobody was told of, at most.
const MAX_GENERATIONS: usize = 32;
/// Where we pace, so much is waited for before a reply's first sound: providers deliver in bursts, and
/// a gap in the first word is heard.
const PRE_ROLL: Duration = Duration::from_millis(60);
/// A mark comes back so long after its audio was heard, at the latest, where nothing is stalled.
const MARK_WAY: Duration = Duration::from_millis(300);

/// The audio of one call to its caller. Audio goes in by [`Generation`], in any pieces; out go whole
/// quanta when they are due, marks behind them, and a clear where audio is not to be heard after all.
///
/// A carrier that paces is kept ahead by its lead; where we pace, each quantum has an absolute time,
/// and slots that were missed are skipped. Both are one rule: a quantum is due once what was sent before
/// it lasts no longer than the lead. What was heard follows from the same clock, corrected by each mark
/// that comes back, and is never more than was sent. Audio that was sent and not heard is kept where the
/// carrier can clear, so that a pause can take it back.
///
/// Where we pace, the clock is ours. A remote one that is 100 ppm faster or slower is 6 ms off after a reply
/// of a minute, which its jitter buffer takes, and the next reply begins anew: nothing is corrected.
#[derive(Debug)]
pub struct Playout {
    format: AudioFormat,
    /// In samples.
    quantum: usize,
    /// In quanta.
    largest: usize,
    lead: Duration,
    delay: Duration,
    clears: bool,
    marks: MarkMeaning,
    /// Generations, oldest first, until they are heard.
    queue: VecDeque<Segment>,
    /// The oldest generation that is not void.
    newest: Generation,
    last: Option<Played>,
    /// When all that was sent will have been heard: so many samples after a moment, so that nothing
    /// drifts.
    anchor: Option<Instant>,
    after_anchor: u64,
    /// Counts clears: marks of before are no proof.
    era: u32,
    mark_number: u64,
    pending_marks: VecDeque<Mark>,
    clear_due: bool,
    /// The carrier takes audio.
    open: bool,
    paused: bool,
    /// The caller is to hear nothing, whatever the session says.
    held: bool,
    /// In samples; a generation's first ones wait for so many.
    pre_roll: usize,
    filled: bool,
    progress: bool,
    completed: VecDeque<Played>,
    stats: PlayoutStats,
}

/// What is to be written to the carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// Audio.
    Audio(AudioFrame),
    /// A mark of this name.
    Mark(String),
    /// The carrier forgets what it has not played.
    Clear,
}

/// What a [`Playout`] saw go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PlayoutStats {
    /// Samples sent, padding included.
    pub sent: u64,
    /// Samples of silence put behind the last ones of a reply.
    pub padding: u64,
    /// Samples that were cleared, or taken back, before they were heard.
    pub cleared: u64,
    /// Clears sent.
    pub clears: u64,
    /// Marks sent.
    pub marks: u64,
    /// Marks that came back in time.
    pub marks_heard: u64,
    /// Marks that came back after a clear, twice, or that nobody had set.
    pub marks_stale: u64,
    /// Marks that never came back.
    pub marks_lost: u64,
    /// How often a reply's audio ran out before it was finished.
    pub underruns: u64,
    /// Slots that passed without audio being sent in time.
    pub skipped: u64,
    /// Writes that were refused because their generation was over.
    pub stale: u64,
}

impl Playout {
    /// For audio in `format` to a carrier with these `capabilities`.
    pub fn new(format: AudioFormat, capabilities: &Capabilities) -> Self {
        let quantum = format.samples_in(capabilities.quantum).max(1) as usize;
        let bytes = quantum * format.bytes_per_sample();
        let in_message = match capabilities.pacing {
            _ if capabilities.exact_frames => 1,
            Pacing::Us { .. } => 1,
            Pacing::Carrier { .. } => (format.samples_in(MESSAGE) as usize / quantum).max(1),
        };
        let least = capabilities.least_message.div_ceil(bytes);
        Self {
            format,
            quantum,
            largest: in_message.max(least).min((capabilities.largest_message / bytes).max(1)),
            // A carrier loses what is beyond its buffer.
            lead: capabilities.pacing.lead().min(capabilities.buffer / 2),
            delay: capabilities.delay,
            clears: capabilities.clears,
            marks: capabilities.marks,
            queue: VecDeque::new(),
            newest: Generation::default(),
            last: None,
            anchor: None,
            after_anchor: 0,
            era: 0,
            mark_number: 0,
            pending_marks: VecDeque::new(),
            clear_due: false,
            open: true,
            paused: false,
            held: false,
            pre_roll: match capabilities.pacing {
                Pacing::Us { .. } => format.samples_in(PRE_ROLL) as usize,
                Pacing::Carrier { .. } => 0,
            },
            filled: false,
            progress: false,
            completed: VecDeque::new(),
            stats: PlayoutStats::default(),
        }
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
    pub fn room(&self) -> usize {
        self.bound().saturating_sub(self.waiting())
    }

    /// More of `generation`. Ends older generations.
    pub fn write(
        &mut self,
        generation: Generation,
        audio: &AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError> {
        if audio.format != self.format {
            return Err(SinkError::FormatMismatch { expected: self.format, got: audio.format });
        }
        self.settle(now);
        self.check(generation)?;
        if audio.samples() > self.room() {
            return Err(SinkError::Full);
        }
        let half = self.bound() / 2;
        let segment = self.open(generation)?;
        segment.waiting.extend_from_slice(&audio.data);
        segment.written += audio.samples() as u64;
        segment.starved &= audio.is_empty();
        self.filled |= self.waiting() > half;
        Ok(())
    }

    /// No more of `generation` comes. Its last quantum is filled with silence, once.
    pub fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        self.settle(now);
        self.check(generation)?;
        self.open(generation)?.finished = true;
        self.settle(now);
        Ok(())
    }

    /// Silence at once: generations before `next` are void. Returns what was heard.
    pub fn clear(&mut self, next: Generation, now: Instant) -> Option<Played> {
        self.settle(now);
        let heard = self.position(now);
        let kept = self.queue.iter().filter(|segment| segment.generation >= next);
        // What a mark has not proved yet may still be on its way, whatever the clock says: one clear
        // too many does no harm.
        let unproven = self.pending_marks.iter().any(|mark| mark.generation < next);
        let void_unheard = unproven || self.unheard(now) > kept.map(Segment::total).sum::<u64>();
        let mut left = self.unheard(now);
        for segment in self.queue.iter().rev() {
            let here = left.min(segment.total());
            left -= here;
            if segment.generation < next {
                // Where nothing can be cleared, what was sent is heard all the same.
                let here = if self.clears { here } else { 0 };
                self.stats.cleared += segment.written - segment.heard(here).min(segment.written);
            }
        }
        self.queue.retain(|segment| segment.generation >= next);
        self.completed.retain(|played| played.generation >= next);
        self.last = self.last.filter(|played| played.generation >= next);
        self.newest = self.newest.max(next);
        self.paused = false;
        self.progress = false;
        self.filled &= self.waiting() > self.bound() / 2;
        if void_unheard && self.clears {
            let width = self.format.bytes_per_sample();
            for segment in &mut self.queue {
                // It was behind what is void: it is cleared with it, and sent again.
                segment.take_back(segment.sent - segment.proven, width);
            }
            self.forget_sent(now);
        }
        heard
    }

    /// Stops, and keeps what was not heard. What a carrier without a clear has already is heard all
    /// the same.
    pub fn pause(&mut self, now: Instant) {
        self.settle(now);
        if !std::mem::replace(&mut self.paused, true) && !self.held {
            self.take_back(now);
        }
    }

    /// The same for whoever has the line: while it is held nothing is sent, and what was not heard is
    /// sent again afterwards. A line that was lost is held too, so that nothing is.
    pub fn hold(&mut self, on: bool, now: Instant) {
        self.settle(now);
        if std::mem::replace(&mut self.held, on) != on && on && !self.paused {
            self.take_back(now);
        }
    }

    fn take_back(&mut self, now: Instant) {
        let unheard = self.ends_at().is_some_and(|ends| ends > now);
        if !self.clears || !unheard {
            return;
        }
        let mut left = self.unheard(now);
        // From the newest: what is unheard is the end of what was sent.
        for segment in self.queue.iter_mut().rev() {
            let here = left.min(segment.total());
            left -= here;
            let back = segment.sent - segment.heard(here).min(segment.sent);
            segment.take_back(back, self.format.bytes_per_sample());
            self.stats.cleared += back;
        }
        self.forget_sent(now);
    }

    /// Goes on.
    pub fn resume(&mut self, now: Instant) {
        self.settle(now);
        self.paused = false;
    }

    /// The carrier takes audio, or for now it does not.
    pub fn set_open(&mut self, open: bool) {
        self.open = open;
    }

    /// How far the generation is that is heard now, or was last.
    pub fn position(&self, now: Instant) -> Option<Played> {
        let mut unheard = self.unheard(now);
        let mut position = None;
        // From the newest back to the one that is heard now.
        for segment in self.queue.iter().rev() {
            if segment.sent == 0 && segment.written > 0 {
                continue;
            }
            let here = unheard.min(segment.total());
            unheard -= here;
            let samples = segment.heard(here);
            let complete = segment.finished && samples == segment.written && here == 0;
            if samples > 0 || position.is_none() {
                position = Some(self.played(segment, samples, complete, now));
            }
            if samples > 0 {
                break;
            }
        }
        position.or(self.last)
    }

    /// The next thing to write to the carrier, if one is due.
    pub fn poll_send(&mut self, now: Instant) -> Option<Send> {
        if std::mem::take(&mut self.clear_due) {
            self.stats.clears += 1;
            return Some(Send::Clear);
        }
        if let Some(mark) = self.mark_due(now) {
            return Some(mark);
        }
        if !self.flows() {
            return None;
        }
        let index = self.sendable()?;
        if self.send_at().is_some_and(|at| at > now) {
            return None;
        }
        Some(self.send_from(index, now))
    }

    /// When [`Playout::poll_send`] has something by the passing of time alone.
    pub fn next_send(&self) -> Option<Instant> {
        if self.clear_due {
            return self.past();
        }
        if !self.flows() {
            return None;
        }
        self.sendable()?;
        self.send_at().or_else(|| self.past())
    }

    /// A moment that is over, if there was any.
    fn past(&self) -> Option<Instant> {
        self.anchor?.checked_sub(self.delay)
    }

    /// Whether [`Playout::poll_send`] has something now.
    pub fn has_send(&self, now: Instant) -> bool {
        let audio =
            self.flows() && self.sendable().is_some() && self.send_at().is_none_or(|at| at <= now);
        self.clear_due || audio || self.unmarked().is_some()
    }

    /// News, as [`AudioSink::poll_progress`](antiphon_audio::AudioSink::poll_progress) has it.
    pub fn news(&mut self, now: Instant) -> Option<Played> {
        self.settle(now);
        if let Some(played) = self.completed.pop_front() {
            self.progress = false;
            return Some(played);
        }
        if std::mem::take(&mut self.progress) { self.position(now) } else { None }
    }

    /// Whether [`Playout::news`] has any without that time passes.
    pub fn has_news(&self) -> bool {
        self.progress || !self.completed.is_empty()
    }

    /// When [`Playout::news`] will have some by the passing of time alone.
    pub fn next_news(&self) -> Option<Instant> {
        if self.has_news() {
            return self.past();
        }
        let mark = self.pending_marks.front().map(|mark| mark.late_at);
        let complete = self.queue.front().and_then(|segment| {
            let all_sent = segment.finished && segment.waiting.is_empty();
            let by_clock = all_sent && self.marks == MarkMeaning::None;
            let starves = !segment.finished && segment.waiting.is_empty() && !segment.starved;
            if by_clock || (starves && segment.written > 0) { self.segment_ends() } else { None }
        });
        [mark, complete].into_iter().flatten().min()
    }

    /// Whether everything that was written has been heard.
    pub fn is_idle(&self) -> bool {
        self.queue.iter().all(|segment| segment.written == 0)
    }

    /// When all that was sent will have been heard.
    pub fn ends_at(&self) -> Option<Instant> {
        Some(self.anchor? + self.format.duration_of(self.after_anchor))
    }

    fn flows(&self) -> bool {
        self.open && !self.paused && !self.held
    }

    fn bound(&self) -> usize {
        self.format.samples_in(BOUND) as usize
    }

    /// Samples that wait here.
    fn waiting(&self) -> usize {
        let width = self.format.bytes_per_sample();
        self.queue.iter().map(|segment| segment.waiting.len() / width).sum()
    }

    /// Samples that were sent and are not heard yet.
    fn unheard(&self, now: Instant) -> u64 {
        // Where a mark is overdue the line is stalled, and so is what the caller hears.
        let overdue = self.pending_marks.front().map(|mark| mark.late_at - MARK_LATE + MARK_WAY);
        let now = overdue.map_or(now, |overdue| now.min(overdue));
        let left = self.ends_at().map(|ends| ends.saturating_duration_since(now));
        self.format.samples_in(left.unwrap_or_default()).min(self.after_anchor)
    }

    /// When the first generation that is not heard will have been.
    fn segment_ends(&self) -> Option<Instant> {
        let later: u64 = self.queue.iter().skip(1).map(Segment::total).sum();
        Some(self.ends_at()? - self.format.duration_of(later.min(self.after_anchor)))
    }

    /// The first generation with a quantum to send.
    fn sendable(&self) -> Option<usize> {
        let bytes = self.quantum * self.format.bytes_per_sample();
        let index = self.queue.iter().position(|segment| !segment.waiting.is_empty())?;
        let segment = &self.queue[index];
        let pre_roll = self.pre_roll * self.format.bytes_per_sample();
        let least = if segment.rolling { bytes } else { bytes.max(pre_roll) };
        (segment.finished || segment.waiting.len() >= least).then_some(index)
    }

    /// When the next quantum is due; `None`: at once.
    fn send_at(&self) -> Option<Instant> {
        // The delay is between sending and hearing: it is no audio that waits.
        self.ends_at()?.checked_sub(self.delay + self.lead)
    }

    fn send_from(&mut self, index: usize, now: Instant) -> Send {
        let width = self.format.bytes_per_sample();
        let dry_at = self.ends_at().and_then(|ends| ends.checked_sub(self.delay));
        let behind = dry_at.map(|dry_at| now.saturating_duration_since(dry_at));
        if behind.is_none_or(|behind| !behind.is_zero()) {
            if let Some(behind) = behind.filter(|_| self.queue[index].sent > 0) {
                let slot = self.format.duration_of(self.quantum as u64);
                self.stats.skipped += (behind.as_nanos() / slot.as_nanos().max(1)) as u64;
            }
            self.anchor = Some(now + self.delay);
            self.after_anchor = 0;
        }
        let segment = &mut self.queue[index];
        let quanta = (segment.waiting.len() / width / self.quantum).clamp(1, self.largest);
        let samples = (quanta * self.quantum).min(segment.waiting.len() / width);
        let mut data = segment.waiting.split_to(samples * width);
        segment.sent += samples as u64;
        segment.rolling = true;
        if self.clears {
            segment.sent_audio.extend_from_slice(&data);
        }
        let padding = (quanta * self.quantum).saturating_sub(samples);
        if padding > 0 {
            data.extend_from_slice(&conceal::silence(self.format, padding).data);
            segment.padding += padding as u64;
            self.stats.padding += padding as u64;
        }
        self.stats.sent += (samples + padding) as u64;
        // Silence at the end is not waited for by who asks what was heard, but it takes its time.
        self.after_anchor += (samples + padding) as u64;
        if self.filled && self.waiting() <= self.bound() / 2 {
            self.filled = false;
            self.progress = true;
        }
        self.forget_heard(now);
        Send::Audio(AudioFrame::new(self.format, data.freeze()))
    }

    /// Draws the conclusions of the time that passed.
    fn settle(&mut self, now: Instant) {
        while let Some(mark) = self.pending_marks.front().filter(|mark| mark.late_at <= now) {
            // Nobody is kept waiting: the clock says that it was heard.
            let (generation, samples) = (mark.generation, mark.samples);
            self.pending_marks.pop_front();
            self.stats.marks_lost += 1;
            for segment in &mut self.queue {
                if segment.generation == generation && samples > segment.proven {
                    segment.proven = samples.min(segment.sent);
                    segment.assumed = true;
                }
            }
        }
        while let Some(segment) = self.queue.front() {
            let later: u64 = self.queue.iter().skip(1).map(Segment::total).sum();
            let here = self.unheard(now).saturating_sub(later).min(segment.total());
            let drained = segment.waiting.is_empty() && here == 0;
            let proven = match self.marks {
                MarkMeaning::None => drained,
                _ => segment.waiting.is_empty() && segment.proven >= segment.written,
            };
            if segment.finished && proven {
                let played = self.played(segment, segment.written, true, now);
                self.queue.pop_front();
                self.last = Some(played);
                if self.completed.len() == MAX_GENERATIONS {
                    self.completed.pop_front();
                }
                self.completed.push_back(played);
                continue;
            }
            let starves = drained && !segment.finished && segment.written > 0 && !segment.starved;
            if starves && let Some(segment) = self.queue.front_mut() {
                segment.starved = true;
                segment.rolling = false;
                self.stats.underruns += 1;
                self.progress = true;
            }
            break;
        }
    }

    fn played(&self, segment: &Segment, samples: u64, complete: bool, now: Instant) -> Played {
        let source = if samples > 0 && segment.proven >= samples && !segment.assumed {
            PositionSource::CarrierMark
        } else {
            PositionSource::Estimate { error: self.delay }
        };
        Played { generation: segment.generation, samples, complete, at: now, source }
    }

    fn check(&mut self, generation: Generation) -> Result<(), SinkError> {
        let back = self.queue.back();
        let over = back.is_some_and(|back| {
            back.generation > generation || (back.generation == generation && back.finished)
        }) || self.last.is_some_and(|last| last.generation >= generation);
        if generation < self.newest || over {
            self.stats.stale += 1;
            return Err(SinkError::Stale);
        }
        Ok(())
    }

    /// The queue's segment of `generation`, which [`Playout::check`] has let through.
    fn open(&mut self, generation: Generation) -> Result<&mut Segment, SinkError> {
        if self.queue.back().is_none_or(|back| back.generation != generation) {
            if self.queue.len() == MAX_GENERATIONS {
                return Err(SinkError::Full);
            }
            if let Some(older) = self.queue.back_mut() {
                older.finished = true;
            }
            self.newest = generation;
            self.queue.push_back(Segment::new(generation));
        }
        self.queue.back_mut().ok_or(SinkError::Full)
    }
}

#[cfg(test)]
mod tests;
