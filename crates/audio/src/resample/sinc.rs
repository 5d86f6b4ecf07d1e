//! A windowed sinc for odd ratios, by the `rubato` crate.

use std::fmt;

use rubato::{
    Async, FixedAsync, Resampler as _, SincInterpolationParameters, SincInterpolationType,
    WindowFunction, audioadapter_buffers::direct::SequentialSlice, calculate_cutoff,
};

use super::output_samples;
use crate::{
    AudioError,
    pcm::{from_f32, to_f32},
};

/// Taps of the filter in samples of the lower rate.
const SINC_LENGTH: usize = 96;

/// Input is handed over in pieces of a fixed size, 2.5 ms, so that the caller's chunks do not
/// matter.
const PIECES_PER_SECOND: u32 = 400;

/// Wraps the crate: fixed pieces, integer samples, exact length, alignment.
pub(super) struct Sinc {
    from_hz: u32,
    to_hz: u32,
    inner: Async<f32>,
    piece: usize,
    input: Vec<f32>,
    output: Vec<f32>,
    /// Output samples still to be left out at the head: the filter's own delay.
    skip: usize,
    taken: u64,
    given: u64,
}

impl Sinc {
    pub fn new(from_hz: u32, to_hz: u32) -> Result<Self, AudioError> {
        let piece = (from_hz / PIECES_PER_SECOND) as usize;
        let ratio = f64::from(to_hz) / f64::from(from_hz);
        // The crate counts taps in input samples, but the steepness of the filter follows from
        // their number at the lower rate.
        let length = (SINC_LENGTH as f64 / ratio.min(1.0)).ceil() as usize;
        let window = WindowFunction::Blackman2;
        let parameters = SincInterpolationParameters::new(length, window)
            .f_cutoff(calculate_cutoff(SINC_LENGTH, window))
            .oversampling_factor(256)
            .interpolation(SincInterpolationType::Linear);
        let inner = Async::new_sinc(ratio, 1.0, &parameters, piece, 1, FixedAsync::Input)
            .map_err(|error| AudioError::Unsupported(error.to_string()))?;
        let output = vec![0.0; inner.output_frames_max()];
        let skip = inner.output_delay();
        Ok(Self {
            from_hz,
            to_hz,
            inner,
            piece,
            input: Vec::with_capacity(piece),
            output,
            skip,
            taken: 0,
            given: 0,
        })
    }

    pub fn process(&mut self, input: &[i16], output: &mut Vec<i16>) {
        self.taken += input.len() as u64;
        let mut rest = input;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(self.piece - self.input.len()));
            self.input.extend(head.iter().map(|&sample| to_f32(sample)));
            if self.input.len() == self.piece {
                self.piece_done(usize::MAX, output);
            }
            rest = tail;
        }
    }

    pub fn flush(&mut self, output: &mut Vec<i16>) {
        let total = output_samples(self.taken, self.from_hz, self.to_hz);
        while self.given < total {
            self.input.resize(self.piece, 0.0);
            self.piece_done((total - self.given) as usize, output);
        }
        self.reset();
    }

    pub fn reset(&mut self) {
        self.inner.reset();
        self.input.clear();
        self.skip = self.inner.output_delay();
        (self.taken, self.given) = (0, 0);
    }

    pub fn delay_samples(&self) -> usize {
        let piece = output_samples(self.piece as u64, self.from_hz, self.to_hz) as usize;
        self.inner.output_delay() + piece
    }

    /// Runs a full piece through the filter and gives at most `limit` samples.
    fn piece_done(&mut self, limit: usize, output: &mut Vec<i16>) {
        let made = run(&mut self.inner, &self.input, &mut self.output);
        self.input.clear();
        let skipped = self.skip.min(made);
        self.skip -= skipped;
        let samples = &self.output[skipped..made];
        let samples = &samples[..samples.len().min(limit)];
        output.extend(samples.iter().map(|&sample| from_f32(sample)));
        self.given += samples.len() as u64;
    }
}

impl fmt::Debug for Sinc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sinc")
            .field("from_hz", &self.from_hz)
            .field("to_hz", &self.to_hz)
            .finish_non_exhaustive()
    }
}

/// Samples made from one piece.
fn run(inner: &mut Async<f32>, input: &[f32], output: &mut [f32]) -> usize {
    let frames = output.len();
    let made = SequentialSlice::new(input, 1, input.len()).ok().and_then(|input| {
        let mut output = SequentialSlice::new_mut(output, 1, frames).ok()?;
        inner.process_into_buffer(&input, &mut output, None).ok()
    });
    // Both buffers have the sizes that the resampler asked for, so it cannot refuse them.
    debug_assert!(made.is_some());
    made.map_or(0, |(_, made)| made)
}
