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
    /// Adds `other` to this count; what a server makes up does not overflow it.
    pub fn add(&mut self, other: &Self) {
        let counts = [
            (&mut self.input_text_tokens, other.input_text_tokens),
            (&mut self.input_audio_tokens, other.input_audio_tokens),
            (&mut self.input_image_tokens, other.input_image_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.cached_audio_tokens, other.cached_audio_tokens),
            (&mut self.cached_image_tokens, other.cached_image_tokens),
            (&mut self.output_text_tokens, other.output_text_tokens),
            (&mut self.output_audio_tokens, other.output_audio_tokens),
            (&mut self.input_audio_ms, other.input_audio_ms),
            (&mut self.output_audio_ms, other.output_audio_ms),
        ];
        for (count, more) in counts {
            *count = count.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_does_not_overflow() {
        let mut usage = Usage { input_text_tokens: u64::MAX - 1, ..Usage::default() };
        usage.add(&Usage { input_text_tokens: 7, output_audio_tokens: 7, ..Usage::default() });
        assert_eq!((usage.input_text_tokens, usage.output_audio_tokens), (u64::MAX, 7));
    }
}
