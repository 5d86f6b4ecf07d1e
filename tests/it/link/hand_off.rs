//! Snapshots say which agent spoke.

use antiphon::{
    agent::{Agent, FuncTool, InMemorySessionStore, Voice},
    live::LiveCommand,
    session::*,
    types::{JsonObject, ToolDefinition},
};

use super::*;

#[tokio::test(start_paused = true)]
async fn trial_a09_each_message_says_which_agent_spoke() {
    let clerk = plain();
    let accountant: Agent = Agent::custom("accountant", |_cx, _responder, _runner| async move {
        panic!("a speech model is in its place")
    })
    .voice(Voice::new("You are the accountant."))
    .store(InMemorySessionStore::new())
    .build();
    let mut rig = linked(&clerk, |builder| builder).await;
    rig.turn(&clerk, "Hello", "Hi.").await;
    rig.session.hand_off(&SessionAgent::of(&accountant).unwrap()).unwrap();
    rig.until(|kind| matches!(kind, EventKind::HandedOff { .. })).await;
    let commands = rig.commands().await;
    assert_eq!(commands.len(), 3, "{commands:#?}");
    rig.reply_to("r2", 1).words("r2", "Accounts here.").audio("r2", 100).done("r2");
    rig.speaker_catches_up().await;
    rig.until(|kind| matches!(kind, EventKind::AgentMessage { .. })).await;
    let row = rig.turn(&clerk, "My invoice", "It is paid.").await;
    assert_eq!(
        lines(&row),
        [
            "user: Hello",
            "model: Hi.",
            "model: Accounts here.",
            "user: My invoice",
            "model: It is paid."
        ]
    );
    let spoke: Vec<_> = (0..5).map(|index| voice(&row, index)["agent"].clone()).collect();
    let accountant = Value::from("accountant");
    let nobody = Value::Null;
    assert_eq!(spoke, [&nobody, &nobody, &accountant, &nobody, &accountant].map(Clone::clone));
}

#[tokio::test(start_paused = true)]
async fn what_the_host_changes_while_another_agent_speaks_is_for_the_sessions_own() {
    let clerk = plain();
    let invoices = FuncTool::new("invoices", "Lists invoices.", None, |_, _| async {
        Ok(JsonObject::from_iter([("open".to_owned(), 3.into())]))
    });
    let billing = SessionAgent::new("billing", "You are the accountant.").tool(invoices);
    let mut rig = linked(&clerk, |builder| builder).await;
    rig.turn(&clerk, "Hello", "Hi.").await;
    rig.session.hand_off(&billing).unwrap();
    rig.until(|kind| matches!(kind, EventKind::HandedOff { .. })).await;
    rig.commands().await;
    rig.reply_to("r2", 1).words("r2", "Accounts.").audio("r2", 100).done("r2");
    rig.speaker_catches_up().await;
    rig.commands().await;

    rig.session.update_tools(vec![ToolDefinition::new("mine", "The host's.")]).unwrap();
    rig.session.update_instructions("You are a kind clerk.").unwrap();
    let commands = rig.commands().await;
    assert!(commands.is_empty(), "nothing of it is for the accountant: {commands:#?}");
    rig.calls_tool("r3", "c1", "invoices", "{}");
    let outputs = rig.outputs().await;
    assert_eq!(outputs[0].response["open"], 3, "{outputs:?}");
    rig.says("r4", "Three.", 100);
    rig.speaker_catches_up().await;

    rig.session.hand_back().unwrap();
    rig.until(|kind| matches!(kind, EventKind::HandedOff { to: None, .. })).await;
    let commands = rig.commands().await;
    let told = commands.iter().any(|command| match command {
        LiveCommand::UpdateInstructions(text) => text == "You are a kind clerk.",
        _ => false,
    });
    assert!(told, "{commands:#?}");
    let tools = commands.iter().find_map(|command| match command {
        LiveCommand::UpdateTools(tools) => Some(tools.iter().map(|tool| &*tool.name).collect()),
        _ => None,
    });
    let tools: Vec<&str> = tools.unwrap();
    assert_eq!(tools, ["mine"]);
    // And the host is asked for it.
    rig.calls_tool("r6", "c2", "mine", "{}");
    rig.until(|kind| matches!(kind, EventKind::HostToolCall { .. })).await;
}
