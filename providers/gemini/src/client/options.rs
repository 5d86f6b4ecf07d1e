//! Options by id, from the two layers of a [`LiveConfig`].

use std::sync::Arc;

use antiphon_live::{LiveConfig, LiveError};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Every id that means something here. [`crate::Gemini`] explains them.
const KNOWN: [&str; 28] = [
    "api_version",
    "candidate_count",
    "custom_vocabulary",
    "explicit_vad_signal",
    "google_search",
    "labels",
    "language_code",
    "location",
    "max_output_tokens",
    "media_resolution",
    "output_modality",
    "platform",
    "proactive_audio",
    "proactive_video",
    "project",
    "safety_settings",
    "seed",
    "session_resumption",
    "temperature",
    "text_channel",
    "tools",
    "top_k",
    "top_p",
    "transcription_languages",
    "transcription_mode",
    "translation",
    "transparent_resumption",
    "user_project",
];

/// The options of one configuration.
pub(super) struct Options<'a>(&'a LiveConfig);

impl<'a> Options<'a> {
    pub(super) fn new(config: &'a LiveConfig) -> Self {
        Self(config)
    }

    /// An option in its type; `null` is absent. Those of this provider win.
    pub(super) fn take<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, LiveError> {
        debug_assert!(KNOWN.contains(&id), "{id}");
        let value = self.0.provider_options.get(id).or_else(|| self.0.options.get(id));
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|error| invalid(id, error))
    }

    /// A switch.
    pub(super) fn is_on(&self, id: &str) -> Result<Option<bool>, LiveError> {
        self.take(id)
    }

    /// A number within bounds.
    pub(super) fn number(&self, id: &str, low: f64, high: f64) -> Result<Option<f64>, LiveError> {
        match self.take::<f64>(id)? {
            Some(number) if !(low..=high).contains(&number) => {
                Err(invalid(id, format_args!("{number} is not between {low} and {high}")))
            }
            number => Ok(number),
        }
    }

    /// One word of a list.
    pub(super) fn word(
        &self,
        id: &str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, LiveError> {
        let Some(word) = self.take::<String>(id)? else { return Ok(None) };
        match words.iter().find(|known| **known == word) {
            Some(known) => Ok(Some(known)),
            None => Err(invalid(id, format_args!("{word:?} is none of {}", words.join(", ")))),
        }
    }

    /// Something in the words of the wire.
    pub(super) fn wire<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, LiveError> {
        self.take::<Value>(id)?
            .map(|value| serde_json::from_value(value).map_err(|error| invalid(id, error)))
            .transpose()
    }

    /// The ids that mean nothing here.
    pub(super) fn unsupported(&self) -> Vec<Arc<str>> {
        let ids = self.0.options.keys().chain(self.0.provider_options.keys());
        let mut ids: Vec<Arc<str>> =
            ids.filter(|id| !KNOWN.contains(&id.as_str())).map(|id| id.as_str().into()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// An option that is wrong.
pub(super) fn invalid(id: &str, why: impl std::fmt::Display) -> LiveError {
    LiveError::InvalidConfig(format!("option {id}: {why}"))
}
