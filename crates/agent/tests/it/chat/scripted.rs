//! A transport that does as the test says.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use antiphon_agent::{
    AgentInit, AgentInput, AgentOutput, AgentStateManagement, AgentStreamChunk, AgentTransport,
    InvocationContext, RuntimeError, SessionSnapshot, SnapshotAccess, SnapshotStatus, TurnRun,
    protocol::GetSnapshotRequest,
};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, future, stream};
use serde_json::{Value, json};

type Turn = Box<dyn FnOnce(InvocationContext) -> TurnRun + Send>;

/// A transport that does as the test says.
#[derive(Clone, Default)]
pub struct Scripted {
    pub management: Option<AgentStateManagement>,
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
struct Script {
    turns: VecDeque<Turn>,
    snapshots: HashMap<String, SessionSnapshot>,
    /// What was asked, in order: inputs with their starts, and ids of snapshots.
    asked: Vec<Value>,
}

impl Scripted {
    pub fn new() -> Self {
        Self::default()
    }

    /// The next turn streams `chunks` and ends with `output`.
    pub fn turn(self, chunks: Value, output: Value) -> Self {
        let output = parsed::<AgentOutput>(output);
        self.run(chunks, move |_| future::ready(output).boxed())
    }

    /// The next turn streams `chunks`, goes on until its context ends, and then ends with `output`.
    pub fn until_ended(self, chunks: Value, output: Value) -> Self {
        let chunks: Vec<AgentStreamChunk> = parsed(chunks);
        let output = parsed::<AgentOutput>(output);
        self.script.lock().unwrap().turns.push_back(Box::new(move |cx| {
            let end = async move { cx.ended().await };
            let end = stream::once(end).filter_map(async |_| None);
            TurnRun {
                stream: stream::iter(chunks).chain(end).boxed(),
                output: future::ready(output).boxed(),
            }
        }));
        self
    }

    /// The next turn streams `chunks` and does not care for its context.
    pub fn deaf(self, chunks: Value) -> Self {
        let chunks: Vec<AgentStreamChunk> = parsed(chunks);
        self.script.lock().unwrap().turns.push_back(Box::new(move |_| TurnRun {
            stream: stream::iter(chunks).chain(stream::pending()).boxed(),
            output: future::pending().boxed(),
        }));
        self
    }

    /// The next turn streams `chunks`, and then has no output.
    pub fn without_output(self, chunks: Value) -> Self {
        self.run(chunks, |_| future::pending().boxed())
    }

    fn run(
        self,
        chunks: Value,
        output: impl FnOnce(InvocationContext) -> future::BoxFuture<'static, AgentOutput>
        + Send
        + 'static,
    ) -> Self {
        let chunks: Vec<AgentStreamChunk> = parsed(chunks);
        self.script.lock().unwrap().turns.push_back(Box::new(move |cx| TurnRun {
            stream: stream::iter(chunks).boxed(),
            output: output(cx),
        }));
        self
    }

    /// From now on there is this snapshot.
    pub fn snapshot(&self, snapshot: Value) {
        let snapshot: SessionSnapshot = parsed(snapshot);
        let id = snapshot.snapshot_id.to_string();
        self.script.lock().unwrap().snapshots.insert(id, snapshot);
    }

    /// What was asked since the last time.
    pub fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut self.script.lock().unwrap().asked)
    }
}

fn parsed<T: serde::de::DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

#[async_trait]
impl SnapshotAccess for Scripted {
    async fn get_snapshot(
        &self,
        _: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        let mut script = self.script.lock().unwrap();
        script.asked.push(json!({ "get": request }));
        let id = request.snapshot_id.unwrap_or_default();
        script.snapshots.get(&*id).cloned().ok_or(RuntimeError::SnapshotNotFound(id))
    }

    async fn wait_for_snapshot(
        &self,
        cx: &InvocationContext,
        request: GetSnapshotRequest,
    ) -> Result<SessionSnapshot, RuntimeError> {
        self.get_snapshot(cx, request).await
    }

    async fn abort(
        &self,
        _: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SnapshotStatus>, RuntimeError> {
        let script = self.script.lock().unwrap();
        let snapshot = script.snapshots.get(snapshot_id);
        let missing = || RuntimeError::SnapshotNotFound(snapshot_id.into());
        Ok(Some(snapshot.ok_or_else(missing)?.status()))
    }
}

impl AgentTransport for Scripted {
    fn state_management(&self) -> Option<AgentStateManagement> {
        self.management
    }

    fn run_turn(&self, cx: &InvocationContext, input: AgentInput, init: AgentInit) -> TurnRun {
        let mut script = self.script.lock().unwrap();
        script.asked.push(json!({ "data": input, "init": init }));
        let turn = script.turns.pop_front().expect("no further turn");
        turn(cx.clone())
    }
}
