//! What a [`LiveConfig`] means here: the session that is asked for, and what it can do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use antiphon_live::{
    ActivityHandling, Capabilities, ContextCompression, LiveConfig, LiveError, LivePolicies,
    Sensitivity, ThinkingLevel, VoiceActivity,
};
use antiphon_types::{AudioFormat, ToolDefinition};
use serde_json::{Value, json};

use super::{
    endpoint::{Endpoint, dialect_of},
    options::Options,
};
use crate::wire::{
    self, AudioConfig, AudioInput, AudioOutput, Dialect, Eagerness, FunctionTool, MaxTokens,
    McpServer, Modality, NoiseReduction, Patch, Prompt, RealtimeSession, Reasoning, RetentionRatio,
    SemanticVad, ServerVad, Tool, ToolChoice, Tracing, Transcription, Truncation, TurnDetection,
    Voice,
};

/// The model where none is named.
pub(crate) const DEFAULT_MODEL: &str = "gpt-realtime-2";
/// xAI's.
const DEFAULT_XAI_MODEL: &str = "grok-voice-latest";
/// Silence that ends a turn where the server was told nothing; the vendor says 200 and 500.
const DEFAULT_SILENCE: Duration = Duration::from_millis(500);
/// The longest any time of turn detection may be.
const MAX_DETECTION: Duration = Duration::from_secs(10);
/// Tools that a session may declare.
const MAX_TOOLS: usize = 512;

