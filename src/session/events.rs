//! What a session tells.

mod life;
mod prompts;
mod replies;
mod resumed;

use std::sync::Arc;

use antiphon_agent::{AgentFinishReason, Outcome};
use antiphon_types::JsonObject;
use serde::Serialize;
use serde_json::Value;

use super::OnStall;

pub use self::{
    life::{EndReason, EndRecord, SessionState, SessionStats},
    prompts::{HostPrompt, HostPromptKind, HostPromptStage},
    replies::{Confidence, Heard, RequestEnd, RequestOrigin, ResumeCause},
    resumed::{Continuity, Restored, ResumeNote, ResumedFrom},
};

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
    /// A connection that was lost, or is left, is replaced. One that is left by plan is used until the
    /// next one stands, and this comes then.
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
                by_handle: true,
                unknown_calls: vec!["c0".into()],
                lost_work: Some("left".into()),
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
