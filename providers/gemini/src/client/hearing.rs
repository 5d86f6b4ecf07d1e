//! What the user said. The wire has no items: words come in pieces, and mostly nothing says that
//! they are complete (quirk 49), so what follows them has to.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{LiveEvent, Outbox, SpeakerInfo, TextUpdate};

use crate::wire::Transcription;

/// Once the model has begun to answer, the user's words get this long to come to an end.
const AFTER_MODEL: Duration = Duration::from_millis(500);
/// Without an answer, words are complete when none came for this long.
const WITHOUT_ANSWER: Duration = Duration::from_secs(5);
/// Words of one utterance, in bytes. What comes beyond is an utterance of its own.
const MAX_WORDS: usize = 64 * 1024;

/// The utterance that is being heard.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    count: u64,
    /// The utterance's name, while its words are not complete.
    open: Option<Arc<str>>,
    /// Its words, without those that may still change.
    words: String,
    /// Words were told that may still change.
    interim: bool,
    /// When the words are taken as complete.
    complete_at: Option<Instant>,
    /// The model has begun to answer.
    answered: bool,
    /// Who speaks, and in which language, where that is told.
    speaker: Option<SpeakerInfo>,
    /// The user said something since the last reply was done.
    pub(super) news: bool,
}

impl Hearing {
    /// Who says the words that come next, and in which language. Another person's are another
    /// utterance.
    pub(super) fn spoken_by(&mut self, words: &Transcription, out: &mut Outbox) {
        let text = |text: &Option<String>| {
            text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(Arc::<str>::from)
        };
        let (label, language) = (text(&words.speaker_label), text(&words.language_code));
        if label.is_none() && language.is_none() {
            return;
        }
        let known = self.speaker.as_ref().and_then(|speaker| speaker.label.as_ref());
        if known.is_some() && label.is_some() && known != label.as_ref() {
            self.complete(out);
            self.speaker = None;
        }
        let speaker = self.speaker.get_or_insert_default();
        speaker.label = label.or(speaker.label.take());
        speaker.language = language.or(speaker.language.take());
    }

    /// A piece of the user's words. `false`: it says again what was said (quirk 50).
    pub(super) fn words(
        &mut self,
        text: &str,
        finished: bool,
        prefix: &str,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        let doubled = self.open.is_some() && is_repetition(&self.words, text);
        if !text.is_empty() && !doubled {
            if self.words.len() + text.len() > MAX_WORDS {
                self.complete(out);
            }
            let item = self.item(prefix);
            self.words.push_str(text);
            let update = match std::mem::take(&mut self.interim) {
                true => TextUpdate::Snapshot(self.words.clone()),
                false => TextUpdate::Delta(text.to_owned()),
            };
            out.events.push_back(self.transcript(item, update));
            self.wait(now);
        }
        if finished && self.open.is_none() && text.is_empty() {
            // What was heard was nothing.
            let item = self.item(prefix);
            self.open = None;
            self.news = false;
            out.events.push_back(self.transcript(item, TextUpdate::Final(Some(String::new()))));
            self.speaker = None;
        } else if finished {
            self.complete(out);
        }
        !doubled
    }

    /// What the words may become.
    pub(super) fn interim(&mut self, text: &str, prefix: &str, now: Instant, out: &mut Outbox) {
        if text.is_empty() || self.words.len() + text.len() > MAX_WORDS {
            return;
        }
        let item = self.item(prefix);
        self.interim = true;
        let whole = format!("{}{text}", self.words);
        out.events.push_back(self.transcript(item, TextUpdate::Snapshot(whole)));
        self.wait(now);
    }

    /// The model begins to answer: only what is on its way still belongs to the utterance.
    pub(super) fn model_begins(&mut self, now: Instant) {
        self.answered = true;
        if self.open.is_some() {
            self.complete_at = Some(now + AFTER_MODEL);
        }
    }

    /// A reply is done: what the user says from now on is new.
    pub(super) fn model_ends(&mut self, out: &mut Outbox) {
        self.complete(out);
        self.answered = false;
        self.news = false;
    }

