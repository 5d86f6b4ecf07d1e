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
/// It tells speech from noise well, but takes a steady tone for speech, and its scores are smooth:
/// they take 100 ms to fall after speech. What is no louder than the background is therefore not
/// speech here, whatever the network says. Noise and silence score 0.1 to 0.35.
pub struct EarshotDetector {
    inner: Box<earshot::Detector>,
    background: Background,
}

impl EarshotDetector {
    const FRAME_SAMPLES: usize = 256;

    /// Noise varies by less than this over its quietest moment.
    const MARGIN_DB: f32 = 5.0;

    /// What scores at most that is no louder than the background.
    const BACKGROUND_SCORE: f32 = 0.3;

    /// A detector at the start of a stream.
    pub fn new() -> Self {
        Self {
            inner: earshot::Detector::default_boxed(),
            background: Background::new(16_000 / Self::FRAME_SAMPLES as u32),
        }
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
        let above = self.background.take(pcm::dbfs(pcm::rms(frame)));
        let most = if above < Self::MARGIN_DB { Self::BACKGROUND_SCORE } else { 1.0 };
        // Not-a-number, which nothing is known to cause, is no speech either.
        score.max(0.0).min(most)
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.background.reset();
    }
}

/// Takes for speech what is clearly louder than the background. Any sample rate, frames of 10 ms,
/// next to no cost; for quiet rooms and for tests.
#[derive(Clone, Debug)]
pub struct EnergyDetector {
    sample_rate_hz: u32,
    background: Background,
}

impl EnergyDetector {
    /// Nothing below this is speech.
    const QUIET_DBFS: f32 = -55.0;
    /// Scores 0.5 at this many decibels above the background, 0 at none, 1 at twice as many.
    const MARGIN_DB: f32 = 12.0;

    /// A detector of a stream of `sample_rate_hz`.
    pub fn new(sample_rate_hz: u32) -> Self {
        Self { sample_rate_hz, background: Background::new(100) }
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
        let above = self.background.take(level);
        if level < Self::QUIET_DBFS {
            return 0.0;
        }
        (above / (2.0 * Self::MARGIN_DB)).clamp(0.0, 1.0)
    }

    fn reset(&mut self) {
        self.background.reset();
    }
}

/// The level of the background: the quietest frame of the last second or two, since speech has gaps
/// and a background has not. In decibels below full scale.
#[derive(Clone, Debug)]
struct Background {
    /// A second.
    window_frames: u32,
    frames: u32,
    quietest: f32,
    /// Of the window before.
    quietest_before: f32,
}

impl Background {
    /// What it is at least: next to digital silence any rustle would stand out.
    const FLOOR_DBFS: f32 = -60.0;

    fn new(frames_per_second: u32) -> Self {
        Self { window_frames: frames_per_second, frames: 0, quietest: 0.0, quietest_before: 0.0 }
    }

    /// Takes the level of the next frame; returns how much it is above the background.
    fn take(&mut self, level: f32) -> f32 {
        self.quietest = self.quietest.min(level.max(Self::FLOOR_DBFS));
        let above = level - self.quietest.min(self.quietest_before);
        self.frames += 1;
        if self.frames == self.window_frames {
            (self.quietest_before, self.quietest, self.frames) = (self.quietest, 0.0, 0);
        }
        above
    }

    fn reset(&mut self) {
        *self = Self::new(self.window_frames);
    }
}
