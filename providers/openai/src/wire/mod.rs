//! The wire: every event, item and setting of the Realtime protocol as a type.
//!
//! Frames are JSON texts. [`ServerEvent`] and [`ClientEvent`] decode from and encode to them with
//! the GA names; [`Dialect`] knows what older and other servers call the same things. Decoding is
//! lenient where servers differ (missing fields, `null`, unknown keys, unknown kinds), encoding is
//! exact: what is absent is left out, `null` is written only where it means "clear" ([`Patch`]).
//!
//! Audio does not go through these types on its way to a session: see [`AudioDelta`] and
//! [`append_frame`].
//!
//! Source of all names: the vendor's published SDK types and OpenAPI description.

mod audio;
mod client;
mod dialect;
mod item;
mod lenient;
mod open_enum;
mod patch;
mod peek;
mod response;
mod schema;
mod server;
mod session;
mod tool;
mod transcript;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use audio::{AudioDecodeError, AudioDelta, MAX_APPEND_BYTES, append_frame, decode_audio};
pub use client::{
    AppendAudio, CancelResponse, ClientEvent, Command, CreateItem, CreateResponse, ItemRef,
    TruncateItem, UpdateSession,
};
pub use dialect::{
    Acknowledgement, AudioFormats, Detection, Dialect, Facts, Images, KeyForm, LanguageForm, Names,
    Parameter, Saying, SessionShape, Signs, Terms, ThinkingForm, ToolShape, Transcriber,
    UnknownDialect, Variables, VoiceForm,
};
pub use item::{
    Content, ContentType, FunctionCall, FunctionCallOutput, ImageDetail, Item, ItemReference,
    ItemStatus, McpApprovalRequest, McpApprovalResponse, McpCall, McpListTools, McpTool, Message,
    Role,
};
pub(crate) use lenient::without_lone_surrogates;
pub use patch::Patch;
pub use peek::peek_kind;
pub use response::{
    CachedTokens, InputTokens, OutputTokens, Response, ResponseAudio, ResponseAudioOutput,
    ResponseError, ResponseParams, ResponseStatus, StatusDetails, Usage,
};
pub use schema::unknown_keys;
pub use server::{
    ApiError, ArgumentsDelta, ArgumentsDone, AudioEnd, AudioStart, Bare, BufferCommitted,
    ContentPartEvent, Conversation, ConversationCreated, DtmfEvent, ErrorEvent, ItemEvent,
    ItemIdEvent, ItemRetrieved, ItemTruncated, McpCallEvent, OutputBufferEvent, OutputItemEvent,
    Part, PartDelta, PartDone, RateLimit, RateLimits, ResponseEvent, ServerEvent, SessionEvent,
    TextDone, TimeoutTriggered, TranscriptDone,
};
pub use session::{
    AudioConfig, AudioFormat, AudioInput, AudioOutput, Eagerness, MaxTokens, Modality,
    NoiseReduction, Prompt, RealtimeSession, Reasoning, RetentionRatio, SemanticVad, ServerVad,
    Session, TokenLimits, Tracing, Transcription, TranscriptionSession, Truncation, TurnDetection,
    Voice,
};
pub use tool::{
    AllowedTools, ApprovalFilter, CertainTool, FunctionTool, McpServer, RequireApproval, Tool,
    ToolChoice, ToolMode,
};
pub use transcript::{
    LogProb, TranscriptionCompleted, TranscriptionDelta, TranscriptionError, TranscriptionFailed,
    TranscriptionLanguage, TranscriptionSegment, TranscriptionTokens, TranscriptionUsage,
};

/// An event of a kind that this crate does not know.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Unknown {
    /// Its `type`.
    pub kind: String,
    /// The whole event.
    pub raw: Value,
}

impl Serialize for Unknown {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

/// Why a frame is no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is not one JSON object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// It has no `type`, or one that is not a string.
    #[error("an event without a type")]
    NoType,
    /// A field is missing or of the wrong shape.
    #[error("malformed {kind}: {message}")]
    Shape {
        /// The event's `type`.
        kind: String,
        /// What is wrong.
        message: String,
    },
}

/// An enum over all events of one direction: one payload struct each, the kind in `type`.
macro_rules! events {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$variant_doc:meta])* $kind:literal $(| $alias:literal)* => $variant:ident($payload:ty),)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(tag = "type")]
        #[non_exhaustive]
        pub enum $name {
            $(
                $(#[$variant_doc])*
                #[serde(rename = $kind)]
                $variant($payload),
            )*
            /// An event of a kind that is not known here.
            #[serde(untagged)]
            Unknown($crate::wire::Unknown),
        }

        impl $name {
            /// Every kind that is known, by its GA name.
            pub const KINDS: &'static [&'static str] = &[$($kind),*];

            /// The event's `type`, by its GA name.
            pub fn kind(&self) -> &str {
                match self {
                    $(Self::$variant(_) => $kind,)*
                    Self::Unknown(unknown) => &unknown.kind,
                }
            }

            /// Decodes one frame. Kinds that are not known, and unknown keys, are no error.
            pub fn decode(text: &str) -> Result<Self, $crate::wire::DecodeError> {
                let kind = $crate::wire::kind_of(text)?;
                let shape = |error: serde_json::Error| $crate::wire::DecodeError::Shape {
                    kind: kind.to_string(),
                    message: error.to_string(),
                };
                match &*kind {
                    $($kind $(| $alias)* => {
                        serde_json::from_str(text).map(Self::$variant).map_err(shape)
                    })*
                    _ => {
                        let raw = serde_json::from_str(text)
                            .map_err(|error| $crate::wire::DecodeError::Json(error.to_string()))?;
                        let kind = kind.into_owned();
                        Ok(Self::Unknown($crate::wire::Unknown { kind, raw }))
                    }
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = <serde_json::Value as serde::Deserialize>::deserialize(deserializer)?;
                Self::decode(&raw.to_string()).map_err(serde::de::Error::custom)
            }
        }
    };
}
use events;

/// The `type` of the event in `text`.
fn kind_of(text: &str) -> Result<std::borrow::Cow<'_, str>, DecodeError> {
    #[derive(Deserialize)]
    struct Tagged<'a> {
        #[serde(borrow, default, rename = "type")]
        kind: Option<lenient::Text<'a>>,
    }
    if let Some(kind) = peek_kind(text) {
        return Ok(kind.into());
    }
    let tagged: Tagged<'_> =
        serde_json::from_str(text).map_err(|error| DecodeError::Json(error.to_string()))?;
    tagged.kind.map(|kind| kind.0).ok_or(DecodeError::NoType)
}
