//! What a session tells.

use std::{fmt, sync::Arc};

use antiphon_agent::{AgentFinishReason, Outcome};
use antiphon_types::{JsonObject, Status, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Cost, OnStall, TimeStats};

/// One event of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SessionEvent {
    /// Milliseconds since the session started.
    pub t_ms: u64,
    /// The number of the connection, from 1.
    pub epoch: u32,
    /// The number of the user's turn, from 1; 0 before the first.
    pub turn: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// Connected; the first event.
    SessionStarted {
        /// The session.
        session_id: Arc<str>,
        /// The provider's name.
        provider: Arc<str>,
        /// The model.
        model: Arc<str>,
    },
    /// The agent that is linked goes on from a snapshot. Told right after the session started.
    SessionResumed(ResumedFrom),
    /// A turn of the agent that is linked is over, and its snapshot is on disk. The event's turn is
    /// the newest that the snapshot holds. For the last turn it comes before the session's end.
    TurnCommitted {
        /// The snapshot; `None` where it could not be written. The next commit holds the turn then.
        #[serde(skip_serializing_if = "Option::is_none")]
        snapshot_id: Option<Arc<str>>,
        /// The snapshot that it goes on from.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_id: Option<Arc<str>>,
        /// Why the turn ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        finish_reason: Option<AgentFinishReason>,
        /// Why it could not be written.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The caller hung up, and the running turn goes on in the background
    /// ([`OnHangup::Detach`](super::OnHangup::Detach)). What comes of it is told by
    /// [`EventKind::TurnCommitted`] with the same snapshot.
    Detached {
        /// The snapshot, which is pending until then.
        snapshot_id: Arc<str>,
    },
    /// The state changed.
    State {
        /// To this.
        state: SessionState,
    },
    /// The user began to speak.
    SpeechStarted,
    /// The user stopped.
    SpeechStopped,
    /// What the user said, so far.
    UserTranscript {
        /// All of the utterance so far.
        text: String,
        /// No more comes.
        done: bool,
    },
    /// The user's whole message.
    UserMessage {
        /// The words.
        text: String,
    },
    /// What the agent says, so far.
    AgentTranscript {
        /// All of the reply so far.
        text: String,
        /// No more comes.
        done: bool,
    },
    /// What the agent writes where it does not speak, so far.
    AgentText {
        /// All of the reply so far.
        text: String,
        /// No more comes.
        done: bool,
    },
    /// The agent's whole message. Of a spoken reply it comes when that was heard to its end, or cut
    /// off.
    AgentMessage {
        /// The words; of an interrupted reply those that were heard.
        text: String,
        /// The user or the host cut it off.
        interrupted: bool,
        /// All the words that the model produced, where that is more.
        #[serde(skip_serializing_if = "Option::is_none")]
        generated: Option<String>,
        /// How much of its audio was heard; `None` of a reply without any.
        #[serde(skip_serializing_if = "Option::is_none")]
        heard: Option<Heard>,
    },
    /// A reply's first audio was handed to the sink.
    PlaybackStarted,
    /// All queued audio was heard, or cleared.
    PlaybackFinished,
    /// The user speaks, and the agent's voice waits until it is clear whether that interrupts.
    PlaybackPaused,
    /// It was no interruption: the voice goes on where it stopped.
    PlaybackResumed {
        /// What it was.
        cause: ResumeCause,
    },
    /// Something that was asked for came to its end: the agent speaks, or does not.
    ReplyRequest {
        /// The number that [`AgentSession::say_with`](super::AgentSession::say_with) gave. Only of
        /// such requests is it told that they started.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<u64>,
        /// On whose behalf.
        origin: RequestOrigin,
        /// How it ended.
        outcome: RequestEnd,
    },
    /// The reply was stopped by the user's voice or by the host.
    Interrupted,
    /// The guard denied words of a reply: nothing more of it is heard, and
    /// [`EventKind::AgentMessage`] tells what was. Words that were denied are told nowhere.
    ReplyDenied {
        /// Why, for the host.
        reason: String,
        /// What is said in its place; `None`: nothing, since the provider can be told nothing, or what
        /// was denied is such a sentence itself.
        #[serde(skip_serializing_if = "Option::is_none")]
        instead: Option<String>,
    },
    /// The guard denied what the user said: no call of the turn runs.
    WordsDenied {
        /// Why, for the host.
        reason: String,
    },
    /// The provider is done with the user's turn and all its audio was heard. Also told when a call
    /// of the turn was read back and waits for the user's answer; not told of a turn that was
    /// interrupted.
    TurnFinished {
        /// From the end of the user's speech to the first audio, where both are known.
        #[serde(skip_serializing_if = "Option::is_none")]
        latency_ms: Option<u64>,
    },
    /// An authorised call starts.
    ToolCall {
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// The approved arguments.
        args: JsonObject,
    },
    /// The policy refused a call.
    ToolDenied {
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// Why, for the host.
        reason: String,
    },
    /// A call is read back to the user, who decides.
    ToolConfirm {
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// The words.
        read_back: String,
    },
    /// A call that the host is to answer with `send_tool_response`.
    HostToolCall {
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// The approved arguments.
        args: JsonObject,
    },
    /// The model takes calls back.
    ToolCallsCancelled {
        /// Their ids.
        ids: Vec<Arc<str>>,
    },
    /// A call has its one output.
    ToolResult {
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// The output.
        response: JsonObject,
        /// How the call ended.
        outcome: Outcome,
        /// The output was too large and was cut; so many bytes of JSON text it has, and
        /// [`AgentSession::whole_output`](super::AgentSession::whole_output) gives all of it.
        #[serde(skip_serializing_if = "Option::is_none")]
        whole_bytes: Option<u64>,
    },
    /// A call waits for a person, and the conversation goes on without it: see
    /// [`AgentSession::approve`](super::AgentSession::approve). Comes before the call's output, which
    /// says that it waits.
    ApprovalRequested {
        /// The key by which it is approved.
        approval: Arc<str>,
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// The arguments that are approved or not.
        args: JsonObject,
        /// What the person is told: an object of the tool's, or `{"reason": text}`.
        question: Value,
        /// When it ends by itself, in RFC 3339.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_at: Option<String>,
    },
    /// A call that waited for a person has its outcome: it ran, was refused, or nobody decided.
    ApprovalSettled {
        /// Its key.
        approval: Arc<str>,
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// The arguments.
        args: JsonObject,
        /// How it ended.
        outcome: Outcome,
        /// What the tool gave; `{"error": text}` for failures.
        output: Value,
        /// Who decided, as far as that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<Arc<str>>,
    },
    /// A running tool tells how far it is.
    ToolProgress {
        /// The call.
        id: Arc<str>,
        /// The tool.
        name: Arc<str>,
        /// Words for the user, which are spoken when nobody else speaks.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Data for the host.
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
    },
    /// The session prompts the model by itself.
    HostPrompt(HostPrompt),
    /// The workflow is at another step.
    WorkflowStep {
        /// The step; `None` after the last.
        step: Option<Arc<str>>,
    },
    /// A lost connection is replaced.
    Reconnecting {
        /// Which attempt, from 1.
        attempt: u32,
        /// Why.
        cause: String,
    },
    /// A new connection stands in the place of one that was lost or left.
    StateRestored {
        /// What it knows of the conversation.
        restored: Continuity,
        /// How long there was none.
        gap_ms: u64,
        /// So much of the user's audio was dropped because it was more than is kept: in that time, and
        /// before it since the last connection took anything.
        audio_lost_ms: u64,
    },
    /// The new connection is one with another provider: one that the session falls back on, or again
    /// its own.
    ProviderChanged {
        /// Its name.
        provider: Arc<str>,
        /// The model.
        model: Arc<str>,
    },
    /// Another agent has the conversation: what is said from now on is said by that one. `None` is the
    /// session's own.
    HandedOff {
        /// Who had it.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<Arc<str>>,
        /// Who has it.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<Arc<str>>,
    },
    /// Something takes longer than it should.
    Stalled {
        /// What: `provider`, `hook`, `tool`.
        what: Arc<str>,
        /// For how long by now.
        ms: u64,
        /// What is done about it now, where something is.
        #[serde(skip_serializing_if = "Option::is_none")]
        reaction: Option<OnStall>,
    },
    /// Something went wrong and the session goes on, or says why it ends.
    Error {
        /// A short kind: `provider`, `tool`, `sink`, `hook`, `queue`, `lagged`.
        kind: Arc<str>,
        /// What happened.
        message: String,
    },
    /// The end; the last event.
    SessionEnded {
        /// Why.
        #[serde(flatten)]
        reason: EndReason,
        /// Counters.
        stats: Box<SessionStats>,
    },
}

