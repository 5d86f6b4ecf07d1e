//! `antiphon bridge`: answers telephone calls.

use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use antiphon::{
    agent::{RegistryError, ToolRegistry},
    audio::AudioFormat,
    live::{LiveConfig, LiveProvider},
    policy::{LimitStore, PolicyFile, PolicyHost, SqliteLimits, guards::GuardFile},
    providers::{gemini::Gemini, openai::OpenAi},
    session::AgentSession,
    telephony::{
        Answer, AnswerError, Bridge, BridgeConfig, CallAgent, IncomingCall, call_tools,
        config::AgentConfig,
        dialect::Carrier,
        outbound::{DialOrder, Outbound},
        rest::Accounts,
        token::{Claims, Tokens},
    },
    tools::{ToolFile, Transfers, clock, convert_units, load_tools, today},
    types::ToolDefinition,
};
use async_trait::async_trait;
use serde_json::json;

use crate::{
    args::{
        BookArguments, BridgeArguments, BridgeCommand, CallArguments, ModelArguments,
        TokenArguments,
    },
    failure::Failure,
    offline, toolbox,
};

/// The policy over the built-in tools.
const BUILT_IN_POLICY: &str = include_str!("../../../examples/policy.json");
/// What a model is told that knows nothing of the program.
const INSTRUCTIONS: &str = "You answer telephone calls. Speak in one or two short sentences. Use your \
    tools where they help, and say in words what they gave. When the caller says goodbye, say goodbye \
    and hang up.";

/// Answers calls, or looks whether it could.
pub fn run(arguments: BridgeArguments) -> Result<(), Failure> {
    let (config, text) = read(&arguments.config)?;
    match arguments.command {
        Some(BridgeCommand::Token(token)) => print_token(&config, token),
        Some(BridgeCommand::Check) => check(&config, &text),
        Some(BridgeCommand::Call(call)) => run_to_end(dial(config, call)),
        None => {
            let agent = known_provider(&config.agent);
            agent.map_err(|why| Failure::usage(placed(&text, "provider", &why)))?;
            run_to_end(serve(config))
        }
    }
}

fn run_to_end(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    let done = runtime.block_on(work);
    // A tool that blocks and ignores its cancellation does not keep the program.
    runtime.shutdown_timeout(Duration::from_millis(200));
    done
}

fn accounts(config: &BridgeConfig) -> Result<Option<Accounts>, Failure> {
    let all: Vec<_> = config
        .carriers
        .iter()
        .filter_map(|(carrier, config)| Some((*carrier, config.account.clone()?)))
        .collect();
    if all.is_empty() {
        return Ok(None);
    }
    Accounts::new(all).map(Some).map_err(Failure::failed)
}

/// Makes a call, and prints the carrier's name of it.
async fn dial(config: BridgeConfig, arguments: CallArguments) -> Result<(), Failure> {
    let Some(accounts) = accounts(&config)? else {
        return Err(Failure::usage("no carrier has an account in the configuration"));
    };
    let ledger = config.outbound.as_ref().and_then(|outbound| outbound.ledger.as_ref());
    let ledger = ledger.map(SqliteLimits::open).transpose().map_err(Failure::failed)?;
    let limits = ledger.map(|ledger| Arc::new(ledger) as Arc<dyn LimitStore>);
    let outbound = Outbound::new(&config, accounts, limits).map_err(Failure::usage)?;
    let mut order = DialOrder::new(arguments.to);
    order.tenant = arguments.tenant;
    order.agent = arguments.agent;
    let call = outbound.dial(&order).await.map_err(Failure::failed)?;
    println!("{call}");
    Ok(())
}

/// The configuration, and its text.
fn read(path: &Path) -> Result<(BridgeConfig, String), Failure> {
    let name = path.display();
    let text =
        fs::read_to_string(path).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let config = BridgeConfig::from_toml(&text, |variable| env::var(variable).ok())
        .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    Ok((config, text))
}

