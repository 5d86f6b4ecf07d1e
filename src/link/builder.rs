//! Linking an agent when a session is built.

use std::{collections::HashSet, sync::Arc};

use antiphon_agent::{AgentRef, InvocationContext, Invoke};

use super::{AgentLink, policy::Both};
use crate::session::{MakePolicy, SessionAgent, SessionBuilder, StartError};

impl SessionBuilder {
    /// Links an agent: the session is an invocation of it. Its instructions and tools are the speech
    /// model's, each finished turn is a snapshot in its store, and its custom state and artifacts are
    /// there for tools. Its function does not run: a speech model is in its place.
    ///
    /// Takes a reference to an [`Agent`](antiphon_agent::Agent) or an `Arc<dyn Invoke>`. The agent is
    /// one over a prompt, or declared able to speak by
    /// [`AgentBuilder::voice`](antiphon_agent::AgentBuilder::voice), and has a store; else
    /// [`SessionBuilder::build`] refuses it, as it does a tool that the session has by this name too.
    /// Tools come from the agent and from the session's registry as it is when the session is built.
    /// The agent's own policy holds for its tools, beside the session's.
    ///
    /// The session's id is that of the agent's session. One that has snapshots is continued.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use antiphon::{
    ///     agent::{Agent, InMemorySessionStore, RuntimeError, Voice},
    ///     live::LiveProvider,
    ///     session::{AgentSession, StartError},
    /// };
    ///
    /// fn session(provider: Arc<dyn LiveProvider>) -> Result<AgentSession, StartError> {
    ///     let agent: Agent = Agent::custom("host", |_cx, _responder, runner| async move {
    ///         // Runs for text; by voice the model is in its place.
    ///         Ok(runner.result())
    ///     })
    ///     .voice(Voice::new("You are a friendly host."))
    ///     .store(InMemorySessionStore::new())
    ///     .build();
    ///     AgentSession::builder(provider).agent(&agent).resume("table-4").build()
    /// }
    /// ```
    pub fn agent<A: Invoke + Clone + 'static>(self, agent: &A) -> Self {
        let agent = Arc::new(agent.clone());
        self.link(Box::new(move |settings| Arc::new(AgentLink::new(agent, settings))))
    }
}

impl SessionAgent {
    /// An agent of the runtime as one that a session hands over to: with its name and description, and
    /// with the instructions, the tools and the policy over them that it has by voice. Its store and its
    /// state take no part: the turns are those of the agent that is linked, and their messages say who
    /// spoke.
    ///
    /// Errs where the agent is neither one over a prompt nor declared able to speak.
    pub fn of<A: Invoke>(agent: &A) -> Result<Self, StartError> {
        let AgentRef { name, description, .. } = agent.agent_ref();
        let Some(voice) = agent.voice() else {
            let what = format!("agent {name:?} is not declared able to speak: see voice");
            return Err(StartError::InvalidConfig(what));
        };
        let instructions =
            voice.instructions(&InvocationContext::new()).map_err(StartError::Agent)?;
        let tools = voice.executor().map(|executor| executor.tools()).unwrap_or_default();
        let agents = voice.executor().and_then(|executor| executor.authorizer()).cloned();
        let names: HashSet<Arc<str>> = tools.iter().map(|tool| tool.name().into()).collect();
        let policy = agents.map(|agents| -> Arc<MakePolicy> {
            Arc::new(move |sessions| Arc::new(Both::new(agents.clone(), names.clone(), sessions)))
        });
        let made = Self::new(name, instructions).with_tools(tools, policy);
        Ok(match description {
            Some(description) => made.description(description),
            None => made,
        })
    }
}
