//! What a provider tells a session.

use std::{fmt, sync::Arc, time::Duration};

use antiphon_types::{AudioFrame, ToolCallRequest, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Capabilities, Resumption};

/// Names a reply within its connection. Interned once per reply: clones share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplyId(pub Arc<str>);

impl From<&str> for ReplyId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for ReplyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One thing that happened at the provider.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveEvent {
    /// The provider accepted the session. The first event of a connection.
    Ready {
        /// What this connection can do.
        capabilities: Arc<Capabilities>,
    },
    /// The provider's voice activity detection heard the user begin. Whether this interrupts is
    /// told by [`LiveEvent::Interrupted`].
    SpeechStarted {
        /// Where in the user's audio, in milliseconds since the connection began.
        audio_start_ms: Option<u64>,
    },
    /// The user stopped.
    SpeechStopped {
        /// Where in the user's audio, in milliseconds since the connection began.
        audio_end_ms: Option<u64>,
    },
    /// The provider stopped the active reply because the user spoke.
    Interrupted {
        /// Which reply; `None` where the wire does not say.
        reply: Option<ReplyId>,
    },
    /// What the user said since the last of these became an item of the conversation. Its words, if any
    /// come, name the same item. Told before a reply to it begins, by providers that know; the words
    /// of a session that is not told are taken as those of the oldest speech that has none.
    InputCommitted {
        /// The user's item.
        item: Arc<str>,
    },
    /// What the user said.
    InputTranscript {
        /// The user's item; the same for all updates of one utterance.
        item: Arc<str>,
        /// The words.
        text: TextUpdate,
        /// Who spoke, for providers that tell.
        speaker: Option<SpeakerInfo>,
    },
    /// A reply began.
    ReplyStarted {
        /// Its id.
        reply: ReplyId,
        /// The request it answers, where the session asked for it.
        request: Option<u64>,
    },
    /// What the agent says aloud, in words.
    OutputTranscript {
        /// The reply it belongs to.
        reply: ReplyId,
        /// The reply's item.
        item: Arc<str>,
        /// The words.
        text: TextUpdate,
    },
    /// When words of an item are spoken, by providers that know. What was heard of a reply that is cut
    /// off is told by this, and not by the moments at which its words came.
    WordTimes {
        /// The reply it belongs to.
        reply: ReplyId,
        /// The reply's item.
        item: Arc<str>,
        /// The next words, in order; before their text or after it.
        words: Vec<WordTime>,
    },
    /// What the agent writes where it does not speak.
    OutputText {
        /// The reply it belongs to.
        reply: ReplyId,
        /// The reply's item.
        item: Arc<str>,
        /// The words.
        text: TextUpdate,
    },
    /// A piece of the agent's voice, in [`Capabilities::output`].
    Audio {
        /// The reply it belongs to.
        reply: ReplyId,
        /// The reply's item.
        item: Arc<str>,
        /// The content part within the item.
        content_index: u32,
        /// The samples.
        frame: AudioFrame,
    },
    /// The model wants tools to run. Arguments are complete, not checked.
    ToolCalls {
        /// The reply that holds the calls; `None` where the wire does not say.
        reply: Option<ReplyId>,
        /// The calls, in order.
        calls: Vec<ToolCallRequest>,
    },
    /// The provider wants to run a tool of its own, such as one of an MCP server that it reaches itself,
    /// and asks whether it may: [`crate::LiveCommand::PermitTool`] answers.
    ToolPermission {
        /// The reply that holds the call; `None` where the wire does not say.
        reply: Option<ReplyId>,
        /// The call: the tool's name after that of its server and `/`. Arguments are complete, not checked.
        call: ToolCallRequest,
    },
    /// The provider takes calls back.
    ToolCallsCancelled {
        /// Their ids.
        ids: Vec<Arc<str>>,
    },
    /// The provider took the output of a call.
    ToolResultAccepted {
        /// The id of the call.
        id: Arc<str>,
    },
    /// A reply is over.
    ReplyDone {
        /// Which one.
        reply: ReplyId,
        /// How it ended.
        outcome: ReplyOutcome,
        /// What it cost, where told.
        usage: Option<Usage>,
    },
    /// Something went wrong and the connection goes on.
    Error(ErrorInfo),
    /// The provider will close soon. The session leaves at the next quiet moment, and in any case
    /// before the time is over; nothing more has to come for that.
    GoingAway {
        /// How long is left, where told.
        time_left: Option<Duration>,
    },
    /// A newer handle to resume by; it holds everything up to here. The session keeps the newest.
    Resumable(Resumption),
    /// Comes before a [`LiveEvent::Resumable`]: of the commands that this connection took, the handle
    /// holds so many, counted from its first. What came after them is in no state that is kept, and the
    /// session says the user's part of it again to the connection that continues by the handle. Only
    /// where [`Capabilities::handles_count_commands`](crate::Capabilities::handles_count_commands) is
    /// set.
    HandleHolds {
        /// So many.
        commands: u64,
    },
    /// Since the last handle something began that is not in it (a reply, a tool call): who resumes by
    /// it now loses that. Until the next [`LiveEvent::Resumable`] the session does so only where it
    /// must.
    NotResumable,
    /// What may still be asked for, as the provider tells.
    RateLimits(Vec<RateLimit>),
    /// A native event passed on as it came, for whoever uses a connection and knows the provider: the
    /// progress of tools that it runs itself, who said what, keys of a telephone. A session counts it
    /// among the events that it ignored.
    Native {
        /// The provider's own name of the event.
        kind: Arc<str>,
        /// The event.
        payload: Arc<Value>,
    },
    /// A native event that has no meaning here; counted.
    Ignored {
        /// The provider's own name of the event.
        kind: Arc<str>,
    },
}

