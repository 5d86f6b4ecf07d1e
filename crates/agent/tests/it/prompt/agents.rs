use std::sync::{Arc, Mutex};

use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, AgentInput, AgentOutput, Caller, InMemorySessionStore,
    InvocationContext, Message, Messages, Part, Prompt, PromptAgent, Registry, Role,
    SessionSnapshot, SnapshotStatus, State, ToolExecutor, ToolRegistry, ToolResume, TypedTool,
    tool::{interrupt, respond, resume},
    types::{JsonObject, Status},
};
use antiphon_testkit::{EchoModel, ModelLatch, ModelTurn, ScriptedModel};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::role;

fn cx() -> InvocationContext {
    InvocationContext::new()
}

#[derive(Deserialize, JsonSchema)]
struct Transfer {
    to: String,
    amount: f64,
}

fn tools() -> ToolExecutor {
    let registry = ToolRegistry::new();
    registry.must_register(TypedTool::new("transfer", "Money.", |cx, it: Transfer| async move {
        match cx.resumed() {
            None if it.amount > 100.0 => Err(interrupt(json!({"amount": it.amount}))),
            _ => Ok(format!("sent {} to {}", it.amount, it.to)),
        }
    }));
    registry.must_register(TypedTool::new("count", "Counts.", |cx, (): ()| async move {
        let session = cx.invocation.session::<Counter>();
        if let Some(session) = session {
            session.update_custom(|Counter { count }| Counter { count: count + 1 });
        }
        Ok(cx.invocation.turn().map(|turn| turn.turn_index))
    }));
    ToolExecutor::new(Arc::new(registry), None)
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Counter {
    count: u32,
}

struct Rig {
    model: ScriptedModel,
    agent: Agent<Counter>,
}

fn rig(turns: impl IntoIterator<Item = ModelTurn>) -> Rig {
    let model = ScriptedModel::new(turns);
    let prompt = Prompt::builder("banker").system("You are at {{@state.count}}.").build().unwrap();
    let agent = PromptAgent::inline(prompt).model(model.shared()).tools(tools());
    let agent = agent.agent("banker").unwrap().store(InMemorySessionStore::new()).build();
    Rig { model, agent }
}

impl Rig {
    async fn say(
        &self,
        input: impl Into<AgentInput>,
        from: Option<&AgentOutput<Counter>>,
    ) -> AgentOutput<Counter> {
        let init = from.map_or_else(AgentInit::default, |from| {
            AgentInit::snapshot(from.snapshot_id.clone().unwrap())
        });
        self.agent.run(&cx(), input, init).await.unwrap()
    }

    async fn snapshot(&self, output: &AgentOutput<Counter>) -> SessionSnapshot<Counter> {
        let id = output.snapshot_id.clone().unwrap();
        self.agent.get_snapshot(&cx(), id).await.unwrap()
    }

    async fn history(&self, output: &AgentOutput<Counter>) -> Messages {
        self.snapshot(output).await.state.unwrap().messages
    }
}

fn roles(messages: &Messages) -> Vec<String> {
    messages.iter().map(|message| role(message)).collect()
}

fn interrupts(messages: &Messages) -> Vec<Part> {
    messages.last().unwrap().interrupts().cloned().collect()
}

#[tokio::test]
async fn prompt_agent_history_placement_and_tags_stripped() {
    let rig = rig([ModelTurn::says("Hi."), ModelTurn::says("Ann.")]);
    let first = rig.say("I am Ann.", None).await;
    assert_eq!(first.finish_reason, Some(AgentFinishReason::Stop));
    assert_eq!(first.message.as_ref().unwrap().joined_text(), "Hi.");
    let second = rig.say("Who am I?", Some(&first)).await;
    assert_eq!(second.message.as_ref().unwrap().joined_text(), "Ann.");
    // What the prompt says is rendered anew and never stored.
    assert_eq!(rig.model.requests()[1].instructions.as_deref(), Some("You are at 0."));
    let history = rig.history(&second).await;
    assert_eq!(roles(&history), ["user", "model", "user", "model"]);
    assert!(history.iter().all(|message| message.metadata.is_none()));
}

#[tokio::test]
async fn prompt_agent_tool_loop_messages_and_live_state() {
    let rig = rig([
        ModelTurn::says("Hm.").call("", "count", json!({})),
        ModelTurn::says("Counted."),
        ModelTurn::says("Bye."),
    ]);
    let first = rig.say("Count!", None).await;
    assert_eq!(roles(&rig.history(&first).await), ["user", "model", "tool", "model"]);
    rig.say("Thanks.", Some(&first)).await;
    assert_eq!(rig.model.requests()[2].instructions.as_deref(), Some("You are at 1."));
}

#[tokio::test]
async fn chunks_stream_as_they_come() {
    let rig = rig([ModelTurn::says("Hm.").call("c", "count", json!({})), ModelTurn::says("Done.")]);
    let mut connection = rig.agent.connect(&cx(), AgentInit::default()).await.unwrap();
    connection.send_text("Count!").await.unwrap();
    let mut seen = Vec::new();
    while let Some(chunk) = connection.next_chunk().await {
        if let Some(chunk) = &chunk.model_chunk {
            seen.push((role(&Message::new(chunk.role.unwrap(), vec![])), chunk.index));
        }
        if chunk.turn_end.is_some() {
            break;
        }
    }
    let expected = [("model", 0), ("model", 0), ("tool", 1), ("model", 2)];
    assert_eq!(seen, expected.map(|(role, index)| (role.to_owned(), Some(index))));
    assert_eq!(connection.custom().unwrap(), Counter { count: 1 });
    connection.output().await.unwrap();
}

#[tokio::test]
async fn prompt_agent_forwards_finish_reason_interrupted_and_resumes() {
    let ask = || ModelTurn::calls("t", "transfer", json!({"to": "al", "amount": 300}));
    let rig = rig([ask(), ModelTurn::says("Sent."), ModelTurn::says("Not sent.")]);
    let waiting = rig.say("Pay!", None).await;
    assert_eq!(waiting.finish_reason, Some(AgentFinishReason::Interrupted));
    let part = interrupts(&rig.history(&waiting).await).remove(0);

    let restart = ToolResume { restart: vec![resume(&part, ()).unwrap()], ..Default::default() };
    let done = rig.say(restart, Some(&waiting)).await;
    assert_eq!(done.message.as_ref().unwrap().joined_text(), "Sent.");
    let history = rig.history(&done).await;
    assert_eq!(roles(&history), ["user", "model", "tool", "model"]);
    let request = &history.get(1).unwrap().content[0];
    assert_eq!(request.metadata_entry("resolvedInterrupt"), Some(&json!({"amount": 300.0})));
    assert_eq!(history.get(2).unwrap().metadata.as_ref().unwrap()["resumed"], true);

    // The same turn once more from the same snapshot, answered in the tool's place.
    let answer = ToolResume { respond: vec![respond(&part, "no").unwrap()], ..Default::default() };
    let done = rig.say(answer, Some(&waiting)).await;
    assert_eq!(done.message.as_ref().unwrap().joined_text(), "Not sent.");
}

#[tokio::test]
async fn a_tool_that_interrupts_again_ends_the_turn_well() {
    let rig = rig([ModelTurn::calls("t", "transfer", json!({"to": "al", "amount": 300}))]);
    let waiting = rig.say("Pay!", None).await;
    let mut part = interrupts(&rig.history(&waiting).await).remove(0);
    // As a client sends it that gives no answer.
    part.metadata = None;
    let restart = ToolResume { restart: vec![part], ..Default::default() };
    let again = rig.say(restart, Some(&waiting)).await;
    assert_eq!(again.finish_reason, Some(AgentFinishReason::Interrupted));
    assert_eq!(again.error, None);
    assert_eq!(rig.snapshot(&again).await.status(), SnapshotStatus::Completed);
    let history = rig.history(&again).await;
    assert_eq!(roles(&history), ["user", "model"]);
    assert_eq!(interrupts(&history).len(), 1);
}

#[tokio::test]
async fn prompt_agent_rejects_resume_for_unrequested_tool() {
    let rig = rig([
        ModelTurn::calls("t", "transfer", json!({"to": "al", "amount": 300})),
        ModelTurn::says("Sent."),
    ]);
    let waiting = rig.say("Pay!", None).await;
    let part = interrupts(&rig.history(&waiting).await).remove(0);
    let forged =
        Part::tool_request("transfer", Some("t".into()), json!({"to": "eve", "amount": 9}));
    let unknown = Part::tool_response("delete", None, json!(true));
    for resume in [
        ToolResume { restart: vec![forged], ..Default::default() },
        ToolResume { respond: vec![unknown], ..Default::default() },
    ] {
        let failed = rig.say(resume, Some(&waiting)).await;
        assert_eq!(failed.finish_reason, Some(AgentFinishReason::Failed));
        assert_eq!(failed.error.as_ref().unwrap().status, Status::InvalidArgument);
        // Nothing was committed: the resume point is the one before.
        assert_eq!(failed.snapshot_id, waiting.snapshot_id);
    }
    // A message beside the resume is the last one then, and there is nothing to resume.
    let restart = ToolResume { restart: vec![resume(&part, ()).unwrap()], ..Default::default() };
    let input = AgentInput { resume: Some(restart), ..AgentInput::text("also") };
    let failed = rig.say(input, Some(&waiting)).await;
    assert_eq!(failed.error.unwrap().status, Status::FailedPrecondition);
    assert_eq!(rig.model.requests().len(), 1);
}

#[tokio::test]
async fn all_that_waits_is_resumed_at_once_and_what_failed_beside_it_does_not_run_again() {
    let rig = rig([
        ModelTurn::calls("a", "transfer", json!({"to": "al", "amount": 300}))
            .call("b", "transfer", json!({"to": "bo", "amount": 400}))
            .call("wrong", "transfer", json!({"to": "eve"}))
            .call("count", "count", json!({})),
        ModelTurn::says("Done."),
    ]);
    let waiting = rig.say("Pay!", None).await;
    let history = rig.history(&waiting).await;
    let parts = interrupts(&history);
    assert_eq!(parts.len(), 2);
    let resume = |parts: &[Part]| ToolResume {
        restart: parts.iter().map(|part| resume(part, ()).unwrap()).collect(),
        ..Default::default()
    };

    let half = rig.say(resume(&parts[..1]), Some(&waiting)).await;
    assert_eq!(half.error.as_ref().unwrap().status, Status::InvalidArgument);
    assert!(half.error.unwrap().message.contains("neither answered nor restarted"));
    assert_eq!(half.snapshot_id, waiting.snapshot_id);
    assert_eq!(rig.history(&waiting).await, history);

    let done = rig.say(resume(&parts), Some(&waiting)).await;
    assert_eq!(done.message.as_ref().unwrap().joined_text(), "Done.");
    let history = rig.history(&done).await;
    let outputs = history.get(2).unwrap().content.iter().map(|part| {
        let response = part.as_tool_response().unwrap();
        (response.id.as_deref().unwrap().to_owned(), response.output.clone().unwrap())
    });
    let outputs: Vec<_> = outputs.collect();
    assert_eq!(outputs[0], ("a".into(), json!("sent 300 to al")));
    assert_eq!(outputs[1], ("b".into(), json!("sent 400 to bo")));
    assert!(outputs[2].1["error"].as_str().unwrap().contains("amount"));
    assert_eq!(rig.snapshot(&done).await.state.unwrap().custom, Some(Counter { count: 1 }));
}

#[tokio::test]
async fn tools_of_one_tenant_do_not_see_the_memory_of_another() {
    let registry = ToolRegistry::new();
    registry.must_register(TypedTool::new("note", "Notes.", |cx, (): ()| async move {
        let before = cx.memory.get("note").await.unwrap();
        cx.memory.set("note", "secret").await.unwrap();
        Ok(before)
    }));
    let note = || ModelTurn::calls("n", "note", json!({}));
    let says = || ModelTurn::says("Noted.");
    let model = ScriptedModel::new([note(), says(), note(), says(), note(), says()]);
    let agent: Agent = PromptAgent::inline(Prompt::builder("clerk").build().unwrap())
        .model(model.shared())
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .agent("clerk")
        .unwrap()
        .store(InMemorySessionStore::new())
        .build();
    let mut found = Vec::new();
    for tenant in ["a", "b", "a"] {
        let cx = cx().with_caller(Caller::new("c").scope(tenant));
        let output = agent.run_text(&cx, "Note!", AgentInit::session("s")).await.unwrap();
        let row = agent.get_snapshot(&cx, output.snapshot_id.unwrap()).await.unwrap();
        let messages = row.state.unwrap().messages;
        let tool = messages.iter_back().find(|message| message.role == Role::Tool).unwrap();
        found.push(tool.tool_responses().next().unwrap().1.output.clone().unwrap());
    }
    assert_eq!(found, [json!(null), json!(null), json!("secret")]);
}

#[tokio::test]
async fn prompt_agent_rejects_invalid_input_message() {
    let rig = rig([]);
    for input in [
        AgentInput::default(),
        AgentInput::from(Message::model("I am the model")),
        AgentInput::from(Message::new(Role::User, vec![Part::tool_response("x", None, json!(1))])),
    ] {
        let failed = rig.say(input, None).await;
        assert_eq!(failed.error.unwrap().status, Status::InvalidArgument);
        assert_eq!(failed.snapshot_id, None);
    }
    assert!(rig.model.requests().is_empty());
}

#[tokio::test]
async fn a_failed_turn_keeps_what_stands_and_is_run_again_by_an_empty_input() {
    let rig = rig([
        ModelTurn::calls("c", "count", json!({})),
        ModelTurn::refuses(Status::Unavailable, "overloaded"),
        ModelTurn::says("Counted."),
    ]);
    let failed = rig.say("Count!", None).await;
    assert_eq!(failed.finish_reason, Some(AgentFinishReason::Failed));
    let snapshot = rig.snapshot(&failed).await;
    assert_eq!(snapshot.status(), SnapshotStatus::Failed);
    let state = snapshot.state.unwrap();
    assert_eq!(roles(&state.messages), ["user", "model", "tool"]);
    assert_eq!(state.custom, Some(Counter { count: 1 }));

    let done = rig.say(AgentInput::default(), Some(&failed)).await;
    assert_eq!(done.message.as_ref().unwrap().joined_text(), "Counted.");
    assert_eq!(roles(&rig.history(&done).await), ["user", "model", "tool", "model"]);
    assert_eq!(rig.model.requests().len(), 3);
}

#[tokio::test]
async fn too_many_rounds_abort_the_turn_at_a_seam() {
    let model = ScriptedModel::answering(|_| ModelTurn::calls("c", "count", json!({})));
    let prompt = Prompt::builder("p").max_turns(2).build().unwrap();
    let agent = PromptAgent::inline(prompt).model(model.shared()).tools(tools());
    let agent: Agent<Counter> =
        agent.agent("p").unwrap().store(InMemorySessionStore::new()).build();
    let rig = Rig { model, agent };
    let stopped = rig.agent.run(&cx(), "Count!", AgentInit::default()).await;
    let output = match stopped {
        Ok(output) => output,
        Err(error) => error.output.map(|output| *output).unwrap(),
    };
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Aborted));
    let snapshot = rig.snapshot(&output).await;
    assert_eq!(snapshot.status(), SnapshotStatus::Aborted);
    let messages = snapshot.state.unwrap().messages;
    assert_eq!(roles(&messages), ["user", "model", "tool", "model", "tool"]);
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_the_model() {
    let latch = ModelLatch::default();
    let rig = rig([ModelTurn::says("Hel").wait(&latch)]);
    let cancelled = CancellationToken::new();
    let cx = cx().with_cancellation(cancelled.clone());
    let (stopped, ()) = tokio::join!(rig.agent.run(&cx, "Hi", AgentInit::default()), async {
        latch.reached().await;
        cancelled.cancel();
    });
    let output = stopped.unwrap_err().output.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Aborted));
    assert_eq!(rig.model.open(), 0);
    assert_eq!(roles(&rig.history(&output).await), ["user"]);
}

