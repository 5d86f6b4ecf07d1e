//! What a server makes of a set-up, or why it hangs up on it.

use std::time::Duration;

use super::Hangup;
use crate::{
    generation::Generation,
    wire::{ActivityHandling, Behavior, GenerationConfig, Modality, Setup, Tool},
};

/// Silence that ends a turn, where the client says nothing.
const DEFAULT_SILENCE: Duration = Duration::from_millis(500);

/// A session as it was asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Session {
    /// What its model can do.
    pub generation: Generation,
    /// The server tells from the audio when the user speaks.
    pub automatic: bool,
    /// The user's speech stops the model.
    pub interrupts: bool,
    /// Silence that ends the user's turn.
    pub silence: Duration,
    /// The model speaks; otherwise it writes.
    pub speaks: bool,
    /// The user's words are told.
    pub input_transcripts: bool,
    /// The model's words are told.
    pub output_transcripts: bool,
    /// Handles to resume by are told.
    pub hands_out_handles: bool,
    /// It says which of the client's messages a handle holds.
    pub(super) counts_messages: bool,
    /// The beginning and end of the user's speech is told.
    pub tells_speech: bool,
    /// What was said before is given first: until its end nothing else may come.
    pub history_comes: bool,
    behaviors: Vec<(String, Option<Behavior>)>,
}

impl Session {
    /// The session that `setup` asks for.
    pub(super) fn new(setup: &Setup, vertex: bool) -> Result<Self, Hangup> {
        let model = setup.model.as_deref().unwrap_or_default();
        let named = if vertex {
            model.contains("publishers/google/models/")
        } else {
            model.starts_with("models/") || model.starts_with("tunedModels/")
        };
        if !named {
            return Err(Hangup::new(1008, format!("{model} is not found for this API version.")));
        }
        let generation = Generation::of(model);
        let config = setup.generation_config.clone().unwrap_or_default();
        let modalities = config.response_modalities.clone();
        let modalities = modalities.unwrap_or_else(|| vec![Modality::Audio]);
        let [modality] = modalities.as_slice() else { return Err(Hangup::invalid()) };
        let affective = config.enable_affective_dialog == Some(true);
        let quiet = setup.proactivity.as_ref().and_then(|told| told.proactive_audio);
        let proactive = match generation.name {
            "2.5" => false,
            "3.1" => quiet.is_some(),
            _ => quiet == Some(false),
        };
        let resumption = setup.session_resumption.as_ref();
        let transparent = resumption.is_some_and(|told| told.transparent.is_some());
        let vertex_only = !vertex && (transparent || setup.explicit_vad_signal.is_some());
        if asks_for_what_is_never_live(&config)
            || affective && !generation.affective_dialog
            || proactive
            || vertex_only
        {
            return Err(Hangup::invalid());
        }
        let behaviors = behaviors(setup.tools.as_deref().unwrap_or_default());
        let odd = |(name, behavior): &(String, Option<Behavior>)| {
            name.is_empty() || behavior.is_some() && !generation.non_blocking_tools
        };
        if behaviors.iter().any(odd) {
            return Err(Hangup::invalid());
        }
        let input = setup.realtime_input_config.clone().unwrap_or_default();
        let detection = input.automatic_activity_detection.unwrap_or_default();
        let silence = detection.silence_duration_ms.map(|ms| Duration::from_millis(ms.count()));
        Ok(Self {
            generation,
            automatic: detection.disabled != Some(true),
            interrupts: input.activity_handling != Some(ActivityHandling::NoInterruption),
            silence: silence.unwrap_or(DEFAULT_SILENCE),
            speaks: *modality == Modality::Audio,
            input_transcripts: setup.input_audio_transcription.is_some(),
            output_transcripts: setup.output_audio_transcription.is_some(),
            hands_out_handles: resumption.is_some(),
            counts_messages: resumption.is_some_and(|told| told.transparent == Some(true)),
            tells_speech: generation.tells_speech || setup.explicit_vad_signal == Some(true),
            history_comes: setup
                .history_config
                .as_ref()
                .is_some_and(|told| told.initial_history_in_client_content == Some(true)),
            behaviors,
        })
    }

    /// Whether the model waits for a function.
    pub fn waits_for(&self, function: &str) -> bool {
        let declared = self.behaviors.iter().find(|(name, _)| name == function);
        match declared.and_then(|(_, behavior)| behavior.as_ref()) {
            Some(Behavior::NonBlocking) => false,
            Some(Behavior::Blocking) => true,
            _ => !self.generation.non_blocking_by_default,
        }
    }

    /// Other functions.
    pub(super) fn declare(&mut self, tools: &[Tool]) {
        self.behaviors = behaviors(tools);
    }

    /// Audio may come by the name that newer models refuse (quirk 57).
    pub(super) fn takes_media_chunks(&self) -> bool {
        self.generation.name == "2.5"
    }
}

/// Fields that other APIs of the vendor have, and that this one hangs up on.
fn asks_for_what_is_never_live(config: &GenerationConfig) -> bool {
    config.response_logprobs.is_some()
        || config.response_mime_type.is_some()
        || config.logprobs.is_some()
        || config.response_schema.is_some()
        || config.stop_sequences.is_some()
        || config.routing_config.is_some()
        || config.audio_timestamp.is_some()
}

fn behaviors(tools: &[Tool]) -> Vec<(String, Option<Behavior>)> {
    let functions = tools.iter().flat_map(|tool| tool.function_declarations.iter().flatten());
    functions
        .map(|function| (function.name.clone().unwrap_or_default(), function.behavior.clone()))
        .collect()
}
