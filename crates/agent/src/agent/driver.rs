//! The task that sees an invocation of an agent function to its end.

use std::{pin::Pin, sync::Arc, time::Duration};

use antiphon_types::Status;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinHandle},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use super::{
    background::Background,
    core::{Core, Stop},
    definition::Definition,
    function::SessionRunner,
    intake::Intake,
    outlet::{Outlet, Patches, Pump},
    output::{Outcome, RunError},
};
use crate::{
    InvocationContext, RuntimeError,
    protocol::{AgentInit, AgentOutput, AgentResult, AgentStreamChunk},
    session::State,
    state::AgentFinishReason,
};

/// An invocation that was started.
pub(super) struct Launched<S: State> {
    pub(super) intake: Arc<Intake>,
    pub(super) chunks: mpsc::Receiver<AgentStreamChunk>,
    pub(super) outcome: watch::Receiver<Option<Outcome<S>>>,
    /// Cancels an attached run when it goes.
    pub(super) caller: DropGuard,
}

/// Starts an invocation of the agent's function. An error means that nothing has begun.
pub(super) async fn launch<S: State>(
    definition: Arc<Definition<S>>,
    cx: &InvocationContext,
    init: AgentInit<S>,
) -> Result<Launched<S>, RuntimeError> {
    let start = definition.start(cx, init).await?;
    let limits = definition.limits.clone();
    let gone = CancellationToken::new();
    let outlet = Arc::new(Outlet::new(limits.stream));
    let intake = Arc::new(Intake::new(limits.intake));
    let (client, chunks) = mpsc::channel(limits.stream.max(1));
    let (told, outcome) = watch::channel(None);

    let lifted = CancellationToken::new();
    let work = cx.detachable(CancellationToken::new(), lifted.clone());
    let core = Core::new(definition.clone(), work, start, outlet.clone());
    let span = tracing::info_span!(
        "agent",
        otel.name = &*definition.name,
        "genkit:metadata:agent:sessionId" = &**core.session.session_id(),
    );
    let runner = SessionRunner::new(core.clone(), intake.clone());
    let function = tokio::spawn({
        let (definition, cx, responder) = (definition.clone(), core.cx.clone(), runner.responder());
        // The function is called on its task too: it may panic before it returns its future.
        async move { (definition.function)(cx, responder, runner).await }.instrument(span.clone())
    });
    let pump = Pump {
        outlet,
        client,
        transform: definition.stream_transform.clone(),
        cx: core.cx.clone(),
        limits,
        patches: Patches::default(),
    };
    let driver = Driver {
        core,
        intake: intake.clone(),
        caller: cx.clone(),
        gone: gone.clone(),
        deadline_lifted: lifted,
        function: Function { handle: function, result: None },
        pump: Box::pin(pump.run()),
        told,
    };
    tokio::spawn(driver.run().instrument(span));
    Ok(Launched { intake, chunks, outcome, caller: gone.drop_guard() })
}

struct Driver<S: State> {
    core: Arc<Core<S>>,
    intake: Arc<Intake>,
    /// The caller's context; its end stops attached work.
    caller: InvocationContext,
    /// The caller dropped its connection.
    gone: CancellationToken,
    /// Lifts the caller's deadline off the work.
    deadline_lifted: CancellationToken,
    function: Function,
    pump: Pin<Box<dyn Future<Output = Result<(), RuntimeError>> + Send>>,
    told: watch::Sender<Option<Outcome<S>>>,
}

/// What comes first while the caller is there.
enum Event {
    Detached,
    Stopped(Status),
    StreamFailed(RuntimeError),
    Done(Result<AgentResult, RuntimeError>),
}

impl<S: State> Driver<S> {
    async fn run(mut self) {
        let event = tokio::select! {
            biased;
            // A detach that was sent counts, whatever else has come by now.
            () = self.intake.detached() => Event::Detached,
            status = self.caller.ended() => Event::Stopped(status),
            () = self.gone.cancelled() => Event::Stopped(Status::Cancelled),
            Err(error) = &mut self.pump => Event::StreamFailed(error),
            result = self.function.done() => Event::Done(result),
        };
        match event {
            Event::Detached => self.detach().await,
            Event::Stopped(status) => self.stop(status).await,
            Event::StreamFailed(error) => self.fail(error).await,
            // A detach may have been sent at this very moment.
            Event::Done(_) if self.intake.end() => self.detach().await,
            Event::Done(result) => self.done(result).await,
        }
    }

