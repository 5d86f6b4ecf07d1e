//! What a tool is.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use antiphon_types::{
    JsonObject, Status, ToolBehavior, ToolDefinition, ToolResponseScheduling, ToolSpeech,
};
use async_trait::async_trait;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    Memory, ToolError,
    executor::{Bodies, CURRENT_SESSION},
};

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

    /// When the result of a non-blocking tool is to be spoken.
    fn scheduling(&self) -> ToolResponseScheduling {
        ToolResponseScheduling::default()
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
    /// [`FuncTool::blocking`] and [`ToolContext::spawn_blocking`].
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
    /// How long a call may take, waiting for a free slot included. Default: 30 seconds.
    pub timeout: Duration,
    /// How many bytes of JSON an output may have. Default: 64 KiB.
    pub max_output_bytes: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), max_output_bytes: 64 * 1024 }
    }
}

impl ToolLimits {
    /// Sets how long a call may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many bytes of JSON an output may have.
    pub fn max_output_bytes(mut self, bytes: usize) -> Self {
        self.max_output_bytes = bytes;
        self
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
    /// A moment later the tool's future is dropped.
    pub cancelled: CancellationToken,
    pub(crate) bodies: Arc<Bodies>,
}

impl ToolContext {
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

type InvokeFuture = Pin<Box<dyn Future<Output = Result<JsonObject, ToolError>> + Send>>;
type InvokeFn = dyn Fn(ToolContext, JsonObject) -> InvokeFuture + Send + Sync;

/// A tool from a closure.
///
/// ```
/// use antiphon_agent::{FuncTool, ToolRegistry};
/// use serde_json::json;
///
/// let registry = ToolRegistry::new();
/// registry.must_register(FuncTool::new(
///     "greet",
///     "Greets a person by name.",
///     json!({
///         "type": "object",
///         "properties": { "name": { "type": "string" } },
///         "required": ["name"],
///     }),
///     |_cx, args| async move {
///         let name = args["name"].as_str().unwrap_or("you");
///         let greeting = format!("Hello, {name}!");
///         Ok([("greeting".to_owned(), greeting.into())].into_iter().collect())
///     },
/// ));
/// assert_eq!(registry.len(), 1);
/// ```
pub struct FuncTool {
    definition: ToolDefinition,
    scheduling: ToolResponseScheduling,
    read_back: Option<String>,
    limits: ToolLimits,
    invoke: Box<InvokeFn>,
}

impl FuncTool {
    /// A tool that does its work in a future. `schema` is the JSON Schema of the arguments; `None`
    /// is a tool without parameters. What the closure does must not block its thread.
    pub fn new<F, Fut>(
        name: impl Into<Arc<str>>,
        description: impl Into<Arc<str>>,
        schema: impl Into<Option<Value>>,
        invoke: F,
    ) -> Self
    where
        F: Fn(ToolContext, JsonObject) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<JsonObject, ToolError>> + Send + 'static,
    {
        let mut definition = ToolDefinition::new(name, description);
        definition.input_schema = schema.into().map(Arc::new);
        Self {
            definition,
            scheduling: ToolResponseScheduling::default(),
            read_back: None,
            limits: ToolLimits::default(),
            invoke: Box::new(move |cx, args| Box::pin(invoke(cx, args))),
        }
    }

    /// A tool whose work blocks or computes for long; it runs on the blocking pool. See
    /// [`ToolContext::spawn_blocking`].
    pub fn blocking<F>(
        name: impl Into<Arc<str>>,
        description: impl Into<Arc<str>>,
        schema: impl Into<Option<Value>>,
        invoke: F,
    ) -> Self
    where
        F: Fn(ToolContext, JsonObject) -> Result<JsonObject, ToolError> + Send + Sync + 'static,
    {
        let invoke = Arc::new(invoke);
        Self::new(name, description, schema, move |cx, args| {
            let invoke = invoke.clone();
            async move {
                let inner = cx.clone();
                cx.spawn_blocking(move || invoke(inner, args)).await?
            }
        })
    }

    /// Sets how it is asked for and answered in spoken words.
    pub fn speech(mut self, speech: ToolSpeech) -> Self {
        self.definition.speech = Some(Arc::new(speech));
        self
    }

    /// Sets the template of the words by which a call is read back before it runs.
    pub fn read_back(mut self, template: impl Into<String>) -> Self {
        self.read_back = Some(template.into());
        self
    }

    /// Sets its bounds.
    pub fn limits(mut self, limits: ToolLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long a call may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = timeout;
        self
    }

    /// Sets whether the model waits for the result.
    pub fn behavior(mut self, behavior: ToolBehavior) -> Self {
        self.definition.behavior = behavior;
        self
    }

    /// Sets when the result of a non-blocking tool is to be spoken.
    pub fn scheduling(mut self, scheduling: ToolResponseScheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Sets the JSON Schema of the output.
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.definition.output_schema = Some(Arc::new(schema));
        self
    }
}

#[async_trait]
impl Tool for FuncTool {
    fn name(&self) -> &str {
        &self.definition.name
    }

    fn description(&self) -> &str {
        &self.definition.description
    }

    fn read_back(&self) -> Option<&str> {
        self.read_back.as_deref()
    }

    fn limits(&self) -> ToolLimits {
        self.limits
    }

    fn input_schema(&self) -> Option<Arc<Value>> {
        self.definition.input_schema.clone()
    }

    fn output_schema(&self) -> Option<Arc<Value>> {
        self.definition.output_schema.clone()
    }

    fn behavior(&self) -> ToolBehavior {
        self.definition.behavior
    }

    fn scheduling(&self) -> ToolResponseScheduling {
        self.scheduling
    }

    fn speech(&self) -> Option<Arc<ToolSpeech>> {
        self.definition.speech.clone()
    }

    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<JsonObject, ToolError> {
        (self.invoke)(cx, args).await
    }
}

impl fmt::Debug for FuncTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuncTool")
            .field("definition", &self.definition)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
