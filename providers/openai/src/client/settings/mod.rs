//! What a [`LiveConfig`] means here: the session that is asked for, and what it can do.

mod audio;
mod detection;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use antiphon_live::{
    ActivityHandling, Capabilities, ContextCompression, LiveConfig, LiveError, LivePolicies,
    OutputWords, ThinkingLevel, VoiceActivity,
};
use antiphon_types::ToolDefinition;
use serde_json::{Map, Value, json};

use super::{endpoint::Endpoint, options::Options};
use crate::wire::{
    AudioConfig, AudioInput, AudioOutput, Dialect, Facts, FunctionTool, Images, MaxTokens,
    McpServer, Modality, NoiseReduction, Patch, Prompt, RealtimeSession, Reasoning,
    RequireApproval, RetentionRatio, ThinkingForm, Tool, ToolChoice, Tracing, Truncation,
    TurnDetection,
};

/// Tools that a session may declare.
const MAX_TOOLS: usize = 512;

/// What stays the same for one connection.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) dialect: Dialect,
    /// What is known of it.
    pub(super) facts: &'static Facts,
    pub(super) model: Arc<str>,
    pub(super) endpoint: Endpoint,
    pub(super) capabilities: Arc<Capabilities>,
    /// What is asked for right after the session began.
    pub(super) session: RealtimeSession,
    /// What is asked for beside it, in the dialect's own words.
    pub(super) extra: Extra,
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
        let dialect = self::dialect(config, dialect)?;
        let facts = dialect.facts();
        let options = Options::of(config, facts);
        let model = self::model(config, dialect, model);
        let endpoint = Endpoint::new(config, &options, facts, &model)?;
        let wording = Wording {
            refinement: config.refinement.clone(),
            vocabulary: vocabulary(config.vocabulary_hint.as_deref().unwrap_or_default()),
            locale: config.locale.as_deref().map(str::to_owned),
        };

        let modality = options.word("output_modality", &["audio", "text"])?.unwrap_or("audio");
        let input = audio::format(&options, "input", facts.input)?;
        let output = audio::format(&options, "output", facts.output)?;
        let mut extra = Extra::default();
        let transcription = audio::transcription(config, &options, facts, &wording, &mut extra)?;
        let detection = detection::turn_detection(config, &options, facts)?;
        let tool_choice: Option<ToolChoice> = options.take("tool_choice")?;
        let noise = options.word("noise_reduction", facts.noise_reductions)?;
        // A server that cannot be told not to interrupt does, where it hears the user.
        let listens = config.voice_activity == VoiceActivity::Auto;
        let interrupts = config.voice_activity != VoiceActivity::Off
            && (config.policies.activity.handling == ActivityHandling::Interrupts
                || listens && !facts.detection_flags);
        let tail = detection::tail(&detection, facts);
        let end_silence = detection::end_silence(&detection, facts);
        let thinking = thinking(config, &options, facts, &model)?;
        let reasoning = match facts.thinking {
            ThinkingForm::TopLevel => {
                if let Some(effort) = &thinking {
                    extra.merge(json!({"reasoning_effort": effort}));
                }
                None
            }
            _ => thinking.clone().map(|effort| Reasoning { effort: Some(effort) }),
        };
        if facts.resumes_for.is_some() {
            extra.merge(json!({"resumption": {"enabled": true}}));
        }
        extra.merge(options.take::<Map<String, Value>>("session")?.unwrap_or_default().into());
        if config.tools_ask {
            extra.check_servers()?;
        }
        let server_replies = detection.value().is_some_and(TurnDetection::creates_replies);
        let input_transcripts = transcription.value().is_some();

        let session = RealtimeSession {
            model: Some(model.to_string())
                .filter(|name| facts.model_in_session && !name.is_empty()),
            output_modalities: Some(vec![Modality::from(modality)]),
            instructions: wording.compose(config.instructions.as_deref()),
            audio: Some(AudioConfig {
                input: Some(AudioInput {
                    format: Some(audio::on_wire(input)),
                    noise_reduction: noise.map_or(Patch::Keep, |kind| {
                        NoiseReduction { kind: Some(kind.into()), ..NoiseReduction::default() }
                            .into()
                    }),
                    transcription,
                    turn_detection: detection,
                }),
                output: Some(AudioOutput {
                    format: Some(audio::on_wire(output)),
                    voice: config.voice.as_deref().map(|name| audio::voice(name, facts.voices)),
                    speed: options.number("speed", 0.25, 1.5)?,
                }),
            }),
            tools: Some(tools(config, &options)?),
            tool_choice: tool_choice.clone(),
            parallel_tool_calls: options.take("parallel_tool_calls")?,
            max_output_tokens: max_tokens(&options)?,
            reasoning,
            include: options.take::<Vec<String>>("include")?.map_or(Patch::Keep, Patch::Set),
            prompt: options.take::<Prompt>("prompt")?.map_or(Patch::Keep, Patch::Set),
            tracing: options.take::<Tracing>("tracing")?.map_or(Patch::Keep, Patch::Set),
            truncation: truncation(config, &options)?,
            ..RealtimeSession::default()
        };

        let mut capabilities = Capabilities::conversation(input, output);
        capabilities.text_input = facts.messages;
        capabilities.images = facts.images != Images::None;
        capabilities.truncate = facts.truncates();
        capabilities.forget_input = facts.takes("conversation.item.delete");
        capabilities.end_silence = end_silence;
        capabilities.manual_activity = config.voice_activity == VoiceActivity::Manual;
        capabilities.interrupts = interrupts;
        capabilities.session_answers = !server_replies;
        capabilities.replies_after_tools =
            options.take("replies_after_tools")?.unwrap_or(facts.replies_after_tools);
        capabilities.input_transcripts = input_transcripts;
        // Deltas of the transcript run ahead of those of the audio that they belong to.
        capabilities.output_words = match config.policies.output_transcription {
            true => OutputWords::Before,
            false => OutputWords::None,
        };
        let servers = session.tools.iter().flatten().any(|tool| matches!(tool, Tool::Mcp(_)));
        capabilities.asks_before_tools = servers || extra.names_servers();
        capabilities.connection_limit = facts.session_limit;
        capabilities.resumption = extra.says("/resumption/enabled");
        capabilities.resumption_valid = facts.resumes_for;
        capabilities.history = facts.messages;
        capabilities.model = Some(model.clone());
        capabilities.unsupported_options = options.unsupported();
        let shortens = options.has_meaning("truncation");
        let ignored = without_meaning(config, thinking.is_some(), shortens);
        capabilities.unsupported_options.extend(ignored.map(Arc::from));

        Ok(Self {
            dialect,
            facts,
            model,
            endpoint,
            capabilities: Arc::new(capabilities),
            session,
            extra,
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

/// Keys of a session in a dialect's own words.
#[derive(Clone, Debug, Default)]
pub(super) struct Extra(Value);

impl Extra {
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_object().is_none_or(Map::is_empty)
    }

    /// Whether this is `true`.
    fn says(&self, path: &str) -> bool {
        self.0.pointer(path) == Some(&Value::Bool(true))
    }

    /// Adds to a session; what is there already gives way.
    pub(super) fn add_to(&self, session: &mut Value) {
        merge(session, self.0.clone());
    }

    /// The MCP servers among its tools.
    fn servers(&self) -> impl Iterator<Item = &Value> {
        let tools = self.0.get("tools").and_then(Value::as_array);
        tools.into_iter().flatten().filter(|tool| tool["type"] == "mcp")
    }

    fn names_servers(&self) -> bool {
        self.servers().next().is_some()
    }

    /// All of them ask before they run anything.
    fn check_servers(&self) -> Result<(), LiveError> {
        match self.servers().find(|server| server["require_approval"] != "always") {
            Some(server) => Err(asks_not("session", &server["server_label"])),
            None => Ok(()),
        }
    }

    fn merge(&mut self, more: Value) {
        merge(&mut self.0, more);
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// The dialect of connections with this configuration.
pub(super) fn dialect(config: &LiveConfig, default: Option<Dialect>) -> Result<Dialect, LiveError> {
    let named: Option<Dialect> = Options::new(config).take("dialect")?;
    let by_address = || config.endpoint.as_deref().and_then(Dialect::of_address);
    Ok(named.or(default).or_else(by_address).unwrap_or_default())
}

/// The model that a connection with this configuration uses.
pub(super) fn model(config: &LiveConfig, dialect: Dialect, instead: Option<&str>) -> Arc<str> {
    let named = instead.or(config.model.as_deref()).map(str::trim).filter(|name| !name.is_empty());
    named.or(dialect.facts().model).unwrap_or_default().into()
}

/// The fields of `config` that were set and that nothing is done with.
fn without_meaning(
    config: &LiveConfig,
    reasons: bool,
    shortens: bool,
) -> impl Iterator<Item = &'static str> + use<> {
    let plain = LivePolicies::default();
    let policies = &config.policies;
    [
        (policies.affective_dialog != plain.affective_dialog, "affective_dialog"),
        (policies.thinking != plain.thinking && !reasons, "thinking"),
        (
            policies.context_compression != plain.context_compression && !shortens,
            "context_compression",
        ),
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

fn tools(config: &LiveConfig, options: &Options<'_>) -> Result<Vec<Tool>, LiveError> {
    let mut tools = functions(&config.tools);
    let servers: Option<Vec<BTreeMap<String, Value>>> = options.take("mcp_servers")?;
    for server in servers.into_iter().flatten() {
        let mut server: McpServer = serde_json::from_value(json!(server))
            .map_err(|error| LiveError::InvalidConfig(format!("option mcp_servers: {error}")))?;
        if server.server_label.contains('/') {
            // Its tools could have the names of another one's.
            let label = &server.server_label;
            let message = format!("option mcp_servers: there is a / in the label {label:?}");
            return Err(LiveError::InvalidConfig(message));
        }
        if config.tools_ask {
            let always = RequireApproval::Word("always".into());
            if server.require_approval.get_or_insert_with(|| always.clone()) != &always {
                return Err(asks_not("mcp_servers", &json!(server.server_label)));
            }
        }
        tools.push(Tool::Mcp(Box::new(server)));
    }
    if tools.len() > MAX_TOOLS {
        let count = tools.len();
        return Err(LiveError::InvalidConfig(format!("{count} tools, more than {MAX_TOOLS}")));
    }
    Ok(tools)
}

/// There is a policy, and this server would run tools without asking it.
fn asks_not(option: &str, label: &Value) -> LiveError {
    LiveError::InvalidConfig(format!(
        "option {option}: the server {label} must require_approval \"always\", since a policy decides \
         over tools"
    ))
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

/// How hard to think, in the dialect's word. Only models that reason take it; others refuse the
/// whole session for it.
fn thinking(
    config: &LiveConfig,
    options: &Options<'_>,
    facts: &Facts,
    model: &str,
) -> Result<Option<String>, LiveError> {
    if let Some(effort) = options.take("reasoning_effort")? {
        return Ok(Some(effort));
    }
    let thinking = &config.policies.thinking;
    let level = thinking.level.or(match thinking.enabled {
        Some(false) => Some(ThinkingLevel::Off),
        _ => None,
    });
    let Some(level) = level else { return Ok(None) };
    let reasons = model.starts_with("gpt-realtime-2") && !model.starts_with("gpt-realtime-20");
    let word = match (facts.thinking, level) {
        (ThinkingForm::None, _) => return Ok(None),
        (ThinkingForm::Effort, _) if !reasons => return Ok(None),
        (ThinkingForm::OnOff, ThinkingLevel::Off) => "none",
        (ThinkingForm::OnOff, _) => "high",
        (_, ThinkingLevel::Off) => "minimal",
        (_, ThinkingLevel::Low) => "low",
        (_, ThinkingLevel::Medium) => "medium",
        (_, ThinkingLevel::High) => "high",
    };
    Ok(Some(word.to_owned()))
}

/// The contract's default counts tokens of another vendor; it means the server's own way here.
fn truncation(config: &LiveConfig, options: &Options<'_>) -> Result<Option<Truncation>, LiveError> {
    if let Some(truncation) = options.take("truncation")? {
        return Ok(Some(truncation));
    }
    let compression = &config.policies.context_compression;
    if *compression == ContextCompression::default() || !options.has_meaning("truncation") {
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
