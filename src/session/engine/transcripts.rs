//! What the user said, one utterance at a time, joined without doubling.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use antiphon_live::TextUpdate;

/// Bytes that the transcript of one utterance or reply may have; more is cut.
const MAX_TEXT: usize = 256 * 1024;
/// Finished utterances whose late updates are known to be late.
const REMEMBERED: usize = 32;

/// Applies `update` to `text`. Returns whether the text is complete now.
pub(crate) fn apply(text: &mut String, update: TextUpdate) -> bool {
    let complete = match update {
        TextUpdate::Delta(more) => {
            text.push_str(&more);
            false
        }
        TextUpdate::Snapshot(whole) => {
            *text = whole;
            false
        }
        TextUpdate::Final(Some(whole)) => {
            *text = whole;
            true
        }
        TextUpdate::Final(None) => true,
    };
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
    }
    complete
}

/// One utterance of the user that is not complete yet.
#[derive(Debug)]
pub(crate) struct Utterance {
    /// The provider's id.
    pub(crate) item: Arc<str>,
    /// The words so far.
    pub(crate) text: String,
    /// The turn it belongs to, once it has words.
    pub(crate) turn: Option<u64>,
    /// When its speech began, as far as known.
    pub(crate) began_at: Instant,
}

/// The utterances that are not complete yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Utterances {
    open: VecDeque<Utterance>,
    finished: VecDeque<Arc<str>>,
}

impl Utterances {
    /// Whether an update of `item` comes after the item was finished.
    pub(crate) fn is_finished(&self, item: &str) -> bool {
        self.finished.iter().any(|finished| &**finished == item)
    }

    /// The open utterance `item`.
    pub(crate) fn find(&mut self, item: &str) -> Option<&mut Utterance> {
        self.open.iter_mut().find(|utterance| &*utterance.item == item)
    }

    /// Opens an utterance.
    pub(crate) fn open(&mut self, utterance: Utterance) {
        self.open.push_back(utterance);
    }

    /// Takes `item` as finished.
    pub(crate) fn finish(&mut self, item: &str) -> Option<Utterance> {
        let at = self.open.iter().position(|utterance| &*utterance.item == item)?;
        let utterance = self.open.remove(at)?;
        self.remember(utterance.item.clone());
        Some(utterance)
    }

    /// Takes the oldest open utterance as finished.
    pub(crate) fn finish_oldest(&mut self) -> Option<Utterance> {
        let utterance = self.open.pop_front()?;
        self.remember(utterance.item.clone());
        Some(utterance)
    }

    /// Whether any utterance is open.
    pub(crate) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn remember(&mut self, item: Arc<str>) {
        if self.finished.len() == REMEMBERED {
            self.finished.pop_front();
        }
        self.finished.push_back(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_text_replaces_the_pieces_instead_of_doubling_them() {
        let mut text = String::new();
        assert!(!apply(&mut text, TextUpdate::Delta("Hal".into())));
        assert!(apply(&mut text, TextUpdate::Final(Some("Hallo".into()))));
        assert_eq!(text, "Hallo");
    }

    #[test]
    fn a_bare_final_keeps_the_pieces() {
        let mut text = String::new();
        apply(&mut text, TextUpdate::Delta("hello ".into()));
        apply(&mut text, TextUpdate::Delta("world".into()));
        assert!(apply(&mut text, TextUpdate::Final(None)));
        assert_eq!(text, "hello world");
    }

    #[test]
    fn a_flood_of_words_is_bounded() {
        let mut text = String::new();
        for _ in 0..100 {
            apply(&mut text, TextUpdate::Delta("ä".repeat(10_000)));
        }
        assert!(text.len() <= MAX_TEXT);
    }
}
