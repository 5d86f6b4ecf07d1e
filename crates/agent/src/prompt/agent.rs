//! Agents over prompts.

use std::sync::Arc;

use antiphon_types::Status;
use futures_util::StreamExt;
use serde_json::Value;

use super::{Prompt, PromptModel, RenderedPrompt};
use crate::{
    Agent, AgentBuilder, AgentInput, AgentResult, GenerateResponse, InMemory, InvocationContext,
    Memory, Message, Messages, Model, Parking, Registry, Responder, Role, RuntimeError, Session,
    SessionRunner, SessionState, State, ToolExecutor, TurnFailure, TurnResult, Voice,
    agent::{validate_input, validate_resume_against_history},
    generate_stream,
    ledger::close_parked,
    session::SessionAccess,
};

/// An agent whose turns are generations of a prompt over the conversation so far.
///
/// What the prompt says is not part of the conversation. A turn that fails is committed up to its
/// last complete round of tools, and undone where the model was not reached.
///
/// ```
/// use std::sync::Arc;
///
/// use antiphon_agent::{
///     Agent, AgentInit, InMemorySessionStore, InvocationContext, Model, Prompt, PromptAgent,
///     ToolExecutor,
/// };
///
/// async fn ahoy(
///     model: Arc<dyn Model>,
///     tools: ToolExecutor,
/// ) -> Result<String, Box<dyn std::error::Error>> {
///     let prompt = Prompt::builder("pirate").system("You are a sarcastic pirate.").build()?;
///     let agent: Agent = PromptAgent::inline(prompt)
///         .model(model)
///         .tools(tools)
///         .agent("pirate")?
///         .store(InMemorySessionStore::new())
///         .build();
///     let cx = InvocationContext::new();
///     let output = agent.run_text(&cx, "Ahoy!", AgentInit::default()).await?;
///     Ok(output.message.map(|message| message.joined_text()).unwrap_or_default())
/// }
/// ```
#[derive(Clone)]
pub struct PromptAgent {
    source: Source,
    input: Value,
    model: Option<Arc<dyn Model>>,
    tools: Option<ToolExecutor>,
    memory: Arc<dyn Memory>,
    parking: Parking,
}

#[derive(Clone)]
enum Source {
    Inline(Prompt),
    Registered { registry: Arc<Registry>, prompt: Option<Arc<str>> },
}

impl PromptAgent {
    /// An agent over this prompt.
    pub fn inline(prompt: Prompt) -> Self {
        Self::of(Source::Inline(prompt))
    }

    /// An agent over the registered prompt of its own name, unless
    /// [`PromptAgent::named_prompt`] says otherwise. A model that the prompt names is looked up in
    /// the registry too, in either case.
    pub fn registered(registry: Arc<Registry>) -> Self {
        Self::of(Source::Registered { registry, prompt: None })
    }

    fn of(source: Source) -> Self {
        let memory = Arc::new(InMemory::new());
        let parking = Parking::default();
        Self { source, input: Value::Null, model: None, tools: None, memory, parking }
    }

    /// Sets the registered prompt and the input it is rendered with. An empty name is that of the
    /// agent, and a `null` input the prompt's default one. One prompt can stand behind many agents.
    pub fn named_prompt(mut self, name: impl Into<Arc<str>>, input: Value) -> Self {
        if let Source::Registered { prompt, .. } = &mut self.source {
            *prompt = Some(name.into()).filter(|name| !name.is_empty());
        }
        self.input(input)
    }

    /// Sets the input that the prompt is rendered with, in each turn.
    pub fn input(mut self, input: Value) -> Self {
        self.input = input;
        self
    }

    /// Sets the model, in the place of the prompt's.
    pub fn model(mut self, model: Arc<dyn Model>) -> Self {
        self.model = Some(model);
        self
    }

