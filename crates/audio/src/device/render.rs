//! The two ends of a loudspeaker's ring: the session feeds samples, the device's callback renders
//! them and keeps the clock by which the session knows what was heard.
//!
//! The callback never waits: the ring is lock-free, flags are atomics, and the clock is published
//! with `try_lock`. Positions count samples at the device's rate since the loudspeaker was opened.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cpal::{FromSample, Sample};
use rtrb::{Consumer, Producer, RingBuffer};

/// What went wrong with a loudspeaker without ending it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlaybackStats {
    /// How often audio ran out in the middle of a reply.
    pub underruns: u64,
    /// Errors that the driver reported and survived.
    pub faults: u64,
}

/// A ring that holds `capacity` samples at `rate_hz`.
pub(super) fn ring(rate_hz: u32, capacity: usize) -> (Feed, Renderer) {
    let (producer, consumer) = RingBuffer::new(capacity);
    let shared = Arc::new(Shared::default());
    let feed = Feed { ring: producer, shared: Arc::clone(&shared), written: 0, rate_hz };
    let renderer = Renderer {
        ring: consumer,
        shared,
        consumed: 0,
        clock: Clock::default(),
        contiguous: false,
        dry: true,
        low_water: capacity / 2,
        fade: 0,
        rate_hz,
    };
    (feed, renderer)
}

#[derive(Debug, Default)]
struct Shared {
    /// Samples before this position were cleared: they are dropped unheard.
    cleared_to: AtomicU64,
    paused: AtomicBool,
    /// More audio of the current reply is to come, so running dry is an underrun.
    expecting: AtomicBool,
    /// The session was refused room and wants to know when there is some.
    wants_room: AtomicBool,
    has_room: AtomicBool,
    underruns: AtomicU64,
    clock: Mutex<Clock>,
}

/// The session's end.
#[derive(Debug)]
pub(super) struct Feed {
    ring: Producer<i16>,
    shared: Arc<Shared>,
    written: u64,
    rate_hz: u32,
}

impl Feed {
    /// Samples that fit now.
    pub(super) fn free(&self) -> usize {
        self.ring.slots()
    }

    /// Samples written so far: the position of the next.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Appends what fits of `samples` and returns how many did.
    pub(super) fn push(&mut self, samples: impl ExactSizeIterator<Item = i16>) -> usize {
        self.shared.expecting.store(true, Ordering::Relaxed);
        let fitting = samples.len().min(self.ring.slots());
        // There is room for `fitting`: only this end adds.
        let Ok(chunk) = self.ring.write_chunk_uninit(fitting) else { return 0 };
        let pushed = chunk.fill_from_iter(samples);
        self.written += pushed as u64;
        pushed
    }

    /// No more audio comes for now; running dry is in order.
    pub(super) fn rest(&self) {
        self.shared.expecting.store(false, Ordering::Relaxed);
    }

    /// Drops what the callback has not taken yet of the samples before `position`.
    pub(super) fn clear_before(&self, position: u64) {
        self.shared.cleared_to.store(position, Ordering::Release);
    }

