//! What callers and agents say to each other. The JSON is that of Genkit's agents.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    message::{Message, ModelResponseChunk, Part},
    patch::JsonPatch,
    state::{AgentErrorDetails, AgentFinishReason, Artifact, SessionState, SnapshotStatus},
};

/// From where an invocation starts. All empty: a fresh session.
///
/// Members that are not known are refused here, for a misspelt `snapshotId` would start a fresh
/// session without a word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, bound(deserialize = "C: Deserialize<'de>"))]
pub struct AgentInit<C = Value> {
    /// Continues this session from its latest snapshot, or starts it under this id; with
    /// `snapshot_id` it asserts whose snapshot that is. For agents with a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Arc<str>>,
    /// Continues from this snapshot. For agents with a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Arc<str>>,
    /// Continues from this state. For agents without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SessionState<C>>,
}

impl<C> AgentInit<C> {
    /// Continues this session from its latest snapshot, or starts it under this id.
    pub fn session(id: impl Into<Arc<str>>) -> Self {
        Self { session_id: Some(id.into()), ..Self::default() }
    }

    /// Continues from this snapshot.
    pub fn snapshot(id: impl Into<Arc<str>>) -> Self {
        Self { snapshot_id: Some(id.into()), ..Self::default() }
    }

    /// Continues from this state.
    pub fn state(state: SessionState<C>) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

impl<C> Default for AgentInit<C> {
    fn default() -> Self {
        Self { session_id: None, snapshot_id: None, state: None }
    }
}

/// The input of one turn. Without message and resume the turn goes on from where the conversation
/// stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentInput {
    /// The caller will not wait: the work goes on in the background.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// What the user says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Goes on after an interrupt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ToolResume>,
}

impl AgentInput {
    /// A text of the user.
    pub fn text(text: impl Into<String>) -> Self {
        Self::from(Message::user(text))
    }

    /// The same, to be worked on in the background.
    pub fn detached(mut self) -> Self {
        self.detach = true;
        self
    }
}

impl From<Message> for AgentInput {
    fn from(message: Message) -> Self {
        Self { message: Some(message), ..Self::default() }
    }
}

impl From<ToolResume> for AgentInput {
    fn from(resume: ToolResume) -> Self {
        Self { resume: Some(resume), ..Self::default() }
    }
}

impl From<&str> for AgentInput {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for AgentInput {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

/// How to go on after tools that interrupted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResume {
    /// Outputs given in the place of the tools': tool response parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub respond: Vec<Part>,
    /// Calls to be run again: tool request parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart: Vec<Part>,
}

/// One piece of what an agent streams. Several members may be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentStreamChunk {
    /// What the model or a tool says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_chunk: Option<ModelResponseChunk>,
    /// An artifact that is new or takes another's place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    /// What changed in the custom state. The first of each turn replaces the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_patch: Option<JsonPatch>,
    /// The turn is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_end: Option<TurnEnd>,
}

impl From<ModelResponseChunk> for AgentStreamChunk {
    fn from(chunk: ModelResponseChunk) -> Self {
        Self { model_chunk: Some(chunk), ..Self::default() }
    }
}

impl From<TurnEnd> for AgentStreamChunk {
    fn from(end: TurnEnd) -> Self {
        Self { turn_end: Some(end), ..Self::default() }
    }
}

/// How a turn ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnEnd {
    /// The snapshot that holds the turn; none where none was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Arc<str>>,
    /// Why it ended, where it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<AgentFinishReason>,
}

/// What an invocation ends with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "C: Deserialize<'de>"))]
#[non_exhaustive]
pub struct AgentOutput<C = Value> {
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Arc<str>>,
    /// The last message of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// What the conversation produced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Arc<Artifact>>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<AgentFinishReason>,
    /// Where to go on from; the pending row of work in the background.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Arc<str>>,
    /// Where to go on from, for agents without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SessionState<C>>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentErrorDetails>,
}

impl<C> Default for AgentOutput<C> {
    fn default() -> Self {
        Self {
            session_id: None,
            message: None,
            artifacts: Vec::new(),
            finish_reason: None,
            snapshot_id: None,
            state: None,
            error: None,
        }
    }
}

/// What an agent function returns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentResult {
    /// The last message of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// What the conversation produced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Arc<Artifact>>,
    /// Why the invocation ended; none: as its last turn did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<AgentFinishReason>,
}

/// What the function of a turn returns. Beside an error it says that the turn left a state worth
/// going on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnResult {
    /// Why the turn ended, where there is something to say.
    pub finish_reason: Option<AgentFinishReason>,
}

/// The numbers of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnContext {
    /// The id under which the turn will be saved; none where there is no store. A turn that writes
    /// nothing leaves it unused.
    pub snapshot_id: Option<Arc<str>>,
    /// The snapshot that the turn goes on from.
    pub parent_snapshot_id: Option<Arc<str>>,
    /// Which turn of the invocation, from 0.
    pub turn_index: u64,
}

/// Asks for a snapshot. At least one id is needed; with both, the session asserts whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GetSnapshotRequest {
    /// This one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Arc<str>>,
    /// The latest of this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Arc<str>>,
    /// Without its state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metadata_only: bool,
}

impl GetSnapshotRequest {
    /// This snapshot.
    pub fn snapshot(id: impl Into<Arc<str>>) -> Self {
        Self { snapshot_id: Some(id.into()), ..Self::default() }
    }

    /// The latest snapshot of this session.
    pub fn latest(id: impl Into<Arc<str>>) -> Self {
        Self { session_id: Some(id.into()), ..Self::default() }
    }

    /// Without its state.
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }
}

/// Asks the work behind a snapshot to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentAbortRequest {
    /// The snapshot.
    pub snapshot_id: Arc<str>,
}

/// What came of an [`AgentAbortRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentAbortResponse {
    /// The snapshot.
    pub snapshot_id: Arc<str>,
    /// Where it stands after the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SnapshotStatus>,
}

/// Who keeps the state of an agent's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentStateManagement {
    /// The agent has a store.
    Server,
    /// It travels with the calls.
    Client,
}

/// What an agent can do, for whoever lists agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentMetadata {
    /// Who keeps the state.
    pub state_management: AgentStateManagement,
    /// Whether work in the background can be stopped.
    #[serde(default)]
    pub abortable: bool,
    /// The JSON Schema of the custom state, where its type has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_schema: Option<Arc<Value>>,
}

/// An agent by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentRef {
    /// The name under which it is registered.
    pub name: Arc<str>,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Arc<str>>,
}