    /// Sets the tools, with the policy over them; the prompt may name some of them. Default: none,
    /// or those of the registry without a policy.
    pub fn tools(mut self, tools: ToolExecutor) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Sets the memory that tools and policy see, each session its own part.
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = memory;
        self
    }

    /// Sets how calls wait in writing over which a person is to decide: see
    /// [`Verdict::Ask`](crate::Verdict::Ask). A voice session has a setting of its own.
    pub fn parking(mut self, parking: Parking) -> Self {
        self.parking = parking;
        self
    }

    /// Begins the agent. The prompt is rendered once, with the default state and no conversation.
    /// Errs where there is no such prompt, model or tool, where the input does not fit the prompt,
    /// and where a prompt with messages of its own does not place the conversation: it would never
    /// hear its user.
    pub fn agent<S: State>(
        self,
        name: impl Into<Arc<str>>,
    ) -> Result<AgentBuilder<S>, RuntimeError> {
        let name = name.into();
        let prompt = self.find_prompt(&name)?;
        let model = self.find_model(&prompt)?;
        let tools = match (&self.source, &self.tools) {
            (Source::Registered { registry, .. }, None) => {
                Some(ToolExecutor::new(registry.tools().clone(), None))
            }
            (_, tools) => tools.clone(),
        };
        // Names that are wrong show here; tools that come later are offered then.
        let offered = prompt.offered(tools.as_ref())?;
        try_out::<S>(&prompt, &self.input)?;
        let description = prompt.description().cloned();
        let (input, memory, parking) = (self.input, self.memory, self.parking);
        let turns = Turns { prompt, model, tools, input, memory, parking };
        let turns = Arc::new(turns);
        let memory = turns.memory.clone();
        let running = turns.clone();
        let mut voice = Voice::rendered(move |cx| turns.instructions::<S>(cx)).memory(memory);
        if let Some(tools) = offered {
            voice = voice.tools(tools);
        }
        let agent: AgentBuilder<S> = Agent::custom(
            name,
            move |_cx: InvocationContext, responder: Responder, runner: SessionRunner<S>| {
                running.clone().run(responder, runner)
            },
        );
        let agent = agent.voice(voice);
        Ok(match description {
            Some(description) => agent.description(description),
            None => agent,
        })
    }

    fn find_prompt(&self, agent: &Arc<str>) -> Result<Prompt, RuntimeError> {
        match &self.source {
            Source::Inline(prompt) => Ok(prompt.clone()),
            Source::Registered { registry, prompt } => {
                let name = prompt.as_ref().unwrap_or(agent);
                registry.lookup_prompt(name).ok_or_else(|| {
                    let text = format!("agent {agent:?} needs the prompt {name:?}: register it");
                    RuntimeError::new(Status::NotFound, text)
                })
            }
        }
    }

    fn find_model(&self, prompt: &Prompt) -> Result<Arc<dyn Model>, RuntimeError> {
        if let Some(model) = &self.model {
            return Ok(model.clone());
        }
        let none = |what: String| {
            let text = format!("prompt {:?} {what}", prompt.name());
            RuntimeError::new(Status::NotFound, text)
        };
        match (prompt.model(), &self.source) {
            (Some(PromptModel::Given(model)), _) => Ok(model.clone()),
            (Some(PromptModel::Named(name)), Source::Registered { registry, .. }) => registry
                .lookup_model(name)
                .ok_or_else(|| none(format!("needs the model {name:?}: register it"))),
            (Some(PromptModel::Named(name)), Source::Inline(_)) => {
                Err(none(format!("names the model {name:?}: give the agent a model")))
            }
            (None, _) => Err(none("has no model: give it or the agent one".into())),
        }
    }
}

/// Renders once, so that mistakes show where the agent is defined.
fn try_out<S: State>(prompt: &Prompt, input: &Value) -> Result<(), RuntimeError> {
    let session = Arc::new(Session::<S>::new("definition", SessionState::default()));
    let state = encode(&session.custom())?;
    let cx = InvocationContext::new().with_session(session as Arc<dyn SessionAccess>);
    prompt.render_with_state(&cx, input, &Messages::new(), &state)?;
    let probe = Arc::new(Message::user("?"));
    let history = Messages::from_iter([probe.clone()]);
    let rendered = prompt.render_with_state(&cx, input, &history, &state)?;
    if !prompt.places_history(&rendered, &probe) {
        return Err(RuntimeError::InvalidArgument(format!(
            "prompt {:?} sets its own messages and does not place the conversation: put \
             {{{{history}}}} where it belongs",
            prompt.name()
        )));
    }
    Ok(())
}

/// What the turns of an agent have in common.
struct Turns {
    prompt: Prompt,
    model: Arc<dyn Model>,
    tools: Option<ToolExecutor>,
    input: Value,
    memory: Arc<dyn Memory>,
    parking: Parking,
}

impl Turns {
    async fn run<S: State>(
        self: Arc<Self>,
        responder: Responder,
        runner: SessionRunner<S>,
    ) -> Result<AgentResult, RuntimeError> {
        let (turns, responder, runner) = (&*self, &responder, &runner);
        runner.run(|cx, input| turns.turn(cx, input, responder, runner)).await?;
        Ok(runner.result())
    }

