//! Building a session.

use std::{
    any::TypeId,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use antiphon_agent::{
    AgentStreamChunk, Authorizer, Caller, InMemory, Memory, Parking, Tool, ToolRegistry,
};
use antiphon_audio::AudioSink;
use antiphon_live::{LiveConfig, LiveProvider};

use super::{
    AgentSession, BargeIn, Callbacks, HistoryLimits, InputGuard, LifecycleHooks, MemoryScope,
    NoCallbacks, NoHooks, OnHangup, OutputGuard, ReconnectPolicy, SessionLimits, StartError,
    Summarizer,
    fallback::Candidate,
    hand_off::{SessionAgent, Team},
    journal::{Brought, Link, LinkSettings, MakeLink},
    shared::Parts,
};

/// How long a summary may take, unless the host says otherwise.
const SUMMARIZE_WITHIN: Duration = Duration::from_secs(5);

/// Builds an [`AgentSession`].
pub struct SessionBuilder {
    provider: Arc<dyn LiveProvider>,
    fallbacks: Vec<Candidate>,
    tools: Vec<Arc<dyn Tool>>,
    registry: Option<Arc<ToolRegistry>>,
    policy: Option<Arc<dyn Authorizer>>,
    hooks: Option<Arc<dyn LifecycleHooks>>,
    callbacks: Option<Arc<dyn Callbacks>>,
    memory: Option<Arc<dyn Memory>>,
    memory_scope: MemoryScope,
    sink: Option<Box<dyn AudioSink>>,
    limits: SessionLimits,
    reconnect: ReconnectPolicy,
    barge_in: BargeIn,
    output_guard: Option<OutputGuard>,
    input_guard: Option<InputGuard>,
    session_id: Option<Arc<str>>,
    /// The session is one of an agent that is to be linked.
    resumes: bool,
    caller: Option<Caller>,
    team: Team,
    agent: Option<MakeLink>,
    linked: LinkSettings,
    parking: Parking,
    link: Option<Arc<dyn Link>>,
}

impl SessionBuilder {
    pub(crate) fn new(provider: Arc<dyn LiveProvider>) -> Self {
        Self {
            provider,
            fallbacks: Vec::new(),
            tools: Vec::new(),
            registry: None,
            policy: None,
            hooks: None,
            callbacks: None,
            memory: None,
            memory_scope: MemoryScope::default(),
            sink: None,
            limits: SessionLimits::default(),
            reconnect: ReconnectPolicy::default(),
            barge_in: BargeIn::default(),
            output_guard: None,
            input_guard: None,
            session_id: None,
            resumes: false,
            caller: None,
            team: Team::default(),
            agent: None,
            linked: LinkSettings { summarize_within: SUMMARIZE_WITHIN, ..LinkSettings::default() },
            parking: Parking::default(),
            link: None,
        }
    }

    /// Adds a tool; an invalid or second one of its name makes [`SessionBuilder::build`] fail.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// Uses this registry; tools added by [`SessionBuilder::tool`] go into it.
    pub fn registry(mut self, registry: Arc<ToolRegistry>) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Sets the policy over tool calls; the hook `authorize_tool_call` runs after it.
    pub fn authorize(mut self, authorizer: impl Authorizer) -> Self {
        self.policy = Some(Arc::new(authorizer));
        self
    }

    /// Sets the lifecycle hooks.
    pub fn hooks<H: LifecycleHooks>(mut self, hooks: H) -> Self {
        self.hooks = some_unless::<H, NoHooks>(hooks).map(|hooks| Arc::new(hooks) as _);
        self
    }

    /// Sets the callbacks.
    pub fn callbacks<C: Callbacks>(mut self, callbacks: C) -> Self {
        self.callbacks =
            some_unless::<C, NoCallbacks>(callbacks).map(|callbacks| Arc::new(callbacks) as _);
        self
    }

    /// Sets who calls, for policy and tools to see. What the caller's tenant leaves in memory and in
    /// the store of the agent that is linked no other tenant sees.
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Sets the memory.
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Sets whose memory hooks, policies and tools see. Default: the session's own.
    pub fn memory_scope(mut self, scope: MemoryScope) -> Self {
        self.memory_scope = scope;
        self
    }

    /// Sets where the agent's voice goes. Without one it goes to [`Callbacks::on_audio`], and what
    /// was heard is reckoned by time.
    pub fn sink(mut self, sink: impl AudioSink + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Sets bounds and deadlines.
    pub fn limits(mut self, limits: SessionLimits) -> Self {
        self.limits = limits.within_reach();
        self
    }

    /// Sets how lost connections are replaced.
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// Falls back on this provider where connecting with the one before fails, or that one ends the
    /// connection for good: the conversation goes on there, with its history. When a connection is next
    /// replaced by plan ([`Capabilities::connection_limit`](antiphon_live::Capabilities), the provider's
    /// notice) the session's own provider is tried again. May be called more than once; the order
    /// counts. [`EventKind::ProviderChanged`](super::EventKind::ProviderChanged) tells of a change.
    ///
    /// `config` makes the configuration of this provider: it is given the session's without provider,
    /// profile, models, key, bearer, endpoint, voice, provider options, and options that name a dialect,
    /// platform or project, which are another's. What the provider cannot do of the rest makes
    /// [`AgentSession::start`] fail.
    pub fn fallback(
        mut self,
        provider: Arc<dyn LiveProvider>,
        config: impl Fn(LiveConfig) -> LiveConfig + Send + Sync + 'static,
    ) -> Self {
        self.fallbacks.push(Candidate::fallback(provider, config));
        self
    }

    /// Lets the model hand the conversation over to this agent, by a tool `hand_off_to_` and its name. May
    /// be called more than once: each agent may hand over to each other one, and back by `hand_back`.
    pub fn hand_off_to(mut self, agent: SessionAgent) -> Self {
        self.team.add(agent);
        self
    }

    /// Sets what the user's speech does to the agent's. What the provider cannot do makes
    /// [`AgentSession::start`] fail before it connects.
    pub fn barge_in(mut self, policy: BargeIn) -> Self {
        self.barge_in = policy;
        self
    }

    /// Holds the agent's voice back until a guard has let its words pass. Of words that are denied
    /// nothing is heard: the reply is cancelled, something safe is said in its place, and
    /// [`EventKind::ReplyDenied`](super::EventKind::ReplyDenied) tells of it; history, transcripts and
    /// the agent that is linked have what was heard. Transcripts are told once they have passed, too.
    /// Default: none, and nothing is held back.
    ///
    /// Audio is heard after [`OutputGuard::hold_back`] and once its words have passed. Which words audio
    /// speaks is known from the order in which they come where the provider tells words first
    /// ([`OutputWords::Before`](antiphon_live::OutputWords)): OpenAI Realtime and its dialects, the
    /// cascade. Elsewhere it is reckoned by the fastest speech that is believed, so that a voice which
    /// comes no faster than it is heard may falter; [`OutputGuard::without_transcript`] decides.
    /// [`AgentSession::start`] fails where the provider gives no transcript at all and the guard does not
    /// release audio without one. What the host plays is not judged.
    pub fn output_guard(mut self, guard: OutputGuard) -> Self {
        self.output_guard = Some(guard);
        self
    }

    /// Has a guard judge what the user said before any call of the turn is judged by the policy: where
    /// it is denied no call of the turn runs, the model is told [`InputGuard::notice`], and
    /// [`EventKind::WordsDenied`](super::EventKind::WordsDenied) tells of it. Default: none.
    ///
    /// [`AgentSession::start`] fails where the provider does not transcribe the user, unless calls run
    /// without that ([`InputGuard::run_without_transcript`]).
    pub fn input_guard(mut self, guard: InputGuard) -> Self {
        self.input_guard = Some(guard);
        self
    }

    /// Uses this id instead of a random one.
    pub fn session_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.session_id = Some(id.into());
        self
    }

    /// Continues this session of the agent that is linked from its latest snapshot; a session without
    /// snapshots begins. The model is told the conversation so far, within [`SessionBuilder::history`],
    /// and [`EventKind::SessionResumed`](super::EventKind::SessionResumed) tells how much of it.
    pub fn resume(mut self, session_id: impl Into<Arc<str>>) -> Self {
        self.resumes = true;
        self.session_id(session_id)
    }

    /// Continues from this snapshot of the agent that is linked, and has the id of its session. Where
    /// that went on already this begins a branch: both live. Started again, the session goes on from
    /// its own last turn.
    pub fn resume_snapshot(mut self, snapshot_id: impl Into<Arc<str>>) -> Self {
        self.linked.snapshot_id = Some(snapshot_id.into());
        self
    }

    /// Sets how much of a long conversation the model is told when it is resumed.
    pub fn history(mut self, limits: HistoryLimits) -> Self {
        self.linked.history = limits;
        self
    }

    /// Keeps, for the agent's session, the newest handle by which the provider goes on with the
    /// conversation itself, and has a later run that resumes do that: voices and all are known then, and
    /// nothing is told again ([`ResumedFrom::by_handle`](super::ResumedFrom::by_handle)). Default: none
    /// is kept, and the conversation is told in words.
    ///
    /// A handle is used once, by the same provider, model and account, while it is good, and only by a
    /// run that goes on from the very snapshot that it is the conversation of: not after a turn in
    /// writing, not for a branch from an earlier one. One that the provider refuses does no harm: it is
    /// told the conversation then. Gemini Live gives such handles, good for two hours.
    ///
    /// A handle, with the key of the account, lets whoever has it into the conversation. It is kept in
    /// `memory` alone, where hooks, policies and tools do not see it, and in no snapshot; see
    /// `docs/voice-record.md`. A [`Memory`] of the host's own may encrypt what it is given.
    pub fn keep_handles(mut self, memory: Arc<dyn Memory>) -> Self {
        self.linked.handles = Some(memory);
        self
    }

    /// Sets how calls wait for a person, where an agent is linked whose store keeps account of calls:
    /// what the model is told meanwhile, and for how long they wait.
    pub fn parking(mut self, parking: Parking) -> Self {
        self.parking = parking;
        self
    }

    /// Has what the model is not told of a long conversation put into a few words, which become part
    /// of its instructions. Asked when a session starts that resumes one.
    pub fn summarizer(mut self, summarizer: impl Summarizer) -> Self {
        self.linked.summarizer = Some(Arc::new(summarizer));
        self
    }

    /// Sets how long the summarizer may take; starting waits for it. Then the conversation is cut
    /// without a summary. Default: 5 seconds.
    pub fn summarize_within(mut self, within: Duration) -> Self {
        self.linked.summarize_within = within;
        self
    }

    /// Has `client` called with what a client of the agent that is linked is streamed while turns go
    /// on: the agent's words as they are generated, outputs of tools, artifacts, patches of the custom
    /// state, the end of each turn. All of it passes the agent's transforms; one that fails ends the
    /// session. It is called on a task of its own: a client that is far behind loses words, which
    /// [`SessionStats::agent_chunks_dropped`](super::SessionStats::agent_chunks_dropped) counts, and
    /// nothing else waits for it.
    pub fn agent_stream(
        mut self,
        client: impl Fn(AgentStreamChunk) + Send + Sync + 'static,
    ) -> Self {
        self.linked.client = Some(Arc::new(client));
        self
    }

    /// Sets what becomes of the running turn of the agent that is linked when the caller hangs up.
    /// Default: it is aborted.
    pub fn on_hangup(mut self, on_hangup: OnHangup) -> Self {
        self.linked.on_hangup = on_hangup;
        self
    }

    /// Links an agent, in the place of the one before.
    pub(crate) fn link(mut self, agent: MakeLink) -> Self {
        self.agent = Some(agent);
        self
    }

    /// The session, not yet started. [`StartError::InvalidConfig`] for a tool that cannot be
    /// registered, for an empty session id, for an agent that cannot be linked, and for the memory of a
    /// caller who is not named.
    pub fn build(mut self) -> Result<AgentSession, StartError> {
        let registry = self.registry.get_or_insert_default().clone();
        for tool in std::mem::take(&mut self.tools) {
            registry
                .register_shared(tool)
                .map_err(|error| StartError::InvalidConfig(error.to_string()))?;
        }
        if self.session_id.as_ref().is_some_and(|id| id.is_empty()) {
            return Err(StartError::InvalidConfig("the session id is empty".into()));
        }
        if self.memory_scope == MemoryScope::Caller && self.caller.is_none() {
            let what = "the memory is to be the caller's, and nobody is named: see caller";
            return Err(StartError::InvalidConfig(what.into()));
        }
        match self.agent.take() {
            Some(agent) => {
                self.linked.settle = self.limits.turn_settle;
                let link = agent(self.linked.clone());
                let brought = link.bring(self.policy.take())?;
                self.take_in(brought)?;
                self.link = Some(link);
            }
            None if self.resumes => {
                let what = "a session is resumed by its agent: link one";
                return Err(StartError::InvalidConfig(what.into()));
            }
            None if self.linked.snapshot_id.is_some() => {
                let what = "a snapshot is resumed by its agent: link one";
                return Err(StartError::InvalidConfig(what.into()));
            }
            None if self.linked.on_hangup == OnHangup::Detach => {
                let what = "work is left in the background of an agent: link one";
                return Err(StartError::InvalidConfig(what.into()));
            }
            None => {}
        }
        if !self.team.is_empty() {
            self.add_hand_offs()?;
        }
        let team = self.team.clone();
        let session = self.into_session();
        team.join(&session);
        Ok(session)
    }

    /// Adds the tools by which the model hands over. The registry of the host stays as it is.
    fn add_hand_offs(&mut self) -> Result<(), StartError> {
        if let Some(name) = self.team.bad_name() {
            let what = format!("an agent cannot be named {name:?}: letters, digits, _ and - only");
            return Err(StartError::InvalidConfig(what));
        }
        let all = ToolRegistry::new();
        let mut own = self.registry.iter().flat_map(|registry| registry.all());
        own.try_for_each(|tool| all.register_shared(tool))
            .and_then(|()| self.team.tools_of_the_first(&all))
            .map_err(|error| StartError::InvalidConfig(error.to_string()))?;
        self.registry = Some(Arc::new(all));
        Ok(())
    }

    /// Takes in what an agent brings. The registry of the host stays as it is: others may use it.
    fn take_in(&mut self, brought: Brought) -> Result<(), StartError> {
        let all = ToolRegistry::new();
        let own = self.registry.iter().flat_map(|registry| registry.all());
        for tool in own.chain(brought.tools) {
            all.register_shared(tool)
                .map_err(|error| StartError::InvalidConfig(error.to_string()))?;
        }
        self.registry = Some(Arc::new(all));
        self.policy = brought.policy;
        if self.memory.is_none() {
            self.memory = brought.memory;
        }
        Ok(())
    }

    /// The session; tools added one by one are not looked at.
    pub(crate) fn into_session(self) -> AgentSession {
        AgentSession::from_parts(Parts {
            provider: self.provider,
            fallbacks: self.fallbacks,
            callbacks: self.callbacks,
            hooks: self.hooks,
            policy: self.policy,
            registry: self.registry.unwrap_or_default(),
            memory: self.memory.unwrap_or_else(|| Arc::new(InMemory::new())),
            memory_scope: self.memory_scope,
            session_id: self.session_id.unwrap_or_else(random_id),
            sink: self.sink,
            limits: self.limits,
            reconnect: self.reconnect,
            barge_in: self.barge_in,
            output_guard: self.output_guard,
            input_guard: self.input_guard,
            caller: self.caller,
            link: self.link,
            parking: self.parking,
            team: self.team,
        })
    }
}

/// `value`, unless its type is `Nothing`: then nobody needs to be called.
fn some_unless<T: 'static, Nothing: 'static>(value: T) -> Option<T> {
    (TypeId::of::<T>() != TypeId::of::<Nothing>()).then_some(value)
}

/// 12 random bytes in unpadded base64url: 16 characters, the first of them a letter, since a command line
/// takes what begins with a hyphen for an option.
fn random_id() -> Arc<str> {
    let mut bytes = [0u8; 12];
    if getrandom::fill(&mut bytes).is_err() {
        // Without randomness the time and a count still tell sessions of one host apart.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        bytes[..8].copy_from_slice(&(now.as_nanos() as u64).to_be_bytes());
        bytes[8..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    }
    bytes[0] &= 0x7f;
    base64url(&bytes).into()
}

fn base64url(bytes: &[u8; 12]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(16);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        for shift in [18, 12, 6, 0] {
            text.push(char::from(ALPHABET[(bits >> shift) as usize & 63]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_url_safe_and_differ() {
        assert_eq!(base64url(b"Many hands m"), "TWFueSBoYW5kcyBt");
        assert_eq!(base64url(&[0xff; 12]), "_".repeat(16));
        assert_ne!(random_id(), random_id());
        let first = |id: Arc<str>| id.chars().next().unwrap();
        assert!((0..500).all(|_| first(random_id()).is_ascii_alphabetic()));
    }
}
