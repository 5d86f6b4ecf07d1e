//! The wire: every message, field and value of the Live API (`BidiGenerateContent`) as a type.
//!
//! [`ClientMessage`] and [`ServerMessage`] decode from and encode to frames. Decoding takes what
//! peers really send: keys in camelCase and in snake_case, also mixed within one message (proto
//! JSON; the vendor's Python SDK does that), both base64 alphabets, numbers as strings, `null` for
//! absent, unknown keys and unknown values. Encoding is exact: camelCase, the standard alphabet,
//! nothing that is absent. What a tool takes and gives, and schemas, pass through untouched.
//!
//! All fields are optional, as they are in the vendor's own SDK types, from which the names come
//! (`google-genai`). A nested message that only few use is kept as JSON.

mod any_case;
mod audio;
mod client;
mod content;
mod open_enum;
mod server;
mod setup;
mod tool;
mod units;
mod unknown;

use serde::de::DeserializeOwned;

pub use audio::{AudioDecodeError, MAX_APPEND_BYTES, append_frame, decode_base64};
pub use client::{
    ClientContent, ClientMessage, ContextUpdate, ContextUpdateTools, RealtimeInput,
    ToolResponseMessage,
};
pub use content::{Blob, Content, MediaType, Part, Role};
pub use server::{
    ApiError, GoAway, InteractionStatus, MediaModality, ModalityTokenCount, ServerContent,
    ServerMessage, ServiceTier, SessionResumptionUpdate, SetupComplete, ToolCallCancellation,
    ToolCallMessage, TrafficType, Transcription, TurnCompleteReason, UsageMetadata, VadSignalType,
    VoiceActivity, VoiceActivityDetectionSignal, VoiceActivityType, WordInfo,
};
pub use setup::{
    ActivityHandling, AudioTranscription, AutomaticActivityDetection, ContextWindowCompression,
    EndSensitivity, GenerationConfig, HarmBlockMethod, HarmBlockThreshold, HarmCategory,
    HistoryConfig, LanguageHints, MediaResolution, Modality, MultiSpeakerVoice, PrebuiltVoice,
    Proactivity, RealtimeInputConfig, ReplicatedVoice, SafetySetting, SessionResumption, Setup,
    SlidingWindow, SpeakerVoice, SpeechConfig, StartSensitivity, ThinkingConfig, ThinkingLevel,
    TranscriptionMode, Translation, TurnCoverage, Voice, VoiceConsentSignature,
};
pub use tool::{
    Behavior, FunctionCall, FunctionDeclaration, FunctionResponse, FunctionResponsePart,
    PartialArg, Scheduling, Tool,
};
pub use units::{Seconds, Whole};
pub use unknown::unknown_keys;

/// Why a frame is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message: {0}")]
pub struct DecodeError(String);

/// Decodes one message of either direction.
fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, DecodeError> {
    any_case::from_slice(frame).map_err(|error| DecodeError(error.to_string()))
}

/// A message without fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Empty {}

/// Messages: structs whose fields are all optional, and camelCase on the wire.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub struct $name {
                $(
                    $(#[$field_doc])*
                    #[serde(skip_serializing_if = "Option::is_none")]
                    pub $field: Option<$type>,
                )*
            }
        )*
    };
}
pub(crate) use messages;
