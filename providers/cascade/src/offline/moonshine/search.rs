//! Which words were said: the likeliest, and others that may have been meant.
//!
//! Always taking the likeliest token gives one reading, and not always the likeliest: a first token
//! that is a little better may lead to words that fit much worse ("a time or fourth" for "a timer
//! for"). So the search goes back to the few places where another token was nearly as likely, and
//! follows that one to its end.

/// Spells words, token by token.
pub(super) trait Speller {
    /// What it knows of the tokens so far.
    type State: Clone;
    type Error;

    /// How likely each token is to follow `last`, as logarithms up to a constant; never empty.
    /// `state` is what the step before gave, `None` in the very first one.
    fn next(
        &mut self,
        last: i32,
        state: Option<Self::State>,
    ) -> Result<(Vec<f32>, Self::State), Self::Error>;
}

/// One reading of what was said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) tokens: Vec<i32>,
    /// The natural logarithm of its probability.
    pub(super) log_probability: f32,
}

/// Where readings begin, where they end, and how long they get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) start_token: i32,
    pub(super) end_token: i32,
    /// Tokens of a reading at most.
    pub(super) most_tokens: usize,
}

/// So many other readings are followed at most.
const MOST_FORKS: usize = 6;
/// Only tokens of this probability (1 in 25) are worth following.
const LEAST_LOG_PROBABILITY: f32 = -3.2;
/// A reading that is so much less likely than the best one (1 in 30) is given up.
const MOST_BEHIND: f32 = 3.4;
/// Steps that all other readings together may take: about as much again as a spoken command takes
/// three times. A long speech, where each of them is long, gets fewer.
const MOST_STEPS: usize = 48;

/// The reading that takes the likeliest token each time.
pub(super) fn likeliest<S: Speller>(speller: &mut S, bounds: Bounds) -> Result<Vec<i32>, S::Error> {
    let mut reading = Reading { tokens: Vec::new(), log_probability: 0.0 };
    follow(speller, bounds, &mut reading, None, |_, _, _| true)?;
    Ok(reading.tokens)
}

/// The readings that are worth a thought, the likeliest first; at least one.
pub(super) fn readings<S: Speller>(
    speller: &mut S,
    bounds: Bounds,
) -> Result<Vec<Reading>, S::Error> {
    let mut forks: Vec<Fork<S::State>> = Vec::new();
    let mut first = Reading { tokens: Vec::new(), log_probability: 0.0 };
    follow(speller, bounds, &mut first, None, |before, next, state| {
        let [best, others @ ..] = next;
        for other in others {
            // An earlier end says less of the same.
            if other.log_probability < LEAST_LOG_PROBABILITY || other.token == bounds.end_token {
                continue;
            }
            let behind = best.log_probability - other.log_probability;
            let at = forks.partition_point(|fork| fork.behind <= behind);
            if at < MOST_FORKS {
                let mut reading = before.clone();
                reading.tokens.push(other.token);
                reading.log_probability += other.log_probability;
                forks.truncate(MOST_FORKS - 1);
                forks.insert(at, Fork { reading, state: state.clone(), behind });
            }
        }
        true
    })?;

    let mut best = first.log_probability;
    let mut readings = vec![first];
    let mut steps = 0;
    for Fork { mut reading, state, .. } in forks {
        let ended = follow(speller, bounds, &mut reading, Some(state), |so_far, _, _| {
            steps += 1;
            so_far.log_probability > best - MOST_BEHIND && steps <= MOST_STEPS
        })?;
        if ended {
            best = best.max(reading.log_probability);
            readings.push(reading);
        }
        if steps >= MOST_STEPS {
            break;
        }
    }
    readings.retain(|reading| reading.log_probability > best - MOST_BEHIND);
    readings.sort_by(|a, b| b.log_probability.total_cmp(&a.log_probability));
    Ok(readings)
}

/// A place where another token was nearly as likely, with that token taken.
struct Fork<S> {
    reading: Reading,
    /// Before that token.
    state: S,
    /// How much less likely it was than the likeliest there.
    behind: f32,
}

/// Goes on with `reading` by the likeliest tokens until it ends. Before each token, `goes_on` is
/// given the reading so far, the likeliest tokens and what the speller knows; where it says no, the
/// reading stays unfinished and this is false.
fn follow<S: Speller>(
    speller: &mut S,
    bounds: Bounds,
    reading: &mut Reading,
    mut state: Option<S::State>,
    mut goes_on: impl FnMut(&Reading, &[Next; RANKS], &S::State) -> bool,
) -> Result<bool, S::Error> {
    let mut last = reading.tokens.last().copied().unwrap_or(bounds.start_token);
    while reading.tokens.len() < bounds.most_tokens {
        let (scores, known) = speller.next(last, state.take())?;
        let next = ranked(&scores);
        if !goes_on(reading, &next, &known) {
            return Ok(false);
        }
        let best = next[0];
        reading.log_probability += best.log_probability;
        if best.token == bounds.end_token {
            break;
        }
        reading.tokens.push(best.token);
        (last, state) = (best.token, Some(known));
    }
    Ok(true)
}

/// A token that may come next.
#[derive(Clone, Copy, Debug)]
struct Next {
    token: i32,
    log_probability: f32,
}

/// How many tokens are looked at in each place.
const RANKS: usize = 4;

