//! Agents: conversations whose turns become snapshots, the tools and models they are made of, and
//! the host's policy over what a model may do. Complete without voice.
//!
//! - An [`Agent`] is a function over the turns of a conversation ([`Agent::custom`]) or a prompt
//!   ([`PromptAgent`]); its [`Session`] has messages, a custom state of the host's type, and
//!   artifacts.
//! - With a [`SessionStore`] each turn is a [`SessionSnapshot`], from which a conversation is
//!   resumed or forked and in which work in the background ([`DetachedTask`]) leaves its result;
//!   without one the state travels with the calls.
//! - [`AgentApi`] and [`AgentChat`] are the client's side; a [`Registry`] finds agents by name.
//! - [`generate()`] and [`generate_stream()`] have a [`Model`] and its tools answer, without an
//!   agent; a [`Prompt`] is what a model is told, as templates.
//! - A [`Tool`] is a closure over JSON ([`FuncTool`]) or over types ([`TypedTool`]), and may pause
//!   until somebody answers ([`InterruptibleTool`]).
//! - [`Memory`] keeps what is to outlive a conversation.
//! - [`InMemorySessionStore`], [`FileSessionStore`] and, with the feature `sqlite`,
//!   `SqliteSessionStore` are stores.
//!
//! Whoever knows Genkit's agents finds their names in [`names`].
//!
//! # Tools and policy
//!
//! A tool call passes through [`ToolExecutor::admit`] (parse, look up, authorise, validate), which
//! has no effect, and then, if admitted, through [`ToolExecutor::run`], which runs it with every
//! bound it has. There is no other way to run a tool.
//!
//! ```
//! use std::sync::Arc;
//!
//! use antiphon_agent::{
//!     Admission, CallContext, Denial, FuncTool, InMemory, RunContext, ToolExecutor, ToolRegistry,
//!     Verdict,
//!     types::{ToolArguments, ToolCall, ToolCallRequest},
//! };
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let registry = Arc::new(ToolRegistry::new());
//! let schema = json!({ "type": "object", "properties": { "amount": { "type": "number" } } });
//! registry.must_register(FuncTool::new("pay", "Pays.", schema, |_cx, args| async { Ok(args) }));
//!
//! let policy = |_: &CallContext, call: &ToolCall| {
//!     match call.args.get("amount").and_then(|amount| amount.as_f64()) {
//!         Some(amount) if amount <= 100.0 => Verdict::Allow,
//!         _ => Verdict::Deny(Denial::told("at most 100")),
//!     }
//! };
//! let executor = ToolExecutor::new(registry, Some(Arc::new(policy)));
//!
//! let memory = Arc::new(InMemory::new());
//! let cx = CallContext::new("session", 1, memory.clone());
//! let request = ToolCallRequest {
//!     id: "call_1".into(),
//!     name: "pay".into(),
//!     arguments: ToolArguments::Json(r#"{"amount": 5}"#.into()),
//! };
//! let Admission::Run(call) = executor.admit(&cx, request) else { panic!("denied") };
//! let done = executor.run(call, RunContext::new("session", 1, memory, Default::default())).await;
//! assert_eq!(done.response.response["amount"], 5);
//! # }
//! ```

pub mod agent;
pub mod approval;
mod authorize;
pub mod chat;
#[cfg(feature = "chat-models")]
pub mod chat_model;
mod context;
mod error;
mod executor;
pub mod generate;
mod id;
mod json;
pub mod ledger;
pub mod memory;
pub mod message;
pub mod model;
#[doc = include_str!("../docs/names.md")]
pub mod names {}
pub mod patch;
pub mod prompt;
pub mod protocol;
mod read_back;
mod registry;
mod runtime_error;
mod schema;
pub mod session;
pub mod state;
pub mod store;
mod task;
mod text;
pub mod tool;
mod wire_object;
pub mod witness;

pub use agent::{
    Agent, AgentAction, AgentBuilder, AgentConnection, AgentFunc, AgentHandle, CompanionAction,
    Invocation, InvocationStream, Invoke, OnStoreStall, OpenTurn, Registry, Responder, RunError,
    RuntimeLimits, SealedTurn, SessionRunner, Settled, TurnFailure, Voice, validate_input,
    validate_resume_against_history,
};
pub use antiphon_types as types;
pub use authorize::{Authorizer, CallContext, Denial, Judgement, Verdict};
pub use chat::{
    AgentApi, AgentChat, AgentChunk, AgentError, AgentInterrupt, AgentResponse, AgentTransport,
    AgentTurn, SnapshotLookup, TurnRun,
};
pub use context::{Caller, InvocationContext, VerifiedLevel};
pub use error::{RegistryError, ToolError};
pub use executor::{
    Admission, AdmittedCall, Executed, ExecutorLimits, Outcome, Parking, Refused, RunContext,
    ToolExecutor, current_session, cut_output,
};
pub use generate::{
    Generate, GenerateError, GenerateResponse, GenerateStream, ToolErrors, generate,
    generate_stream,
};
#[cfg(feature = "sqlite")]
pub use memory::SqliteMemory;
pub use memory::{FileMemory, InMemory, Memory, MemoryError, ScopedMemory};
pub use message::{Message, Messages, ModelResponseChunk, Part, PartKind, Role};
pub use model::{
    Model, ModelChunk, ModelError, ModelFinish, ModelReply, ModelRequest, ModelStream, ToolChoice,
};
pub use patch::{JsonPatch, JsonPatchOp, JsonPatchOperation, PatchError, apply_patch, diff};
pub use prompt::{Prompt, PromptAgent, PromptBuilder, RenderedPrompt};
pub use protocol::{
    AgentInit, AgentInput, AgentMetadata, AgentOutput, AgentRef, AgentResult, AgentStateManagement,
    AgentStreamChunk, ToolResume, TurnContext, TurnEnd, TurnResult,
};
pub use registry::ToolRegistry;
pub use runtime_error::RuntimeError;
pub use session::{ArtifactStore, Session, SessionAccess, State};
pub use state::{
    AgentErrorDetails, AgentFinishReason, Artifact, SessionSnapshot, SessionState, SnapshotStatus,
};
#[cfg(feature = "sqlite")]
pub use store::sqlite::{Durability, SqliteOptions, SqliteSessionStore};
pub use store::{
    FileSessionStore, InMemorySessionStore, SessionStore, SessionSummary, SnapshotMetadataReader,
    SnapshotReader, SnapshotSubscriber, SnapshotSummary, SnapshotUpdate, SnapshotWriter,
    StoreError, StoreErrorKind,
};
pub use task::{DetachedTask, SnapshotAccess};
pub use tool::{
    Effects, FuncTool, InterruptibleTool, OnInterruption, Tool, ToolContext, ToolLimits, TypedTool,
};
pub use witness::{DecisionPoint, RateLimit, Receipt, Witness};
