//! Ready-made tools, and tools from a file (feature `tools`).
//!
//! Each has an English [`ToolSpeech`](antiphon_types::ToolSpeech), so that the offline matcher
//! reaches it by voice; language models read its description and schema.

mod clock;
mod command;
mod money;
mod notes;
mod timers;
mod tool_file;
mod units;

pub use crate::json_file::FileError;
pub use clock::{clock, today};
pub use command::{CommandSpec, CommandTool};
pub use money::{Transfer, Transfers};
pub use notes::Notes;
pub use timers::{Ring, Rings, Timers, chime};
pub use tool_file::{ToolFile, load_tools};
pub use units::convert_units;

/// The arguments of a built-in tool, read into a type. The executor has checked them against the
/// schema before, so this fails only where schema and type disagree.
fn read_args<T: serde::de::DeserializeOwned>(
    args: antiphon_types::JsonObject,
) -> Result<T, antiphon_agent::ToolError> {
    serde_json::from_value(serde_json::Value::Object(args))
        .map_err(|error| antiphon_agent::ToolError::new(format!("wrong arguments: {error}")))
}

/// An output from `json!({...})`.
fn output(value: serde_json::Value) -> antiphon_types::JsonObject {
    match value {
        serde_json::Value::Object(object) => object,
        other => antiphon_types::JsonObject::from_iter([("result".to_owned(), other)]),
    }
}
