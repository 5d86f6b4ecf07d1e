//! How loud a stream is.

use std::time::Duration;

use antiphon_types::AudioFormat;

use crate::pcm;

/// Measures a stream in windows of a fixed length: one [`Level`] per window, whatever the sizes of
/// the chunks.
#[derive(Clone, Debug)]
pub struct LevelMeter {
    window_samples: usize,
    taken: usize,
    energy: u64,
    peak: u16,
}

/// How loud one window was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Root mean square in decibels below full scale: 0 is full scale, -120 is silence.
    pub rms_dbfs: f32,
    /// The loudest sample in decibels below full scale.
    pub peak_dbfs: f32,
}

impl LevelMeter {
    /// A meter of a stream of `sample_rate_hz` that reports once per `window` (at least one
    /// sample, at most a minute).
    pub fn new(sample_rate_hz: u32, window: Duration) -> Self {
        let window = window.min(Duration::from_secs(60));
        let samples = AudioFormat::pcm16(sample_rate_hz).samples_in(window);
        Self { window_samples: (samples as usize).max(1), taken: 0, energy: 0, peak: 0 }
    }

    /// Takes samples and calls `each` with the level of every window that they complete.
    pub fn push(&mut self, samples: &[i16], mut each: impl FnMut(Level)) {
        let mut rest = samples;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(self.window_samples - self.taken));
            self.take(head);
            if self.taken == self.window_samples {
                each(self.level());
                self.reset();
            }
            rest = tail;
        }
    }

    /// Begins a new window.
    pub fn reset(&mut self) {
        (self.taken, self.energy, self.peak) = (0, 0, 0);
    }

    fn take(&mut self, samples: &[i16]) {
        self.taken += samples.len();
        for &sample in samples {
            self.energy += pcm::energy(sample);
            self.peak = self.peak.max(sample.unsigned_abs());
        }
    }

    fn level(&self) -> Level {
        let mean = self.energy as f64 / self.taken as f64;
        Level {
            rms_dbfs: pcm::dbfs((mean.sqrt() / 32_768.0) as f32),
            peak_dbfs: pcm::dbfs(f32::from(self.peak) / 32_768.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_level_per_window_whatever_the_chunks() {
        let mut samples = vec![0; 160];
        samples.extend([16_384; 160]);
        samples.extend([i16::MIN; 100]);
        for chunk in [1, 7, 160, 420] {
            let mut meter = LevelMeter::new(16_000, Duration::from_millis(10));
            let mut levels = Vec::new();
            samples.chunks(chunk).for_each(|chunk| meter.push(chunk, |level| levels.push(level)));
            assert_eq!(levels.len(), 2);
            assert_eq!(levels[0], Level { rms_dbfs: -120.0, peak_dbfs: -120.0 });
            assert!((levels[1].rms_dbfs + 6.02).abs() < 0.01);
            assert!((levels[1].peak_dbfs + 6.02).abs() < 0.01);
        }
    }

    #[test]
    fn a_window_of_no_length_is_one_sample() {
        let mut meter = LevelMeter::new(0, Duration::ZERO);
        let mut count = 0;
        meter.push(&[1, 2, 3], |_| count += 1);
        assert_eq!(count, 3);
    }
}
