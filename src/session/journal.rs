//! What a session knows of an agent that it is linked to: whose turns its own are.
//!
//! The session is told nothing of agents beyond this. It tells the journal of a run what it tells its
//! hosts, in the same order and without waiting, and the journal's answers come back as inputs of the
//! engine.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use antiphon_agent::{
    AgentFinishReason, Authorizer, Caller, InvocationContext, Memory, RuntimeError, Tool,
};
use antiphon_live::{Capabilities, HistoryItem, LiveConfig};
use antiphon_types::ToolCallRequest;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{HistoryLimits, ResumedFrom, SessionEvent, StartError, approvals::Waiting};

/// An agent whose turns the turns of a session are.
#[async_trait]
pub(crate) trait Link: Send + Sync {
    /// What the agent brings into the session, or why it cannot be in one. `policy` is the session's
    /// own, which what comes back includes.
    fn bring(&self, policy: Option<Arc<dyn Authorizer>>) -> Result<Brought, StartError>;

    /// Opens the agent's session for a run.
    async fn open(&self, opening: Opening) -> Result<Opened, RuntimeError>;
}

/// Makes the link of an agent, once all is known of how it is to be.
pub(crate) type MakeLink = Box<dyn FnOnce(LinkSettings) -> Arc<dyn Link> + Send>;

/// How an agent is linked.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkSettings {
    /// The first run goes on from this one, and not from the session's latest.
    pub(crate) snapshot_id: Option<Arc<str>>,
    pub(crate) history: HistoryLimits,
}

/// What an agent brings into a session.
pub(crate) struct Brought {
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    pub(crate) policy: Option<Arc<dyn Authorizer>>,
    pub(crate) memory: Option<Arc<dyn Memory>>,
}

/// What a run is to be.
pub(crate) struct Opening {
    pub(crate) session_id: Arc<str>,
    pub(crate) caller: InvocationContext,
}

/// An agent's session that is open for a run.
pub(crate) struct Opened {
    pub(crate) session_id: Arc<str>,
    pub(crate) instructions: String,
    pub(crate) conversation: Box<dyn Conversation>,
    /// Decides over calls that wait for a person, where the store keeps account of calls.
    pub(crate) waiting: Option<Waiting>,
}

/// The conversation so far, and the way to its next turns.
pub(crate) trait Conversation: Send {
    /// What a connection with these capabilities is told of the conversation; `None` where there is
    /// nothing to go on with. May add to the configuration.
    fn seed(&self, capabilities: &Capabilities, config: &mut LiveConfig) -> Option<Seed>;

    /// The journal of the run that begins.
    fn journal(self: Box<Self>, capabilities: &Capabilities) -> Box<dyn Journal>;
}

/// What a first connection is told of the conversation so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seed {
    pub(crate) history: Vec<HistoryItem>,
    pub(crate) told: ResumedFrom,
}

/// Told of the turns of a run, by the session's task. Nothing here waits.
pub(crate) trait Journal: Send {
    /// Something is told to hosts.
    fn event(&mut self, event: &SessionEvent, now: Instant);

    /// The model asks for a tool; before anybody judges that.
    fn requested(&mut self, turn: u64, request: &ToolCallRequest);

    /// What policy and tools of the present turn know of the agent's session.
    fn context(&mut self) -> InvocationContext;

    /// When to call [`Journal::timeout`].
    fn deadline(&self) -> Option<Instant>;

    /// The instant that [`Journal::deadline`] named is reached.
    fn timeout(&mut self, now: Instant);

    /// The next turn that was committed, or could not be. `None` after the last one of a session
    /// whose end was told.
    fn poll_committed(&mut self, cx: &mut Context<'_>) -> Poll<Option<Committed>>;
}

/// What became of a turn that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub(crate) turn: u64,
    /// `None`: it is not on disk.
    pub(crate) snapshot_id: Option<Arc<str>>,
    pub(crate) parent_id: Option<Arc<str>>,
    pub(crate) finish_reason: Option<AgentFinishReason>,
    /// Why it is not, where it was to be.
    #[serde(default)]
    pub(crate) error: Option<String>,
    /// A session that lost a turn is to end.
    pub(crate) ends_session: bool,
}

/// A call of nobody in particular, or of `caller`.
pub(crate) fn called_by(caller: Option<&Caller>) -> InvocationContext {
    match caller {
        Some(caller) => InvocationContext::new().with_caller(caller.clone()),
        None => InvocationContext::new(),
    }
}
