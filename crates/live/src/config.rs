//! The configuration of a live session.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use antiphon_types::{Sensitivity, ToolDefinition};
use async_trait::async_trait;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::LiveError;

/// How a live session is to be. [`Default`] is a session with automatic turn-taking and both
/// transcripts; every field says what its default means. `Debug` shows no secret, and a serialised one has neither
/// the key nor the source of tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LiveConfig {
    /// The canonical id of the provider (`openai`, `google`, `offline`); for factories and
    /// records. Default: none.
    pub provider: Option<Arc<str>>,
    /// A public profile id such as `realtime.openai.gpt-realtime-2`; for factories and records.
    /// Default: none.
    pub profile_id: Option<Arc<str>>,
    /// The model. `None`, the default: the provider's own.
    pub model: Option<Arc<str>>,
    /// A second model, tried once when connecting with the first fails. Blank or equal to the
    /// first, and by default: none.
    pub fallback_model: Option<Arc<str>>,
    /// A long-lived key. Default: none; a provider that needs one refuses to connect.
    #[serde(skip)]
    pub api_key: Option<SecretString>,
    /// A source of short-lived tokens, asked at every connect; wins over `api_key`.
    /// Default: none.
    #[serde(skip)]
    pub bearer: Option<BearerSource>,
    /// Overrides the provider's address. Default: the provider's own.
    pub endpoint: Option<String>,
    /// The voice. `None`, the default: the provider's own.
    pub voice: Option<Arc<str>>,
    /// The system prompt. `None`, the default: the provider's own, if it has one.
    pub instructions: Option<String>,
    /// Appended to the instructions. Default: nothing.
    pub refinement: Option<String>,
    /// Names and terms to listen for, separated by newlines, commas or semicolons.
    /// Default: none.
    pub vocabulary_hint: Option<String>,
    /// A BCP 47 language tag such as `en-GB`. `None`, the default: the provider decides.
    pub locale: Option<Arc<str>>,
    /// For logs and audits only; never changes routing. Default: none.
    pub region: Option<Arc<str>>,
    /// Turn-taking: who decides when the user has spoken. Default: [`VoiceActivity::Auto`].
    pub voice_activity: VoiceActivity,
    /// Finer settings; see there for each default.
    pub policies: LivePolicies,
    /// Tools beside those of the session's registry; calls to them are answered by the host.
    /// Default: none.
    pub tools: Vec<ToolDefinition>,
    /// Tools that the provider runs itself, such as those of an MCP server that it reaches, ask before they
    /// run ([`crate::LiveEvent::ToolPermission`]); a configuration by which one would not is refused. A
    /// session with a policy or hooks sets it. Default: off.
    pub tools_ask: bool,
    /// Steps of a conversation. `None`, the default: off.
    pub workflow: Option<WorkflowConfig>,
    /// Telling speakers apart, for providers that can. Default: off.
    pub speaker: SpeakerOptions,
    /// Provider-neutral options by id. What a provider does not know is ignored and listed in
    /// [`crate::Capabilities::unsupported_options`]. Default: none.
    pub options: BTreeMap<String, Value>,
    /// Options of this provider; they win over `options`. Default: none.
    pub provider_options: BTreeMap<String, Value>,
    /// How long connecting may take. `None`, the default: 15 seconds.
    pub connect_timeout: Option<Duration>,
}

impl LiveConfig {
    /// The default configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the model.
    pub fn model(mut self, model: impl Into<Arc<str>>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets the key.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(SecretString::from(key.into()));
        self
    }

    /// Sets the voice.
    pub fn voice(mut self, voice: impl Into<Arc<str>>) -> Self {
        self.voice = Some(voice.into());
        self
    }

    /// Sets the instructions.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Sets the locale.
    pub fn locale(mut self, locale: impl Into<Arc<str>>) -> Self {
        self.locale = Some(locale.into());
        self
    }

    /// Sets who decides when the user has spoken.
    pub fn voice_activity(mut self, voice_activity: VoiceActivity) -> Self {
        self.voice_activity = voice_activity;
        self
    }

    /// Adds a tool that the host answers itself.
    pub fn host_tool(mut self, tool: ToolDefinition) -> Self {
        self.tools.push(tool);
        self
    }

    /// Sets the workflow.
    pub fn workflow(mut self, workflow: WorkflowConfig) -> Self {
        self.workflow = Some(workflow);
        self
    }
}

/// Who decides when the user has spoken. Never implied by other settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoiceActivity {
    /// The provider hears it.
    #[default]
    Auto,
    /// The host says it: `activity_start` and `activity_end`.
    Manual,
    /// Nobody: audio collects until `end_audio`.
    Off,
}

/// Finer settings of a live session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LivePolicies {
    /// Transcribe the user. Default: on.
    pub input_transcription: bool,
    /// Transcribe the agent. Default: on.
    pub output_transcription: bool,
    /// Answer to the mood of the voice. Default: off.
    pub affective_dialog: bool,
    /// Thinking before speaking.
    pub thinking: Thinking,
    /// Shortening of long conversations by the provider.
    pub context_compression: ContextCompression,
    /// How speech is detected with [`VoiceActivity::Auto`].
    pub activity: ActivityDetection,
}

impl Default for LivePolicies {
    fn default() -> Self {
        Self {
            input_transcription: true,
            output_transcription: true,
            affective_dialog: false,
            thinking: Thinking::default(),
            context_compression: ContextCompression::default(),
            activity: ActivityDetection::default(),
        }
    }
}

/// Thinking before speaking. Default: the provider's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Thinking {
    /// `None`: the provider's default.
    pub enabled: Option<bool>,
    /// Whether thoughts are sent along. Default: no.
    pub include_thoughts: bool,
    /// Tokens for thinking. `None`: the provider's default.
    pub budget: Option<u32>,
    /// How much. `None`: the provider's default.
    pub level: Option<ThinkingLevel>,
}

