//! What an invocation ends with.

use std::{error::Error, fmt};

use serde_json::Value;

use super::start::encode_state;
use crate::{RuntimeError, protocol::AgentOutput, session::State, state::AgentFinishReason};

/// Why an invocation has no plain output: it never began, or its caller stopped it.
#[derive(Clone)]
pub struct RunError<S = Value> {
    /// What happened.
    pub error: RuntimeError,
    /// Where to go on from, where the caller stopped a run that had begun.
    pub output: Option<Box<AgentOutput<S>>>,
}

impl<S> RunError<S> {
    pub(super) fn new(error: RuntimeError) -> Self {
        Self { error, output: None }
    }
}

impl<S> fmt::Display for RunError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S> fmt::Debug for RunError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot_id = self.output.as_ref().map(|output| &output.snapshot_id);
        f.debug_struct("RunError")
            .field("error", &self.error)
            .field("snapshot_id", &snapshot_id)
            .finish_non_exhaustive()
    }
}

impl<S> Error for RunError<S> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl<S> From<RuntimeError> for RunError<S> {
    fn from(error: RuntimeError) -> Self {
        Self::new(error)
    }
}

impl<S> From<RunError<S>> for RuntimeError {
    fn from(error: RunError<S>) -> Self {
        error.error
    }
}

/// How an invocation ended.
pub(super) type Outcome<S> = Result<AgentOutput<S>, RunError<S>>;

/// The output with its custom state as JSON. A state that is none fails the invocation.
pub(super) fn erase_output<S: State>(mut output: AgentOutput<S>) -> AgentOutput {
    let state = output.state.take().map(encode_state).transpose();
    let mut erased = AgentOutput {
        session_id: output.session_id,
        message: output.message,
        artifacts: output.artifacts,
        finish_reason: output.finish_reason,
        snapshot_id: output.snapshot_id,
        state: None,
        error: output.error,
    };
    match state {
        Ok(state) => erased.state = state,
        Err(error) => {
            (erased.message, erased.artifacts) = (None, Vec::new());
            erased.finish_reason = Some(AgentFinishReason::Failed);
            erased.error = Some(error.to_details());
        }
    }
    erased
}

/// [`erase_output`] of either outcome.
pub(super) fn erase_outcome<S: State>(outcome: Outcome<S>) -> Outcome<Value> {
    match outcome {
        Ok(output) => Ok(erase_output(output)),
        Err(RunError { error, output }) => {
            Err(RunError { error, output: output.map(|output| Box::new(erase_output(*output))) })
        }
    }
}
