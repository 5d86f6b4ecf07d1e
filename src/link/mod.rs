//! Voice turns as turns of an agent: a session with an agent linked
//! ([`SessionBuilder::agent`](crate::session::SessionBuilder::agent)) is an invocation of that agent.
//!
//! Each finished turn of the session is a snapshot in the agent's store, and
//! [`EventKind::TurnCommitted`](crate::session::EventKind::TurnCommitted) tells of it once it is on
//! disk. What becomes of a session whose store cannot write is for the agent's
//! [`OnStoreStall`](antiphon_agent::OnStoreStall) to say. Messages are plain: a text model, or a client of the agent, goes on from them, and a voice
//! session goes on from theirs. What only voice knows stands in their metadata under [`VOICE`].

mod builder;
mod history;
mod journal;
mod policy;
mod turns;

use std::sync::Arc;

use antiphon_agent::{
    AgentInit, AgentStateManagement, Authorizer, Invocation, Invoke, Messages, RuntimeError, Voice,
};
use antiphon_live::{Capabilities, LiveConfig};
use async_trait::async_trait;

use self::{
    history::{Told, digest, told},
    journal::{AgentJournal, Tip},
    policy::Both,
};
use crate::session::{
    Restored, ResumedFrom, StartError,
    approvals::Waiting,
    journal::{Brought, Conversation, Journal, Link, LinkSettings, Opened, Opening, Seed},
};

pub use self::turns::VOICE;

/// Bytes of the conversation that instructions hold, for a provider that takes no history.
const MAX_DIGEST: usize = 4_000;

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
        let tools = voice.executor().map(|executor| executor.tools()).unwrap_or_default();
        let agents = voice.executor().and_then(|executor| executor.authorizer()).cloned();
        let policy = match agents {
            Some(agents) => {
                let names = tools.iter().map(|tool| tool.name().into()).collect();
                Some(Arc::new(Both { agents, tools: names, sessions: policy }) as _)
            }
            None => policy,
        };
        Ok(Brought { tools, policy, memory: voice.shared_memory().cloned() })
    }

    async fn open(&self, opening: Opening) -> Result<Opened, RuntimeError> {
        let Opening { session_id, caller } = opening;
        let init = match (self.tip.id(), &self.settings.snapshot_id) {
            // A branch goes on from its own end, however the session went on elsewhere.
            (Some(tip), Some(_)) => AgentInit::snapshot(tip),
            (None, Some(snapshot)) => AgentInit::snapshot(snapshot.clone()),
            (_, None) => AgentInit::session(session_id),
        };
        let invocation = self.agent.open(&caller, init).await?;
        let Some(voice) = self.voice() else {
            return Err(RuntimeError::FailedPrecondition("the agent cannot speak any more".into()));
        };
        let instructions = voice.instructions(invocation.context())?;
        let session = invocation.session();
        let waiting = invocation
            .approvals()
            .map(|approvals| Waiting { approvals, context: invocation.context().clone() });
        let conversation = AgentConversation {
            from: invocation.snapshot_id(),
            messages: session.messages(),
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
    messages: Messages,
    /// The snapshot that it goes on from.
    from: Option<Arc<str>>,
    tip: Tip,
    settings: LinkSettings,
}

impl Conversation for AgentConversation {
    fn seed(&self, capabilities: &Capabilities, config: &mut LiveConfig) -> Option<Seed> {
        let snapshot_id = Some(self.from.clone()?);
        let told = told(&self.messages, self.settings.history);
        let (history, restored, items) = if capabilities.history {
            let (restored, items) = (told.restored(), told.items.len());
            (told.items.clone(), restored, items)
        } else {
            let (restored, items) = in_short(&told, config);
            (Vec::new(), restored, items)
        };
        let left_out = told.left_out + told.items.len() - items;
        let unknown_calls = self.invocation.unknown_calls();
        let told = ResumedFrom {
            snapshot_id,
            restored,
            items: items as u64,
            left_out: left_out as u64,
            unknown_calls: unknown_calls.into_iter().map(|call| call.call_id).collect(),
        };
        Some(Seed { history, told })
    }

    fn journal(self: Box<Self>, capabilities: &Capabilities) -> Box<dyn Journal> {
        let Self { invocation, from, tip, .. } = *self;
        tip.set(from);
        let transcripts = capabilities.input_transcripts;
        Box::new(AgentJournal::new(invocation, tip, transcripts))
    }
}

/// Adds the conversation to the instructions. Returns what that comes to.
fn in_short(told: &Told, config: &mut LiveConfig) -> (Restored, usize) {
    let (text, items) = digest(&told.items, MAX_DIGEST);
    if items == 0 {
        return (if told.left_out == 0 { Restored::Full } else { Restored::None }, 0);
    }
    let text = format!("The conversation goes on. What was said before:\n{text}");
    let all = [config.instructions.take(), Some(text)].into_iter().flatten();
    config.instructions = Some(all.collect::<Vec<_>>().join("\n\n"));
    (Restored::Digest, items)
}
