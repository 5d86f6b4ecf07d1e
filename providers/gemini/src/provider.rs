//! The provider: configurations to connections.

use std::{fmt, sync::Arc};

use antiphon_live::{
    Capabilities, ConnectRequest, Connector, LiveConfig, LiveConnection, LiveError, LiveProvider,
    Resumption, Secrets,
    websocket::{self, TcpConnector, WebSocketOptions},
};
use async_trait::async_trait;
use secrecy::{ExposeSecret, SecretString};

use crate::client::{Client, NAME, OF_MODEL, Platform, model_of};

/// Gemini Live over WebSocket.
///
/// A session needs a key of the Gemini API, an ephemeral token (`auth_tokens/…`, see
/// [`crate::EphemeralTokenRequest`]), or, for Vertex AI, an OAuth token:
/// [`LiveConfig::api_key`], or [`LiveConfig::bearer`] where it is made for each connection. (The
/// feature `adc` has such a source.)
///
/// # What the configuration becomes
///
/// | [`LiveConfig`] | on the wire |
/// |---|---|
/// | `model`, `fallback_model` | `setup.model`, with its path; the second is tried when connecting with the first fails. Default: `gemini-3.8-live` |
/// | `api_key`, `bearer` | `x-goog-api-key`, or `Authorization` for tokens |
/// | `endpoint` | the address: `ws`, `wss`, `http` or `https`; the service's path is added where it does not hold `BidiGenerateContent` |
/// | `voice` | `speechConfig.voiceConfig.prebuiltVoiceConfig` |
/// | `instructions`, `refinement`, `vocabulary_hint`, `locale` | `systemInstruction`, one after the other |
/// | `voice_activity` | `Auto`: the service detects activity; `Manual` and `Off`: the client tells of it |
/// | `policies.input_transcription`, `output_transcription` | `inputAudioTranscription`, `outputAudioTranscription` |
/// | `speaker.diarization` | `inputAudioTranscription.diarization` |
/// | `policies.activity` | sensitivities other than medium, `prefixPaddingMs`, `silenceDurationMs`, `activityHandling`, `turnCoverage` |
/// | `policies.thinking` | `thinkingBudget` or `thinkingLevel`, as the model's generation wants it |
/// | `policies.affective_dialog` | `enableAffectiveDialog`, where the generation has it |
/// | `policies.context_compression` | `contextWindowCompression` |
/// | `tools` | `functionDeclarations`; `behavior` where the generation has it |
/// | `connect_timeout` | the whole of connecting |
///
/// Options, in `options` or `provider_options`:
///
/// | option | value |
/// |---|---|
/// | `platform` | `gemini` or `vertex`; mostly the address tells |
/// | `project`, `location` | Vertex AI; without a project, its express mode with a key. Location: `global` |
/// | `user_project` | who pays, as `x-goog-user-project` |
/// | `api_version` | such as `v1alpha`. Default: `v1beta`, `v1beta1` at Vertex AI, `v1alpha` where a feature needs it |
/// | `output_modality` | `audio` or `text`; native-audio models only speak |
/// | `temperature`, `top_p`, `top_k`, `max_output_tokens`, `candidate_count`, `seed`, `media_resolution`, `translation`, `safety_settings`, `labels` | as in the protocol |
/// | `language_code` | of the voice; models that speak natively refuse it |
/// | `custom_vocabulary`, `transcription_languages`, `transcription_mode` | of the user's transcript |
/// | `proactive_audio`, `proactive_video` | as in the protocol; the first only where the generation can do without it |
/// | `session_resumption` | `false`: no handles |
/// | `transparent_resumption`, `explicit_vad_signal` | Vertex AI only |
/// | `google_search`, `tools` | tools that the service runs, the second in its own words. It does not ask before: where a policy decides over tools, `mcpServers` and `computerUse` are refused |
/// | `text_channel` | `client_content`, or `realtime`: early 3.1 models hang up on the first |
///
/// # What it does its own way
///
/// - The wire has no replies: one begins with the first sign of the model, and ends with its turn, or
///   with a call that it waits for. A turn ends when its voice would have been heard.
/// - It has no way to cancel: a cancelled reply ends here and its remains are dropped; the model
///   stops with the next text or speech. It cuts what was not heard by its own reckoning, so there is
///   nothing to truncate.
/// - `say` asks the model to speak the text word for word. It nearly always does.
/// - The output of a call of an earlier connection is told in words.
#[derive(Clone)]
pub struct Gemini {
    platform: Option<Platform>,
    connector: Arc<dyn Connector>,
    options: WebSocketOptions,
}

