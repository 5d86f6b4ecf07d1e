//! Calls that are decided over, or still run, when the caller is gone.

use antiphon::{
    agent::{
        AgentInit, InMemory, InMemorySessionStore, Outcome, Prompt, PromptAgent, SnapshotStatus,
        ToolRegistry,
        approval::{Answer, Approvals},
        ledger::{CallRecord, CallState},
    },
    live::HistoryItem,
    session::*,
};
use antiphon_testkit::{LatchedTool, ModelTurn, ScriptedModel, ToolLatch, ToolPlan};
use serde_json::json;

use super::{
    approvals::{asking, goes_on, is_settled, parks},
    *,
};
use crate::rig::*;

/// A clerk who pays once a person approved it, and bakes; both take as long as they are told to.
struct Clerk {
    agent: Agent,
    store: Arc<InMemorySessionStore>,
    pay: ToolLatch,
    bake: ToolLatch,
}

fn clerk() -> Clerk {
    let (pays, pay) = LatchedTool::new("pay", ToolPlan::Succeed);
    let (bakes, bake) = LatchedTool::new("bake", ToolPlan::Succeed);
    let registry = ToolRegistry::new();
    registry.must_register(pays);
    registry.must_register(bakes);
    let store = Arc::new(InMemorySessionStore::new());
    Clerk { agent: speaking(store.clone(), Arc::new(registry)), store, pay, bake }
}

fn asks(builder: SessionBuilder) -> SessionBuilder {
    let asks = policy(|call| match &*call.name {
        "pay" => antiphon::agent::Verdict::Ask { reason: "money".into() },
        _ => antiphon::agent::Verdict::Allow,
    });
    builder.resume("s").authorize(asks)
}

fn leaves(builder: SessionBuilder) -> SessionBuilder {
    asks(builder).on_hangup(OnHangup::Detach)
}

