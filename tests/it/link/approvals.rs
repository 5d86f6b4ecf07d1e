//! Calls that wait for a person while the conversation goes on.

use std::sync::Arc;

use antiphon::{
    agent::{
        AgentFinishReason, InMemorySessionStore, Outcome, ToolRegistry, Verdict,
        approval::{Answer, ApprovalError, Approvals},
        ledger::LEDGER,
    },
    live::HistoryItem,
    session::*,
};
use antiphon_testkit::{LatchedTool, ToolLatch, ToolPlan};
use serde_json::json;

use super::*;
use crate::rig::*;

/// An agent whose tool `pay` a person decides over.
pub(super) fn asking() -> (Agent, Arc<InMemorySessionStore>, ToolLatch) {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let store = Arc::new(InMemorySessionStore::new());
    (speaking(store.clone(), Arc::new(registry)), store, latch)
}

pub(super) fn ask(builder: SessionBuilder) -> SessionBuilder {
    let asks = policy(|_| Verdict::Ask { reason: "money".into() });
    builder.resume("s").authorize(asks)
}

/// The user asks, the model calls, and the call is parked. The key.
pub(super) async fn parks(rig: &mut Rig) -> Arc<str> {
    rig.user_says("u1", "Pay.").calls_tool("r1", "c1", "pay", r#"{"amount": 5}"#);
    let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    let requested = events.iter().find_map(|kind| match kind {
        EventKind::ApprovalRequested { approval, id, name, args, question, .. } => {
            assert_eq!((&**id, &**name, &args["amount"]), ("c1", "pay", &json!(5)));
            assert_eq!(question, &json!({ "reason": "money" }));
            Some(approval.clone())
        }
        _ => None,
    });
    assert_eq!(outcomes(&events), [("c1".into(), Outcome::Paused)]);
    requested.expect("an approval was requested")
}

/// What the agent says after that, and the snapshot.
pub(super) async fn goes_on(rig: &mut Rig, agent: &Agent) -> SessionSnapshot {
    rig.says("r2", "I asked for approval.", 500);
    rig.speaker_catches_up().await;
    rig.committed(agent).await
}

pub(super) fn is_settled(kind: &EventKind) -> bool {
    matches!(kind, EventKind::ApprovalSettled { .. })
}

#[tokio::test(start_paused = true)]
async fn the_conversation_goes_on_and_the_call_runs_once_when_approved() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    let told = rig.outputs().await;
    assert_eq!(told[0].response["status"], "waiting_for_approval");
    let row = goes_on(&mut rig, &agent).await;
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Interrupted));
    let history = row.state.as_ref().unwrap().messages.clone();
    let last = history.last().unwrap();
    assert!(last.content[0].is_interrupt(), "a client of the agent can resume it");
    assert_eq!(last.content[0].metadata_entry(LEDGER).unwrap()["key"], json!(key));
    assert!(latch.calls().is_empty());

    let done = rig.session.approve(&key, Answer::new().by("ann")).await.unwrap();
    assert_eq!(done.approval.unwrap().decision.unwrap().by.as_deref(), Some("ann"));
    assert_eq!(latch.calls().len(), 1);
    let events = rig.until(is_settled).await;
    let Some(EventKind::ApprovalSettled { outcome, by, .. }) = events.last() else { panic!() };
    assert_eq!((*outcome, by.as_deref()), (Outcome::Success, Some("ann")));
    let again = rig.session.approve(&key, Answer::new()).await.unwrap_err();
    assert!(matches!(again, ApprovalError::NotWaiting(_)), "{again:?}");
    assert_eq!(latch.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_decided_over_after_the_session_and_the_next_one_knows() {
    let (agent, store, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.stop();
    rig.end().await;
    let approvals = Approvals::new(store).unwrap();
    let reason = Answer::new().by("ann").reason("too much");
    approvals.deny(&cx(), &key, reason).await.unwrap();

    let mut rig = linked(&agent, ask).await;
    let history = rig.provider.requests()[0].history.clone();
    let outputs: Vec<_> = history
        .iter()
        .filter_map(|item| match item {
            HistoryItem::Tool { response, .. } => Some(json!(response)),
            _ => None,
        })
        .collect();
    assert_eq!(outputs, [json!({ "error": "the tool call was not approved: too much" })]);
    assert!(latch.calls().is_empty());
    let row = rig.turn(&agent, "And?", "It was refused.").await;
    assert!(lines(&row).iter().any(|line| line.contains("too much")));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_resumed_attends_to_the_calls_of_before() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.stop();
    rig.end().await;
    let mut rig = linked(&agent, ask).await;
    rig.session.approve(&key, Answer::new()).await.unwrap();
    assert_eq!(latch.calls().len(), 1);
    rig.until(is_settled).await;
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_nothing_is_approved() {
    let rig = start().await;
    let error = rig.session.approve("key", Answer::new()).await.unwrap_err();
    assert!(matches!(error, ApprovalError::Unsupported), "{error:?}");
}
