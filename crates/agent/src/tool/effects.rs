//! What a tool changes in the world.

use serde::{Deserialize, Serialize};

/// What a call of a tool changes, and so what becomes of one whose outcome is not known: its process
/// ended while it ran, or it was cancelled or timed out while it ran and the tool did not say that
/// [nothing was done](crate::ToolError::not_done).
///
/// The [ledger](crate::ledger) records a call before it runs and its outcome after, where the agent
/// has a store that keeps one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effects {
    /// It changes something, and must not happen twice. The call is on the disk before it runs; the
    /// model and the host are told where its outcome is not known. The default: a tool that says
    /// nothing is taken to be one of these.
    #[default]
    Once,
    /// It changes nothing. Records of its calls are written behind, and nothing waits for them.
    ReadOnly,
    /// It changes something, and does so once for each
    /// [`idempotency_key`](crate::ToolContext::idempotency_key) however often it runs. A call like
    /// one whose outcome is not known gets that one's key, until one with it succeeds: in any later
    /// turn and invocation of the conversation.
    Idempotent,
    /// As [`Effects::Once`], but a call like one whose outcome is not known waits for a person, until
    /// one that was approved succeeds: in any later turn and invocation of the conversation.
    Ask,
}
