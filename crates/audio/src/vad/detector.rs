//! Speech or not, frame by frame.

use std::fmt;

use crate::pcm;

/// Says of each frame of a stream how likely it is speech. One detector per stream: it may remember
/// what came before. [`TurnDetector`](crate::TurnDetector) makes turns of its scores.
pub trait SpeechDetector: Send {
    /// The sample rate of the frames, in Hz.
    fn sample_rate_hz(&self) -> u32;

    /// Samples in each frame.
    fn frame_samples(&self) -> usize;

    /// How likely the next frame is speech, from 0 to 1. A frame of another length than
    /// [`SpeechDetector::frame_samples`] scores 0.
    fn score(&mut self, frame: &[i16]) -> f32;

    /// Another stream begins.
    fn reset(&mut self);
}

/// A small neural network (the `earshot` crate): 16 kHz, frames of 16 ms, a few microseconds each.
///
/// It tells speech from noise well, but takes a steady tone for speech.
pub struct EarshotDetector {
    inner: Box<earshot::Detector>,
}

impl EarshotDetector {
    const FRAME_SAMPLES: usize = 256;

    /// A detector at the start of a stream.
    pub fn new() -> Self {
        Self { inner: earshot::Detector::default_boxed() }
    }
}

impl Default for EarshotDetector {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for EarshotDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarshotDetector").finish_non_exhaustive()
    }
}

impl SpeechDetector for EarshotDetector {
    fn sample_rate_hz(&self) -> u32 {
        16_000
    }

    fn frame_samples(&self) -> usize {
        Self::FRAME_SAMPLES
    }

    fn score(&mut self, frame: &[i16]) -> f32 {
        if frame.len() != Self::FRAME_SAMPLES {
            return 0.0;
        }
        let score = self.inner.predict_i16(frame);
        if score.is_finite() { score.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn reset(&mut self) {
        self.inner.reset();
    }
}

/// Takes for speech what is clearly louder than the background, whose level it learns. Any sample
/// rate, frames of 10 ms, next to no cost; for quiet rooms and for tests.
#[derive(Clone, Debug)]
pub struct EnergyDetector {
    sample_rate_hz: u32,
    floor_dbfs: f32,
}

impl EnergyDetector {
    /// What a stream's background is taken for until more is known.
    const INITIAL_FLOOR_DBFS: f32 = -60.0;
    /// Nothing below this is speech.
    const QUIET_DBFS: f32 = -55.0;
    /// Scores 0.5 at this many decibels above the background, 0 at none, 1 at twice as many.
    const MARGIN_DB: f32 = 12.0;
    /// The background rises this much per frame at most: 3 dB a second, so that a long sentence
    /// does not become background.
    const RISE_DB: f32 = 0.03;
    /// How fast it falls: most of the way within some frames.
    const FALL: f32 = 0.2;

    /// A detector of a stream of `sample_rate_hz`.
    pub fn new(sample_rate_hz: u32) -> Self {
        Self { sample_rate_hz, floor_dbfs: Self::INITIAL_FLOOR_DBFS }
    }
}

impl SpeechDetector for EnergyDetector {
    fn sample_rate_hz(&self) -> u32 {
        self.sample_rate_hz
    }

    fn frame_samples(&self) -> usize {
        (self.sample_rate_hz as usize / 100).max(1)
    }

    fn score(&mut self, frame: &[i16]) -> f32 {
        if frame.len() != self.frame_samples() {
            return 0.0;
        }
        let level = pcm::dbfs(pcm::rms(frame));
        let above = level - self.floor_dbfs;
        self.floor_dbfs += if above < 0.0 { above * Self::FALL } else { above.min(Self::RISE_DB) };
        if level < Self::QUIET_DBFS {
            return 0.0;
        }
        (above / (2.0 * Self::MARGIN_DB)).clamp(0.0, 1.0)
    }

    fn reset(&mut self) {
        self.floor_dbfs = Self::INITIAL_FLOOR_DBFS;
    }
}
