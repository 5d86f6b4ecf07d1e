//! Ears and mouths.

use std::{pin::Pin, sync::Arc};

use antiphon_types::{AudioFrame, Status};
use async_trait::async_trait;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

/// Turns speech into words. Must not block its thread: blocking inference runs on a pool of its
/// own.
#[async_trait]
pub trait Recognizer: Send + Sync + 'static {
    /// A short constant name.
    fn name(&self) -> &str;

    /// The sample rate that [`Utterance::audio`] must have, in Hz.
    fn sample_rate_hz(&self) -> u32;

    /// The words of one utterance. Dropping the future gives the result up.
    async fn recognize(&self, utterance: Utterance) -> Result<Transcript, SpeechError>;
}

/// What a recogniser is given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Utterance {
    /// Mono PCM in the recogniser's rate, from a little before the speech to now.
    pub audio: AudioFrame,
    /// The user has finished; otherwise a partial result is wanted, and may be cheaper and worse.
    pub last: bool,
    /// A BCP 47 language tag.
    pub locale: Option<Arc<str>>,
    /// Terms to listen for.
    pub vocabulary: Arc<[String]>,
}

impl Utterance {
    /// A finished utterance.
    pub fn new(audio: AudioFrame) -> Self {
        Self { audio, last: true, locale: None, vocabulary: Arc::new([]) }
    }
}

/// What a recogniser heard.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Transcript {
    /// The words; empty when there were none.
    pub text: String,
    /// What else may have been said, the likeliest first: for models that can tell from what is
    /// asked of them which reading makes sense. None for partial results.
    pub alternatives: Vec<Alternative>,
    /// The language that was spoken, where the recogniser knows: a BCP 47 tag.
    pub language: Option<Arc<str>>,
}

impl Transcript {
    /// These words.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// These words, in this language.
    pub fn language(mut self, language: impl Into<Arc<str>>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// This and what was said after it, as one. Of what else may have been said, the likeliest stay.
    pub(crate) fn followed_by(self, after: Self) -> Self {
        let joined = |before: &str, after: &str| match (before.trim(), after.trim()) {
            ("", text) | (text, "") => text.to_owned(),
            (before, after) => format!("{before} {after}"),
        };
        let mut alternatives: Vec<Alternative> =
            self.alternatives
                .iter()
                .map(|other| Alternative::new(joined(&other.text, &after.text), other.log_ratio))
                .chain(after.alternatives.iter().map(|other| {
                    Alternative::new(joined(&self.text, &other.text), other.log_ratio)
                }))
                .collect();
        alternatives.sort_by(|a, b| b.log_ratio.total_cmp(&a.log_ratio));
        alternatives.truncate(MOST_ALTERNATIVES);
        let text = joined(&self.text, &after.text);
        Self { text, alternatives, language: self.language.or(after.language) }
    }
}

/// Alternatives of words that were put together from parts.
const MOST_ALTERNATIVES: usize = 8;

/// Another reading of what was said.
///
/// The model finds those of a spoken message in its metadata, as a list of
/// `{"text": "...", "logRatio": -0.7}` under [`Alternative::METADATA`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Alternative {
    /// The words.
    pub text: String,
    /// How likely it is beside the first reading: the natural logarithm of the ratio, at most 0.
    pub log_ratio: f32,
}

impl Alternative {
    /// The key in a user message's metadata under which alternatives stand.
    pub const METADATA: &str = "speechAlternatives";

    /// These words, so much less likely than the first reading.
    pub fn new(text: impl Into<String>, log_ratio: f32) -> Self {
        Self { text: text.into(), log_ratio }
    }
}

/// Turns words into speech. Must not block its thread.
#[async_trait]
pub trait Synthesizer: Send + Sync + 'static {
    /// A short constant name.
    fn name(&self) -> &str;

    /// The sample rate of what it speaks, in Hz; PCM, mono.
    fn sample_rate_hz(&self) -> u32;

    /// The voices it has; the first is the default.
    fn voices(&self) -> Vec<Arc<str>>;

    /// Speaks one sentence or a short text. Dropping the future or the stream stops it.
    async fn synthesize(&self, request: SpeechRequest) -> Result<SpeechStream, SpeechError>;
}

/// Audio as it is made.
pub type SpeechStream = Pin<Box<dyn Stream<Item = Result<AudioFrame, SpeechError>> + Send>>;

/// What a synthesiser is asked.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpeechRequest {
    /// The words, as written.
    pub text: String,
    /// One of its voices; `None` is the first.
    pub voice: Option<Arc<str>>,
    /// A BCP 47 language tag.
    pub locale: Option<Arc<str>>,
}

impl SpeechRequest {
    /// A request in the default voice.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// What goes wrong with ears and mouths.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{part}: {message}")]
#[non_exhaustive]
pub struct SpeechError {
    /// The recogniser's, synthesiser's or detector's name.
    pub part: Arc<str>,
    /// What happened.
    pub message: String,
    /// The canonical code.
    pub status: Status,
}

impl SpeechError {
    /// An error of `part`.
    pub fn new(part: impl Into<Arc<str>>, status: Status, message: impl Into<String>) -> Self {
        Self { part: part.into(), message: message.into(), status }
    }
}
