//! The tools a session knows.

use std::{fmt, sync::Arc};

use antiphon_types::{ToolDefinition, ToolResponseScheduling};
use dashmap::{DashMap, mapref::entry::Entry};

use crate::{RegistryError, Tool, ToolLimits, schema::Schema, tool::Effects};

/// A concurrent collection of tools by name.
///
/// A tool is asked for its definition, bounds and read-back once, when it is registered; its schema
/// is compiled then.
#[derive(Default)]
pub struct ToolRegistry {
    tools: DashMap<Arc<str>, Arc<Registered>>,
}

impl ToolRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool. Refuses one without a name, with a name that is taken, or with a schema that
    /// does not describe an object.
    pub fn register(&self, tool: impl Tool) -> Result<(), RegistryError> {
        self.register_shared(Arc::new(tool))
    }

    /// Adds a tool that others hold too.
    pub fn register_shared(&self, tool: Arc<dyn Tool>) -> Result<(), RegistryError> {
        // The tool's own code runs and its schema is compiled before the map is touched.
        let registered = Registered::new(tool)?;
        match self.tools.entry(registered.definition.name.clone()) {
            Entry::Occupied(taken) => Err(RegistryError::Duplicate(taken.key().clone())),
            Entry::Vacant(free) => {
                free.insert(Arc::new(registered));
                Ok(())
            }
        }
    }

    /// Adds a tool; panics where [`ToolRegistry::register`] errs.
    pub fn must_register(&self, tool: impl Tool) {
        if let Err(error) = self.register(tool) {
            panic!("{error}");
        }
    }

    /// Removes the tool of exactly this name and returns it. Calls that were admitted go on.
    pub fn unregister(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.tools.remove(name).map(|(_, registered)| registered.tool.clone())
    }

    /// The tool of exactly this name.
    pub fn lookup(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.registered(name).map(|registered| registered.tool.clone())
    }

    /// All tools at this moment, by name in byte order.
    pub fn all(&self) -> Vec<Arc<dyn Tool>> {
        self.sorted().iter().map(|registered| registered.tool.clone()).collect()
    }

    /// What models are told of all tools at this moment, by name in byte order.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.sorted().iter().map(|registered| registered.definition.clone()).collect()
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub(crate) fn registered(&self, name: &str) -> Option<Arc<Registered>> {
        self.tools.get(name).map(|entry| entry.value().clone())
    }

    fn sorted(&self) -> Vec<Arc<Registered>> {
        let mut all: Vec<_> = self.tools.iter().map(|entry| entry.value().clone()).collect();
        all.sort_unstable_by(|a, b| a.definition.name.cmp(&b.definition.name));
        all
    }
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.sorted().iter().map(|tool| &tool.definition.name)).finish()
    }
}

/// A tool with what it said of itself when it was registered.
pub(crate) struct Registered {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) definition: ToolDefinition,
    pub(crate) limits: ToolLimits,
    pub(crate) scheduling: ToolResponseScheduling,
    pub(crate) read_back: Option<String>,
    pub(crate) effects: Effects,
    pub(crate) schema: Option<Schema>,
    /// The provider runs it: there is nothing here that could.
    pub(crate) by_provider: bool,
}

impl Registered {
    pub(crate) fn new(tool: Arc<dyn Tool>) -> Result<Self, RegistryError> {
        let name: Arc<str> = tool.name().into();
        if name.trim().is_empty() {
            return Err(RegistryError::NoName);
        }
        let mut definition = tool.definition();
        definition.name = name.clone();
        let schema = Schema::of(&definition)?;
        Ok(Self {
            limits: tool.limits(),
            scheduling: tool.scheduling(),
            read_back: tool.read_back().map(str::to_owned),
            effects: tool.effects(),
            schema,
            definition,
            by_provider: false,
            tool,
        })
    }
}
