//! The offline preset: Moonshine, the phrase matcher, hibari.

mod phonemes;
