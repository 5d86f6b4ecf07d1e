//! Sinks that play by the clock, against a sink that is told sample by sample.

use std::{
    collections::VecDeque,
    io::Cursor,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use antiphon_audio::{
    AudioFormat, AudioFrame, AudioSink, ClockedSink, Generation, Played, SinkError, TimelineSink,
    WavAudio, WavWriter,
};
use proptest::prelude::*;

const RATE: u32 = 8_000;

#[derive(Clone, Debug)]
enum Step {
    /// To the newest generation, or to one so many before or after it.
    Write(i64, usize),
    Finish(i64),
    Clear(i64),
    Pause,
    Resume,
    Advance(Duration),
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(-1)], 0_usize..3_000)
            .prop_map(|(generation, samples)| Step::Write(generation, samples)),
        2 => prop_oneof![4 => Just(0), 1 => Just(1)].prop_map(Step::Finish),
        1 => prop_oneof![4 => Just(1), 1 => Just(0), 1 => Just(-1)].prop_map(Step::Clear),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        8 => (0_u64..400_000).prop_map(|us| Step::Advance(Duration::from_micros(us))),
        4 => Just(Step::Poll),
    ];
    prop::collection::vec(step, 0..60)
}

/// What the sinks should do, in the plainest words.
#[derive(Default)]
struct Model {
    newest: u64,
    /// Generation, samples, whether finished.
    queue: VecDeque<(u64, VecDeque<i16>, bool)>,
    ended: Option<u64>,
    paused: bool,
    heard: Vec<i16>,
    /// Samples heard by generation.
    played: std::collections::BTreeMap<u64, u64>,
    completed: Vec<u64>,
}

impl Model {
    fn settle(&mut self) {
        while self.queue.front().is_some_and(|(_, audio, finished)| audio.is_empty() && *finished) {
            let (generation, ..) = self.queue.pop_front().unwrap();
            self.completed.push(generation);
            self.ended = Some(generation);
        }
    }

    fn tick(&mut self) {
        let playing = self.queue.front_mut().filter(|_| !self.paused);
        let sample = playing.and_then(|(generation, audio, _)| {
            let sample = audio.pop_front()?;
            *self.played.entry(*generation).or_default() += 1;
            Some(sample)
        });
        self.heard.push(sample.unwrap_or(0));
        self.settle();
    }

    fn queued(&self) -> usize {
        self.queue.iter().map(|(_, audio, _)| audio.len()).sum()
    }

    fn is_stale(&self, generation: u64) -> bool {
        let finished = self.queue.back().is_some_and(|(g, _, f)| *g == generation && *f);
        generation < self.newest || finished || self.ended == Some(generation)
    }

    fn open(&mut self, generation: u64) -> &mut (u64, VecDeque<i16>, bool) {
        if self.queue.back().is_none_or(|(g, ..)| *g != generation) {
            if let Some((_, _, finished)) = self.queue.back_mut() {
                *finished = true;
            }
            self.newest = generation;
            self.queue.push_back((generation, VecDeque::new(), false));
            self.settle();
        }
        self.queue.back_mut().unwrap()
    }

    fn clear(&mut self, next: u64) {
        self.newest = self.newest.max(next);
        self.queue.retain(|(generation, ..)| *generation >= next);
        self.completed.retain(|generation| *generation >= next);
        self.ended = self.ended.filter(|generation| *generation >= next);
        self.paused = false;
        self.settle();
    }
}

fn poll(sink: &mut dyn AudioSink, now: Instant) -> Option<Played> {
    match sink.poll_progress(&mut Context::from_waker(Waker::noop()), now) {
        Poll::Ready(news) => Some(news.unwrap()),
        Poll::Pending => None,
    }
}

fn generation(newest: u64, offset: i64) -> u64 {
    newest.saturating_add_signed(offset)
}

