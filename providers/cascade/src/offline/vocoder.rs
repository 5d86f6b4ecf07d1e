//! From the spectrum that hibari's network draws to a waveform.

use std::{f32::consts::PI, sync::Arc};

use fastrand::Rng;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex, num_complex::Complex32};

/// The rate of what is spoken, in Hz.
pub(super) const SAMPLE_RATE_HZ: u32 = 24_000;
/// Samples by which frames follow each other: 12.5 ms.
pub(super) const HOP: usize = 300;
/// Frequency bins of a frame.
pub(super) const BINS: usize = WINDOW / 2 + 1;
const WINDOW: usize = 1_200;
/// Frames whose bins are brought together at a time: the network writes bin after bin.
const TILE: usize = 16;
/// Below this pitch, in Hz, a frame has no voice.
const VOICED_ABOVE: f32 = 40.0;
/// The highest harmonic of the voice, in Hz.
const HIGHEST_HARMONIC: f64 = 11_000.0;
/// Bound of the logarithmic magnitudes.
const LOUDEST: f32 = 7.0;

/// What the network says of a sentence. Each part but the pitch is `BINS` rows of one value per
/// frame.
pub(super) struct Spectrum {
    /// Logarithmic magnitude of the voice.
    pub(super) voice: Vec<f32>,
    /// Phase of the voice before `tanh`, in half turns.
    pub(super) voice_phase: Vec<f32>,
    /// Logarithmic magnitude of breath and friction.
    pub(super) noise: Vec<f32>,
    /// Logarithmic magnitude of the rest.
    pub(super) rest: Vec<f32>,
    /// Phase of the rest, in radians.
    pub(super) rest_phase: Vec<f32>,
    /// Pitch of each frame, in Hz.
    pub(super) pitch: Vec<f32>,
}

impl Spectrum {
    fn is_whole(&self) -> bool {
        let cells = BINS * self.pitch.len();
        [&self.voice, &self.voice_phase, &self.noise, &self.rest, &self.rest_phase]
            .iter()
            .all(|part| part.len() == cells)
    }
}

/// A pulse train at the pitch, filtered by the spectrum of the voice, plus shaped noise, plus a
/// rest with a phase of its own; made in the frequency domain and brought back by overlapping
/// windows.
pub(super) struct Vocoder {
    forward: Arc<dyn RealToComplex<f32>>,
    inverse: Arc<dyn ComplexToReal<f32>>,
    window: Vec<f32>,
}

impl Vocoder {
    pub(super) fn new() -> Self {
        let mut planner = RealFftPlanner::new();
        let window =
            (0..WINDOW).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f32 / WINDOW as f32).cos()).collect();
        Self {
            forward: planner.plan_fft_forward(WINDOW),
            inverse: planner.plan_fft_inverse(WINDOW),
            window,
        }
    }

    /// The waveform, `HOP` samples for each frame, of full scale 1. The same spectrum and `seed`
    /// give the same samples. `None` if the parts do not fit together.
    pub(super) fn waveform(&self, spectrum: &Spectrum, seed: u64) -> Option<Vec<f32>> {
        if !spectrum.is_whole() {
            return None;
        }
        let frames = spectrum.pitch.len();
        let pulses = pulse_train(&spectrum.pitch);
        let mut noise = Rng::with_seed(seed);
        let mut sum = vec![0.0; frames * HOP + WINDOW];
        let mut weight = vec![0.0_f32; sum.len()];
        let mut scratch = self.scratch();
        let mut tile = Tile::default();

        for first in (0..frames).step_by(TILE) {
            tile.fill(spectrum, first);
            for frame in first..frames.min(first + TILE) {
                self.excite(&pulses, frame, &mut scratch)?;
                tile.shape(frame - first, &mut scratch.bins, &mut noise);
                self.add(frame, &mut scratch, &mut sum, &mut weight)?;
            }
        }

        // The first frame is centred on the first sample: the half window before it is cut off.
        let from = WINDOW / 2;
        let wave = sum.iter().zip(&weight).skip(from).take(frames * HOP);
        Some(wave.map(|(sample, weight)| sample / weight.max(1e-11)).collect())
    }

    /// The spectrum of the pulses around `frame`, into `scratch.bins`.
    fn excite(&self, pulses: &[f32], frame: usize, scratch: &mut Scratch) -> Option<()> {
        let start = (frame * HOP) as isize - (WINDOW / 2) as isize;
        for (i, (sample, window)) in scratch.samples.iter_mut().zip(&self.window).enumerate() {
            // A cosine of amplitude 1 then has magnitude 1.
            let scaled = window / (WINDOW as f32 / 4.0);
            *sample = pulses[reflected(start + i as isize, pulses.len())] * scaled;
        }
        let Scratch { samples, bins, work, .. } = scratch;
        self.forward.process_with_scratch(samples, bins, work).ok()
    }

    fn add(
        &self,
        frame: usize,
        scratch: &mut Scratch,
        sum: &mut [f32],
        weight: &mut [f32],
    ) -> Option<()> {
        let Scratch { samples, bins, work, .. } = scratch;
        self.inverse.process_with_scratch(bins, samples, work).ok()?;
        let span = frame * HOP..frame * HOP + WINDOW;
        let places = sum[span.clone()].iter_mut().zip(&mut weight[span]);
        for ((sum, weight), (sample, window)) in places.zip(samples.iter().zip(&self.window)) {
            *sum += sample * window / WINDOW as f32;
            *weight += window * window;
        }
        Some(())
    }

    fn scratch(&self) -> Scratch {
        let work = self.forward.get_scratch_len().max(self.inverse.get_scratch_len());
        Scratch {
            samples: vec![0.0; WINDOW],
            bins: vec![Complex32::default(); BINS],
            work: vec![Complex32::default(); work],
        }
    }
}

