//! What a session knows of an agent that it is linked to: whose turns its own are.
//!
//! The session is told nothing of agents beyond this. It tells the journal of a run what it tells its
//! hosts, in the same order and without waiting, and the journal's answers come back as inputs of the
//! engine.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon_agent::{
    AgentFinishReason, AgentStreamChunk, Authorizer, Caller, InvocationContext, Memory,
    RuntimeError, Tool,
};
use antiphon_live::{Capabilities, HistoryItem, ReplyOutcome, Resumption};
use antiphon_types::{ToolCallRequest, Usage};
use async_trait::async_trait;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{
    Heard, HistoryLimits, OnHangup, Restored, ResumedFrom, SessionEvent, StartError, Summarizer,
    approvals::Waiting,
};

/// An agent whose turns the turns of a session are.
#[async_trait]
pub(crate) trait Link: Send + Sync {
    /// What the agent brings into the session, or why it cannot be in one. `policy` is the session's
    /// own, which what comes back includes.
    fn bring(&self, policy: Option<Arc<dyn Authorizer>>) -> Result<Brought, StartError>;

    /// Whether work that is under way when the caller hangs up goes on in the background.
    fn detaches(&self) -> bool;

    /// Opens the agent's session for a run.
    async fn open(&self, opening: Opening) -> Result<Opened, RuntimeError>;
}

/// Makes the link of an agent, once all is known of how it is to be.
pub(crate) type MakeLink = Box<dyn FnOnce(LinkSettings) -> Arc<dyn Link> + Send>;

/// How an agent is linked.
#[derive(Clone, Default)]
pub(crate) struct LinkSettings {
    /// The first run goes on from this one, and not from the session's latest.
    pub(crate) snapshot_id: Option<Arc<str>>,
    pub(crate) history: HistoryLimits,
    /// Puts what these limits leave out into a few words, and has so long for it.
    pub(crate) summarizer: Option<Arc<dyn Summarizer>>,
    pub(crate) summarize_within: Duration,
    pub(crate) on_hangup: OnHangup,
    /// Is given what a client of the agent is streamed.
    pub(crate) client: Option<StreamClient>,
    /// How long a turn that is over waits for words that are missing.
    pub(crate) settle: Duration,
    /// Where handles are kept by which a provider goes on with a conversation in a later run.
    pub(crate) handles: Option<Arc<dyn Memory>>,
}

/// Takes what a client of an agent is streamed.
pub(crate) type StreamClient = Arc<dyn Fn(AgentStreamChunk) + Send + Sync>;

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

/// A provider that a run may be connected with, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) provider: Arc<str>,
    pub(crate) model: Arc<str>,
    /// [`LiveProvider::account`](antiphon_live::LiveProvider::account).
    pub(crate) account: Option<SecretString>,
}

/// The conversation so far, and the way to its next turns.
#[async_trait]
pub(crate) trait Conversation: Send {
    /// Looks for a handle by which one of these goes on with the conversation: the session's own
    /// provider, and those that it falls back on. A handle is found once.
    async fn look_for_handle(&mut self, places: Vec<Place>);

    /// What the first connection is told of the conversation; `None` where there is nothing to go on
    /// with.
    fn seed(&self) -> Option<Seed>;

    /// The journal of the run that begins.
    fn journal(self: Box<Self>, capabilities: &Capabilities) -> Box<dyn Journal>;
}

/// What a first connection is told of the conversation so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seed {
    pub(crate) history: Vec<HistoryItem>,
    /// What it was told, where the provider takes all of that.
    pub(crate) told: ResumedFrom,
    /// What was said before that, in short: for the instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) summary: Option<Arc<str>>,
    /// By which a provider goes on with the conversation itself, and is told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<SeedHandle>,
}

/// A handle of an earlier run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SeedHandle {
    /// Who gave it: 0 is the session's own provider.
    pub(crate) candidate: usize,
    pub(crate) handle: Resumption,
    /// How long it is good yet, where that is known.
    pub(crate) good_for: Option<Duration>,
    /// What the model knew of the conversation when it was given.
    pub(crate) knows: Knows,
}