    /// The function ended by itself.
    async fn done(mut self, result: Result<AgentResult, RuntimeError>) {
        self.core.end();
        self.core.flush().await;
        self.core.outlet.close();
        // What was streamed goes out before the output, within the client's own time.
        let flushed = tokio::select! {
            biased;
            flushed = &mut self.pump => flushed,
            _ = self.caller.ended() => Ok(()),
            () = self.gone.cancelled() => Ok(()),
        };
        let output = match (flushed, result) {
            (Err(error), _) => self.core.failure(&error),
            (Ok(()), Ok(result)) => self.core.success(result),
            (Ok(()), Err(error)) => self.core.failure(&self.core.as_stopped(error)),
        };
        self.tell(Ok(output));
    }

    /// The caller stopped the work.
    async fn stop(mut self, status: Status) {
        self.settle(Stop::Caller(status)).await;
        let error = RuntimeError::ended(status, "the caller stopped the invocation");
        // A client that is still there sees the end of what it stopped.
        let grace = self.core.definition.limits.settle_grace;
        let _ = timeout(grace, &mut self.pump).await;
        let output = Some(Box::new(self.core.failure(&error)));
        self.tell(Err(RunError { error, output }));
    }

    /// The invocation cannot go on.
    async fn fail(mut self, error: RuntimeError) {
        self.settle(Stop::Failure(error.clone())).await;
        self.tell(Ok(self.core.failure(&error)));
    }

    /// Lets the work end, by force where it takes too long.
    async fn settle(&mut self, stop: Stop) {
        let left = matches!(stop, Stop::Caller(_));
        self.core.stop(stop);
        self.intake.end();
        let grace = self.core.definition.limits.settle_grace;
        self.function.end(grace).await;
        self.core.end();
        if !left {
            self.core.flush().await;
        } else if timeout(grace, self.core.flush()).await.is_err() {
            // Whoever left does not wait for a store that hangs.
            tracing::warn!("turns of an invocation that was stopped are not written yet");
        }
        self.core.outlet.close();
    }

    /// The caller leaves, and the work goes on.
    async fn detach(mut self) {
        self.deadline_lifted.cancel();
        // Closed before the work sees the input that detached: the caller sees nothing of it.
        self.core.outlet.close();
        let background = match Background::begin(&self.core).await {
            Ok(background) => background,
            Err(error) => return self.fail(error).await,
        };
        self.intake.release();
        let grace = self.core.definition.limits.settle_grace;
        // What came before the detach still goes to the caller, if it takes it.
        let flushed = timeout(grace, &mut self.pump).await;
        self.pump = Box::pin(std::future::ready(Ok(())));
        if let Ok(Err(error)) = flushed {
            self.settle(Stop::Failure(error.clone())).await;
            background.finish(&Err(error.clone())).await;
            return self.tell(Ok(self.core.failure(&error)));
        }
        self.tell(Ok(AgentOutput {
            session_id: Some(self.core.session.session_id().clone()),
            snapshot_id: Some(background.snapshot_id().clone()),
            finish_reason: Some(AgentFinishReason::Detached),
            ..AgentOutput::default()
        }));
        let result = tokio::select! {
            biased;
            result = self.function.done() => result,
            _ = background.attend() => {
                let wind_down = self.core.definition.limits.wind_down;
                tracing::error!(?wind_down, "work that was told to stop did not, and is ended by force");
                self.function.end(grace).await;
                Err(RuntimeError::Cancelled("the work was told to stop and did not".to_owned()))
            }
        };
        self.intake.end();
        self.core.end();
        self.core.flush().await;
        background.finish(&result).await;
    }

    fn tell(&self, outcome: Outcome<S>) {
        self.told.send_replace(Some(outcome));
    }
}

/// The running function of an agent.
struct Function {
    handle: JoinHandle<Result<AgentResult, RuntimeError>>,
    result: Option<Result<AgentResult, RuntimeError>>,
}

impl Function {
    /// Waits for its end. May be dropped at any time, and called again.
    async fn done(&mut self) -> Result<AgentResult, RuntimeError> {
        if self.result.is_none() {
            let joined = (&mut self.handle).await;
            self.result = Some(joined.unwrap_or_else(|error| Err(of_join(error))));
        }
        self.result.clone().unwrap_or_else(|| Ok(AgentResult::default()))
    }

    /// Waits `grace` for its end, and then ends it by force. One that holds its thread cannot be
    /// ended: it goes on by itself, without an invocation.
    async fn end(&mut self, grace: Duration) {
        if timeout(grace, self.done()).await.is_ok() {
            return;
        }
        self.handle.abort();
        if timeout(grace, self.done()).await.is_err() {
            tracing::error!("an agent function holds its thread and cannot be ended");
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

fn of_join(error: JoinError) -> RuntimeError {
    match error.is_panic() {
        true => RuntimeError::internal("the agent function panicked"),
        false => RuntimeError::Cancelled("the agent function was ended".to_owned()),
    }
}
