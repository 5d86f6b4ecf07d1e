//! The offline preset: Moonshine, the phrase matcher, hibari.
//!
//! Everything runs on the processor, without a network, from model files that lie beside the
//! program: see [`ModelDirectory::locate`] for where. [`provider`] puts it all together;
//! [`OfflineSpeech::provider`] puts another model between the same ears and mouth.
//!
//! ```no_run
//! # async fn run() -> Result<(), antiphon_cascade::offline::OfflineError> {
//! use antiphon_cascade::offline::{OfflineOptions, provider};
//!
//! let provider = provider(OfflineOptions::default()).await?;
//! # drop(provider);
//! # Ok(())
//! # }
//! ```

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
pub use matcher::PhraseMatcher;
pub use models::{MODELS_VARIABLE, ModelDirectory};
pub use moonshine::Moonshine;
pub use preset::{Detector, OfflineOptions, OfflineSpeech, provider};
pub use silero::{Silero, SileroDetector};
