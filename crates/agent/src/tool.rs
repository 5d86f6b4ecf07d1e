//! What a tool is.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use antiphon_types::{JsonObject, ToolBehavior, ToolDefinition, ToolSpeech};
use async_trait::async_trait;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{Memory, ToolError};

/// A function of the host that a model may call. Calls run concurrently, each on a task of its own.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    note = "implement `antiphon_agent::Tool`, or wrap a closure in `FuncTool`"
)]
pub trait Tool: Send + Sync + 'static {
    /// The unique name by which the model calls it.
    fn name(&self) -> &str;

    /// When to use it, in natural language, for the model.
    fn description(&self) -> &str;

    /// JSON Schema of the arguments; `None` is a tool without parameters.
    fn input_schema(&self) -> Option<Arc<Value>> {
        None
    }

    /// JSON Schema of the output, for providers that take one.
    fn output_schema(&self) -> Option<Arc<Value>> {
        None
    }

    /// Whether the model waits for the result.
    fn behavior(&self) -> ToolBehavior {
        ToolBehavior::default()
    }

    /// How it is asked for and answered in spoken words.
    fn speech(&self) -> Option<Arc<ToolSpeech>> {
        None
    }

    /// A template of the words by which a call is read back to the user before it runs, such as
    /// `Send {amount} euros to {name}?`. `None`: it runs without.
    fn read_back(&self) -> Option<&str> {
        None
    }

    /// Its bounds.
    fn limits(&self) -> ToolLimits {
        ToolLimits::default()
    }

    /// Does the work. The arguments passed policy and schema. Must not block its thread: see
    /// [`FuncTool::blocking`].
    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<JsonObject, ToolError>;

    /// All that the model is told of it.
    fn definition(&self) -> ToolDefinition {
        let mut definition = ToolDefinition::new(self.name(), self.description());
        definition.input_schema = self.input_schema();
        definition.output_schema = self.output_schema();
        definition.behavior = self.behavior();
        definition.speech = self.speech();
        definition
    }
}

/// The bounds of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolLimits {
    /// How long a call may take. Default: 30 seconds.
    pub timeout: Duration,
    /// How many bytes of JSON an output may have. Default: 64 KiB.
    pub max_output_bytes: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), max_output_bytes: 64 * 1024 }
    }
}

/// What a tool sees of the call it serves.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The session.
    pub session_id: Arc<str>,
    /// The id of the call.
    pub call_id: Arc<str>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// The session's memory; keys are prefixed with the session's id.
    pub memory: Arc<dyn Memory>,
    /// Cancelled when the call is: by the model, the host, the end of the session, or the time-out.
    pub cancelled: CancellationToken,
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

type InvokeFuture = Pin<Box<dyn Future<Output = Result<JsonObject, ToolError>> + Send>>;
type InvokeFn = dyn Fn(ToolContext, JsonObject) -> InvokeFuture + Send + Sync;

/// A tool from a closure.
pub struct FuncTool {
    definition: ToolDefinition,
    read_back: Option<String>,
    limits: ToolLimits,
    invoke: Box<InvokeFn>,
}
