//! The chunks of an invocation on their way to its client.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use antiphon_types::Status;
use serde_json::Value;
use tokio::{sync::mpsc, time::timeout};

use super::{definition::StreamTransform, limits::RuntimeLimits, monitor::Monitor};
use crate::{
    InvocationContext, RuntimeError,
    patch::{JsonPatch, diff},
    protocol::AgentStreamChunk,
    state::Artifact,
};

/// Where everything that streams is put, in the order of its sending. Putting never waits and runs
/// no code of others; the [`Pump`] takes out, transforms, and hands to the client.
#[derive(Debug)]
pub(crate) struct Outlet {
    queue: Monitor<Queue>,
    bound: usize,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Nothing more is taken: over, detached, or nobody listens.
    closed: bool,
}

enum Item {
    Chunk(Box<AgentStreamChunk>),
    Artifact(Arc<Artifact>),
    Custom(CustomChange),
    /// The next change of the custom state is told as a whole.
    TurnBegins,
}

/// A change of the custom state.
pub(super) struct CustomChange {
    /// Counts the changes.
    pub(super) version: u64,
    /// The state went back to where it was: told only where the client had seen it elsewhere.
    pub(super) rolled_back: bool,
    /// The custom state as the client may see it. Runs the host's transform.
    pub(super) read: Box<dyn FnOnce() -> Result<Value, RuntimeError> + Send>,
}

impl Outlet {
    pub(super) fn new(bound: usize) -> Self {
        Self { queue: Monitor::default(), bound: bound.max(1) }
    }

    /// One to which nobody listens yet.
    pub(super) fn closed(bound: usize) -> Self {
        let outlet = Self::new(bound);
        outlet.close();
        outlet
    }

    /// Puts a chunk.
    pub(super) fn chunk(&self, chunk: impl Into<AgentStreamChunk>) {
        self.put(|items| items.push_back(Item::Chunk(Box::new(chunk.into()))));
    }

    /// Puts an artifact. Where the client is behind, it takes the place of an earlier one of its name.
    pub(super) fn artifact(&self, artifact: Arc<Artifact>) {
        self.put(|items| {
            let earlier = (items.len() >= self.bound && artifact.name.is_some()).then(|| {
                items.iter_mut().rev().find_map(|item| match item {
                    Item::Artifact(earlier) if earlier.name == artifact.name => Some(earlier),
                    _ => None,
                })
            });
            match earlier.flatten() {
                Some(earlier) => *earlier = artifact,
                None => items.push_back(Item::Artifact(artifact)),
            }
        });
    }

    /// Puts a change of the custom state. Where the client is behind, it takes the place of the
    /// change before.
    pub(super) fn custom(&self, change: CustomChange) {
        self.put(|items| {
            let behind = items.len() >= self.bound;
            match items.back_mut() {
                Some(Item::Custom(last)) if behind => {
                    if last.version < change.version {
                        *last = change;
                    }
                }
                _ => items.push_back(Item::Custom(change)),
            }
        });
    }

    /// A turn begins.
    pub(super) fn turn_begins(&self) {
        self.put(|items| items.push_back(Item::TurnBegins));
    }

    /// Somebody listens from here on.
    pub(super) fn open(&self) {
        self.queue.change(|queue| queue.closed = false);
    }

    /// Puts a chunk if there is room. `false`: the client is behind.
    pub(super) fn offer(&self, chunk: impl Into<AgentStreamChunk>) -> bool {
        self.queue.change(|queue| {
            let room = queue.closed || queue.items.len() < self.bound;
            if room && !queue.closed {
                queue.items.push_back(Item::Chunk(Box::new(chunk.into())));
            }
            room
        })
    }

    /// Takes nothing more; what waits still goes to the client.
    pub(super) fn close(&self) {
        self.queue.change(|queue| queue.closed = true);
    }

