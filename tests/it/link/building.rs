//! What an agent brings, and what is refused.

use antiphon::{
    agent::{Denial, FuncTool, InMemory, Invoke, Memory, Verdict, types::JsonObject},
    session::*,
};
use serde_json::json;

use super::*;
use crate::rig::*;

fn tool(name: &str) -> FuncTool {
    FuncTool::new(name, "Does it.", json!({ "type": "object" }), |_cx, args| async { Ok(args) })
}

fn registry(names: &[&str]) -> Arc<ToolRegistry> {
    let registry = ToolRegistry::new();
    names.iter().for_each(|name| registry.must_register(tool(name)));
    Arc::new(registry)
}

fn with_tools(names: &[&str]) -> Agent {
    speaking(Arc::new(InMemorySessionStore::new()), registry(names))
}

fn refusal(builder: SessionBuilder) -> String {
    match builder.build() {
        Err(StartError::InvalidConfig(reason)) => reason,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was built"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_model_has_the_agents_tools_and_the_sessions() {
    let agent = with_tools(&["pay"]);
    let own = registry(&["clock"]);
    let mut rig = Setup::new()
        .config(|config| config.instructions("Be brief."))
        .build(|builder| builder.registry(own.clone()).agent(&agent).tool(tool("weather")))
        .start()
        .await;
    let config = rig.config();
    let names: Vec<_> = config.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["clock", "pay", "weather"]);
    assert_eq!(config.instructions.as_deref(), Some("You are a clerk.\n\nBe brief."));
    rig.user_says("u1", "Pay.").calls_tool("r1", "c1", "pay", r#"{"amount": 5}"#);
    assert_eq!(rig.outputs().await[0].response["amount"], 5);
    // A second session over the same parts is no trouble.
    Setup::new().build(|builder| builder.registry(own).agent(&agent)).ready();
}

#[test]
fn what_cannot_be_linked_is_refused() {
    let agent = with_tools(&["pay"]);
    let reason = refusal(Setup::new().builder.tool(tool("pay")).agent(&agent));
    assert!(reason.contains("pay"), "{reason}");

    let silent: Agent =
        Agent::custom("mute", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .store(InMemorySessionStore::new())
            .build();
    let reason = refusal(Setup::new().builder.agent(&silent));
    assert!(reason.contains("\"mute\" has a function of its own"), "{reason}");

    let forgetful: Agent =
        Agent::custom("sieve", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(Voice::new("You forget."))
            .build();
    let shared: Arc<dyn Invoke> = Arc::new(forgetful);
    let reason = refusal(Setup::new().builder.agent(&shared));
    assert!(reason.contains("no store"), "{reason}");

    for builder in [
        Setup::new().builder.resume_snapshot("s-1"),
        Setup::new().builder.resume("s"),
        Setup::new().builder.on_hangup(OnHangup::Detach),
    ] {
        let reason = refusal(builder);
        assert!(reason.contains("link one"), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_agents_policy_holds_for_its_tools_and_the_sessions_for_all() {
    let executor = ToolExecutor::new(
        registry(&["pay"]),
        Some(Arc::new(policy(|call| match call.args["amount"].as_u64() {
            Some(amount) if amount <= 100 => Verdict::Allow,
            _ => Verdict::Deny(Denial::told("at most 100")),
        }))),
    );
    let agent: Agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(Voice::new("You pay.").tools(executor))
            .store(InMemorySessionStore::new())
            .build();
    let sessions = policy(|call| match call.args.get("to") {
        Some(_) => Verdict::Deny(Denial::told("to nobody")),
        None => Verdict::Allow,
    });
    let setup =
        Setup::new().build(|builder| builder.agent(&agent).tool(tool("give")).authorize(sessions));
    let mut rig = setup.start().await;
    let calls = [
        ("c1", "pay", r#"{"amount": 5}"#),
        ("c2", "pay", r#"{"amount": 500}"#),
        ("c3", "pay", r#"{"amount": 5, "to": "Ann"}"#),
        ("c4", "give", r#"{"amount": 500}"#),
    ];
    rig.user_says("u1", "Pay.").reply("r1").calls("r1", &calls).done("r1");
    rig.settle().await;
    rig.says("r2", "Done.", 100);
    rig.speaker_catches_up().await;
    let events = rig.until(is_committed).await;
    let mut outcomes: Vec<_> =
        outcomes(&events).into_iter().map(|(id, outcome)| format!("{id} {outcome:?}")).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["c1 Success", "c2 Denied", "c3 Denied", "c4 Success"]);
    // Refused calls stand in the history with what the model asked for.
    let row = agent.get_snapshot(&cx(), ids(events.last().unwrap()).0.unwrap()).await.unwrap();
    let denied = lines(&row).into_iter().find(|line| line.contains("\"amount\":500}")).unwrap();
    assert!(denied.contains("?pay"), "{denied}");
}

#[tokio::test(start_paused = true)]
async fn a_tenants_memory_is_the_tenants() {
    let keep = FuncTool::new("keep", "Keeps.", json!({ "type": "object" }), |cx, _| async move {
        cx.memory.set("name", "Ann").await.unwrap();
        Ok(JsonObject::new())
    });
    let memory = Arc::new(InMemory::new());
    let caller = antiphon::agent::Caller::new("ann").scope("home");
    let setup = Setup::new()
        .build(|builder| builder.tool(keep).session_id("s").caller(caller).memory(memory.clone()));
    let mut rig = setup.start().await;
    rig.user_says("u1", "Keep it.").calls_tool("r1", "c1", "keep", "{}");
    rig.outputs().await;
    assert_eq!(memory.list("").await.unwrap(), ["/home/s/name"]);
}