/// How much of a reply's audio was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Heard {
    /// When its first audio was handed to the sink, in milliseconds since the session started: the
    /// words are told once they were heard, and may have been spoken before what was told first.
    pub began_ms: u64,
    /// Milliseconds that were heard.
    pub heard_ms: u32,
    /// Milliseconds that came from the provider.
    pub generated_ms: u32,
    /// How that is known.
    pub confidence: Confidence,
    /// How wrong `heard_ms` may be; 0 where a device or carrier told it.
    pub error_ms: u32,
}

/// How it is known what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Confidence {
    /// By the device's own clock.
    DeviceClock,
    /// By a carrier's acknowledgement.
    CarrierMark,
    /// Reckoned from the time since the audio was handed over.
    Estimate,
}

/// Why the agent's voice goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResumeCause {
    /// There were no words.
    Noise,
    /// The words only said that the user listens.
    Backchannel,
    /// There were fewer words than an interruption needs; they are answered afterwards.
    TooFewWords,
}

/// On whose behalf the agent is to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestOrigin {
    /// The user's words.
    User,
    /// The host: `say` and `play`.
    Host,
    /// The outputs of tools.
    Tools,
    /// A call is read back.
    ReadBack,
    /// The session itself: reminder, goodbye, wrap-up.
    Prompt,
    /// A tool tells how far it is.
    Progress,
    /// The guard: in the place of words that it denied.
    Guard,
}