/// What stays the same for one connection.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) dialect: Dialect,
    pub(super) model: Arc<str>,
    pub(super) endpoint: Endpoint,
    pub(super) capabilities: Arc<Capabilities>,
    /// What is asked for right after the session began.
    pub(super) session: RealtimeSession,
    pub(super) voice_activity: VoiceActivity,
    /// The user's speech stops a reply.
    pub(super) interrupts: bool,
    /// The end of the user's turn makes a reply, by the server's hand.
    pub(super) server_replies: bool,
    pub(super) input_transcripts: bool,
    pub(super) output_transcripts: bool,
    /// Silence that makes the server end the user's turn.
    pub(super) tail: Duration,
    /// Every reply has to call a tool, so the one after the tools must be let off (quirk 33).
    pub(super) forces_calls: bool,
    wording: Wording,
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
        dialect: Option<Dialect>,
        model: Option<&str>,
    ) -> Result<Self, LiveError> {
        let options = Options::new(config);
        let named =
            match options.word("dialect", &["ga", "beta", "azure", "azure_preview", "xai"])? {
                Some("ga") => Some(Dialect::Ga),
                Some("beta") => Some(Dialect::Beta),
                Some("azure") => Some(Dialect::Azure),
                Some("azure_preview") => Some(Dialect::AzurePreview),
                Some("xai") => Some(Dialect::Xai),
                _ => None,
            };
        let dialect = named
            .or(dialect)
            .or_else(|| config.endpoint.as_deref().and_then(dialect_of))
            .unwrap_or_default();
        let model = self::model(config, dialect, model);
        let endpoint = Endpoint::new(config, &options, dialect, &model)?;
        let wording = Wording {
            refinement: config.refinement.clone(),
            vocabulary: vocabulary(config.vocabulary_hint.as_deref().unwrap_or_default()),
            locale: config.locale.as_deref().map(str::to_owned),
        };

        let modality = options.word("output_modality", &["audio", "text"])?.unwrap_or("audio");
        let input = audio_format(&options, "input", dialect)?;
        let output = audio_format(&options, "output", dialect)?;
        let transcription = transcription(config, &options, dialect, &wording)?;
        let detection = turn_detection(config, &options)?;
        let tool_choice: Option<ToolChoice> = options.take("tool_choice")?;
        let noise = options.word("noise_reduction", &["near_field", "far_field"])?;
        let interrupts = config.policies.activity.handling == ActivityHandling::Interrupts
            && config.voice_activity != VoiceActivity::Off;
        let tail = tail(&detection);
        let end_silence = match detection.value() {
            Some(TurnDetection::ServerVad(ServerVad { silence_duration_ms: Some(ms), .. })) => {
                Duration::from_millis((*ms).into())
            }
            _ => DEFAULT_SILENCE,
        };
        let server_replies = detection.value().is_some_and(TurnDetection::creates_replies);
        let input_transcripts = transcription.value().is_some();

        let session = RealtimeSession {
            output_modalities: Some(vec![Modality::from(modality)]),
            instructions: wording.compose(config.instructions.as_deref()),
            audio: Some(AudioConfig {
                input: Some(AudioInput {
                    format: Some(wire_format(input)),
                    noise_reduction: noise.map_or(Patch::Keep, |kind| {
                        NoiseReduction { kind: Some(kind.into()), ..NoiseReduction::default() }
                            .into()
                    }),
                    transcription,
                    turn_detection: detection,
                }),
                output: Some(AudioOutput {
                    format: Some(wire_format(output)),
                    voice: config.voice.as_deref().map(voice),
                    speed: options.number("speed", 0.25, 1.5)?,
                }),
            }),
            tools: Some(tools(&config.tools, &options)?),
            tool_choice: tool_choice.clone(),
            parallel_tool_calls: options.take("parallel_tool_calls")?,
            max_output_tokens: max_tokens(&options)?,
            reasoning: reasoning(config, &options, dialect, &model)?,
            include: options.take::<Vec<String>>("include")?.map_or(Patch::Keep, Patch::Set),
            prompt: options.take::<Prompt>("prompt")?.map_or(Patch::Keep, Patch::Set),
            tracing: options.take::<Tracing>("tracing")?.map_or(Patch::Keep, Patch::Set),
            truncation: truncation(config, &options)?,
            ..RealtimeSession::default()
        };

        let mut capabilities = Capabilities::audio_only(input, output);
        capabilities.text_input = true;
        capabilities.images = !dialect.is_beta() && dialect != Dialect::Xai;
        capabilities.say = true;
        capabilities.create_reply = true;
        capabilities.cancel_reply = true;
        capabilities.truncate = true;
        capabilities.clear_audio = true;
        capabilities.forget_input = true;
        capabilities.tools = true;
        capabilities.update_tools = true;
        capabilities.update_instructions = true;
        capabilities.voice_activity = true;
        capabilities.end_silence = end_silence;
        capabilities.manual_activity = config.voice_activity == VoiceActivity::Manual;
        capabilities.interrupts = interrupts;
        capabilities.session_answers = !server_replies;
        capabilities.tools_after_reply = true;
        capabilities.input_transcripts = input_transcripts;
        capabilities.history = true;
        capabilities.unsupported_options = options.unsupported();
        let ignored = without_meaning(config, session.reasoning.is_some());
        capabilities.unsupported_options.extend(ignored.map(Arc::from));

        Ok(Self {
            dialect,
            model,
            endpoint,
            capabilities: Arc::new(capabilities),
            session,
            voice_activity: config.voice_activity,
            interrupts,
            server_replies,
            input_transcripts,
            output_transcripts: config.policies.output_transcription,
            tail,
            forces_calls: tool_choice.is_some_and(|choice| choice.forces_a_call()),
            wording,
        })
    }

    /// New instructions with what the configuration adds to all.
    pub(super) fn instructions(&self, instructions: &str) -> String {
        self.wording.compose(Some(instructions)).unwrap_or_default()
    }

    /// Bytes of the user's audio in a millisecond.
    pub(super) fn input_bytes(&self, duration: Duration) -> usize {
        let format = self.capabilities.input;
        format.samples_in(duration) as usize * format.bytes_per_sample()
    }
}

