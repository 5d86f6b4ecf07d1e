//! What a [`LiveConfig`] means here: the session that is asked for, and what it can do.

use std::{sync::Arc, time::Duration};

use antiphon_live::{
    self as live, Capabilities, LiveConfig, LiveError, LivePolicies, OutputWords, Sensitivity,
    VoiceActivity,
};
use antiphon_types::{AudioFormat, ToolBehavior, ToolDefinition};
use serde_json::{Value, json};

use super::{
    endpoint::{Endpoint, Platform},
    options::{Options, invalid},
};
use crate::{
    generation::{Generation, InitialHistory, Proactivity, TextChannel, ThinkingBy},
    wire::{
        self, AudioTranscription, AutomaticActivityDetection, Behavior, Content,
        ContextWindowCompression, EndSensitivity, FunctionDeclaration, GenerationConfig,
        HistoryConfig, Modality, PrebuiltVoice, RealtimeInputConfig, SessionResumption, Setup,
        SlidingWindow, SpeechConfig, StartSensitivity, ThinkingConfig, Tool, TurnCoverage, Voice,
        Whole,
    },
};

/// The model where none is named.
const DEFAULT_MODEL: &str = "gemini-3.8-live";
/// What the service hears best; it takes other rates too.
const INPUT_HZ: u32 = 16_000;
/// What it speaks.
const OUTPUT_HZ: u32 = 24_000;
/// Silence that ends a turn where the service was told nothing. The vendor does not say; a second
/// has been seen to end one (quirk 52).
const DEFAULT_SILENCE: Duration = Duration::from_millis(800);
/// About so long a connection lasts; the service tells of its end some 50 s before.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10 * 60);
/// A handle is good for so long after its connection ended.
const HANDLE_VALID: Duration = Duration::from_secs(2 * 3_600);
/// At Vertex AI.
const VERTEX_HANDLE_VALID: Duration = Duration::from_secs(24 * 3_600);
/// The longest any time of activity detection may be.
const MAX_DETECTION: Duration = Duration::from_secs(10);
/// Functions that a session may declare.
const MAX_TOOLS: usize = 512;

/// What stays the same for one connection.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) model: Arc<str>,
    pub(super) generation: Generation,
    pub(super) endpoint: Endpoint,
    pub(super) capabilities: Arc<Capabilities>,
    /// What is asked for, without a handle and history.
    pub(super) setup: Setup,
    pub(super) voice_activity: VoiceActivity,
    /// The user's speech stops a reply.
    pub(super) interrupts: bool,
    pub(super) input_transcripts: bool,
    pub(super) output_transcripts: bool,
    /// Where words that ask for an answer go.
    pub(super) typed_text: TextChannel,
    /// `clientContent` may be sent within the session.
    pub(super) client_content: bool,
    /// The server says when the user begins to speak, and stops.
    pub(super) tells_speech: bool,
    wording: Wording,
    /// Tools that the service runs itself, and those in the vendor's words.
    own_tools: Vec<Tool>,
}

/// What is added to the instructions.
#[derive(Clone, Debug, Default)]
struct Wording {
    refinement: Option<String>,
    vocabulary: Vec<String>,
    locale: Option<String>,
}

