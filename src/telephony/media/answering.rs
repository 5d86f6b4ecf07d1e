//! Who answers a call: by ear, where the carrier does not tell.
//!
//! A person says "hello" and waits; a machine speaks on, and then it beeps or is silent. Both are told from
//! the length of the first utterance: no words are recognised.

use std::time::Duration;

use antiphon_audio::{AudioFormat, AudioFrame, g711::Law};

/// Audio is looked at in pieces of this length.
const PIECE: Duration = Duration::from_millis(20);
/// Below this level (root mean square, of 32,768) nobody speaks.
const VOICE: f32 = 350.0;
/// Pieces of voice in a row that are no click.
const ONSET: u32 = 3;
/// A person has greeted when nothing follows for so long.
const WAITS: Duration = Duration::from_millis(800);
/// Whoever has not waited by then is a machine.
const LONG: Duration = Duration::from_millis(2_400);
/// A machine's greeting is over when nothing follows for so long.
const OVER: Duration = Duration::from_millis(1_600);
/// A tone of this length is a beep.
const BEEP: Duration = Duration::from_millis(240);
/// Frequencies of beeps, in Hz.
const BEEPS_HZ: std::ops::RangeInclusive<f32> = 350.0..=2_600.0;
/// The period of a tone does not change by more than this part of it.
const STEADY: f32 = 0.06;

/// What an [`AnsweringEar`] has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Greeted {
    /// A short greeting, and somebody who waits.
    Person,
    /// A greeting that goes on.
    Machine,
    /// The machine's greeting is over: by a beep, or by silence.
    MachineWaits,
}

/// Listens to how a call is answered. Audio goes in by pieces of any size; each thing is told once.
#[derive(Debug)]
pub struct AnsweringEar {
    format: AudioFormat,
    pending: Vec<i16>,
    /// Since the first voice, without the silence behind it.
    spoken: Duration,
    silent: Duration,
    onset: u32,
    began: bool,
    machine: bool,
    over: bool,
    tone: Duration,
    period: Option<f32>,
}

impl AnsweringEar {
    /// For audio in `format`.
    pub fn new(format: AudioFormat) -> Self {
        Self {
            format,
            pending: Vec::new(),
            spoken: Duration::ZERO,
            silent: Duration::ZERO,
            onset: 0,
            began: false,
            machine: false,
            over: false,
            tone: Duration::ZERO,
            period: None,
        }
    }

    /// More audio; audio in another format is left out. What it tells that was not told before.
    pub fn hear(&mut self, audio: &AudioFrame) -> Option<Greeted> {
        if audio.format != self.format || self.over {
            return None;
        }
        match self.format {
            AudioFormat::Mulaw8k => Law::Mu.decode_into(&audio.data, &mut self.pending),
            AudioFormat::Alaw8k => Law::A.decode_into(&audio.data, &mut self.pending),
            AudioFormat::Pcm16 { .. } => {
                let (samples, _) = audio.data.as_chunks::<2>();
                self.pending.extend(samples.iter().map(|bytes| i16::from_le_bytes(*bytes)));
            }
            // None that telephones have.
            _ => return None,
        }
        let piece = (self.format.samples_in(PIECE) as usize).max(1);
        let pending = std::mem::take(&mut self.pending);
        let mut pieces = pending.chunks_exact(piece);
        let mut told = None;
        for samples in pieces.by_ref() {
            told = self.piece(samples).or(told);
        }
        self.pending = pieces.remainder().to_vec();
        told
    }

    fn piece(&mut self, samples: &[i16]) -> Option<Greeted> {
        let power: f32 = samples.iter().map(|&sample| f32::from(sample).powi(2)).sum();
        let loud = (power / samples.len() as f32).sqrt() >= VOICE;
        self.watch_tone(samples, loud);
        if !loud {
            self.onset = 0;
            self.silent += PIECE;
            return self.pause();
        }
        self.onset += 1;
        if !self.began && self.onset < ONSET {
            return None;
        }
        self.began = true;
        // A pause within a greeting is a part of it.
        self.spoken += self.silent + PIECE;
        self.silent = Duration::ZERO;
        if self.machine && self.tone >= BEEP {
            self.over = true;
            return Some(Greeted::MachineWaits);
        }
        if !self.machine && self.spoken >= LONG {
            self.machine = true;
            return Some(Greeted::Machine);
        }
        None
    }

    fn pause(&mut self) -> Option<Greeted> {
        if !self.began {
            self.silent = Duration::ZERO;
            return None;
        }
        if self.machine {
            self.over = self.silent >= OVER;
            return self.over.then_some(Greeted::MachineWaits);
        }
        if self.silent < WAITS {
            return None;
        }
        self.over = true;
        Some(Greeted::Person)
    }

