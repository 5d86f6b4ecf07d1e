//! The agent's tools.

use std::sync::Arc;

use antiphon::{
    agent::{Memory, Tool, ToolRegistry},
    providers::cascade::offline::matcher::PhraseMatcher,
    tools::{Notes, Rings, Timers, Transfers, clock, convert_units, today},
};

use super::plan::Plan;
use crate::failure::Failure;

/// Tools, and where their timers ring.
pub struct Toolbox {
    pub registry: Arc<ToolRegistry>,
    pub timers: Timers,
    pub rings: Rings,
}

impl Toolbox {
    /// The built-in tools and those of the user's file.
    pub fn new(plan: &mut Plan, memory: Arc<dyn Memory>) -> Result<Self, Failure> {
        let registry = Arc::new(ToolRegistry::new());
        let (timers, rings) = Timers::new();
        let notes = Notes::new(memory);
        let built_in = [
            registry.register(clock()),
            registry.register(today()),
            registry.register(timers.set_tool()),
            registry.register(timers.cancel_tool()),
            registry.register(timers.list_tool()),
            registry.register(notes.add_tool()),
            registry.register(notes.read_tool()),
            registry.register(notes.delete_tool()),
            registry.register(convert_units()),
            registry.register(Transfers::new().tool()),
        ];
        for registered in built_in {
            registered.map_err(Failure::failed)?;
        }
        if let Some(file) = plan.tools.take() {
            for (index, tool) in file.tools.iter().enumerate() {
                let fail = |reason: String| Failure::usage(file.error_at(index, reason));
                PhraseMatcher::check(&tool.definition())
                    .map_err(|error| fail(format!("tool {:?}: {error}", tool.name())))?;
                registry.register(tool.clone()).map_err(|error| fail(error.to_string()))?;
            }
        }
        Self::warn_of_unused_rules(plan, &registry);
        Ok(Self { registry, timers, rings })
    }

    fn warn_of_unused_rules(plan: &Plan, registry: &ToolRegistry) {
        let (name, policy) = &plan.policy;
        let definitions = registry.definitions();
        let tools = definitions.iter().map(|definition| &*definition.name);
        for pattern in policy.unused_patterns(tools) {
            eprintln!("antiphon: {name}: no tool fits the rule for {pattern:?}");
        }
    }
}
