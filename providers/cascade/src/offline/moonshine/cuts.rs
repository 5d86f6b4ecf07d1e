//! Cutting long audio where nobody speaks.

use std::ops::Range;

use super::SAMPLE_RATE_HZ;

const SECOND: usize = SAMPLE_RATE_HZ as usize;
/// The longest piece the model is given: it was trained on clips of up to 30 seconds.
const LONGEST: usize = 30 * SECOND;
/// A cut is looked for between here and `LONGEST`.
const EARLIEST: usize = 18 * SECOND;
/// The quiet that is looked for, and the step of the search.
const QUIET: usize = SECOND / 4;
const STEP: usize = SECOND / 50;

/// The pieces to transcribe one after the other: all samples, none twice, each piece at most 30
/// seconds, cut in the middle of the quietest quarter of a second of its last 12 seconds.
pub(super) fn pieces(samples: &[f32]) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while samples.len() - start > LONGEST {
        let cut = start + EARLIEST + quietest(&samples[start + EARLIEST..start + LONGEST]);
        pieces.push(start..cut);
        start = cut;
    }
    pieces.push(start..samples.len());
    pieces
}

/// The middle of the window with the least energy.
fn quietest(samples: &[f32]) -> usize {
    let energies: Vec<f32> =
        samples.chunks(STEP).map(|step| step.iter().map(|s| s * s).sum()).collect();
    let steps = QUIET / STEP;
    energies
        .windows(steps)
        .map(|window| window.iter().sum::<f32>())
        .enumerate()
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map_or(samples.len(), |(step, _)| step * STEP + QUIET / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_audio_stays_whole() {
        assert_eq!(pieces(&[0.1; SECOND]), vec![0..SECOND; 1]);
        assert_eq!(pieces(&[]), vec![0..0; 1]);
    }

    #[test]
    fn a_long_speech_is_cut_in_its_pause() {
        let mut speech = vec![0.3; 40 * SECOND];
        speech[25 * SECOND..25 * SECOND + SECOND / 2].fill(0.001);
        let pieces = pieces(&speech);
        assert_eq!(pieces.len(), 2);
        assert!((25 * SECOND..=25 * SECOND + SECOND / 2).contains(&pieces[0].end), "{pieces:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn pieces_cover_everything_once(length in 0_usize..100 * SECOND, loud in 0.0_f32..1.0) {
            let pieces = pieces(&vec![loud; length]);
            prop_assert_eq!(pieces[0].start, 0);
            prop_assert_eq!(pieces[pieces.len() - 1].end, length);
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
            prop_assert!(pieces.iter().all(|piece| piece.len() <= LONGEST));
        }
    }
}
