//! From written text to the numbers of phonemes that the voice takes.

use std::{collections::HashMap, sync::Arc};

use antiphon_types::Status;
use misaki_rs::MToken;
use rten::{NodeId, ThreadPool, ValueOrView};
use rten_tensor::NdTensor;
use serde::Deserialize;

use crate::{
    SpeechError,
    offline::{
        OfflineError,
        inference::{Network, unusable},
        models::{ModelDirectory, ModelFile},
        phonemes::Phonemes,
        spoken_text::{self, sentences},
    },
};

use super::NAME;

/// Phonemes after which the first clause is cut where it can be, so that speech begins early.
const FIRST_CLAUSE: usize = 110;
/// Phonemes after which later clauses are cut where they can be.
const LATER_CLAUSE: usize = 300;
/// Phonemes that a clause never exceeds; the network was trained on fewer.
const LONGEST_CLAUSE: usize = 400;
/// Put where the lexicon has no pronunciation.
const UNKNOWN: char = '❓';

/// Lexicon, unknown words, and the voice's alphabet.
pub(super) struct Pronunciation {
    lexicon: Arc<Phonemes>,
    unknown_words: UnknownWords,
    alphabet: HashMap<char, i32>,
}

impl Pronunciation {
    pub(super) fn load(models: &ModelDirectory) -> Result<Self, OfflineError> {
        let unknown_words = UnknownWords::load(models)?;
        let alphabet = models.read(ModelFile::HibariPhonemes)?;
        let alphabet = serde_json::from_slice(&alphabet)
            .map_err(|error| unusable(ModelFile::HibariPhonemes.name(), error))?;
        Ok(Self { lexicon: Phonemes::shared(), unknown_words, alphabet })
    }

    /// The clauses of a text, each as the voice takes it: phoneme numbers between two zeros.
    pub(super) fn clauses(
        &self,
        text: &str,
        threads: &Arc<ThreadPool>,
    ) -> Result<Vec<Vec<i32>>, SpeechError> {
        let mut clauses = Vec::new();
        for sentence in sentences(&spoken_text::written_out(text)) {
            let phonemes = self.phonemes(&sentence, threads)?;
            let bound = if clauses.is_empty() { FIRST_CLAUSE } else { LATER_CLAUSE };
            for clause in cut(&phonemes, bound) {
                let ids: Vec<i32> =
                    clause.chars().filter_map(|c| self.alphabet.get(&c).copied()).collect();
                // A clause of nothing but punctuation has no sound.
                if clause.chars().any(char::is_alphabetic) && !ids.is_empty() {
                    clauses.push([&[0], ids.as_slice(), &[0]].concat());
                }
            }
        }
        Ok(clauses)
    }

    fn phonemes(&self, sentence: &str, threads: &Arc<ThreadPool>) -> Result<String, SpeechError> {
        let Some(tokens) = self.lexicon.tokens(sentence) else {
            let message = "the pronunciation lexicon cannot read the text";
            return Err(SpeechError::new(NAME, Status::InvalidArgument, message));
        };
        let mut phonemes = String::new();
        for MToken { text, whitespace, phonemes: known, .. } in tokens {
            match known.filter(|known| !known.contains(UNKNOWN)) {
                Some(known) => phonemes.push_str(&known),
                None => phonemes.push_str(&self.unknown_words.read(&text, threads)?),
            }
            phonemes.push_str(&whitespace);
        }
        Ok(phonemes.trim().to_owned())
    }
}

