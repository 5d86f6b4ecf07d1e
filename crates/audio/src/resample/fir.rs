//! A polyphase filter for ratios of whole numbers.

use std::f64::consts::PI;

use crate::pcm::round_to_i16;

/// The largest factor up or down: 1,280 is 11,025 to 32,000 Hz. It bounds the table of taps,
/// which then has 250 KiB at most (200 bytes to 1.2 KiB between 8, 16, 24 and 48 kHz).
pub(super) const MAX_FACTOR: u32 = 1_280;

/// Samples of the lower of both rates on each side of the filter's centre: 3 ms at 8 kHz, 1 ms at
/// 24 kHz.
const HALF_WIDTH: usize = 24;

/// Kaiser's shape parameter for a stop band of 72 dB.
const KAISER_BETA: f64 = 7.0;

/// Width of the filter's transition as a part of the lower rate: (A - 7.95) / (14.36 * taps) for A
/// decibels (Kaiser's formula). The whole of it lies below the Nyquist frequency, so nothing
/// aliases into the pass band.
const TRANSITION: f64 = (72.0 - 7.95) / (14.36 * 2.0 * HALF_WIDTH as f64);

/// Input samples taken at a time, which bounds the memory.
const BLOCK: usize = 2_048;

/// Partial sums kept side by side, so that the compiler can use vector registers: it must not
/// reorder the additions of a single float sum.
const LANES: usize = 8;

/// Conceptually: put `up - 1` zeros between input samples, low-pass, keep each `down`-th sample.
/// Each output only needs the taps that meet an input sample; those are one phase of the filter.
#[derive(Debug)]
pub(super) struct Fir {
    up: usize,
    down: usize,
    /// Input samples on each side that one output sample depends on.
    half: usize,
    /// `up` phases of `2 * half` taps.
    taps: Vec<f32>,
    /// Input from `half - 1` samples before the position of the next output.
    history: Vec<f32>,
    /// Where the next output lies between two input samples, in units of `1 / up`.
    phase: usize,
    /// Input samples taken and output samples given since the stream began.
    taken: u64,
    given: u64,
}

impl Fir {
    /// A filter for the reduced ratio `up / down`, both at most [`MAX_FACTOR`].
    pub fn new(up: u32, down: u32) -> Self {
        let (up, down) = (up as usize, down as usize);
        // In input samples; the lower rate is the output's when going down. Rounded up to whole
        // lanes: the rate of the input is higher by `down / up` then.
        let half = (HALF_WIDTH * down.max(up)).div_ceil(up).next_multiple_of(LANES / 2);
        let mut fir = Self {
            up,
            down,
            half,
            taps: taps(up, down, half),
            history: Vec::with_capacity(BLOCK + 2 * half),
            phase: 0,
            taken: 0,
            given: 0,
        };
        fir.reset();
        fir
    }

    pub fn process(&mut self, input: &[i16], output: &mut Vec<i16>) {
        self.taken += input.len() as u64;
        for block in input.chunks(BLOCK) {
            self.history.extend(block.iter().map(|&sample| f32::from(sample)));
            self.drain(usize::MAX, output);
        }
    }

    pub fn flush(&mut self, output: &mut Vec<i16>) {
        let total = (self.taken * self.up as u64).div_ceil(self.down as u64);
        let missing = (total - self.given) as usize;
        self.history.resize(self.history.len() + self.half + 1, 0.0);
        self.drain(missing, output);
        self.reset();
    }

    pub fn reset(&mut self) {
        self.history.clear();
        self.history.resize(self.half - 1, 0.0);
        (self.phase, self.taken, self.given) = (0, 0, 0);
    }

    pub fn delay_samples(&self) -> usize {
        (self.half * self.up).div_ceil(self.down)
    }

    /// Gives as many outputs as the history allows, at most `limit`.
    fn drain(&mut self, limit: usize, output: &mut Vec<i16>) {
        let width = 2 * self.half;
        // Divided once here: a division takes as long as half of the filter.
        let (whole, part) = (self.down / self.up, self.down % self.up);
        let (mut start, mut given, mut phase) = (0, 0, self.phase);
        while given < limit
            && let Some(samples) = self.history.get(start..start + width)
        {
            let taps = &self.taps[phase * width..(phase + 1) * width];
            output.push(round_to_i16(dot(taps, samples)));
            given += 1;
            start += whole;
            phase += part;
            if phase >= self.up {
                phase -= self.up;
                start += 1;
            }
        }
        self.phase = phase;
        self.given += given as u64;
        // Within the history: the last output's taps lay there, and a step is shorter than those.
        self.history.drain(..start);
    }
}

/// The filter by phases. Tap `j` of a phase meets input sample `j - (half - 1)` counted from the
/// one at or before the output's position.
fn taps(up: usize, down: usize, half: usize) -> Vec<f32> {
    // Frequencies in cycles per input sample.
    let lower_rate = (up as f64 / down as f64).min(1.0);
    let cutoff = lower_rate * (0.5 - TRANSITION / 2.0);
    let mut taps = Vec::with_capacity(up * 2 * half);
    for phase in 0..up {
        let phase_taps: Vec<f64> = (0..2 * half)
            .map(|tap| {
                let distance = phase as f64 / up as f64 - (tap as f64 - (half as f64 - 1.0));
                sinc(2.0 * cutoff * distance) * kaiser(distance / half as f64)
            })
            .collect();
        // Each phase passes a constant unchanged, or a constant would come out as a tone.
        let gain: f64 = phase_taps.iter().sum();
        taps.extend(phase_taps.iter().map(|tap| (tap / gain) as f32));
    }
    taps
}

fn dot(taps: &[f32], samples: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for (taps, samples) in taps.chunks_exact(LANES).zip(samples.chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += taps[lane] * samples[lane];
        }
    }
    // In pairs: one after the other, each addition would wait for the one before.
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

fn sinc(x: f64) -> f64 {
    if x.abs() < 1e-9 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// Kaiser's window from -1 to 1.
fn kaiser(x: f64) -> f64 {
    if x.abs() >= 1.0 {
        return 0.0;
    }
    // Not divided by its value at 0: the taps are normalised anyway.
    bessel_i0(KAISER_BETA * (1.0 - x * x).sqrt())
}

/// The modified Bessel function of the first kind and order zero, by its series.
fn bessel_i0(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..40 {
        term *= (x / (2.0 * f64::from(k))).powi(2);
        sum += term;
    }
    sum
}
