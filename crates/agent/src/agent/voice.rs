//! What an agent is in a voice session.

use std::{fmt, sync::Arc};

use crate::{InvocationContext, Memory, RuntimeError, ToolExecutor};

/// What an agent is in a voice session, where a speech model takes the place of its function: the
/// instructions and the tools that the model is given.
///
/// An agent over a prompt has it by itself; another is declared to be able by
/// [`AgentBuilder::voice`](crate::AgentBuilder::voice).
#[derive(Clone)]
pub struct Voice {
    instructions: Arc<Instructions>,
    tools: Option<ToolExecutor>,
    memory: Option<Arc<dyn Memory>>,
}

/// Makes the instructions of a conversation that begins or is continued.
type Instructions = dyn Fn(&InvocationContext) -> Result<String, RuntimeError> + Send + Sync;

impl Voice {
    /// Instructions that are always the same.
    pub fn new(instructions: impl Into<String>) -> Self {
        let instructions = instructions.into();
        Self::rendered(move |_| Ok(instructions.clone()))
    }

    /// Instructions that `render` makes each time a voice session begins; the context has the
    /// agent's session. It must not block.
    pub fn rendered(
        render: impl Fn(&InvocationContext) -> Result<String, RuntimeError> + Send + Sync + 'static,
    ) -> Self {
        Self { instructions: Arc::new(render), tools: None, memory: None }
    }

    /// Sets the tools, with the policy over them. Default: none.
    pub fn tools(mut self, tools: ToolExecutor) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Sets the memory of sessions that name none. Default: the session's own.
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// The instructions for the session in `cx`.
    pub fn instructions(&self, cx: &InvocationContext) -> Result<String, RuntimeError> {
        (self.instructions)(cx)
    }

    /// The tools.
    pub fn executor(&self) -> Option<&ToolExecutor> {
        self.tools.as_ref()
    }

    /// The memory of sessions that name none.
    pub fn shared_memory(&self) -> Option<&Arc<dyn Memory>> {
        self.memory.as_ref()
    }
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voice").field("tools", &self.tools).finish_non_exhaustive()
    }
}