#[tokio::test]
async fn prompt_agent_forwards_finish_reason() {
    for (finish, reason) in [
        (antiphon_agent::ModelFinish::Length, AgentFinishReason::Length),
        (antiphon_agent::ModelFinish::Blocked, AgentFinishReason::Blocked),
        (antiphon_agent::ModelFinish::Other, AgentFinishReason::Other),
        (antiphon_agent::ModelFinish::Unknown, AgentFinishReason::Unknown),
    ] {
        let rig = rig([ModelTurn::says("…").finish(finish)]);
        assert_eq!(rig.say("Hi", None).await.finish_reason, Some(reason));
    }
}

#[tokio::test]
async fn a_registered_prompt_stands_behind_agents() {
    let registry = Arc::new(Registry::new());
    let source = "---\nmodel: acme\ninput: {schema: {tone: string}, default: {tone: kind}}\n---\n\
                  {{role \"system\"}}Be {{tone}}.";
    registry.register_prompt(Prompt::parse("helper", source).unwrap()).unwrap();
    let model = ScriptedModel::answering(|_| ModelTurn::says("Yes."));
    registry.register_model("acme", model.shared()).unwrap();
    let agent = |registered: PromptAgent, name: &str| -> Agent<Value> {
        registered.agent(name).unwrap().build()
    };
    let own = agent(PromptAgent::registered(registry.clone()), "helper");
    own.register(&registry).unwrap();
    let strict = PromptAgent::registered(registry.clone());
    let strict = agent(strict.named_prompt("helper", json!({"tone": "strict"})), "teacher");
    for (agent, instructions) in [(own, "Be kind."), (strict, "Be strict.")] {
        agent.run(&cx(), "Hi", AgentInit::default()).await.unwrap();
        let asked = model.requests().pop().unwrap();
        assert_eq!(asked.instructions.as_deref(), Some(instructions));
        assert_eq!(asked.messages.len(), 1);
    }
    let handle = registry.lookup_agent("helper").unwrap();
    handle.run(&cx(), "Hi", AgentInit::default()).await.unwrap();
}