/// Cuts a sentence where it takes a breath, once a piece has `bound` phonemes; at a space, if it
/// takes none for too long.
fn cut(phonemes: &str, bound: usize) -> Vec<String> {
    let mut clauses = Vec::new();
    let mut clause = String::new();
    let mut length = 0;
    let mut bound = bound;
    for word in phonemes.split_inclusive(' ') {
        let word_length = word.chars().count();
        if length > 0 && length + word_length > LONGEST_CLAUSE {
            clauses.push(std::mem::take(&mut clause));
            length = 0;
        }
        clause.push_str(word);
        length += word_length;
        if length >= bound.min(LATER_CLAUSE) / 3 && word.trim_end().ends_with([',', ';', ':', '—'])
        {
            let rest = phonemes.chars().count()
                - clauses.iter().map(|c: &String| c.chars().count()).sum::<usize>();
            if rest > bound {
                clauses.push(std::mem::take(&mut clause));
                length = 0;
                bound = LATER_CLAUSE;
            }
        }
    }
    if !clause.trim().is_empty() {
        clauses.push(clause);
    }
    clauses.iter().map(|clause| clause.trim().chars().take(LONGEST_CLAUSE).collect()).collect()
}

/// A network that reads words that no lexicon has, letter by letter.
struct UnknownWords {
    network: Network,
    letters: NodeId,
    phonemes: NodeId,
    numbers: HashMap<char, i32>,
    sounds: Vec<String>,
    longest: usize,
}

#[derive(Deserialize)]
struct UnknownWordsAlphabet {
    r#in: Vec<char>,
    out: Vec<String>,
    maxlen: usize,
}

impl UnknownWords {
    fn load(models: &ModelDirectory) -> Result<Self, OfflineError> {
        let file = ModelFile::HibariUnknownWordsAlphabet;
        let alphabet: UnknownWordsAlphabet = serde_json::from_slice(&models.read(file)?)
            .map_err(|error| unusable(file.name(), error))?;
        let file = ModelFile::HibariUnknownWords;
        let network = Network::load(file.name(), models.read(file)?)?;
        Ok(Self {
            letters: network.node("chars")?,
            phonemes: network.node("ids")?,
            network,
            numbers: alphabet.r#in.into_iter().zip(1..).collect(),
            sounds: alphabet.out,
            longest: alphabet.maxlen.max(1),
        })
    }

    fn read(&self, word: &str, threads: &Arc<ThreadPool>) -> Result<String, SpeechError> {
        let letters: Vec<i32> =
            word.chars().filter_map(|c| self.numbers.get(&c).copied()).collect();
        let mut phonemes = String::new();
        for letters in letters.chunks(self.longest) {
            let letters = NdTensor::from_data([1, letters.len()], letters.to_vec());
            let inputs: Vec<(NodeId, ValueOrView)> = vec![(self.letters, letters.into())];
            let sounds = self.network.run(inputs, &[self.phonemes], threads)?.pop();
            let Some(sounds) = sounds.and_then(|sounds| sounds.into_tensor::<i32>()) else {
                return Err(self.network.surprise("its output is not of whole numbers"));
            };
            // Zero is a blank; a sound that lasts is written several times.
            let mut before = 0;
            for sound in sounds.into_data() {
                if sound != before && sound > 0 {
                    let sound = self.sounds.get(sound as usize - 1).map_or("", String::as_str);
                    phonemes.push_str(sound);
                }
                before = sound;
            }
        }
        Ok(phonemes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_sentence_stays_whole() {
        assert_eq!(cut("həlˈO, wˈɜɹld.", FIRST_CLAUSE), ["həlˈO, wˈɜɹld."]);
        assert!(cut("", FIRST_CLAUSE).is_empty());
    }

    #[test]
    fn a_long_sentence_is_cut_where_it_takes_a_breath() {
        let sentence = format!("{}, {}.", "abcd ".repeat(10).trim(), "efgh ".repeat(30).trim());
        let clauses = cut(&sentence, FIRST_CLAUSE);
        assert_eq!(clauses.len(), 2);
        assert!(clauses[0].ends_with(','));
        assert_eq!(clauses.join(" "), sentence);
    }

    #[test]
    fn a_sentence_without_breath_is_cut_at_a_space() {
        let sentence = "abcd ".repeat(200);
        let clauses = cut(sentence.trim(), FIRST_CLAUSE);
        assert!(clauses.len() > 2);
        assert!(clauses.iter().all(|c| c.chars().count() <= LONGEST_CLAUSE && c.ends_with('d')));
        assert_eq!(clauses.join(" "), sentence.trim());
    }
}
