//! Options by id, from the two layers of a [`LiveConfig`].

use std::sync::Arc;

use antiphon_live::{LiveConfig, LiveError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::wire::Facts;

/// Every id that means something here, with what it takes. [`crate::OpenAi`] explains them.
const KNOWN: [&str; 35] = [
    "agent_id",
    "api_version",
    "create_response",
    "dialect",
    "eagerness",
    "idle_timeout_ms",
    "include",
    "input_audio_format",
    "input_audio_rate",
    "max_output_tokens",
    "mcp_servers",
    "noise_reduction",
    "organization",
    "output_audio_format",
    "output_audio_rate",
    "output_modality",
    "parallel_tool_calls",
    "project",
    "project_id",
    "prompt",
    "reasoning_effort",
    "replies_after_tools",
    "safety_identifier",
    "session",
    "session_id",
    "speed",
    "subprotocol",
    "tool_choice",
    "tracing",
    "transcription_delay",
    "transcription_model",
    "transcription_prompt",
    "truncation",
    "turn_detection",
    "vad_threshold",
];

/// The options of one configuration.
pub(super) struct Options<'a> {
    config: &'a LiveConfig,
    /// Lists of ids that mean nothing in the dialect.
    without: &'static [&'static [&'static str]],
}

impl<'a> Options<'a> {
    /// Before the dialect is known.
    pub(super) fn new(config: &'a LiveConfig) -> Self {
        Self { config, without: &[] }
    }

    /// Without those that mean nothing in the dialect.
    pub(super) fn of(config: &'a LiveConfig, facts: &Facts) -> Self {
        Self { config, without: facts.without }
    }

    /// An option's value; `null` is absent. Those of this provider win.
    fn value(&self, id: &str) -> Option<&'a Value> {
        debug_assert!(KNOWN.contains(&id), "{id}");
        if !self.has_meaning(id) {
            return None;
        }
        let Self { config, .. } = self;
        let value = config.provider_options.get(id).or_else(|| config.options.get(id));
        value.filter(|value| !value.is_null())
    }

    /// Whether an option of this id does anything in the dialect.
    pub(super) fn has_meaning(&self, id: &str) -> bool {
        KNOWN.contains(&id) && !self.without.iter().any(|ids| ids.contains(&id))
    }

    /// An option in its type.
    pub(super) fn take<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, LiveError> {
        let Some(value) = self.value(id) else { return Ok(None) };
        T::deserialize(value)
            .map(Some)
            .map_err(|error| LiveError::InvalidConfig(format!("option {id}: {error}")))
    }

    /// A number within bounds.
    pub(super) fn number(&self, id: &str, low: f64, high: f64) -> Result<Option<f64>, LiveError> {
        match self.take::<f64>(id)? {
            Some(number) if !(low..=high).contains(&number) => Err(LiveError::InvalidConfig(
                format!("option {id}: {number} is not between {low} and {high}"),
            )),
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
            Some(&known) => Ok(Some(known)),
            None => {
                let words = words.join(", ");
                Err(LiveError::InvalidConfig(format!("option {id}: {word:?} is none of {words}")))
            }
        }
    }

    /// The ids that mean nothing here.
    pub(super) fn unsupported(&self) -> Vec<Arc<str>> {
        let ids = self.config.options.keys().chain(self.config.provider_options.keys());
        let mut ids: Vec<Arc<str>> =
            ids.filter(|id| !self.has_meaning(id)).map(|id| id.as_str().into()).collect();
        ids.dedup();
        ids
    }
}
