//! What runs in the processes that are killed.

use std::{
    collections::hash_map::DefaultHasher,
    env,
    hash::Hasher,
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, Artifact, FileSessionStore, InvocationContext, Message,
    Messages, Part, SessionStore, TurnResult,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Random;

/// Tells a process of this program what to do.
pub const JOB: &str = "ANTIPHON_CRASH_JOB";
/// How many sessions a worker has at the same time.
const SESSIONS: usize = 3;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Files,
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl Kind {
    pub fn parse(name: &str) -> Self {
        match name {
            "Files" => Self::Files,
            #[cfg(feature = "sqlite")]
            "Sqlite" => Self::Sqlite,
            other => panic!("there is no store of kind {other}"),
        }
    }
}

/// A store that is open.
pub enum Opened {
    Files(FileSessionStore),
    #[cfg(feature = "sqlite")]
    Sqlite(antiphon_agent::SqliteSessionStore),
}

impl Opened {
    pub async fn open(kind: Kind, path: &Path) -> Self {
        match kind {
            Kind::Files => Self::Files(FileSessionStore::open(path).await.unwrap()),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => {
                Self::Sqlite(antiphon_agent::SqliteSessionStore::open(path).await.unwrap())
            }
        }
    }

    pub fn reader(&self) -> &dyn SessionStore {
        match self {
            Self::Files(store) => store,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store,
        }
    }

    pub fn shared(self) -> Arc<dyn SessionStore> {
        match self {
            Self::Files(store) => Arc::new(store),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => Arc::new(store),
        }
    }

    /// The ids of all sessions.
    pub async fn sessions(&self) -> Vec<String> {
        let cx = InvocationContext::new();
        let sessions = match self {
            Self::Files(store) => store.sessions(&cx, None, usize::MAX).await.unwrap(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.sessions(&cx, None, usize::MAX).await.unwrap(),
        };
        sessions.iter().map(|session| session.session_id.to_string()).collect()
    }

    /// The ids of all snapshots of a session.
    pub async fn snapshots(&self, session: &str) -> Vec<String> {
        let cx = InvocationContext::new();
        let rows = match self {
            Self::Files(store) => store.snapshots(&cx, session, None, usize::MAX).await.unwrap(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.snapshots(&cx, session, None, usize::MAX).await.unwrap(),
        };
        rows.iter().map(|row| row.snapshot.snapshot_id.to_string()).collect()
    }
}

/// A turn that was announced.
#[derive(Debug)]
pub struct Turn {
    pub session: String,
    pub snapshot: String,
    /// How many turns there are up to it.
    pub turns: u64,
}

impl Turn {
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("committed ")?.split(' ');
        let mut next = || words.next().map(str::to_owned);
        // The line feed is there, so the line is whole.
        let (session, snapshot) = (next()?, next()?);
        Some(Self { session, snapshot, turns: next()?.parse().ok()? })
    }
}

/// What a conversation says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Noted {
    turns: u64,
    digest: String,
}

/// A number for all texts.
pub fn digest(messages: &Messages) -> String {
    let mut hasher = DefaultHasher::new();
    for message in messages {
        hasher.write(message.joined_text().as_bytes());
    }
    format!("{:016x}", hasher.finish())
}

/// An agent that keeps account of its conversation.
pub fn accountant(store: Arc<dyn SessionStore>) -> Agent<Noted> {
    let agent = Agent::<Noted>::custom("accountant", |_cx, _responder, runner| async move {
        let session = &runner;
        runner
            .run(|_cx, input| async move {
                let said = input.message.map(|message| message.joined_text()).unwrap_or_default();
                session.add_messages([Message::model(format!("You said {} bytes.", said.len()))]);
                let messages = session.messages();
                let turns = messages.len() as u64 / 2;
                let digest = digest(&messages);
                session.update_custom(|_| Noted { turns, digest: digest.clone() });
                session
                    .add_artifacts([Artifact::new("turns", vec![Part::text(turns.to_string())])]);
                Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
            })
            .await?;
        Ok(runner.result())
    });
    agent.shared_store(store).build()
}

/// Commits turns until it is killed.
#[test]
fn works_when_told_to() {
    let Ok(job) = env::var(JOB) else { return };
    let mut parts = job.splitn(4, '|');
    let mut next = || parts.next().unwrap();
    let kind = Kind::parse(next());
    let (sessions, seed, path) = (next(), next().parse::<u64>().unwrap(), next());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let agent = accountant(Opened::open(kind, Path::new(path)).await.shared());
        let mut running = tokio::task::JoinSet::new();
        for number in 0..SESSIONS {
            let random = Random(seed + number as u64);
            running.spawn(converse(agent.clone(), format!("{sessions}-{number}"), random));
        }
        running.join_next().await.unwrap().unwrap();
    });
}

async fn converse(agent: Agent<Noted>, session: String, mut random: Random) {
    let cx = InvocationContext::new();
    let mut known: Vec<Arc<str>> = Vec::new();
    loop {
        // Goes on from the latest, or forks.
        let init = match random.below(4) {
            0 if !known.is_empty() => {
                AgentInit::snapshot(known[random.below(known.len() as u64) as usize].clone())
            }
            _ => AgentInit::session(session.as_str()),
        };
        let mut connection = agent.connect(&cx, init).await.unwrap();
        for _ in 0..1 + random.below(4) {
            // Some take long enough to be killed in the middle.
            let len = if random.below(6) == 0 { random.below(300_000) } else { random.below(600) };
            connection.send_text("x".repeat(len as usize)).await.unwrap();
            let mut turns = None;
            while let Some(chunk) = connection.next_chunk().await {
                if let Some(end) = chunk.turn_end {
                    turns = Some((end, connection.custom().unwrap().turns));
                    break;
                }
            }
            let (end, turns) = turns.unwrap();
            let id = end.snapshot_id.expect("a turn was not written");
            // In one piece, so that no line is announced in part.
            let line = format!("\ncommitted {session} {id} {turns}\n");
            io::stdout().write_all(line.as_bytes()).unwrap();
            known.push(id);
        }
        connection.output().await.unwrap();
    }
}