struct Scratch {
    samples: Vec<f32>,
    bins: Vec<Complex32>,
    work: Vec<Complex32>,
}

/// Some frames of a spectrum, frame after frame.
#[derive(Default)]
struct Tile {
    voice: Vec<f32>,
    voice_phase: Vec<f32>,
    noise: Vec<f32>,
    rest: Vec<f32>,
    rest_phase: Vec<f32>,
}

impl Tile {
    fn fill(&mut self, spectrum: &Spectrum, first: usize) {
        let frames = spectrum.pitch.len();
        for (to, from) in [
            (&mut self.voice, &spectrum.voice),
            (&mut self.voice_phase, &spectrum.voice_phase),
            (&mut self.noise, &spectrum.noise),
            (&mut self.rest, &spectrum.rest),
            (&mut self.rest_phase, &spectrum.rest_phase),
        ] {
            to.resize(TILE * BINS, 0.0);
            for (bin, row) in from.chunks_exact(frames).enumerate() {
                let row = &row[first..frames.min(first + TILE)];
                for (frame, value) in row.iter().enumerate() {
                    to[frame * BINS + bin] = *value;
                }
            }
        }
    }

    /// Turns the spectrum of the pulses into that of the speech.
    fn shape(&self, frame: usize, bins: &mut [Complex32], noise: &mut Rng) {
        let row = frame * BINS..(frame + 1) * BINS;
        let voice = self.voice[row.clone()].iter().zip(&self.voice_phase[row.clone()]);
        let rest = self.rest[row.clone()].iter().zip(&self.rest_phase[row.clone()]);
        let parts = voice.zip(rest).zip(&self.noise[row]);
        for (bin, (((voice, phase), (rest, rest_phase)), breath)) in bins.iter_mut().zip(parts) {
            *bin *= Complex32::from_polar(magnitude(*voice), PI * phase.tanh());
            *bin += Complex32::new(gaussian(noise), gaussian(noise)) * magnitude(*breath);
            *bin += Complex32::from_polar(magnitude(*rest), *rest_phase);
        }
        // These two bins of a real signal are real.
        for edge in [0, BINS - 1] {
            bins[edge].im = 0.0;
        }
    }
}

fn magnitude(logarithm: f32) -> f32 {
    logarithm.min(LOUDEST).exp()
}

/// A random number of mean 0 and variance 1: the sum of four even ones, close enough to a bell for
/// noise that is filtered and overlapped afterwards.
fn gaussian(random: &mut Rng) -> f32 {
    let bits = random.u64(..);
    let sum = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum::<u64>();
    (sum as f32 / 65_536.0 - 2.0) * 3.0_f32.sqrt()
}

