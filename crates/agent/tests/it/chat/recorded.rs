//! A transport that answers as a Genkit server did, and only to what its client was asked.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use antiphon_agent::{
    AgentErrorDetails, AgentFinishReason, AgentInit, AgentInput, AgentOutput, AgentStreamChunk,
    AgentTransport, InvocationContext, RuntimeError, SessionSnapshot, SnapshotAccess,
    SnapshotStatus, TurnRun,
    protocol::{AgentAbortRequest, AgentAbortResponse, GetSnapshotRequest},
};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, stream};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Exchange {
    call: String,
    request: Value,
    status: u16,
    #[serde(default)]
    chunks: Vec<AgentStreamChunk>,
    result: Option<Value>,
}

/// The exchanges that are still to come.
#[derive(Clone)]
pub struct Recorded(Arc<Mutex<VecDeque<Exchange>>>);

impl Recorded {
    pub fn parse(lines: &str) -> Self {
        let exchanges = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        Self(Arc::new(Mutex::new(exchanges.collect())))
    }

    /// Everything was said.
    #[track_caller]
    pub fn assert_over(&self) {
        assert_eq!(self.0.lock().unwrap().len(), 0, "exchanges that did not take place");
    }

    fn next(&self, call: &str, request: Value) -> Exchange {
        let exchange = self.0.lock().unwrap().pop_front();
        let mut exchange = exchange.unwrap_or_else(|| panic!("an unexpected {call}: {request}"));
        // We leave out empty lists.
        if let Some(state) =
            exchange.request.pointer_mut("/init/state").and_then(Value::as_object_mut)
            && state["artifacts"] == json!([])
        {
            state.remove("artifacts");
        }
        assert_eq!((exchange.call.as_str(), &exchange.request), (call, &request));
        exchange
    }

    fn companion<T: DeserializeOwned>(
        &self,
        call: &str,
        request: impl serde::Serialize,
    ) -> Result<T, RuntimeError> {
        let exchange = self.next(call, json!({ "data": request }));
        let result = exchange.result.unwrap();
        if exchange.status == 200 {
            return Ok(serde_json::from_value(result).unwrap());
        }
        Err(serde_json::from_value::<AgentErrorDetails>(result).unwrap().into())
    }
}

#[async_trait]
impl SnapshotAccess for Recorded {
    async fn get_snapshot(
        &self,
        _: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.companion("getSnapshot", request)
    }

    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        loop {
            let snapshot = self.get_snapshot(cx, request.clone()).await?;
            if snapshot.status().is_terminal() {
                return Ok(snapshot);
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }

    async fn abort(
        &self,
        _: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        let request = AgentAbortRequest { snapshot_id: snapshot_id.into() };
        Ok(self.companion::<AgentAbortResponse>("abort", request)?.status)
    }
}

impl AgentTransport for Recorded {
    fn run_turn(&self, cx: &InvocationContext, input: AgentInput, init: AgentInit) -> TurnRun {
        let exchange = self.next("turn", json!({ "data": input, "init": init }));
        let (ended, cx) = (exchange.result.is_none(), cx.clone());
        let stream = stream::iter(exchange.chunks);
        // Where the client closed the connection the recording has no result.
        let closed = async move {
            if ended {
                cx.ended().await;
            }
        };
        let output: AgentOutput = match exchange.result {
            Some(result) => serde_json::from_value(result).unwrap(),
            None => serde_json::from_value(json!({ "finishReason": AgentFinishReason::Aborted }))
                .unwrap(),
        };
        TurnRun {
            stream: stream.chain(stream::once(closed).filter_map(async |()| None)).boxed(),
            output: async move { output }.boxed(),
        }
    }
}
