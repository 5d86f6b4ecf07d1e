//! Voice turns as turns of an agent, over a store in memory.

mod apart;
mod approvals;
mod building;
mod bypass;
mod commits;
#[cfg(feature = "sqlite")]
mod durable;
mod ends;
mod hand_off;
#[cfg(feature = "gemini")]
mod handles;
mod hangup;
#[cfg(feature = "serve")]
mod http;
mod left;
#[cfg(feature = "openai")]
mod openai;
mod ordering;
mod permissions;
mod record;
mod resume;
mod stall;
mod stream;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use antiphon::{
    agent::{
        Agent, InMemorySessionStore, InvocationContext, Message, Role, RuntimeError, RuntimeLimits,
        SessionSnapshot, SessionStore, SnapshotUpdate, ToolExecutor, ToolRegistry, Voice,
        store::{SnapshotReader, SnapshotSubscriber, SnapshotWriter},
        types::Status,
    },
    link::VOICE,
    session::*,
};
use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::rig::{Rig, Setup};

/// An agent whose function never runs, over `store`.
fn speaking(store: Arc<dyn SessionStore>, registry: Arc<ToolRegistry>) -> Agent {
    limited(store, registry, RuntimeLimits::default())
}

/// [`speaking`] within limits.
fn limited(
    store: Arc<dyn SessionStore>,
    registry: Arc<ToolRegistry>,
    limits: RuntimeLimits,
) -> Agent {
    let voice = Voice::new("You are a clerk.").tools(ToolExecutor::new(registry, None));
    Agent::custom("clerk", |_cx, _responder, _runner| async move {
        panic!("a speech model is in its place")
    })
    .voice(voice)
    .shared_store(store)
    .limits(limits)
    .build()
}

/// An agent without tools, over a store of its own.
fn plain() -> Agent {
    speaking(Arc::new(InMemorySessionStore::new()), Arc::default())
}

/// A running session that is linked to `agent`.
async fn linked(agent: &Agent, edit: impl FnOnce(SessionBuilder) -> SessionBuilder) -> Rig {
    let agent = agent.clone();
    Setup::new().build(|builder| edit(builder.agent(&agent))).start().await
}

fn is_committed(kind: &EventKind) -> bool {
    matches!(kind, EventKind::TurnCommitted { .. })
}

/// The ids of a commit that was told: its own, and its parent's.
fn ids(kind: &EventKind) -> (Option<Arc<str>>, Option<Arc<str>>) {
    match kind {
        EventKind::TurnCommitted { snapshot_id, parent_id, .. } => {
            (snapshot_id.clone(), parent_id.clone())
        }
        other => panic!("{other:?}"),
    }
}

impl Rig {
    /// The snapshot of the next commit.
    async fn committed(&mut self, agent: &Agent) -> SessionSnapshot {
        let events = self.until(is_committed).await;
        let (id, parent) = ids(events.last().unwrap());
        let row = agent.get_snapshot(&cx(), id.expect("a snapshot")).await.unwrap();
        assert_eq!(row.parent_id, parent);
        row
    }

    /// A whole turn, and its snapshot.
    async fn turn(&mut self, agent: &Agent, user: &str, reply: &str) -> SessionSnapshot {
        self.user_says(user, user).says(reply, reply, 500);
        self.speaker_catches_up().await;
        self.committed(agent).await
    }

    /// All audio is heard.
    async fn speaker_catches_up(&mut self) {
        self.settle().await;
        self.speaker.play_all();
    }
}

fn cx() -> InvocationContext {
    InvocationContext::new()
}

/// A conversation as lines.
fn lines(row: &SessionSnapshot) -> Vec<String> {
    row.state.as_ref().unwrap().messages.iter().map(|message| line(message)).collect()
}

fn line(message: &Message) -> String {
    let parts = message.content.iter().map(|part| {
        match (part.as_text(), part.as_tool_request(), part.as_tool_response()) {
            (Some(text), ..) => text.to_owned(),
            (_, Some(request), _) => format!("?{} {}", request.name, json(&request.input)),
            (.., Some(response)) => format!("!{} {}", response.name, json(&response.output)),
            _ => panic!("{part:?}"),
        }
    });
    let role = match message.role {
        Role::User => "user",
        Role::Model => "model",
        Role::Tool => "tool",
        Role::System => "system",
    };
    format!("{role}: {}", parts.collect::<Vec<_>>().join("|"))
}

fn json(value: &Option<Value>) -> String {
    serde_json::to_string(value.as_ref().unwrap()).unwrap()
}

/// What voice noted with a message.
fn voice(row: &SessionSnapshot, index: usize) -> Value {
    let messages = &row.state.as_ref().unwrap().messages;
    messages.get(index).unwrap().metadata.as_ref().unwrap()[VOICE].clone()
}

/// A store that fails, or holds its writes back, when told to.
struct SlowStore {
    inner: InMemorySessionStore,
    fails: AtomicBool,
    writes: Semaphore,
}

impl SlowStore {
    /// One that lets so many writes through.
    fn new(writes: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: InMemorySessionStore::new(),
            fails: AtomicBool::new(false),
            writes: Semaphore::new(writes),
        })
    }

    fn open() -> Arc<Self> {
        Self::new(Semaphore::MAX_PERMITS)
    }
}

#[async_trait]
impl SnapshotReader for SlowStore {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.inner.get_snapshot(cx, id).await
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.inner.get_latest_snapshot(cx, session).await
    }
}

#[async_trait]
impl SnapshotWriter for SlowStore {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        self.writes.acquire().await.unwrap().forget();
        if self.fails.load(SeqCst) {
            return Err(RuntimeError::new(Status::Unavailable, "the disk is full"));
        }
        self.inner.save_snapshot(cx, id, update).await
    }
}

impl SessionStore for SlowStore {}
