//! A turn under way.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use futures_util::{StreamExt, stream::BoxStream};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    AgentChunk, AgentError, AgentResponse,
    driver::{Event, Outcome},
    response::{Resolved, resolved},
    transport::typed_custom,
};
use crate::session::State;

/// A turn under way: a stream of chunks, and the response.
///
/// It goes on while it is polled. Dropping it before its end aborts the turn, and the chat is as it
/// was before.
pub struct AgentTurn<S: State = Value> {
    events: BoxStream<'static, Event>,
    resolved: Option<Resolved<S>>,
    abort: CancellationToken,
    _dropped: DropGuard,
}

impl<S: State> AgentTurn<S> {
    pub(super) fn new(events: BoxStream<'static, Event>, abort: CancellationToken) -> Self {
        Self { events, resolved: None, _dropped: abort.clone().drop_guard(), abort }
    }

    /// The next chunk; `None` when nothing more streams.
    pub async fn next_chunk(&mut self) -> Option<AgentChunk<S>> {
        self.next().await
    }

    /// Waits for the end of the turn, passing over what still streams. Called again, it returns the
    /// same.
    ///
    /// A turn that was aborted while it streamed resolves as [`aborted`]; one that failed is the
    /// error.
    ///
    /// [`aborted`]: crate::AgentFinishReason::Aborted
    pub async fn response(&mut self) -> Result<AgentResponse<S>, AgentError<S>> {
        loop {
            if let Some(resolved) = &self.resolved {
                return resolved.clone();
            }
            // The stream does not end before it is resolved.
            self.next_chunk().await;
        }
    }

    /// Aborts the turn.
    pub fn abort(&self) {
        self.abort.cancel();
    }

    /// Aborts the turn when it is cancelled, from wherever.
    pub fn aborter(&self) -> CancellationToken {
        self.abort.clone()
    }
}

// Nothing in it is pinned in place; the stream has a box of its own.
impl<S: State> Unpin for AgentTurn<S> {}

impl<S: State> Stream for AgentTurn<S> {
    type Item = AgentChunk<S>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.resolved.is_some() {
            return Poll::Ready(None);
        }
        match ready!(self.events.poll_next_unpin(cx)) {
            Some(Event::Chunk { raw, custom, accumulated }) => {
                let custom = typed_custom(custom.as_deref());
                Poll::Ready(Some(AgentChunk { raw: *raw, custom, accumulated }))
            }
            Some(Event::Done(outcome)) => {
                self.resolved = Some(resolved(*outcome));
                Poll::Ready(None)
            }
            // It ends by itself only after it is done.
            None => {
                self.resolved = Some(resolved(Outcome::lost()));
                Poll::Ready(None)
            }
        }
    }
}

impl<S: State> fmt::Debug for AgentTurn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentTurn")
            .field("over", &self.resolved.is_some())
            .field("aborted", &self.abort.is_cancelled())
            .finish_non_exhaustive()
    }
}