/// The model that a connection with this configuration uses.
pub(super) fn model(config: &LiveConfig, dialect: Dialect, instead: Option<&str>) -> Arc<str> {
    let named = instead.or(config.model.as_deref()).map(str::trim).filter(|name| !name.is_empty());
    let default = if dialect == Dialect::Xai { DEFAULT_XAI_MODEL } else { DEFAULT_MODEL };
    named.unwrap_or(default).into()
}

/// The fields of `config` that were set and that nothing is done with.
fn without_meaning(
    config: &LiveConfig,
    reasons: bool,
) -> impl Iterator<Item = &'static str> + use<> {
    let plain = LivePolicies::default();
    let policies = &config.policies;
    [
        (policies.affective_dialog != plain.affective_dialog, "affective_dialog"),
        (policies.thinking != plain.thinking && !reasons, "thinking"),
        (policies.activity.coverage != plain.activity.coverage, "activity.coverage"),
        (config.speaker.max_speakers.is_some(), "speaker.max_speakers"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
}

/// Tools as the service wants to be told of them.
pub(super) fn functions(tools: &[ToolDefinition]) -> Vec<Tool> {
    let functions = tools.iter().filter(|tool| !tool.name.trim().is_empty()).map(|tool| {
        // A tool without parameters has none: some servers refuse a function without a schema.
        let parameters = tool.input_schema.as_deref().cloned();
        Tool::Function(FunctionTool {
            name: Some(tool.name.to_string()),
            description: Some(tool.description.to_string()),
            parameters: Some(
                parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
            ),
        })
    });
    functions.collect()
}

impl Wording {
    /// `None`: nothing is said, and the server keeps its own instructions.
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
        if parts.is_empty() {
            // An empty text clears the instructions; no text leaves the server's.
            return instructions.map(|_| String::new());
        }
        Some(parts.join("\n\n"))
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

fn voice(name: &str) -> Voice {
    if name.starts_with("voice_") {
        return Voice::Custom { id: name.to_owned() };
    }
    Voice::Name(name.to_owned())
}

fn audio_format(
    options: &Options<'_>,
    direction: &str,
    dialect: Dialect,
) -> Result<AudioFormat, LiveError> {
    let words = ["pcm16", "g711_ulaw", "g711_alaw"];
    let rate: u32 = options.take(&format!("{direction}_audio_rate"))?.unwrap_or(24_000);
    let rates: &[u32] = match dialect {
        Dialect::Xai => &[8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000],
        _ => &[24_000],
    };
    if !rates.contains(&rate) {
        return Err(LiveError::InvalidConfig(format!(
            "option {direction}_audio_rate: {rate} is none of {rates:?}"
        )));
    }
    Ok(match options.word(&format!("{direction}_audio_format"), &words)? {
        Some("g711_ulaw") => AudioFormat::Mulaw8k,
        Some("g711_alaw") => AudioFormat::Alaw8k,
        _ => AudioFormat::pcm16(rate),
    })
}

fn wire_format(format: AudioFormat) -> wire::AudioFormat {
    match format {
        AudioFormat::Mulaw8k => wire::AudioFormat::Pcmu {},
        AudioFormat::Alaw8k => wire::AudioFormat::Pcma {},
        pcm => wire::AudioFormat::Pcm { rate: Some(pcm.sample_rate_hz()) },
    }
}

fn transcription(
    config: &LiveConfig,
    options: &Options<'_>,
    dialect: Dialect,
    wording: &Wording,
) -> Result<Patch<Transcription>, LiveError> {
    if !config.policies.input_transcription {
        return Ok(Patch::Clear);
    }
    let default = match dialect {
        // Azure wants the name of a deployment, which only the user knows.
        Dialect::Azure | Dialect::AzurePreview => None,
        Dialect::Xai => Some("grok-transcribe"),
        _ if config.speaker.diarization => Some("gpt-4o-transcribe-diarize"),
        _ => Some("gpt-4o-mini-transcribe"),
    };
    let named: Option<String> = options.take("transcription_model")?;
    let Some(model) = named.or_else(|| default.map(str::to_owned)) else {
        return Ok(Patch::Clear);
    };
    let terms = || Some(wording.vocabulary.join(", ")).filter(|terms| !terms.is_empty());
    let takes_prompt = !model.contains("diarize") && dialect != Dialect::Xai;
    let prompt = match options.take("transcription_prompt")? {
        Some(prompt) => Some(prompt),
        None if takes_prompt => terms(),
        None => None,
    };
    let delays = ["minimal", "low", "medium", "high", "xhigh"];
    Ok(Patch::Set(Transcription {
        model: Some(model),
        language: wording.locale.as_deref().and_then(language),
        prompt,
        delay: options.word("transcription_delay", &delays)?.map(str::to_owned),
        ..Transcription::default()
    }))
}

/// The ISO 639-1 code of a language tag.
fn language(locale: &str) -> Option<String> {
    let code = locale.split(['-', '_']).next()?.to_ascii_lowercase();
    (code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(code)
}

fn turn_detection(
    config: &LiveConfig,
    options: &Options<'_>,
) -> Result<Patch<TurnDetection>, LiveError> {
    if config.voice_activity != VoiceActivity::Auto {
        return Ok(Patch::Clear);
    }
    let activity = &config.policies.activity;
    let interrupt_response = Some(activity.handling == ActivityHandling::Interrupts);
    let by_itself = !activity.session_answers;
    let create_response = Some(options.take("create_response")?.unwrap_or(by_itself));
    let eagerness = options.word("eagerness", &["low", "medium", "high", "auto"])?;
    let kind = options.word("turn_detection", &["server_vad", "semantic_vad"])?;
    if kind == Some("semantic_vad") {
        let eagerness = eagerness.or(match activity.end_sensitivity {
            Sensitivity::Low => Some("low"),
            Sensitivity::Medium => None,
            Sensitivity::High => Some("high"),
        });
        return Ok(Patch::Set(TurnDetection::SemanticVad(SemanticVad {
            eagerness: eagerness.map(Eagerness::from),
            create_response,
            interrupt_response,
        })));
    }
    let threshold =
        options.number("vad_threshold", 0.0, 1.0)?.or(match activity.start_sensitivity {
            Sensitivity::Low => Some(0.7),
            Sensitivity::Medium => None,
            Sensitivity::High => Some(0.3),
        });
    let silence = activity.silence.or(match activity.end_sensitivity {
        Sensitivity::Low => Some(Duration::from_millis(800)),
        Sensitivity::Medium => None,
        Sensitivity::High => Some(Duration::from_millis(300)),
    });
    Ok(Patch::Set(TurnDetection::ServerVad(ServerVad {
        threshold,
        prefix_padding_ms: milliseconds("prefix", activity.prefix_padding)?,
        silence_duration_ms: milliseconds("silence", silence)?,
        create_response,
        interrupt_response,
        idle_timeout_ms: options.take::<u32>("idle_timeout_ms")?.map_or(Patch::Keep, Patch::Set),
    })))
}

fn milliseconds(what: &str, duration: Option<Duration>) -> Result<Option<u32>, LiveError> {
    match duration {
        Some(duration) if duration > MAX_DETECTION => Err(LiveError::InvalidConfig(format!(
            "a {what} of {duration:?} is more than ten seconds"
        ))),
        duration => Ok(duration.map(|duration| duration.as_millis() as u32)),
    }
}

/// Silence after which the server has certainly ended the user's turn.
fn tail(detection: &Patch<TurnDetection>) -> Duration {
    let longest = match detection.value() {
        Some(TurnDetection::SemanticVad(vad)) => match vad.eagerness {
            Some(Eagerness::Low) => Duration::from_secs(8),
            Some(Eagerness::High) => Duration::from_secs(2),
            _ => Duration::from_secs(4),
        },
        Some(TurnDetection::ServerVad(vad)) => {
            vad.silence_duration_ms.map_or(DEFAULT_SILENCE, |ms| Duration::from_millis(ms.into()))
        }
        _ => DEFAULT_SILENCE,
    };
    longest + Duration::from_millis(300)
}

fn tools(tools: &[ToolDefinition], options: &Options<'_>) -> Result<Vec<Tool>, LiveError> {
    let mut tools = functions(tools);
    let servers: Option<Vec<BTreeMap<String, Value>>> = options.take("mcp_servers")?;
    for server in servers.into_iter().flatten() {
        let server: McpServer = serde_json::from_value(json!(server))
            .map_err(|error| LiveError::InvalidConfig(format!("option mcp_servers: {error}")))?;
        tools.push(Tool::Mcp(Box::new(server)));
    }
    if tools.len() > MAX_TOOLS {
        let count = tools.len();
        return Err(LiveError::InvalidConfig(format!("{count} tools, more than {MAX_TOOLS}")));
    }
    Ok(tools)
}

fn max_tokens(options: &Options<'_>) -> Result<Option<MaxTokens>, LiveError> {
    match options.take::<MaxTokens>("max_output_tokens")? {
        Some(MaxTokens::Count(count)) if !(1..=4096).contains(&count) => {
            Err(LiveError::InvalidConfig(format!(
                "option max_output_tokens: {count} is not between 1 and 4096"
            )))
        }
        Some(MaxTokens::Word(word)) if word != "inf" => Err(LiveError::InvalidConfig(format!(
            "option max_output_tokens: {word:?} is no number and not \"inf\""
        ))),
        tokens => Ok(tokens),
    }
}

/// Only models that reason take it; others refuse the whole session for it.
fn reasoning(
    config: &LiveConfig,
    options: &Options<'_>,
    dialect: Dialect,
    model: &str,
) -> Result<Option<Reasoning>, LiveError> {
    let wanted = |effort: &str| Some(Reasoning { effort: Some(effort.to_owned()) });
    if let Some(effort) = options.take::<String>("reasoning_effort")? {
        return Ok(wanted(&effort));
    }
    let thinking = &config.policies.thinking;
    let level = thinking.level.or(match thinking.enabled {
        Some(false) => Some(ThinkingLevel::Off),
        _ => None,
    });
    let Some(level) = level else { return Ok(None) };
    if dialect == Dialect::Xai {
        return Ok(wanted(if level == ThinkingLevel::Off { "none" } else { "high" }));
    }
    if !model.starts_with("gpt-realtime-2") || model.starts_with("gpt-realtime-20") {
        return Ok(None);
    }
    Ok(wanted(match level {
        ThinkingLevel::Off => "minimal",
        ThinkingLevel::Low => "low",
        ThinkingLevel::Medium => "medium",
        ThinkingLevel::High => "high",
    }))
}

/// The contract's default counts tokens of another vendor; it means the server's own way here.
fn truncation(config: &LiveConfig, options: &Options<'_>) -> Result<Option<Truncation>, LiveError> {
    if let Some(truncation) = options.take("truncation")? {
        return Ok(Some(truncation));
    }
    let compression = &config.policies.context_compression;
    if *compression == ContextCompression::default() {
        return Ok(None);
    }
    if !compression.enabled {
        return Ok(Some(Truncation::Word("disabled".into())));
    }
    let (trigger, target) = (compression.trigger_tokens, compression.target_tokens);
    if trigger == 0 || target > trigger {
        return Err(LiveError::InvalidConfig(format!(
            "compression from {trigger} to {target} tokens makes nothing shorter"
        )));
    }
    let ratio = target as f64 / trigger as f64;
    let limit = u32::try_from(trigger).unwrap_or(u32::MAX);
    Ok(Some(Truncation::Ratio(RetentionRatio::new(ratio, Some(limit)))))
}