impl LiveEvent {
    /// The event's name for logs and recordings.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ready { .. } => "ready",
            Self::SpeechStarted { .. } => "speech_started",
            Self::SpeechStopped { .. } => "speech_stopped",
            Self::Interrupted { .. } => "interrupted",
            Self::InputCommitted { .. } => "input_committed",
            Self::InputTranscript { .. } => "input_transcript",
            Self::ReplyStarted { .. } => "reply_started",
            Self::OutputTranscript { .. } => "output_transcript",
            Self::WordTimes { .. } => "word_times",
            Self::OutputText { .. } => "output_text",
            Self::Audio { .. } => "audio",
            Self::ToolCalls { .. } => "tool_calls",
            Self::ToolPermission { .. } => "tool_permission",
            Self::ToolCallsCancelled { .. } => "tool_calls_cancelled",
            Self::ToolResultAccepted { .. } => "tool_result_accepted",
            Self::ReplyDone { .. } => "reply_done",
            Self::Error(_) => "error",
            Self::GoingAway { .. } => "going_away",
            Self::Resumable(_) => "resumable",
            Self::HandleHolds { .. } => "handle_holds",
            Self::NotResumable => "not_resumable",
            Self::RateLimits(_) => "rate_limits",
            Self::Native { .. } => "native",
            Self::Ignored { .. } => "ignored",
        }
    }
}

/// Says whether text is a piece or the whole, so that nothing is doubled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextUpdate {
    /// To be appended to what came before.
    Delta(String),
    /// Replaces what came before; more may follow.
    Snapshot(String),
    /// The text is complete. `Some` replaces what came before; `None` keeps it.
    Final(Option<String>),
}

/// When a word is spoken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WordTime {
    /// The word as it stands in the text; punctuation may be missing.
    pub word: String,
    /// When it is over, from the beginning of its item's audio.
    pub end: Duration,
}

impl WordTime {
    /// `word` is over after so much of its item's audio.
    pub fn new(word: impl Into<String>, end: Duration) -> Self {
        Self { word: word.into(), end }
    }
}

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyOutcome {
    /// The model said all it wanted, or waits for tools.
    Completed,
    /// The session cancelled it.
    Cancelled,
    /// The provider stopped it because the user spoke.
    Interrupted,
    /// It ran into a bound on its length.
    Incomplete,
    /// A filter stopped it.
    Blocked,
    /// It failed.
    Failed,
}

/// A recoverable error of the provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorInfo {
    /// The provider's code, or a short kind such as `recognizer`.
    pub code: Arc<str>,
    /// The provider's words.
    pub message: String,
    /// The request it refuses, where known.
    pub request: Option<u64>,
    /// The id of the call whose output it refuses, where known.
    pub call: Option<Arc<str>>,
}

impl ErrorInfo {
    /// An error that belongs to no request.
    pub fn new(code: impl Into<Arc<str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), request: None, call: None }
    }

    /// The same error, as the refusal of `request`.
    pub fn for_request(mut self, request: u64) -> Self {
        self.request = Some(request);
        self
    }

    /// The same error, as the refusal of a call's output.
    pub fn for_call(mut self, call: impl Into<Arc<str>>) -> Self {
        self.call = Some(call.into());
        self
    }
}

/// One limit of a provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RateLimit {
    /// What is counted, such as `requests` or `tokens`.
    pub name: Arc<str>,
    /// The bound.
    pub limit: Option<u64>,
    /// What is left of it.
    pub remaining: Option<u64>,
    /// When it is whole again.
    pub reset_after: Option<Duration>,
}

impl RateLimit {
    /// A limit.
    pub fn new(
        name: impl Into<Arc<str>>,
        limit: Option<u64>,
        remaining: Option<u64>,
        reset_after: Option<Duration>,
    ) -> Self {
        Self { name: name.into(), limit, remaining, reset_after }
    }
}

/// Who spoke.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SpeakerInfo {
    /// The provider's label, such as `A`.
    pub label: Option<Arc<str>>,
    /// A known person's id.
    pub person_id: Option<Arc<str>>,
    /// A known person's name.
    pub display_name: Option<Arc<str>>,
    /// How sure the provider is, 0 to 1.
    pub confidence: Option<f32>,
    /// The language that was spoken, as a BCP 47 tag such as `en`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Arc<str>>,
}