/// How a request for a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestEnd {
    /// The reply began.
    Started,
    /// Something else came in its place, or the session ended.
    Superseded,
    /// The provider refused it, was lost, or too much waited.
    Refused,
    /// The reply did not begin in its time.
    TimedOut,
}

/// What a resumed session goes on from, and how much of it the model was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResumedFrom {
    /// The snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Arc<str>>,
    /// How much the model was told.
    pub restored: Restored,
    /// How many messages and rounds of tools it was told.
    pub items: u64,
    /// How many earlier ones it was not told.
    pub left_out: u64,
    /// The ids of calls of which nobody knows how they ended: their process was killed while they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<Arc<str>>,
    /// Why it was not told of those in short, where it should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<ResumeNote>,
}

/// Why a model was told no summary of what was left out:
/// [`SessionBuilder::summarizer`](super::SessionBuilder::summarizer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResumeNote {
    /// It did not come in its time.
    SummaryTimedOut,
    /// It failed, or panicked; the log says how.
    SummaryFailed,
    /// It was empty.
    SummaryEmpty,
}

/// How much a model was told of the conversation before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Restored {
    /// All of it.
    Full,
    /// Its end.
    Cut,
    /// Its end, and what was before in short, as part of the instructions.
    Summary,
    /// Its end in short, as part of the instructions: the provider takes no history.
    Digest,
    /// Nothing, though something was said.
    None,
}

/// What a new connection knows of the conversation so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Continuity {
    /// All of it: the provider continues it, or nothing was said so far.
    Full,
    /// Its words and tool calls, as they were told again. Voices, and what came before the newest two
    /// hundred, are not among them. Where nothing can be told, what the provider had kept before the
    /// last things that were said.
    History,
    /// The end of it in short, as part of the instructions: the provider takes no history.
    Digest,
    /// Nothing, though something was said.
    None,
}

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
    /// A lost connection is being replaced.
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
    /// Frames of the agent's voice that [`Callbacks::on_audio`](super::Callbacks::on_audio) was too
    /// slow for.
    pub callback_frames_dropped: u64,
    /// Partial transcripts that the callbacks were too slow for.
    pub callback_partials_dropped: u64,
    /// Chunks of the agent's stream that its client was too slow for
    /// ([`SessionBuilder::agent_stream`](super::SessionBuilder::agent_stream)).
    pub agent_chunks_dropped: u64,
    /// Inputs of the session that are missing in its recording, because the disk was too slow.
    pub unrecorded_inputs: u64,
    /// What it took.
    pub usage: Usage,
    /// What that cost, by [`SessionLimits::prices`](super::SessionLimits::prices).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// A prompt that the session sends by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HostPrompt {
    /// Counts up within the session, from 1; the same for all stages of one prompt.
    pub id: u64,
    /// What it is for.
    pub prompt: HostPromptKind,
    /// How far it is.
    pub stage: HostPromptStage,
}

