//! What a server tells.

use serde::{Deserialize, Serialize};

use super::{
    Content, Item, Response, Session, TranscriptionCompleted, TranscriptionDelta,
    TranscriptionFailed, TranscriptionSegment, events, lenient,
};

events! {
    /// What a server tells. The beta's names are accepted for what has another name now.
    ServerEvent {
        /// The conversation was made; the beta and some other servers send it.
        "conversation.created" => ConversationCreated(ConversationCreated),
        /// An item is in the conversation; it may still grow.
        "conversation.item.added" => ItemAdded(ItemEvent),
        /// The beta's word for an item that is in the conversation.
        "conversation.item.created" => ItemCreated(ItemEvent),
        /// An item is gone.
        "conversation.item.deleted" => ItemDeleted(ItemIdEvent),
        /// An item will not change any more.
        "conversation.item.done" => ItemDone(ItemEvent),
        /// The words of the user's audio.
        "conversation.item.input_audio_transcription.completed" =>
            TranscriptionCompleted(TranscriptionCompleted),
        /// More words of the user's audio.
        "conversation.item.input_audio_transcription.delta" =>
            TranscriptionDelta(TranscriptionDelta),
        /// There will be no words of the user's audio.
        "conversation.item.input_audio_transcription.failed" =>
            TranscriptionFailed(TranscriptionFailed),
        /// Who said what, from a model that tells speakers apart.
        "conversation.item.input_audio_transcription.segment" =>
            TranscriptionSegment(TranscriptionSegment),
        /// xAI: all words so far, which replace those before.
        "conversation.item.input_audio_transcription.updated" =>
            TranscriptionUpdated(TranscriptDone),
        /// An item that was asked for, with its audio.
        "conversation.item.retrieved" => ItemRetrieved(ItemRetrieved),
        /// An item was cut to what was heard.
        "conversation.item.truncated" => ItemTruncated(ItemTruncated),
        /// Something went wrong; mostly the session goes on.
        "error" => Error(ErrorEvent),
        /// The user's audio was forgotten.
        "input_audio_buffer.cleared" => BufferCleared(Bare),
        /// The user's audio became an item.
        "input_audio_buffer.committed" => BufferCommitted(BufferCommitted),
        /// A key of the telephone; only in SIP calls.
        "input_audio_buffer.dtmf_event_received" => DtmfReceived(DtmfEvent),
        /// The user began to speak.
        "input_audio_buffer.speech_started" => SpeechStarted(AudioStart),
        /// The user stopped.
        "input_audio_buffer.speech_stopped" => SpeechStopped(AudioEnd),
        /// The user said nothing for long.
        "input_audio_buffer.timeout_triggered" => TimeoutTriggered(TimeoutTriggered),
        /// The tools of an MCP server are known.
        "mcp_list_tools.completed" => McpListToolsCompleted(ItemIdEvent),
        /// The tools of an MCP server cannot be had.
        "mcp_list_tools.failed" => McpListToolsFailed(ItemIdEvent),
        /// The tools of an MCP server are asked for.
        "mcp_list_tools.in_progress" => McpListToolsInProgress(ItemIdEvent),
        /// WebRTC and SIP: playback was cleared.
        "output_audio_buffer.cleared" => OutputBufferCleared(OutputBufferEvent),
        /// WebRTC and SIP: playback began.
        "output_audio_buffer.started" => OutputBufferStarted(OutputBufferEvent),
        /// WebRTC and SIP: playback ended.
        "output_audio_buffer.stopped" => OutputBufferStopped(OutputBufferEvent),
        /// What may still be asked for.
        "rate_limits.updated" => RateLimitsUpdated(RateLimits),
        /// A part of an item begins.
        "response.content_part.added" => ContentPartAdded(ContentPartEvent),
        /// A part of an item is whole.
        "response.content_part.done" => ContentPartDone(ContentPartEvent),
        /// A response begins.
        "response.created" => ResponseCreated(ResponseEvent),
        /// A response is over, whatever happened: the last event of each.
        "response.done" => ResponseDone(ResponseEvent),
        /// More of a call's arguments.
        "response.function_call_arguments.delta" => ArgumentsDelta(ArgumentsDelta),
        /// A call's arguments as a whole.
        "response.function_call_arguments.done" => ArgumentsDone(ArgumentsDone),
        /// An MCP call is done.
        "response.mcp_call.completed" => McpCallCompleted(McpCallEvent),
        /// An MCP call failed.
        "response.mcp_call.failed" => McpCallFailed(McpCallEvent),
        /// An MCP call runs.
        "response.mcp_call.in_progress" => McpCallInProgress(McpCallEvent),
        /// More of an MCP call's arguments.
        "response.mcp_call_arguments.delta" => McpArgumentsDelta(ArgumentsDelta),
        /// An MCP call's arguments as a whole.
        "response.mcp_call_arguments.done" => McpArgumentsDone(ArgumentsDone),
        /// More of the voice, as base64.
        "response.output_audio.delta" | "response.audio.delta" => AudioDelta(PartDelta),
        /// The voice of a part is whole.
        "response.output_audio.done" | "response.audio.done" => AudioDone(PartDone),
        /// More of the voice's words.
        "response.output_audio_transcript.delta" | "response.audio_transcript.delta" =>
            TranscriptDelta(PartDelta),
        /// The voice's words as a whole.
        "response.output_audio_transcript.done" | "response.audio_transcript.done" =>
            TranscriptDone(TranscriptDone),
        /// An item of a response begins.
        "response.output_item.added" => OutputItemAdded(OutputItemEvent),
        /// An item of a response is whole.
        "response.output_item.done" => OutputItemDone(OutputItemEvent),
        /// More text.
        "response.output_text.delta" | "response.text.delta" => TextDelta(PartDelta),
        /// The text as a whole.
        "response.output_text.done" | "response.text.done" => TextDone(TextDone),
        /// The session began; the first event.
        "session.created" | "transcription_session.created" => SessionCreated(SessionEvent),
        /// The session was changed; the whole of it.
        "session.updated" | "transcription_session.updated" => SessionUpdated(SessionEvent),
    }
}

