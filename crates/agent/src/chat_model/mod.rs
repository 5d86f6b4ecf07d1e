//! Language models behind HTTP, of many vendors.
//!
//! The wire formats are the business of the `genai` crate; here its requests and events are put in
//! the words of [`Model`], with a deadline for every wait and errors with canonical codes.

mod error;
mod request;
mod stream;

use std::{fmt, sync::Arc, time::Duration};

use antiphon_types::Status;
use async_trait::async_trait;
use genai::{
    Client, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    chat::ChatOptions,
    resolver::{AuthData, Endpoint},
};
use secrecy::{ExposeSecret, SecretString};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::{Model, ModelError, ModelRequest, ModelStream};

/// How a server wants to be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatApi {
    /// Chat completions as OpenAI has them; also Ollama, llama.cpp, vLLM and many more.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Gemini's `generateContent`.
    Gemini,
}

impl ChatApi {
    /// The address of the vendor.
    pub const fn default_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1/",
            Self::Anthropic => "https://api.anthropic.com/v1/",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta/",
        }
    }

    /// The environment variable in which the vendor's users keep their key.
    pub const fn key_variable(self) -> &'static str {
        match self {
            Self::OpenAi => "OPENAI_API_KEY",
            Self::Anthropic => "ANTHROPIC_API_KEY",
            Self::Gemini => "GEMINI_API_KEY",
        }
    }

    const fn adapter(self) -> AdapterKind {
        match self {
            Self::OpenAi => AdapterKind::OpenAI,
            Self::Anthropic => AdapterKind::Anthropic,
            Self::Gemini => AdapterKind::Gemini,
        }
    }
}

/// A language model behind HTTP.
///
/// Dropping a generation closes its connection.
///
/// ```
/// use antiphon_agent::chat_model::{ChatApi, ChatModel};
///
/// // A server on this machine needs no key.
/// let local = ChatModel::builder(ChatApi::OpenAi, "qwen3:8b")
///     .url("http://localhost:11434/v1")
///     .build()?;
/// # assert_eq!(antiphon_agent::Model::name(&local), "qwen3:8b");
/// # Ok::<_, antiphon_agent::ModelError>(())
/// ```
pub struct ChatModel {
    name: Arc<str>,
    client: Client,
    target: ServiceTarget,
    options: ChatOptions,
}

impl ChatModel {
    /// A model of this name on a server that speaks `api`.
    pub fn builder(api: ChatApi, model: impl Into<Arc<str>>) -> ChatModelBuilder {
        ChatModelBuilder {
            api,
            model: model.into(),
            url: None,
            key: None,
            temperature: None,
            first_wait: Duration::from_secs(60),
            wait: Duration::from_secs(60),
        }
    }
}

#[async_trait]
impl Model for ChatModel {
    fn name(&self) -> &str {
        &self.name
    }

    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let invalid = |reason| ModelError::new(self.name(), Status::InvalidArgument, reason);
        let options = request::chat_options(&self.options, &request).map_err(invalid)?;
        let chat = request::chat_request(&request).map_err(invalid)?;
        let answer = self.client.exec_chat_stream(self.target.clone(), chat, Some(&options)).await;
        match answer {
            Ok(answer) => Ok(stream::model_stream(self.name.clone(), answer.stream)),
            Err(error) => Err(error::model_error(&self.name, &error)),
        }
    }
}

impl fmt::Debug for ChatModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatModel")
            .field("name", &self.name)
            .field("url", &self.target.endpoint.base_url())
            .finish_non_exhaustive()
    }
}

/// Describes a [`ChatModel`].
#[derive(Clone, Debug)]
pub struct ChatModelBuilder {
    api: ChatApi,
    model: Arc<str>,
    url: Option<String>,
    key: Option<SecretString>,
    temperature: Option<f64>,
    first_wait: Duration,
    wait: Duration,
}

impl ChatModelBuilder {
    /// Sets the base address, such as `http://localhost:11434/v1`. Default: the vendor's.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Sets the key. Needed for the vendor's address.
    pub fn api_key(mut self, key: impl Into<SecretString>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets how freely the model chooses its words, where the vendor lets one; 0 to 2.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets how long the server may take to begin an answer, connecting included. Default: 60
    /// seconds.
    pub fn first_wait(mut self, wait: Duration) -> Self {
        self.first_wait = wait;
        self
    }

    /// Sets how long the server may be silent within an answer. Default: 60 seconds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Makes the model. Errs where the address is none, where the vendor's own is used without a
    /// key, and where the temperature is out of its range.
    pub fn build(self) -> Result<ChatModel, ModelError> {
        let name = self.model;
        let invalid = |text: String| ModelError::new(name.clone(), Status::InvalidArgument, text);
        if name.trim().is_empty() {
            return Err(invalid("a model needs a name".into()));
        }
        if self.temperature.is_some_and(|value| !(0.0..=2.0).contains(&value)) {
            return Err(invalid("the temperature is to be between 0 and 2".into()));
        }
        let url = self.url.unwrap_or_else(|| self.api.default_url().to_owned());
        let parsed = reqwest::Url::parse(&url)
            .map_err(|error| invalid(format!("the address {url:?} is none: {error}")))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(invalid(format!("the address {url:?} is not of http or https")));
        }
        let key = self.key.as_ref().map(|key| key.expose_secret()).unwrap_or_default();
        if key.is_empty() && url == self.api.default_url() {
            let text = format!("it needs a key, such as of {}", self.api.key_variable());
            return Err(ModelError::new(name, Status::Unauthenticated, text));
        }
        let broken = |error: &dyn fmt::Display| {
            ModelError::new(name.clone(), Status::Internal, format!("no HTTP client: {error}"))
        };
        let http = http_client(self.first_wait).map_err(|error| broken(&error))?;
        let client =
            Client::builder().with_reqwest(http).build().map_err(|error| broken(&error))?;

        let options = ChatOptions {
            temperature: self.temperature,
            stream_header_timeout: Some(self.first_wait),
            stream_read_timeout: Some(self.wait),
            capture_usage: Some(true),
            capture_content: Some(true),
            capture_tool_calls: Some(true),
            capture_reasoning_content: Some(true),
            ..ChatOptions::default()
        };
        let base = if url.ends_with('/') { url } else { url + "/" };
        Ok(ChatModel {
            client,
            target: ServiceTarget {
                endpoint: Endpoint::from_owned(base),
                // A server that wants no key gets one all the same: the crate insists.
                auth: AuthData::from_single(if key.is_empty() { "none" } else { key }),
                model: ModelIden::new(self.api.adapter(), &*name),
            },
            name,
            options,
        })
    }
}

fn http_client(connect: Duration) -> reqwest::Result<reqwest::Client> {
    let roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|tls| tls.with_root_certificates(roots).with_no_client_auth());
    let builder = reqwest::Client::builder()
        .connect_timeout(connect)
        .redirect(reqwest::redirect::Policy::none());
    match tls {
        Ok(tls) => builder.tls_backend_preconfigured(tls).build(),
        // `ring` has the default versions; were it not so, reqwest says it.
        Err(_) => builder.build(),
    }
}