/// The likeliest tokens, likeliest first.
fn ranked(scores: &[f32]) -> [Next; RANKS] {
    let mut ranked = [Next { token: -1, log_probability: f32::NEG_INFINITY }; RANKS];
    for (token, &score) in (0..).zip(scores) {
        if score > ranked[RANKS - 1].log_probability {
            let at = ranked.partition_point(|better| better.log_probability >= score);
            ranked[at..].rotate_right(1);
            ranked[at] = Next { token, log_probability: score };
        }
    }
    let best = ranked[0].log_probability;
    let all: f32 = scores.iter().map(|score| (score - best).exp()).sum();
    let total = best + all.ln();
    ranked.iter_mut().for_each(|next| next.log_probability -= total);
    ranked
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, convert::Infallible};

    use proptest::prelude::*;

    use super::*;

    const END: i32 = 0;
    const START: i32 = 1;

    type Odds = &'static [(i32, f32)];

    /// Knows, for each beginning, how likely each token is.
    struct Table {
        odds: HashMap<Vec<i32>, Vec<(i32, f32)>>,
        steps: usize,
    }

    impl Table {
        fn new<const N: usize>(odds: [(&[i32], Odds); N]) -> Self {
            let odds = odds.map(|(so_far, odds)| (so_far.to_vec(), odds.to_vec()));
            Self { odds: odds.into(), steps: 0 }
        }
    }

    impl Speller for Table {
        type State = Vec<i32>;
        type Error = Infallible;

        fn next(
            &mut self,
            last: i32,
            state: Option<Vec<i32>>,
        ) -> Result<(Vec<f32>, Vec<i32>), Infallible> {
            self.steps += 1;
            let mut so_far = state.unwrap_or_default();
            if last != START {
                so_far.push(last);
            }
            let mut scores = vec![f32::NEG_INFINITY; 10];
            match self.odds.get(&so_far) {
                Some(odds) => {
                    odds.iter().for_each(|(token, p)| scores[*token as usize] = p.ln());
                }
                None => scores[END as usize] = 0.0,
            }
            Ok((scores, so_far))
        }
    }

    fn bounds() -> Bounds {
        Bounds { start_token: START, end_token: END, most_tokens: 20 }
    }

    #[test]
    fn a_reading_that_begins_worse_and_goes_on_better_is_the_best() {
        let mut table = Table::new([
            (&[], &[(2, 1.0)]),
            (&[2], &[(3, 0.55), (4, 0.45)]),
            (&[2, 3], &[(5, 0.4), (6, 0.3), (7, 0.3)]),
            (&[2, 4], &[(8, 0.95), (9, 0.05)]),
        ]);
        let found = readings(&mut table, bounds()).unwrap();
        let tokens: Vec<&[i32]> = found.iter().map(|reading| &reading.tokens[..]).collect();
        assert_eq!(tokens, [&[2, 4, 8], &[2, 3, 5], &[2, 3, 6], &[2, 3, 7]]);
        assert!((found[0].log_probability - (0.45_f32 * 0.95).ln()).abs() < 1e-4);
        assert_eq!(likeliest(&mut table, bounds()).unwrap(), [2, 3, 5]);
    }

    #[test]
    fn what_was_clear_costs_nothing_more() {
        let mut table = Table::new([
            (&[], &[(2, 0.97), (3, 0.03)]),
            (&[2], &[(4, 0.98), (END, 0.02)]),
            (&[2, 4], &[(END, 0.6), (5, 0.01)]),
        ]);
        assert_eq!(readings(&mut table, bounds()).unwrap().len(), 1);
        assert_eq!(table.steps, 3);
    }

    #[test]
    fn a_hopeless_reading_is_given_up() {
        let mut table = Table::new([
            (&[], &[(2, 0.9), (3, 0.1)]),
            (&[3], &[(4, 0.2), (5, 0.2), (6, 0.2), (7, 0.2), (8, 0.2)]),
            (&[3, 4], &[(4, 0.2), (5, 0.2), (6, 0.2), (7, 0.2), (8, 0.2)]),
            (&[3, 4, 4], &[(9, 1.0)]),
        ]);
        let found = readings(&mut table, bounds()).unwrap();
        assert_eq!(found.len(), 1);
        assert!(table.steps < 6, "{}", table.steps);
    }

    /// Never ends, and is never sure.
    struct Babbler(usize);

    impl Speller for Babbler {
        type State = ();
        type Error = Infallible;

        fn next(&mut self, _: i32, _: Option<()>) -> Result<(Vec<f32>, ()), Infallible> {
            self.0 += 1;
            Ok((vec![f32::NEG_INFINITY, -9.0, 0.0, -0.01], ()))
        }
    }

    #[test]
    fn a_speller_that_never_ends_is_stopped() {
        let mut babbler = Babbler(0);
        readings(&mut babbler, bounds()).unwrap();
        assert!(babbler.0 <= bounds().most_tokens + MOST_STEPS + MOST_FORKS, "{}", babbler.0);
    }

    proptest! {
        #[test]
        fn the_likeliest_come_first(scores in prop::collection::vec(-30.0_f32..30.0, 1..50)) {
            let found = ranked(&scores);
            let mut sorted = scores.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for (next, score) in found.iter().zip(&sorted) {
                prop_assert_eq!(scores[next.token as usize], *score);
                prop_assert!(next.log_probability <= 1e-3);
            }
        }

        #[test]
        fn odd_scores_are_survived(scores in prop::collection::vec(any::<f32>(), 0..10)) {
            ranked(&scores);
        }
    }
}