/// Runs `steps` against `sink` and the model side by side; returns what was heard by the model and
/// when it ended.
fn run(sink: &mut dyn AudioSink, steps: &[Step], start: Instant) -> (Vec<i16>, Instant) {
    let bound = sink.room(start);
    let mut model = Model::default();
    let mut now = start;
    let mut value = 0_i16;
    for step in steps {
        match *step {
            Step::Advance(duration) => {
                now += duration;
                let ticks = sink.format().samples_in(now - start);
                (model.heard.len() as u64..ticks).for_each(|_| model.tick());
            }
            Step::Write(offset, samples) => {
                let of = generation(model.newest, offset);
                let audio: Vec<i16> = (0..samples)
                    .map(|_| {
                        value = value % i16::MAX + 1;
                        value
                    })
                    .collect();
                let frame = AudioFrame::from_pcm16(RATE, &audio);
                let written = sink.write(Generation(of), &frame, now);
                if model.is_stale(of) {
                    assert_eq!(written, Err(SinkError::Stale));
                } else if model.queued() + samples > bound {
                    assert_eq!(written, Err(SinkError::Full));
                } else {
                    assert_eq!(written, Ok(()));
                    model.open(of).1.extend(audio);
                }
            }
            Step::Finish(offset) => {
                let of = generation(model.newest, offset);
                let finished = sink.finish(Generation(of), now);
                if model.is_stale(of) {
                    assert_eq!(finished, Err(SinkError::Stale));
                } else {
                    assert_eq!(finished, Ok(()));
                    model.open(of).2 = true;
                    model.settle();
                }
            }
            Step::Clear(offset) => {
                let next = generation(model.newest, offset);
                let before = sink.position(now);
                assert_eq!(sink.clear(Generation(next), now).unwrap(), before);
                model.clear(next);
            }
            Step::Pause => {
                sink.pause(now).unwrap();
                model.paused = true;
            }
            Step::Resume => {
                sink.resume(now).unwrap();
                model.paused = false;
            }
            Step::Poll => {
                let expected = std::mem::take(&mut model.completed);
                let mut told = Vec::new();
                while let Some(played) = poll(sink, now) {
                    if played.complete {
                        told.push(played.generation.0);
                    }
                    assert!(played.at <= now + Duration::from_nanos(1));
                }
                assert_eq!(told, expected, "each completion is told once");
            }
        }
        assert_eq!(sink.room(now), bound - model.queued());
        if let Some(position) = sink.position(now) {
            let of = position.generation.0;
            assert_eq!(position.samples, model.played.get(&of).copied().unwrap_or(0));
            let playing = model.queue.front().map(|(generation, ..)| *generation);
            assert_eq!(Some(of), playing.or(model.ended));
            assert_eq!(position.complete, playing.is_none());
        }
    }
    (model.heard, now)
}

