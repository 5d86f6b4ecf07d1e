//! More than one agent in a session, of which one speaks at a time.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use antiphon_agent::{
    Authorizer, RegistryError, Tool, ToolContext, ToolError, ToolExecutor, ToolRegistry,
};
use antiphon_types::JsonObject;
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    AgentSession, SendError, WeakAgentSession,
    approvals::Speaking,
    engine::{HandOff, HostCommand, Persona},
};

/// The longest name of an agent, so that tools named after it have names that providers take.
const MAX_NAME: usize = 48;

/// Makes the policy over an agent's calls of the session's own.
pub(crate) type MakePolicy =
    dyn Fn(Option<Arc<dyn Authorizer>>) -> Arc<dyn Authorizer> + Send + Sync;

/// An agent that a session can hand the conversation over to: instructions, tools and voice.
///
/// ```
/// use antiphon::session::SessionAgent;
///
/// let billing = SessionAgent::new("billing", "You answer questions about invoices.")
///     .description("Knows invoices and payments.")
///     .voice("cedar");
/// # let _ = billing;
/// ```
///
/// The host hands over by [`AgentSession::hand_off`]. The model does so by tools where the session was
/// built with [`SessionBuilder::hand_off_to`](super::SessionBuilder::hand_off_to); policy and hooks judge
/// these calls as they do any other.
#[derive(Clone)]
pub struct SessionAgent {
    name: Arc<str>,
    description: Arc<str>,
    instructions: String,
    voice: Option<Arc<str>>,
    tools: Vec<Arc<dyn Tool>>,
    policy: Option<Arc<MakePolicy>>,
    speaks: bool,
}

impl SessionAgent {
    /// An agent without tools that speaks with the session's voice. `name` is of letters, digits, `_`
    /// and `-`, at most 48, since it becomes part of a tool's name.
    pub fn new(name: impl Into<Arc<str>>, instructions: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: "".into(),
            instructions: instructions.into(),
            voice: None,
            tools: Vec::new(),
            policy: None,
            speaks: true,
        }
    }

    /// Says what it is for, so that a model knows when to hand over to it.
    pub fn description(mut self, description: impl Into<Arc<str>>) -> Self {
        self.description = description.into();
        self
    }

    /// Sets its voice, by the provider's name of it. Default: the voice of the agent before.
    pub fn voice(mut self, voice: impl Into<Arc<str>>) -> Self {
        self.voice = Some(voice.into());
        self
    }

    /// Adds a tool.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// It waits for the user's next words. Default: it speaks first.
    pub fn waits(mut self) -> Self {
        self.speaks = false;
        self
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// With these tools, and a policy of its own over them.
    pub(crate) fn with_tools(
        mut self,
        tools: Vec<Arc<dyn Tool>>,
        policy: Option<Arc<MakePolicy>>,
    ) -> Self {
        self.tools = tools;
        self.policy = policy;
        self
    }

    pub(crate) fn instructions(&self) -> &str {
        &self.instructions
    }

    pub(crate) fn its_voice(&self) -> Option<&Arc<str>> {
        self.voice.as_ref()
    }

    pub(crate) fn speaks_first(&self) -> bool {
        self.speaks
    }

    /// The policy over its calls.
    pub(crate) fn policy(
        &self,
        sessions: Option<Arc<dyn Authorizer>>,
    ) -> Option<Arc<dyn Authorizer>> {
        match &self.policy {
            Some(make) => Some(make(sessions)),
            None => sessions,
        }
    }
}

impl fmt::Debug for SessionAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionAgent").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Handing over.
impl AgentSession {
    /// Hands the conversation over to another agent: instructions, tools and voice are its own from then
    /// on. What the present agent says and does comes to its end first, and is heard to its end; then
    /// [`EventKind::HandedOff`](super::EventKind::HandedOff) tells of it. Where the provider cannot change
    /// what is changed (no known one changes its voice), a new connection goes on from the present one.
    /// Asked for again before it has happened, the last one counts.
    ///
    /// A session that is started again begins with its own agent.
    pub fn hand_off(&self, to: &SessionAgent) -> Result<(), SendError> {
        let invalid = |error: &dyn fmt::Display| SendError::Invalid(error.to_string());
        let tools = self.shared.team.tools_of(to).map_err(|error| invalid(&error))?;
        let (tools, policy) = (Arc::new(tools), to.policy(self.shared.policy.clone()));
        let executor =
            self.executor_over(tools.clone(), policy, &[]).map_err(|error| invalid(&error))?;
        let persona = Persona {
            instructions: Some(to.instructions().to_owned()),
            tools: tools.definitions(),
            voice: to.its_voice().cloned(),
        };
        self.order_hand_off(Some(to.name().clone()), Some(persona), to.speaks_first(), executor)
    }

