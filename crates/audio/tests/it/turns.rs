//! Turns, by scores from a script and by the real detectors.

use std::time::Duration;

use antiphon_audio::{
    EarshotDetector, EnergyDetector, Sensitivity, SpeechDetector, TurnConfig, TurnDetector,
    TurnEvent,
};
use proptest::prelude::*;

const RATE: usize = 16_000;

/// The samples themselves are the scores, in percent.
struct Script;

impl SpeechDetector for Script {
    fn sample_rate_hz(&self) -> u32 {
        RATE as u32
    }

    fn frame_samples(&self) -> usize {
        160
    }

    fn score(&mut self, frame: &[i16]) -> f32 {
        f32::from(frame[0]) / 100.0
    }

    fn reset(&mut self) {}
}

fn config(change: impl FnOnce(&mut TurnConfig)) -> TurnConfig {
    let mut config = TurnConfig::default();
    config.min_speech = Duration::from_millis(100);
    change(&mut config);
    config
}

/// Milliseconds of a score.
fn scored(parts: &[(usize, i16)]) -> Vec<i16> {
    parts.iter().flat_map(|&(ms, score)| vec![score; ms * RATE / 1_000]).collect()
}

fn events(mut detector: TurnDetector, samples: &[i16], chunk: usize) -> Vec<TurnEvent> {
    let mut events = Vec::new();
    samples.chunks(chunk).for_each(|chunk| detector.push(chunk, &mut events));
    events.extend(detector.finish());
    assert_eq!(detector.position(), samples.len() as u64);
    events
}

fn scripted(config: TurnConfig, parts: &[(usize, i16)]) -> Vec<(char, u64)> {
    let detector = TurnDetector::new(Box::new(Script), config);
    in_ms(events(detector, &scored(parts), 160))
}

fn in_ms(events: Vec<TurnEvent>) -> Vec<(char, u64)> {
    let ms = |samples| samples * 1_000 / RATE as u64;
    events
        .into_iter()
        .map(|event| match event {
            TurnEvent::Started { at_sample } => ('+', ms(at_sample)),
            TurnEvent::Stopped { at_sample } => ('-', ms(at_sample)),
        })
        .collect()
}

#[test]
fn a_turn_has_its_padding_and_ends_with_the_speech() {
    let parts = [(1_000, 0), (500, 90), (2_000, 0)];
    assert_eq!(scripted(config(|_| ()), &parts), [('+', 700), ('-', 1_500)]);
}

#[test]
fn a_short_pause_does_not_end_a_turn_and_a_long_one_does() {
    let parts = [(500, 90), (500, 0), (500, 90), (700, 0), (500, 90)];
    let expected = [('+', 0), ('-', 1_500), ('+', 1_900), ('-', 2_700)];
    assert_eq!(scripted(config(|_| ()), &parts), expected);
}

#[test]
fn padding_does_not_reach_into_the_turn_before() {
    let parts = [(500, 90), (250, 0), (500, 90)];
    let config = config(|config| config.silence = Duration::from_millis(200));
    assert_eq!(scripted(config, &parts), [('+', 0), ('-', 500), ('+', 500), ('-', 1_250)]);
}

#[test]
fn a_turn_that_has_begun_goes_on_with_lower_scores() {
    let parts = [(200, 60), (1_000, 45), (1_000, 20)];
    assert_eq!(scripted(config(|_| ()), &parts), [('+', 0), ('-', 1_200)]);
    // They do not begin one.
    assert_eq!(scripted(config(|_| ()), &[(5_000, 45)]), []);
}

#[test]
fn bursts_that_are_too_short_do_not_begin_a_turn() {
    let click = [(90, 100), (60, 0)];
    assert_eq!(scripted(config(|_| ()), &click.repeat(50)), []);
    // A gap of a few frames within a word is none.
    assert_eq!(scripted(config(|_| ()), &[(60, 90), (40, 0), (60, 90)]), [('+', 0), ('-', 160)]);
}

#[test]
fn nothing_is_asked_for_and_nothing_hangs() {
    let config = config(|config| {
        config.min_speech = Duration::ZERO;
        config.silence = Duration::ZERO;
        config.prefix_padding = Duration::ZERO;
    });
    let parts = [(10, 90), (10, 0), (10, 90), (10, 0)];
    assert_eq!(scripted(config, &parts), [('+', 0), ('-', 10), ('+', 20), ('-', 30)]);
}

#[test]
fn a_reset_begins_a_new_stream() {
    let mut detector = TurnDetector::new(Box::new(Script), TurnConfig::default());
    let mut events = Vec::new();
    detector.push(&scored(&[(500, 90)]), &mut events);
    assert!(detector.is_speaking());
    detector.reset();
    assert!(!detector.is_speaking());
    assert_eq!((detector.position(), detector.finish()), (0, None));
}

