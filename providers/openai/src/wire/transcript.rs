//! Transcripts of the user's audio.

use serde::{Deserialize, Serialize};

use super::lenient;

/// Words of the user's audio as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionCompleted {
    /// The event's id.
    pub event_id: String,
    /// The user's item.
    pub item_id: String,
    /// The part of it.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
    /// The words.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub transcript: String,
    /// What they cost; the vendor always tells.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub usage: Option<TranscriptionUsage>,
    /// The languages heard.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub languages: Option<Vec<TranscriptionLanguage>>,
    /// How sure each token is.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub logprobs: Option<Vec<LogProb>>,
}

/// What a transcript cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TranscriptionUsage {
    /// In tokens.
    Tokens {
        /// In.
        input_tokens: u64,
        /// Out.
        output_tokens: u64,
        /// Both.
        total_tokens: u64,
        /// In, by modality.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_token_details: Option<TranscriptionTokens>,
    },
    /// In time.
    Duration {
        /// Seconds of audio.
        seconds: f64,
    },
}

/// Tokens of the user's audio, by modality.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionTokens {
    /// Audio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_tokens: Option<u64>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_tokens: Option<u64>,
}

/// A language that was heard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TranscriptionLanguage {
    /// Its code.
    pub code: String,
}

/// How sure one token is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogProb {
    /// The token.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<i64>,
    /// The logarithm of its probability.
    pub logprob: f64,
}

/// More words of the user's audio.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionDelta {
    /// The event's id.
    pub event_id: String,
    /// The user's item.
    pub item_id: String,
    /// The part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<u32>,
    /// The words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<String>,
    /// How sure each token is.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub logprobs: Option<Vec<LogProb>>,
}

/// There will be no words of the user's audio.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionFailed {
    /// The event's id.
    pub event_id: String,
    /// The user's item.
    pub item_id: String,
    /// The part of it.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
    /// Why.
    pub error: TranscriptionError,
}

/// Why there are no words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionError {
    /// Its kind.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}

/// Who said what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionSegment {
    /// The event's id.
    pub event_id: String,
    /// The user's item.
    pub item_id: String,
    /// The part of it.
    pub content_index: u32,
    /// The segment's id.
    pub id: String,
    /// The speaker's label.
    pub speaker: String,
    /// The words.
    pub text: String,
    /// Seconds from the item's beginning.
    pub start: f64,
    /// Seconds from the item's beginning.
    pub end: f64,
}
