//! Errors of tools and of the registry.

use std::sync::Arc;

use antiphon_types::Status;
use serde_json::Value;

/// Why a tool could not do its work.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ToolError {
    /// What the model is told, unless the error is private.
    pub message: String,
    /// The canonical code.
    pub status: Status,
    /// The model gets a fixed text instead of `message`.
    pub private: bool,
    /// What the tool had to give is more than it may give: the call ends as
    /// [`Outcome::OutputTooLarge`](crate::Outcome::OutputTooLarge).
    pub too_large: bool,
    /// The tool is sure that nothing was done: see [`ToolError::not_done`].
    pub not_done: bool,
    /// The call did not fail, it waits for somebody: an object that tells them why, or `true`. It
    /// ends as [`Outcome::Paused`](crate::Outcome::Paused); see
    /// [`interrupt`](crate::tool::interrupt).
    pub interrupt: Option<Value>,
}

impl ToolError {
    /// An error whose text the model may read.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            status: Status::Unknown,
            private: false,
            too_large: false,
            not_done: false,
            interrupt: None,
        }
    }

    /// An error whose text stays with the host.
    pub fn private(message: impl Into<String>) -> Self {
        Self { private: true, ..Self::new(message) }
    }

    /// The output is too large, as the tool itself noticed before it had all of it.
    pub fn output_too_large(message: impl Into<String>) -> Self {
        Self { too_large: true, status: Status::ResourceExhausted, ..Self::new(message) }
    }

    /// The call waits for somebody.
    pub(crate) fn paused(interrupt: Value) -> Self {
        Self { interrupt: Some(interrupt), ..Self::new("the tool waits for an answer") }
    }

    /// The tool is sure that nothing was done, so that what the call took from limits is free again.
    /// Without this an error means that nobody can tell: what was paid may have been paid although
    /// the answer got lost.
    pub fn not_done(mut self) -> Self {
        self.not_done = true;
        self
    }

    /// Sets the canonical code.
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// The canonical code.
    pub fn status(&self) -> Status {
        self.status
    }
}

/// Why a tool could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The tool has no name.
    #[error("a tool needs a name")]
    NoName,
    /// Another tool has the name.
    #[error("a tool named {0:?} is registered already")]
    Duplicate(Arc<str>),
    /// No tool has the name.
    #[error("there is no tool {0:?}")]
    Unknown(Arc<str>),
    /// The input schema is not a JSON Schema.
    #[error("the input schema of tool {name:?} is invalid: {reason}")]
    InvalidSchema {
        /// The tool.
        name: Arc<str>,
        /// What is wrong with its schema.
        reason: String,
    },
}

impl RegistryError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        match self {
            Self::Duplicate(_) => Status::AlreadyExists,
            Self::Unknown(_) => Status::NotFound,
            Self::NoName | Self::InvalidSchema { .. } => Status::InvalidArgument,
        }
    }
}
