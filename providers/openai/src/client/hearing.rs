//! What the user said, in the order in which it was said.
//!
//! Transcripts of several utterances may be on their way at once, and finish in any order or never
//! (quirk 19). A session is told of one utterance after the other: what belongs to a later one
//! waits until the earlier one is complete, has failed, or is given up.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{LiveEvent, Outbox, SpeakerInfo, TextUpdate};

/// How long words of a later utterance wait for those of an earlier one.
const PATIENCE: Duration = Duration::from_secs(3);
/// Utterances without their words.
const MAX_OPEN: usize = 64;
/// Utterances that are known to be complete.
const REMEMBERED: usize = 64;

/// The utterances of one connection.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// Oldest first. Only the first one's words are told.
    open: VecDeque<Utterance>,
    complete: VecDeque<Arc<str>>,
    /// When the first one is given up.
    patience: Option<Instant>,
}

#[derive(Debug)]
struct Utterance {
    item: Arc<str>,
    /// The language that was heard, where told.
    language: Option<Arc<str>>,
    /// Words that wait.
    held: Option<TextUpdate>,
    /// Something of it was told.
    told: bool,
    /// No words will come any more.
    ended: bool,
}

impl Hearing {
    /// The user's audio became an item: the session is told of it before its words.
    pub(super) fn committed(&mut self, item: &str, previous: Option<&str>, out: &mut Outbox) {
        if item.is_empty() || self.knows(item) {
            return;
        }
        let item: Arc<str> = item.into();
        out.events.push_back(LiveEvent::InputCommitted { item: item.clone() });
        let utterance = Utterance::new(item);
        match previous.and_then(|id| self.open.iter().position(|known| *known.item == *id)) {
            Some(at) => self.open.insert(at + 1, utterance),
            None => self.open.push_back(utterance),
        }
    }

    /// Words came. `false`: of an utterance that was complete already.
    pub(super) fn words(
        &mut self,
        item: &str,
        update: TextUpdate,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        if self.complete.iter().any(|known| **known == *item) {
            return false;
        }
        self.committed_if_new(item);
        let ended = matches!(update, TextUpdate::Final(_));
        if let Some(utterance) = self.open.iter_mut().find(|known| *known.item == *item) {
            utterance.held = Some(merge(utterance.held.take(), update));
            utterance.ended |= ended;
        }
        self.advance(now, out);
        true
    }

    /// The language of the words that come next.
    pub(super) fn language(&mut self, item: &str, language: &str) {
        if let Some(utterance) = self.open.iter_mut().find(|known| *known.item == *item) {
            utterance.language = Some(language.into());
        }
    }

    /// There will be no words of it.
    pub(super) fn failed(&mut self, item: &str, now: Instant, out: &mut Outbox) {
        if let Some(utterance) = self.open.iter_mut().find(|known| *known.item == *item) {
            utterance.ended = true;
        }
        self.advance(now, out);
    }

    /// When [`Hearing::timeout`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.patience
    }

    /// Gives the first utterance up if its time has come.
    pub(super) fn timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.patience.is_some_and(|at| at <= now) {
            self.patience = None;
            if let Some(first) = self.open.front_mut() {
                first.ended = true;
            }
            self.advance(now, out);
        }
    }

    fn knows(&self, item: &str) -> bool {
        self.open.iter().any(|known| *known.item == *item)
            || self.complete.iter().any(|known| **known == *item)
    }

    fn committed_if_new(&mut self, item: &str) {
        if !self.open.iter().any(|known| *known.item == *item) {
            self.open.push_back(Utterance::new(item.into()));
        }
    }

    /// Tells what can be told.
    fn advance(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(first) = self.open.front_mut() {
            if let Some(update) = first.held.take() {
                first.told = true;
                out.events.push_back(first.transcript(update.clone()));
                first.ended |= matches!(update, TextUpdate::Final(_));
                if matches!(update, TextUpdate::Final(_)) {
                    first.told = false;
                }
            }
            if !first.ended && self.open.len() <= MAX_OPEN {
                break;
            }
            let Some(first) = self.open.pop_front() else { break };
            self.patience = None;
            if first.told {
                // It ends without a last word of the server.
                out.events.push_back(first.transcript(TextUpdate::Final(None)));
            }
            if self.complete.len() == REMEMBERED {
                self.complete.pop_front();
            }
            self.complete.push_back(first.item);
        }
        let waits = self.open.iter().skip(1).any(|later| later.held.is_some() || later.ended);
        if !waits {
            self.patience = None;
        } else if self.patience.is_none() {
            self.patience = Some(now + PATIENCE);
        }
    }
}

