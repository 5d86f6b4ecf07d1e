//! Changing the sample rate of a stream.

mod fir;
mod sinc;

use fir::Fir;
use sinc::Sinc;

use crate::AudioError;

/// Rates outside of this range are refused.
const RATES_HZ: std::ops::RangeInclusive<u32> = 8_000..=48_000;

/// Changes the sample rate of one stream of 16-bit samples. It keeps its state from call to call:
/// chunks of any size give the samples that one big chunk would have given.
///
/// The output is aligned with the input: output sample `k` is the input at time `k / to_hz`. What
/// the filter needs to see first is held back ([`Resampler::delay_samples`]), so the first calls
/// return less and [`Resampler::flush`] returns the rest; in all, `n` input samples give
/// `n * to_hz / from_hz` output samples, rounded up. A call may return nothing.
///
/// The usual rates (8, 16, 24, 32 and 48 kHz, 44.1 kHz and its parts) run through a polyphase
/// filter that holds back 24 samples of the lower rate: 3 ms at 8 kHz, 1 ms at 24 kHz. Odd ratios
/// run through a windowed sinc that holds back up to 9 ms and is aligned to within one sample.
/// Both suppress what would alias by 65 dB or more. Steady state does not allocate, apart from
/// growth of the caller's buffer.
#[derive(Debug)]
pub struct Resampler {
    from_hz: u32,
    to_hz: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Copy,
    Fir(Fir),
    Sinc(Box<Sinc>),
}

impl Resampler {
    /// A resampler from `from_hz` to `to_hz`, both 8,000 to 48,000. Anything else is
    /// [`AudioError::Unsupported`].
    pub fn new(from_hz: u32, to_hz: u32) -> Result<Self, AudioError> {
        if let Some(rate) = [from_hz, to_hz].into_iter().find(|rate| !RATES_HZ.contains(rate)) {
            return Err(AudioError::Unsupported(format!(
                "a sample rate of {rate} Hz; it must be from 8000 to 48000 Hz"
            )));
        }
        let divisor = greatest_common_divisor(from_hz, to_hz);
        let (up, down) = (to_hz / divisor, from_hz / divisor);
        let kind = match (up, down) {
            (1, 1) => Kind::Copy,
            _ if up.max(down) <= fir::MAX_FACTOR => Kind::Fir(Fir::new(up, down)),
            _ => Kind::Sinc(Box::new(Sinc::new(from_hz, to_hz)?)),
        };
        Ok(Self { from_hz, to_hz, kind })
    }

    /// The rate of the input in Hz.
    pub fn input_hz(&self) -> u32 {
        self.from_hz
    }

    /// The rate of the output in Hz.
    pub fn output_hz(&self) -> u32 {
        self.to_hz
    }

    /// Takes `input` and appends to `output` what can be said now.
    pub fn process(&mut self, input: &[i16], output: &mut Vec<i16>) {
        match &mut self.kind {
            Kind::Copy => output.extend_from_slice(input),
            Kind::Fir(fir) => fir.process(input, output),
            Kind::Sinc(sinc) => sinc.process(input, output),
        }
    }

    /// Ends the stream: appends what was held back, as if silence followed, and is then as new.
    pub fn flush(&mut self, output: &mut Vec<i16>) {
        match &mut self.kind {
            Kind::Copy => {}
            Kind::Fir(fir) => fir.flush(output),
            Kind::Sinc(sinc) => sinc.flush(output),
        }
    }

    /// Forgets the stream without ending it: what was held back is lost.
    pub fn reset(&mut self) {
        match &mut self.kind {
            Kind::Copy => {}
            Kind::Fir(fir) => fir.reset(),
            Kind::Sinc(sinc) => sinc.reset(),
        }
    }

    /// How many samples, in the output's rate, are held back at most: the latency.
    pub fn delay_samples(&self) -> usize {
        match &self.kind {
            Kind::Copy => 0,
            Kind::Fir(fir) => fir.delay_samples(),
            Kind::Sinc(sinc) => sinc.delay_samples(),
        }
    }
}

