//! Sample phrases: `set [a|the] timer (for|of) {duration} [please]`.

use super::words;

/// What is wrong with a sample phrase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PhraseError {
    /// A bracket, brace or parenthesis is not closed, or closed but not opened.
    #[error("phrase {phrase:?}: brackets do not match")]
    Unbalanced {
        /// The phrase as declared.
        phrase: String,
    },
    /// A slot that the input schema does not have.
    #[error("phrase {phrase:?}: the input schema has no property {slot:?}")]
    UnknownSlot {
        /// The phrase as declared.
        phrase: String,
        /// The slot.
        slot: String,
    },
    /// The same slot twice in one form of the phrase.
    #[error("phrase {phrase:?}: slot {slot:?} occurs twice")]
    RepeatedSlot {
        /// The phrase as declared.
        phrase: String,
        /// The slot.
        slot: String,
    },
    /// Slots alone would match whatever is said.
    #[error("phrase {phrase:?}: it needs a word beside its slots")]
    NoWords {
        /// The phrase as declared.
        phrase: String,
    },
    /// Its alternatives multiply to more than 64 forms.
    #[error("phrase {phrase:?}: more than 64 forms")]
    TooManyForms {
        /// The phrase as declared.
        phrase: String,
    },
}

/// More forms than this of one phrase are refused.
const MAX_FORMS: usize = 64;

/// A piece of one form of a phrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A word in its normal form.
    Word(String),
    /// A slot, by the name of its property.
    Slot(String),
}

/// Every form of `phrase`, optional parts and alternatives written out.
pub(super) fn forms(phrase: &str) -> Result<Vec<Vec<Piece>>, PhraseError> {
    let unbalanced = || PhraseError::Unbalanced { phrase: phrase.to_owned() };
    let mut parser = Parser { phrase, chars: phrase.char_indices().peekable(), depth: 0 };
    let texts = parser.choices(None)?;
    let mut forms: Vec<Vec<Piece>> = Vec::with_capacity(texts.len());
    for text in texts {
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (slot, after) = after.split_once('}').ok_or_else(unbalanced)?;
            push_words(before, &mut pieces);
            let slot = slot.trim().to_owned();
            if pieces.contains(&Piece::Slot(slot.clone())) {
                return Err(PhraseError::RepeatedSlot { phrase: phrase.to_owned(), slot });
            }
            pieces.push(Piece::Slot(slot));
            rest = after;
        }
        push_words(rest, &mut pieces);
        if !pieces.iter().any(|piece| matches!(piece, Piece::Word(_))) {
            return Err(PhraseError::NoWords { phrase: phrase.to_owned() });
        }
        if !forms.contains(&pieces) {
            forms.push(pieces);
        }
    }
    Ok(forms)
}

fn push_words(text: &str, pieces: &mut Vec<Piece>) {
    let (words, _) = words::words(text);
    // Politeness in a sample would have to be said; it never has to.
    let spoken = words.into_iter().filter(|word| words::kind_of(&word.norm) != words::Kind::Filler);
    pieces.extend(spoken.map(|word| Piece::Word(word.norm)));
}

struct Parser<'a> {
    phrase: &'a str,
    chars: std::iter::Peekable<std::str::CharIndices<'a>>,
    depth: usize,
}

impl Parser<'_> {
    /// Alternatives up to `end`, which is consumed.
    fn choices(&mut self, end: Option<char>) -> Result<Vec<String>, PhraseError> {
        let phrase = self.phrase;
        let unbalanced = || PhraseError::Unbalanced { phrase: phrase.to_owned() };
        if self.depth > 8 {
            return Err(unbalanced());
        }
        let (mut done, mut open) = (Vec::new(), vec![String::new()]);
        while let Some((at, c)) = self.chars.next() {
            match c {
                '[' | '(' => {
                    let close = if c == '[' { ']' } else { ')' };
                    self.depth += 1;
                    let mut inner = self.choices(Some(close))?;
                    self.depth -= 1;
                    if c == '[' {
                        inner.push(String::new());
                    }
                    if open.len() * inner.len() > MAX_FORMS {
                        return Err(PhraseError::TooManyForms { phrase: self.phrase.to_owned() });
                    }
                    let joined = |head: &String| {
                        inner.iter().map(|tail| format!("{head} {tail} ")).collect::<Vec<_>>()
                    };
                    open = open.iter().flat_map(joined).collect();
                }
                '{' => {
                    let rest = &self.phrase[at + 1..];
                    let slot = rest.split('}').next().unwrap_or_default();
                    if slot.len() == rest.len() || slot.contains(['{', '[', '(']) {
                        return Err(unbalanced());
                    }
                    self.chars.by_ref().find(|&(_, c)| c == '}');
                    open.iter_mut().for_each(|text| *text += &format!(" {{{slot}}} "));
                }
                '|' if end.is_some() => {
                    done.append(&mut std::mem::replace(&mut open, vec![String::new()]))
                }
                _ if Some(c) == end => {
                    done.append(&mut open);
                    return Ok(done);
                }
                ']' | ')' | '}' => return Err(unbalanced()),
                _ => open.iter_mut().for_each(|text| text.push(c)),
            }
            if done.len() + open.len() > MAX_FORMS {
                return Err(PhraseError::TooManyForms { phrase: self.phrase.to_owned() });
            }
        }
        match end {
            Some(_) => Err(unbalanced()),
            None => Ok(open),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(phrase: &str) -> Vec<String> {
        let text = |piece: &Piece| match piece {
            Piece::Word(word) => word.clone(),
            Piece::Slot(slot) => format!("{{{slot}}}"),
        };
        let forms = forms(phrase).unwrap();
        forms.iter().map(|form| form.iter().map(text).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn alternatives_are_written_out() {
        assert_eq!(
            written("[please] set (a|the) timer[ for {duration}]"),
            [
                "set a timer for {duration}",
                "set a timer",
                "set the timer for {duration}",
                "set the timer"
            ]
        );
        assert_eq!(written("What's the time?"), ["what is the time"]);
        assert_eq!(
            written("(turn (on|off)|switch) it"),
            ["turn on it", "turn off it", "switch it"]
        );
    }

    #[test]
    fn bad_phrases_are_refused() {
        for phrase in ["set [a timer", "set a) timer", "set {a", "set }", "([", "{a{b}}"] {
            assert!(matches!(forms(phrase), Err(PhraseError::Unbalanced { .. })), "{phrase}");
        }
        assert!(matches!(forms("{a} {b}"), Err(PhraseError::NoWords { .. })));
        assert!(matches!(forms(""), Err(PhraseError::NoWords { .. })));
        assert!(matches!(forms("x {a} {a}"), Err(PhraseError::RepeatedSlot { .. })));
        assert!(matches!(forms(&"(a|b) ".repeat(7)), Err(PhraseError::TooManyForms { .. })));
        assert!(forms(&"(".repeat(100_000)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_phrase_is_survived(phrase in r"[a-b \[\](){}|]{0,40}|\PC{0,40}") {
            let _ = forms(&phrase);
        }
    }
}