    /// A beep is one frequency for a while: its zero crossings come evenly.
    fn watch_tone(&mut self, samples: &[i16], loud: bool) {
        let period = if loud { period_of(samples) } else { None };
        let rate = self.format.sample_rate_hz() as f32;
        let steady = match (period, self.period) {
            (Some(period), before) => {
                BEEPS_HZ.contains(&(rate / period))
                    && before.is_none_or(|before| (period - before).abs() <= before * STEADY)
            }
            (None, _) => false,
        };
        self.tone = if steady { self.tone + PIECE } else { Duration::ZERO };
        self.period = period;
    }
}

/// The period of a piece that is one tone, in samples; `None` where its crossings come unevenly.
fn period_of(samples: &[i16]) -> Option<f32> {
    let mut crossings = samples.windows(2).enumerate().filter_map(|(index, pair)| {
        let (before, after) = (f32::from(pair[0]), f32::from(pair[1]));
        // Where between two samples the signal rises through zero.
        (before < 0.0 && after >= 0.0).then(|| index as f32 + before / (before - after))
    });
    let first = crossings.next()?;
    let (mut last, mut shortest, mut longest, mut count) = (first, f32::MAX, 0.0_f32, 0);
    for crossing in crossings {
        let period = crossing - last;
        (shortest, longest) = (shortest.min(period), longest.max(period));
        last = crossing;
        count += 1;
    }
    let mean = (last - first) / count as f32;
    (count >= 4 && longest - shortest <= mean * 0.25).then_some(mean)
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use super::*;

    /// Something like speech: a buzz whose pitch moves, in syllables.
    fn speech(ms: usize) -> Vec<i16> {
        let mut phase = 0.0_f32;
        (0..ms * 8)
            .map(|n| {
                let t = n as f32 / 8_000.0;
                phase += (120.0 + 40.0 * (t * 9.0).sin()) / 8_000.0;
                let syllable = 0.55 + 0.45 * (t * 25.0).sin();
                let buzz: f32 = (1..12).map(|k| (phase * k as f32 * TAU).sin() / k as f32).sum();
                (buzz * syllable * 4_000.0) as i16
            })
            .collect()
    }

    fn tone(hz: f32, ms: usize) -> Vec<i16> {
        (0..ms * 8).map(|n| ((n as f32 * hz / 8_000.0 * TAU).sin() * 9_000.0) as i16).collect()
    }

    fn silence(ms: usize) -> Vec<i16> {
        vec![3; ms * 8]
    }

    /// What is told, and after how many milliseconds.
    fn heard(parts: &[Vec<i16>]) -> Vec<(Greeted, usize)> {
        let mut ear = AnsweringEar::new(AudioFormat::Mulaw8k);
        let mut told = Vec::new();
        // Ragged pieces, as lines have them.
        for (index, samples) in parts.concat().chunks(171).enumerate() {
            let mut codes = Vec::new();
            Law::Mu.encode_into(samples, &mut codes);
            let frame = AudioFrame::new(AudioFormat::Mulaw8k, codes);
            told.extend(ear.hear(&frame).map(|what| (what, (index + 1) * 171 / 8)));
        }
        told
    }

    #[test]
    fn a_person_greets_and_waits() {
        let told = heard(&[silence(900), speech(600), silence(1_500)]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].0, Greeted::Person);
        assert!((2_200..2_500).contains(&told[0].1), "{told:?}");
        // A breath in a greeting is no end of it.
        let told = heard(&[speech(400), silence(300), speech(500), silence(1_500)]);
        assert_eq!(told[0].0, Greeted::Person);
    }

    #[test]
    fn a_machine_speaks_on_and_is_over_with_its_beep() {
        let told = heard(&[
            silence(500),
            speech(2_000),
            silence(400),
            speech(4_000),
            silence(500),
            tone(1_000.0, 600),
            silence(3_000),
        ]);
        let what: Vec<_> = told.iter().map(|(what, _)| *what).collect();
        assert_eq!(what, [Greeted::Machine, Greeted::MachineWaits], "{told:?}");
        assert!((2_800..3_500).contains(&told[0].1), "{told:?}");
        assert!((7_400..8_000).contains(&told[1].1), "at the beep, not at the pause: {told:?}");
    }

    #[test]
    fn a_machine_without_a_beep_is_over_when_it_is_silent() {
        let told = heard(&[speech(5_000), silence(3_000)]);
        assert_eq!(told.last().map(|(what, _)| *what), Some(Greeted::MachineWaits));
        assert!((6_400..6_900).contains(&told[1].1), "{told:?}");
    }

    #[test]
    fn silence_and_clicks_tell_nothing() {
        let click = vec![20_000; 100];
        assert_eq!(heard(&[silence(1_000), click, silence(4_000)]), []);
    }
}