proptest! {
    #[test]
    fn a_time_line_holds_what_was_heard_to_the_sample(steps in steps()) {
        let start = Instant::now();
        let mut file = Cursor::new(Vec::new());
        let writer = WavWriter::new(&mut file, RATE, "line").unwrap();
        let mut sink = TimelineSink::new(writer, start);
        let (heard, now) = run(&mut sink, &steps, start);
        sink.close(now).unwrap();
        let bytes = file.into_inner();
        if heard.is_empty() {
            prop_assert!(WavAudio::read(&bytes[..], "line").is_err());
        } else {
            let audio = WavAudio::read(&bytes[..], "line").unwrap();
            prop_assert_eq!(audio.samples.len() as u64, u64::from(RATE) * (now - start).as_micros() as u64 / 1_000_000);
            prop_assert!(audio.samples == heard, "the file is not what was heard");
        }
    }

    #[test]
    fn a_clocked_sink_hears_the_same(steps in steps()) {
        let start = Instant::now();
        let mut sink = ClockedSink::new(AudioFormat::pcm16(RATE));
        // Its time begins with the first call that changes something.
        sink.resume(start).unwrap();
        run(&mut sink, &steps, start);
    }

    /// A session that sleeps until each deadline, and does nothing else, hears of everything.
    #[test]
    fn deadlines_lead_through_a_reply(chunks in prop::collection::vec(1_usize..3_000, 1..20)) {
        let mut now = Instant::now();
        let mut sink = ClockedSink::new(AudioFormat::pcm16(RATE));
        sink.resume(now).unwrap();
        let reply = Generation(1);
        let total: usize = chunks.iter().sum();
        let mut left: VecDeque<usize> = chunks.into();
        let mut finished = false;
        for _ in 0..1_000 {
            while let Some(&samples) = left.front().filter(|&&samples| samples <= sink.room(now)) {
                sink.write(reply, &AudioFrame::from_pcm16(RATE, &vec![1; samples]), now).unwrap();
                left.pop_front();
            }
            if left.is_empty() && !finished {
                finished = true;
                sink.finish(reply, now).unwrap();
            }
            if let Some(played) = poll(&mut sink, now) {
                if played.complete {
                    prop_assert_eq!(played.samples as usize, total);
                    prop_assert_eq!(sink.next_deadline(), None);
                    prop_assert_eq!(sink.stats().underruns, 0);
                    return Ok(());
                }
                continue;
            }
            let deadline = sink.next_deadline().expect("something is still to come");
            prop_assert!(deadline > now, "a deadline that has passed makes the session spin");
            now = deadline;
        }
        prop_assert!(false, "the reply never ended");
    }
}

#[test]
fn a_reply_that_is_cleared_ends_at_the_sample_that_was_heard() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut sink = ClockedSink::new(AudioFormat::pcm16(24_000));
    let frame = AudioFrame::from_pcm16(24_000, &[1; 24_000]);
    sink.write(Generation(1), &frame, at(0)).unwrap();
    assert_eq!(sink.room(at(0)), 0);
    assert_eq!(sink.write(Generation(1), &frame, at(0)), Err(SinkError::Full));
    let heard = sink.clear(Generation(2), at(250)).unwrap().unwrap();
    assert_eq!((heard.generation, heard.samples, heard.complete), (Generation(1), 6_000, false));
    assert_eq!(sink.write(Generation(1), &frame, at(250)), Err(SinkError::Stale));
    assert_eq!(sink.position(at(300)), None);
    assert_eq!(sink.next_deadline(), None);
    assert_eq!(sink.room(at(300)), 24_000);
    assert_eq!(sink.stats().cleared, 18_000);
    assert_eq!(sink.stats().stale, 1);
}

#[test]
fn a_pause_keeps_the_sample() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut sink = ClockedSink::new(AudioFormat::pcm16(8_000));
    sink.write(Generation(1), &AudioFrame::from_pcm16(8_000, &[1; 800]), at(0)).unwrap();
    sink.finish(Generation(1), at(0)).unwrap();
    sink.pause(at(40)).unwrap();
    assert_eq!(sink.next_deadline(), None);
    assert_eq!(sink.position(at(5_000)).unwrap().samples, 320);
    sink.resume(at(5_000)).unwrap();
    assert_eq!(sink.position(at(5_010)).unwrap().samples, 400);
    let done = at(5_060);
    assert!(sink.next_deadline().unwrap() <= done + Duration::from_nanos(1));
    assert_eq!(poll(&mut sink, done).map(|played| played.complete), Some(true));
    assert_eq!(poll(&mut sink, done), None);
    // A clear ends a pause: the next reply must not be mute.
    sink.pause(done).unwrap();
    sink.clear(Generation(2), done).unwrap();
    sink.write(Generation(2), &AudioFrame::from_pcm16(8_000, &[1; 800]), done).unwrap();
    assert_eq!(sink.position(at(5_070)).unwrap().samples, 80);
}

