//! Chats with agents of the same process.

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use tokio::sync::oneshot;

use super::{AgentApi, AgentTransport, TurnRun};
use crate::{
    Agent, AgentConnection, AgentHandle, InvocationContext, RunError, RuntimeError,
    protocol::{AgentInit, AgentInput, AgentOutput, AgentStateManagement, AgentStreamChunk},
    session::State,
    state::AgentFinishReason,
};

impl AgentTransport for AgentHandle {
    fn state_management(&self) -> Option<AgentStateManagement> {
        Some(self.metadata().state_management)
    }

    fn run_turn(&self, cx: &InvocationContext, input: AgentInput, init: AgentInit) -> TurnRun {
        let (tell, told) = oneshot::channel();
        let turn = Turn::Begin(begin(self.clone(), cx.clone(), input, init).boxed());
        let lost = |_| RuntimeError::Cancelled("the turn was left before its end".to_owned());
        TurnRun {
            stream: turn.stream(tell),
            output: async move { told.await.map_err(lost).unwrap_or_else(failed) }.boxed(),
        }
    }
}

impl<S: State> Agent<S> {
    /// The agent as its clients see it: for conversations that keep what travels from turn to turn.
    pub fn api(&self) -> AgentApi<S> {
        AgentApi::new(self.handle()).typed()
    }
}

impl AgentHandle {
    /// The agent as its clients see it: for conversations that keep what travels from turn to turn.
    pub fn api(&self) -> AgentApi {
        AgentApi::new(self.clone())
    }
}

/// A turn of an agent of the same process.
enum Turn {
    Begin(BoxFuture<'static, Result<AgentConnection, RuntimeError>>),
    Running(AgentConnection),
}

impl Turn {
    /// What streams. At its end the output is told.
    fn stream(self, tell: oneshot::Sender<AgentOutput>) -> BoxStream<'static, AgentStreamChunk> {
        let next = |state: Option<(Self, oneshot::Sender<AgentOutput>)>| async {
            let (turn, tell) = state?;
            let connection = match turn {
                Self::Begin(begin) => begin.await,
                Self::Running(connection) => Ok(connection),
            };
            let mut connection = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    let _ = tell.send(failed(error));
                    return None;
                }
            };
            if let Some(chunk) = connection.next_chunk().await {
                return Some((chunk, Some((Self::Running(connection), tell))));
            }
            let output = connection.output().await.unwrap_or_else(stopped);
            // Whoever dropped the other end does not want to know.
            let _ = tell.send(output);
            None
        };
        stream::unfold(Some((self, tell)), next).boxed()
    }
}

async fn begin(
    agent: AgentHandle,
    cx: InvocationContext,
    input: AgentInput,
    init: AgentInit,
) -> Result<AgentConnection, RuntimeError> {
    let connection = agent.connect(&cx, init).await?;
    // One that is over before its input has an output that says why.
    let _ = connection.send(input).await;
    connection.close();
    Ok(connection)
}

/// The output of a turn that did not begin.
fn failed(error: RuntimeError) -> AgentOutput {
    stopped(RunError { error, output: None })
}

/// The output of a turn that was stopped.
fn stopped(error: RunError) -> AgentOutput {
    let RunError { error, output } = error;
    let mut output = output.map(|output| *output).unwrap_or_default();
    output.finish_reason.get_or_insert(AgentFinishReason::Failed);
    output.error.get_or_insert_with(|| error.to_details());
    output
}
