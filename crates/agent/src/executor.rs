//! The one way a tool runs.

use std::sync::Arc;

use antiphon_types::{JsonObject, ToolCall, ToolCallRequest, ToolResponse};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{Authorizer, CallContext, Memory, Tool, ToolRegistry};

/// The answer to [`ToolExecutor::admit`].
#[non_exhaustive]
pub enum Admission {
    /// It may run, once.
    Run(AdmittedCall),
    /// It is authorised, but the host answers it itself: its name is declared without a tool.
    Host(ToolCall),
    /// It does not run; this is its one output.
    Refused(Refused),
    /// The user is to be asked. Admit `request` again with a confirmed context.
    Confirm {
        /// The words, as a question.
        read_back: String,
        /// The call as it came.
        request: ToolCallRequest,
    },
    /// A call with this id was admitted or refused before; that one yields the output.
    Duplicate,
}

/// A call that does not run.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The one output.
    pub response: ToolResponse,
    /// Why, as a kind.
    pub outcome: Outcome,
    /// Why, for the host's records; may say more than the output.
    pub reason: String,
    /// The arguments, where they could be parsed.
    pub args: Option<JsonObject>,
}

/// A call that passed policy and schema. Nobody else can make or copy one.
pub struct AdmittedCall {
    call: ToolCall,
    tool: Arc<dyn Tool>,
}

impl AdmittedCall {
    /// The call with the arguments that the policy approved.
    pub fn call(&self) -> &ToolCall {
        &self.call
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The tool gave a result.
    Success,
    /// The tool gave an error.
    Error,
    /// The policy refused it, erred, panicked or was late.
    Denied,
    /// The user did not confirm it.
    NotConfirmed,
    /// No tool has the name.
    UnknownTool,
    /// The arguments are no JSON object, or break the schema.
    InvalidArguments,
    /// The tool panicked.
    Panicked,
    /// The tool took too long.
    TimedOut,
    /// The model or the host took the call back.
    Cancelled,
    /// The reply that held it was interrupted before the call started.
    Interrupted,
    /// The output was larger than allowed.
    OutputTooLarge,
}

/// What [`ToolExecutor::run`] needs beside the call.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunContext {
    /// The session.
    pub session_id: Arc<str>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// The session's memory; keys are prefixed with the session's id.
    pub memory: Arc<dyn Memory>,
    /// Cancels the call.
    pub cancelled: CancellationToken,
}

/// A call that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    /// The one output.
    pub response: ToolResponse,
    /// How it ended.
    pub outcome: Outcome,
    /// The tool's body goes on although the call is over: it blocks and ignores cancellation.
    pub detached: bool,
    /// What happened, for the host's records; may say more than the output.
    pub detail: Option<String>,
}

/// Bounds over all calls.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ExecutorLimits {
    /// Calls that run at the same time. Default: 16.
    pub max_concurrent: usize,
    /// Bytes of JSON text that arguments may have. Default: 1 MiB.
    pub max_argument_bytes: usize,
}

/// Admits and runs the calls of one session.
pub struct ToolExecutor {
    registry: Arc<ToolRegistry>,
    authorizer: Option<Arc<dyn Authorizer>>,
}

#[allow(unused)] // signatures for the dependants
impl ToolExecutor {
    /// An executor over `registry`; without an authoriser every call is allowed.
    pub fn new(registry: Arc<ToolRegistry>, authorizer: Option<Arc<dyn Authorizer>>) -> Self {
        Self { registry, authorizer }
    }

    /// Names that the host answers itself.
    pub fn host_tools(self, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        self
    }

    /// Sets the bounds.
    pub fn limits(self, limits: ExecutorLimits) -> Self {
        self
    }

    /// No effect: parse, duplicate id, look up, verdict, schema of the arguments it returned.
    pub fn admit(&self, cx: &CallContext, request: ToolCallRequest) -> Admission {
        Admission::Duplicate
    }

    /// Runs an admitted call: catches, bounds, yields exactly one output.
    pub async fn run(&self, call: AdmittedCall, cx: RunContext) -> Executed {
        unreachable!()
    }
}
