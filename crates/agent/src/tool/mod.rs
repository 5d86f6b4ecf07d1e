//! What a tool is, tools from closures, and what tools and their callers say to each other.
//!
//! A [`TypedTool`] takes and gives types of the host's, a [`FuncTool`] JSON objects. An
//! [`InterruptibleTool`] may pause and ask: its call ends with [`interrupt`], whoever is asked
//! answers with [`InterruptibleTool::resume`] or [`InterruptibleTool::respond`], and the next
//! [`generate`](crate::generate::generate) goes on from there.

mod context;
mod effects;
mod func;
mod interrupts;
mod typed;

use std::{sync::Arc, time::Duration};

use antiphon_types::{
    JsonObject, ToolBehavior, ToolDefinition, ToolResponseScheduling, ToolSpeech,
};
use async_trait::async_trait;
use serde_json::Value;

use crate::ToolError;

pub(crate) use self::context::{Attached, ToolStream};
pub use self::{
    context::ToolContext,
    effects::Effects,
    func::FuncTool,
    interrupts::{interrupt, interrupt_as, replace_input, respond, resume},
    typed::{InterruptibleTool, TypedTool},
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

    /// What an interruption by the user does to a call that runs.
    fn on_interruption(&self) -> OnInterruption {
        OnInterruption::default()
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

    /// What a call changes, and so how it is recorded. A tool that only reads says so.
    fn effects(&self) -> Effects {
        Effects::default()
    }

    /// Does the work. The arguments passed policy and schema. The output is any JSON value; where a
    /// provider takes only objects another value reaches it as `{"output": value}`. Must not block
    /// its thread: see [`FuncTool::blocking`] and [`ToolContext::spawn_blocking`].
    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<Value, ToolError>;

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

/// What happens to a running call when the user interrupts the agent. A call that did not start
/// never does then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnInterruption {
    /// It goes on, and its output is sent.
    #[default]
    Keep,
    /// It is cancelled; the model is told so.
    Cancel,
}

/// The bounds of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolLimits {
    /// How long a call may take, waiting for a free slot included. Default: 30 seconds.
    pub timeout: Duration,
    /// How many bytes of JSON an output may have. Default: 64 KiB.
    pub max_output_bytes: usize,
    /// How many bytes of JSON all parts attached to an output may have. Default: 8 MiB.
    pub max_attached_bytes: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            max_output_bytes: 64 * 1024,
            max_attached_bytes: 8 * 1024 * 1024,
        }
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

    /// Sets how many bytes of JSON all parts attached to an output may have.
    pub fn max_attached_bytes(mut self, bytes: usize) -> Self {
        self.max_attached_bytes = bytes;
        self
    }
}
