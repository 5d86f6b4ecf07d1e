//! The part of a long conversation that a model is not told, in the host's words.

use std::{panic::AssertUnwindSafe, time::Duration};

use antiphon_live::HistoryItem;
use futures_util::FutureExt;

use crate::session::{ResumeNote, Summarizer};

/// Bytes of a summary that a model is told; more is cut.
const MAX_SUMMARY: usize = 8_000;

/// Asks for a summary, so long.
pub(super) async fn summary(
    summarizer: &dyn Summarizer,
    left_out: &[HistoryItem],
    within: Duration,
) -> Result<String, ResumeNote> {
    // Whatever it left half done is its own.
    let asked = AssertUnwindSafe(summarizer.summarize(left_out)).catch_unwind();
    match tokio::time::timeout(within, asked).await {
        Ok(Ok(Ok(text))) if text.trim().is_empty() => Err(ResumeNote::SummaryEmpty),
        Ok(Ok(Ok(text))) => {
            let text = text.trim();
            Ok(text[..text.floor_char_boundary(MAX_SUMMARY)].to_owned())
        }
        Ok(Ok(Err(error))) => {
            tracing::warn!(%error, "the conversation before is not told in short");
            Err(ResumeNote::SummaryFailed)
        }
        Ok(Err(_)) => {
            tracing::error!("what puts conversations into a few words panicked");
            Err(ResumeNote::SummaryFailed)
        }
        Err(_) => Err(ResumeNote::SummaryTimedOut),
    }
}
