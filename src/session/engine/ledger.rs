//! The heard ledger of one reply: which of its audio arrived, how much of it was heard, and which
//! words that covers. It alone computes truncations and the text of an interrupted reply.

use std::{sync::Arc, time::Duration};

use antiphon_live::{TextUpdate, WordTime};

use super::transcripts;

/// The slowest speech that is believed: an interrupted reply whose words ran ahead of its audio is
/// taken to need at least this long for each character. Ordinary speech has 12 to 18 a second.
const TIME_PER_CHARACTER: Duration = Duration::from_millis(55);

/// The fastest speech that is believed, where something must not be heard: no character takes less.
const SHORTEST_CHARACTER: Duration = Duration::from_millis(40);

/// Times of words of one item; what comes after them is reckoned.
const MAX_WORDS: usize = 16 * 1024;

/// The account of one reply.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    received: Duration,
    segments: Vec<Segment>,
    parts: Vec<Part>,
}

/// One content part's audio within the reply.
#[derive(Debug)]
struct Segment {
    item: Arc<str>,
    content_index: u32,
    start: Duration,
    length: Duration,
}

/// One item's words.
#[derive(Debug)]
struct Part {
    item: Arc<str>,
    text: String,
    marks: Vec<Mark>,
    /// When words are over in the item's own audio, where the provider told.
    words: Vec<WordTime>,
}

/// From byte `from` of the part on, words arrived when `at` of the reply's audio had arrived.
#[derive(Clone, Copy, Debug)]
struct Mark {
    from: usize,
    at: Duration,
}

/// Where a content part is to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) item: Arc<str>,
    pub(crate) content_index: u32,
    /// Milliseconds of this part's own audio that were heard; never more than arrived.
    pub(crate) heard_ms: u32,
}

impl Ledger {
    /// Audio arrived.
    pub(crate) fn audio(&mut self, item: &Arc<str>, content_index: u32, length: Duration) {
        match self.segments.last_mut() {
            Some(last) if last.item == *item && last.content_index == content_index => {
                last.length += length;
            }
            _ => self.segments.push(Segment {
                item: item.clone(),
                content_index,
                start: self.received,
                length,
            }),
        }
        self.received += length;
    }

    /// Words arrived. Returns whether the item's words are complete.
    pub(crate) fn text(&mut self, item: &Arc<str>, update: TextUpdate) -> bool {
        let at = self.received;
        let part = self.part(item);
        let extends = match &update {
            TextUpdate::Delta(_) | TextUpdate::Final(None) => true,
            TextUpdate::Snapshot(whole) | TextUpdate::Final(Some(whole)) => {
                whole.starts_with(&part.text)
            }
        };
        let before = part.text.len();
        let complete = transcripts::apply(&mut part.text, update);
        let after = part.text.len();
        if extends {
            if after > before {
                part.marks.push(Mark { from: before, at });
            }
        } else {
            // The words were corrected: keep their times, stretched to the new length.
            for mark in &mut part.marks {
                let scaled = (mark.from * after).checked_div(before).unwrap_or(0);
                mark.from = part.text.floor_char_boundary(scaled);
            }
            if part.marks.is_empty() {
                part.marks.push(Mark { from: 0, at });
            }
        }
        complete
    }

    /// The provider tells when words are spoken.
    pub(crate) fn word_times(&mut self, item: &Arc<str>, words: Vec<WordTime>) {
        let known = &mut self.part(item).words;
        known.extend(words);
        known.truncate(MAX_WORDS);
    }

    fn part(&mut self, item: &Arc<str>) -> &mut Part {
        let known = self.parts.iter().position(|part| part.item == *item);
        let index = known.unwrap_or_else(|| {
            self.parts.push(Part {
                item: item.clone(),
                text: String::new(),
                marks: Vec::new(),
                words: Vec::new(),
            });
            self.parts.len() - 1
        });
        &mut self.parts[index]
    }

    /// Where the audio of an item begins.
    fn start_of(&self, item: &Arc<str>) -> Duration {
        let first = self.segments.iter().find(|segment| segment.item == *item);
        first.map_or(self.received, |segment| segment.start)
    }

    /// How much audio arrived.
    pub(crate) fn received(&self) -> Duration {
        self.received
    }

