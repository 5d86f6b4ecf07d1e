//! JSON Schemas: of arguments, compiled once, and of types.

use antiphon_types::{JsonObject, ToolDefinition};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use crate::{RegistryError, json::serialized_len, text::shorten};

/// How many violations a model is told of at once.
const MAX_VIOLATIONS: usize = 3;
/// The longest description of one violation, in bytes; it may quote the arguments.
const MAX_VIOLATION_BYTES: usize = 240;
/// Of larger arguments only the first violation is looked for: they can break a schema in as many
/// places as they have elements.
const LARGE_ARGUMENTS_BYTES: usize = 16 * 1024;

/// A compiled schema of a tool's arguments.
pub(crate) struct Schema(jsonschema::Validator);

impl Schema {
    /// The schema of `definition`, if it has one. References to other documents are refused: the
    /// validator neither reads files nor the network.
    pub(crate) fn of(definition: &ToolDefinition) -> Result<Option<Self>, RegistryError> {
        let Some(schema) = &definition.input_schema else {
            return Ok(None);
        };
        let invalid = |reason: String| RegistryError::InvalidSchema {
            name: definition.name.clone(),
            reason: shorten(&reason, 1024),
        };
        let Value::Object(keywords) = &**schema else {
            return Err(invalid("it is not a JSON object".into()));
        };
        if !describes_objects(keywords) {
            return Err(invalid("arguments are an object, but its type is another".into()));
        }
        match jsonschema::validator_for(schema) {
            Ok(validator) => Ok(Some(Self(validator))),
            Err(error) => Err(invalid(describe(&error))),
        }
    }

    /// Refuses arguments that break the schema, in words for the model. Never changes them.
    pub(crate) fn check(&self, args: &JsonObject) -> Result<(), String> {
        let instance = Value::Object(args.clone());
        if self.0.is_valid(&instance) {
            return Ok(());
        }
        if serialized_len(&instance) > LARGE_ARGUMENTS_BYTES {
            return self.0.validate(&instance).map_err(|error| describe(&error));
        }
        let violations: Vec<_> =
            self.0.iter_errors(&instance).take(MAX_VIOLATIONS).map(|e| describe(&e)).collect();
        Err(violations.join("; "))
    }
}

/// The schema of what `T` is read from, in one piece.
pub(crate) fn of_input<T: JsonSchema>() -> Value {
    inlined::<T>(SchemaSettings::draft2020_12())
}

/// The schema of what `T` is written as, in one piece.
pub(crate) fn of_output<T: JsonSchema>() -> Value {
    inlined::<T>(SchemaSettings::draft2020_12().for_serialize())
}

/// Models and validators get no references, but for types that contain themselves.
fn inlined<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn describes_objects(keywords: &JsonObject) -> bool {
    match keywords.get("type") {
        None => true,
        Some(Value::String(one)) => one == "object",
        Some(Value::Array(several)) => several.iter().any(|one| one == "object"),
        // Not a type at all: the schema compiler says so in better words.
        Some(_) => true,
    }
}

fn describe(error: &jsonschema::ValidationError<'_>) -> String {
    let path = error.instance_path().as_str();
    let text = if path.is_empty() { error.to_string() } else { format!("at {path}: {error}") };
    shorten(&text, MAX_VIOLATION_BYTES)
}
