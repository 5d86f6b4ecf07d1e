//! The offline preset: Moonshine, the phrase matcher, hibari.
//!
//! Everything runs on the processor, without a network, from model files that lie beside the
//! program: see [`ModelDirectory::locate`] for where.

mod error;
mod hibari;
mod inference;
pub mod matcher;
mod models;
mod moonshine;
mod numbers;
mod phonemes;
mod preset;
mod silero;
mod spoken_text;
mod vocoder;

pub use error::OfflineError;
pub use hibari::Hibari;
pub use models::{MODELS_VARIABLE, ModelDirectory};
pub use moonshine::Moonshine;
pub use preset::{Detector, OfflineOptions, OfflineSpeech};
pub use silero::{Silero, SileroDetector};
