//! Servers that speak OpenAI Realtime, each in its dialect: where, and with which key.

use std::env;

use antiphon::{live::LiveConfig, providers::openai::wire::Dialect};

use crate::{args::Provider, failure::Failure};

/// A server as the command line names it.
#[derive(Clone, Debug)]
pub struct Server {
    /// The one of `--provider`; its address may tell more.
    dialect: Dialect,
    provider: &'static str,
    url: Option<String>,
    model: Option<String>,
    transcriber: Option<String>,
}

/// Writes down what the user says, if it is not the vendor's own: an option of the configuration.
pub const TRANSCRIBER: &str = "transcription_model";

impl Server {
    /// The server of a provider that has a [`dialect`].
    pub fn new(
        (provider, dialect): (&'static str, Dialect),
        url: Option<String>,
        model: Option<String>,
        transcriber: Option<String>,
    ) -> Self {
        Self { dialect, provider, url, model, transcriber }
    }

    /// The dialect, and the configuration with the address, the model and the key: of the command
    /// line, else of the environment.
    pub fn configure(&self, mut config: LiveConfig) -> Result<(Dialect, LiveConfig), Failure> {
        let Self { provider, .. } = self;
        let facts = self.dialect.facts();
        let variables = &facts.variables;
        let key = key(variables.key)?;
        let url = self.url.clone().or_else(|| variables.address.and_then(variable));
        if let (None, None, Some(name)) = (&url, facts.address, variables.address) {
            return Err(Failure::failed(format!(
                "--provider {provider} has no address of its own: name that of your resource with \
                 --url, such as https://NAME{}, or in {name}",
                facts.signs.hosts.first().unwrap_or(&"")
            )));
        }
        let told = url.as_deref().and_then(Dialect::of_address);
        let dialect = match (self.dialect, told) {
            // Any server may speak like OpenAI; and Azure's address tells which of two ways.
            (Dialect::Ga, Some(told)) => told,
            (Dialect::Azure, Some(told @ Dialect::AzurePreview)) => told,
            (named, _) => named,
        };
        let model = self.model.clone().or_else(|| variables.model.and_then(variable));
        if let (None, true, Some(name)) = (&model, dialect.facts().wants_model(), variables.model) {
            return Err(Failure::failed(format!(
                "--provider {provider} answers with a deployment of yours: name it with --model or \
                 in {name}"
            )));
        }
        config = config.api_key(key);
        config.endpoint = url;
        config.model = model.map(Into::into);
        let transcriber = self.transcriber.clone();
        if let Some(model) = transcriber.or_else(|| variables.transcriber.and_then(variable)) {
            config.options.insert(TRANSCRIBER.into(), model.into());
        }
        Ok((dialect, config))
    }
}

/// What a provider is called and speaks; `None`: no dialect of OpenAI's.
pub fn dialect(provider: Provider) -> Option<(&'static str, Dialect)> {
    let (_, name, dialect) = PROVIDERS.into_iter().find(|(known, ..)| *known == provider)?;
    Some((name, dialect))
}

/// Holds the key for Gemini.
pub const GEMINI_KEY: &str = "GEMINI_API_KEY";

/// The providers that are such servers: their names, and what they speak.
pub const PROVIDERS: [(Provider, &str, Dialect); 6] = [
    (Provider::Openai, "openai", Dialect::Ga),
    (Provider::Azure, "azure", Dialect::Azure),
    (Provider::VoiceLive, "voice-live", Dialect::VoiceLive),
    (Provider::Xai, "xai", Dialect::Xai),
    (Provider::Qwen, "qwen", Dialect::Qwen),
    (Provider::Inworld, "inworld", Dialect::Inworld),
];

/// The key in an environment variable.
pub fn key(name: &str) -> Result<String, Failure> {
    variable(name).ok_or_else(|| {
        Failure::failed(format!(
            "no API key: put one into the environment variable {name}, or talk to the offline agent \
             with --provider offline"
        ))
    })
}

/// An environment variable that is not blank.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}
