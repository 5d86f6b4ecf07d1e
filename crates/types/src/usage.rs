//! Token usage.

use serde::{Deserialize, Serialize};

/// Tokens that a reply cost, by modality. Cached tokens are part of the input counts, not beside
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Text tokens in.
    pub input_text_tokens: u64,
    /// Audio tokens in.
    pub input_audio_tokens: u64,
    /// Image tokens in.
    pub input_image_tokens: u64,
    /// Of all tokens in, those read from a cache.
    pub cached_tokens: u64,
    /// Of the cached ones, audio tokens.
    pub cached_audio_tokens: u64,
    /// Of the cached ones, image tokens.
    pub cached_image_tokens: u64,
    /// Text tokens out.
    pub output_text_tokens: u64,
    /// Audio tokens out.
    pub output_audio_tokens: u64,
    /// Milliseconds of audio heard, for providers that count time instead of tokens.
    pub input_audio_ms: u64,
    /// Milliseconds of audio spoken, likewise.
    pub output_audio_ms: u64,
}

impl Usage {
    /// Adds `other` to this count.
    pub fn add(&mut self, other: &Self) {
        self.input_text_tokens += other.input_text_tokens;
        self.input_audio_tokens += other.input_audio_tokens;
        self.input_image_tokens += other.input_image_tokens;
        self.cached_tokens += other.cached_tokens;
        self.cached_audio_tokens += other.cached_audio_tokens;
        self.cached_image_tokens += other.cached_image_tokens;
        self.output_text_tokens += other.output_text_tokens;
        self.output_audio_tokens += other.output_audio_tokens;
        self.input_audio_ms += other.input_audio_ms;
        self.output_audio_ms += other.output_audio_ms;
    }
}
