//! A tool request that a turn paused on.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    RuntimeError,
    message::{Part, PartKind, ToolRequest},
};

/// A tool request that a turn paused on. [`respond`](Self::respond) and [`restart`](Self::restart)
/// make the part for a [`ToolResume`](crate::ToolResume); they send nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentInterrupt {
    part: Part,
    request: ToolRequest,
}

impl AgentInterrupt {
    /// The interrupt that a tool request is; `None` for other parts.
    pub fn new(part: &Part) -> Option<Self> {
        let request = part.as_tool_request().filter(|_| part.is_interrupt())?.clone();
        Some(Self { part: part.clone(), request })
    }

    /// The interrupts among `parts`.
    pub(super) fn all(parts: &[Part]) -> Vec<Self> {
        parts.iter().filter_map(Self::new).collect()
    }

    /// The tool.
    pub fn name(&self) -> &Arc<str> {
        &self.request.name
    }

    /// The id of the call, `ref` on the wire.
    pub fn id(&self) -> Option<&Arc<str>> {
        self.request.id.as_ref()
    }

    /// The arguments; `null` where there are none.
    pub fn input(&self) -> &Value {
        self.request.input.as_ref().unwrap_or(&Value::Null)
    }

    /// The arguments as the type that the tool has for them.
    pub fn input_as<T: DeserializeOwned>(&self) -> Result<T, RuntimeError> {
        T::deserialize(self.input()).map_err(|error| {
            RuntimeError::InvalidArgument(format!(
                "the arguments of {:?} are of another type: {error}",
                self.request.name
            ))
        })
    }

    /// What the tool said when it paused: an object, or `true`.
    pub fn reason(&self) -> &Value {
        self.part.metadata_entry("interrupt").unwrap_or(&Value::Null)
    }

    /// The tool request, as it came.
    pub fn raw(&self) -> &Part {
        &self.part
    }

    /// An output in the place of the tool's.
    pub fn respond(&self, output: impl Into<Value>) -> Part {
        Part::tool_response(self.request.name.clone(), self.request.id.clone(), output)
    }

    /// The same call again; its tool learns that it was resumed.
    pub fn restart(&self) -> Part {
        self.restart_with(true)
    }

    /// The same call again, with something for its tool to know: an object. What says nothing,
    /// `null` or `false`, is `true`.
    pub fn restart_with(&self, resumed: impl Into<Value>) -> Part {
        let resumed = match resumed.into() {
            Value::Null | Value::Bool(false) => Value::Bool(true),
            resumed => resumed,
        };
        let mut part = Part::new(PartKind::ToolRequest(self.request.clone()));
        part.metadata = self.part.metadata.clone();
        if let Some(metadata) = &mut part.metadata {
            metadata.retain(|key, _| key != "interrupt");
        }
        part.with_metadata_entry("resumed", resumed)
    }
}