fn detached(events: &[EventKind]) -> Arc<str> {
    let found = events.iter().find_map(|kind| match kind {
        EventKind::Detached { snapshot_id } => Some(snapshot_id.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nothing was left behind: {events:?}"))
}

fn is_detached(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Detached { .. })
}

impl Clerk {
    async fn record(&self, key: &str) -> CallRecord {
        Approvals::new(self.store.clone()).unwrap().call(&cx(), key).await.unwrap()
    }

    /// Somebody elsewhere approves.
    async fn approved_elsewhere(&self, key: &str) -> CallRecord {
        let (tool, _) = LatchedTool::open("pay", ToolPlan::Succeed);
        let registry = ToolRegistry::new();
        registry.must_register(tool);
        let tools = ToolExecutor::new(Arc::new(registry), None);
        let (approvals, memory) =
            (Approvals::new(self.store.clone()).unwrap(), Arc::new(InMemory::new()));
        let answer = Answer::new().by("ann");
        approvals.approve(&cx(), key, answer, &tools, memory).await.unwrap()
    }
}

/// What a provider is told of outputs when the conversation goes on, those that say "waiting" aside.
async fn told(agent: &Agent) -> Vec<Value> {
    let rig = linked(agent, asks).await;
    told_to(&rig)
}

fn told_to(rig: &Rig) -> Vec<Value> {
    let history = rig.provider.requests()[0].history.clone();
    let outputs = history.iter().filter_map(|item| match item {
        HistoryItem::Tool { response, .. } => Some(json!(response)),
        _ => None,
    });
    outputs.filter(|output| output["status"] != "waiting_for_approval").collect()
}

fn done() -> Value {
    json!({ "ok": true })
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_a_person_approved_goes_on_when_the_caller_hangs_up() {
    let clerk = clerk();
    let mut rig = linked(&clerk.agent, leaves).await;
    let key = parks(&mut rig).await;
    let row = goes_on(&mut rig, &clerk.agent).await;
    let approves = tokio::spawn({
        let (session, key) = (rig.session.clone(), key.clone());
        async move { session.approve(&key, Answer::new().by("ann")).await.unwrap() }
    });
    clerk.pay.started().await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    tokio::time::sleep(10 * SECOND).await;
    let task = clerk.agent.task(&cx(), id.clone());
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    assert!(clerk.record(&key).await.is_running(jiff::Timestamp::now()));

    clerk.pay.release(1);
    let (events, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    let settled: Vec<_> = events.iter().filter(|kind| is_settled(kind)).collect();
    let [EventKind::ApprovalSettled { outcome: Outcome::Success, .. }] = settled[..] else {
        panic!("{settled:?}")
    };
    assert!(matches!(approves.await.unwrap().state, CallState::Ended { .. }));
    let left = task.poll().await.unwrap();
    assert_eq!(
        (left.status(), &left.parent_id),
        (SnapshotStatus::Completed, &Some(row.snapshot_id))
    );
    assert!(lines(&left).last().unwrap().starts_with("tool: !pay"), "{:#?}", lines(&left));
    assert_eq!(clerk.pay.calls().len(), 1);
    // It is told once.
    assert_eq!(told(&clerk.agent).await, [done()]);
    assert!(clerk.record(&key).await.settled);
}

#[tokio::test(start_paused = true)]
async fn what_is_decided_elsewhere_after_a_hang_up_stands_in_what_was_left_behind() {
    let clerk = clerk();
    let mut rig = linked(&clerk.agent, leaves).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &clerk.agent).await;
    rig.user_says("u2", "Bake.").calls_tool("r4", "c2", "bake", "{}");
    clerk.bake.started().await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    clerk.approved_elsewhere(&key).await;
    rig.until(is_settled).await;
    clerk.bake.release(1);
    rig.outputs().await;
    rig.says("r5", "Baked.", 500);
    let (events, _) = rig.end().await;
    assert!(!events.iter().any(is_settled), "once");
    let left = clerk.agent.get_snapshot(&cx(), id).await.unwrap();
    assert_eq!(left.status(), SnapshotStatus::Completed);
    let rounds = lines(&left).into_iter().filter(|line| line.starts_with("tool: !pay")).count();
    assert_eq!(rounds, 2, "that it waits, and how it ended: {:#?}", lines(&left));
    let mut told = told(&clerk.agent).await;
    told.sort_by_key(Value::to_string);
    assert_eq!(told, [done(), done()]);
    assert!(clerk.record(&key).await.settled);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_approved_through_the_handle_of_a_session_whose_caller_is_gone() {
    let clerk = clerk();
    let mut rig = linked(&clerk.agent, leaves).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &clerk.agent).await;
    rig.user_says("u2", "Bake.").calls_tool("r4", "c2", "bake", "{}");
    clerk.bake.started().await;
    rig.session.stop();
    rig.until(is_detached).await;
    let approves = tokio::spawn({
        let (session, key) = (rig.session.clone(), key.clone());
        async move { session.approve(&key, Answer::new()).await.unwrap() }
    });
    clerk.pay.started().await;
    clerk.bake.release(1);
    rig.outputs().await;
    rig.says("r5", "Baked.", 500);
    rig.settle().await;
    assert_ne!(rig.session.state(), SessionState::Inactive, "the call is still at work");
    clerk.pay.release(1);
    let (events, _) = rig.end().await;
    assert_eq!(events.iter().filter(|kind| is_settled(kind)).count(), 1);
    approves.await.unwrap();
    assert_eq!(told(&clerk.agent).await.len(), 2);
    assert_eq!(clerk.pay.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn work_that_a_person_approved_is_aborted_with_what_was_left() {
    let clerk = clerk();
    let mut rig = linked(&clerk.agent, leaves).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &clerk.agent).await;
    let approves = tokio::spawn({
        let (session, key) = (rig.session.clone(), key.clone());
        async move { session.approve(&key, Answer::new()).await }
    });
    clerk.pay.started().await;
    rig.session.stop();
    let id = detached(&rig.until(is_detached).await);
    clerk.agent.abort(&cx(), &id).await.unwrap();
    let began = tokio::time::Instant::now();
    let (_, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
    assert_eq!(
        clerk.agent.get_snapshot(&cx(), id).await.unwrap().status(),
        SnapshotStatus::Aborted
    );
    let _ = approves.await.unwrap();
    assert_eq!((clerk.pay.running(), clerk.pay.finished()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_approved_tool_that_ends_with_its_session_is_unknown_and_not_cancelled() {
    let clerk = clerk();
    let mut rig = linked(&clerk.agent, asks).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &clerk.agent).await;
    let approves = tokio::spawn({
        let (session, key) = (rig.session.clone(), key.clone());
        async move { session.approve(&key, Answer::new()).await }
    });
    clerk.pay.started().await;
    rig.session.stop();
    rig.end().await;
    approves.await.unwrap().unwrap_err();
    let record = clerk.record(&key).await;
    assert!(record.is_lost(jiff::Timestamp::now()), "{record:?}");
    let rig = linked(&clerk.agent, asks).await;
    let outputs = told_to(&rig);
    let [output] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(output["error"].as_str().unwrap().contains("not known"), "{output}");
}

#[tokio::test(start_paused = true)]
async fn whoever_resumes_by_voice_or_in_writing_knows_what_was_decided_after_the_hang_up() {
    let clerk = clerk();
    let mut rig = linked(&clerk.agent, asks).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &clerk.agent).await;
    rig.session.stop();
    rig.end().await;
    clerk.approved_elsewhere(&key).await;

    // By voice: the provider is told before its first reply, and the host nothing a second time.
    let mut rig = linked(&clerk.agent, asks).await;
    assert_eq!(told_to(&rig), [done()]);
    assert!(!rig.now().await.iter().any(is_settled));
    let row = rig.turn(&clerk.agent, "And?", "It is paid.").await;
    let rounds = lines(&row).into_iter().filter(|line| line.starts_with("tool: !pay")).count();
    assert_eq!(rounds, 1, "{:#?}", lines(&row));
    rig.session.stop();
    rig.end().await;

    // In writing: the model is, too.
    let model = ScriptedModel::new([ModelTurn::says("Paid, as I said.")]);
    let prompt = Prompt::builder("clerk").system("You are a clerk.").build().unwrap();
    let writes: Agent = PromptAgent::inline(prompt)
        .model(model.shared())
        .agent("clerk")
        .unwrap()
        .shared_store(clerk.store.clone())
        .build();
    let output = writes.run_text(&cx(), "Sure?", AgentInit::session("s")).await.unwrap();
    assert_eq!(output.error, None);
    let shown = model.requests().last().unwrap().messages.clone();
    let outputs: Vec<_> = shown
        .iter()
        .flat_map(|message| message.tool_responses())
        .map(|(_, response)| response.output.clone().unwrap())
        .collect();
    assert_eq!(outputs, [done()]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_alone_is_no_work_to_stay_for() {
    let (agent, _, _) = asking();
    let mut rig = linked(&agent, leaves).await;
    parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.stop();
    let (events, _) = rig.end().await;
    assert!(!events.iter().any(is_detached), "{events:?}");
}
