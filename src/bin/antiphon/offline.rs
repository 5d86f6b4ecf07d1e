//! The offline provider, loaded.

use std::sync::Arc;

use antiphon::providers::cascade::{
    CascadeProvider, Synthesizer,
    offline::{OfflineOptions, OfflineSpeech, matcher::PhraseMatcher},
};

use crate::{args::ModelArguments, failure::Failure};

/// Ears and mouth.
pub async fn load(arguments: &ModelArguments) -> Result<OfflineSpeech, Failure> {
    let mut options = OfflineOptions::default();
    options.models = arguments.models.clone();
    OfflineSpeech::load(options).await.map_err(Failure::failed)
}

/// The whole, with the phrase matcher between ears and mouth.
pub fn provider(speech: OfflineSpeech) -> CascadeProvider {
    speech.provider(Arc::new(PhraseMatcher::new()))
}

/// Refuses a voice that there is not, and says which there are.
pub fn check_voice(synthesizer: &dyn Synthesizer, voice: &str) -> Result<(), Failure> {
    let voices = synthesizer.voices();
    if voices.iter().any(|known| &**known == voice) {
        return Ok(());
    }
    let voices: Vec<&str> = voices.iter().map(|known| &**known).collect();
    Err(Failure::usage(format!("no voice {voice:?}; there is: {}", voices.join(", "))))
}