/// One pulse per period of the pitch, made of all harmonics below 11 kHz at amplitude 1; zero
/// where there is no voice.
fn pulse_train(pitch: &[f32]) -> Vec<f32> {
    let mut turns = 0.0_f64;
    (0..pitch.len() * HOP)
        .map(|sample| {
            let hertz = interpolated(pitch, sample);
            let voiced = hertz > VOICED_ABOVE;
            let hertz = f64::from(hertz.max(VOICED_ABOVE));
            turns = (turns + hertz / f64::from(SAMPLE_RATE_HZ)).fract();
            if !voiced {
                return 0.0;
            }
            // The sum of the cosines has a closed form.
            let harmonics = (HIGHEST_HARMONIC / hertz).floor() as f32 + 0.5;
            let angle = turns as f32 * 2.0 * PI;
            let divisor = 2.0 * (angle * 0.5).sin();
            let peak = divisor.abs() <= 2e-3;
            if peak { harmonics - 0.5 } else { (harmonics * angle).sin() / divisor - 0.5 }
        })
        .collect()
}

/// The pitch at a sample, on the line between the middles of the frames around it.
fn interpolated(pitch: &[f32], sample: usize) -> f32 {
    let position = (sample as f32 + 0.5) / HOP as f32 - 0.5;
    let left = position.floor();
    let at = |frame: f32| pitch[(frame.max(0.0) as usize).min(pitch.len() - 1)];
    at(left) + (at(left + 1.0) - at(left)) * (position - left)
}

/// An index into `length` samples that continue mirrored beyond both ends.
fn reflected(index: isize, length: usize) -> usize {
    let last = length as isize - 1;
    if last <= 0 {
        return 0;
    }
    let folded = index.rem_euclid(2 * last);
    folded.min(2 * last - folded) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spectrum(frames: usize, voice: f32, noise: f32, pitch: f32) -> Spectrum {
        let part = |value: f32| vec![value; BINS * frames];
        Spectrum {
            voice: part(voice),
            voice_phase: part(0.0),
            noise: part(noise),
            rest: part(-30.0),
            rest_phase: part(0.0),
            pitch: vec![pitch; frames],
        }
    }

    fn power(wave: &[f32]) -> f32 {
        wave.iter().map(|s| s * s).sum::<f32>() / wave.len() as f32
    }

    #[test]
    fn a_flat_voice_gives_the_pulses_back() {
        // A gain of N/4 undoes the scaling, so the filter is the identity.
        let wave = Vocoder::new()
            .waveform(&spectrum(40, (WINDOW as f32 / 4.0).ln(), -30.0, 120.0), 1)
            .unwrap();
        let pulses = pulse_train(&[120.0; 40]);
        assert_eq!(wave.len(), 40 * HOP);
        let middle = 2 * WINDOW..wave.len() - 2 * WINDOW;
        let error: Vec<f32> = middle.clone().map(|i| wave[i] - pulses[i]).collect();
        assert!(power(&error) < 1e-4 * power(&pulses[middle]), "{}", power(&error));
    }

    #[test]
    fn pulses_come_at_the_pitch() {
        let pulses = pulse_train(&[240.0; 80]);
        let peaks = pulses.iter().filter(|s| **s > 30.0).count();
        assert_eq!(peaks, 240, "one second at 240 Hz");
        assert!(pulse_train(&[30.0; 8]).iter().all(|s| *s == 0.0));
    }

    #[test]
    fn the_same_seed_speaks_the_same_samples() {
        let vocoder = Vocoder::new();
        let breath = spectrum(20, -30.0, 0.0, 0.0);
        let once = vocoder.waveform(&breath, 7).unwrap();
        assert_eq!(once, vocoder.waveform(&breath, 7).unwrap());
        assert_ne!(once, vocoder.waveform(&breath, 8).unwrap());
        assert!(power(&once) > 0.0);
    }

    #[test]
    fn noise_has_the_variance_it_should() {
        let mut random = Rng::with_seed(3);
        let numbers: Vec<f32> = (0..20_000).map(|_| gaussian(&mut random)).collect();
        assert!((power(&numbers) - 1.0).abs() < 0.05, "{}", power(&numbers));
    }

    #[test]
    fn odd_shapes_are_refused_and_tiny_ones_are_not() {
        let vocoder = Vocoder::new();
        let mut broken = spectrum(4, 0.0, 0.0, 100.0);
        broken.rest.pop();
        assert!(vocoder.waveform(&broken, 1).is_none());
        assert_eq!(vocoder.waveform(&spectrum(1, 0.0, 0.0, 100.0), 1).unwrap().len(), HOP);
        assert!(vocoder.waveform(&spectrum(0, 0.0, 0.0, 0.0), 1).unwrap().is_empty());
    }
}
