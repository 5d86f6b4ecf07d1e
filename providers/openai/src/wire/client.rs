//! What a client asks.

use serde::{Deserialize, Serialize};

use super::{Item, ResponseParams, Session, events, lenient};

events! {
    /// What a client asks.
    ClientEvent {
        /// Puts an item into the conversation.
        "conversation.item.create" => CreateItem(CreateItem),
        /// Takes an item out of it.
        "conversation.item.delete" => DeleteItem(ItemRef),
        /// Asks for an item with its audio.
        "conversation.item.retrieve" => RetrieveItem(ItemRef),
        /// Cuts an item to what was heard.
        "conversation.item.truncate" => TruncateItem(TruncateItem),
        /// More of the user's audio.
        "input_audio_buffer.append" => AppendAudio(AppendAudio),
        /// Forgets the user's audio.
        "input_audio_buffer.clear" => ClearAudio(Command),
        /// Makes the user's audio an item.
        "input_audio_buffer.commit" => CommitAudio(Command),
        /// WebRTC and SIP: stops playback.
        "output_audio_buffer.clear" => ClearOutput(Command),
        /// Stops a response.
        "response.cancel" => CancelResponse(CancelResponse),
        /// Asks for a response.
        "response.create" => CreateResponse(CreateResponse),
        /// Changes the session.
        "session.update" | "transcription_session.update" => UpdateSession(UpdateSession),
    }
}

impl ClientEvent {
    /// The client's own id of the event, if it gave one.
    pub fn event_id(&self) -> Option<&str> {
        match self {
            Self::CreateItem(event) => event.event_id.as_deref(),
            Self::DeleteItem(event) | Self::RetrieveItem(event) => event.event_id.as_deref(),
            Self::TruncateItem(event) => event.event_id.as_deref(),
            Self::AppendAudio(event) => event.event_id.as_deref(),
            Self::ClearAudio(event) | Self::CommitAudio(event) | Self::ClearOutput(event) => {
                event.event_id.as_deref()
            }
            Self::CancelResponse(event) => event.event_id.as_deref(),
            Self::CreateResponse(event) => event.event_id.as_deref(),
            Self::UpdateSession(event) => event.event_id.as_deref(),
            Self::Unknown(event) => event.raw.get("event_id").and_then(|id| id.as_str()),
        }
    }
}

/// Puts an item into the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateItem {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// After which item; absent is at the end, `root` at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_item_id: Option<String>,
    /// The item.
    pub item: Item,
}

/// Names an item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ItemRef {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// The item.
    pub item_id: String,
}

/// Cuts an item to what was heard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TruncateItem {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// The item.
    pub item_id: String,
    /// The part of it.
    pub content_index: u32,
    /// Milliseconds that were heard.
    #[serde(deserialize_with = "lenient::whole_number")]
    pub audio_end_ms: u64,
}

/// More of the user's audio.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppendAudio {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Base64 in the session's format, at most 15 MiB.
    pub audio: String,
}

/// An event that says nothing but its type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
}

/// Stops a response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CancelResponse {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Which one; absent is the one of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
}

/// Asks for a response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateResponse {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// How it is to differ from the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Box<ResponseParams>>,
}

/// Changes the session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateSession {
    /// Comes back in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// The keys to change.
    pub session: Session,
}
