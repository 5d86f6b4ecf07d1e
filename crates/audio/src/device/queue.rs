//! What a loudspeaker has been given, by generation: the session's books over a [`Feed`].

use std::{
    cell::Cell,
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{capture::pcm16, render::Feed};
use crate::{
    AudioError, AudioFormat, AudioFrame, Converter, Generation, Played, PositionSource, SinkError,
};

/// Room kept free for the tail that the resampler lets go when a generation ends.
const TAIL: Duration = Duration::from_millis(50);

/// Below this the session is told to wait for a wake-up.
const WORTHWHILE: Duration = Duration::from_millis(20);

/// A deadline is never nearer than this to the poll before: the device's clock is only as fine as
/// its callbacks.
const POLL_APART: Duration = Duration::from_millis(5);

/// Samples that a ring needs to keep `buffer` at `rate_hz`.
pub(super) fn ring_capacity(rate_hz: u32, buffer: Duration) -> usize {
    AudioFormat::pcm16(rate_hz).samples_in(buffer + TAIL) as usize
}

/// Converts what the session writes, and knows whose each sample in the ring is.
pub(super) struct PlaybackQueue {
    format: AudioFormat,
    device_rate_hz: u32,
    feed: Feed,
    converter: Converter,
    segments: VecDeque<Segment>,
    newest: Generation,
    /// The device's latency estimate wavers; what was heard stays heard.
    heard: Cell<u64>,
    underruns_told: u64,
    polled_at: Option<Instant>,
}

/// The audio of one generation; positions at the device's rate.
#[derive(Debug)]
struct Segment {
    generation: Generation,
    start: u64,
    end: u64,
    /// Samples written, at the session's rate.
    written: u64,
    finished: bool,
    told: bool,
}

impl PlaybackQueue {
    pub(super) fn new(
        format: AudioFormat,
        device_rate_hz: u32,
        feed: Feed,
    ) -> Result<Self, AudioError> {
        Ok(Self {
            format,
            device_rate_hz,
            feed,
            converter: Converter::new(format, AudioFormat::pcm16(device_rate_hz))?,
            segments: VecDeque::new(),
            newest: Generation::default(),
            heard: Cell::new(0),
            underruns_told: 0,
            polled_at: None,
        })
    }

    pub(super) fn format(&self) -> AudioFormat {
        self.format
    }

    pub(super) fn underruns(&self) -> u64 {
        self.feed.underruns()
    }

    pub(super) fn room(&self) -> usize {
        let tail = AudioFormat::pcm16(self.device_rate_hz).samples_in(TAIL) as usize;
        let free = self.feed.free().saturating_sub(tail) as u64;
        let room = free * u64::from(self.format.sample_rate_hz()) / u64::from(self.device_rate_hz);
        if room < self.format.samples_in(WORTHWHILE) {
            self.feed.want_room();
        }
        room as usize
    }

    pub(super) fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
    ) -> Result<(), SinkError> {
        if generation < self.newest {
            return Err(SinkError::Stale);
        }
        if frame.format != self.format {
            return Err(SinkError::FormatMismatch { expected: self.format, got: frame.format });
        }
        if frame.samples() > self.room() {
            return Err(SinkError::Full);
        }
        let at = self.segment(generation)?;
        let converted = self.converter.convert(frame).map_err(codec)?;
        let pushed = self.feed.push(pcm16(&converted));
        debug_assert_eq!(pushed, converted.samples(), "room was checked, and the tail kept free");
        let segment = &mut self.segments[at];
        segment.written += frame.samples() as u64;
        segment.end = self.feed.written();
        Ok(())
    }

    pub(super) fn finish(&mut self, generation: Generation) -> Result<(), SinkError> {
        if generation < self.newest {
            return Err(SinkError::Stale);
        }
        let at = self.segment(generation)?;
        self.close(at)
    }

    pub(super) fn clear(&mut self, next: Generation, now: Instant) -> Option<Played> {
        let played = self.position(now);
        self.newest = self.newest.max(next);
        self.segments.retain(|segment| segment.generation >= next);
        match self.segments.front() {
            Some(kept) => self.feed.clear_before(kept.start),
            None => {
                self.feed.clear_before(self.feed.written());
                self.feed.rest();
                self.converter.reset();
            }
        }
        // What comes next is to be heard, also where the answer before was held.
        self.feed.pause(false);
        played
    }

    pub(super) fn pause(&mut self, paused: bool) {
        self.feed.pause(paused);
    }

    pub(super) fn position(&self, now: Instant) -> Option<Played> {
        let heard = self.heard(now);
        let playing = self
            .segments
            .iter()
            .find(|segment| heard < segment.end || !segment.finished)
            .or(self.segments.back())?;
        Some(self.played(playing, heard, now))
    }

    /// News since the last look: a generation that was heard to its end, room, an underrun.
    pub(super) fn progress(&mut self, now: Instant) -> Option<Played> {
        self.polled_at = Some(now);
        let heard = self.heard(now);
        if let Some(at) = self.segments.iter().position(|segment| segment.is_over(heard)) {
            self.segments[at].told = true;
            let played = self.played(&self.segments[at], heard, now);
            // The newest stays: it is the one that "was playing last".
            while self.segments.len() > 1 && self.segments[0].told {
                self.segments.pop_front();
            }
            return Some(played);
        }
        let has_room = self.feed.take_has_room();
        let underruns = self.feed.underruns();
        let ran_dry = std::mem::replace(&mut self.underruns_told, underruns) != underruns;
        if has_room || ran_dry { self.position(now) } else { None }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.feed.is_paused() {
            return None;
        }
        let ending = self.segments.iter().find(|segment| segment.finished && !segment.told)?;
        let ends_at = self.feed.heard_at(ending.end)?;
        Some(self.polled_at.map_or(ends_at, |polled_at| ends_at.max(polled_at + POLL_APART)))
    }

    fn heard(&self, now: Instant) -> u64 {
        self.heard.set(self.heard.get().max(self.feed.heard(now)));
        self.heard.get()
    }

    fn played(&self, segment: &Segment, heard: u64, at: Instant) -> Played {
        let complete = segment.finished && heard >= segment.end;
        let samples = if complete {
            segment.written
        } else {
            let device = heard.clamp(segment.start, segment.end) - segment.start;
            let rate = u64::from(self.format.sample_rate_hz());
            (device * rate / u64::from(self.device_rate_hz)).min(segment.written)
        };
        let source = PositionSource::DeviceClock;
        Played { generation: segment.generation, samples, complete, at, source }
    }

    /// Where the segment of `generation` is; a new one ends what came before.
    fn segment(&mut self, generation: Generation) -> Result<usize, SinkError> {
        let newest = self.segments.len().checked_sub(1);
        match newest {
            Some(at) if self.segments[at].generation == generation => {
                self.segments[at].finished = false;
                self.segments[at].told = false;
                return Ok(at);
            }
            Some(at) if !self.segments[at].finished => self.close(at)?,
            _ => {}
        }
        self.newest = generation;
        let position = self.feed.written();
        self.segments.push_back(Segment {
            generation,
            start: position,
            end: position,
            written: 0,
            finished: false,
            told: false,
        });
        Ok(self.segments.len() - 1)
    }

    /// Lets the resampler's tail go; the segment is complete.
    fn close(&mut self, at: usize) -> Result<(), SinkError> {
        if self.segments[at].written > 0
            && let Some(tail) = self.converter.flush()
        {
            self.feed.push(pcm16(&tail));
        }
        self.converter.reset();
        self.feed.rest();
        self.segments[at].end = self.feed.written();
        self.segments[at].finished = true;
        Ok(())
    }
}

