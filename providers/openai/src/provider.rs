//! The provider: configurations to connections.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use antiphon_live::{
    Capabilities, ConnectRequest, Connector, LiveConfig, LiveConnection, LiveError, LiveProvider,
    Secrets,
    websocket::{self, TcpConnector, WebSocketOptions},
};
use async_trait::async_trait;

use crate::{
    client::{Client, NAME, model_of},
    wire::Dialect,
};

/// OpenAI Realtime over WebSocket, and servers that speak like it: see [`Dialect`].
///
/// A session needs a key: [`LiveConfig::api_key`], or [`LiveConfig::bearer`] where it is made for
/// each connection. An ephemeral secret (`ek_…`, see [`crate::ClientSecretRequest`]) is a key like
/// any other.
///
/// # What the configuration becomes
///
/// | [`LiveConfig`] | on the wire |
/// |---|---|
/// | `model`, `fallback_model` | the query of the address, at Inworld the session; the second is tried when connecting with the first fails. Default: the vendor's, at OpenAI `gpt-realtime-2`; at Azure OpenAI the name of a deployment, which has no default |
/// | `api_key`, `bearer` | `Authorization: Bearer`; at Azure `api-key`, at Inworld `Authorization: Basic`, but for tokens |
/// | `endpoint` | the address: `ws`, `wss`, `http` or `https`; a path is completed where it has none or ends with `/v1`. Default: the vendor's; Azure has one for each customer |
/// | `voice` | `audio.output.voice`; at OpenAI `voice_…` is a custom one, at Voice Live `…Neural` one of Azure's |
/// | `instructions`, `refinement`, `vocabulary_hint`, `locale` | `instructions`, one after the other; without any of them the server keeps its own |
/// | `vocabulary_hint`, `locale` | also the transcriber's `prompt` and `language` |
/// | `voice_activity` | `turn_detection`: `Auto` is `server_vad`, or `semantic_vad` by option; `Manual` and `Off` are `null` |
/// | `policies.input_transcription` | `transcription`, by default with `gpt-4o-mini-transcribe`, elsewhere the vendor's; at Azure OpenAI only with the option `transcription_model`, which names a deployment there |
/// | `policies.output_transcription` | off: the words of the voice are not told |
/// | `policies.activity` | sensitivities other than medium: `threshold` 0.7 or 0.3, `silence_duration_ms` 800 or 300, or `eagerness`; `prefix_padding`, `silence`; no interruption is `interrupt_response: false` |
/// | `policies.thinking` | `reasoning.effort`, for models that reason |
/// | `policies.context_compression` | other than the default: `truncation` |
/// | `tools` | `tools` |
/// | `speaker.diarization` | a transcriber that tells speakers apart; they come as [`antiphon_live::LiveEvent::Native`] |
/// | `connect_timeout` | the whole of connecting |
/// | `affective_dialog`, `activity.coverage`, `speaker.max_speakers` | nothing; listed as unsupported |
///
/// Options, in `options` or `provider_options`:
///
/// | option | value |
/// |---|---|
/// | `dialect` | `ga`, `beta`, `azure`, `azure_preview`, `voice_live`, `xai`, `qwen`, `inworld`; mostly the address tells |
/// | `api_version` | of Azure's preview and of Voice Live |
/// | `agent_id`, `project_id` | of an agent at Voice Live, in place of a model |
/// | `session_id` | of a session at Inworld. Default: a new one for each connection |
/// | `subprotocol` | offered in the handshake, where a server wants one |
/// | `organization`, `project`, `safety_identifier` | headers, at OpenAI |
/// | `session` | an object: what the vendor alone has, such as Voice Live's `input_audio_echo_cancellation`, Qwen's `enable_search` or Inworld's `providerData`. It is merged into the session as it is, and wins |
/// | `replies_after_tools` | whether the server goes on by itself after a tool's output |
/// | `output_modality` | `audio` or `text` |
/// | `input_audio_format`, `output_audio_format` | `pcm16` (24,000 Hz), `g711_ulaw`, `g711_alaw` |
/// | `input_audio_rate`, `output_audio_rate` | where the vendor has others: xAI, Voice Live |
/// | `turn_detection` | `server_vad`, `semantic_vad`, at Voice Live also `azure_semantic_vad` and its kin |
/// | `eagerness`, `vad_threshold`, `idle_timeout_ms`, `create_response` | of turn detection |
/// | `transcription_model`, `transcription_prompt`, `transcription_delay` | of the user's transcript |
/// | `noise_reduction` | `near_field` or `far_field`, at Voice Live also `azure_deep_noise_suppression` |
/// | `speed` | 0.25 to 1.5 |
/// | `max_output_tokens` | 1 to 4,096, or `inf` |
/// | `tool_choice`, `parallel_tool_calls`, `reasoning_effort`, `include`, `prompt`, `tracing`, `truncation` | as in the protocol |
/// | `mcp_servers` | a list of `mcp` tools, which the service runs itself. Where it asks for an approval, policy and hooks decide as over other calls, of a tool named `label/tool`; a session that has any makes it ask before each, and does not start with a server that would not |
///
/// What a dialect has no word for is not sent, since some servers refuse a whole session for it; it is
/// listed among the capabilities' `unsupported_options`.
///
/// # What it does its own way
///
/// - `say` asks the model to speak the text word for word. It nearly always does. xAI has words for
///   it, and always does.
/// - Qwen takes no messages: no text, no history, images only as JPEGs after the user's first audio.
///   It stops its replies and answers turns by itself, and cannot be told not to.
/// - xAI keeps the conversation for half an hour after its connection ended, and a session goes on with
///   it; the option `session` with `{"resumption": {"enabled": false}}` says that it shall not be kept.
/// - At xAI a call of a tool that was not declared is the server's own and is not told.
/// - With [`antiphon_live::VoiceActivity::Auto`], `end_audio` sends as much silence as ends a turn.
/// - A turn by hand of less than 100 ms is refused, as the server would.
/// - An interrupted reply is told as interrupted when the user begins to speak, not when the server
///   has stopped it.
/// - The user's transcripts come in the order of what was said, however the server sends them.
#[derive(Clone)]
pub struct OpenAi {
    dialect: Option<Dialect>,
    connector: Arc<dyn Connector>,
    options: WebSocketOptions,
}

