//! The states of a session, its end, and its counters.

use std::{fmt, sync::Arc};

use antiphon_types::{Status, Usage};
use serde::{Deserialize, Serialize};

use crate::session::{Cost, TimeStats};

/// The state of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionState {
    /// Nothing runs.
    #[default]
    Inactive,
    /// Start is dialling.
    Connecting,
    /// Waiting for the user.
    Listening,
    /// The user's turn is over, or words of the model came, but no audio yet.
    Processing,
    /// The model's audio is being delivered.
    Speaking,
    /// A connection that was lost, or is left, is being replaced.
    Recovering,
    /// The session is closing.
    Deactivating,
}

impl SessionState {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::Connecting => "connecting",
            Self::Listening => "listening",
            Self::Processing => "processing",
            Self::Speaking => "speaking",
            Self::Recovering => "recovering",
            Self::Deactivating => "deactivating",
        }
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndReason {
    /// The host stopped it.
    Stopped,
    /// The user was silent too long.
    Idle,
    /// A limit was reached.
    Limit {
        /// Which.
        limit: Arc<str>,
    },
    /// The provider closed the connection.
    ProviderClosed {
        /// The close code.
        code: u16,
        /// Its words.
        #[serde(rename = "detail")]
        reason: String,
    },
    /// It could not go on.
    Failed {
        /// Why.
        #[serde(rename = "detail")]
        message: String,
    },
    /// The store of the agent that is linked could not write a turn, and
    /// [`OnStoreStall`](antiphon_agent::OnStoreStall) says that the session ends then.
    StoreFailed {
        /// Why.
        #[serde(rename = "detail")]
        message: String,
    },
    /// The task or handle that owned it is gone.
    Cancelled,
}

impl EndReason {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::Stopped | Self::Idle | Self::Cancelled => Status::Cancelled,
            Self::Limit { .. } => Status::ResourceExhausted,
            Self::ProviderClosed { .. } | Self::StoreFailed { .. } => Status::Unavailable,
            Self::Failed { .. } => Status::Internal,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Idle => f.write_str("the user was silent too long"),
            Self::Limit { limit } => write!(f, "the limit {limit} was reached"),
            Self::ProviderClosed { code, reason } => {
                write!(f, "closed by the provider: {code} {reason}")
            }
            Self::Failed { message } => f.write_str(message),
            Self::StoreFailed { message } => write!(f, "a turn could not be kept: {message}"),
            Self::Cancelled => f.write_str("the task or handle that owned it is gone"),
        }
    }
}

/// What is left when a session ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EndRecord {
    /// Why.
    #[serde(flatten)]
    pub reason: EndReason,
    /// Tools whose bodies go on although the session is over.
    pub detached_tools: Vec<Arc<str>>,
    /// Counters.
    pub stats: SessionStats,
}

/// Counters of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SessionStats {
    /// User turns.
    pub turns: u64,
    /// Replies.
    pub replies: u64,
    /// Replies that were cut off.
    pub interruptions: u64,
    /// Tool calls with an output.
    pub tool_calls: u64,
    /// Of these, refused by policy.
    pub tool_denials: u64,
    /// Replies that the guard over the agent's words cut off.
    pub denied_replies: u64,
    /// From the end of the user's speech, or words, to the first sound of the answer.
    pub answer_time: TimeStats,
    /// From the beginning of the user's speech, by its place in the audio where the provider tells
    /// it, to the silence of the agent: detection, network, and the judging of the speech.
    pub barge_in_time: TimeStats,
    /// From the start of a tool to its output; not of calls that the host answers.
    pub tool_time: TimeStats,
    /// Connections after the first.
    pub reconnects: u64,
    /// Milliseconds of the user's audio dropped because the wire was slow.
    pub uplink_dropped_ms: u64,
    /// Milliseconds of the user's audio in whose place silence was sent, because what the agent said
    /// was not to be interrupted.
    pub muted_user_ms: u64,
    /// Audio frames of stale replies dropped.
    pub stale_audio_frames: u64,
    /// Commands to the provider that were lost with the connection they were meant for.
    pub undelivered_commands: u64,
    /// Tool results that came too late to be sent.
    pub late_tool_results: u64,
    /// Provider events without a meaning here.
    pub ignored_events: u64,
    /// Frames of the agent's voice that [`Callbacks::on_audio`](crate::session::Callbacks::on_audio) was too
    /// slow for.
    pub callback_frames_dropped: u64,
    /// Partial transcripts that the callbacks were too slow for.
    pub callback_partials_dropped: u64,
    /// Chunks of the agent's stream that its client was too slow for
    /// ([`SessionBuilder::agent_stream`](crate::session::SessionBuilder::agent_stream)).
    pub agent_chunks_dropped: u64,
    /// Inputs of the session that are missing in its recording, because the disk was too slow.
    pub unrecorded_inputs: u64,
    /// What it took.
    pub usage: Usage,
    /// What that cost, by [`SessionLimits::prices`](crate::session::SessionLimits::prices).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}