    /// Whether nothing more is taken.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.look(|queue| queue.closed)
    }

    /// Waits until there is room, or nobody listens any more.
    pub(super) async fn room(&self) {
        self.queue.until(|queue| queue.closed || queue.items.len() < self.bound).await;
    }

    fn put(&self, put: impl FnOnce(&mut VecDeque<Item>)) {
        self.queue.change(|queue| {
            if !queue.closed {
                put(&mut queue.items);
            }
        });
    }

    async fn next(&self) -> Option<Item> {
        self.queue
            .take(|queue| match queue.items.pop_front() {
                None if !queue.closed => None,
                item => Some(item),
            })
            .await
    }

    /// Throws away what waits.
    fn discard(&self) -> usize {
        self.queue.change(|queue| {
            queue.closed = true;
            std::mem::take(&mut queue.items).len()
        })
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Chunk(_) => "Chunk",
            Self::Artifact(_) => "Artifact",
            Self::Custom(_) => "Custom",
            Self::TurnBegins => "TurnBegins",
        })
    }
}

/// Takes chunks out of an [`Outlet`], makes patches of changes, transforms, and hands to the client.
pub(super) struct Pump {
    pub(super) outlet: Arc<Outlet>,
    pub(super) client: mpsc::Sender<AgentStreamChunk>,
    pub(super) transform: Option<StreamTransform>,
    pub(super) cx: InvocationContext,
    pub(super) limits: RuntimeLimits,
    pub(super) patches: Patches,
}

impl Pump {
    /// Works until the outlet is closed and empty. An error means that the invocation has failed:
    /// the client sees nothing more.
    pub(super) async fn run(mut self) -> Result<(), RuntimeError> {
        while let Some(item) = self.outlet.next().await {
            let sent = match self.shape(item) {
                Ok(Some(chunk)) => self.send(chunk).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                let dropped = self.outlet.discard();
                tracing::warn!(%error, dropped, "the stream to the client failed");
                return Err(error);
            }
        }
        Ok(())
    }

    fn shape(&mut self, item: Item) -> Result<Option<AgentStreamChunk>, RuntimeError> {
        let chunk = match item {
            Item::Chunk(chunk) => *chunk,
            Item::Artifact(artifact) => AgentStreamChunk {
                artifact: Some(Artifact::clone(&artifact)),
                ..AgentStreamChunk::default()
            },
            Item::Custom(change) => match self.patches.patch(change)? {
                Some(patch) => {
                    AgentStreamChunk { custom_patch: Some(patch), ..AgentStreamChunk::default() }
                }
                None => return Ok(None),
            },
            Item::TurnBegins => {
                self.patches.whole = true;
                return Ok(None);
            }
        };
        match &self.transform {
            Some(transform) => guarded("stream transform", || transform(&self.cx, chunk)),
            None => Ok(Some(chunk)),
        }
    }

    async fn send(&self, chunk: AgentStreamChunk) -> Result<(), RuntimeError> {
        // A client that went away costs its invocation elsewhere, if at all.
        timeout(self.limits.stream_stall, self.client.send(chunk)).await.map(drop).map_err(|_| {
            let stall = self.limits.stream_stall;
            RuntimeError::new(
                Status::ResourceExhausted,
                format!("the client took nothing from the stream for {stall:?}"),
            )
        })
    }
}

/// What the client knows of the custom state.
#[derive(Default)]
pub(super) struct Patches {
    sent: Option<Value>,
    version: u64,
    whole: bool,
}

impl Patches {
    fn patch(&mut self, change: CustomChange) -> Result<Option<JsonPatch>, RuntimeError> {
        // Changes that come at the same time may be put in the wrong order; the newest has all.
        if change.version <= self.version {
            return Ok(None);
        }
        self.version = change.version;
        let now = guarded("state transform", change.read)?;
        if change.rolled_back && self.sent.as_ref().is_none_or(|sent| *sent == now) {
            return Ok(None);
        }
        let patch = match &self.sent {
            Some(sent) if !self.whole => diff(sent, &now),
            _ => JsonPatch::whole(now.clone()),
        };
        (self.sent, self.whole) = (Some(now), false);
        Ok((!patch.is_empty()).then_some(patch))
    }
}

/// Runs code of the host; a panic is an error.
pub(super) fn guarded<T>(
    what: &str,
    run: impl FnOnce() -> Result<T, RuntimeError>,
) -> Result<T, RuntimeError> {
    // Whatever the code left half done is its own.
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(RuntimeError::internal(format!("the {what} panicked"))))
}
