//! Audio formats, and frames that carry theirs.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How audio bytes are to be read. Always one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "encoding", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AudioFormat {
    /// Signed 16-bit little-endian samples.
    Pcm16 {
        /// Samples per second, 8,000 to 48,000.
        sample_rate_hz: u32,
    },
    /// G.711 mu-law, 8,000 samples per second, one byte each.
    Mulaw8k,
    /// G.711 A-law, 8,000 samples per second, one byte each.
    Alaw8k,
}

impl AudioFormat {
    /// 16-bit PCM at `sample_rate_hz`.
    pub const fn pcm16(sample_rate_hz: u32) -> Self {
        Self::Pcm16 { sample_rate_hz }
    }

    /// Samples per second.
    pub const fn sample_rate_hz(self) -> u32 {
        match self {
            Self::Pcm16 { sample_rate_hz } => sample_rate_hz,
            Self::Mulaw8k | Self::Alaw8k => 8_000,
        }
    }

    /// Bytes that one sample takes.
    pub const fn bytes_per_sample(self) -> usize {
        match self {
            Self::Pcm16 { .. } => 2,
            Self::Mulaw8k | Self::Alaw8k => 1,
        }
    }

    /// How long `samples` last.
    pub fn duration_of(self, samples: u64) -> Duration {
        let rate = u64::from(self.sample_rate_hz().max(1));
        Duration::new(samples / rate, ((samples % rate) * 1_000_000_000 / rate) as u32)
    }

    /// How many whole samples fit into `duration`.
    pub fn samples_in(self, duration: Duration) -> u64 {
        (duration.as_nanos() * u128::from(self.sample_rate_hz()) / 1_000_000_000) as u64
    }
}

/// A piece of audio with the format its bytes are in, so that rates cannot be mixed up. Cheap to
/// clone. An odd last byte of 16-bit PCM is not a sample and is ignored by [`AudioFrame::samples`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AudioFrame {
    /// How to read `data`.
    pub format: AudioFormat,
    /// The encoded samples.
    pub data: Bytes,
}

impl AudioFrame {
    /// A frame of `data` in `format`.
    pub fn new(format: AudioFormat, data: impl Into<Bytes>) -> Self {
        Self { format, data: data.into() }
    }

    /// A frame of 16-bit PCM from samples.
    pub fn from_pcm16(sample_rate_hz: u32, samples: &[i16]) -> Self {
        let mut data = Vec::with_capacity(samples.len() * 2);
        for sample in samples {
            data.extend_from_slice(&sample.to_le_bytes());
        }
        Self::new(AudioFormat::pcm16(sample_rate_hz), data)
    }

    /// Whole samples in the frame.
    pub fn samples(&self) -> usize {
        self.data.len() / self.format.bytes_per_sample()
    }

    /// How long the frame lasts.
    pub fn duration(&self) -> Duration {
        self.format.duration_of(self.samples() as u64)
    }

    /// Whether the frame holds no sample.
    pub fn is_empty(&self) -> bool {
        self.samples() == 0
    }

    /// As much silence, in the same format.
    pub fn silenced(&self) -> Self {
        let silence = match self.format {
            AudioFormat::Pcm16 { .. } => 0,
            AudioFormat::Mulaw8k => 0xff,
            AudioFormat::Alaw8k => 0xd5,
        };
        Self::new(self.format, vec![silence; self.data.len()])
    }

    /// The part from sample `from` up to (not including) sample `to`, clamped to the frame; shares
    /// the bytes.
    pub fn slice(&self, from: usize, to: usize) -> Self {
        let width = self.format.bytes_per_sample();
        let to = to.min(self.samples());
        let from = from.min(to);
        Self { format: self.format, data: self.data.slice(from * width..to * width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_knows_its_length_in_samples_and_time() {
        let frame = AudioFrame::from_pcm16(24_000, &[1; 480]);
        assert_eq!(frame.samples(), 480);
        assert_eq!(frame.duration(), Duration::from_millis(20));
        assert_eq!(
            AudioFrame::new(AudioFormat::Mulaw8k, vec![0; 160]).duration(),
            Duration::from_millis(20)
        );
    }

    #[test]
    fn slices_clamp_and_share() {
        let frame = AudioFrame::from_pcm16(8_000, &[1, 2, 3, 4]);
        assert_eq!(frame.slice(1, 3), AudioFrame::from_pcm16(8_000, &[2, 3]));
        assert_eq!(frame.slice(3, 99), AudioFrame::from_pcm16(8_000, &[4]));
        assert!(frame.slice(9, 3).is_empty());
    }

    #[test]
    fn silence_is_as_long_and_in_the_same_format() {
        let quiet = AudioFrame::from_pcm16(8_000, &[1, -2, 3]).silenced();
        assert_eq!(quiet, AudioFrame::from_pcm16(8_000, &[0; 3]));
        let quiet = AudioFrame::new(AudioFormat::Mulaw8k, vec![1; 160]).silenced();
        assert_eq!((quiet.samples(), quiet.data[0]), (160, 0xff));
    }

    #[test]
    fn durations_of_long_calls_do_not_overflow() {
        let format = AudioFormat::pcm16(44_100);
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(format.duration_of(format.samples_in(year)), year);
    }
}
