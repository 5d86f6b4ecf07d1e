//! The configuration of a session, as an update and as a snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Patch, Tool, ToolChoice, open_enum::open_enum};

/// A session by its type. Decoding never fails: what is no session of a known shape, such as one
/// with the flat keys of the beta, is [`Session::Other`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Session {
    /// A conversation.
    Realtime(Box<RealtimeSession>),
    /// Only transcripts of what is heard.
    Transcription(Box<TranscriptionSession>),
    /// Another shape.
    #[serde(untagged)]
    Other(Value),
}

/// A conversation's configuration. In an update only the keys that are present change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RealtimeSession {
    /// The server's id, `sess_…`; only in snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `realtime.session`; only in snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// When the session ends, in seconds since 1970; only in snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// The model; cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `["audio"]`, which includes its words, or `["text"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_modalities: Option<Vec<Modality>>,
    /// The system prompt; empty clears it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Audio in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioConfig>,
    /// The tools; empty clears them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Tool>>,
    /// Whether and which tool must be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Several calls in one reply; only models that reason take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// The bound of one reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<MaxTokens>,
    /// Thinking; only models that reason take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// Extra fields wanted in events: `item.input_audio_transcription.logprobs`.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub include: Patch<Vec<String>>,
    /// A stored prompt.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub prompt: Patch<Prompt>,
    /// Traces at the vendor. Cannot change once on.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tracing: Patch<Tracing>,
    /// How a long conversation is shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,
}

/// The configuration of a session that only transcribes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptionSession {
    /// The server's id; only in snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `realtime.transcription_session`; only in snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// When the session ends, in seconds since 1970; only in snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// Audio in; there is no output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioConfig>,
    /// Extra fields wanted in events.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub include: Patch<Vec<String>>,
}

/// Audio in and out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AudioConfig {
    /// What the user says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<AudioInput>,
    /// What the model says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<AudioOutput>,
}

/// How the user's audio is taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AudioInput {
    /// Its format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<AudioFormat>,
    /// Noise reduction, before anything else hears the audio.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub noise_reduction: Patch<NoiseReduction>,
    /// Transcripts of it.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub transcription: Patch<Transcription>,
    /// Who takes turns: the service, or, cleared, the client.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub turn_detection: Patch<TurnDetection>,
}

/// How the model speaks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AudioOutput {
    /// The format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<AudioFormat>,
    /// The voice; cannot change once the model has spoken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice: Option<Voice>,
    /// The speed, 0.25 to 1.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
}

/// A format of audio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum AudioFormat {
    /// 16-bit little-endian PCM, one channel.
    #[serde(rename = "audio/pcm")]
    Pcm {
        /// Samples a second; 24,000 at OpenAI.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u32>,
    },
    /// G.711 mu-law, 8,000 samples a second.
    #[serde(rename = "audio/pcmu")]
    Pcmu {},
    /// G.711 A-law, 8,000 samples a second.
    #[serde(rename = "audio/pcma")]
    Pcma {},
    /// Another format, such as the bare words of the beta.
    #[serde(untagged)]
    Other(Value),
}

/// A voice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Voice {
    /// One of the vendor's.
    Name(String),
    /// A custom one.
    Custom {
        /// `voice_…`
        id: String,
    },
    /// As another vendor writes it, such as `{"type":"azure-standard","name":…}`.
    Other(Value),
}

open_enum! {
    /// What the model gives.
    Modality {
        /// Text.
        Text = "text",
        /// Voice and its words.
        Audio = "audio",
    }
}

/// Who hears that the user has spoken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnDetection {
    /// By sound and silence.
    ServerVad(ServerVad),
    /// By what is said.
    SemanticVad(SemanticVad),
    /// Another detector.
    #[serde(untagged)]
    Other(Value),
}