    /// What the prompt says as the host, for a speech model that hears the conversation itself.
    fn instructions<S: State>(&self, cx: &InvocationContext) -> Result<String, RuntimeError> {
        let state = match (self.prompt.uses_state(), cx.session::<S>()) {
            (true, Some(session)) => encode(&session.custom())?,
            _ => Value::Null,
        };
        let rendered = self.prompt.render_with_state(cx, &self.input, &Messages::new(), &state)?;
        let system = rendered.messages.iter().filter(|message| message.role == Role::System);
        let texts: Vec<_> = system.map(|message| message.joined_text()).collect();
        Ok(texts.join("\n\n"))
    }

    async fn turn<S: State>(
        &self,
        cx: InvocationContext,
        input: AgentInput,
        responder: &Responder,
        runner: &SessionRunner<S>,
    ) -> Result<TurnResult, TurnFailure> {
        // The input's message is in it.
        let mut history = runner.messages();
        let mut before = history.clone();
        if input.message.is_some() {
            before.pop();
        }
        validate_input(&input, &before)?;
        let resume = input.resume.unwrap_or_default();
        let resumes = !(resume.respond.is_empty() && resume.restart.is_empty());
        // Calls that wait for a person at the end of the conversation do so apart from it now.
        if !resumes && let Some(waiting) = close_parked(&before, &[]) {
            runner.update_messages(|mut messages| {
                let rest: Vec<_> = messages.range(before.len()).cloned().collect();
                messages.truncate(before.len());
                messages.push(waiting.clone());
                messages.extend(rest);
                messages
            });
            history = runner.messages();
        }
        if resumes {
            validate_resume_against_history(&resume, &history)?;
        }
        // A state may be large; it is written out only for who reads it.
        let state = match self.prompt.uses_state() {
            true => encode(&runner.custom())?,
            false => Value::Null,
        };
        let mut rendered = self.prompt.render_with_state(&cx, &self.input, &history, &state)?;
        if resumes {
            end_with(&mut rendered, &history);
        }
        let asked = rendered.messages.clone();
        let request = rendered.generate(self.model.clone(), self.tools.as_ref())?;
        let request =
            request.resume(resume).memory(self.memory.clone()).parking(self.parking.clone());
        let mut chunks = generate_stream(&cx, request);
        while let Some(chunk) = chunks.next().await {
            responder.send_model_chunk(chunk).await;
        }
        match chunks.response().await {
            Ok(response) => {
                keep(runner, &history, &asked, &response);
                Ok(TurnResult { finish_reason: Some(response.finish_reason) })
            }
            Err(failed) => match failed.response {
                Some(response) => {
                    keep(runner, &history, &asked, &response);
                    Err(TurnFailure::commit(failed.error))
                }
                None => Err(TurnFailure::roll_back(failed.error)),
            },
        }
    }
}

/// In the middle of a turn nothing comes after the conversation: its last message is what resumes.
fn end_with(rendered: &mut RenderedPrompt, history: &Messages) {
    let last = history.last();
    let end = rendered
        .messages
        .iter()
        .rposition(|message| last.is_some_and(|last| Arc::ptr_eq(last, message)));
    if let Some(end) = end {
        rendered.messages.truncate(end + 1);
    }
}

/// Adds what came of a generation to the conversation, which the prompt's own messages are no part
/// of. What tools added meanwhile stays, after it.
fn keep<S: State>(
    runner: &SessionRunner<S>,
    history: &Messages,
    asked: &[Arc<Message>],
    response: &GenerateResponse,
) {
    // A resume settles the requests of the last message.
    let revised = asked.len().checked_sub(1).and_then(|last| {
        let (before, after) = (asked.get(last)?, response.history().get(last)?);
        let of_history = history.last().is_some_and(|last| Arc::ptr_eq(last, before));
        (of_history && !Arc::ptr_eq(before, after)).then(|| after.clone())
    });
    runner.update_messages(|mut messages| {
        let meanwhile: Vec<_> = messages.range(history.len()).cloned().collect();
        messages.truncate(history.len());
        if let Some(revised) = &revised {
            messages.pop();
            messages.push(revised.clone());
        }
        messages.extend(response.new_messages().iter().cloned());
        messages.extend(meanwhile);
        messages
    });
}

fn encode(state: &impl State) -> Result<Value, RuntimeError> {
    serde_json::to_value(state)
        .map_err(|error| RuntimeError::internal(format!("the custom state is no JSON: {error}")))
}

impl std::fmt::Debug for PromptAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let prompt = match &self.source {
            Source::Inline(prompt) => Some(prompt.name()),
            Source::Registered { prompt, .. } => prompt.as_ref(),
        };
        f.debug_struct("PromptAgent").field("prompt", &prompt).finish_non_exhaustive()
    }
}
