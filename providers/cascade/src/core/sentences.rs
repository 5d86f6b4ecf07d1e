//! Cuts a stream of text into sentences, each as soon as it is complete.

use std::collections::VecDeque;

/// Longer sentences are cut at a pause, so that the voice never waits for a whole paragraph.
const MAX_CHARS: usize = 240;

/// Words that end with a full stop in the middle of a sentence.
const ABBREVIATIONS: [&str; 16] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "approx", "bzw", "z.b", "d.h", "ca",
    "nr", "usw",
];

/// Cuts a stream of text into sentences. The pieces joined are the text, byte for byte: space
/// between sentences goes with the later one.
#[derive(Debug, Default)]
pub(crate) struct SentenceSplitter {
    rest: String,
}

impl SentenceSplitter {
    /// Takes more text; complete sentences go to `sentences`.
    pub(crate) fn push(&mut self, text: &str, sentences: &mut VecDeque<String>) {
        self.rest.push_str(text);
        let mut from = 0;
        while let Some(length) = boundary(&self.rest[from..]) {
            sentences.push_back(self.rest[from..from + length].to_owned());
            from += length;
        }
        self.rest.drain(..from);
    }

    /// The text is over: what is left is a sentence too.
    pub(crate) fn finish(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.rest)).filter(|rest| !rest.is_empty())
    }
}

/// Whether there is anything to say aloud.
pub(crate) fn is_speakable(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// Bytes of the first complete sentence of `text`, if it is certain that it ends there.
fn boundary(text: &str) -> Option<usize> {
    let start = text.len() - text.trim_start().len();
    let mut chars = text[start..].char_indices().peekable();
    let mut count = 0;
    while let Some((offset, c)) = chars.next() {
        let at = start + offset;
        count += 1;
        if count > MAX_CHARS {
            return Some(pause(&text[..at]).unwrap_or(at));
        }
        if c == '\n' {
            return Some(at);
        }
        if !is_terminator(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        let mut certain = is_wide_terminator(c);
        while let Some(&(next, c)) = chars.peek() {
            if !is_terminator(c) && !is_closer(c) {
                break;
            }
            certain |= is_wide_terminator(c);
            end = start + next + c.len_utf8();
            count += 1;
            chars.next();
        }
        if certain {
            return Some(end);
        }
        // Without the next character nobody knows whether `3.` becomes `3.5`.
        let (_, next) = *chars.peek()?;
        if next.is_whitespace() && !(end == at + 1 && is_inner_stop(&text[start..at], c)) {
            return Some(end);
        }
    }
    None
}

/// Whether the full stop `c` after `before` belongs to an abbreviation or a list's number.
fn is_inner_stop(before: &str, c: char) -> bool {
    if c != '.' {
        return false;
    }
    let word = before.rsplit(char::is_whitespace).next().unwrap_or(before);
    if !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
        return word.len() == before.len();
    }
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let single = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    single || ABBREVIATIONS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Where to cut a sentence that is too long: after its last comma or the like, else after its last
/// word.
fn pause(text: &str) -> Option<usize> {
    let half = text.len() / 2;
    let clause = text
        .char_indices()
        .zip(text.chars().skip(1))
        .filter(|((_, c), next)| matches!(c, ',' | ';' | ':') && next.is_whitespace())
        .map(|((at, c), _)| at + c.len_utf8())
        .filter(|at| *at > half)
        .last();
    clause.or_else(|| text.rfind(char::is_whitespace).filter(|at| *at > half))
}

fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…') || is_wide_terminator(c)
}

/// Sentence ends of scripts that put no space between sentences.
fn is_wide_terminator(c: char) -> bool {
    matches!(c, '。' | '！' | '？')
}

fn is_closer(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '»' | '“')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(chunks: &[&str]) -> Vec<String> {
        let mut splitter = SentenceSplitter::default();
        let mut sentences = VecDeque::new();
        for chunk in chunks {
            splitter.push(chunk, &mut sentences);
        }
        sentences.extend(splitter.finish());
        sentences.into()
    }

    #[test]
    fn a_sentence_is_given_as_soon_as_the_next_one_begins() {
        let mut splitter = SentenceSplitter::default();
        let mut sentences = VecDeque::new();
        splitter.push("It is five.", &mut sentences);
        assert!(sentences.is_empty());
        splitter.push(" And", &mut sentences);
        assert_eq!(sentences, ["It is five."]);
        assert_eq!(splitter.finish().as_deref(), Some(" And"));
    }

    #[test]
    fn numbers_names_and_quotes_hold_together() {
        assert_eq!(split(&["It costs 3.50 now. Ok?"]), ["It costs 3.50 now.", " Ok?"]);
        assert_eq!(split(&["Mr. Smith and J. Doe came."]), ["Mr. Smith and J. Doe came."]);
        assert_eq!(split(&["He said \"go!\" Then left."]), ["He said \"go!\"", " Then left."]);
        assert_eq!(split(&["1. Eggs\n2. Milk"]), ["1. Eggs", "\n2. Milk"]);
        assert_eq!(split(&["It is 5. Then go."]), ["It is 5.", " Then go."]);
        assert_eq!(split(&["Wait... what?! Yes."]), ["Wait...", " what?!", " Yes."]);
        assert_eq!(split(&["今日は。元気？"]), ["今日は。", "元気？"]);
    }

    #[test]
    fn endless_text_is_cut_at_pauses() {
        let clause = "this goes on and on, ".repeat(40);
        let sentences = split(&[&clause]);
        assert!(sentences.len() > 3);
        assert!(sentences.iter().all(|s| s.chars().count() <= MAX_CHARS + 1));
        assert!(sentences[0].ends_with(','));
        assert_eq!(split(&[&"x".repeat(1_000)]).concat().len(), 1_000);
    }

    #[test]
    fn punctuation_alone_is_not_spoken() {
        assert!(!is_speakable(" -- ..."));
        assert!(is_speakable(" 5!"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_chunks_do_not_matter(text in "\\PC{0,400}", at in any::<prop::sample::Index>()) {
            let whole = split(&[&text]);
            prop_assert_eq!(whole.concat(), text.clone());
            let cuts: Vec<usize> = text.char_indices().map(|(i, _)| i).collect();
            if !cuts.is_empty() {
                let cut = cuts[at.index(cuts.len())];
                prop_assert_eq!(split(&[&text[..cut], &text[cut..]]).concat(), text);
            }
        }
    }
}
