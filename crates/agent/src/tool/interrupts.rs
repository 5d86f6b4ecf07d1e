//! What a tool that pauses and its caller say to each other, where the caller does not have the
//! tool at hand.

use antiphon_types::Status;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    RuntimeError, ToolError,
    message::{Part, PartKind, ToolRequest},
};

/// The end of a call that pauses until somebody answers. `data` tells them why: an object, or `()`
/// where there is nothing to tell. With anything else the call fails.
///
/// ```
/// use antiphon_agent::{ToolError, tool::interrupt};
/// use serde_json::json;
///
/// fn pay(amount: f64) -> Result<String, ToolError> {
///     if amount > 100.0 {
///         return Err(interrupt(json!({ "reason": "large_amount", "amount": amount })));
///     }
///     Ok("paid".into())
/// }
/// ```
pub fn interrupt(data: impl Serialize) -> ToolError {
    match object_or_true(data) {
        Ok(data) => ToolError::paused(data),
        Err(what) => {
            ToolError::private(format!("the data of an interrupt has to be an object, not {what}"))
                .with_status(Status::InvalidArgument)
        }
    }
}

/// What the tool behind an interrupted tool request told; `None` where `part` is no such, and where
/// its data is no `T`.
pub fn interrupt_as<T: DeserializeOwned>(part: &Part) -> Option<T> {
    if !part.is_interrupt() {
        return None;
    }
    T::deserialize(part.metadata_entry("interrupt")?).ok()
}

/// The part that has an interrupted call run again, with `data` as the answer: an object, or `()`
/// where going on is answer enough. Errs with `INVALID_ARGUMENT` for any other data, and where `part`
/// is no interrupted tool request.
pub fn resume(part: &Part, data: impl Serialize) -> Result<Part, RuntimeError> {
    interrupted(part)?;
    let data = object_or_true(data).map_err(|what| {
        RuntimeError::InvalidArgument(format!(
            "the data of a resume has to be an object, not {what}"
        ))
    })?;
    let mut part = part.clone();
    part.metadata.get_or_insert_default().remove("interrupt");
    Ok(part.with_metadata_entry("resumed", data))
}

/// The part that answers an interrupted call in the place of its tool, which does not run again.
/// Errs with `INVALID_ARGUMENT` where `part` is no interrupted tool request or `output` no JSON.
pub fn respond(part: &Part, output: impl Serialize) -> Result<Part, RuntimeError> {
    let request = interrupted(part)?;
    let output = serde_json::to_value(output).map_err(|error| {
        RuntimeError::InvalidArgument(format!("the output of a response is no JSON: {error}"))
    })?;
    Ok(Part::tool_response(request.name.clone(), request.id.clone(), output)
        .with_metadata_entry("interruptResponse", true))
}

/// A restart with another input than the model's, which the tool still finds as
/// [`ToolContext::original_input`](super::ToolContext::original_input). Agents refuse it: it is for
/// [`generate`](crate::generate::generate) by hand. Errs with `INVALID_ARGUMENT` where `restart` is
/// no tool request or `input` no JSON.
pub fn replace_input(mut restart: Part, input: impl Serialize) -> Result<Part, RuntimeError> {
    let input = serde_json::to_value(input).map_err(|error| {
        RuntimeError::InvalidArgument(format!("the input of a restart is no JSON: {error}"))
    })?;
    let PartKind::ToolRequest(request) = &mut restart.kind else {
        return Err(RuntimeError::InvalidArgument("a restart is a tool request".into()));
    };
    let original = request.input.replace(input).unwrap_or(Value::Null);
    // Replaced twice, the first is still the model's.
    restart.metadata.get_or_insert_default().entry("replacedInput").or_insert(original);
    Ok(restart)
}

/// The request, where its tool paused.
pub(super) fn interrupted(part: &Part) -> Result<&ToolRequest, RuntimeError> {
    part.as_tool_request().filter(|_| part.is_interrupt()).ok_or_else(|| {
        RuntimeError::InvalidArgument("the part is not the tool request of an interrupt".into())
    })
}

/// The value of metadata that is an object or nothing but there; else what it is instead.
fn object_or_true(data: impl Serialize) -> Result<Value, String> {
    match serde_json::to_value(data) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(Value::Null | Value::Bool(true)) => Ok(Value::Bool(true)),
        Ok(other) => Err(crate::text::shorten(&other.to_string(), 128)),
        Err(error) => Err(format!("something that is no JSON: {error}")),
    }
}