    pub(super) fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Release);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::Relaxed)
    }

    /// Asks for a wake-up once the ring is half empty.
    pub(super) fn want_room(&self) {
        self.shared.wants_room.store(true, Ordering::Relaxed);
    }

    /// Whether the ring got half empty since [`Feed::want_room`]; tells it once.
    pub(super) fn take_has_room(&self) -> bool {
        self.shared.has_room.swap(false, Ordering::Relaxed)
    }

    pub(super) fn underruns(&self) -> u64 {
        self.shared.underruns.load(Ordering::Relaxed)
    }

    /// Position up to which samples have been heard.
    pub(super) fn heard(&self, now: Instant) -> u64 {
        self.clock().heard(now, self.rate_hz)
    }

    /// When the sample before `position` will have been heard, if audio is playing or has been.
    pub(super) fn heard_at(&self, position: u64) -> Option<Instant> {
        self.clock().heard_at(position, self.rate_hz)
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The callback's end.
pub(super) struct Renderer {
    ring: Consumer<i16>,
    shared: Arc<Shared>,
    consumed: u64,
    clock: Clock,
    /// The sample before the next one was rendered right before it, without a gap.
    contiguous: bool,
    dry: bool,
    low_water: usize,
    /// Last level, faded out after a cut so that it does not click.
    fade: i16,
    rate_hz: u32,
}

impl Renderer {
    /// Fills `out` (interleaved, `channels` each), whose first sample will be heard at `heard_at`.
    /// True when the session should look: audio began, ran dry, or there is room again.
    pub(super) fn render<T: Sample + FromSample<i16>>(
        &mut self,
        out: &mut [T],
        channels: usize,
        heard_at: Instant,
    ) -> bool {
        self.drop_cleared();
        let channels = channels.max(1);
        let frames = out.len() / channels;
        let paused = self.shared.paused.load(Ordering::Acquire);
        let take = if paused { 0 } else { frames.min(self.ring.slots()) };
        let mut slots = out.chunks_exact_mut(channels);
        if let Ok(chunk) = self.ring.read_chunk(take) {
            let (first, second) = chunk.as_slices();
            // In this order: `zip` would take a slot more than there are samples.
            for (&sample, slot) in first.iter().chain(second).zip(slots.by_ref()) {
                spread(slot, sample);
                self.fade = sample;
            }
            chunk.commit_all();
        }
        for slot in slots {
            // Gone after some 100 samples, 2 ms.
            self.fade -= self.fade / 16 + self.fade.signum();
            spread(slot, self.fade);
        }

        let began = take > 0 && !self.contiguous;
        if take > 0 {
            self.clock.advance(self.consumed, take as u64, heard_at, began, self.rate_hz);
            self.consumed += take as u64;
        }
        self.contiguous = take > 0 && take == frames;
        if let Ok(mut clock) = self.shared.clock.try_lock() {
            *clock = self.clock;
        }
        let ran_dry = self.ran_dry(paused, take, frames);
        let has_room = self.has_room();
        began || ran_dry || has_room
    }

    fn drop_cleared(&mut self) {
        let cleared = self.shared.cleared_to.load(Ordering::Acquire).saturating_sub(self.consumed);
        if cleared == 0 {
            return;
        }
        let dropped = (cleared as usize).min(self.ring.slots());
        if let Ok(chunk) = self.ring.read_chunk(dropped) {
            chunk.commit_all();
            self.consumed += dropped as u64;
            self.contiguous = false;
        }
    }

    fn ran_dry(&mut self, paused: bool, taken: usize, wanted: usize) -> bool {
        if paused {
            return false;
        }
        let dry = taken < wanted;
        let news = dry && (taken > 0 || !self.dry);
        self.dry = dry;
        if news && self.shared.expecting.load(Ordering::Relaxed) {
            self.shared.underruns.fetch_add(1, Ordering::Relaxed);
        }
        news
    }

    fn has_room(&self) -> bool {
        if self.ring.slots() > self.low_water
            || !self.shared.wants_room.swap(false, Ordering::Relaxed)
        {
            return false;
        }
        self.shared.has_room.store(true, Ordering::Relaxed);
        true
    }
}

/// Puts one sample on the left and right; further channels stay silent.
fn spread<T: Sample + FromSample<i16>>(slot: &mut [T], sample: i16) {
    for (channel, out) in slot.iter_mut().enumerate() {
        *out = if channel < 2 { T::from_sample(sample) } else { T::EQUILIBRIUM };
    }
}

/// Samples that play one after the other without a gap.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    /// When the last of them will have been heard, by the device's clock.
    ends_at: Instant,
}

impl Run {
    /// Position heard at `now`; none if not even the first sample was.
    fn heard(&self, now: Instant, rate_hz: u32) -> Option<u64> {
        let unheard = samples_in(self.ends_at.saturating_duration_since(now), rate_hz);
        (unheard <= self.end - self.start).then(|| self.end - unheard)
    }
}

/// The newest run and the one before it, whose end may still be in the device's buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    current: Option<Run>,
    previous: Option<Run>,
}

impl Clock {
    fn advance(&mut self, start: u64, samples: u64, heard_at: Instant, new_run: bool, rate: u32) {
        let ends_at = heard_at + duration_of(samples, rate);
        match &mut self.current {
            Some(run) if !new_run => *run = Run { end: start + samples, ends_at, ..*run },
            _ => {
                self.previous = self.current;
                self.current = Some(Run { start, end: start + samples, ends_at });
            }
        }
    }

    fn heard(&self, now: Instant, rate_hz: u32) -> u64 {
        let runs = [self.current, self.previous];
        let heard = runs.iter().flatten().find_map(|run| run.heard(now, rate_hz));
        let earliest = self.previous.or(self.current).map_or(0, |run| run.start);
        heard.unwrap_or(earliest)
    }

    fn heard_at(&self, position: u64, rate_hz: u32) -> Option<Instant> {
        let run = match self.previous {
            Some(previous) if position <= previous.end => previous,
            _ => self.current?,
        };
        if position >= run.end {
            return Some(run.ends_at + duration_of(position - run.end, rate_hz));
        }
        run.ends_at.checked_sub(duration_of(run.end - position, rate_hz))
    }
}

fn duration_of(samples: u64, rate_hz: u32) -> Duration {
    Duration::from_nanos(samples.saturating_mul(1_000_000_000) / u64::from(rate_hz))
}

