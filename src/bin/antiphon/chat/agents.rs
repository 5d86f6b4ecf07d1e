//! The agents that one can write with.

use std::{path::Path, sync::Arc};

use antiphon::{
    agent::{
        Agent, AgentFinishReason, AgentHandle, Memory, Message, Model, ModelResponseChunk, Part,
        Prompt, PromptAgent, Responder, Role, SessionRunner, SessionStore, ToolExecutor,
        ToolRegistry, TurnResult,
    },
    policy::PolicyHost,
    providers::cascade::offline::matcher::PhraseMatcher,
};

use crate::{args::ChatArguments, chat_model, failure::Failure};

/// What a model is told that knows nothing of the program.
const INSTRUCTIONS: &str = "You are a helpful assistant. Answer in a few short sentences. Use your \
    tools where they help, and say in words what they gave.";

/// An agent, and the model behind it.
pub struct Opened {
    pub agent: AgentHandle,
    pub model: Option<String>,
}

/// The agent that the command line names.
pub fn open(
    arguments: &ChatArguments,
    registry: Arc<ToolRegistry>,
    policy: PolicyHost,
    memory: Arc<dyn Memory>,
    store: Arc<dyn SessionStore>,
) -> Result<Opened, Failure> {
    let chat = &arguments.chat_model;
    let default = if chat.chat_model.is_some() { "assistant" } else { "offline" };
    let name = arguments.agent.as_deref().unwrap_or(default);
    let prompt = match name {
        "echo" => return Ok(Opened { agent: echo(store).handle(), model: None }),
        "offline" => Prompt::builder(name).build(),
        "assistant" => Prompt::builder(name).system(INSTRUCTIONS).build(),
        file => Ok(from_file(file, &arguments.prompts)?),
    };
    let prompt = prompt.map_err(Failure::failed)?;
    let model: Arc<dyn Model> = match name {
        "offline" => Arc::new(PhraseMatcher::new()),
        _ => Arc::new(chat_model::open(chat)?),
    };
    let told = model.name().to_owned();
    let agent: Agent = PromptAgent::inline(prompt)
        .model(model)
        .tools(ToolExecutor::new(registry, Some(Arc::new(policy))))
        .memory(memory)
        .agent(name)
        .map_err(Failure::usage)?
        .shared_store(store)
        .build();
    Ok(Opened { agent: agent.handle(), model: Some(told) })
}

/// The prompt of this name in the folder of prompts.
fn from_file(name: &str, folder: &Path) -> Result<Prompt, Failure> {
    let prompts = if folder.is_dir() {
        Prompt::load_dir(folder).map_err(Failure::usage)?
    } else {
        Vec::new()
    };
    prompts.into_iter().find(|prompt| **prompt.name() == *name).ok_or_else(|| {
        Failure::usage(format!(
            "there is no agent {name:?}: neither echo, offline nor assistant, and there is no file \
             {}",
            folder.join(format!("{name}.prompt")).display()
        ))
    })
}

/// Repeats what it is told.
fn echo(store: Arc<dyn SessionStore>) -> Agent {
    let agent =
        Agent::custom("echo", |_cx, responder: Responder, runner: SessionRunner<_>| async move {
            let (responder, session) = (&responder, &runner);
            runner
                .run(|_cx, input| async move {
                    let text =
                        input.message.map(|message| message.joined_text()).unwrap_or_default();
                    let parts = vec![Part::text(text)];
                    let chunk = ModelResponseChunk::new(Role::Model, 0, parts.clone());
                    responder.send_model_chunk(chunk).await;
                    session.add_messages([Message::new(Role::Model, parts)]);
                    Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
                })
                .await?;
            Ok(runner.result())
        });
    agent.description("Repeats what it is told.").shared_store(store).build()
}
