//! Voice turns as turns of an agent: a session with an agent linked
//! ([`SessionBuilder::agent`](crate::session::SessionBuilder::agent)) is an invocation of that agent.
//!
//! Each finished turn of the session is a snapshot in the agent's store, and
//! [`EventKind::TurnCommitted`](crate::session::EventKind::TurnCommitted) tells of it once it is on
//! disk. What becomes of a session whose store cannot write is for the agent's
//! [`OnStoreStall`](antiphon_agent::OnStoreStall) to say. Messages are plain: a text model, or a client of the agent, goes on from them, and a voice
//! session goes on from theirs. What only voice knows stands in their metadata under [`VOICE`].

mod builder;
mod handles;
mod history;
mod journal;
mod keeper;
mod policy;
mod stream;
mod summary;
mod turns;

use std::sync::Arc;

use antiphon_agent::{
    AgentInit, AgentStateManagement, Authorizer, Invocation, InvocationContext, Invoke,
    RuntimeError, Voice,
};
use antiphon_live::{Capabilities, HistoryItem};
use async_trait::async_trait;

use self::{
    handles::{Handles, Keeping},
    history::{Told, told},
    journal::{AgentJournal, Tip},
    policy::Both,
    summary::summary,
    turns::Turns,
};
use crate::session::{
    OnHangup, Restored, ResumeNote, ResumedFrom, StartError,
    approvals::Waiting,
    journal::{
        Brought, Conversation, Journal, Link, LinkSettings, Opened, Opening, Place, Seed,
        SeedHandle,
    },
};

pub use self::turns::VOICE;

/// Work that was lost one after the other, at most, before what a session goes on from.
const MAX_LOST_WORK: usize = 64;

/// An agent in a session.
struct AgentLink {
    agent: Arc<dyn Invoke>,
    settings: LinkSettings,
    /// The newest snapshot of this session's runs.
    tip: Tip,
}

impl AgentLink {
    fn new(agent: Arc<dyn Invoke>, settings: LinkSettings) -> Self {
        Self { agent, settings, tip: Tip::default() }
    }

    fn voice(&self) -> Option<Voice> {
        self.agent.voice()
    }

    /// Hands what the invocation streams to whoever wants it.
    fn stream(&self, invocation: &Invocation) {
        let Some(client) = self.settings.client.clone() else { return };
        let Some(mut chunks) = invocation.stream() else { return };
        tokio::spawn(async move {
            while let Some(chunk) = chunks.next().await {
                client(chunk);
            }
        });
    }

    /// Opens the invocation. By its session it goes on from the newest snapshot that it can go on from:
    /// work that was left in the background and lost with its process, or stopped, has no state, and what
    /// its calls did is told all the same. The second: the newest snapshot, where it is of such work.
    async fn open_last(
        &self,
        caller: &InvocationContext,
        init: AgentInit,
    ) -> Result<(Invocation, Option<Arc<str>>), RuntimeError> {
        let by_session = init.snapshot_id.is_none();
        let (mut init, mut lost) = (init, None);
        for _ in 0..MAX_LOST_WORK {
            match self.agent.open(caller, init).await {
                Err(RuntimeError::WorkLost { snapshot_id, parent_id: Some(parent), .. })
                    if by_session =>
                {
                    tracing::warn!(%snapshot_id, "work in the background was lost");
                    lost.get_or_insert(snapshot_id);
                    init = AgentInit::snapshot(parent);
                }
                opened => return Ok((opened?, lost)),
            }
        }
        Err(RuntimeError::FailedPrecondition(format!(
            "the last {MAX_LOST_WORK} snapshots of the session are of work that was lost"
        )))
    }

    async fn summary_of(&self, left_out: &[HistoryItem]) -> Option<Result<String, ResumeNote>> {
        let summarizer = self.settings.summarizer.as_ref().filter(|_| !left_out.is_empty())?;
        Some(summary(&**summarizer, left_out, self.settings.summarize_within).await)
    }
}

#[async_trait]
impl Link for AgentLink {
    fn bring(&self, policy: Option<Arc<dyn Authorizer>>) -> Result<Brought, StartError> {
        let name = self.agent.agent_ref().name;
        let refuse = |what: &str| Err(StartError::InvalidConfig(format!("agent {name:?} {what}")));
        let Some(voice) = self.voice() else {
            return refuse(
                "has a function of its own and is not declared able to speak: see voice",
            );
        };
        if self.agent.metadata().state_management != AgentStateManagement::Server {
            return refuse("has no store: turns that nobody keeps are no snapshots");
        }
        let leaves = self.settings.on_hangup == OnHangup::Detach;
        if leaves && !self.agent.metadata().abortable {
            return refuse(
                "has a store that tells nobody of changes: work that is left in the background \
                 could not be stopped by anybody",
            );
        }
        let tools = voice.executor().map(|executor| executor.tools()).unwrap_or_default();
        let agents = voice.executor().and_then(|executor| executor.authorizer()).cloned();
        let policy = match agents {
            Some(agents) => {
                let names = tools.iter().map(|tool| tool.name().into()).collect();
                Some(Arc::new(Both::new(agents, names, policy)) as _)
            }
            None => policy,
        };
        Ok(Brought { tools, policy, memory: voice.shared_memory().cloned() })
    }