impl Utterance {
    fn new(item: Arc<str>) -> Self {
        Self { item, language: None, held: None, told: false, ended: false }
    }

    fn transcript(&self, text: TextUpdate) -> LiveEvent {
        let speaker = self.language.clone().map(|language| {
            let mut speaker = SpeakerInfo::default();
            speaker.language = Some(language);
            speaker
        });
        LiveEvent::InputTranscript { item: self.item.clone(), text, speaker }
    }
}

/// Two updates as one.
fn merge(earlier: Option<TextUpdate>, later: TextUpdate) -> TextUpdate {
    match (earlier, later) {
        (Some(TextUpdate::Delta(mut text)), TextUpdate::Delta(more)) => {
            text.push_str(&more);
            TextUpdate::Delta(text)
        }
        (Some(TextUpdate::Snapshot(mut text)), TextUpdate::Delta(more)) => {
            text.push_str(&more);
            TextUpdate::Snapshot(text)
        }
        (Some(TextUpdate::Delta(text) | TextUpdate::Snapshot(text)), TextUpdate::Final(None)) => {
            TextUpdate::Final(Some(text))
        }
        (_, later) => later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_that_was_heard_is_told_with_the_words() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.committed("a", None, &mut out);
        hearing.language("a", "de");
        hearing.words("a", whole("Guten Tag."), now, &mut out);
        let Some(LiveEvent::InputTranscript { speaker, .. }) = out.events.pop_back() else {
            panic!("{:?}", out.events);
        };
        assert_eq!(speaker.unwrap().language.as_deref(), Some("de"));
    }

    fn told(out: &mut Outbox) -> Vec<(String, TextUpdate)> {
        out.events
            .drain(..)
            .filter_map(|event| match event {
                LiveEvent::InputTranscript { item, text, .. } => Some((item.to_string(), text)),
                LiveEvent::InputCommitted { .. } => None,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn delta(text: &str) -> TextUpdate {
        TextUpdate::Delta(text.into())
    }

    fn whole(text: &str) -> TextUpdate {
        TextUpdate::Final(Some(text.into()))
    }

    #[test]
    fn quirk_19_transcripts_are_told_in_the_order_of_the_utterances() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.committed("a", None, &mut out);
        hearing.committed("b", Some("a"), &mut out);
        hearing.words("b", delta("two "), now, &mut out);
        hearing.words("a", delta("one"), now, &mut out);
        hearing.words("b", whole("two."), now, &mut out);
        assert_eq!(told(&mut out), [("a".into(), delta("one"))]);
        hearing.words("a", whole("one."), now, &mut out);
        assert_eq!(told(&mut out), [("a".into(), whole("one.")), ("b".into(), whole("two."))]);
        assert!(!hearing.words("a", whole("late"), now, &mut out));
        assert_eq!(hearing.deadline(), None);
    }

    #[test]
    fn quirk_19_a_failed_one_blocks_nobody() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.committed("a", None, &mut out);
        hearing.committed("b", None, &mut out);
        hearing.words("b", whole("two."), now, &mut out);
        assert!(told(&mut out).is_empty());
        hearing.failed("a", now, &mut out);
        assert_eq!(told(&mut out), [("b".into(), whole("two."))]);
    }

    #[test]
    fn quirk_19_one_that_never_comes_is_given_up() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.committed("a", None, &mut out);
        hearing.committed("b", None, &mut out);
        hearing.words("a", delta("on"), now, &mut out);
        assert_eq!(hearing.deadline(), None);
        hearing.words("b", whole("two."), now, &mut out);
        let at = hearing.deadline().unwrap();
        hearing.timeout(at, &mut out);
        assert_eq!(
            told(&mut out),
            [
                ("a".into(), delta("on")),
                ("a".into(), TextUpdate::Final(None)),
                ("b".into(), whole("two."))
            ]
        );
    }

    #[test]
    fn without_end_there_is_no_growth() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        for number in 0..1_000 {
            hearing.words(&number.to_string(), delta("x"), now, &mut out);
        }
        assert!(hearing.open.len() <= MAX_OPEN + 1 && hearing.complete.len() <= REMEMBERED);
    }
}
