//! What the server makes of a set-up, or why it hangs up on it.

use antiphon_gemini::{
    Generation,
    wire::{ActivityHandling, Behavior, Modality, Setup, unknown_keys},
};

/// The vendor's words for most of what is wrong.
pub(super) const INVALID: &str = "Request contains an invalid argument.";

/// Why the server hangs up: code and reason.
pub(super) type Hangup = (u16, String);

/// Hangs up because something is wrong.
pub(super) fn invalid() -> Hangup {
    (1007, INVALID.into())
}

/// A session as it was asked for.
pub(super) struct Session {
    pub(super) generation: Generation,
    pub(super) automatic: bool,
    pub(super) interrupts: bool,
    pub(super) silence_ms: u64,
    pub(super) speaks: bool,
    pub(super) input_transcripts: bool,
    pub(super) output_transcripts: bool,
    pub(super) hands_out_handles: bool,
    pub(super) tells_speech: bool,
    /// History is given first.
    pub(super) history_comes: bool,
    behaviors: Vec<(String, Option<Behavior>)>,
}

impl Session {
    pub(super) fn new(setup: &Setup, vertex: bool) -> Result<Self, Hangup> {
        let model = setup.model.as_deref().unwrap_or_default();
        let named = if vertex {
            model.contains("publishers/google/models/")
        } else {
            model.starts_with("models/") || model.starts_with("tunedModels/")
        };
        if !named {
            return Err((1008, format!("{model} is not found for this API version.")));
        }
        let generation = Generation::of(model);
        let config = setup.generation_config.clone().unwrap_or_default();
        let modalities = config.response_modalities.unwrap_or_else(|| vec![Modality::Audio]);
        let [modality] = modalities.as_slice() else { return Err(invalid()) };
        let never = config.response_logprobs.is_some()
            || config.response_mime_type.is_some()
            || config.logprobs.is_some()
            || config.response_schema.is_some()
            || config.stop_sequences.is_some()
            || config.routing_config.is_some()
            || config.audio_timestamp.is_some();
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
        if never || affective && !generation.affective_dialog || proactive || vertex_only {
            return Err(invalid());
        }
        let tools = setup.tools.iter().flatten();
        let functions = tools.flat_map(|tool| tool.function_declarations.iter().flatten());
        let behaviors: Vec<_> = functions
            .map(|function| (function.name.clone().unwrap_or_default(), function.behavior.clone()))
            .collect();
        let odd = |(name, behavior): &(String, Option<Behavior>)| {
            name.is_empty() || behavior.is_some() && !generation.non_blocking_tools
        };
        if behaviors.iter().any(odd) {
            return Err(invalid());
        }
        let input = setup.realtime_input_config.clone().unwrap_or_default();
        let detection = input.automatic_activity_detection.unwrap_or_default();
        Ok(Self {
            generation,
            automatic: detection.disabled != Some(true),
            interrupts: input.activity_handling != Some(ActivityHandling::NoInterruption),
            silence_ms: detection.silence_duration_ms.map_or(500, |ms| ms.count()),
            speaks: *modality == Modality::Audio,
            input_transcripts: setup.input_audio_transcription.is_some(),
            output_transcripts: setup.output_audio_transcription.is_some(),
            hands_out_handles: resumption.is_some(),
            tells_speech: generation.tells_speech || setup.explicit_vad_signal == Some(true),
            history_comes: setup
                .history_config
                .as_ref()
                .is_some_and(|told| told.initial_history_in_client_content == Some(true)),
            behaviors,
        })
    }

    /// Whether the model waits for a function.
    pub(super) fn waits_for(&self, function: &str) -> bool {
        let declared = self.behaviors.iter().find(|(name, _)| name == function);
        match declared.and_then(|(_, behavior)| behavior.as_ref()) {
            Some(Behavior::NonBlocking) => false,
            Some(Behavior::Blocking) => true,
            _ => !self.generation.non_blocking_by_default,
        }
    }

    /// Other functions.
    pub(super) fn declare(&mut self, tools: &[antiphon_gemini::wire::Tool]) {
        let functions = tools.iter().flat_map(|tool| tool.function_declarations.iter().flatten());
        self.behaviors = functions
            .map(|function| (function.name.clone().unwrap_or_default(), function.behavior.clone()))
            .collect();
    }
}

/// Hangs up on keys that nobody knows, in the vendor's words.
pub(super) fn refuse_unknown_keys(frame: &str) -> Result<(), Hangup> {
    let unknown = unknown_keys(frame.as_bytes()).map_err(|_| invalid())?;
    let Some(path) = unknown.first() else { return Ok(()) };
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    Err((
        1007,
        format!(
            "Invalid JSON payload received. Unknown name \"{name}\" at '{parent}': Cannot find \
             field."
        ),
    ))
}