/// What a model knows of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Knows {
    pub(crate) restored: Restored,
    /// Of so many earlier messages and rounds of tools it knows nothing.
    pub(crate) left_out: u64,
}

impl Knows {
    /// All of it.
    pub(crate) const ALL: Self = Self { restored: Restored::Full, left_out: 0 };
}

/// Told of the turns of a run, by the session's task. Nothing here waits.
pub(crate) trait Journal: Send {
    /// Something is told to hosts.
    fn event(&mut self, event: &SessionEvent, now: Instant);

    /// The model asks for a tool; before anybody judges that.
    fn requested(&mut self, turn: u64, request: &ToolCallRequest);

    /// What the record has beyond what hosts are told.
    fn note(&mut self, turn: u64, note: &Note, now: Instant);

    /// A connection that can do this is used from now on.
    fn serves(&mut self, capabilities: &Capabilities);

    /// What policy and tools of the present turn know of the agent's session.
    fn context(&mut self) -> InvocationContext;

    /// When to call [`Journal::timeout`].
    fn deadline(&self) -> Option<Instant>;

    /// The instant that [`Journal::deadline`] named is reached.
    fn timeout(&mut self, now: Instant);

    /// The caller hung up in this turn, and the work is to go on in the background:
    /// [`Told::Detached`] or [`Told::NotDetached`] says whether it does.
    fn hang_up(&mut self, turn: u64);

    /// Whether the caller hung up on work: its end is worth waiting for.
    fn is_left(&self) -> bool;

    /// How long the store may take to write a turn.
    fn patience(&self) -> Duration;

    /// The turns that ended and of which nothing was told yet, as ones that are not on disk: nobody
    /// waits for them any more.
    fn give_up(&mut self) -> Vec<Committed>;

    /// Chunks for which the client of the agent was too slow.
    fn dropped(&self) -> u64;

    /// What became of turns, and of work in the background. `None` after the last of a session whose
    /// end was told.
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>>;
}

/// What a journal tells.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// A turn was committed, or could not be.
    Committed(Committed),
    /// The work of a caller who hung up goes on; this is its pending snapshot.
    Detached(Arc<str>),
    /// It cannot, for this reason.
    NotDetached(String),
    /// Somebody aborted it.
    Aborted,
    /// The agent's invocation cannot go on.
    Failed,
}

/// What the record of a turn has beyond what hosts are told.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    /// Of the user message that is told next.
    Utterance(UtteranceNote),
    /// Of the agent message that is told next.
    Reply(ReplyNote),
    /// A reply was cut off before anything of it was heard: no message tells of it.
    Unheard {
        reply: ReplyNote,
        /// All its words.
        generated: String,
        heard: Option<Heard>,
        /// Milliseconds since the session started.
        t_ms: u64,
    },
    /// The provider is done with a reply.
    ReplyDone {
        /// `None` where that says nothing of the turn: the reply was cut off before.
        outcome: Option<ReplyOutcome>,
        usage: Option<Usage>,
    },
    /// The provider gave a handle that holds all of the conversation so far.
    Resumable(HandleNote),
    /// Something is not in the newest handle, or that is of no use any more.
    NotResumable,
}

/// A handle by which a later run can go on.
#[derive(Clone, Debug)]
pub(crate) struct HandleNote {
    pub(crate) handle: Resumption,
    /// Who gave it: 0 is the session's own provider.
    pub(crate) candidate: usize,
    /// How long after the end of its connection it is good, where that is known.
    pub(crate) valid: Option<Duration>,
}

/// What is known of an utterance of the user.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UtteranceNote {
    /// The provider's id.
    pub(crate) item: Arc<str>,
    pub(crate) language: Option<Arc<str>>,
    /// When the speech began and ended, in milliseconds since the session started.
    pub(crate) start_ms: Option<u64>,
    pub(crate) end_ms: Option<u64>,
}

/// What is known of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReplyNote {
    /// The provider's ids.
    pub(crate) items: Vec<Arc<str>>,
}

/// What an engine knows of the agent that is linked.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Linked {
    /// Work that is under way when the caller hangs up goes on in the background.
    pub(crate) detaches: bool,
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