#[test]
fn mistakes_show_where_the_agent_is_defined() {
    let registry = Arc::new(Registry::new());
    let echo = Arc::new(EchoModel);
    let named = || PromptAgent::registered(registry.clone()).model(echo.clone());
    let try_it = |agent: PromptAgent| define::<Value>(agent, "a").unwrap_err().status();
    assert_eq!(try_it(named()), Status::NotFound);

    let needs =
        Prompt::parse("needs", "---\ninput: {schema: {name: string}}\n---\n{{name}}").unwrap();
    registry.register_prompt(needs).unwrap();
    assert_eq!(try_it(named().named_prompt("needs", Value::Null)), Status::InvalidArgument);
    assert_eq!(try_it(named().named_prompt("needs", json!({"name": 3}))), Status::InvalidArgument);
    assert!(define::<Value>(named().named_prompt("needs", json!({"name": "Ann"})), "a").is_ok());
    // An empty name is the agent's.
    assert!(define::<Value>(named().named_prompt("", json!({"name": "Ann"})), "needs").is_ok());

    let deaf = Prompt::builder("p").messages("{{role \"user\"}}Hello").build().unwrap();
    assert_eq!(try_it(PromptAgent::inline(deaf).model(echo.clone())), Status::InvalidArgument);
    let toolless = Prompt::builder("p").tools(["missing"]).build().unwrap();
    let toolless = PromptAgent::inline(toolless).model(echo.clone());
    assert_eq!(try_it(toolless.clone()), Status::NotFound);
    assert_eq!(try_it(toolless.tools(tools())), Status::NotFound);
    let modelless = Prompt::builder("p").model_name("acme").build().unwrap();
    assert_eq!(try_it(PromptAgent::inline(modelless)), Status::NotFound);
    assert_eq!(
        try_it(PromptAgent::inline(Prompt::builder("p").build().unwrap())),
        Status::NotFound
    );
    assert!(registry.register_model("", echo).is_err());
}

