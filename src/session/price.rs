//! What a session costs.

use std::fmt;

use antiphon_types::Usage;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of money, counted in billionths of a unit of its currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    const BILLION: f64 = 1e9;

    /// So many units, such as dollars. What is less than nothing, or no number, is nothing.
    pub fn new(units: f64) -> Self {
        // Saturates, and takes what is no number as 0.
        Self((units * Self::BILLION).round() as u64)
    }

    /// In units.
    pub fn units(self) -> f64 {
        self.0 as f64 / Self::BILLION
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4}", self.units())
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.units())
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(Self::new)
    }
}

/// The prices of a model: of a million tokens, or of a minute of audio for providers that count
/// time. [`Default`] is for nothing; fill in what the provider charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PriceTable {
    /// Text tokens in that were not read from a cache.
    pub input_text: Cost,
    /// Audio tokens in, likewise.
    pub input_audio: Cost,
    /// Image tokens in, likewise.
    pub input_image: Cost,
    /// Text tokens in that were read from a cache.
    pub cached_text: Cost,
    /// Audio tokens in that were.
    pub cached_audio: Cost,
    /// Image tokens in that were.
    pub cached_image: Cost,
    /// Text tokens out.
    pub output_text: Cost,
    /// Audio tokens out.
    pub output_audio: Cost,
    /// A minute of audio heard.
    pub input_minute: Cost,
    /// A minute of audio spoken.
    pub output_minute: Cost,
}

impl PriceTable {
    /// What `usage` costs. Cached tokens are part of those in, and are counted once, at their own
    /// price.
    pub fn cost(&self, usage: &Usage) -> Cost {
        const MILLION: u128 = 1_000_000;
        const MINUTE_MS: u128 = 60_000;
        let cached_audio = usage.cached_audio_tokens.min(usage.input_audio_tokens);
        let cached_image = usage.cached_image_tokens.min(usage.input_image_tokens);
        let cached_text = usage
            .cached_tokens
            .saturating_sub(cached_audio.saturating_add(cached_image))
            .min(usage.input_text_tokens);
        let of = |count: u64, price: Cost, per: u128| {
            (u128::from(count) * u128::from(price.0)).saturating_mul(MILLION * MINUTE_MS / per)
        };
        let parts = [
            of(usage.input_text_tokens - cached_text, self.input_text, MILLION),
            of(usage.input_audio_tokens - cached_audio, self.input_audio, MILLION),
            of(usage.input_image_tokens - cached_image, self.input_image, MILLION),
            of(cached_text, self.cached_text, MILLION),
            of(cached_audio, self.cached_audio, MILLION),
            of(cached_image, self.cached_image, MILLION),
            of(usage.output_text_tokens, self.output_text, MILLION),
            of(usage.output_audio_tokens, self.output_audio, MILLION),
            of(usage.input_audio_ms, self.input_minute, MINUTE_MS),
            of(usage.output_audio_ms, self.output_minute, MINUTE_MS),
        ];
        let sum = parts.into_iter().fold(0u128, u128::saturating_add) / (MILLION * MINUTE_MS);
        Cost(u64::try_from(sum).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices() -> PriceTable {
        PriceTable {
            input_text: Cost::new(4.0),
            input_audio: Cost::new(32.0),
            cached_text: Cost::new(0.4),
            cached_audio: Cost::new(0.4),
            output_text: Cost::new(16.0),
            output_audio: Cost::new(64.0),
            output_minute: Cost::new(0.06),
            ..PriceTable::default()
        }
    }

    #[test]
    fn trial_h04_cached_tokens_are_counted_once() {
        let mut usage = Usage::default();
        usage.input_text_tokens = 1_000;
        usage.input_audio_tokens = 2_000;
        usage.cached_tokens = 1_500;
        usage.cached_audio_tokens = 1_100;
        usage.output_text_tokens = 300;
        usage.output_audio_tokens = 500;
        // 600 x 4 + 900 x 32 + 400 x 0.4 + 1,100 x 0.4 + 300 x 16 + 500 x 64, per million.
        let by_hand = (2_400.0 + 28_800.0 + 160.0 + 440.0 + 4_800.0 + 32_000.0) / 1e6;
        assert!((prices().cost(&usage).units() - by_hand).abs() < 1e-9);
    }

    #[test]
    fn nonsense_costs_no_less_than_nothing() {
        let mut usage = Usage::default();
        usage.cached_tokens = 9_999;
        usage.cached_audio_tokens = 5;
        assert_eq!(prices().cost(&usage), Cost::ZERO);
        usage.output_audio_tokens = u64::MAX;
        assert_eq!(prices().cost(&usage), Cost(u64::MAX));
        assert_eq!(Cost::new(-1.0), Cost::ZERO);
        assert_eq!(Cost::new(f64::NAN), Cost::ZERO);
    }

    #[test]
    fn audio_that_is_paid_by_the_minute() {
        let mut usage = Usage::default();
        usage.output_audio_ms = 90_000;
        assert_eq!(prices().cost(&usage), Cost::new(0.09));
    }
}
