//! JSON Patch (RFC 6902) for the custom state that agents stream.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The operations of a patch, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonPatch(pub Vec<JsonPatchOperation>);

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JsonPatchOperation {
    /// What it does.
    pub op: JsonPatchOp,
    /// Where: a JSON Pointer (RFC 6901); `""` is the whole document.
    pub path: String,
    /// From where, for `move` and `copy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The operand of `add`, `replace` and `test`; `null` is one.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::wire_object::nullable"
    )]
    pub value: Option<Value>,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JsonPatchOp {
    /// Puts a value where none was, or into an array.
    Add,
    /// Takes a value out.
    Remove,
    /// Puts a value in the place of another.
    Replace,
    /// Takes a value from one place to another.
    Move,
    /// Puts a copy of a value in another place.
    Copy,
    /// Errs where the value is another.
    Test,
}