    /// Whether any audio arrived.
    pub(crate) fn has_audio(&self) -> bool {
        !self.segments.is_empty()
    }

    /// The provider's ids of what it is made of, in order.
    pub(crate) fn items(&self) -> Vec<Arc<str>> {
        let mut items: Vec<Arc<str>> = Vec::new();
        let texts = self.parts.iter().map(|part| &part.item);
        for item in self.segments.iter().map(|segment| &segment.item).chain(texts) {
            if !items.contains(item) {
                items.push(item.clone());
            }
        }
        items
    }

    /// All words.
    pub(crate) fn whole_text(&self) -> String {
        let mut whole = String::new();
        for part in &self.parts {
            join(&mut whole, &part.text);
        }
        whole
    }

    /// When the word at this byte of all words is spoken at the earliest, in the reply's audio.
    /// `in_step`: words come no later than their audio.
    pub(crate) fn earliest(&self, byte: usize, in_step: bool) -> Duration {
        let mut whole = String::new();
        let mut marks = vec![Mark { from: 0, at: Duration::ZERO }];
        for part in &self.parts {
            join(&mut whole, &part.text);
            let start = whole.len() - part.text.len();
            let came = part.marks.iter().filter(|_| in_step);
            marks.extend(came.map(|mark| Mark { from: start + mark.from, at: mark.at }));
        }
        let byte = whole.floor_char_boundary(byte);
        let characters = |from: usize| {
            let from = whole.floor_char_boundary(from);
            whole[from..byte].chars().count() as u32
        };
        // Nothing is spoken before it came, and all that lies between takes its time.
        let before = marks.iter().filter(|mark| mark.from <= byte);
        before
            .map(|mark| mark.at + SHORTEST_CHARACTER * characters(mark.from))
            .max()
            .unwrap_or_default()
    }

    /// The words that `heard` of the reply's audio covers, cut between words. `complete`: no more
    /// audio would have come. A reply without audio is read, not heard: all its words count.
    pub(crate) fn heard_text(&self, heard: Duration, complete: bool) -> String {
        if !self.has_audio() || (complete && heard >= self.received) {
            return self.whole_text();
        }
        let mut text = String::new();
        for (index, part) in self.parts.iter().enumerate() {
            let next_part = self.parts[index + 1..]
                .iter()
                .find_map(|next| next.marks.first())
                .map(|mark| mark.at);
            let own = heard.saturating_sub(self.start_of(&part.item));
            let (spoken, more_is_not) = part.spoken_bytes(own);
            let bytes = match more_is_not {
                true => spoken,
                false => part.heard_bytes(heard, next_part, self.received, complete).max(spoken),
            };
            join(&mut text, part.text[..bytes].trim_end());
            if bytes < part.text.len() {
                break;
            }
        }
        text
    }

    /// Where the reply's content parts are to be cut. `active`: the provider may have produced more
    /// than arrived, so that even a part that was heard to its end is cut there.
    pub(crate) fn cuts(&self, heard: Duration, active: bool) -> Vec<Cut> {
        let last = self.segments.len().saturating_sub(1);
        self.segments
            .iter()
            .enumerate()
            .filter_map(|(index, segment)| {
                let own = heard.saturating_sub(segment.start).min(segment.length);
                let whole = own == segment.length;
                if whole && !(active && index == last) {
                    return None;
                }
                Some(Cut {
                    item: segment.item.clone(),
                    content_index: segment.content_index,
                    heard_ms: u32::try_from(own.as_millis()).unwrap_or(u32::MAX),
                })
            })
            .collect()
    }
}

impl Part {
    /// Up to which byte the words are over after `heard` of the item's audio, as far as their times
    /// are known, and whether the word after that is known not to be.
    fn spoken_bytes(&self, heard: Duration) -> (usize, bool) {
        let mut spoken = 0;
        for time in &self.words {
            let word = time.word.trim();
            let Some(at) = self.text[spoken..].find(word).filter(|_| !word.is_empty()) else {
                continue;
            };
            if time.end > heard {
                return (spoken, true);
            }
            let rest = &self.text[spoken + at + word.len()..];
            let punctuation = |c: char| !c.is_whitespace() && !c.is_alphanumeric();
            let marks = rest.len() - rest.trim_start_matches(punctuation).len();
            spoken += at + word.len() + marks;
        }
        (spoken, false)
    }

