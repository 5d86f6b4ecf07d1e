//! What the user said, in each reading that the recogniser gives of it.

use antiphon_agent::Message;

use super::words::{self, Word};
use crate::Alternative;

/// Readings that are looked at, at most.
const MOST_HEARINGS: usize = 8;

/// One reading of all that was said.
#[derive(Clone, Debug)]
pub(super) struct Hearing {
    pub(super) words: Vec<Word>,
    /// Something was written that is no word, such as a picture; marks alone are nothing.
    pub(super) wordless: bool,
    /// Words were left out because there were too many.
    pub(super) cut: bool,
    /// How likely it is beside the first: the natural logarithm of the ratio.
    pub(super) log_ratio: f32,
}

/// The readings of `messages`, taken as one; the first is what they say. At least one.
pub(super) fn hearings(messages: &[&Message]) -> Vec<Hearing> {
    let texts: Vec<String> = messages.iter().map(|message| message.joined_text()).collect();
    let mut hearings: Vec<Hearing> = Vec::new();
    let mut add = |text: &str, log_ratio: f32| {
        let (words, cut) = words::words(text);
        let same = |known: &Hearing| {
            let norms = |words: &[Word]| words.iter().map(|word| word.norm.clone()).collect();
            let (known, new): (Vec<String>, Vec<String>) = (norms(&known.words), norms(&words));
            known == new
        };
        // `15` and `fifteen` are two ways to write one thing.
        if let Some(at) = hearings.iter().position(same) {
            let known = &mut hearings[at].log_ratio;
            *known = add_probabilities(*known, log_ratio);
        } else if hearings.len() < MOST_HEARINGS {
            let mark = |c: char| c.is_whitespace() || c.is_control() || c.is_ascii_punctuation();
            let wordless = words.is_empty() && text.chars().any(|c| !mark(c) && c != '\u{2026}');
            hearings.push(Hearing { words, wordless, cut, log_ratio });
        }
    };
    add(&texts.join(". "), 0.0);
    for (at, message) in messages.iter().enumerate() {
        for other in alternatives(message) {
            let mut texts = texts.clone();
            texts[at] = other.text;
            add(&texts.join(". "), other.log_ratio.clamp(-50.0, 0.0));
        }
    }
    hearings
}

/// The logarithm of the sum of two probabilities.
pub(super) fn add_probabilities(a: f32, b: f32) -> f32 {
    let (more, less) = if a >= b { (a, b) } else { (b, a) };
    more + (less - more).exp().ln_1p()
}

fn alternatives(message: &Message) -> Vec<Alternative> {
    let listed = message.metadata.as_ref().and_then(|metadata| metadata.get(Alternative::METADATA));
    let Some(listed) = listed.and_then(|listed| listed.as_array()) else { return Vec::new() };
    let read = listed.iter().filter_map(|other| serde_json::from_value(other.clone()).ok());
    read.filter(|other: &Alternative| other.log_ratio.is_finite()).take(MOST_HEARINGS).collect()
}