impl TurnDetection {
    /// Whether a turn's end makes a reply.
    pub fn creates_replies(&self) -> bool {
        match self {
            Self::ServerVad(vad) => vad.create_response.unwrap_or(true),
            Self::SemanticVad(vad) => vad.create_response.unwrap_or(true),
            Self::Other(vad) => vad.get("create_response").and_then(Value::as_bool).unwrap_or(true),
        }
    }

    /// Whether the user's speech stops a reply.
    pub fn interrupts_replies(&self) -> bool {
        match self {
            Self::ServerVad(vad) => vad.interrupt_response.unwrap_or(true),
            Self::SemanticVad(vad) => vad.interrupt_response.unwrap_or(true),
            Self::Other(vad) => {
                vad.get("interrupt_response").and_then(Value::as_bool).unwrap_or(true)
            }
        }
    }
}

/// Turns by sound and silence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerVad {
    /// How loud speech is, 0 to 1; the default is 0.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Milliseconds kept from before speech; the default is 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_padding_ms: Option<u32>,
    /// Milliseconds of silence that end a turn; the default is 200 or 500.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence_duration_ms: Option<u32>,
    /// Whether a turn's end makes a reply; the default is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_response: Option<bool>,
    /// Whether speech stops a reply; the default is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_response: Option<bool>,
    /// Milliseconds of the user's silence after a reply that make another one; off by default.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub idle_timeout_ms: Patch<u32>,
}

/// Turns by what is said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SemanticVad {
    /// How soon it takes the turn as over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eagerness: Option<Eagerness>,
    /// Whether a turn's end makes a reply; the default is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_response: Option<bool>,
    /// Whether speech stops a reply; the default is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_response: Option<bool>,
}

open_enum! {
    /// How soon a turn is taken as over.
    Eagerness {
        /// After 8 seconds at most.
        Low = "low",
        /// After 4 seconds at most.
        Medium = "medium",
        /// After 2 seconds at most.
        High = "high",
        /// As `Medium`.
        Auto = "auto",
    }
}

/// Noise reduction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NoiseReduction {
    /// `near_field` for headsets, `far_field` for rooms.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How much; the default is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
}

/// Transcripts of the user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transcription {
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// An ISO 639-1 code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Codes of languages to expect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub languages: Option<Vec<String>>,
    /// Words to listen for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keywords: Option<Vec<String>>,
    /// Words for the transcriber's mind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// `minimal`, `low`, `medium`, `high` or `xhigh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
}

/// The bound of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum MaxTokens {
    /// 1 to 4,096.
    Count(u32),
    /// `"inf"`.
    Word(String),
}

/// Thinking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reasoning {
    /// `minimal`, `low`, `medium`, `high` or `xhigh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
}

/// A prompt stored at the vendor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Its id.
    pub id: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What fills its blanks: texts, or input parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<BTreeMap<String, Value>>,
}

/// Traces at the vendor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Tracing {
    /// `"auto"`.
    Word(String),
    /// With names.
    Named {
        /// The workflow.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workflow_name: Option<String>,
        /// A group of traces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group_id: Option<String>,
        /// Anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Value>,
    },
}

/// How a long conversation is shortened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Truncation {
    /// `"auto"` or `"disabled"`.
    Word(String),
    /// Down to a share of what fits.
    Ratio(RetentionRatio),
}

/// Shortening down to a share of what fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "retention_ratio")]
pub struct RetentionRatio {
    /// The share, 0 to 1.
    pub retention_ratio: f64,
    /// Bounds of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_limits: Option<TokenLimits>,
}

impl RetentionRatio {
    /// Down to `ratio` once the conversation has `limit` tokens.
    pub fn new(ratio: f64, limit: Option<u32>) -> Self {
        let token_limits = limit.map(|limit| TokenLimits { post_instructions: Some(limit) });
        Self { retention_ratio: ratio, token_limits }
    }
}

/// Bounds of the context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenLimits {
    /// Tokens after the instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_instructions: Option<u32>,
}