    /// How many bytes of the part were heard.
    fn heard_bytes(
        &self,
        heard: Duration,
        next_part: Option<Duration>,
        received: Duration,
        complete: bool,
    ) -> usize {
        let mut index = 0;
        while index < self.marks.len() {
            let Mark { from, at } = self.marks[index];
            // Words that arrived at the same point of the audio are spread over what follows it.
            let following =
                self.marks[index..].iter().position(|mark| mark.at > at).map(|skip| index + skip);
            let to = following.map_or(self.text.len(), |next| self.marks[next].from);
            if heard <= at {
                return from;
            }
            let known_end = following.map(|next| self.marks[next].at).or(next_part);
            let end = known_end.unwrap_or_else(|| {
                let characters = self.text[from..to].chars().count() as u32;
                let floor = if complete { at } else { at + TIME_PER_CHARACTER * characters };
                received.max(floor)
            });
            if heard < end {
                return from + self.heard_of(from, to, heard - at, end - at);
            }
            match following {
                Some(next) => index = next,
                None => return self.text.len(),
            }
        }
        0
    }

    /// How many bytes of `from..to` fit into `heard` of `span`, cut between words.
    fn heard_of(&self, from: usize, to: usize, heard: Duration, span: Duration) -> usize {
        let words = &self.text[from..to];
        let share = heard.as_secs_f64() / span.as_secs_f64().max(f64::MIN_POSITIVE);
        let characters = (words.chars().count() as f64 * share) as usize;
        let cut = words.char_indices().nth(characters).map_or(words.len(), |(at, _)| at);
        let ends_a_word = words[cut..].chars().next().is_none_or(char::is_whitespace);
        if ends_a_word { cut } else { words[..cut].rfind(char::is_whitespace).unwrap_or(0) }
    }
}