impl Default for OpenAi {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenAi {
    /// Over TCP and TLS, in the dialect that the address tells.
    pub fn new() -> Self {
        Self {
            dialect: None,
            connector: Arc::new(TcpConnector::new()),
            options: WebSocketOptions::default(),
        }
    }

    /// Sets the dialect of connections whose configuration does not name one.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
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
    ) -> Result<Box<dyn LiveConnection>, LiveError> {
        let mut client = Client::with_model(&request.config, self.dialect, model)?
            .session_id(&uuid::Uuid::new_v4().to_string());
        client = match &request.resume {
            Some(resumption) => client.resuming(resumption),
            None => client.history(request.history.clone()),
        };
        if let Ok(time) = SystemTime::now().duration_since(UNIX_EPOCH) {
            client = client.unix_time(time);
        }
        websocket::connect(client, request, secrets, &*self.connector, &self.options).await
    }
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAi").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

#[async_trait]
impl LiveProvider for OpenAi {
    fn name(&self) -> &str {
        NAME
    }

    fn model(&self, config: &LiveConfig) -> Arc<str> {
        model_of(config, self.dialect)
    }

    fn capabilities(&self, config: &LiveConfig) -> Result<Capabilities, LiveError> {
        let client = Client::new(config, self.dialect)?;
        Ok(Capabilities::clone(client.capabilities()))
    }

    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError> {
        let secrets = Secrets::resolve(&request.config).await?;
        let first = self.model(&request.config);
        let second = request.config.fallback_model.as_deref().map(str::trim);
        let second = second.filter(|second| !second.is_empty() && **second != *first);
        // A model that never answers is to leave time for the other one.
        let halved = second.map(|_| request.in_half_the_time());
        let first = halved.as_ref().unwrap_or(&request);
        let error = match self.connect_with(first, secrets.clone(), None).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        match second {
            // Another model has no other key.
            Some(second) if !is_of_the_caller(&error) => {
                tracing::warn!(%error, model = second, "connecting with the fallback model");
                self.connect_with(&request, secrets, Some(second)).await
            }
            _ => Err(error),
        }
    }
}

/// Whether connecting failed for a reason that no model changes.
fn is_of_the_caller(error: &LiveError) -> bool {
    matches!(
        error,
        LiveError::MissingApiKey { .. }
            | LiveError::MissingEndpoint { .. }
            | LiveError::Unsupported { .. }
            | LiveError::NoResumableSession
    )
}