/// Rounded up, so that a sample which is not quite over does not count as heard.
fn samples_in(duration: Duration, rate_hz: u32) -> u64 {
    (duration.as_nanos() * u128::from(rate_hz)).div_ceil(1_000_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 8_000;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn samples_come_out_on_both_channels_and_silence_follows() {
        let (mut feed, mut renderer) = ring(RATE, 100);
        assert_eq!(feed.push([1_000i16, 2_000].into_iter()), 2);
        let mut out = [0i16; 8];
        assert!(renderer.render(&mut out, 2, Instant::now()));
        assert_eq!(out[..4], [1_000, 1_000, 2_000, 2_000]);
        assert!(out[4] < 2_000, "the cut fades out");
        let mut out = [1i16; 400];
        renderer.render(&mut out, 2, Instant::now());
        assert_eq!(out[399], 0);
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (mut feed, _renderer) = ring(RATE, 4);
        assert_eq!(feed.push([1i16; 9].into_iter()), 4);
        assert_eq!(feed.free(), 0);
    }

    #[test]
    fn cleared_samples_are_never_rendered() {
        let (mut feed, mut renderer) = ring(RATE, 100);
        feed.push([700i16; 50].into_iter());
        feed.clear_before(feed.written());
        feed.push([300i16; 5].into_iter());
        let mut out = [0i16; 10];
        renderer.render(&mut out, 1, Instant::now());
        assert_eq!(out[..5], [300; 5]);
        assert!(!out.contains(&700));
    }

    #[test]
    fn a_pause_keeps_what_is_queued() {
        let (mut feed, mut renderer) = ring(RATE, 100);
        feed.push([5i16; 10].into_iter());
        feed.pause(true);
        let mut out = [1i16; 10];
        renderer.render(&mut out, 1, Instant::now());
        assert_eq!(out, [0; 10]);
        feed.pause(false);
        renderer.render(&mut out, 1, Instant::now());
        assert_eq!(out, [5; 10]);
    }

    #[test]
    fn heard_follows_the_devices_latency() {
        let t0 = Instant::now();
        let (mut feed, mut renderer) = ring(RATE, 1_000);
        feed.push([1i16; 320].into_iter());
        let mut out = [0i16; 160];
        // 20 ms rendered at 0 that the device will play from 50 to 70 ms.
        renderer.render(&mut out, 1, at(t0, 50));
        assert_eq!(feed.heard(at(t0, 40)), 0);
        assert_eq!(feed.heard(at(t0, 60)), 80);
        assert_eq!(feed.heard(at(t0, 500)), 160);
        assert_eq!(feed.heard_at(160), Some(at(t0, 70)));
        assert_eq!(feed.heard_at(320), Some(at(t0, 90)), "reckoned beyond what was rendered");
    }

    #[test]
    fn a_gap_does_not_count_as_heard() {
        let t0 = Instant::now();
        let (mut feed, mut renderer) = ring(RATE, 1_000);
        let mut out = [0i16; 160];
        feed.push([1i16; 80].into_iter());
        renderer.render(&mut out, 1, at(t0, 50));
        renderer.render(&mut out, 1, at(t0, 70));
        feed.push([1i16; 160].into_iter());
        renderer.render(&mut out, 1, at(t0, 90));
        assert_eq!(feed.heard(at(t0, 55)), 40, "still in the run before the gap");
        assert_eq!(feed.heard(at(t0, 80)), 80, "in the gap");
        assert_eq!(feed.heard(at(t0, 100)), 160);
    }

    #[test]
    fn running_dry_is_an_underrun_only_while_more_is_expected() {
        let (mut feed, mut renderer) = ring(RATE, 100);
        let mut out = [0i16; 10];
        feed.push([1i16; 15].into_iter());
        renderer.render(&mut out, 1, Instant::now());
        assert!(renderer.render(&mut out, 1, Instant::now()), "running dry is news");
        assert!(!renderer.render(&mut out, 1, Instant::now()), "but only once");
        assert_eq!(feed.underruns(), 1);
        feed.push([1i16; 15].into_iter());
        feed.rest();
        renderer.render(&mut out, 1, Instant::now());
        renderer.render(&mut out, 1, Instant::now());
        assert_eq!(feed.underruns(), 1);
    }

    #[test]
    fn room_is_told_once_it_is_worth_it() {
        let (mut feed, mut renderer) = ring(RATE, 100);
        feed.push([1i16; 100].into_iter());
        feed.want_room();
        let mut out = [0i16; 30];
        renderer.render(&mut out, 1, Instant::now());
        assert!(!feed.take_has_room());
        assert!(renderer.render(&mut out, 1, Instant::now()));
        assert!(feed.take_has_room());
        assert!(!feed.take_has_room());
    }

    #[test]
    fn devices_in_float_get_the_same_signal() {
        let (mut feed, mut renderer) = ring(RATE, 10);
        feed.push([16_384i16].into_iter());
        let mut out = [0f32; 3];
        renderer.render(&mut out, 3, Instant::now());
        assert_eq!(out, [0.5, 0.5, 0.0]);
    }
}
