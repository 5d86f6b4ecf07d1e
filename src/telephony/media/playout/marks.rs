//! What marks prove of what was heard, and what only the clock says.

use std::time::{Duration, Instant};

use antiphon_audio::Generation;

use super::{MARK_LATE, Playout, Send};
use crate::telephony::dialect::MarkMeaning;

/// A mark is set behind so much audio. More of them delay audio at some carriers.
const MARK_EVERY: Duration = Duration::from_millis(400);
/// Marks that are waited for, at most.
const MAX_MARKS: usize = 64;

#[derive(Debug)]
pub(super) struct Mark {
    pub(super) name: String,
    pub(super) generation: Generation,
    pub(super) samples: u64,
    /// With the padding behind them.
    pub(super) total: u64,
    /// When it is given up.
    pub(super) late_at: Instant,
}

impl Playout {
    /// The carrier answers a mark.
    pub fn marked(&mut self, name: &str, now: Instant) {
        let Some(at) = self.pending_marks.iter().position(|mark| mark.name == name) else {
            self.stats.marks_stale += 1;
            return;
        };
        // Those before it are played too.
        let Some(mark) = self.pending_marks.drain(..=at).next_back() else { return };
        self.stats.marks_heard += 1;
        let sent_after: u64 = self
            .queue
            .iter()
            .map(|segment| match segment.generation.cmp(&mark.generation) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => segment.total().saturating_sub(mark.total),
                std::cmp::Ordering::Greater => segment.total(),
            })
            .sum();
        self.anchor = Some(now);
        self.after_anchor = sent_after;
        for segment in &mut self.queue {
            if segment.generation < mark.generation {
                segment.proven = segment.sent;
                segment.assumed = false;
            } else if segment.generation == mark.generation {
                segment.proven = segment.proven.max(mark.samples.min(segment.sent));
                segment.assumed = false;
            }
        }
        self.settle(now);
    }

    /// The generation behind whose audio a mark is due.
    pub(super) fn unmarked(&self) -> Option<usize> {
        if self.marks == MarkMeaning::None || self.paused || self.held {
            return None;
        }
        let every = self.format.samples_in(MARK_EVERY);
        self.queue.iter().position(|segment| {
            let at_end = segment.finished && segment.waiting.is_empty();
            let unmarked = segment.sent - segment.marked.min(segment.sent);
            unmarked >= every || (at_end && unmarked > 0)
        })
    }

    pub(super) fn mark_due(&mut self, now: Instant) -> Option<Send> {
        let index = self.unmarked()?;
        let late_at = self.ends_at().unwrap_or(now).max(now) + MARK_LATE;
        self.mark_number += 1;
        let name = format!("{}-{}", self.era, self.mark_number);
        let segment = &mut self.queue[index];
        segment.marked = segment.sent;
        let (generation, samples, total) = (segment.generation, segment.sent, segment.total());
        if self.pending_marks.len() == MAX_MARKS {
            self.pending_marks.pop_front();
            self.stats.marks_lost += 1;
        }
        let mark = Mark { name: name.clone(), generation, samples, total, late_at };
        self.pending_marks.push_back(mark);
        self.stats.marks += 1;
        Some(Send::Mark(name))
    }

    /// What was sent is not to be heard any more.
    pub(super) fn forget_sent(&mut self, now: Instant) {
        self.clear_due = true;
        self.era += 1;
        self.pending_marks.clear();
        // What is sent next is heard after the way to the caller.
        self.anchor = Some(now + self.delay);
        self.after_anchor = 0;
        for segment in &mut self.queue {
            // What is left of it was heard by the clock: a mark behind a clear would prove nothing.
            segment.assumed |= segment.sent > segment.proven;
            segment.proven = segment.sent;
            segment.marked = segment.sent;
        }
    }

    /// Audio that is heard need not be kept to be taken back.
    pub(super) fn forget_heard(&mut self, now: Instant) {
        if !self.clears {
            return;
        }
        let width = self.format.bytes_per_sample();
        let mut unheard = self.unheard(now);
        for segment in self.queue.iter_mut().rev() {
            let here = unheard.min(segment.total());
            unheard -= here;
            let heard = segment.heard(here);
            let gone = (heard.saturating_sub(segment.kept_from) as usize * width)
                .min(segment.sent_audio.len());
            let _ = segment.sent_audio.split_to(gone);
            segment.kept_from += (gone / width) as u64;
        }
    }
}