    /// The words are complete, if there are any.
    pub(super) fn complete(&mut self, out: &mut Outbox) {
        self.complete_at = None;
        let Some(item) = self.open.take() else { return };
        // What might have changed did not.
        let words = std::mem::take(&mut self.words);
        let whole = Some(words).filter(|_| !std::mem::take(&mut self.interim));
        out.events.push_back(self.transcript(item, TextUpdate::Final(whole)));
        self.speaker = None;
    }

    /// When [`Hearing::timeout`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.complete_at
    }

    pub(super) fn timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.complete_at.is_some_and(|at| at <= now) {
            self.complete(out);
        }
    }

    fn item(&mut self, prefix: &str) -> Arc<str> {
        self.news = true;
        let count = &mut self.count;
        self.open
            .get_or_insert_with(|| {
                *count += 1;
                format!("{prefix}user-{count}").into()
            })
            .clone()
    }

    fn transcript(&self, item: Arc<str>, text: TextUpdate) -> LiveEvent {
        LiveEvent::InputTranscript { item, text, speaker: self.speaker.clone() }
    }

    fn wait(&mut self, now: Instant) {
        let patience = if self.answered { AFTER_MODEL } else { WITHOUT_ANSWER };
        self.complete_at = Some(now + patience);
    }
}

/// Whether `text` is all that was said, once more. A word may be said twice; a sentence is not.
pub(super) fn is_repetition(words: &str, text: &str) -> bool {
    let (words, text) = (words.trim(), text.trim());
    words == text && text.contains(' ') && text.len() >= 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(out: &mut Outbox) -> Vec<(String, TextUpdate)> {
        out.events
            .drain(..)
            .map(|event| match event {
                LiveEvent::InputTranscript { item, text, .. } => (item.to_string(), text),
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
    fn quirk_49_words_are_complete_when_the_model_has_begun_or_all_is_quiet() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.words("Hello", false, "", now, &mut out);
        hearing.model_begins(now);
        hearing.words(" there", false, "", now, &mut out);
        hearing.timeout(now + AFTER_MODEL, &mut out);
        let item = || "user-1".to_owned();
        assert_eq!(
            told(&mut out),
            [(item(), delta("Hello")), (item(), delta(" there")), (item(), whole("Hello there"))]
        );
        hearing.model_ends(&mut out);
        hearing.words("And", false, "", now, &mut out);
        assert_eq!(hearing.deadline(), Some(now + WITHOUT_ANSWER));
        assert_eq!(told(&mut out), [("user-2".into(), delta("And"))]);
    }

    #[test]
    fn quirk_50_what_is_said_again_is_told_once() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        assert!(hearing.words("What time ", false, "", now, &mut out));
        assert!(hearing.words("is it?", false, "", now, &mut out));
        assert!(!hearing.words("What time is it?", false, "", now, &mut out));
        assert!(hearing.words(" No", false, "", now, &mut out));
        assert!(hearing.words(" no", false, "", now, &mut out));
        assert_eq!(told(&mut out).len(), 4);
    }

    #[test]
    fn speech_without_words_is_told_as_that() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.words("", true, "", now, &mut out);
        assert_eq!(told(&mut out), [("user-1".into(), whole(""))]);
        assert!(!hearing.news && hearing.deadline().is_none());
        hearing.words("Yes", true, "", now, &mut out);
        assert_eq!(told(&mut out).len(), 2);
        hearing.words("", true, "", now, &mut out);
        assert_eq!(told(&mut out), [("user-3".into(), whole(""))]);
    }

    #[test]
    fn words_that_may_change_are_replaced() {
        let (mut hearing, mut out, now) = (Hearing::default(), Outbox::default(), Instant::now());
        hearing.interim("wreck a", "", now, &mut out);
        hearing.interim("wreck a nice", "", now, &mut out);
        hearing.words("recognise", false, "", now, &mut out);
        hearing.words(" speech", true, "", now, &mut out);
        let snapshot = |text: &str| TextUpdate::Snapshot(text.into());
        let texts: Vec<_> = told(&mut out).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            texts,
            [
                snapshot("wreck a"),
                snapshot("wreck a nice"),
                snapshot("recognise"),
                delta(" speech"),
                whole("recognise speech")
            ]
        );
    }
}
