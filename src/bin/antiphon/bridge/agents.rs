//! The agents that answer calls, as the configuration has them.

use std::{collections::BTreeMap, env, fmt, path::PathBuf, sync::Arc};

use antiphon::{
    agent::{RegistryError, ToolRegistry},
    audio::AudioFormat,
    live::{LiveConfig, LiveProvider},
    policy::{PolicyFile, PolicyHost, ReceiptLog, SqliteLimits, guards::GuardFile},
    providers::{cascade::offline::OfflineSpeech, gemini::Gemini, openai::OpenAi},
    session::AgentSession,
    telephony::{
        Answer, AnswerError, BridgeConfig, CallAgent, IncomingCall, call_tools, config::AgentConfig,
    },
    tools::{ToolFile, Transfers, clock, convert_units, load_tools, today},
    types::ToolDefinition,
};
use async_trait::async_trait;
use serde_json::json;

use crate::{
    args::{BookArguments, ModelArguments},
    failure::Failure,
    offline, toolbox,
};

/// The policy over the built-in tools.
const BUILT_IN_POLICY: &str = include_str!("../../../../examples/policy.json");
/// What a model is told that knows nothing of the program.
const INSTRUCTIONS: &str = "You answer telephone calls. Speak in one or two short sentences. Use your \
    tools where they help, and say in words what they gave. When the caller says goodbye, say goodbye \
    and hang up.";

/// A setting of an agent that cannot be used, and why.
pub(super) struct Misplaced(pub(super) &'static str, pub(super) String);

/// The agents that a configuration names.
pub(super) struct Agents {
    /// Answers where no other is named.
    usual: Agent,
    named: BTreeMap<String, Agent>,
}

/// One of them.
struct Agent {
    config: AgentConfig,
    provider: Arc<dyn LiveProvider>,
    /// Needed by providers elsewhere.
    key: Option<String>,
    equipment: Equipment,
}

/// The tools of an agent, and what watches over them and over its words.
pub(super) struct Equipment {
    tools: Option<ToolFile>,
    policy: PolicyHost,
    guards: Option<GuardFile>,
}

/// Ears and mouths that are loaded, by the folder of their models.
type Loaded = Vec<(Option<PathBuf>, OfflineSpeech)>;

impl Agents {
    pub(super) async fn open(config: &BridgeConfig) -> Result<Self, Failure> {
        let mut loaded = Loaded::new();
        let usual = Agent::open(&config.agent, &mut loaded).await?;
        let mut named = BTreeMap::new();
        for (name, agent) in &config.agents {
            named.insert(name.clone(), Agent::open(agent, &mut loaded).await?);
        }
        Ok(Self { usual, named })
    }
}

#[async_trait]
impl CallAgent for Agents {
    async fn answer(&self, call: &IncomingCall) -> Result<Answer, AnswerError> {
        match &call.agent {
            None => self.usual.answer(call),
            Some(name) => match self.named.get(name) {
                Some(agent) => agent.answer(call),
                None => Err(AnswerError(format!("there is no agent {name:?}"))),
            },
        }
    }
}

impl Equipment {
    pub(super) fn read(config: &AgentConfig) -> Result<Self, Misplaced> {
        let wrong = |setting, error: &dyn fmt::Display| Misplaced(setting, error.to_string());
        let tools = config.tools.as_deref().map(load_tools).transpose();
        let tools = tools.map_err(|error| wrong("tools", &error))?;
        let definitions = definitions(config, tools.as_ref());
        let definitions = definitions.map_err(|error| wrong("tools", &error))?;
        let policy = match &config.policy {
            Some(path) => PolicyFile::load(path),
            None => PolicyFile::parse("built-in policy", BUILT_IN_POLICY),
        };
        let policy = policy.map_err(|error| wrong("policy", &error))?;
        nobody_is_asked(&policy).map_err(|error| wrong("policy", &error))?;
        let policy = policy.for_tools(&definitions).map_err(|error| wrong("policy", &error))?;
        let books =
            BookArguments { receipts: config.receipts.clone(), limits: config.limits.clone() };
        let policy = toolbox::host(&policy, "the bridge's policy", &books);
        let policy = policy.map_err(|error| wrong(cause(config), &error))?;
        let guards = config.guards.as_deref().map(GuardFile::load).transpose();
        let guards = guards.map_err(|error| wrong("guards", &error))?;
        Ok(Self { tools, policy, guards })
    }
}

/// A call over which a person decides would wait for ever: a bridge keeps no store that it could wait in.
fn nobody_is_asked(policy: &PolicyFile) -> Result<(), &'static str> {
    match policy.asks() {
        true => {
            Err("a rule has a person decide over calls, and calls by telephone have no store in \
                     which they could wait: deny them, or have the caller confirm them")
        }
        false => Ok(()),
    }
}

impl Agent {
    async fn open(config: &AgentConfig, loaded: &mut Loaded) -> Result<Self, Failure> {
        known_provider(config).map_err(Failure::usage)?;
        let key = |variable| env::var(variable).ok();
        let (provider, key): (Arc<dyn LiveProvider>, _) = match config.provider.as_str() {
            "openai" => (Arc::new(OpenAi::new()), key("OPENAI_API_KEY")),
            "gemini" => (Arc::new(Gemini::new()), key("GEMINI_API_KEY")),
            _ => {
                let speech = speech(config, loaded).await?;
                if let Some(voice) = &config.voice {
                    offline::check_voice(&*speech.synthesizer, voice)?;
                }
                (Arc::new(offline::provider(speech)), None)
            }
        };
        let equipment = Equipment::read(config).map_err(|wrong| Failure::usage(wrong.1))?;
        Ok(Self { config: config.clone(), provider, key, equipment })
    }

