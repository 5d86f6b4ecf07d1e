//! A text as its letters and digits, so that spaces, punctuation and case hide nothing.

/// The letters and digits of a text, in lower case, and where words begin and end among them.
#[derive(Debug, Default)]
pub(super) struct Letters {
    pub(super) chars: Vec<Letter>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Letter {
    pub(super) char: char,
    /// The byte of the text where it begins.
    pub(super) at: usize,
    /// It begins a word, or ends one.
    pub(super) begins: bool,
    pub(super) ends: bool,
}

impl Letters {
    pub(super) fn of(text: &str) -> Self {
        let mut chars: Vec<Letter> = Vec::with_capacity(text.len());
        let mut within = false;
        for (at, char) in text.char_indices() {
            if !char.is_alphanumeric() {
                // What is not seen does not part words.
                let parts = !is_unseen(char);
                if let Some(last) = chars.last_mut().filter(|_| within && parts) {
                    last.ends = true;
                }
                within &= !parts;
                continue;
            }
            let begins = !within;
            within = true;
            for (nth, char) in char.to_lowercase().enumerate() {
                chars.push(Letter { char, at, begins: begins && nth == 0, ends: false });
            }
        }
        if let Some(last) = chars.last_mut() {
            last.ends |= within;
        }
        Self { chars }
    }

    /// The letters alone.
    pub(super) fn plain(&self) -> impl Iterator<Item = char> + '_ {
        self.chars.iter().map(|letter| letter.char)
    }

    /// Where words begin.
    pub(super) fn beginnings(&self) -> impl Iterator<Item = usize> + '_ {
        let begins = |(at, letter): (usize, &Letter)| letter.begins.then_some(at);
        self.chars.iter().enumerate().filter_map(begins)
    }
}

/// Joiners and marks of direction, which would hide a word from a comparison.
fn is_unseen(char: char) -> bool {
    matches!(char, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}' | '\u{feff}')
        || ('\u{300}'..='\u{36f}').contains(&char)
}
