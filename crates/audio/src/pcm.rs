//! Samples as bytes, as integers and as floats; frames of an exact size.

/// Full scale of 16-bit samples as a float.
const FULL_SCALE: f32 = 32_768.0;

/// Reads a stream of little-endian 16-bit PCM whose chunks may end in the middle of a sample: the
/// odd byte is carried to the next chunk, so that the stream never shifts.
#[derive(Clone, Debug, Default)]
pub struct SampleReader {
    carry: Option<u8>,
}

impl SampleReader {
    /// A reader at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the samples that `bytes` completes to `out`.
    pub fn read(&mut self, bytes: &[u8], out: &mut Vec<i16>) {
        let mut bytes = bytes;
        if let (Some(low), Some((&high, rest))) = (self.carry, bytes.split_first()) {
            out.push(i16::from_le_bytes([low, high]));
            self.carry = None;
            bytes = rest;
        }
        bytes_to_samples(bytes, out);
        if bytes.len() % 2 == 1 {
            self.carry = bytes.last().copied();
        }
    }

    /// Whether half a sample is waiting for its other half.
    pub fn is_mid_sample(&self) -> bool {
        self.carry.is_some()
    }

    /// Forgets a waiting half: a new stream begins.
    pub fn reset(&mut self) {
        self.carry = None;
    }
}

/// Cuts a stream that comes in chunks of any size into frames of exactly `N` samples. Once it has
/// seen the largest chunk it does not allocate.
#[derive(Clone, Debug)]
pub struct Framer {
    frame_samples: usize,
    pending: Vec<i16>,
}

impl Framer {
    /// A framer for frames of `frame_samples` samples (at least 1).
    pub fn new(frame_samples: usize) -> Self {
        let frame_samples = frame_samples.max(1);
        Self { frame_samples, pending: Vec::with_capacity(frame_samples) }
    }

    /// Samples in each frame.
    pub fn frame_samples(&self) -> usize {
        self.frame_samples
    }

    /// Takes a chunk and calls `each` with every frame that is now complete, in order.
    pub fn push(&mut self, chunk: &[i16], mut each: impl FnMut(&[i16])) {
        let mut chunk = chunk;
        if !self.pending.is_empty() {
            let missing = (self.frame_samples - self.pending.len()).min(chunk.len());
            let (head, rest) = chunk.split_at(missing);
            self.pending.extend_from_slice(head);
            chunk = rest;
            if self.pending.len() < self.frame_samples {
                return;
            }
            each(&self.pending);
            self.pending.clear();
        }
        let frames = chunk.chunks_exact(self.frame_samples);
        self.pending.extend_from_slice(frames.remainder());
        frames.for_each(each);
    }

    /// What is left of the stream: fewer samples than a frame.
    pub fn pending(&self) -> &[i16] {
        &self.pending
    }

    /// Forgets the incomplete frame.
    pub fn reset(&mut self) {
        self.pending.clear();
    }
}

/// Appends the whole samples in `bytes` to `out`; an odd last byte is left out. For streams that
/// may be cut anywhere use [`SampleReader`].
pub fn bytes_to_samples(bytes: &[u8], out: &mut Vec<i16>) {
    out.extend(bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])));
}

/// Appends `samples` as little-endian bytes to `out`.
pub fn samples_to_bytes(samples: &[i16], out: &mut Vec<u8>) {
    out.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
}

/// A sample as a float from -1 to (almost) 1.
pub fn to_f32(sample: i16) -> f32 {
    f32::from(sample) / FULL_SCALE
}

/// A float from -1 to 1 as a sample, rounded; what is louder is clipped, and not-a-number is
/// silence.
pub fn from_f32(sample: f32) -> i16 {
    round_to_i16(sample * FULL_SCALE)
}

/// A float in the scale of 16-bit samples as a sample: rounded half away from zero and clipped.
pub(crate) fn round_to_i16(value: f32) -> i16 {
    // Casts of floats saturate and turn not-a-number into 0; `f32::round` would be a library call.
    (value + 0.5_f32.copysign(value)) as i16
}

/// The root mean square of `samples`, from 0 to 1 (full scale). 0 for no samples.
pub fn rms(samples: &[i16]) -> f32 {
    if samples.is_empty() {
        return 0.0;
    }
    let sum: u64 = samples.iter().map(|&sample| energy(sample)).sum();
    ((sum as f64 / samples.len() as f64).sqrt() / f64::from(FULL_SCALE)) as f32
}

/// The largest magnitude in `samples`, from 0 to 1 (full scale).
pub fn peak(samples: &[i16]) -> f32 {
    let peak = samples.iter().map(|sample| sample.unsigned_abs()).max().unwrap_or(0);
    f32::from(peak) / FULL_SCALE
}

/// A magnitude from 0 to 1 in decibels below full scale: 0 for full scale, -120 for silence.
pub fn dbfs(magnitude: f32) -> f32 {
    (20.0 * magnitude.max(1e-6).log10()).min(0.0)
}

pub(crate) fn energy(sample: i16) -> u64 {
    let sample = i64::from(sample);
    (sample * sample) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_cut_anywhere_give_the_same_samples(
            samples in prop::collection::vec(any::<i16>(), 0..200),
            cuts in prop::collection::vec(0_usize..40, 0..40),
        ) {
            let mut bytes = Vec::new();
            samples_to_bytes(&samples, &mut bytes);
            let (mut reader, mut out, mut rest) = (SampleReader::new(), Vec::new(), &bytes[..]);
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                reader.read(head, &mut out);
                rest = tail;
            }
            reader.read(rest, &mut out);
            prop_assert_eq!(out, samples);
            prop_assert!(!reader.is_mid_sample());
        }

        #[test]
        fn frames_have_their_size_and_lose_nothing(
            chunks in prop::collection::vec(prop::collection::vec(any::<i16>(), 0..70), 0..20),
            frame in 1_usize..50,
        ) {
            let mut framer = Framer::new(frame);
            let mut out = Vec::new();
            for chunk in &chunks {
                framer.push(chunk, |full| {
                    assert_eq!(full.len(), frame);
                    out.extend_from_slice(full);
                });
            }
            prop_assert!(framer.pending().len() < frame);
            out.extend_from_slice(framer.pending());
            prop_assert_eq!(out, chunks.concat());
        }
    }

    #[test]
    fn every_sample_survives_the_way_through_floats() {
        for sample in i16::MIN..=i16::MAX {
            assert_eq!(from_f32(to_f32(sample)), sample);
        }
    }

    #[test]
    fn floats_beyond_full_scale_are_clipped() {
        assert_eq!(from_f32(1.5), i16::MAX);
        assert_eq!(from_f32(-1.5), i16::MIN);
        assert_eq!(from_f32(f32::NAN), 0);
        assert_eq!(round_to_i16(-0.6), -1);
        assert_eq!(round_to_i16(0.4), 0);
    }

    #[test]
    fn levels_are_relative_to_full_scale() {
        assert_eq!(rms(&[]), 0.0);
        assert_eq!(peak(&[0, i16::MIN]), 1.0);
        assert!((dbfs(rms(&[16_384; 100])) + 6.02).abs() < 0.01);
        assert_eq!(dbfs(0.0), -120.0);
        assert_eq!(rms(&[i16::MIN; 48_000]), 1.0);
    }
}
