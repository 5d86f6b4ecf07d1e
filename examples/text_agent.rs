//! An agent in text whose tool asks before it moves money: the turn is interrupted, the approval is
//! asked for here, and the turn goes on, be it in another process and on another day.
//!
//! `cargo run --example text_agent` and then `send 200 to alice`. Leave the question open: end the
//! input, or kill the program. The same command asks again, and goes on with the answer. The
//! conversation is kept in a directory, which may be named. The model is a few rules in this file, so
//! that no key and no network is needed.

use std::{env, error::Error, path::PathBuf, sync::Arc};

use antiphon::agent::{
    Agent, AgentInit, AgentInput, FileSessionStore, InterruptibleTool, InvocationContext, Model,
    ModelChunk, ModelError, ModelFinish, ModelRequest, ModelStream, Part, Prompt, PromptAgent,
    SnapshotReader, ToolExecutor, ToolRegistry, ToolResume,
    tool::{interrupt, interrupt_as},
    types::{ToolArguments, ToolCallRequest},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};

#[derive(Deserialize, JsonSchema)]
struct Transfer {
    /// Who gets it.
    to: String,
    /// In euros.
    amount: f64,
}

/// Why the tool asks.
#[derive(Deserialize, Serialize)]
struct Large {
    amount: f64,
}

/// What it is answered.
#[derive(Deserialize, Serialize)]
struct Approval {
    approved: bool,
}

type TransferTool = InterruptibleTool<Transfer, String, Approval>;

fn transfer() -> TransferTool {
    InterruptibleTool::new(
        "transfer",
        "Transfers money.",
        |_cx, Transfer { to, amount }, approval: Option<Approval>| async move {
            match approval {
                None if amount > 100.0 => Err(interrupt(Large { amount })),
                Some(Approval { approved: false }) => Ok("the user refused".to_owned()),
                _ => Ok(format!("sent {amount} euros to {to}")),
            }
        },
    )
}

/// The conversation that each run goes on with.
const SESSION: &str = "text-agent";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tool = transfer();
    let registry = ToolRegistry::new();
    registry.register(tool.clone())?;
    let prompt =
        Prompt::builder("banker").system("You move money when you are asked to.").build()?;
    let directory = env::args().nth(1).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| env::temp_dir().join("antiphon-text-agent"));
    let store = FileSessionStore::open(directory).await?;
    let agent: Agent = PromptAgent::inline(prompt)
        .model(Arc::new(Banker))
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .agent("banker")?
        .store(store.clone())
        .build();

    let cx = InvocationContext::new();
    let mut lines = BufReader::new(stdin()).lines();
    // What was asked when an earlier run ended.
    let mut waiting: Vec<Part> = match store.get_latest_snapshot(&cx, SESSION).await? {
        Some(latest) => {
            let messages = latest.state.unwrap_or_default().messages;
            messages.last().map(|last| last.interrupts().cloned().collect()).unwrap_or_default()
        }
        None => Vec::new(),
    };
    let mut conversation = agent.connect(&cx, AgentInit::session(SESSION)).await?;
    loop {
        let input = match waiting.is_empty() {
            true => lines.next_line().await?.map(AgentInput::text),
            false => ask(&tool, &waiting, &mut lines).await?.map(AgentInput::from),
        };
        let Some(input) = input else { break };
        conversation.send(input).await?;
        waiting.clear();
        while let Some(chunk) = conversation.next_chunk().await {
            if let Some(said) = &chunk.model_chunk {
                print!("{}", said.text());
                waiting.extend(said.interrupts().cloned());
            }
            if let Some(end) = chunk.turn_end {
                println!();
                // From here on the turn survives whatever happens to this process.
                if let Some(id) = end.snapshot_id {
                    println!("committed {id}");
                }
                break;
            }
        }
    }
    conversation.output().await?;
    Ok(())
}

/// Has the person at the keyboard decide over each call that waits; `None` where they are gone.
async fn ask(
    tool: &TransferTool,
    waiting: &[Part],
    lines: &mut Lines<BufReader<Stdin>>,
) -> Result<Option<ToolResume>, Box<dyn Error>> {
    let mut resume = ToolResume::default();
    for part in waiting {
        let Some(Large { amount }) = interrupt_as(part) else { continue };
        println!("Transfer {amount} euros? [y/n]");
        let Some(answer) = lines.next_line().await? else { return Ok(None) };
        let approved = answer.trim() == "y";
        resume.restart.push(tool.resume(part, Approval { approved })?);
    }
    Ok(Some(resume))
}

/// A model that understands `send AMOUNT to NAME`.
struct Banker;

#[async_trait::async_trait]
impl Model for Banker {
    fn name(&self) -> &str {
        "banker"
    }

    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let last = request.messages.last();
        let words = last.map(|message| message.joined_text()).unwrap_or_default();
        let outputs = last.into_iter().flat_map(|message| message.tool_responses());
        let output = outputs.filter_map(|(_, response)| response.output.as_ref()?.as_str()).next();
        let chunk = match (output, words.split_whitespace().collect::<Vec<_>>().as_slice()) {
            (Some(output), _) => ModelChunk::Text(format!("Well: {output}.")),
            (None, ["send", amount, "to", name]) => call(amount.parse().unwrap_or(0.0), name),
            _ => ModelChunk::Text("Say for example: send 200 to alice".to_owned()),
        };
        let done = ModelChunk::Done { reason: ModelFinish::Stop, usage: None, metadata: None };
        Ok(Box::pin(futures_util::stream::iter([Ok(chunk), Ok(done)])))
    }
}

fn call(amount: f64, name: &str) -> ModelChunk {
    let arguments = match json!({ "to": name, "amount": amount }) {
        Value::Object(arguments) => ToolArguments::Object(arguments),
        other => ToolArguments::Json(other.to_string()),
    };
    let (id, name) = ("transfer-1".into(), "transfer".into());
    ModelChunk::ToolCall(ToolCallRequest { id, name, arguments })
}
