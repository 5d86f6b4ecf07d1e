//! What a session says by itself.

use serde::Serialize;

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