impl Segment {
    /// Heard to its end, and nobody was told yet.
    fn is_over(&self, heard: u64) -> bool {
        self.finished && !self.told && heard >= self.end
    }
}

fn codec(error: AudioError) -> SinkError {
    SinkError::Io(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::render::{self, Renderer};

    const RATE: u32 = 8_000;
    const A: Generation = Generation(1);
    const B: Generation = Generation(2);

    struct Rig {
        queue: PlaybackQueue,
        renderer: Renderer,
        now: Instant,
        out: Vec<i16>,
    }

    impl Rig {
        fn new() -> Self {
            let buffer = Duration::from_millis(400);
            let (feed, renderer) = render::ring(RATE, ring_capacity(RATE, buffer));
            let queue = PlaybackQueue::new(AudioFormat::pcm16(RATE), RATE, feed).unwrap();
            Self { queue, renderer, now: Instant::now(), out: Vec::new() }
        }

        fn write(&mut self, generation: Generation, value: i16, samples: usize) {
            let frame = AudioFrame::from_pcm16(RATE, &vec![value; samples]);
            self.queue.write(generation, &frame).unwrap();
        }

        /// The device plays `ms`, and it is heard at once.
        fn play(&mut self, ms: u64) {
            let mut out = vec![0i16; (u64::from(RATE) * ms / 1_000) as usize];
            self.renderer.render(&mut out, 1, self.now);
            self.now += Duration::from_millis(ms);
            self.out.extend(out);
        }

        fn position(&self) -> (Generation, u64, bool) {
            let played = self.queue.position(self.now).unwrap();
            (played.generation, played.samples, played.complete)
        }
    }

    #[test]
    fn a_finished_generation_is_told_once_when_it_was_heard() {
        let mut rig = Rig::new();
        rig.write(A, 1, 240);
        rig.queue.finish(A).unwrap();
        assert_eq!(rig.queue.next_deadline(), None, "nothing plays yet");
        rig.play(20);
        assert_eq!(rig.queue.progress(rig.now), None);
        assert_eq!(rig.position(), (A, 160, false));
        assert!(rig.queue.next_deadline().unwrap() > rig.now);
        rig.play(20);
        let told = rig.queue.progress(rig.now).unwrap();
        assert!(told.complete && told.samples == 240 && told.generation == A);
        assert_eq!(rig.queue.progress(rig.now), None);
        assert_eq!(rig.queue.next_deadline(), None);
        assert_eq!(rig.position(), (A, 240, true));
    }

    #[test]
    fn clear_silences_and_says_what_was_heard() {
        let mut rig = Rig::new();
        rig.write(A, 1_000, 800);
        rig.play(30);
        let heard = rig.queue.clear(B, rig.now).unwrap();
        assert_eq!((heard.generation, heard.samples, heard.complete), (A, 240, false));
        rig.out.clear();
        rig.play(100);
        assert!(rig.out.iter().all(|&sample| sample < 1_000));
        let stale = rig.queue.write(A, &AudioFrame::from_pcm16(RATE, &[1; 10]));
        assert_eq!(stale, Err(SinkError::Stale));
        assert_eq!(rig.queue.finish(A), Err(SinkError::Stale));
        rig.write(B, 7, 160);
        rig.play(10);
        assert_eq!(rig.position(), (B, 80, false));
    }

    #[test]
    fn a_pause_holds_the_position() {
        let mut rig = Rig::new();
        rig.write(A, 1, 800);
        rig.play(20);
        rig.queue.pause(true);
        rig.play(200);
        assert_eq!(rig.position(), (A, 160, false));
        rig.queue.pause(false);
        rig.play(20);
        assert_eq!(rig.position(), (A, 320, false));
    }

    #[test]
    fn generations_follow_each_other_without_a_gap() {
        let mut rig = Rig::new();
        rig.write(A, 1, 100);
        rig.queue.finish(A).unwrap();
        rig.write(B, 2, 100);
        rig.play(20);
        let told = rig.queue.progress(rig.now).unwrap();
        assert_eq!((told.generation, told.samples, told.complete), (A, 100, true));
        assert_eq!(rig.position(), (B, 60, false));
        assert_eq!(rig.out, [[1; 100].as_slice(), &[2; 60]].concat());
    }

    #[test]
    fn an_empty_generation_is_complete_at_once() {
        let mut rig = Rig::new();
        rig.queue.finish(A).unwrap();
        let told = rig.queue.progress(rig.now).unwrap();
        assert!(told.complete && told.samples == 0);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut rig = Rig::new();
        while rig.queue.room() >= 160 {
            rig.write(A, 1, 160);
        }
        let more = AudioFrame::from_pcm16(RATE, &[1; 400]);
        assert_eq!(rig.queue.write(A, &more), Err(SinkError::Full));
        assert_eq!(rig.queue.progress(rig.now), None);
        rig.play(300);
        assert!(rig.queue.progress(rig.now).is_some());
        assert!(rig.queue.room() >= 400);
    }

    #[test]
    fn running_dry_is_news() {
        let mut rig = Rig::new();
        rig.write(A, 1, 80);
        rig.play(20);
        assert!(!rig.queue.progress(rig.now).unwrap().complete);
        assert_eq!(rig.queue.underruns(), 1);
    }

    /// Trial F5: a frame of another rate is refused, not played too low.
    #[test]
    fn trial_f05_a_frame_of_another_rate_is_refused() {
        let mut rig = Rig::new();
        let refused = rig.queue.write(A, &AudioFrame::from_pcm16(16_000, &[0; 320]));
        assert!(matches!(refused, Err(SinkError::FormatMismatch { .. })));
    }

    #[test]
    fn positions_are_in_the_sessions_rate() {
        let (feed, mut renderer) = render::ring(48_000, 48_000);
        let mut queue = PlaybackQueue::new(AudioFormat::pcm16(24_000), 48_000, feed).unwrap();
        queue.write(A, &AudioFrame::from_pcm16(24_000, &[500; 4_800])).unwrap();
        queue.finish(A).unwrap();
        let start = Instant::now();
        for piece in 0..5 {
            let at = start + Duration::from_millis(20 * piece);
            renderer.render(&mut [0i16; 960], 1, at);
        }
        let played = queue.position(start + Duration::from_millis(100)).unwrap();
        assert_eq!(played.samples, 2_400);
        for piece in 5..12 {
            let at = start + Duration::from_millis(20 * piece);
            renderer.render(&mut [0i16; 960], 1, at);
        }
        let played = queue.progress(start + Duration::from_millis(240)).unwrap();
        assert!(played.complete);
        assert_eq!(played.samples, 4_800);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Finish,
        Next,
        Clear,
        Pause(bool),
        Play(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..400usize).prop_map(Step::Write),
            Just(Step::Finish),
            Just(Step::Next),
            Just(Step::Clear),
            any::<bool>().prop_map(Step::Pause),
            (1..60u64).prop_map(Step::Play),
        ]
    }

    proptest! {
        /// Whatever the order: nothing is heard twice or beyond what was written, positions do not
        /// go back, and cleared audio stays silent.
        #[test]
        fn books_stay_true(steps in prop::collection::vec(step(), 1..80)) {
            let mut rig = Rig::new();
            let (mut generation, mut written, mut before) = (1u64, 0u64, 0u64);
            for step in steps {
                let current = Generation(generation);
                match step {
                    Step::Write(samples) => {
                        let samples = samples.min(rig.queue.room());
                        if samples > 0 {
                            let value = (generation % 100) as i16 * 100 + 1_000;
                            rig.write(current, value, samples);
                            written += samples as u64;
                        }
                    }
                    Step::Finish => rig.queue.finish(current).unwrap(),
                    Step::Next => {
                        generation += 1;
                        (written, before) = (0, 0);
                    }
                    Step::Clear => {
                        generation += 1;
                        rig.queue.clear(Generation(generation), rig.now);
                        rig.out.clear();
                        (written, before) = (0, 0);
                        let earlier = (generation - 1) as i16 % 100 * 100 + 1_000;
                        rig.play(1);
                        prop_assert!(!rig.out.contains(&earlier));
                    }
                    Step::Pause(paused) => rig.queue.pause(paused),
                    Step::Play(ms) => rig.play(ms),
                }
                rig.queue.progress(rig.now);
                if let Some(played) = rig.queue.position(rig.now) {
                    prop_assert!(played.generation.0 <= generation);
                    if played.generation.0 == generation {
                        prop_assert!(played.samples <= written);
                        prop_assert!(played.samples >= before);
                        before = played.samples;
                    }
                }
            }
        }
    }
}
