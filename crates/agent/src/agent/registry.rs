//! Agents by name, and what they are made of.

use std::{fmt, sync::Arc};

use antiphon_types::Status;
use dashmap::{DashMap, mapref::entry::Entry};

use super::{Agent, AgentHandle};
use crate::{Model, Prompt, RuntimeError, ToolRegistry, protocol::AgentRef, session::State};

/// A concurrent collection of agents, prompts, models and tools by name.
#[derive(Default)]
pub struct Registry {
    agents: DashMap<Arc<str>, AgentHandle>,
    prompts: DashMap<Arc<str>, Prompt>,
    models: DashMap<Arc<str>, Arc<dyn Model>>,
    tools: Arc<ToolRegistry>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an agent. Refuses one without a name or with a name that is taken.
    pub fn register_agent<S: State>(&self, agent: &Agent<S>) -> Result<(), RuntimeError> {
        add(&self.agents, "agent", agent.name(), agent.handle())
    }

    /// The agent of exactly this name.
    pub fn lookup_agent(&self, name: &str) -> Option<AgentHandle> {
        self.agents.get(name).map(|agent| agent.clone())
    }

    /// All agents, sorted by name.
    pub fn list_agents(&self) -> Vec<AgentRef> {
        let mut agents: Vec<_> = self.agents.iter().map(|agent| agent.agent_ref()).collect();
        agents.sort_by(|a, b| a.name.cmp(&b.name));
        agents
    }

    /// Adds a prompt. Refuses one whose name is taken.
    pub fn register_prompt(&self, prompt: Prompt) -> Result<(), RuntimeError> {
        add(&self.prompts, "prompt", &prompt.name().clone(), prompt)
    }

    /// The prompt of exactly this name.
    pub fn lookup_prompt(&self, name: &str) -> Option<Prompt> {
        self.prompts.get(name).map(|prompt| prompt.clone())
    }

    /// Adds a model under a name, which need not be its own. Refuses an empty name, and one that is
    /// taken.
    pub fn register_model(
        &self,
        name: impl Into<Arc<str>>,
        model: Arc<dyn Model>,
    ) -> Result<(), RuntimeError> {
        add(&self.models, "model", &name.into(), model)
    }

    /// The model of exactly this name.
    pub fn lookup_model(&self, name: &str) -> Option<Arc<dyn Model>> {
        self.models.get(name).map(|model| model.clone())
    }

    /// The tools.
    pub fn tools(&self) -> &Arc<ToolRegistry> {
        &self.tools
    }
}

impl<S: State> Agent<S> {
    /// Adds the agent to a registry: [`Registry::register_agent`].
    pub fn register(&self, registry: &Registry) -> Result<(), RuntimeError> {
        registry.register_agent(self)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("agents", &self.list_agents())
            .field("prompts", &self.prompts.len())
            .field("models", &self.models.len())
            .field("tools", &self.tools)
            .finish()
    }
}

fn add<T>(
    entries: &DashMap<Arc<str>, T>,
    what: &str,
    name: &Arc<str>,
    value: T,
) -> Result<(), RuntimeError> {
    if name.is_empty() {
        return Err(RuntimeError::InvalidArgument(format!("this {what} needs a name")));
    }
    match entries.entry(name.clone()) {
        Entry::Occupied(taken) => Err(RuntimeError::new(
            Status::AlreadyExists,
            format!("another {what} named {:?} is registered already", taken.key()),
        )),
        Entry::Vacant(free) => {
            free.insert(value);
            Ok(())
        }
    }
}