    fn answer(&self, call: &IncomingCall) -> Result<Answer, AnswerError> {
        let mut builder = AgentSession::builder(self.provider.clone())
            .registry(Arc::new(self.registry(call)?))
            .authorize(self.equipment.policy.clone());
        if let Some(guards) = &self.equipment.guards {
            builder = guards.apply(builder);
        }
        Ok(Answer::new(builder, self.live(call)).configured(&self.config))
    }

    /// The tools of one call.
    fn registry(&self, call: &IncomingCall) -> Result<ToolRegistry, AnswerError> {
        let failed = |error: RegistryError| AnswerError(error.to_string());
        let registry = shared_tools(&self.config, self.equipment.tools.as_ref()).map_err(failed)?;
        for tool in call_tools(&call.control) {
            registry.register_shared(tool).map_err(failed)?;
        }
        Ok(registry)
    }

    /// The configuration of the provider: its formats are the call's, where it takes them.
    fn live(&self, call: &IncomingCall) -> LiveConfig {
        let mut live = LiveConfig::new();
        if let Some(key) = &self.key {
            live = live.api_key(key.as_str());
            live = live.instructions(self.config.instructions.as_deref().unwrap_or(INSTRUCTIONS));
        } else if let Some(instructions) = &self.config.instructions {
            live = live.instructions(instructions.as_str());
        }
        if let Some(model) = &self.config.model {
            live = live.model(model.as_str());
        }
        if let Some(voice) = &self.config.voice {
            live = live.voice(voice.as_str());
        }
        live.endpoint.clone_from(&self.config.url);
        if self.config.provider == "openai" {
            let formats = [
                ("input_audio_format", call.start.input),
                ("output_audio_format", call.start.output),
            ];
            for (option, format) in formats {
                let name = match format {
                    AudioFormat::Mulaw8k => "g711_ulaw",
                    AudioFormat::Alaw8k => "g711_alaw",
                    _ => continue,
                };
                live.provider_options.insert(option.into(), name.into());
            }
        }
        live
    }
}

/// The ears and the mouth of an offline agent, loaded once for each folder of models.
async fn speech(config: &AgentConfig, loaded: &mut Loaded) -> Result<OfflineSpeech, Failure> {
    if let Some((_, speech)) = loaded.iter().find(|(models, _)| *models == config.models) {
        return Ok(speech.clone());
    }
    let models = ModelArguments { models: config.models.clone() };
    let speech = offline::load(&models).await?;
    loaded.push((config.models.clone(), speech.clone()));
    Ok(speech)
}

/// The setting because of which a policy has no books.
fn cause(config: &AgentConfig) -> &'static str {
    if config.limits.as_ref().is_some_and(|path| SqliteLimits::open(path).is_err()) {
        return "limits";
    }
    match &config.receipts {
        Some(path) if ReceiptLog::open(path).is_err() => "receipts",
        _ => "policy",
    }
}

/// The tools that all calls have.
fn shared_tools(
    config: &AgentConfig,
    file: Option<&ToolFile>,
) -> Result<ToolRegistry, RegistryError> {
    let registry = ToolRegistry::new();
    // A caller is not told of money that never moves, unless that is what is to be shown.
    if config.demo_tools || (config.provider == "offline" && file.is_none()) {
        registry.register(clock())?;
        registry.register(today())?;
        registry.register(convert_units())?;
        registry.register(Transfers::new().tool())?;
    }
    for tool in file.iter().flat_map(|file| &file.tools) {
        registry.register(tool.clone())?;
    }
    Ok(registry)
}

/// What a policy can be about: those, and the tools that act on a call, which only a call has.
fn definitions(
    config: &AgentConfig,
    file: Option<&ToolFile>,
) -> Result<Vec<ToolDefinition>, RegistryError> {
    let mut definitions = shared_tools(config, file)?.definitions();
    definitions.extend(call_definitions());
    Ok(definitions)
}

/// The tools that act on a call.
pub fn call_definitions() -> Vec<ToolDefinition> {
    let text = |name: &str| json!({"required": [name], "properties": {name: {"type": "string"}}});
    let mut definitions = Vec::new();
    for (name, arguments) in [
        ("hang_up", json!({"properties": {}})),
        (
            "hold_call",
            json!({"required": ["seconds"], "properties": {"seconds": {"type": "integer"}}}),
        ),
        ("mute_caller", json!({"required": ["on"], "properties": {"on": {"type": "boolean"}}})),
        ("transfer_call", text("to")),
        ("press_keys", text("keys")),
        ("collect_keys", json!({"properties": {"secret": {"type": "boolean"}}})),
    ] {
        let mut definition = ToolDefinition::new(name, "Acts on the call.");
        definition.input_schema = Some(Arc::new(arguments));
        definitions.push(definition);
    }
    definitions
}

/// What there is to say of a provider, or why it cannot be used.
pub(super) fn known_provider(agent: &AgentConfig) -> Result<String, String> {
    let key = match agent.provider.as_str() {
        "offline" => return Ok("the offline agent, which needs no key".into()),
        "openai" => "OPENAI_API_KEY",
        "gemini" => "GEMINI_API_KEY",
        other => return Err(format!("no provider {other:?}: offline, openai or gemini")),
    };
    match env::var(key) {
        Ok(value) if !value.trim().is_empty() => Ok(format!("{}, with {key}", agent.provider)),
        _ => Err(format!("the environment variable {key} is not set")),
    }
}
