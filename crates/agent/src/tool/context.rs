//! What a tool sees of the call it serves.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use antiphon_types::Status;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    InvocationContext, Memory, ToolError,
    executor::{Bodies, CURRENT_SESSION},
    json::serialized_len,
    message::{ModelResponseChunk, Part, Role, ToolResponse},
};

/// What a tool sees of the call it serves.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The session.
    pub session_id: Arc<str>,
    /// The id of the call.
    pub call_id: Arc<str>,
    /// Names this call unlike any other. A call that goes on in the place of one whose outcome is not
    /// known, of a tool that is [`Effects::Idempotent`](super::Effects::Idempotent), has that one's.
    /// Without a store that keeps [account](crate::ledger) each run has a new one.
    pub idempotency_key: Arc<str>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// The session's memory: no other session's can be reached through it.
    pub memory: Arc<dyn Memory>,
    /// Cancelled when the call is: by the model, the host, the end of the session, or the time-out.
    /// A moment later the tool's future is dropped.
    pub cancelled: CancellationToken,
    /// Who calls, what the host handed along, and, within an agent, the session and the turn.
    pub invocation: InvocationContext,
    pub(crate) resumed: Option<Arc<Value>>,
    pub(crate) original_input: Option<Arc<Value>>,
    pub(crate) tool: Arc<str>,
    pub(crate) stream: Option<ToolStream>,
    pub(crate) attached: Arc<Attached>,
    pub(crate) bodies: Arc<Bodies>,
}

impl ToolContext {
    /// Adds parts to the call's output, such as pictures. Beyond
    /// [`ToolLimits::max_attached_bytes`](super::ToolLimits) the call ends as
    /// [`Outcome::OutputTooLarge`](crate::Outcome::OutputTooLarge). A voice session leaves them out.
    pub fn attach_parts(&self, parts: impl IntoIterator<Item = Part>) {
        parts.into_iter().for_each(|part| self.attached.add(part));
    }

    /// Streams how far the work is, as a part that [`Part::is_partial`]. It reaches whoever streams
    /// the turn, never the model nor the history. Waits while they are slow; does nothing where
    /// nobody streams, once the call is over, and for what is no JSON.
    pub async fn send_partial(&self, output: impl Serialize) {
        let Some(stream) = &self.stream else { return };
        let Ok(output) = serde_json::to_value(output) else {
            return tracing::warn!(tool = %self.tool, "progress that is no JSON was left out");
        };
        let response = ToolResponse::new(self.tool.clone(), stream.reference.clone(), output);
        let content = vec![Part::partial_tool_response(response)];
        let role = Some(Role::Tool);
        self.send_chunk(ModelResponseChunk { role, content, ..Default::default() }).await;
    }

    /// Has the agent tell the user how far the work is, in these words: a voice session speaks them
    /// when nobody else speaks, and only the newest of a call that wait. Otherwise as
    /// [`ToolContext::send_partial`].
    pub async fn say(&self, text: impl Into<String>) {
        let content = vec![Part::text(text)];
        self.send_chunk(ModelResponseChunk { content, ..Default::default() }).await;
    }

    /// Streams a chunk of any content, as [`ToolContext::send_partial`] does. A chunk without role is
    /// the tool's.
    pub async fn send_chunk(&self, mut chunk: ModelResponseChunk) {
        // A tool that only ever sends lets others have their turn, and can be dropped.
        tokio::task::consume_budget().await;
        let Some(stream) = &self.stream else { return };
        if self.cancelled.is_cancelled() {
            return;
        }
        chunk.role.get_or_insert(Role::Tool);
        // An error says that nobody listens any more.
        let _ = self.cancelled.run_until_cancelled(stream.chunks.send(chunk)).await;
    }

    /// The answer to the interrupt of an earlier run of this call: an object, or `true`. `None`: the
    /// call runs for the first time.
    pub fn resumed(&self) -> Option<&Value> {
        self.resumed.as_deref()
    }

    /// The model's input, where whoever restarted the call replaced it. `None` also where it is no
    /// `In`.
    pub fn original_input<In: DeserializeOwned>(&self) -> Option<In> {
        In::deserialize(self.original_input.as_deref()?).ok()
    }

    /// Runs `work` where blocking is allowed. It cannot be stopped from outside: long work looks at
    /// [`ToolContext::cancelled`] now and then. Work that goes on after its call is over is
    /// counted as detached and keeps its slot among the calls that may run at the same time.
    ///
    /// Errs when the call is over before the work began. A panic of `work` is the tool's.
    pub async fn spawn_blocking<T, F>(&self, work: F) -> Result<T, ToolError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (bodies, session) = (self.bodies.clone(), self.session_id.clone());
        let result = tokio::task::spawn_blocking(move || {
            let _running = bodies.begin()?;
            Some(CURRENT_SESSION.sync_scope(session, work))
        })
        .await;
        match result {
            Ok(Some(value)) => Ok(value),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Ok(None) | Err(_) => {
                Err(ToolError::new("tool call cancelled").with_status(Status::Cancelled))
            }
        }
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("session_id", &self.session_id)
            .field("call_id", &self.call_id)
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

/// Where the progress of a call goes.
#[derive(Clone)]
pub(crate) struct ToolStream {
    pub(crate) chunks: mpsc::Sender<ModelResponseChunk>,
    /// The `ref` of the call's part; a call may have an id without it.
    pub(crate) reference: Option<Arc<str>>,
}

/// The parts that a tool adds to its output.
pub(crate) struct Attached {
    parts: Mutex<AttachedParts>,
    max_bytes: usize,
}

#[derive(Default)]
struct AttachedParts {
    parts: Vec<Part>,
    bytes: usize,
}

impl Attached {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { parts: Mutex::default(), max_bytes }
    }

    fn add(&self, part: Part) {
        let bytes = serialized_len(&part);
        let mut attached = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        attached.bytes = attached.bytes.saturating_add(bytes);
        if attached.bytes <= self.max_bytes {
            attached.parts.push(part);
        }
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// All parts, or how many bytes they are where that is too much.
    pub(crate) fn take(&self) -> Result<Vec<Part>, usize> {
        let mut attached = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.bytes > self.max_bytes {
            return Err(attached.bytes);
        }
        Ok(std::mem::take(&mut attached.parts))
    }
}
