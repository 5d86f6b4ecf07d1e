//! Words that are not to be said.

use crate::session::{Guard, GuardDenial, GuardVerdict, Words};

use super::letters::Letters;

/// Denies words that contain one of these phrases. Case, punctuation and spaces make no difference:
/// "Sword-fish" and "swordfish" are the same; parts of longer words do not count. Words by which a
/// phrase begins are held until it is clear how they go on.
///
/// ```
/// use antiphon::{policy::guards::Phrases, session::{Guard, GuardVerdict, Words}};
///
/// let guard = Phrases::new(["the launch code"]);
/// let judged = |text| guard.judge(&Words::so_far(text));
/// assert_eq!(judged("Lunch is at one"), GuardVerdict::Pass);
/// assert_eq!(judged("I know the launch"), GuardVerdict::Hold { from: 7 });
/// assert!(matches!(judged("I know the launch code. "), GuardVerdict::Deny(_)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Phrases {
    phrases: Vec<Vec<char>>,
    instead: Option<String>,
}

impl Phrases {
    /// These phrases; such without a letter or digit are left out.
    pub fn new(phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let letters = |phrase: &str| Letters::of(phrase).plain().collect::<Vec<_>>();
        let phrases = phrases.into_iter().map(|phrase| letters(phrase.as_ref()));
        Self { phrases: phrases.filter(|phrase| !phrase.is_empty()).collect(), instead: None }
    }

    /// Sets what is said instead.
    pub fn instead(mut self, text: impl Into<String>) -> Self {
        self.instead = Some(text.into());
        self
    }
}

impl Guard for Phrases {
    fn judge(&self, words: &Words<'_>) -> GuardVerdict {
        let letters = Letters::of(words.text);
        let mut hold: Option<usize> = None;
        for at in letters.beginnings() {
            let rest = &letters.chars[at..];
            for (number, phrase) in self.phrases.iter().enumerate() {
                let same =
                    rest.iter().zip(phrase).take_while(|(letter, want)| letter.char == **want);
                let same = same.count();
                let whole = same == phrase.len();
                // The last word may still grow into another one.
                let grows = !words.complete && same == rest.len() && ends_in_a_word(words.text);
                if whole && rest[same - 1].ends && !grows {
                    let denial = GuardDenial::new(format!("the denied phrase {}", number + 1));
                    return GuardVerdict::Deny(GuardDenial {
                        instead: self.instead.clone(),
                        ..denial
                    });
                }
                if same == rest.len() && !words.complete {
                    hold = hold.or(Some(rest[0].at));
                }
            }
        }
        hold.map_or(GuardVerdict::Pass, |from| GuardVerdict::Hold { from })
    }
}

fn ends_in_a_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guard() -> Phrases {
        Phrases::new(["the launch code", "swordfish", "Straße 7"])
    }

    fn denies(text: &str) -> bool {
        matches!(guard().judge(&Words::whole(text)), GuardVerdict::Deny(_))
    }

    #[test]
    fn a_phrase_is_found_however_it_is_written_and_within_no_other_word() {
        for text in [
            "The Launch CODE.",
            "It is: the, launch; code!",
            "sword fish",
            "a sword-fish",
            "s w o r d f i s h",
            "sword\u{200b}fish",
            "strasse? no: STRAßE 7",
        ] {
            assert!(denies(text), "{text}");
        }
        for text in ["swordfishes", "the launch codes", "bathe launch code", "Straße 70", ""] {
            assert!(!denies(text), "{text}");
        }
    }

    #[test]
    fn a_word_that_may_still_grow_is_held_and_not_denied() {
        let judge = |text| guard().judge(&Words::so_far(text));
        assert_eq!(judge("a swordfish"), GuardVerdict::Hold { from: 2 });
        assert!(matches!(judge("a swordfish "), GuardVerdict::Deny(_)));
        assert_eq!(judge("a swordfishes "), GuardVerdict::Pass);
        assert_eq!(judge("Well, the la"), GuardVerdict::Hold { from: 6 });
        assert_eq!(guard().judge(&Words::whole("Well, the la")), GuardVerdict::Pass);
    }

    proptest! {
        /// Whatever comes before and after it and however it is cut into pieces: no prefix that passes
        /// has more of a denied phrase than was held.
        #[test]
        fn no_word_of_a_phrase_passes_before_the_phrase_is_decided(
            before in "[a-z ]{0,12}",
            after in "[a-z .]{0,6}",
            at in 0usize..40,
        ) {
            let text = format!("{before} the launch code {after}");
            prop_assert!(denies(&text));
            let start = before.len() + 1;
            let end = start + "the launch code".len();
            let at = at.min(text.len());
            match guard().judge(&Words::so_far(&text[..at])) {
                GuardVerdict::Pass => prop_assert!(at <= start, "{:?}", &text[..at]),
                GuardVerdict::Hold { from } => prop_assert!(from <= start, "{from} {:?}", &text[..at]),
                GuardVerdict::Deny(_) => prop_assert!(at > end),
            }
        }
    }
}