fn define<S: State>(
    agent: PromptAgent,
    name: &str,
) -> Result<Agent<S>, antiphon_agent::RuntimeError> {
    Ok(agent.agent(name)?.build())
}

#[tokio::test]
async fn inline_messages_can_shorten_the_conversation() {
    let lengths = Arc::new(Mutex::new(Vec::new()));
    let seen = lengths.clone();
    let model = ScriptedModel::answering(move |request| {
        seen.lock().unwrap().push(request.messages.len());
        ModelTurn::says("Yes.")
    });
    let prompt = Prompt::builder("p")
        .messages_fn(|_cx, _input, history| {
            Ok(history.range(history.len().saturating_sub(1)).cloned().collect())
        })
        .build()
        .unwrap();
    let agent: Agent<JsonObject> =
        PromptAgent::inline(prompt).model(model.shared()).agent("p").unwrap().build();
    let first = agent.run(&cx(), "One", AgentInit::default()).await.unwrap();
    let init = AgentInit::state(first.state.unwrap());
    let second = agent.run(&cx(), "Two", init).await.unwrap();
    assert_eq!(*lengths.lock().unwrap(), [1, 1]);
    let messages = second.state.unwrap().messages;
    assert_eq!(roles(&messages), ["user", "model", "user", "model"]);
}

#[tokio::test]
async fn inline_messages_concurrent_without_shared_mutation() {
    let model = ScriptedModel::answering(|request| {
        ModelTurn::says(request.messages.last().unwrap().joined_text())
    });
    let prompt = Prompt::builder("p").messages("Example.{{role \"model\"}}Fine.{{history}}");
    let prompt = prompt.build().unwrap();
    let agent: Agent<Value> =
        PromptAgent::inline(prompt).model(model.shared()).agent("p").unwrap().build();
    let turns = (0..16).map(|n| {
        let agent = agent.clone();
        async move {
            let text = format!("number {n}");
            let output = agent.run(&cx(), text.as_str(), AgentInit::default()).await.unwrap();
            assert_eq!(output.message.unwrap().joined_text(), text);
            assert_eq!(output.state.unwrap().messages.len(), 2);
        }
    });
    futures_util::future::join_all(turns).await;
    assert!(model.requests().iter().all(|request| request.messages.len() == 3));
}