    fn detaches(&self) -> bool {
        self.settings.on_hangup == OnHangup::Detach
    }

    async fn open(&self, opening: Opening) -> Result<Opened, RuntimeError> {
        let Opening { session_id, caller } = opening;
        let init = match (self.tip.id(), &self.settings.snapshot_id) {
            // A branch goes on from its own end, however the session went on elsewhere.
            (Some(tip), Some(_)) => AgentInit::snapshot(tip),
            (None, Some(snapshot)) => AgentInit::snapshot(snapshot.clone()),
            (_, None) => AgentInit::session(session_id),
        };
        let (invocation, lost_work) = self.open_last(&caller, init).await?;
        let Some(voice) = self.voice() else {
            return Err(RuntimeError::FailedPrecondition("the agent cannot speak any more".into()));
        };
        let instructions = voice.instructions(invocation.context())?;
        let session = invocation.session();
        let waiting = invocation
            .approvals()
            .map(|approvals| Waiting { approvals, context: invocation.context().clone() });
        self.stream(&invocation);
        let told = told(&session.messages(), self.settings.history);
        let handles =
            self.settings.handles.clone().map(|memory| {
                Arc::new(Handles::new(memory, caller.scope(), &session.session_id()))
            });
        let conversation = AgentConversation {
            from: invocation.snapshot_id(),
            lost_work,
            handles,
            places: Vec::new(),
            handle: None,
            summary: self.summary_of(&told.left_out).await,
            told,
            invocation,
            tip: self.tip.clone(),
            settings: self.settings.clone(),
        };
        let session_id = session.session_id();
        Ok(Opened { session_id, instructions, conversation: Box::new(conversation), waiting })
    }
}

/// The conversation of an invocation that was opened.
struct AgentConversation {
    invocation: Invocation,
    told: Told,
    /// What is left out in short, or why it is not, where that was asked for.
    summary: Option<Result<String, ResumeNote>>,
    /// The snapshot that it goes on from.
    from: Option<Arc<str>>,
    /// The newest one, where that is of work that was lost.
    lost_work: Option<Arc<str>>,
    /// Where handles are kept, for these providers.
    handles: Option<Arc<Handles>>,
    places: Vec<Place>,
    /// The one that the conversation goes on by.
    handle: Option<SeedHandle>,
    tip: Tip,
    settings: LinkSettings,
}

#[async_trait]
impl Conversation for AgentConversation {
    async fn look_for_handle(&mut self, places: Vec<Place>) {
        self.places = places;
        let (Some(handles), Some(from)) = (&self.handles, &self.from) else { return };
        // Of what the history tells for the first time no handle knows.
        if !self.invocation.tells_more() {
            self.handle = handles.take(from, &self.places).await;
        }
    }

    fn seed(&self) -> Option<Seed> {
        let (snapshot_id, told) = (self.from.clone(), &self.told);
        // One that was killed in its first turn has no snapshot, and calls of which nobody knows.
        if snapshot_id.is_none() && told.items.is_empty() && told.left_out.is_empty() {
            return None;
        }
        let (summary, note) = match &self.summary {
            Some(Ok(summary)) => (Some(summary.as_str().into()), None),
            Some(Err(note)) => (None, Some(*note)),
            None => (None, None),
        };
        let restored = if summary.is_some() { Restored::Summary } else { told.restored() };
        let unknown_calls = self.invocation.unknown_calls();
        let resumed = ResumedFrom {
            snapshot_id,
            restored,
            items: told.items.len() as u64,
            left_out: told.left_out.len() as u64,
            unknown_calls: unknown_calls.into_iter().map(|call| call.call_id).collect(),
            by_handle: false,
            lost_work: self.lost_work.clone(),
            note,
        };
        let (history, handle) = (told.items.clone(), self.handle.clone());
        Some(Seed { history, told: resumed, summary, handle })
    }

    fn journal(self: Box<Self>, capabilities: &Capabilities) -> Box<dyn Journal> {
        let Self { invocation, from, handles, places, tip, settings, .. } = *self;
        tip.set(from);
        let turns = Turns::new(capabilities.input_transcripts, settings.settle);
        let streams = settings.client.is_some();
        let keeping = handles.map(|handles| Keeping::new(handles, &places));
        Box::new(AgentJournal::new(invocation, tip, turns, streams, keeping))
    }
}
