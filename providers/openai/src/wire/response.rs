//! Responses: what is asked for, and what became of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    AudioFormat, Item, MaxTokens, Modality, Prompt, Reasoning, Tool, ToolChoice, Voice, lenient,
    open_enum::open_enum,
};

/// What a response is to be, where it differs from the session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseParams {
    /// Format and voice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<ResponseAudio>,
    /// `auto` writes to the conversation, `none` does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Items to answer instead of the conversation; empty is none at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Vec<Item>>,
    /// Instructions instead of the session's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<MaxTokens>,
    /// At most 16 pairs, keys of 64 and values of 512 characters; they come back with the
    /// response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// `["audio"]` or `["text"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_modalities: Option<Vec<Modality>>,
    /// Several calls in one response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// A stored prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// Thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// Whether and which tool must be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// The tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Tool>>,
}

/// A response's voice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseAudio {
    /// Format and voice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<ResponseAudioOutput>,
}

/// A response's format and voice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseAudioOutput {
    /// The format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<AudioFormat>,
    /// The voice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice: Option<Voice>,
}

/// A response as the server tells of it. Only the id matters; everything else may be missing or
/// malformed, and is then absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Response {
    /// Its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `realtime.response`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ResponseStatus>,
    /// Why it ended so.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub status_details: Option<StatusDetails>,
    /// Its items.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub output: Option<Vec<Item>>,
    /// The conversation it belongs to; none when it is out of band.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// What it gives.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub output_modalities: Option<Vec<Modality>>,
    /// Its bound.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub max_output_tokens: Option<MaxTokens>,
    /// Format and voice.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub audio: Option<ResponseAudio>,
    /// What it cost.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub usage: Option<Usage>,
    /// What its request said.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub metadata: Option<BTreeMap<String, String>>,
}

open_enum! {
    /// How far a response is.
    ResponseStatus {
        /// It is being made.
        InProgress = "in_progress",
        /// It is whole.
        Completed = "completed",
        /// It was stopped.
        Cancelled = "cancelled",
        /// It ran into a bound.
        Incomplete = "incomplete",
        /// It failed.
        Failed = "failed",
    }
}

/// Why a response ended so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusDetails {
    /// The status again.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `turn_detected`, `client_cancelled`, `max_output_tokens` or `content_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ResponseError>,
}

/// What failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseError {
    /// The kind of error.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its code, such as `rate_limit_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Tokens that a response cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// All.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// In.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// In, by modality.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_token_details: Option<InputTokens>,
    /// Out, by modality.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_token_details: Option<OutputTokens>,
}

/// Tokens in, by modality.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InputTokens {
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_tokens: Option<u64>,
    /// Audio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_tokens: Option<u64>,
    /// Images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_tokens: Option<u64>,
    /// Of all, those read from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Those read from a cache, by modality.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens_details: Option<CachedTokens>,
}

/// Tokens read from a cache, by modality.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CachedTokens {
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_tokens: Option<u64>,
    /// Audio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_tokens: Option<u64>,
    /// Images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_tokens: Option<u64>,
}

/// Tokens out, by modality.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputTokens {
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_tokens: Option<u64>,
    /// Audio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_tokens: Option<u64>,
}