/// How many output samples `input` samples are, in all.
fn output_samples(input: u64, from_hz: u32, to_hz: u32) -> u64 {
    (input * u64::from(to_hz)).div_ceil(u64::from(from_hz))
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use proptest::prelude::*;

    use super::*;

    const RATES: [u32; 9] = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

    /// Pairs of rates that no device has.
    const ODD: [(u32, u32); 4] =
        [(8_001, 47_999), (47_999, 8_001), (44_099, 16_000), (24_000, 22_051)];

    fn pairs() -> impl Iterator<Item = (u32, u32)> {
        RATES.into_iter().flat_map(|from| RATES.map(|to| (from, to))).chain(ODD)
    }

    fn tone(hz: f64, rate: u32, samples: usize) -> Vec<i16> {
        let step = hz * TAU / f64::from(rate);
        (0..samples).map(|i| ((i as f64 * step).sin() * 16_000.0).round() as i16).collect()
    }

    fn in_chunks(from: u32, to: u32, input: &[i16], chunk: usize) -> Vec<i16> {
        let mut resampler = Resampler::new(from, to).unwrap();
        let mut output = Vec::new();
        input.chunks(chunk).for_each(|chunk| resampler.process(chunk, &mut output));
        resampler.flush(&mut output);
        output
    }

    fn power(samples: &[f64]) -> f64 {
        samples.iter().map(|sample| sample * sample).sum::<f64>() / samples.len() as f64
    }

    fn decibels(ratio: f64) -> f64 {
        10.0 * ratio.log10()
    }

    /// Both ends left out: the filter rings there.
    fn middle(samples: &[i16]) -> Vec<f64> {
        let edge = samples.len() / 10;
        samples[edge..samples.len() - edge].iter().map(|&sample| f64::from(sample)).collect()
    }

    /// How pure a tone is in decibels, and by how many samples it is late.
    fn fit(hz: f64, samples: &[i16], rate: u32) -> (f64, f64) {
        let step = hz * TAU / f64::from(rate);
        let first = samples.len() / 10;
        let samples = middle(samples);
        let turn = |i: usize| ((i + first) as f64 * step).sin_cos();
        // Least squares for `a * sin + b * cos`.
        let (mut ss, mut cc, mut sc, mut ys, mut yc) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (i, y) in samples.iter().enumerate() {
            let (sin, cos) = turn(i);
            ss += sin * sin;
            cc += cos * cos;
            sc += sin * cos;
            ys += y * sin;
            yc += y * cos;
        }
        let determinant = ss * cc - sc * sc;
        let a = (ys * cc - yc * sc) / determinant;
        let b = (yc * ss - ys * sc) / determinant;
        let error: Vec<f64> = samples
            .iter()
            .enumerate()
            .map(|(i, y)| {
                let (sin, cos) = turn(i);
                y - a * sin - b * cos
            })
            .collect();
        (decibels(power(&samples) / power(&error)), -b.atan2(a) / step)
    }

    #[test]
    fn trial_f01_a_tone_in_10_ms_chunks_is_the_tone_in_one_shot() {
        for (from, to) in pairs() {
            let input = tone(1_000.0, from, from as usize);
            let one_shot = in_chunks(from, to, &input, input.len());
            assert_eq!(one_shot.len(), to as usize, "{from} to {to}");
            let chunked = in_chunks(from, to, &input, (from / 100) as usize);
            assert!(chunked == one_shot, "{from} to {to}: chunks are audible");
            let (snr, shift) = fit(1_000.0, &chunked, to);
            assert!(snr > 70.0, "{from} to {to}: {snr:.1} dB");
            let allowed = if ODD.contains(&(from, to)) { 1.0 } else { 0.001 };
            assert!(shift.abs() < allowed, "{from} to {to}: shifted by {shift:.3} samples");
        }
    }

    #[test]
    fn trial_f01_what_would_alias_is_gone() {
        for (from, to) in pairs().filter(|(from, to)| to < from) {
            // Above the new Nyquist frequency, and below the old one.
            let lowest = (f64::from(to) * 0.501).min(f64::from(from) * 0.49);
            for hz in [lowest, (lowest + f64::from(from) * 0.49) / 2.0] {
                let output = in_chunks(from, to, &tone(hz, from, from as usize), 480);
                let alias = power(&middle(&output)).max(1e-9);
                let below = decibels(power(&[16_000.0 / 2.0_f64.sqrt()]) / alias);
                assert!(below > 65.0, "{from} to {to}: {hz:.0} Hz is {below:.1} dB down");
            }
        }
    }

    #[test]
    fn trial_f01_images_of_the_old_rate_are_gone() {
        for (from, to) in [(8_000, 16_000), (8_000, 24_000), (8_000, 48_000), (24_000, 48_000)] {
            let hz = f64::from(from) * 0.4;
            let (snr, _) = fit(hz, &in_chunks(from, to, &tone(hz, from, from as usize), 80), to);
            assert!(snr > 50.0, "{from} to {to}: {snr:.1} dB");
        }
    }

    #[test]
    fn speech_frequencies_pass_unchanged() {
        for (from, to) in [(24_000, 8_000), (16_000, 24_000), (48_000, 16_000), (44_100, 16_000)] {
            let pass = f64::from(from.min(to)) * 0.4;
            let output = in_chunks(from, to, &tone(pass, from, from as usize), 333);
            let gain = decibels(power(&middle(&output)) / (16_000.0_f64.powi(2) / 2.0));
            assert!(gain.abs() < 0.5, "{from} to {to}: {gain:.2} dB at {pass:.0} Hz");
        }
    }

    #[test]
    fn a_constant_stays_constant() {
        for (from, to) in [(8_000, 24_000), (48_000, 16_000), (24_000, 16_000)] {
            let output = in_chunks(from, to, &[12_345; 4_000], 100);
            assert!(output[200..output.len() - 200].iter().all(|&sample| sample == 12_345));
        }
    }

    #[test]
    fn full_scale_is_clipped_and_does_not_wrap() {
        // A square wave overshoots in any band-limited filter.
        let square: Vec<i16> =
            (0..4_800).map(|i| if i / 40 % 2 == 0 { i16::MAX } else { i16::MIN }).collect();
        let output = in_chunks(24_000, 48_000, &square, 480);
        for (i, pair) in output.windows(2).enumerate().skip(100) {
            // Only edges may jump by half of the range; a wrapped sample would jump elsewhere.
            if i % 80 > 16 && i % 80 < 64 {
                let jump = i32::from(pair[0]) - i32::from(pair[1]);
                assert!(jump.abs() < 16_000, "sample {i}");
            }
        }
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        for (from, to) in [(0, 8_000), (8_000, 7_999), (96_000, 48_000), (16_000, u32::MAX)] {
            assert!(matches!(Resampler::new(from, to), Err(AudioError::Unsupported(_))));
        }
        assert!(Resampler::new(8_001, 47_999).is_ok());
    }

    #[test]
    fn the_delay_is_what_is_held_back() {
        for (from, to, most_ms) in [
            (24_000, 48_000, 1.0),
            (8_000, 24_000, 3.0),
            (24_000, 8_000, 3.0),
            (44_100, 8_000, 13.0),
        ] {
            let mut resampler = Resampler::new(from, to).unwrap();
            let mut output = Vec::new();
            let input = tone(440.0, from, from as usize + 77);
            resampler.process(&input, &mut output);
            let total = output_samples(input.len() as u64, from, to) as usize;
            assert!(total - output.len() <= resampler.delay_samples() + 1, "{from} to {to}");
            let ms = resampler.delay_samples() as f64 * 1_000.0 / f64::from(to);
            assert!(ms <= most_ms + 0.1, "{from} to {to}: {ms} ms");
        }
    }

    proptest! {
        #[test]
        fn f14_chunking_makes_no_difference(
            (from, to) in prop::sample::select(pairs().collect::<Vec<_>>()),
            seed in any::<u64>(),
            cuts in prop::collection::vec(0_usize..1_500, 0..12),
        ) {
            let total: usize = cuts.iter().sum();
            let mut state = seed | 1;
            let input: Vec<i16> = (0..total)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 48) as i16
                })
                .collect();
            let one_shot = in_chunks(from, to, &input, total.max(1));
            prop_assert_eq!(one_shot.len() as u64, output_samples(total as u64, from, to));
            let mut resampler = Resampler::new(from, to).unwrap();
            // What a reset or a flush leaves behind must not be heard.
            resampler.process(&[9_999; 321], &mut Vec::new());
            if seed % 2 == 0 { resampler.reset() } else { resampler.flush(&mut Vec::new()) }
            let (mut output, mut rest) = (Vec::new(), &input[..]);
            for cut in cuts {
                let (head, tail) = rest.split_at(cut);
                resampler.process(head, &mut output);
                rest = tail;
            }
            resampler.flush(&mut output);
            prop_assert_eq!(output, one_shot);
        }
    }
}
