//! What a session or a connection knows of the conversation before it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
    /// The provider goes on with the conversation itself, by a handle that was kept
    /// ([`SessionBuilder::keep_handles`](crate::session::SessionBuilder::keep_handles)): nothing was told
    /// again, and what was restored is what it knew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_handle: bool,
    /// The ids of calls of which nobody knows how they ended: their process was killed while they ran, or
    /// they were cut off by a time-out or by hanging up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<Arc<str>>,
    /// The snapshot of work that was left in the background and lost with its process, or stopped without
    /// anything to go on from: the session goes on from before it. The calls of that work which may have
    /// happened are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_work: Option<Arc<str>>,
    /// Why it was not told of those in short, where it should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<ResumeNote>,
}

/// Why a model was told no summary of what was left out:
/// [`SessionBuilder::summarizer`](crate::session::SessionBuilder::summarizer).
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