/// Appends `more` to `text` with a space between where neither has one.
fn join(text: &mut String, more: &str) {
    let spaced = text.is_empty()
        || more.is_empty()
        || text.ends_with(char::is_whitespace)
        || more.starts_with(char::is_whitespace);
    if !spaced {
        text.push(' ');
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn sentences() -> Ledger {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        ledger.text(&item, TextUpdate::Delta("One two three four.".into()));
        ledger.audio(&item, 0, seconds(2.0));
        ledger.text(&item, TextUpdate::Delta(" Five six seven eight.".into()));
        ledger.audio(&item, 0, seconds(2.0));
        ledger
    }

    #[test]
    fn words_are_heard_up_to_the_cut_between_words() {
        let ledger = sentences();
        assert_eq!(ledger.heard_text(seconds(0.0), true), "");
        assert_eq!(ledger.heard_text(seconds(1.0), true), "One two");
        assert_eq!(ledger.heard_text(seconds(2.0), true), "One two three four.");
        assert_eq!(ledger.heard_text(seconds(3.0), true), "One two three four. Five six");
        assert_eq!(
            ledger.heard_text(seconds(4.0), true),
            "One two three four. Five six seven eight."
        );
    }

    #[test]
    fn words_are_heard_by_their_own_times_where_these_are_known() {
        let (first, item): (Arc<str>, Arc<str>) = ("first".into(), "item".into());
        let mut ledger = Ledger::default();
        ledger.text(&first, TextUpdate::Delta("Well.".into()));
        ledger.audio(&first, 0, seconds(1.0));
        let word = |word: &str, end| WordTime::new(word, seconds(end));
        // Before the text, in one piece with it, and after it; a word that is not there is passed.
        ledger.word_times(&item, vec![word("One", 0.2), word("two", 0.4), word("odd", 0.5)]);
        ledger.text(&item, TextUpdate::Delta("One, two three four. Five.".into()));
        ledger.audio(&item, 0, seconds(4.0));
        ledger.word_times(&item, vec![word("three", 3.0), word("four", 3.5)]);
        let heard = |at| ledger.heard_text(seconds(at), true);
        assert_eq!(heard(1.1), "Well.");
        assert_eq!(heard(1.2), "Well. One,");
        assert_eq!(heard(3.9), "Well. One, two");
        assert_eq!(heard(4.0), "Well. One, two three");
        assert_eq!(heard(4.5), "Well. One, two three four.", "no time of what follows is known");
        assert_eq!(heard(5.0), "Well. One, two three four. Five.");
    }

    #[test]
    fn what_follows_a_word_closely_is_heard_with_it() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        ledger.text(&item, TextUpdate::Delta("One, two three?! Four five six.".into()));
        ledger.audio(&item, 0, seconds(4.0));
        let word = |word: &str, end| WordTime::new(word, seconds(end));
        let words = [("One", 0.2), ("two", 0.4), ("three", 0.6), ("Four", 0.8), ("five", 1.0)];
        ledger.word_times(&item, words.map(|(said, end)| word(said, end)).into());
        let heard = |at| ledger.heard_text(seconds(at), false);
        assert_eq!(heard(0.3), "One,");
        assert_eq!(heard(0.5), "One, two");
        assert_eq!(heard(0.7), "One, two three?!");
        assert_eq!(heard(0.9), "One, two three?! Four");
    }

    #[test]
    fn nothing_is_heard_beyond_the_first_word_that_is_not() {
        let (first, second): (Arc<str>, Arc<str>) = ("first".into(), "second".into());
        let mut ledger = Ledger::default();
        // All words come before their audio, the times of the first item alone are told.
        ledger.text(&first, TextUpdate::Delta("One two".into()));
        ledger.text(&second, TextUpdate::Delta("so it is".into()));
        ledger.audio(&first, 0, seconds(1.0));
        ledger.audio(&second, 0, seconds(1.0));
        let words = [WordTime::new("One", seconds(0.4)), WordTime::new("two", seconds(0.9))];
        ledger.word_times(&first, words.into());
        assert_eq!(ledger.heard_text(seconds(0.8), false), "One");
    }

    #[test]
    fn a_reply_that_is_only_read_counts_as_a_whole() {
        let mut ledger = Ledger::default();
        ledger.text(&"item".into(), TextUpdate::Delta("One two".into()));
        assert_eq!(ledger.heard_text(Duration::ZERO, false), "One two");
        assert_eq!(ledger.heard_text(Duration::ZERO, true), "One two");
    }

    #[test]
    fn words_far_ahead_of_the_audio_are_not_taken_as_heard() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        ledger.text(&item, TextUpdate::Delta("word ".repeat(100)));
        ledger.audio(&item, 0, seconds(1.0));
        let heard = ledger.heard_text(seconds(1.0), false);
        assert!(heard.len() < 30, "{heard:?}");
        assert!(!heard.is_empty());
    }

    #[test]
    fn a_corrected_final_text_keeps_the_times() {
        let item: Arc<str> = "item".into();
        let mut ledger = sentences();
        ledger.text(&item, TextUpdate::Final(Some("1 2 3 4. Five six seven eight.".into())));
        assert!(ledger.heard_text(seconds(2.0), true).starts_with("1 2 3 4."));
        assert_eq!(ledger.whole_text(), "1 2 3 4. Five six seven eight.");
    }

    #[test]
    fn cuts_are_relative_to_their_own_item_and_never_beyond_what_arrived() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut ledger = Ledger::default();
        ledger.audio(&a, 0, seconds(0.5));
        ledger.audio(&b, 0, seconds(0.5));
        assert_eq!(
            ledger.cuts(seconds(0.7), true),
            [Cut { item: b.clone(), content_index: 0, heard_ms: 200 }]
        );
        assert_eq!(ledger.cuts(seconds(9.0), true)[0].heard_ms, 500);
        assert!(ledger.cuts(seconds(9.0), false).is_empty());
        assert_eq!(ledger.cuts(seconds(0.2), false).len(), 2);
    }

    #[test]
    fn audio_in_pieces_is_one_part_and_another_part_of_its_item_is_not() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        for _ in 0..4 {
            ledger.audio(&item, 0, seconds(0.25));
        }
        ledger.audio(&item, 1, seconds(0.5));
        assert_eq!(ledger.received(), seconds(1.5));
        let cut = |content_index, heard_ms| Cut { item: item.clone(), content_index, heard_ms };
        assert_eq!(ledger.cuts(seconds(0.6), true), [cut(0, 600), cut(1, 0)]);
        assert_eq!(ledger.cuts(seconds(1.2), true), [cut(1, 200)]);
        assert_eq!(ledger.items(), [item]);
    }

    #[test]
    fn the_end_of_the_words_is_not_the_end_of_their_audio() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        assert!(!ledger.text(&item, TextUpdate::Delta("One two three four.".into())));
        ledger.audio(&item, 0, seconds(1.0));
        assert!(ledger.text(&item, TextUpdate::Final(None)));
        ledger.audio(&item, 0, seconds(1.0));
        assert_eq!(ledger.heard_text(seconds(1.0), true), "One two");
        assert_eq!(ledger.heard_text(seconds(2.0), true), "One two three four.");
    }

    #[test]
    fn an_item_of_which_only_times_came_has_no_words() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        ledger.word_times(&item, vec![WordTime::new("One", seconds(0.2))]);
        ledger.audio(&item, 0, seconds(1.0));
        assert_eq!(ledger.heard_text(seconds(0.5), false), "");
        assert_eq!(ledger.items(), [item]);
    }

    #[test]
    fn a_correction_of_another_length_takes_its_times_along() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        ledger.text(&item, TextUpdate::Delta("aaaa ".into()));
        ledger.audio(&item, 0, seconds(1.0));
        ledger.text(&item, TextUpdate::Delta("bbbb ".into()));
        ledger.audio(&item, 0, seconds(1.0));
        // Twice as long: the second half still begins after a second.
        let corrected = "cccc cccc dddd dddd ";
        ledger.text(&item, TextUpdate::Snapshot(corrected.into()));
        assert_eq!(ledger.heard_text(seconds(0.8), true), "cccc");
        assert_eq!(ledger.heard_text(seconds(1.0), true), "cccc cccc");
        assert_eq!(ledger.heard_text(seconds(1.6), true), "cccc cccc dddd");
    }

    #[test]
    fn pieces_of_several_items_are_joined_by_one_space() {
        let joined = |pieces: &[&str]| {
            let mut ledger = Ledger::default();
            for (index, piece) in pieces.iter().enumerate() {
                let item = format!("i{index}").as_str().into();
                ledger.text(&item, TextUpdate::Delta((*piece).into()));
            }
            ledger.whole_text()
        };
        assert_eq!(joined(&["One.", "Two."]), "One. Two.");
        assert_eq!(joined(&["One. ", "Two."]), "One. Two.");
        assert_eq!(joined(&["One.", " Two."]), "One. Two.");
        assert_eq!(joined(&["", "One.", "", "Two.", ""]), "One. Two.");
        assert_eq!(joined(&[]), "");
    }

    #[test]
    fn words_ahead_of_their_audio_take_as_long_as_slow_speech() {
        let item: Arc<str> = "item".into();
        let mut ledger = Ledger::default();
        // Twenty characters, which are reckoned as 1.1 seconds.
        ledger.text(&item, TextUpdate::Delta("aaaa bbbb cccc dddd ".into()));
        ledger.audio(&item, 0, seconds(0.4));
        assert_eq!(ledger.heard_text(seconds(0.4), false), "aaaa");
        assert_eq!(ledger.heard_text(seconds(0.2), true), "aaaa bbbb", "all of its audio came");
        ledger.audio(&item, 0, seconds(3.6));
        assert_eq!(ledger.heard_text(seconds(2.0), false), "aaaa bbbb");
    }

    #[test]
    fn an_item_without_audio_is_never_cut() {
        let mut ledger = Ledger::default();
        ledger.text(&"a".into(), TextUpdate::Delta("hello".into()));
        assert!(ledger.cuts(Duration::ZERO, true).is_empty());
    }

    proptest! {
        #[test]
        fn more_audio_never_means_fewer_words(
            pieces in proptest::collection::vec(("[a-zäß ]{0,12}", 0u64..400), 0..12),
            complete: bool,
        ) {
            let item: Arc<str> = "item".into();
            let mut ledger = Ledger::default();
            for (text, ms) in pieces {
                ledger.text(&item, TextUpdate::Delta(text));
                if ms > 0 {
                    ledger.audio(&item, 0, Duration::from_millis(ms));
                }
            }
            let whole = ledger.whole_text();
            let mut last = 0;
            for ms in (0..5_000).step_by(50) {
                let heard = ledger.heard_text(Duration::from_millis(ms), complete);
                prop_assert!(whole.starts_with(&heard));
                prop_assert!(heard.len() >= last || !ledger.has_audio());
                last = heard.len();
            }
        }
    }
}
