//! Tools from closures over JSON objects.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use antiphon_types::{
    JsonObject, ToolBehavior, ToolDefinition, ToolResponseScheduling, ToolSpeech,
};
use async_trait::async_trait;
use serde_json::Value;

use super::{Effects, OnInterruption, Tool, ToolContext, ToolLimits};
use crate::ToolError;

type InvokeFuture = Pin<Box<dyn Future<Output = Result<Value, ToolError>> + Send>>;
type InvokeFn = dyn Fn(ToolContext, JsonObject) -> InvokeFuture + Send + Sync;

/// A tool from a closure over JSON objects. Clones share the closure.
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
#[derive(Clone)]
pub struct FuncTool {
    pub(super) definition: ToolDefinition,
    scheduling: ToolResponseScheduling,
    on_interruption: OnInterruption,
    read_back: Option<String>,
    limits: ToolLimits,
    effects: Effects,
    invoke: Arc<InvokeFn>,
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
        Self::from_definition(definition, move |cx, args| {
            let output = invoke(cx, args);
            async move { Ok(Value::Object(output.await?)) }
        })
    }

    /// A tool whose output may be any value.
    pub(super) fn from_definition<F, Fut>(definition: ToolDefinition, invoke: F) -> Self
    where
        F: Fn(ToolContext, JsonObject) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        Self {
            definition,
            scheduling: ToolResponseScheduling::default(),
            on_interruption: OnInterruption::default(),
            read_back: None,
            limits: ToolLimits::default(),
            effects: Effects::default(),
            invoke: Arc::new(move |cx, args| Box::pin(invoke(cx, args))),
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

    /// Sets what a call changes.
    pub fn effects(mut self, effects: Effects) -> Self {
        self.effects = effects;
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

    /// Sets what an interruption by the user does to a call that runs.
    pub fn on_interruption(mut self, on_interruption: OnInterruption) -> Self {
        self.on_interruption = on_interruption;
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

    fn effects(&self) -> Effects {
        self.effects
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

    fn on_interruption(&self) -> OnInterruption {
        self.on_interruption
    }

    fn speech(&self) -> Option<Arc<ToolSpeech>> {
        self.definition.speech.clone()
    }

    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<Value, ToolError> {
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
