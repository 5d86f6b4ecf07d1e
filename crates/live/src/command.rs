//! What a session asks of a provider.

use std::sync::Arc;

use antiphon_types::{AudioFrame, ToolDefinition, ToolResponse};
use bytes::Bytes;

use crate::ReplyId;

/// One request of the session. What a provider's capabilities exclude is refused by `start_send`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LiveCommand {
    /// The user's audio, in [`crate::Capabilities::input`].
    AppendAudio(AudioFrame),
    /// The user's audio stream ends for now: a microphone muted, a file read to its end. With
    /// [`crate::VoiceActivity::Manual`] and [`crate::VoiceActivity::Off`] this also ends the
    /// user's turn and asks for a reply.
    EndAudio,
    /// Forget the user's audio that was not yet taken as a turn.
    ClearAudio,
    /// [`crate::VoiceActivity::Manual`]: the user begins to speak. Interrupts a reply unless the
    /// configuration says otherwise.
    ActivityStart,
    /// [`crate::VoiceActivity::Manual`]: the user stops. The turn is over; a reply follows.
    ActivityEnd,
    /// A user's turn as text; a reply follows when `reply` is true.
    Text {
        /// The words. Blank is refused.
        text: String,
        /// Whether to answer it.
        reply: bool,
    },
    /// An image as part of the user's turn; no reply by itself.
    Image {
        /// Such as `image/jpeg`.
        media_type: Arc<str>,
        /// The encoded image.
        data: Bytes,
    },
    /// Ask for a reply to the conversation as it is.
    CreateReply {
        /// Comes back in [`crate::LiveEvent::ReplyStarted`].
        request: u64,
    },
    /// Speak exactly this text as a reply of its own.
    Say {
        /// Comes back in [`crate::LiveEvent::ReplyStarted`].
        request: u64,
        /// The words. Blank is refused.
        text: String,
    },
    /// Stop a reply; `None` is the active one. It still ends with
    /// [`crate::LiveEvent::ReplyDone`].
    CancelReply {
        /// Which reply.
        reply: Option<ReplyId>,
    },
    /// Tell the provider how much of a reply the user heard.
    Truncate {
        /// The reply's audio item.
        item: Arc<str>,
        /// The content part within the item.
        content_index: u32,
        /// Milliseconds of the item's audio that were heard.
        audio_end_ms: u32,
        /// What of the words was heard, for providers that keep the transcript themselves.
        heard_text: Option<String>,
    },
    /// What the user said in this item was nothing for the conversation: a noise, an echo, a sign
    /// that the user listens.
    ForgetInput {
        /// The user's item, as [`crate::LiveEvent::InputTranscript`] names it.
        item: Arc<str>,
    },
    /// The output of one tool call. Whether and when a reply follows is the session's business:
    /// see [`crate::Capabilities::replies_after_tools`].
    ToolResponse(ToolResponse),
    /// Say whether the provider may run a tool of its own: see [`crate::LiveEvent::ToolPermission`]. Whether
    /// and when a reply follows is as with the output of a tool.
    PermitTool {
        /// The id of the call.
        id: Arc<str>,
        /// Whether it may.
        permitted: bool,
        /// Why not, for the model.
        reason: Option<String>,
    },
    /// Replace the instructions.
    UpdateInstructions(String),
    /// Replace the tools.
    UpdateTools(Arc<[ToolDefinition]>),
}

impl LiveCommand {
    /// The command's name for logs and errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AppendAudio(_) => "append_audio",
            Self::EndAudio => "end_audio",
            Self::ClearAudio => "clear_audio",
            Self::ActivityStart => "activity_start",
            Self::ActivityEnd => "activity_end",
            Self::Text { .. } => "text",
            Self::Image { .. } => "image",
            Self::CreateReply { .. } => "create_reply",
            Self::Say { .. } => "say",
            Self::CancelReply { .. } => "cancel_reply",
            Self::Truncate { .. } => "truncate",
            Self::ForgetInput { .. } => "forget_input",
            Self::ToolResponse(_) => "tool_response",
            Self::PermitTool { .. } => "permit_tool",
            Self::UpdateInstructions(_) => "update_instructions",
            Self::UpdateTools(_) => "update_tools",
        }
    }
}
