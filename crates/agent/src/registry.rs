//! The tools a session knows.

use std::sync::Arc;

use antiphon_types::ToolDefinition;

use crate::{RegistryError, Tool};

/// A concurrent collection of tools by name.
#[derive(Default)]
pub struct ToolRegistry {
    tools: dashmap::DashMap<Arc<str>, Arc<dyn Tool>>,
}

#[allow(unused)]
impl ToolRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    pub fn register(&self, tool: impl Tool) -> Result<(), RegistryError> {
        self.register_shared(Arc::new(tool))
    }

    /// Adds a tool that others hold too.
    pub fn register_shared(&self, tool: Arc<dyn Tool>) -> Result<(), RegistryError> {
        Ok(())
    }

    /// Adds a tool; panics where [`ToolRegistry::register`] errs.
    pub fn must_register(&self, tool: impl Tool) {}

    /// The tool of exactly this name.
    pub fn lookup(&self, name: &str) -> Option<Arc<dyn Tool>> {
        None
    }

    /// All tools, by name.
    pub fn all(&self) -> Vec<Arc<dyn Tool>> {
        Vec::new()
    }

    /// What models are told of all tools, by name.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        Vec::new()
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}
