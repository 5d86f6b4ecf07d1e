//! What the user said, one utterance at a time, joined without doubling.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use antiphon_live::TextUpdate;

/// Bytes that the transcript of one utterance or reply may have; more is cut.
const MAX_TEXT: usize = 256 * 1024;
/// Finished utterances whose late updates are known to be late.
const REMEMBERED: usize = 32;
/// Speech that may wait for its words; the oldest is forgotten.
const MAX_WORDLESS: usize = 32;

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
    /// The language, where the provider tells.
    pub(crate) language: Option<Arc<str>>,
}

/// Speech of the user of which no words have come.
#[derive(Debug)]
pub(crate) struct Wordless {
    /// The provider's id, where it was told.
    item: Option<Arc<str>>,
    /// The turn that a reply to it began.
    pub(crate) turn: Option<u64>,
    /// When it began.
    pub(crate) began_at: Instant,
}

/// The utterances that are not complete yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Utterances {
    wordless: VecDeque<Wordless>,
    open: VecDeque<Utterance>,
    finished: VecDeque<Arc<str>>,
}

impl Utterances {
    /// The user begins to speak.
    pub(crate) fn speech_begins(&mut self, now: Instant) {
        // What comes without a name from now on is taken as words of this.
        self.wordless.retain(|speech| speech.item.is_some() || speech.turn.is_none());
        self.add_wordless(None, None, now);
    }

    /// The speech that was heard last is `item`.
    pub(crate) fn committed(&mut self, item: Arc<str>, now: Instant) {
        let known = self.is_finished(&item)
            || self.open.iter().any(|utterance| utterance.item == item)
            || self.wordless.iter().any(|speech| speech.item.as_ref() == Some(&item));
        if known {
            return;
        }
        let last = self.wordless.back_mut();
        match last.filter(|speech| speech.item.is_none() && speech.turn.is_none()) {
            Some(speech) => speech.item = Some(item),
            None => self.add_wordless(Some(item), None, now),
        }
    }

    /// A reply to all that was said began this turn.
    pub(crate) fn are_answered_in(&mut self, turn: u64, now: Instant) {
        let mut any = !self.open.is_empty();
        for speech in self.wordless.iter_mut().filter(|speech| speech.turn.is_none()) {
            speech.turn = Some(turn);
            any = true;
        }
        if !any {
            // Speech that nobody told of.
            self.add_wordless(None, Some(turn), now);
        }
    }

    /// Whether there is speech without words and without a turn that began after this.
    pub(crate) fn any_unanswered_after(&self, began_at: Instant) -> bool {
        self.wordless.iter().any(|speech| speech.turn.is_none() && speech.began_at > began_at)
    }

    /// The speech that was heard last was none: no words of it are waited for.
    pub(crate) fn speech_was_noise(&mut self) {
        self.wordless.pop_back_if(|speech| speech.item.is_none() && speech.turn.is_none());
    }

    /// The speech whose words these are. Where no names were told it is the oldest that was answered
    /// already, else the newest; what was heard before that was a noise.
    pub(crate) fn take_wordless(&mut self, item: &str) -> Option<Wordless> {
        let named = |speech: &Wordless| speech.item.as_deref() == Some(item);
        let answered = |speech: &Wordless| speech.item.is_none() && speech.turn.is_some();
        let known = self.wordless.iter().position(named);
        if let Some(at) = known.or_else(|| self.wordless.iter().position(answered)) {
            return self.wordless.remove(at);
        }
        let newest = self.wordless.pop_back_if(|speech| speech.item.is_none());
        self.wordless.retain(|speech| speech.item.is_some());
        newest
    }

    fn add_wordless(&mut self, item: Option<Arc<str>>, turn: Option<u64>, began_at: Instant) {
        if self.wordless.len() == MAX_WORDLESS {
            self.wordless.pop_front();
        }
        self.wordless.push_back(Wordless { item, turn, began_at });
    }

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

    /// Whether any utterance of this turn is open.
    pub(crate) fn any_open_in(&self, turn: u64) -> bool {
        self.open.iter().any(|utterance| utterance.turn == Some(turn))
    }

    /// Whether any utterance is open.
    pub(crate) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The connection is gone, and with it the names of what it heard: the next one may use them for
    /// something else.
    pub(crate) fn forget_names(&mut self) {
        self.wordless.clear();
        self.finished.clear();
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
    use std::time::Duration;

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
    fn a_name_that_is_told_again_names_no_other_speech() {
        let now = Instant::now();
        let utterance = |item: &str| {
            let (item, text) = (item.into(), String::new());
            Utterance { item, text, turn: None, began_at: now, language: None }
        };
        let mut heard = Utterances::default();
        heard.speech_begins(now);
        heard.committed("named".into(), now);
        heard.open(utterance("open"));
        heard.open(utterance("finished"));
        heard.finish("finished");
        let later = now + Duration::from_secs(1);
        heard.speech_begins(later);
        for known in ["named", "open", "finished"] {
            heard.committed(known.into(), later);
        }
        // The later speech has no name yet, and gets its own.
        heard.committed("later".into(), later);
        assert_eq!(heard.take_wordless("later").unwrap().began_at, later);
        assert_eq!(heard.take_wordless("named").unwrap().began_at, now);
        assert!(heard.take_wordless("open").is_none());
    }

    #[test]
    fn words_are_not_those_of_a_noise_before_them() {
        let now = Instant::now();
        let mut heard = Utterances::default();
        heard.speech_begins(now);
        heard.speech_was_noise();
        assert!(heard.take_wordless("u1").is_none());
        // Speech that has a name, or a turn, was more than that.
        heard.speech_begins(now);
        heard.committed("u2".into(), now);
        heard.speech_was_noise();
        assert!(heard.take_wordless("u2").is_some());
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