impl Settings {
    /// The settings of a configuration, with the configuration's model or `model` instead.
    pub(super) fn new(
        config: &LiveConfig,
        platform: Option<&Platform>,
        model: Option<&str>,
    ) -> Result<Self, LiveError> {
        let options = Options::new(config);
        let model = self::model(config, model);
        let generation = Generation::of(&model);
        let proactive_audio = options.is_on("proactive_audio")?;
        let affective = config.policies.affective_dialog && generation.affective_dialog;
        let optional = generation.proactive_audio == Proactivity::Optional;
        let needs_alpha = affective || optional && proactive_audio == Some(true);
        let endpoint = Endpoint::new(config, &options, platform, needs_alpha)?;
        let vertex = matches!(endpoint.platform, Platform::Vertex { .. });
        let wording = Wording {
            refinement: config.refinement.clone(),
            vocabulary: vocabulary(config.vocabulary_hint.as_deref().unwrap_or_default()),
            locale: config.locale.as_deref().map(str::to_owned),
        };
        let channel = options.word("text_channel", &["client_content", "realtime"])?;
        let typed_text = match channel {
            Some("client_content") => TextChannel::ClientContent,
            Some(_) => TextChannel::RealtimeInput,
            None => generation.typed_text,
        };
        let client_content = channel != Some("realtime");
        let own_tools = own_tools(config, &options)?;
        let activity = &config.policies.activity;
        let interrupts = activity.handling == live::ActivityHandling::Interrupts
            && config.voice_activity != VoiceActivity::Off;
        let modality = options.word("output_modality", &["audio", "text"])?.unwrap_or("audio");
        let transcripts = transcription(config, &options)?;
        let input_transcripts = config.policies.input_transcription;
        let output_transcripts = config.policies.output_transcription && modality == "audio";

        let mut setup = Setup {
            model: Some(endpoint.model_path(&model)),
            generation_config: Some(GenerationConfig {
                response_modalities: Some(vec![Modality::from(modality)]),
                speech_config: speech(config, &options)?,
                temperature: options.number("temperature", 0.0, 2.0)?,
                top_p: options.number("top_p", 0.0, 1.0)?,
                top_k: options.number("top_k", 1.0, 1_000.0)?,
                max_output_tokens: whole(&options, "max_output_tokens", 1.0)?,
                candidate_count: whole(&options, "candidate_count", 1.0)?,
                seed: whole(&options, "seed", f64::from(i32::MIN))?,
                media_resolution: options.wire("media_resolution")?,
                thinking_config: thinking(config, generation),
                enable_affective_dialog: affective.then_some(true),
                translation_config: options.wire("translation")?,
                ..GenerationConfig::default()
            }),
            system_instruction: wording
                .compose(config.instructions.as_deref())
                .map(|text| Content::text(None, text)),
            realtime_input_config: input_config(config, interrupts)?,
            input_audio_transcription: input_transcripts.then(|| transcripts.clone()),
            output_audio_transcription: output_transcripts.then(AudioTranscription::default),
            session_resumption: resumption(&options, vertex)?,
            context_window_compression: compression(config)?,
            proactivity: proactivity(&options, generation, proactive_audio)?,
            explicit_vad_signal: vad_signal(&options, vertex)?,
            safety_settings: options.wire("safety_settings")?,
            labels: options.wire("labels")?,
            ..Setup::default()
        };
        let tools = declare(&config.tools, generation, &own_tools)?;
        // Some models refuse an empty list (quirk 58).
        setup.tools = Some(tools).filter(|tools| !tools.is_empty());

        let mut capabilities =
            Capabilities::audio_only(AudioFormat::pcm16(INPUT_HZ), AudioFormat::pcm16(OUTPUT_HZ));
        capabilities.text_input = true;
        capabilities.images = true;
        capabilities.say = true;
        capabilities.create_reply = client_content;
        capabilities.cancel_reply = true;
        capabilities.tools = true;
        capabilities.update_tools = generation.context_update;
        capabilities.update_instructions = generation.context_update || vertex && client_content;
        capabilities.voice_activity = true;
        capabilities.tells_speech =
            generation.tells_speech || setup.explicit_vad_signal == Some(true);
        capabilities.end_silence = activity.silence.unwrap_or(DEFAULT_SILENCE);
        capabilities.manual_activity = config.voice_activity == VoiceActivity::Manual;
        capabilities.interrupts = interrupts;
        capabilities.non_blocking_tools = generation.non_blocking_tools;
        capabilities.replies_after_tools = true;
        capabilities.input_transcripts = input_transcripts;
        // Transcription and audio are not in step.
        capabilities.output_words = match output_transcripts || modality != "audio" {
            true => OutputWords::Beside,
            false => OutputWords::None,
        };
        capabilities.resumption = setup.session_resumption.is_some();
        let resumption = setup.session_resumption.as_ref();
        capabilities.handles_count_commands =
            resumption.is_some_and(|told| told.transparent == Some(true));
        capabilities.resumption_valid =
            Some(if vertex { VERTEX_HANDLE_VALID } else { HANDLE_VALID });
        capabilities.close_before_resume = true;
        capabilities.connection_limit = Some(CONNECTION_LIMIT);
        capabilities.history = true;
        capabilities.model = Some(model.clone());
        capabilities.unsupported_options = options.unsupported();
        let ignored = without_meaning(config, generation, proactive_audio);
        capabilities.unsupported_options.extend(ignored.map(Arc::from));

        Ok(Self {
            model,
            generation,
            endpoint,
            capabilities: Arc::new(capabilities),
            voice_activity: config.voice_activity,
            interrupts,
            input_transcripts,
            output_transcripts,
            typed_text,
            client_content,
            tells_speech: generation.tells_speech || setup.explicit_vad_signal == Some(true),
            setup,
            wording,
            own_tools,
        })
    }

