//! Agents by name.

use std::{fmt, sync::Arc};

use antiphon_types::Status;
use dashmap::{DashMap, mapref::entry::Entry};

use super::{Agent, AgentHandle};
use crate::{RuntimeError, protocol::AgentRef, session::State};

/// A concurrent collection of agents by name.
#[derive(Default)]
pub struct Registry {
    agents: DashMap<Arc<str>, AgentHandle>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an agent. Refuses one without a name or with a name that is taken.
    pub fn register_agent<S: State>(&self, agent: &Agent<S>) -> Result<(), RuntimeError> {
        let name = agent.name();
        if name.is_empty() {
            return Err(RuntimeError::InvalidArgument("an agent needs a name".to_owned()));
        }
        match self.agents.entry(name.clone()) {
            Entry::Occupied(taken) => Err(RuntimeError::new(
                Status::AlreadyExists,
                format!("an agent named {:?} is registered already", taken.key()),
            )),
            Entry::Vacant(free) => {
                free.insert(agent.handle());
                Ok(())
            }
        }
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
}

impl<S: State> Agent<S> {
    /// Adds the agent to a registry: [`Registry::register_agent`].
    pub fn register(&self, registry: &Registry) -> Result<(), RuntimeError> {
        registry.register_agent(self)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("agents", &self.list_agents()).finish()
    }
}