/// What a host prompt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostPromptKind {
    /// Asks whether the user is still there.
    IdleReminder,
    /// Says goodbye.
    IdleDeactivate,
    /// Progress of the host's own work.
    AgentProgress,
    /// Output that must not be trusted.
    ToolOutput,
    /// Takes leave, because a bound of the session is nearly reached.
    WrapUp,
}

/// How far a host prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostPromptStage {
    /// About to be sent; may be vetoed.
    Started,
    /// Sent.
    Sent,
    /// Could not be sent.
    SendFailed,
    /// Vetoed.
    Rejected,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind, beginning after `kind`. A kind without an arm does not compile.
    fn next(kind: Option<&EventKind>) -> Option<EventKind> {
        let (id, name) = (Arc::<str>::from("c1"), Arc::<str>::from("clock"));
        let text = "words".to_owned();
        let Some(kind) = kind else {
            let (session_id, provider, model) = ("s".into(), "p".into(), "m".into());
            return Some(EventKind::SessionStarted { session_id, provider, model });
        };
        Some(match kind {
            EventKind::SessionStarted { .. } => EventKind::SessionResumed(ResumedFrom {
                snapshot_id: Some("snapshot".into()),
                restored: Restored::Cut,
                items: 12,
                left_out: 3,
                unknown_calls: vec!["c0".into()],
                note: Some(ResumeNote::SummaryTimedOut),
            }),
            EventKind::SessionResumed(_) => EventKind::TurnCommitted {
                snapshot_id: Some("snapshot".into()),
                parent_id: Some("parent".into()),
                finish_reason: Some(AgentFinishReason::Stop),
                error: Some("full".into()),
            },
            EventKind::TurnCommitted { .. } => {
                EventKind::Detached { snapshot_id: "snapshot".into() }
            }
            EventKind::Detached { .. } => EventKind::State { state: SessionState::Listening },
            EventKind::State { .. } => EventKind::SpeechStarted,
            EventKind::SpeechStarted => EventKind::SpeechStopped,
            EventKind::SpeechStopped => EventKind::UserTranscript { text, done: false },
            EventKind::UserTranscript { .. } => EventKind::UserMessage { text },
            EventKind::UserMessage { .. } => EventKind::AgentTranscript { text, done: true },
            EventKind::AgentTranscript { .. } => EventKind::AgentText { text, done: true },
            EventKind::AgentText { .. } => {
                let generated = Some("words and more".to_owned());
                let confidence = Confidence::Estimate;
                let (began_ms, heard_ms, generated_ms, error_ms) = (100, 300, 900, 20);
                let heard = Heard { began_ms, heard_ms, generated_ms, confidence, error_ms };
                EventKind::AgentMessage { text, interrupted: true, generated, heard: Some(heard) }
            }
            EventKind::AgentMessage { .. } => EventKind::PlaybackStarted,
            EventKind::PlaybackStarted => EventKind::PlaybackFinished,
            EventKind::PlaybackFinished => EventKind::PlaybackPaused,
            EventKind::PlaybackPaused => {
                EventKind::PlaybackResumed { cause: ResumeCause::Backchannel }
            }
            EventKind::PlaybackResumed { .. } => EventKind::ReplyRequest {
                request: Some(1),
                origin: RequestOrigin::ReadBack,
                outcome: RequestEnd::TimedOut,
            },
            EventKind::ReplyRequest { .. } => EventKind::Interrupted,
            EventKind::Interrupted => EventKind::TurnFinished { latency_ms: Some(250) },
            EventKind::TurnFinished { .. } => {
                EventKind::ToolCall { id, name, args: JsonObject::new() }
            }
            EventKind::ToolCall { .. } => EventKind::ToolDenied { id, name, reason: text },
            EventKind::ToolDenied { .. } => EventKind::ToolConfirm { id, name, read_back: text },
            EventKind::ToolConfirm { .. } => {
                EventKind::HostToolCall { id, name, args: JsonObject::new() }
            }
            EventKind::HostToolCall { .. } => EventKind::ToolCallsCancelled { ids: vec![id] },
            EventKind::ToolCallsCancelled { .. } => {
                let (response, outcome) = (JsonObject::new(), Outcome::OutputTooLarge);
                let whole_bytes = Some(25_000_000);
                EventKind::ToolResult { id, name, response, outcome, whole_bytes }
            }
            EventKind::ToolResult { .. } => EventKind::ApprovalRequested {
                approval: "key".into(),
                id,
                name,
                args: JsonObject::new(),
                question: serde_json::json!({ "reason": "large" }),
                expires_at: Some("2026-11-30T12:00:00Z".into()),
            },
            EventKind::ApprovalRequested { .. } => EventKind::ApprovalSettled {
                approval: "key".into(),
                id,
                name,
                args: JsonObject::new(),
                outcome: Outcome::NotApproved,
                output: serde_json::json!({ "error": "no" }),
                by: Some("ann".into()),
            },
            EventKind::ApprovalSettled { .. } => {
                let output = Some(Value::from(0.5));
                EventKind::ToolProgress { id, name, text: Some(text), output }
            }
            EventKind::ToolProgress { .. } => EventKind::HostPrompt(HostPrompt {
                id: 1,
                prompt: HostPromptKind::ToolOutput,
                stage: HostPromptStage::SendFailed,
            }),
            EventKind::HostPrompt(_) => EventKind::WorkflowStep { step: None },
            EventKind::WorkflowStep { .. } => EventKind::Reconnecting { attempt: 1, cause: text },
            EventKind::Reconnecting { .. } => EventKind::StateRestored {
                restored: Continuity::History,
                gap_ms: 310,
                audio_lost_ms: 0,
            },
            EventKind::StateRestored { .. } => {
                EventKind::ProviderChanged { provider: text.as_str().into(), model: id }
            }
            EventKind::ProviderChanged { .. } => EventKind::HandedOff { from: None, to: Some(id) },
            EventKind::HandedOff { .. } => {
                let reaction = Some(OnStall::Nudge);
                EventKind::Stalled { what: "provider".into(), ms: 9, reaction }
            }
            EventKind::Stalled { .. } => EventKind::Error { kind: "sink".into(), message: text },
            EventKind::Error { .. } => {
                EventKind::ReplyDenied { reason: text.clone(), instead: Some(text) }
            }
            EventKind::ReplyDenied { .. } => EventKind::WordsDenied { reason: text },
            EventKind::WordsDenied { .. } => EventKind::SessionEnded {
                reason: EndReason::ProviderClosed { code: 1011, reason: text },
                stats: Box::default(),
            },
            EventKind::SessionEnded { .. } => return None,
        })
    }

    #[test]
    fn every_kind_fits_the_schema() {
        let schema = include_str!("../../schemas/talk-events.schema.json");
        let schema = serde_json::from_str(schema).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let kinds = std::iter::successors(next(None), |kind| next(Some(kind)));
        let mut seen = 0;
        for kind in kinds {
            let event = SessionEvent { t_ms: 1, epoch: 1, turn: 1, kind };
            let line = serde_json::to_value(&event).unwrap();
            let errors: Vec<_> = validator.iter_errors(&line).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{line}: {errors:?}");
            seen += 1;
        }
        assert_eq!(seen, 39);
    }

    #[test]
    fn every_end_fits_the_schema() {
        let schema = include_str!("../../schemas/talk-events.schema.json");
        let schema = serde_json::from_str(schema).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        for reason in [
            EndReason::Stopped,
            EndReason::Idle,
            EndReason::Limit { limit: "hook_queue".into() },
            EndReason::ProviderClosed { code: 1000, reason: String::new() },
            EndReason::Failed { message: "no".into() },
            EndReason::StoreFailed { message: "full".into() },
            EndReason::Cancelled,
        ] {
            let kind = EventKind::SessionEnded { reason, stats: Box::default() };
            let event = SessionEvent { t_ms: 1, epoch: 1, turn: 1, kind };
            assert!(validator.is_valid(&serde_json::to_value(&event).unwrap()), "{event:?}");
        }
    }
}