    /// The session to ask for.
    pub(super) fn setup(&self, handle: Option<&str>, with_history: bool) -> Setup {
        let mut setup = self.setup.clone();
        if let Some(handle) = handle {
            setup.session_resumption.get_or_insert_default().handle = Some(handle.to_owned());
        }
        if with_history && self.generation.initial_history == InitialHistory::Announced {
            let initial_history_in_client_content = Some(true);
            setup.history_config = Some(HistoryConfig { initial_history_in_client_content });
        }
        setup
    }

    /// New instructions with what the configuration adds to all.
    pub(super) fn instructions(&self, instructions: &str) -> String {
        self.wording.compose(Some(instructions)).unwrap_or_default()
    }

    /// New tools; those of the service stay.
    pub(super) fn tools(&self, tools: &[ToolDefinition]) -> Result<Vec<Tool>, LiveError> {
        declare(tools, self.generation, &self.own_tools)
            .map_err(|error| LiveError::InvalidCommand(error.to_string()))
    }

    /// Whether the model waits for a tool that was declared so.
    pub(super) fn waits_for(&self, behavior: ToolBehavior) -> bool {
        match behavior {
            _ if !self.generation.non_blocking_tools => true,
            ToolBehavior::NonBlocking => false,
            ToolBehavior::Blocking => true,
            _ => !self.generation.non_blocking_by_default,
        }
    }
}

/// The model that a connection with this configuration uses.
pub(super) fn model(config: &LiveConfig, instead: Option<&str>) -> Arc<str> {
    let named = instead.or(config.model.as_deref()).map(str::trim).filter(|name| !name.is_empty());
    named.unwrap_or(DEFAULT_MODEL).into()
}