/// An event that says nothing but its type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bare {
    /// The event's id.
    pub event_id: String,
}

/// A conversation was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConversationCreated {
    /// The event's id.
    pub event_id: String,
    /// The conversation.
    pub conversation: Conversation,
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conversation {
    /// Its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `realtime.conversation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// A session and how it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionEvent {
    /// The event's id.
    #[serde(default)]
    pub event_id: String,
    /// The session, whole.
    pub session: Session,
}

/// An item of the conversation and its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemEvent {
    /// The event's id.
    #[serde(default)]
    pub event_id: String,
    /// The item before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_item_id: Option<String>,
    /// The item.
    pub item: Item,
}

/// Names an item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemIdEvent {
    /// The event's id.
    pub event_id: String,
    /// The item.
    pub item_id: String,
}

/// An item that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemRetrieved {
    /// The event's id.
    #[serde(default)]
    pub event_id: String,
    /// The item, with its audio.
    pub item: Item,
}

/// An item was cut to what was heard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemTruncated {
    /// The event's id.
    pub event_id: String,
    /// The item.
    pub item_id: String,
    /// The part of it.
    pub content_index: u32,
    /// Milliseconds that are left.
    #[serde(deserialize_with = "lenient::whole_number")]
    pub audio_end_ms: u64,
}

/// Something went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorEvent {
    /// The event's id.
    pub event_id: String,
    /// What.
    pub error: ApiError,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiError {
    /// `invalid_request_error`, `server_error` and others.
    #[serde(rename = "type", deserialize_with = "lenient::null_is_default")]
    pub kind: String,
    /// What exactly, such as `unknown_parameter`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub code: Option<String>,
    /// In words.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub message: String,
    /// The path of what it is about.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub param: Option<String>,
    /// The client's event that it answers.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::malformed_is_absent"
    )]
    pub event_id: Option<String>,
}

impl ApiError {
    /// An `invalid_request_error`.
    pub fn invalid_request(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: "invalid_request_error".into(),
            code: Some(code.into()),
            message: message.into(),
            ..Self::default()
        }
    }
}