    /// Hands the conversation back to the session's own agent, as [`AgentSession::hand_off`] does. It
    /// speaks first.
    pub fn hand_back(&self) -> Result<(), SendError> {
        let executor = self
            .executor(&self.shared.host_tools())
            .map_err(|error| SendError::Invalid(error.to_string()))?;
        self.order_hand_off(None, None, true, executor)
    }

    fn order_hand_off(
        &self,
        to: Option<Arc<str>>,
        persona: Option<Persona>,
        speaks: bool,
        executor: ToolExecutor,
    ) -> Result<(), SendError> {
        let number = self.shared.new_number();
        let executor = Arc::new(executor);
        self.shared.leave_executor(number, Speaking { agent: to.clone(), executor });
        let has_tools = persona.as_ref().is_some_and(|persona| !persona.tools.is_empty());
        let replaces = self.shared.reconnect.max_attempts > 0;
        let command = HostCommand::HandOff(HandOff { number, to, persona, speaks });
        self.shared.send(command, |can| {
            if has_tools && !can.tools {
                return Err("take tools");
            }
            let in_place = can.update_instructions && can.update_tools;
            let by_connection = replaces && (can.history || can.resumption);
            if in_place || by_connection { Ok(()) } else { Err("change to another agent") }
        })
    }
}

/// The agents that a model may hand over to.
#[derive(Clone, Default)]
pub(crate) struct Team {
    agents: Vec<SessionAgent>,
    /// The session that they are in, once it is built.
    session: Arc<OnceLock<WeakAgentSession>>,
}

impl Team {
    pub(crate) fn add(&mut self, agent: SessionAgent) {
        self.agents.push(agent);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// They are in this session.
    pub(crate) fn join(&self, session: &AgentSession) {
        // Said once, by whoever builds the session.
        let _ = self.session.set(session.downgrade());
    }

    /// The name of an agent that cannot be part of a tool's name.
    pub(crate) fn bad_name(&self) -> Option<&Arc<str>> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let names = self.agents.iter().map(|agent| &agent.name);
        names
            .into_iter()
            .find(|name| name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits))
    }

    /// Adds the tools of the session's own agent by which it hands over.
    pub(crate) fn tools_of_the_first(&self, registry: &ToolRegistry) -> Result<(), RegistryError> {
        self.agents.iter().try_for_each(|agent| registry.register_shared(self.tool_to(agent)))
    }

    /// The tools of an agent: its own, and those by which it hands over.
    pub(crate) fn tools_of(&self, agent: &SessionAgent) -> Result<ToolRegistry, RegistryError> {
        let registry = ToolRegistry::new();
        for tool in &agent.tools {
            registry.register_shared(tool.clone())?;
        }
        let others = self.agents.iter().filter(|other| other.name != agent.name);
        for other in others {
            registry.register_shared(self.tool_to(other))?;
        }
        if !self.is_empty() {
            let name = "hand_back".to_owned();
            let description =
                "Hands the conversation back to the agent that had it first.".to_owned();
            let (session, to) = (self.session.clone(), None);
            registry.register_shared(Arc::new(HandOffTool { name, description, to, session }))?;
        }
        Ok(registry)
    }

    fn tool_to(&self, agent: &SessionAgent) -> Arc<dyn Tool> {
        let name = format!("hand_off_to_{}", agent.name);
        let what = format!("Hands the conversation over to the agent {}.", agent.name);
        let description = [what.as_str(), &agent.description].join(" ").trim().to_owned();
        let (session, to) = (self.session.clone(), Some(agent.clone()));
        Arc::new(HandOffTool { name, description, to, session })
    }
}

/// By which a model hands over.
struct HandOffTool {
    name: String,
    description: String,
    /// `None`: the session's own agent.
    to: Option<SessionAgent>,
    session: Arc<OnceLock<WeakAgentSession>>,
}

#[async_trait]
impl Tool for HandOffTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    async fn invoke(&self, _: ToolContext, _: JsonObject) -> Result<Value, ToolError> {
        let over = || ToolError::new("the session is over");
        let session = self.session.get().and_then(WeakAgentSession::upgrade).ok_or_else(over)?;
        let handed = match &self.to {
            Some(agent) => session.hand_off(agent),
            None => session.hand_back(),
        };
        handed.map_err(|error| ToolError::new(error.to_string()))?;
        Ok(json!({ "status": "The conversation goes over to the other agent." }))
    }
}
