//! The two ends of a microphone's ring, and the frames made of what comes out.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cpal::{FromSample, Sample};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::{AudioError, AudioFormat, AudioFrame, Converter};

/// The callback's end: mixes to one channel and never waits.
pub(super) struct Tap {
    ring: Producer<i16>,
    counters: Arc<Counters>,
}

/// What a microphone counts; samples at the device's rate.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) dropped: AtomicU64,
    pub(super) silent: AtomicU64,
}

impl Tap {
    /// Takes interleaved samples of `channels` each.
    pub(super) fn capture<T>(&mut self, samples: &[T], channels: usize)
    where
        T: Sample,
        i16: FromSample<T>,
    {
        let channels = channels.max(1);
        let frames = samples.len() / channels;
        let fitting = frames.min(self.ring.slots());
        if let Ok(chunk) = self.ring.write_chunk_uninit(fitting) {
            chunk.fill_from_iter(samples.chunks_exact(channels).map(mix));
        }
        if fitting < frames {
            self.counters.dropped.fetch_add((frames - fitting) as u64, Ordering::Relaxed);
        }
    }
}

/// The mean of the first two channels: further ones of a device are seldom a person's voice.
fn mix<T>(frame: &[T]) -> i16
where
    T: Sample,
    i16: FromSample<T>,
{
    match frame {
        [] => 0,
        [one] => i16::from_sample(*one),
        [left, right, ..] => {
            let sum = i32::from(i16::from_sample(*left)) + i32::from(i16::from_sample(*right));
            (sum / 2) as i16
        }
    }
}

/// The worker's end: samples at the device's rate in, frames at the asked rate out.
pub(super) struct Assembler {
    ring: Consumer<i16>,
    counters: Arc<Counters>,
    device_rate_hz: u32,
    converter: Converter,
    to: AudioFormat,
    frame_samples: usize,
    pending: Vec<i16>,
    taken: Vec<i16>,
}

/// A ring of `capacity` samples at `device_rate_hz`, converted into frames of `frame_samples`.
pub(super) fn ring(
    device_rate_hz: u32,
    capacity: usize,
    rate_hz: u32,
    frame_samples: usize,
) -> Result<(Tap, Assembler), AudioError> {
    let (producer, consumer) = RingBuffer::new(capacity);
    let counters = Arc::new(Counters::default());
    let to = AudioFormat::pcm16(rate_hz);
    let assembler = Assembler {
        ring: consumer,
        counters: Arc::clone(&counters),
        device_rate_hz,
        converter: Converter::new(AudioFormat::pcm16(device_rate_hz), to)?,
        to,
        frame_samples: frame_samples.max(1),
        pending: Vec::new(),
        taken: Vec::with_capacity(capacity),
    };
    Ok((Tap { ring: producer, counters }, assembler))
}

impl Assembler {
    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Takes all that was captured and hands each whole frame to `deliver`.
    pub(super) fn drain(&mut self, mut deliver: impl FnMut(AudioFrame)) -> Result<(), AudioError> {
        self.taken.clear();
        if let Ok(chunk) = self.ring.read_chunk(self.ring.slots()) {
            let (first, second) = chunk.as_slices();
            self.taken.extend_from_slice(first);
            self.taken.extend_from_slice(second);
            chunk.commit_all();
        }
        if self.taken.is_empty() {
            return Ok(());
        }
        self.count_silence();
        let captured = AudioFrame::from_pcm16(self.device_rate_hz, &self.taken);
        let converted = self.converter.convert(&captured)?;
        self.pending.extend(pcm16(&converted));
        let rate_hz = self.to.sample_rate_hz();
        let mut frames = self.pending.chunks_exact(self.frame_samples);
        for frame in frames.by_ref() {
            deliver(AudioFrame::from_pcm16(rate_hz, frame));
        }
        let rest = frames.remainder().len();
        self.pending.drain(..self.pending.len() - rest);
        Ok(())
    }

    /// A real microphone is never exactly zero for long: a muted one, or one that the system keeps
    /// from us, is.
    fn count_silence(&self) {
        let trailing = self.taken.iter().rev().take_while(|&&sample| sample == 0).count();
        let silent = &self.counters.silent;
        if trailing == self.taken.len() {
            silent.fetch_add(trailing as u64, Ordering::Relaxed);
        } else {
            silent.store(trailing as u64, Ordering::Relaxed);
        }
    }
}

/// Frames that wait for the session: the oldest is dropped when it is too late.
#[derive(Debug)]
pub(super) struct Backlog {
    frames: Mutex<VecDeque<AudioFrame>>,
    limit: usize,
    dropped: AtomicU64,
}