/// The user's audio became an item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BufferCommitted {
    /// The event's id.
    pub event_id: String,
    /// The item before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_item_id: Option<String>,
    /// The user's item.
    pub item_id: String,
}

/// A key of the telephone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DtmfEvent {
    /// The key.
    pub event: String,
    /// When, in seconds since 1970.
    pub received_at: i64,
}

/// The user began to speak.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AudioStart {
    /// The event's id.
    pub event_id: String,
    /// Milliseconds of audio written since the session began, less the padding.
    #[serde(deserialize_with = "lenient::whole_number")]
    pub audio_start_ms: u64,
    /// The item that the speech will be.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub item_id: String,
}

/// The user stopped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AudioEnd {
    /// The event's id.
    pub event_id: String,
    /// Milliseconds of audio written since the session began, less the silence.
    #[serde(deserialize_with = "lenient::whole_number")]
    pub audio_end_ms: u64,
    /// The item that the speech will be.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub item_id: String,
}

/// The user said nothing for long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeoutTriggered {
    /// The event's id.
    pub event_id: String,
    /// Where the silence begins, in milliseconds of audio written.
    #[serde(deserialize_with = "lenient::whole_number")]
    pub audio_start_ms: u64,
    /// Where it ends.
    #[serde(deserialize_with = "lenient::whole_number")]
    pub audio_end_ms: u64,
    /// The item that the silence is.
    pub item_id: String,
}

/// Playback by the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputBufferEvent {
    /// The event's id.
    pub event_id: String,
    /// The response that is played.
    pub response_id: String,
}

/// What may still be asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimits {
    /// The event's id.
    pub event_id: String,
    /// The limits.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub rate_limits: Vec<RateLimit>,
}

/// One limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimit {
    /// `requests` or `tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// What is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<i64>,
    /// Seconds until it is whole again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_seconds: Option<f64>,
}

/// A part of an item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContentPartEvent {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The part's place in the item.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
    /// The part.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub part: Part,
}

/// A part of an item, with the beta's words for its type: `text` or `audio`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// `text` or `audio`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Words of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Words of a voice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// Base64 audio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<String>,
}

impl Part {
    /// The part as it stands in an item.
    pub fn into_content(self) -> Content {
        Content {
            text: self.text,
            transcript: self.transcript,
            audio: self.audio,
            ..Content::new(self.kind.as_deref().unwrap_or("audio").into())
        }
    }
}

/// A response begins or is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseEvent {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response: Box<Response>,
}

/// More of a call's arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArgumentsDelta {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The call; not of MCP calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// JSON text.
    pub delta: String,
    /// Filling that hides the length; only of MCP calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obfuscation: Option<String>,
}

/// A call's arguments as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArgumentsDone {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The call; not of MCP calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The tool; not of MCP calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON text.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub arguments: String,
}

/// How far an MCP call is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct McpCallEvent {
    /// The event's id.
    pub event_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
}

/// More of a part: voice as base64, or words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartDelta {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The part's place in the item.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
    /// What is more.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub delta: String,
}

/// The voice of a part is whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartDone {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The part's place in the item.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
}

/// The words of a voice as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TranscriptDone {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The part's place in the item.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
    /// The words; absent where a server only tells the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
}

/// A text as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TextDone {
    /// The event's id.
    pub event_id: String,
    /// The response.
    pub response_id: String,
    /// The item.
    pub item_id: String,
    /// The item's place in the response.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The part's place in the item.
    #[serde(deserialize_with = "lenient::null_is_default")]
    pub content_index: u32,
    /// The text; absent where a server only tells the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// An item of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputItemEvent {
    /// The event's id.
    #[serde(default)]
    pub event_id: String,
    /// The response.
    #[serde(default)]
    pub response_id: String,
    /// The item's place in the response.
    #[serde(default, deserialize_with = "lenient::null_is_default")]
    pub output_index: u32,
    /// The item.
    pub item: Item,
}