proptest! {
    #[test]
    fn turns_alternate_and_chunks_make_no_difference(
        parts in prop::collection::vec((1_usize..900, 0_i16..=100), 0..40),
        chunk in 1_usize..5_000,
        silence_ms in 0_u64..800,
        padding_ms in 0_u64..500,
        start in sensitivity(),
        end in sensitivity(),
    ) {
        let mut config = TurnConfig::new(start, end);
        config.silence = Duration::from_millis(silence_ms);
        config.prefix_padding = Duration::from_millis(padding_ms);
        let samples = scored(&parts);
        let found = events(TurnDetector::new(Box::new(Script), config), &samples, chunk);
        let whole = samples.len().max(1);
        prop_assert_eq!(&found, &events(TurnDetector::new(Box::new(Script), config), &samples, whole));
        let mut last = 0;
        for (i, event) in found.iter().enumerate() {
            let at = match (i % 2, event) {
                (0, TurnEvent::Started { at_sample }) | (1, TurnEvent::Stopped { at_sample }) => *at_sample,
                _ => panic!("{found:?}"),
            };
            prop_assert!(at >= last && at <= samples.len() as u64, "{:?}", found);
            last = at;
        }
        prop_assert_eq!(found.len() % 2, 0, "the end of the stream ends the last turn");
    }
}

fn sensitivity() -> impl Strategy<Value = Sensitivity> {
    prop::sample::select(vec![Sensitivity::Low, Sensitivity::Medium, Sensitivity::High])
}

/// Something like a sentence: syllables of a buzzing voice whose formants and pitch move.
fn voice(ms: usize) -> Vec<f32> {
    let mut resonators = [[0.0_f32; 2]; 3];
    let mut phase = 0.0_f32;
    (0..ms * RATE / 1_000)
        .map(|i| {
            let t = i as f32 / RATE as f32;
            phase += (120.0 + 25.0 * (t * 5.0).sin()) / RATE as f32;
            let pulse = if phase >= 1.0 { 1.0 } else { 0.0 };
            phase %= 1.0;
            let vowel = (t * 9.0).sin();
            let formants = [500.0 + 200.0 * vowel, 1_500.0 + 500.0 * vowel, 2_500.0];
            let voiced: f32 = formants
                .iter()
                .zip(&mut resonators)
                .map(|(&hz, state)| {
                    let radius = 0.97_f32;
                    let turn = 2.0 * (hz * std::f32::consts::TAU / RATE as f32).cos() * radius;
                    let out = pulse + turn * state[0] - radius * radius * state[1];
                    *state = [out, state[0]];
                    out
                })
                .sum();
            let syllable = (t * std::f32::consts::TAU * 2.0).sin().abs().sqrt();
            voiced * syllable * 1_500.0
        })
        .collect()
}

fn noise(ms: usize, level: f32) -> Vec<f32> {
    let mut state = 7_u32;
    (0..ms * RATE / 1_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * level
        })
        .collect()
}

fn over_noise(parts: Vec<Vec<f32>>, level: f32) -> Vec<i16> {
    let mut samples: Vec<f32> = parts.concat();
    let noise = noise(samples.len() * 1_000 / RATE + 1, level);
    samples.iter_mut().zip(noise).for_each(|(sample, noise)| *sample += noise);
    samples.into_iter().map(|sample| sample as i16).collect()
}

fn silence(ms: usize) -> Vec<f32> {
    vec![0.0; ms * RATE / 1_000]
}

fn detectors() -> [Box<dyn SpeechDetector>; 2] {
    [Box::new(EarshotDetector::new()), Box::new(EnergyDetector::new(RATE as u32))]
}

#[test]
fn two_sentences_in_a_noisy_room_are_two_turns() {
    let parts = vec![silence(1_000), voice(1_500), silence(2_000), voice(1_500), silence(1_000)];
    let samples = over_noise(parts, 60.0);
    for detector in detectors() {
        let found =
            in_ms(events(TurnDetector::new(detector, TurnConfig::default()), &samples, 320));
        let expected = [('+', 700), ('-', 2_500), ('+', 4_200), ('-', 6_000)];
        assert_eq!(found.len(), 4, "{found:?}");
        for ((kind, at), (expected_kind, expected_at)) in found.into_iter().zip(expected) {
            assert_eq!(kind, expected_kind);
            assert!(at.abs_diff(expected_at) < 220, "{kind}{at} where {expected_at} is expected");
        }
    }
}

#[test]
fn noise_and_clicks_are_no_turn() {
    let tone: Vec<f32> = (0..RATE / 20).map(|i| (i as f32 * 0.17).sin() * 8_000.0).collect();
    let mut parts = vec![silence(500)];
    for _ in 0..5 {
        parts.extend([tone.clone(), silence(400), noise(40, 20_000.0), silence(400)]);
    }
    let samples = over_noise(parts, 60.0);
    for detector in detectors() {
        let found = events(TurnDetector::new(detector, TurnConfig::default()), &samples, 320);
        assert_eq!(found, []);
    }
    let steady = over_noise(vec![silence(10_000)], 1_500.0);
    let earshot = TurnDetector::new(Box::new(EarshotDetector::new()), TurnConfig::default());
    assert_eq!(events(earshot, &steady, 320), []);
}

#[test]
fn frames_of_another_length_are_not_speech() {
    for mut detector in detectors() {
        assert_eq!(detector.score(&[9_000; 100]), 0.0);
        assert_eq!(detector.score(&[]), 0.0);
        detector.reset();
        let frame = vec![0; detector.frame_samples()];
        assert!(detector.score(&frame) < 0.35);
    }
}