/// How much thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ThinkingLevel {
    Off,
    Low,
    Medium,
    High,
}

/// Shortening of long conversations by the provider. Default: on, from 12,000 to 6,000 tokens,
/// where the provider can.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ContextCompression {
    /// Whether to shorten. Default: yes.
    pub enabled: bool,
    /// Starts at this many tokens. Default: 12,000.
    pub trigger_tokens: u64,
    /// Shortens to this many. Default: 6,000.
    pub target_tokens: u64,
}

impl Default for ContextCompression {
    fn default() -> Self {
        Self { enabled: true, trigger_tokens: 12_000, target_tokens: 6_000 }
    }
}

/// How speech is detected with [`VoiceActivity::Auto`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ActivityDetection {
    /// How readily speech begins. Default: medium.
    pub start_sensitivity: Sensitivity,
    /// How readily speech ends. Default: medium.
    pub end_sensitivity: Sensitivity,
    /// Audio kept from before speech was detected. `None`: the provider's default (offline 300 ms).
    pub prefix_padding: Option<Duration>,
    /// Silence after which the user has finished. `None`: the provider's default (offline 600 ms).
    pub silence: Option<Duration>,
    /// What speech does to a reply. Default: it interrupts.
    pub handling: ActivityHandling,
    /// What of the audio belongs to the turn. Default: what the provider does.
    pub coverage: TurnCoverage,
    /// The end of the user's turn makes no reply by itself: whoever uses the connection asks for
    /// each with [`crate::LiveCommand::CreateReply`]. For providers with
    /// [`crate::Capabilities::session_answers`]. Default: off.
    pub session_answers: bool,
}

impl Default for ActivityDetection {
    fn default() -> Self {
        Self {
            start_sensitivity: Sensitivity::Medium,
            end_sensitivity: Sensitivity::Medium,
            prefix_padding: None,
            silence: None,
            handling: ActivityHandling::default(),
            coverage: TurnCoverage::default(),
            session_answers: false,
        }
    }
}

/// What the user's speech does to a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityHandling {
    /// It stops the reply (barge-in).
    #[default]
    Interrupts,
    /// The reply goes on; what was said is answered afterwards.
    NoInterruption,
}

/// What of the audio belongs to the user's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnCoverage {
    /// The provider's default.
    #[default]
    ProviderDefault,
    /// Only speech.
    OnlyActivity,
    /// Everything.
    AllInput,
    /// Everything that is sound.
    AudioActivity,
}

/// Telling speakers apart, for providers that can. Default: off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SpeakerOptions {
    /// Whether to label speakers.
    pub diarization: bool,
    /// At most this many speakers.
    pub max_speakers: Option<u32>,
}

/// Steps that a conversation goes through, each with its own instructions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkflowConfig {
    /// Names the sequence in logs and prompts.
    pub sequence_id: Arc<str>,
    /// Put before each step. `None`: [`LiveConfig::instructions`].
    pub base_prompt: Option<String>,
    /// The steps, in order.
    pub steps: Vec<WorkflowStep>,
    /// Index of the first step; out of range is 0.
    pub initial_step: usize,
    /// User turns over all steps after which the workflow advances one step with each turn.
    /// `None`: no bound.
    pub max_turns: Option<u32>,
    /// Said to the model once the last step is done. `None`: nothing is said.
    pub completion: Option<String>,
}

impl WorkflowConfig {
    /// A workflow of these steps.
    pub fn new(sequence_id: impl Into<Arc<str>>, steps: Vec<WorkflowStep>) -> Self {
        Self { sequence_id: sequence_id.into(), steps, ..Self::default() }
    }
}

/// One step of a workflow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkflowStep {
    /// Names the step.
    pub id: Arc<str>,
    /// What the model is to do in it.
    pub instruction: String,
    /// When the step is done, in words for the model.
    pub exit_criteria: Option<String>,
    /// Tools of which one must have run before the step may be left by counting turns.
    pub require_tools: Vec<Arc<str>>,
    /// User turns after which the next step begins. `None`: only by `advance_workflow_step`.
    pub max_turns: Option<u32>,
}

impl WorkflowStep {
    /// A step.
    pub fn new(id: impl Into<Arc<str>>, instruction: impl Into<String>) -> Self {
        Self { id: id.into(), instruction: instruction.into(), ..Self::default() }
    }
}

/// A source of short-lived tokens.
#[derive(Clone)]
pub struct BearerSource(Arc<dyn TokenSource>);

impl BearerSource {
    /// From an async function that returns a token.
    pub fn new<F, Fut>(source: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<SecretString, LiveError>> + Send + 'static,
    {
        Self(Arc::new(FnSource(source)))
    }

    /// From a source of one's own, such as one that keeps tokens until they expire.
    pub fn of(source: impl TokenSource) -> Self {
        Self(Arc::new(source))
    }

    /// Asks for a token.
    pub async fn token(&self) -> Result<SecretString, LiveError> {
        self.0.token().await
    }
}

impl fmt::Debug for BearerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerSource(..)")
    }
}

/// Where tokens come from: implement it where an async function ([`BearerSource::new`]) will not do.
#[async_trait]
pub trait TokenSource: Send + Sync + 'static {
    /// A token that is valid now. Asked at every connect.
    async fn token(&self) -> Result<SecretString, LiveError>;
}

struct FnSource<F>(F);

#[async_trait]
impl<F, Fut> TokenSource for FnSource<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<SecretString, LiveError>> + Send + 'static,
{
    async fn token(&self) -> Result<SecretString, LiveError> {
        (self.0)().await
    }
}
