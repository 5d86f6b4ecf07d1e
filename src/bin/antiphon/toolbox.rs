//! The agent's tools, and the policy over them.

use std::{path::Path, sync::Arc};

use antiphon::{
    agent::{Memory, Tool, ToolRegistry},
    policy::{PolicyFile, PolicyHost, ReceiptLog, SqliteLimits},
    providers::cascade::offline::matcher::PhraseMatcher,
    tools::{Notes, Rings, Timers, ToolFile, Transfers, clock, convert_units, load_tools, today},
};

use crate::{args::BookArguments, failure::Failure};

/// The policy over the built-in tools; also the sample for one's own.
const BUILT_IN_POLICY: &str = include_str!("../../../examples/policy.json");

/// What the files of the command line say of tools.
pub struct Equipment {
    tools: Option<ToolFile>,
    policy: PolicyFile,
    /// What the policy is called in warnings.
    policy_name: String,
    books: BookArguments,
}

impl Equipment {
    /// Whether the policy counts what its limits allow in a file, where it has limits: what is counted
    /// in memory is forgotten when this program ends.
    pub fn remembers(&self) -> Result<(), Failure> {
        match self.books.limits.is_none() && !self.policy.limits().is_empty() {
            true => Err(Failure::usage(format!(
                "{}: it has limits, and --limits does not say where they are counted",
                self.policy_name
            ))),
            false => Ok(()),
        }
    }

    /// Whether calls over which a person decides have a place to wait in.
    pub fn asks_only_with(&self, store: Option<&Path>) -> Result<(), Failure> {
        match store.is_none() && self.policy.asks() {
            true => Err(Failure::usage(format!(
                "{}: a person is to decide over calls, which wait in the store of the conversation: \
                 there is none without --store",
                self.policy_name
            ))),
            false => Ok(()),
        }
    }

    /// Reads the files.
    pub fn read(
        tools: Option<&Path>,
        policy: Option<&Path>,
        books: &BookArguments,
    ) -> Result<Self, Failure> {
        let tools = tools.map(load_tools).transpose().map_err(Failure::usage)?;
        let (policy_name, policy) = match policy {
            Some(path) => {
                (path.display().to_string(), PolicyFile::load(path).map_err(Failure::usage)?)
            }
            None => {
                let policy = PolicyFile::parse("built-in policy", BUILT_IN_POLICY);
                ("built-in policy".to_owned(), policy.map_err(Failure::failed)?)
            }
        };
        Ok(Self { tools, policy, policy_name, books: books.clone() })
    }
}

/// Tools, and where their timers ring.
pub struct Toolbox {
    pub registry: Arc<ToolRegistry>,
    pub timers: Timers,
    pub rings: Rings,
}

impl Toolbox {
    /// The built-in tools and those of the user's file, and the policy over them.
    pub fn new(
        equipment: Equipment,
        memory: Arc<dyn Memory>,
    ) -> Result<(Self, PolicyHost), Failure> {
        let Equipment { tools, policy, policy_name, books } = equipment;
        let toolbox = Self::with_tools(tools.as_ref(), memory)?;
        let definitions = toolbox.registry.definitions();
        let tools = definitions.iter().map(|definition| &*definition.name);
        for pattern in policy.unused_patterns(tools) {
            eprintln!("antiphon: {policy_name}: no tool fits the rule for {pattern:?}");
        }
        let policy = policy.for_tools(&definitions).map_err(Failure::usage)?;
        Ok((toolbox, host(&policy, &policy_name, &books)?))
    }

    /// The built-in tools and those of the user's file.
    pub fn with_tools(file: Option<&ToolFile>, memory: Arc<dyn Memory>) -> Result<Self, Failure> {
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
        if let Some(file) = file {
            for (index, tool) in file.tools.iter().enumerate() {
                let fail = |reason: String| Failure::usage(file.error_at(index, reason));
                PhraseMatcher::check(&tool.definition())
                    .map_err(|error| fail(format!("tool {:?}: {error}", tool.name())))?;
                registry.register(tool.clone()).map_err(|error| fail(error.to_string()))?;
            }
        }
        Ok(Self { registry, timers, rings })
    }
}

/// The policy with its books.
pub fn host(policy: &PolicyFile, name: &str, books: &BookArguments) -> Result<PolicyHost, Failure> {
    let mut host = policy.host();
    if let Some(path) = &books.limits {
        host = host.limit_store(SqliteLimits::open(path).map_err(Failure::usage)?);
    } else if !policy.limits().is_empty() {
        eprintln!(
            "antiphon: {name}: what is used of its limits is forgotten when the program ends"
        );
    }
    match &books.receipts {
        Some(path) => {
            host = host.receipts(ReceiptLog::open(path).map_err(Failure::usage)?);
            for tools in policy.durable() {
                host = host.durable(tools);
            }
        }
        None if policy.durable().next().is_some() => {
            let reason = "its receipts are to be durable, and there are none without --receipts";
            return Err(Failure::usage(format!("{name}: {reason}")));
        }
        None => {}
    }
    host.build().map_err(Failure::usage)
}
