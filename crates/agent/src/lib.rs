//! Tools and the one way they run, the host's policy over them, memory, and language models.
//!
//! A tool call passes through [`ToolExecutor::admit`] (parse, look up, authorise, validate), which
//! has no effect, and then, if admitted, through [`ToolExecutor::run`], which runs it with every
//! bound it has. There is no other way to run a tool.

mod authorize;
mod error;
mod executor;
mod json;
pub mod memory;
mod message;
pub mod model;
mod read_back;
mod registry;
mod schema;
mod text;
mod tool;

pub use antiphon_types as types;
pub use authorize::{Authorizer, CallContext, Denial, Verdict};
pub use error::{RegistryError, ToolError};
pub use executor::{
    Admission, AdmittedCall, Executed, ExecutorLimits, Outcome, Refused, RunContext, ToolExecutor,
    current_session,
};
pub use memory::{FileMemory, InMemory, Memory, MemoryError, ScopedMemory};
pub use message::{Message, Part, Role};
pub use model::{
    Model, ModelChunk, ModelError, ModelFinish, ModelReply, ModelRequest, ModelStream,
};
pub use registry::ToolRegistry;
pub use tool::{FuncTool, Tool, ToolContext, ToolLimits};