impl Backlog {
    pub(super) fn new(limit: usize) -> Self {
        let frames = Mutex::new(VecDeque::with_capacity(limit + 1));
        Self { frames, limit: limit.max(1), dropped: AtomicU64::new(0) }
    }

    pub(super) fn push(&self, frame: AudioFrame) {
        let mut frames = self.lock();
        frames.push_back(frame);
        if frames.len() > self.limit {
            frames.pop_front();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn pop(&self) -> Option<AudioFrame> {
        self.lock().pop_front()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<AudioFrame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The samples of a PCM frame.
pub(super) fn pcm16(frame: &AudioFrame) -> impl ExactSizeIterator<Item = i16> + '_ {
    frame.data.chunks_exact(2).map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_of_any_size_become_frames_of_one_size() {
        let (mut tap, mut assembler) = ring(16_000, 16_000, 16_000, 320).unwrap();
        let mut frames = Vec::new();
        let mut next = 0i16;
        for size in [1usize, 700, 13, 320, 2, 900, 24] {
            let samples: Vec<i16> = (0..size).map(|i| next + i as i16).collect();
            next += size as i16;
            tap.capture(&samples, 1);
            assembler.drain(|frame| frames.push(frame)).unwrap();
        }
        assert!(frames.iter().all(|frame| frame.samples() == 320));
        let all: Vec<i16> =
            frames.iter().flat_map(|frame| pcm16(frame).collect::<Vec<_>>()).collect();
        assert_eq!(all.len(), 1_960 / 320 * 320);
        assert!(all.iter().enumerate().all(|(at, &sample)| sample == at as i16));
    }

    #[test]
    fn stereo_is_mixed_without_overflow() {
        let (mut tap, mut assembler) = ring(8_000, 100, 8_000, 2).unwrap();
        tap.capture(&[i16::MAX, i16::MAX, i16::MIN, i16::MIN], 2);
        let mut frames = Vec::new();
        assembler.drain(|frame| frames.push(frame)).unwrap();
        assert_eq!(pcm16(&frames[0]).collect::<Vec<_>>(), [i16::MAX, i16::MIN]);
    }

    /// Trial F4: the device cannot do the asked rate; it is converted, and is not silent.
    #[test]
    fn trial_f04_a_device_at_44100_is_heard_at_24000() {
        let (mut tap, mut assembler) = ring(44_100, 44_100, 24_000, 480).unwrap();
        let tone: Vec<f32> = (0..44_100)
            .map(|i| (i as f32 * 440.0 * std::f32::consts::TAU / 44_100.0).sin() * 0.5)
            .collect();
        let mut samples = Vec::new();
        for piece in tone.chunks(441) {
            tap.capture(piece, 1);
            assembler.drain(|frame| samples.extend(pcm16(&frame))).unwrap();
        }
        assert!((23_000..=24_000).contains(&samples.len()), "{}", samples.len());
        let steady = &samples[2_400..];
        let crossings = steady.windows(2).filter(|pair| (pair[0] < 0) != (pair[1] < 0)).count();
        let hz = crossings as f64 / 2.0 * 24_000.0 / steady.len() as f64;
        assert!((hz - 440.0).abs() < 5.0, "{hz} Hz");
        assert_eq!(assembler.counters().silent.load(Ordering::Relaxed), 0);
    }

    /// Trial F4: digital silence is noticed.
    #[test]
    fn trial_f04_digital_silence_is_counted_until_a_sound_comes() {
        let (mut tap, mut assembler) = ring(8_000, 8_000, 8_000, 160).unwrap();
        let silent = |assembler: &Assembler| assembler.counters().silent.load(Ordering::Relaxed);
        for _ in 0..10 {
            tap.capture(&[0i16; 400], 1);
            assembler.drain(drop).unwrap();
        }
        assert_eq!(silent(&assembler), 4_000);
        tap.capture(&[0i16, 1, 0, 0], 1);
        assembler.drain(drop).unwrap();
        assert_eq!(silent(&assembler), 2);
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let (mut tap, assembler) = ring(8_000, 100, 8_000, 10).unwrap();
        tap.capture(&[1i16; 130], 1);
        assert_eq!(assembler.counters().dropped.load(Ordering::Relaxed), 30);
    }

    #[test]
    fn a_late_session_loses_the_oldest_frames() {
        let backlog = Backlog::new(2);
        for value in 1..=3 {
            backlog.push(AudioFrame::from_pcm16(8_000, &[value]));
        }
        assert_eq!(backlog.pop(), Some(AudioFrame::from_pcm16(8_000, &[2])));
        assert_eq!(backlog.dropped(), 1);
    }
}
