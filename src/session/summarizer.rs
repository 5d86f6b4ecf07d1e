//! Long conversations in a few words, for a model that cannot be told all of them.

use std::sync::Arc;

use antiphon_agent::RuntimeError;
use antiphon_live::HistoryItem;
use async_trait::async_trait;

/// Puts into a few words what a speech model is not told of a long conversation, when a session
/// resumes it: see [`SessionBuilder::summarizer`](super::SessionBuilder::summarizer).
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` puts no conversations into a few words",
    note = "implement `antiphon::session::Summarizer`"
)]
pub trait Summarizer: Send + Sync + 'static {
    /// `left_out`: the messages and rounds of tools before those that the model is told, oldest first,
    /// words as they were heard. What comes back becomes part of the model's instructions; at most
    /// 8,000 bytes of it are used. It is asked once when a session starts, and has
    /// [`SessionBuilder::summarize_within`](super::SessionBuilder::summarize_within): with an
    /// error, a panic, or nothing in that time, the model is told no summary, and
    /// [`ResumedFrom::note`](super::ResumedFrom::note) says why.
    async fn summarize(&self, left_out: &[HistoryItem]) -> Result<String, RuntimeError>;
}

#[async_trait]
impl<T: Summarizer + ?Sized> Summarizer for Arc<T> {
    async fn summarize(&self, left_out: &[HistoryItem]) -> Result<String, RuntimeError> {
        (**self).summarize(left_out).await
    }
}
