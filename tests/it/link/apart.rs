//! Calls that wait for a person, where more than one session, branch or agent is about.

use antiphon::{
    agent::{
        AgentFinishReason, FuncTool, InMemory, InMemorySessionStore, SessionStore, ToolContext,
        ToolExecutor, ToolRegistry,
        approval::{Answer, ApprovalError, Approvals},
        types::JsonObject,
    },
    session::*,
};
use serde_json::json;

use super::{
    approvals::{ask, asking, goes_on, is_settled, parks},
    *,
};

#[tokio::test(start_paused = true)]
async fn a_call_that_is_approved_while_the_agent_speaks_does_not_wait_in_the_history() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    rig.session.approve(&key, Answer::new()).await.unwrap();
    rig.until(is_settled).await;
    let row = goes_on(&mut rig, &agent).await;
    assert_eq!(latch.calls().len(), 1);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Stop));
    let told = lines(&row);
    let waits = told.iter().position(|line| line.contains("waiting_for_approval")).unwrap();
    let done = told.iter().rposition(|line| line.starts_with("tool: !pay")).unwrap();
    assert!(waits < done, "{told:#?}");
    let last = row.state.unwrap().messages.last().unwrap().clone();
    assert!(!last.content[0].is_interrupt());
}

#[tokio::test(start_paused = true)]
async fn a_call_of_another_session_runs_outside_of_this_one() {
    let seen: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    let schema = json!({ "type": "object" });
    let tool = FuncTool::new("pay", "Pays.", schema, move |cx: ToolContext, _| {
        let inside = cx.invocation.session_access().is_some();
        noted.lock().unwrap().push(format!("{} {inside}", cx.session_id));
        async move { Ok(JsonObject::from_iter([("paid".to_owned(), json!(5))])) }
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let store: Arc<dyn SessionStore> = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store, Arc::new(registry));
    let mut caller = linked(&agent, ask).await;
    let key = parks(&mut caller).await;
    goes_on(&mut caller, &agent).await;
    caller.session.stop();
    caller.end().await;

    let other = linked(&agent, |builder| ask(builder).resume("other")).await;
    let done = other.session.approve(&key, Answer::new()).await.unwrap();
    assert_eq!(*done.session_id, *"s");
    assert_eq!(*seen.lock().unwrap(), ["s false"]);
    // The history of the session that asked for it tells of it, and this one's does not.
    let tip = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert!(lines(&tip).last().unwrap().contains("paid"), "{:#?}", lines(&tip));
    assert!(agent.get_latest_snapshot(&cx(), "other").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn after_a_hand_off_a_call_runs_with_the_tools_of_who_asked_for_it() {
    let (agent, _, latch) = asking();
    let others = ToolRegistry::new();
    let (tool, other_latch) =
        antiphon_testkit::LatchedTool::open("pay", antiphon_testkit::ToolPlan::Succeed);
    others.must_register(tool);
    let accountant: Agent = Agent::custom("accountant", |_cx, _responder, _runner| async move {
        panic!("a speech model is in its place")
    })
    .voice(Voice::new("You are the accountant.").tools(ToolExecutor::new(Arc::new(others), None)))
    .store(InMemorySessionStore::new())
    .build();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.hand_off(&SessionAgent::of(&accountant).unwrap()).unwrap();
    rig.until(|kind| matches!(kind, EventKind::HandedOff { .. })).await;
    let done = rig.session.approve(&key, Answer::new()).await.unwrap();
    assert_eq!(done.tool, "pay".into());
    assert_eq!((latch.calls().len(), other_latch.calls().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn after_the_session_no_other_agents_tools_run_for_who_had_the_conversation() {
    let (agent, store, latch) = asking();
    let (tool, accountants) =
        antiphon_testkit::LatchedTool::open("pay", antiphon_testkit::ToolPlan::Succeed);
    let own = Arc::new(ToolRegistry::new());
    own.must_register(tool);
    let accountant: Agent = Agent::custom("accountant", |_cx, _responder, _runner| async move {
        panic!("a speech model is in its place")
    })
    .voice(Voice::new("You are the accountant.").tools(ToolExecutor::new(own.clone(), None)))
    .store(InMemorySessionStore::new())
    .build();
    let mut rig = linked(&agent, ask).await;
    rig.turn(&agent, "Hello.", "Hi.").await;
    rig.session.hand_off(&SessionAgent::of(&accountant).unwrap()).unwrap();
    rig.until(|kind| matches!(kind, EventKind::HandedOff { .. })).await;
    rig.commands().await;
    rig.reply_to("r0", 1).words("r0", "Accounts.").audio("r0", 100).done("r0");
    rig.speaker_catches_up().await;
    let key = parks(&mut rig).await;
    rig.session.stop();
    rig.end().await;

    let clerks = ToolRegistry::new();
    let (tool, _) = antiphon_testkit::LatchedTool::open("pay", antiphon_testkit::ToolPlan::Panic);
    clerks.must_register(tool);
    let clerks = ToolExecutor::new(Arc::new(clerks), None);
    let memory = Arc::new(InMemory::new());
    let approvals = Approvals::new(store).unwrap();
    for desk in [approvals.clone(), approvals.clone().with_tools_of("clerk")] {
        let refused = desk.approve(&cx(), &key, Answer::new(), &clerks, memory.clone()).await;
        let Err(ApprovalError::AnotherAgent { agent, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(&*agent, "accountant");
    }
    assert!(approvals.call(&cx(), &key).await.unwrap().is_waiting(), "nobody took it");
    let desk = approvals.with_tools_of("accountant");
    let tools = ToolExecutor::new(own, None);
    desk.approve(&cx(), &key, Answer::new(), &tools, memory).await.unwrap();
    assert_eq!((accountants.calls().len(), latch.calls().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_branch_leaves_the_call_of_another_one_alone() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let root = rig.turn(&agent, "Hello.", "Hi.").await.snapshot_id;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.stop();
    rig.end().await;

    let mut branch = linked(&agent, |builder| ask(builder).resume_snapshot(root)).await;
    branch.session.approve(&key, Answer::new()).await.unwrap();
    assert_eq!(latch.calls().len(), 1);
    let row = branch.turn(&agent, "And now?", "Nothing.").await;
    assert!(!lines(&row).iter().any(|line| line.contains("pay")), "{:#?}", lines(&row));
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_on_from_where_a_call_waited_is_told_how_it_ended() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    let waits = goes_on(&mut rig, &agent).await.snapshot_id;
    // Another line of the conversation has told it already.
    rig.session.approve(&key, Answer::new()).await.unwrap();
    rig.until(is_settled).await;
    rig.session.stop();
    rig.end().await;
    let tip = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert!(lines(&tip).iter().any(|line| line.starts_with("tool: !pay") && line.contains("ok")));

    for _ in 0..2 {
        let from = waits.clone();
        let mut fork = linked(&agent, |builder| ask(builder).resume_snapshot(from)).await;
        let row = fork.turn(&agent, "And now?", "It is paid.").await;
        let told: Vec<_> =
            lines(&row).into_iter().filter(|line| line.starts_with("tool: !pay")).collect();
        let done = told.iter().filter(|line| line.contains("ok")).count();
        assert_eq!(done, 1, "{told:#?}");
        // And once.
        let row = fork.turn(&agent, "Really?", "Really.").await;
        let done =
            lines(&row).into_iter().filter(|line| line.contains("!pay") && line.contains("ok"));
        assert_eq!(done.count(), 1);
        fork.session.shutdown(crate::rig::SECOND).await.unwrap();
    }
    assert_eq!(latch.calls().len(), 1);
}
