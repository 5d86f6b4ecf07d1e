//! The four agents of the recordings.

use std::{collections::HashMap, sync::Arc, time::Duration};

use antiphon_agent::{
    Agent, AgentBuilder, AgentFinishReason, AgentHandle, AgentInput, AgentResult, AgentStreamChunk,
    Artifact, FuncTool, InMemorySessionStore, InterruptibleTool, InvocationContext, Message,
    ModelFinish, ModelRequest, ModelResponseChunk, Part, Prompt, PromptAgent, Responder, Role,
    RuntimeError, SessionRunner, SessionState, ToolContext, ToolError, ToolErrors, ToolExecutor,
    ToolRegistry, TurnFailure, TurnResult, TypedTool, tool::interrupt, types::Status,
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::agent::paused_clock;

/// All of them, by name.
pub fn all() -> HashMap<&'static str, AgentHandle> {
    let chat = prompt("chatAgent").store(InMemorySessionStore::new()).build();
    let client = prompt("clientAgent").build();
    let work = work("workAgent").store(InMemorySessionStore::new()).build();
    let work_client = work_client();
    HashMap::from([
        ("chatAgent", chat.handle()),
        ("clientAgent", client.handle()),
        ("workAgent", work.handle()),
        ("workClientAgent", work_client.handle()),
    ])
}

/// An agent over a prompt, the scripted model and its tools.
fn prompt(name: &str) -> AgentBuilder<Value> {
    let prompt = Prompt::builder(name)
        .model(ScriptedModel::answering(model).shared())
        .system("You are scripted.")
        .tool_errors(ToolErrors::Fail)
        .build()
        .unwrap();
    let tools = ToolExecutor::new(Arc::new(tools()), None);
    let agent = PromptAgent::inline(prompt).tools(tools).agent(name).unwrap();
    agent.clock(paused_clock())
}

/// What the model of the recordings says to the last message of a request.
fn model(request: &ModelRequest) -> ModelTurn {
    let last = request.messages.last().unwrap();
    if last.role == Role::Tool {
        let outputs = last.tool_responses().map(|(_, response)| match &response.output {
            Some(output) => output.to_string(),
            None => String::new(),
        });
        let outputs = outputs.collect::<Vec<_>>().join(" ");
        return ModelTurn::says("tool said ").text(outputs);
    }
    let text = last.joined_text();
    let call = |name: &str, id: &str, input| Part::tool_request(name, Some(id.into()), input);
    let weather = |city: &str| call("getWeather", "w1", json!({ "city": city }));
    let transfer = |to, amount| call("transfer", "t1", json!({ "to": to, "amount": amount }));
    let whole = |parts| ModelTurn::default().whole(parts);
    match text.split([' ', ':']).next().unwrap_or_default() {
        "weather" => whole(vec![weather("Paris")]),
        "approve" => whole(vec![
            Part::text("Let me ask. "),
            call("userApproval", "a1", json!({ "action": "pay", "amount": 10 })),
        ]),
        "transfer" => whole(vec![transfer("alice", 200)]),
        "both" => whole(vec![weather("Oslo"), transfer("bob", 300)]),
        "failtool" => whole(vec![call("broken", "b1", json!({}))]),
        "fail" => ModelTurn::refuses(Status::Unavailable, "model is down"),
        "blocked" => ModelTurn::default().finish(ModelFinish::Blocked),
        "length" => whole(vec![Part::text("cut of")]).finish(ModelFinish::Length),
        "slow" => (0..20).fold(ModelTurn::default(), |turn, _| {
            turn.delay(Duration::from_millis(100)).text("tick ")
        }),
        _ => ["Hello", ", ", "you said ", &json!(text).to_string()]
            .into_iter()
            .fold(ModelTurn::default(), ModelTurn::text),
    }
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    city: String,
}

#[derive(Deserialize, JsonSchema)]
struct Payment {
    to: String,
    amount: u64,
}

fn tools() -> ToolRegistry {
    let tools = ToolRegistry::new();
    tools.must_register(TypedTool::new("getWeather", "w", |_cx, place: Place| async move {
        Ok(format!("sunny in {}", place.city))
    }));
    let anything = json!({ "type": "object" });
    tools.must_register(FuncTool::new(
        "userApproval",
        "ask",
        anything.clone(),
        |_cx, _args| async { Err(interrupt(())) },
    ));
    tools.must_register(InterruptibleTool::new(
        "transfer",
        "t",
        |cx: ToolContext, payment: Payment, _: Option<Value>| async move {
            let Payment { to, amount } = payment;
            match cx.resumed() {
                None if amount > 100 => {
                    Err(interrupt(json!({ "reason": "large_amount", "amount": amount })))
                }
                resumed => {
                    let resumed = json!(resumed);
                    Ok(format!("sent {amount} to {to} (resumed={resumed})"))
                }
            }
        },
    ));
    tools.must_register(FuncTool::new("broken", "b", anything, |_cx, _args| async {
        Err(ToolError::new("tool exploded"))
    }));
    tools
}

/// The custom state of the work agents.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Work {
    counter: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(default)]
    items: Vec<String>,
}

fn work(name: &str) -> AgentBuilder<Work> {
    Agent::custom(name, |_cx, responder, runner| async move {
        runner.run(|cx, input| turn(cx, &responder, &runner, input)).await?;
        Ok::<AgentResult, _>(runner.result())
    })
    .clock(paused_clock())
}

fn work_client() -> Agent<Work> {
    work("workClientAgent")
        .state_transform(|_, mut state: SessionState<Work>| {
            if let Some(work) = &mut state.custom {
                work.status = Some("[redacted]".to_owned());
            }
            Ok(Some(state))
        })
        .stream_transform(|_, chunk: AgentStreamChunk| {
            Ok(chunk.model_chunk.is_none().then_some(chunk))
        })
        .build()
}

async fn turn(
    cx: InvocationContext,
    responder: &Responder,
    runner: &SessionRunner<Work>,
    input: AgentInput,
) -> Result<TurnResult, TurnFailure> {
    let text = input.message.as_ref().map(Message::joined_text).unwrap_or_default();
    let status = |status: &str| Some(status.to_owned());
    runner.update_custom(|work| Work {
        counter: work.counter + 1,
        status: status("working"),
        ..work
    });
    if text.starts_with("slow") {
        tokio::select! {
            () = sleep(Duration::from_secs(3)) => {}
            _ = cx.ended() => return Err(RuntimeError::Cancelled("stopped".to_owned()).into()),
        }
    }
    runner.update_custom(|mut work| {
        work.items.push(text.clone());
        work
    });
    if text.starts_with("artifact") {
        runner.add_artifacts([Artifact::new("doc1", vec![Part::text("v1")])]);
        let metadata = json!({ "rev": 2 }).as_object().cloned();
        let second = Artifact::new("doc1", vec![Part::text("v2")]);
        runner.add_artifacts([Artifact { metadata, ..second }]);
        runner.add_artifacts([Artifact {
            parts: vec![Part::text("unnamed")],
            ..Artifact::default()
        }]);
    }
    let words = vec![Part::text(format!("working on {text}"))];
    responder.send_model_chunk(ModelResponseChunk::new(Role::Model, 0, words)).await;
    if text.starts_with("fail") {
        let error = RuntimeError::new(Status::Aborted, "ABORTED: custom failure");
        return Err(error.with_details(json!({ "why": "test" })).into());
    }
    runner.update_custom(|work| Work { status: status("done"), ..work });
    let turn = cx.turn().map_or(0, |turn| turn.turn_index);
    runner.add_messages([Message::model(format!("done {text} turn={turn}"))]);
    Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
}
