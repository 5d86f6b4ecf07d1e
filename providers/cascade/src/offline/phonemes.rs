//! How English words sound: one pronunciation lexicon, shared by the synthesiser and the matcher.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
};

use misaki_rs::{G2P, Language, MToken};

/// The pronunciation lexicon of American English.
///
/// Loading it takes a noticeable moment and tens of megabytes, hence [`Phonemes::shared`].
pub(crate) struct Phonemes {
    g2p: G2P,
}

impl Phonemes {
    /// The process's one lexicon; the first caller loads it, on its own thread. Call it from the
    /// blocking pool.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Phonemes>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(Self { g2p: G2P::new(Language::EnglishUS) })))
    }

    /// The phonemes of a running text, word by word; a token without phonemes is a word that no
    /// lexicon has. `None` when the lexicon cannot cope with the text at all.
    pub(crate) fn tokens(&self, text: &str) -> Option<Vec<MToken>> {
        // The lexicon slices strings by bytes in places; a text that trips it must not take the
        // conversation down.
        catch_unwind(AssertUnwindSafe(|| self.g2p.g2p(text))).ok()?.ok().map(|(_, tokens)| tokens)
    }

    /// The phonemes of one word in lower case, without stress marks; `None` for words that the
    /// lexicon does not have.
    pub(crate) fn word(&self, word: &str) -> Option<String> {
        if word.is_empty() || !word.bytes().all(|b| b.is_ascii_lowercase() || b == b'\'') {
            return None;
        }
        let lexicon = &self.g2p.lexicon;
        let stem = |word: &str| {
            lexicon
                .stem_s(word, "NN", None, None)
                .or_else(|| lexicon.stem_ed(word, "VBD", None, None))
                .or_else(|| lexicon.stem_ing(word, "VBG", None, None))
        };
        let look_up = || match lexicon.is_known(word, "NN") {
            true => lexicon.get_word(word, "NN", None, None),
            false => stem(word),
        };
        let (phonemes, _) = catch_unwind(AssertUnwindSafe(look_up)).ok()??;
        Some(phonemes.chars().filter(|c| !matches!(c, 'ˈ' | 'ˌ' | 'ː')).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_sound_as_in_the_dictionary() {
        let phonemes = Phonemes::shared();
        assert_eq!(phonemes.word("timer").as_deref(), Some("tIməɹ"));
        assert_eq!(phonemes.word("timers").as_deref(), Some("tIməɹz"));
        assert_eq!(phonemes.word("xqzzt"), None);
        assert_eq!(phonemes.word(""), None);
        assert_eq!(phonemes.word("Größe"), None);
    }

    #[test]
    fn a_text_keeps_unknown_words_as_tokens() {
        let tokens = Phonemes::shared().tokens("Hello xqzzt.").unwrap();
        assert!(tokens.iter().any(|t| t.text == "xqzzt"));
    }
}
