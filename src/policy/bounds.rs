//! Bounds of arguments.

use std::fmt;

use antiphon_agent::{Denial, Verdict};
use antiphon_types::ToolCall;
use serde_json::Value;

use super::{Policy, PolicyContext, PolicyError, pattern::ToolPattern};

/// Denies calls of some tools whose arguments do not fit a JSON Schema.
pub struct ArgumentBounds {
    id: String,
    tools: ToolPattern,
    schema: jsonschema::Validator,
    told: bool,
}

impl ArgumentBounds {
    /// The arguments of these tools have to fit `schema`. As in any JSON Schema, `properties` says
    /// nothing about arguments that are missing or of another type: name `required` and `type`.
    pub fn new(id: &str, tools: &str, schema: &Value) -> Result<Self, PolicyError> {
        if !schema.is_object() {
            return Err(PolicyError::of(id, "the schema has to be an object"));
        }
        let schema = jsonschema::validator_for(schema)
            .map_err(|error| PolicyError::of(id, format!("no JSON Schema: {error}")))?;
        Ok(Self { id: id.to_owned(), tools: super::pattern_of(id, tools)?, schema, told: false })
    }

    /// The model is told what is wrong, and so where the bounds are.
    pub fn tell_model(mut self) -> Self {
        self.told = true;
        self
    }
}

impl Policy for ArgumentBounds {
    fn id(&self) -> &str {
        &self.id
    }

    fn reads_spent(&self) -> bool {
        false
    }

    fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
        if !self.tools.fits(&call.name) {
            return Verdict::Allow;
        }
        let args = Value::Object(call.args.clone());
        let Err(error) = self.schema.validate(&args) else { return Verdict::Allow };
        // Where, and not what: the value may be the caller's secret.
        let place = error.instance_path().to_string();
        let reason = match place.is_empty() {
            true => "the arguments are out of bounds".to_owned(),
            false => format!("the argument {place} is out of bounds"),
        };
        Verdict::Deny(if self.told { Denial::told(reason) } else { Denial::private(reason) })
    }
}

impl fmt::Debug for ArgumentBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgumentBounds")
            .field("id", &self.id)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}