impl Default for Gemini {
    fn default() -> Self {
        Self::new()
    }
}

impl Gemini {
    /// Over TCP and TLS, to whom the configuration tells.
    pub fn new() -> Self {
        Self {
            platform: None,
            connector: Arc::new(TcpConnector::new()),
            options: WebSocketOptions::default(),
        }
    }

    /// Vertex AI, in this project and location, such as `us-central1` or `global`.
    pub fn vertex(project: impl Into<String>, location: impl Into<String>) -> Self {
        let (project, location) = (Some(project.into()), Some(location.into()));
        Self::new().platform(Platform::Vertex { project, location })
    }

    /// Sets who offers the models, for connections whose configuration does not say it.
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = Some(platform);
        self
    }

    /// Sets where the bytes of connections come from.
    pub fn connector(mut self, connector: impl Connector) -> Self {
        self.connector = Arc::new(connector);
        self
    }

    /// Sets how the WebSocket behaves.
    pub fn websocket(mut self, options: WebSocketOptions) -> Self {
        self.options = options;
        self
    }

    async fn connect_with(
        &self,
        request: &ConnectRequest,
        secrets: Secrets,
        model: Option<&str>,
        resume: Option<Resumption>,
    ) -> Result<Box<dyn LiveConnection>, LiveError> {
        let client = Client::with_model(&request.config, self.platform.as_ref(), model)?
            .history(request.history.clone())
            .resume(resume)
            .epoch(request.epoch);
        websocket::connect(client, request, secrets, &*self.connector, &self.options).await
    }
}

impl fmt::Debug for Gemini {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gemini").field("platform", &self.platform).finish_non_exhaustive()
    }
}

#[async_trait]
impl LiveProvider for Gemini {
    fn name(&self) -> &str {
        NAME
    }

    fn model(&self, config: &LiveConfig) -> Arc<str> {
        model_of(config)
    }

    fn capabilities(&self, config: &LiveConfig) -> Result<Capabilities, LiveError> {
        let client = Client::new(config, self.platform.as_ref())?;
        Ok(Capabilities::clone(client.capabilities()))
    }

    fn account(&self, config: &LiveConfig) -> Option<SecretString> {
        crate::client::account(config, self.platform.as_ref())
    }

    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError> {
        let secrets = Secrets::resolve(&request.config).await?;
        let first = self.model(&request.config);
        let second = request.config.fallback_model.as_deref().map(str::trim);
        let second = second.filter(|second| !second.is_empty() && **second != *first);
        let resume = request.resume.clone();
        if let Some((second, handle)) = second.zip(resume.as_ref()).and_then(handle_of_second) {
            // Only the model that gave it knows what it stands for.
            let connecting = self.connect_with(&request, secrets, Some(second), Some(handle));
            return connecting.await.map_err(|error| {
                let lasts = !error.is_recoverable() && !is_of_the_caller(&error);
                if lasts { LiveError::NoResumableSession } else { error }
            });
        }
        // A model that never answers is to leave time for the other one.
        let tries_second = second.is_some() && request.resume.is_none();
        let halved = tries_second.then(|| request.in_half_the_time());
        let first = halved.as_ref().unwrap_or(&request);
        let error = match self.connect_with(first, secrets.clone(), None, resume).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        match second {
            // Another model has no other key, and knows nothing of the handle.
            Some(second) if !is_of_the_caller(&error) && request.resume.is_none() => {
                tracing::warn!(%error, model = second, "connecting with the fallback model");
                self.connect_with(&request, secrets, Some(second), None).await
            }
            _ => Err(error),
        }
    }
}

/// The handle, if the fallback model gave it.
fn handle_of_second<'a>((second, resume): (&'a str, &Resumption)) -> Option<(&'a str, Resumption)> {
    let handle = resume.handle.expose_secret().strip_prefix(second)?;
    let handle = SecretString::from(handle.strip_prefix(OF_MODEL)?);
    Some((second, Resumption { handle }))
}

/// Whether connecting failed for a reason that no model changes.
fn is_of_the_caller(error: &LiveError) -> bool {
    matches!(
        error,
        LiveError::MissingApiKey { .. }
            | LiveError::Unauthorized(_)
            | LiveError::Unsupported { .. }
            | LiveError::NoResumableSession
    )
}
