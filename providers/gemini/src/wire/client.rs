//! What a client sends.

use serde::{Deserialize, Serialize};

use super::{
    Blob, Content, DecodeError, Empty, FunctionResponse, Setup, Tool, any_case::camel_case, decode,
    messages,
};

/// One message of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ClientMessage {
    /// The session. First, and once.
    Setup(Box<Setup>),
    /// Turns of the conversation, in their order.
    ClientContent(ClientContent),
    /// What happens now: audio, video, text, activity.
    RealtimeInput(Box<RealtimeInput>),
    /// Outputs of functions.
    ToolResponse(ToolResponseMessage),
    /// Other instructions or tools.
    ContextUpdate(ContextUpdate),
}

messages! {
    /// Turns to append to the conversation.
    ClientContent {
        /// The turns.
        turns: Vec<Content>,
        /// The model answers now. Otherwise more is awaited.
        turn_complete: bool,
    }

    /// One piece of what happens now.
    RealtimeInput {
        /// The user's audio.
        audio: Blob,
        /// A picture.
        video: Blob,
        /// The user's words.
        text: String,
        /// The microphone is off. Only with automatic detection.
        audio_stream_end: bool,
        /// The user begins to speak. Only without automatic detection.
        activity_start: Empty,
        /// The user stops. Only without automatic detection.
        activity_end: Empty,
        /// Deprecated; newer models refuse it.
        media_chunks: Vec<Blob>,
    }

    /// Outputs of functions.
    ToolResponseMessage {
        /// The outputs.
        function_responses: Vec<FunctionResponse>,
    }

    /// What changes from here on; what is absent stays.
    ContextUpdate {
        /// New instructions.
        system_instruction: Content,
        /// New tools.
        tools: ContextUpdateTools,
    }

    /// New tools; none at all is an empty list.
    ContextUpdateTools {
        /// The tools.
        tools: Vec<Tool>,
    }
}

impl ClientMessage {
    /// Decodes a frame. Exactly one message must be in it.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        decode(frame)
    }

    /// The text of a frame.
    pub fn encode(&self) -> String {
        // Only maps with keys that are no strings, and failing implementations, can fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The message's name on the wire.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Setup(_) => "setup",
            Self::ClientContent(_) => "clientContent",
            Self::RealtimeInput(_) => "realtimeInput",
            Self::ToolResponse(_) => "toolResponse",
            Self::ContextUpdate(_) => "contextUpdate",
        }
    }

    /// The name of the first message in a frame, in camelCase, without decoding the rest. A hint: the
    /// frame may be malformed.
    pub fn peek_kind(frame: &str) -> Option<String> {
        let rest = frame.trim_start().strip_prefix('{')?.trim_start().strip_prefix('"')?;
        let name = rest.split('"').next()?;
        Some(camel_case(name).unwrap_or_else(|| name.to_owned()))
    }
}

impl RealtimeInput {
    /// The user's audio.
    pub fn audio(blob: Blob) -> Self {
        Self { audio: Some(blob), ..Self::default() }
    }
}
