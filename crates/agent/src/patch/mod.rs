//! JSON Patch (RFC 6902) for the custom state that agents stream.
//!
//! [`diff`] writes `add`, `remove` and `replace` only. [`apply_patch`] understands all operations
//! and is lenient where a stream would break otherwise; its documentation says where.

mod apply;
mod diff;
mod pointer;

use antiphon_types::Status;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{apply::apply_patch, diff::diff};
use crate::RuntimeError;

/// The operations of a patch, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonPatch(pub Vec<JsonPatchOperation>);

impl JsonPatch {
    /// The patch that makes any document this one.
    pub fn whole(document: Value) -> Self {
        Self(vec![JsonPatchOperation::replace("", document)])
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JsonPatchOperation {
    /// What it does.
    pub op: JsonPatchOp,
    /// Where: a JSON Pointer (RFC 6901); `""` is the whole document.
    pub path: String,
    /// From where, for `move` and `copy`; none is the whole document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The operand of `add`, `replace` and `test`; none is `null`, which is one.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::wire_object::nullable"
    )]
    pub value: Option<Value>,
}

impl JsonPatchOperation {
    /// Puts `value` where none was, or into an array.
    pub fn add(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(JsonPatchOp::Add, path, None, Some(value.into()))
    }

    /// Takes a value out.
    pub fn remove(path: impl Into<String>) -> Self {
        Self::new(JsonPatchOp::Remove, path, None, None)
    }

    /// Puts `value` in the place of another.
    pub fn replace(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(JsonPatchOp::Replace, path, None, Some(value.into()))
    }

    /// Takes a value from one place to another.
    pub fn move_from(from: impl Into<String>, path: impl Into<String>) -> Self {
        Self::new(JsonPatchOp::Move, path, Some(from.into()), None)
    }

    /// Puts a copy of a value in another place.
    pub fn copy_from(from: impl Into<String>, path: impl Into<String>) -> Self {
        Self::new(JsonPatchOp::Copy, path, Some(from.into()), None)
    }

    /// Errs where the value is not `value`.
    pub fn test(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(JsonPatchOp::Test, path, None, Some(value.into()))
    }

    fn new(
        op: JsonPatchOp,
        path: impl Into<String>,
        from: Option<String>,
        value: Option<Value>,
    ) -> Self {
        Self { op, path: path.into(), from, value }
    }
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

/// Why a patch could not be applied. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// A path that is not empty must begin with `/`.
    #[error("{0:?} is no JSON Pointer: it must be empty or begin with \"/\"")]
    InvalidPointer(String),
    /// A `test` found another value, or none.
    #[error("the test at {0:?} found another value")]
    TestFailed(String),
    /// What it would make is nested more deeply than JSON is read.
    #[error("the patch nests values more than {} deep", apply::MAX_DEPTH)]
    TooDeep,
    /// Its copies would make the document very large.
    #[error("the patch copies more than {} values", apply::MAX_COPIED)]
    TooLarge,
}

impl PatchError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        Status::InvalidArgument
    }
}

impl From<PatchError> for RuntimeError {
    fn from(error: PatchError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}