/// The fields of `config` that were set and that nothing is done with.
fn without_meaning(
    config: &LiveConfig,
    generation: Generation,
    proactive_audio: Option<bool>,
) -> impl Iterator<Item = &'static str> + use<> {
    let plain = LivePolicies::default();
    let policies = &config.policies;
    let thinking = &policies.thinking;
    let by = generation.thinking;
    let never = generation.proactive_audio == Proactivity::Never;
    [
        (policies.affective_dialog && !generation.affective_dialog, "affective_dialog"),
        (*thinking != plain.thinking && by == ThinkingBy::Nothing, "thinking"),
        (thinking.budget.is_some() && by == ThinkingBy::Level, "thinking.budget"),
        (thinking.level.is_some() && by == ThinkingBy::Budget, "thinking.level"),
        (proactive_audio.is_some() && never, "proactive_audio"),
        (config.speaker.max_speakers.is_some(), "speaker.max_speakers"),
        (policies.activity.session_answers, "activity.session_answers"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
}

fn whole(options: &Options<'_>, id: &str, low: f64) -> Result<Option<Whole>, LiveError> {
    Ok(options.number(id, low, f64::from(i32::MAX))?.map(|number| Whole(number as i64)))
}

fn speech(config: &LiveConfig, options: &Options<'_>) -> Result<Option<SpeechConfig>, LiveError> {
    let voice_config = config.voice.as_deref().map(|name| Voice {
        prebuilt_voice_config: Some(PrebuiltVoice { voice_name: Some(name.to_owned()) }),
        ..Voice::default()
    });
    // Models that speak natively find the language out by themselves, and refuse to be told.
    let language_code = options.take("language_code")?;
    let speech = SpeechConfig { voice_config, language_code, ..SpeechConfig::default() };
    Ok(Some(speech).filter(|speech| *speech != SpeechConfig::default()))
}

fn thinking(config: &LiveConfig, generation: Generation) -> Option<ThinkingConfig> {
    let thinking = &config.policies.thinking;
    let off = thinking.enabled == Some(false) || thinking.level == Some(live::ThinkingLevel::Off);
    let mut told = ThinkingConfig {
        include_thoughts: thinking.include_thoughts.then_some(true),
        ..ThinkingConfig::default()
    };
    match generation.thinking {
        ThinkingBy::Nothing => return None,
        ThinkingBy::Budget if off => told.thinking_budget = Some(Whole(0)),
        ThinkingBy::Budget => {
            let any = (thinking.enabled == Some(true)).then_some(Whole(-1));
            told.thinking_budget = thinking.budget.map(Whole::from).or(any);
        }
        ThinkingBy::Level if off => told.thinking_level = Some(wire::ThinkingLevel::Minimal),
        ThinkingBy::Level => {
            told.thinking_level = thinking.level.map(|level| match level {
                live::ThinkingLevel::Off => wire::ThinkingLevel::Minimal,
                live::ThinkingLevel::Low => wire::ThinkingLevel::Low,
                live::ThinkingLevel::Medium => wire::ThinkingLevel::Medium,
                live::ThinkingLevel::High => wire::ThinkingLevel::High,
            });
        }
    }
    Some(told).filter(|told| *told != ThinkingConfig::default())
}

fn input_config(
    config: &LiveConfig,
    interrupts: bool,
) -> Result<Option<RealtimeInputConfig>, LiveError> {
    let activity = &config.policies.activity;
    let mut detection = AutomaticActivityDetection::default();
    if config.voice_activity == VoiceActivity::Auto {
        detection.start_of_speech_sensitivity = match activity.start_sensitivity {
            Sensitivity::Low => Some(StartSensitivity::Low),
            Sensitivity::Medium => None,
            Sensitivity::High => Some(StartSensitivity::High),
        };
        detection.end_of_speech_sensitivity = match activity.end_sensitivity {
            Sensitivity::Low => Some(EndSensitivity::Low),
            Sensitivity::Medium => None,
            Sensitivity::High => Some(EndSensitivity::High),
        };
        detection.prefix_padding_ms = milliseconds("prefix", activity.prefix_padding)?;
        detection.silence_duration_ms = milliseconds("silence", activity.silence)?;
    } else {
        detection.disabled = Some(true);
    }
    let told = RealtimeInputConfig {
        automatic_activity_detection: Some(detection)
            .filter(|detection| *detection != AutomaticActivityDetection::default()),
        activity_handling: (!interrupts).then_some(wire::ActivityHandling::NoInterruption),
        turn_coverage: match activity.coverage {
            live::TurnCoverage::ProviderDefault => None,
            live::TurnCoverage::OnlyActivity => Some(TurnCoverage::OnlyActivity),
            live::TurnCoverage::AllInput => Some(TurnCoverage::AllInput),
            live::TurnCoverage::AudioActivity => Some(TurnCoverage::AudioActivityAndAllVideo),
        },
        interim_transcript_timestamp_enabled: None,
    };
    Ok(Some(told).filter(|told| *told != RealtimeInputConfig::default()))
}

fn milliseconds(what: &str, duration: Option<Duration>) -> Result<Option<Whole>, LiveError> {
    match duration {
        Some(duration) if duration > MAX_DETECTION => Err(LiveError::InvalidConfig(format!(
            "a {what} of {duration:?} is more than ten seconds"
        ))),
        duration => Ok(duration.map(|duration| Whole(duration.as_millis() as i64))),
    }
}

fn transcription(
    config: &LiveConfig,
    options: &Options<'_>,
) -> Result<AudioTranscription, LiveError> {
    Ok(AudioTranscription {
        language_codes: options.take("transcription_languages")?,
        custom_vocabulary: options.take("custom_vocabulary")?,
        diarization: config.speaker.diarization.then_some(true),
        mode: options.word("transcription_mode", &["VERBATIM", "SMART"])?.map(Into::into),
        ..AudioTranscription::default()
    })
}

fn resumption(options: &Options<'_>, vertex: bool) -> Result<Option<SessionResumption>, LiveError> {
    let transparent = options.is_on("transparent_resumption")?;
    if transparent == Some(true) && !vertex {
        return Err(invalid("transparent_resumption", "only Vertex AI has it"));
    }
    if options.is_on("session_resumption")? == Some(false) {
        return Ok(None);
    }
    Ok(Some(SessionResumption { handle: None, transparent }))
}

fn compression(config: &LiveConfig) -> Result<Option<ContextWindowCompression>, LiveError> {
    let compression = &config.policies.context_compression;
    if !compression.enabled {
        return Ok(None);
    }
    let (trigger, target) = (compression.trigger_tokens, compression.target_tokens);
    if trigger == 0 || target >= trigger {
        return Err(LiveError::InvalidConfig(format!(
            "compression from {trigger} to {target} tokens makes nothing shorter"
        )));
    }
    let whole = |tokens: u64| Some(Whole(i64::try_from(tokens).unwrap_or(i64::MAX)));
    Ok(Some(ContextWindowCompression {
        trigger_tokens: whole(trigger),
        sliding_window: Some(SlidingWindow { target_tokens: whole(target) }),
    }))
}

fn proactivity(
    options: &Options<'_>,
    generation: Generation,
    audio: Option<bool>,
) -> Result<Option<wire::Proactivity>, LiveError> {
    let video = options.is_on("proactive_video")?;
    let audio = match generation.proactive_audio {
        Proactivity::Optional => audio,
        Proactivity::Never => None,
        Proactivity::Always if audio == Some(false) => {
            return Err(invalid("proactive_audio", "this model cannot do without it"));
        }
        Proactivity::Always => None,
    };
    let told = wire::Proactivity { proactive_audio: audio, proactive_video: video };
    Ok(Some(told).filter(|told| *told != wire::Proactivity::default()))
}

/// Only Vertex AI takes the switch; it is on there, since the session wants to know.
fn vad_signal(options: &Options<'_>, vertex: bool) -> Result<Option<bool>, LiveError> {
    match options.is_on("explicit_vad_signal")? {
        Some(true) if !vertex => Err(invalid("explicit_vad_signal", "only Vertex AI has it")),
        wanted => Ok(vertex.then(|| wanted.unwrap_or(true))),
    }
}

fn own_tools(config: &LiveConfig, options: &Options<'_>) -> Result<Vec<Tool>, LiveError> {
    let mut tools: Vec<Tool> = options.wire("tools")?.unwrap_or_default();
    // What only looks things up may; what acts would have to ask, and the service does not.
    let acts = |tool: &Tool| tool.mcp_servers.is_some() || tool.computer_use.is_some();
    if config.tools_ask && tools.iter().any(acts) {
        let what =
            "option tools: the service runs these without asking, and a policy decides over tools";
        return Err(LiveError::InvalidConfig(what.into()));
    }
    if options.is_on("google_search")? == Some(true) {
        tools.push(Tool { google_search: Some(json!({})), ..Tool::default() });
    }
    Ok(tools)
}

/// Tools as the service wants to be told of them.
fn declare(
    tools: &[ToolDefinition],
    generation: Generation,
    others: &[Tool],
) -> Result<Vec<Tool>, LiveError> {
    if tools.len() > MAX_TOOLS {
        let count = tools.len();
        return Err(LiveError::InvalidConfig(format!("{count} tools, more than {MAX_TOOLS}")));
    }
    let named = tools.iter().filter(|tool| !tool.name.trim().is_empty());
    let functions: Vec<FunctionDeclaration> =
        named.map(|tool| function(tool, generation)).collect();
    let mut declared = Vec::with_capacity(others.len() + 1);
    if !functions.is_empty() {
        declared.push(Tool { function_declarations: Some(functions), ..Tool::default() });
    }
    declared.extend(others.iter().cloned());
    Ok(declared)
}

fn function(tool: &ToolDefinition, generation: Generation) -> FunctionDeclaration {
    let schema = |schema: &Option<Arc<Value>>| schema.as_deref().cloned();
    FunctionDeclaration {
        name: Some(tool.name.to_string()),
        description: Some(tool.description.to_string()),
        // A tool without parameters has none.
        parameters_json_schema: schema(&tool.input_schema),
        response_json_schema: schema(&tool.output_schema),
        behavior: match tool.behavior {
            _ if !generation.non_blocking_tools => None,
            ToolBehavior::Blocking => Some(Behavior::Blocking),
            ToolBehavior::NonBlocking => Some(Behavior::NonBlocking),
            _ => None,
        },
        ..FunctionDeclaration::default()
    }
}

impl Wording {
    /// `None`: nothing is said, and the model keeps to itself.
    fn compose(&self, instructions: Option<&str>) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        let said = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        parts.extend(instructions.and_then(said));
        parts.extend(self.refinement.as_deref().and_then(said));
        if !self.vocabulary.is_empty() {
            let terms = self.vocabulary.join(", ");
            parts.push(format!("Names and terms that may come up: {terms}."));
        }
        if let Some(locale) = &self.locale {
            parts.push(format!(
                "The user's language is {locale}; speak it unless the user speaks another one."
            ));
        }
        Some(parts.join("\n\n")).filter(|text| !text.is_empty())
    }
}

/// The terms of a hint, without doubles. What reads like prose names none.
fn vocabulary(hint: &str) -> Vec<String> {
    if hint.contains([':', '.', '!', '?']) {
        return Vec::new();
    }
    let mut terms: Vec<String> = Vec::new();
    for term in hint.split(['\n', ',', ';']).map(str::trim).filter(|term| !term.is_empty()) {
        if !terms.iter().any(|known| known.to_lowercase() == term.to_lowercase()) {
            terms.push(term.to_owned());
        }
    }
    terms
}