#[test]
fn audio_that_comes_late_is_an_underrun_and_is_told() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut sink = ClockedSink::new(AudioFormat::Mulaw8k);
    let frame = AudioFrame::new(AudioFormat::Mulaw8k, vec![0xff; 160]);
    sink.write(Generation(1), &frame, at(0)).unwrap();
    assert_eq!(poll(&mut sink, at(10)), None);
    let news = poll(&mut sink, at(50)).unwrap();
    assert_eq!((news.samples, news.complete), (160, false));
    assert_eq!(poll(&mut sink, at(60)), None, "told once");
    sink.write(Generation(1), &frame, at(100)).unwrap();
    assert_eq!(sink.position(at(110)).unwrap().samples, 240);
    sink.finish(Generation(1), at(110)).unwrap();
    assert_eq!(poll(&mut sink, at(120)).map(|played| played.complete), Some(true));
    assert_eq!((sink.stats().underruns, sink.stats().underrun_samples), (1, 640));
}

#[test]
fn an_empty_reply_is_complete_at_once_and_wakes_the_session() {
    let now = Instant::now();
    let mut sink = ClockedSink::new(AudioFormat::pcm16(8_000));
    let woken = std::sync::Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    assert!(sink.poll_progress(&mut Context::from_waker(&waker), now).is_pending());
    sink.finish(Generation(3), now).unwrap();
    assert!(woken.0.load(std::sync::atomic::Ordering::Relaxed));
    let played = poll(&mut sink, now).unwrap();
    assert_eq!((played.generation, played.samples, played.complete), (Generation(3), 0, true));
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn trial_f05_audio_in_another_format_is_refused() {
    let now = Instant::now();
    let mut sink = ClockedSink::new(AudioFormat::pcm16(24_000));
    let frame = AudioFrame::from_pcm16(16_000, &[1; 160]);
    assert!(matches!(
        sink.write(Generation(1), &frame, now),
        Err(SinkError::FormatMismatch { .. })
    ));
    assert_eq!(sink.position(now), None);
}

#[test]
fn generations_without_end_are_refused() {
    let now = Instant::now();
    let mut sink = ClockedSink::new(AudioFormat::pcm16(8_000));
    let frame = AudioFrame::from_pcm16(8_000, &[1]);
    let full = (1..1_000).find_map(|i| sink.write(Generation(i), &frame, now).err());
    assert_eq!(full, Some(SinkError::Full));
}

#[test]
fn a_dropped_time_line_is_a_correct_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("line.wav");
    let start = Instant::now();
    let mut sink = TimelineSink::create(&path, 16_000, start).unwrap();
    let now = start + Duration::from_millis(500);
    sink.write(Generation(1), &AudioFrame::from_pcm16(16_000, &[7; 1_600]), now).unwrap();
    sink.clear(Generation(2), now + Duration::from_millis(50)).unwrap();
    drop(sink);
    let audio = WavAudio::open(&path).unwrap();
    assert_eq!(audio.samples.len(), 8_800);
    assert!(audio.samples[..8_000].iter().all(|&sample| sample == 0));
    assert!(audio.samples[8_000..].iter().all(|&sample| sample == 7));
}

#[test]
fn a_full_disk_is_told_once_and_does_not_spin() {
    let start = Instant::now();
    let writer = WavWriter::new(FullDisk(Cursor::new(Vec::new())), 8_000, "line").unwrap();
    let mut sink = TimelineSink::new(writer, start);
    let later = start + Duration::from_secs(1);
    let mut context = Context::from_waker(Waker::noop());
    let first = sink.poll_progress(&mut context, later);
    assert!(matches!(first, Poll::Ready(Err(SinkError::Io(_)))), "{first:?}");
    assert!(sink.poll_progress(&mut context, later).is_pending());
    let frame = AudioFrame::from_pcm16(8_000, &[1]);
    assert!(matches!(sink.write(Generation(1), &frame, later), Err(SinkError::Io(_))));
    assert!(sink.close(later).is_err());
}

/// Takes a header and then nothing more.
struct FullDisk(Cursor<Vec<u8>>);

impl std::io::Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.position() >= 44 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::io::Seek for FullDisk {
    fn seek(&mut self, position: std::io::SeekFrom) -> std::io::Result<u64> {
        self.0.seek(position)
    }
}
