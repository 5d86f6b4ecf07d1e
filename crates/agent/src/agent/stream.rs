//! What streams from an invocation that somebody else drives.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::Stream;
use tokio::sync::mpsc;

use super::{
    core::{Core, Stop},
    outlet::{Patches, Pump},
};
use crate::{protocol::AgentStreamChunk, session::State};

/// What a client of the agent is streamed, as it may see it: pieces of what is said, artifacts,
/// patches of the custom state, ends of turns. From [`Invocation::stream`](super::Invocation::stream).
///
/// It ends with the invocation, and when that goes on in the background. One that is dropped costs
/// the invocation nothing.
pub struct InvocationStream {
    chunks: mpsc::Receiver<AgentStreamChunk>,
}

impl InvocationStream {
    /// Opens the stream of an invocation. Where it fails, the invocation has.
    pub(super) fn open<S: State>(core: &Arc<Core<S>>) -> Self {
        let limits = core.definition.limits.clone();
        let (client, chunks) = mpsc::channel(limits.stream.max(1));
        core.outlet.open();
        let pump = Pump {
            outlet: core.outlet.clone(),
            client,
            transform: core.definition.stream_transform.clone(),
            cx: core.cx.clone(),
            limits,
            patches: Patches::default(),
        };
        let core = Arc::downgrade(core);
        tokio::spawn(async move {
            if let Err(error) = pump.run().await
                && let Some(core) = core.upgrade()
            {
                core.stop(Stop::Failure(error));
            }
        });
        Self { chunks }
    }

    /// The next chunk; `None` after the last.
    pub async fn next(&mut self) -> Option<AgentStreamChunk> {
        self.chunks.recv().await
    }
}

impl Stream for InvocationStream {
    type Item = AgentStreamChunk;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentStreamChunk>> {
        self.chunks.poll_recv(cx)
    }
}

impl fmt::Debug for InvocationStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvocationStream")
    }
}