/// What is wrong with a setting, with its line where it is written.
fn placed(text: &str, setting: &str, why: &str) -> String {
    let is_here = |line: &str| {
        let rest = line.trim_start().strip_prefix(setting);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    match text.lines().position(is_here) {
        Some(index) => format!("line {}: {why}", index + 1),
        None => why.to_owned(),
    }
}

async fn serve(config: BridgeConfig) -> Result<(), Failure> {
    let agent = Agent::open(config.agent.clone()).await?;
    let accounts = accounts(&config)?;
    let bridge = Bridge::new(config, agent).on_record(|record| {
        // One line for each call, for those who watch.
        if let Ok(line) = serde_json::to_string(record) {
            // Where nobody watches any more, the file of records has it.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    });
    let bridge = match accounts {
        Some(accounts) => bridge.carriers(accounts),
        None => bridge,
    };
    let bound = bridge.bind().await.map_err(Failure::failed)?;
    let web = bound.local_addr().map_err(Failure::failed)?;
    eprintln!("antiphon: answering calls at http://{web}/telephony/");
    if let Some(tcp) = bound.audiosocket_addr() {
        eprintln!("antiphon: answering AudioSocket at {tcp}");
    }
    bound.run(stopped()).await.map_err(Failure::failed)
}

/// Returns at Ctrl-C, and where the system asks the program to end.
async fn stopped() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    if let Ok(mut term) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
    {
        tokio::select! {
            _ = interrupted => {}
            _ = term.recv() => {}
        }
        return;
    }
    let _ = interrupted.await;
}

fn print_token(config: &BridgeConfig, arguments: TokenArguments) -> Result<(), Failure> {
    let Some(secret) = &config.token_secret else {
        return Err(Failure::usage("the configuration names no `token_secret_env`"));
    };
    let tokens = Tokens::new(secret).map_err(Failure::usage)?;
    let claims = Claims::new(arguments.call, arguments.tenant, arguments.agent);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let token = tokens.mint(claims, now, arguments.lifetime).map_err(Failure::failed)?;
    println!("{token}");
    Ok(())
}

fn check(config: &BridgeConfig, text: &str) -> Result<(), Failure> {
    let mut wrong = 0;
    let mut tell = |what: &str, result: Result<String, String>| match result {
        Ok(how) => println!("ok      {what}: {how}"),
        Err(why) => {
            wrong += 1;
            println!("failed  {what}: {why}");
        }
    };
    let free = |address| match TcpListener::bind(address) {
        Ok(_) => Ok(format!("{address} is free")),
        Err(error) => Err(format!("{address}: {error}")),
    };
    tell("listen", free(config.listen));
    if let Some(address) = config.audiosocket {
        tell("audiosocket", free(address));
    }
    for (carrier, how) in &config.carriers {
        let address = match (&config.public_url, carrier) {
            (_, Carrier::AudioSocket) => "AudioSocket".to_owned(),
            (Some(url), _) => format!("{}/telephony/{carrier}", url.replacen("http", "ws", 1)),
            (None, _) => format!("ws://{}/telephony/{carrier}", config.listen),
        };
        tell(carrier.name(), Ok(format!("{address}, verified by {:?}", how.verify)));
    }
    let agent = &config.agent;
    tell("agent", known_provider(agent).map_err(|why| placed(text, "provider", &why)));
    if let Some(models) = &agent.models
        && agent.provider == "offline"
    {
        let there = models.is_dir();
        let name = models.display().to_string();
        let why = || placed(text, "models", &format!("{name} is no folder"));
        tell("models", if there { Ok(name.clone()) } else { Err(why()) });
    }
    let files = [("tools", &agent.tools), ("policy", &agent.policy), ("guards", &agent.guards)];
    for (what, path) in files {
        let Some(path) = path else { continue };
        let result = match what {
            "tools" => load_tools(path).map(drop).map_err(|error| error.to_string()),
            "policy" => PolicyFile::load(path).map(drop).map_err(|error| error.to_string()),
            _ => GuardFile::load(path).map(drop).map_err(|error| error.to_string()),
        };
        let result = result.map_err(|why| placed(text, what, &why));
        tell(what, result.map(|()| path.display().to_string()));
    }
    if let Some(path) = &config.records {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        let name = path.display().to_string();
        let file =
            file.map_err(|error| placed(text, "records", &format!("{}: {error}", path.display())));
        tell("records", file.map(|_| name));
    }
    if wrong == 0 { Ok(()) } else { Err(Failure::Told) }
}

fn known_provider(agent: &AgentConfig) -> Result<String, String> {
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

/// The agent that the configuration names.
struct Agent {
    config: AgentConfig,
    provider: Arc<dyn LiveProvider>,
    /// Needed by providers elsewhere.
    key: Option<String>,
    tools: Option<ToolFile>,
    policy: PolicyHost,
    guards: Option<GuardFile>,
}

impl Agent {
    async fn open(config: AgentConfig) -> Result<Self, Failure> {
        known_provider(&config).map_err(Failure::usage)?;
        let key = |variable| env::var(variable).ok();
        let (provider, key): (Arc<dyn LiveProvider>, _) = match config.provider.as_str() {
            "openai" => (Arc::new(OpenAi::new()), key("OPENAI_API_KEY")),
            "gemini" => (Arc::new(Gemini::new()), key("GEMINI_API_KEY")),
            _ => {
                let models = ModelArguments { models: config.models.clone() };
                let speech = offline::load(&models).await?;
                if let Some(voice) = &config.voice {
                    offline::check_voice(&*speech.synthesizer, voice)?;
                }
                (Arc::new(offline::provider(speech)), None)
            }
        };
        let tools = config.tools.as_deref().map(load_tools).transpose().map_err(Failure::usage)?;
        let policy = match &config.policy {
            Some(path) => PolicyFile::load(path).map_err(Failure::usage)?,
            None => {
                PolicyFile::parse("built-in policy", BUILT_IN_POLICY).map_err(Failure::failed)?
            }
        };
        let books =
            BookArguments { receipts: config.receipts.clone(), limits: config.limits.clone() };
        let definitions = definitions(&config, tools.as_ref())?;
        let policy = policy.for_tools(&definitions).map_err(Failure::usage)?;
        let policy = toolbox::host(&policy, "the bridge's policy", &books)?;
        let guards =
            config.guards.as_deref().map(GuardFile::load).transpose().map_err(Failure::usage)?;
        Ok(Self { config, provider, key, tools, policy, guards })
    }

    /// The tools of one call.
    fn registry(&self, call: &IncomingCall) -> Result<ToolRegistry, AnswerError> {
        let failed = |error: RegistryError| AnswerError(error.to_string());
        let registry = shared_tools(&self.config, self.tools.as_ref()).map_err(failed)?;
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

#[async_trait]
impl CallAgent for Agent {
    async fn answer(&self, call: &IncomingCall) -> Result<Answer, AnswerError> {
        let mut builder = AgentSession::builder(self.provider.clone())
            .registry(Arc::new(self.registry(call)?))
            .authorize(self.policy.clone());
        if let Some(guards) = &self.guards {
            builder = guards.apply(builder);
        }
        Ok(Answer::new(builder, self.live(call)).configured(&self.config))
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
) -> Result<Vec<ToolDefinition>, Failure> {
    let mut definitions = shared_tools(config, file).map_err(Failure::usage)?.definitions();
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
