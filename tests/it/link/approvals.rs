//! Calls that wait for a person while the conversation goes on.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::SeqCst},
};

use antiphon::{
    agent::{
        AgentFinishReason, AgentInit, AgentInput, Authorizer, InMemorySessionStore, Outcome,
        Parking, Prompt, PromptAgent, ToolRegistry, ToolResume, Verdict,
        approval::{Answer, ApprovalError, Approvals},
        ledger::{CallState, LEDGER},
        tool::resume,
    },
    live::{HistoryItem, LiveCommand},
    session::*,
};
use antiphon_testkit::{LatchedTool, ModelTurn, ScriptedModel, ToolLatch, ToolPlan};
use jiff::{SignedDuration, Timestamp};
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
    let commands = rig.commands().await;
    let asked = commands.iter().find_map(|command| match command {
        LiveCommand::CreateReply { request, .. } => Some(*request),
        _ => None,
    });
    let told = outputs(commands);
    assert_eq!(told[0].response["status"], "waiting_for_approval");
    rig.reply_to("r2", asked.expect("the model goes on"));
    rig.words("r2", "I asked for approval.").audio("r2", 500).done("r2");
    rig.speaker_catches_up().await;
    rig.committed(agent).await
}

pub(super) fn is_settled(kind: &EventKind) -> bool {
    matches!(kind, EventKind::ApprovalSettled { .. })
}

#[tokio::test(start_paused = true)]
async fn the_conversation_goes_on_and_the_outcome_is_spoken_and_kept() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    let row = goes_on(&mut rig, &agent).await;
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Interrupted));
    let history = row.state.as_ref().unwrap().messages.clone();
    let last = history.last().unwrap();
    assert!(last.content[0].is_interrupt(), "a client of the agent can resume it");
    assert_eq!(last.content[0].metadata_entry(LEDGER).unwrap()["key"], json!(key));
    assert!(latch.calls().is_empty());

    rig.commands().await;
    let done = rig.session.approve(&key, Answer::new().by("ann")).await.unwrap();
    assert_eq!(done.approval.unwrap().decision.unwrap().by.as_deref(), Some("ann"));
    assert_eq!(latch.calls().len(), 1);
    let events = rig.until(is_settled).await;
    let Some(EventKind::ApprovalSettled { outcome, by, .. }) = events.last() else { panic!() };
    assert_eq!((*outcome, by.as_deref()), (Outcome::Success, Some("ann")));
    let spoken = rig.commands().await;
    let said = spoken.iter().find_map(|command| match command {
        LiveCommand::Say { request, text } => Some((*request, text.clone())),
        _ => None,
    });
    let (request, text) = said.expect("the outcome is spoken");
    assert!(text.contains("approved"), "{text}");
    rig.reply_to("r3", request).words("r3", &text).audio("r3", 500).done("r3");
    rig.speaker_catches_up().await;
    let again = rig.session.approve(&key, Answer::new()).await.unwrap_err();
    assert!(matches!(again, ApprovalError::NotWaiting(_)), "{again:?}");

    let next = rig.committed(&agent).await;
    assert_eq!(next.parent_id, Some(row.snapshot_id));
    let lines = lines(&next);
    let waited = lines.iter().position(|line| line.contains("waiting_for_approval")).unwrap();
    let paid =
        lines.iter().position(|line| line.starts_with("tool: !pay") && !line.contains("waiting"));
    assert!(waited < paid.unwrap(), "{lines:?}");
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
async fn a_call_that_was_parked_by_voice_is_resumed_in_writing_as_any_interrupt() {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let asks: Arc<dyn Authorizer> = Arc::new(policy(|_| Verdict::Ask { reason: "money".into() }));
    let model = ScriptedModel::new([ModelTurn::says("It is paid.")]);
    let prompt = Prompt::builder("clerk").system("You are a clerk.").build().unwrap();
    let agent: Agent = PromptAgent::inline(prompt)
        .model(model.shared())
        .tools(ToolExecutor::new(Arc::new(registry), Some(asks)))
        .agent("clerk")
        .unwrap()
        .store(InMemorySessionStore::new())
        .build();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let key = parks(&mut rig).await;
    let row = goes_on(&mut rig, &agent).await;
    rig.session.stop();
    rig.end().await;

    let messages = row.state.unwrap().messages;
    let asked = &messages.last().unwrap().content[0];
    let resume = ToolResume { restart: vec![resume(asked, ()).unwrap()], ..Default::default() };
    let input = AgentInput { resume: Some(resume), ..AgentInput::default() };
    let output = agent.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    assert_eq!((output.error, latch.calls().len()), (None, 1));
    assert_eq!(output.message.unwrap().joined_text(), "It is paid.");
    let late = rig.session.approve(&key, Answer::new()).await;
    assert!(late.is_err());
    let rig = linked(&agent, |builder| builder.resume("s")).await;
    let history = &rig.provider.requests()[0].history;
    let outputs = history.iter().filter(|item| matches!(item, HistoryItem::Tool { .. })).count();
    assert_eq!((outputs, latch.calls().len()), (1, 1), "{history:?}");
}

/// An agent over `store` whose clock is ahead by so much.
fn ahead(store: Arc<InMemorySessionStore>, by: Arc<AtomicI64>) -> Agent {
    let (tool, _) = LatchedTool::open("pay", ToolPlan::Succeed);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let voice = Voice::new("You are a clerk.").tools(ToolExecutor::new(Arc::new(registry), None));
    Agent::custom("clerk", |_cx, _responder, _runner| async move {
        panic!("a speech model is in its place")
    })
    .voice(voice)
    .shared_store(store)
    .clock(move || Timestamp::now() + SignedDuration::from_secs(by.load(SeqCst)))
    .build()
}

#[tokio::test(start_paused = true)]
async fn trial_d26_a_call_that_waits_when_its_connection_dies_expires() {
    let (agent, store, latch) = asking();
    let an_hour = |builder: SessionBuilder| {
        let mut parking = Parking::default();
        parking.expires_after = Some(3_600 * SECOND);
        let mut reconnect = ReconnectPolicy::default();
        reconnect.max_attempts = 0;
        ask(builder).parking(parking).reconnect(reconnect)
    };
    let mut rig = linked(&agent, an_hour).await;
    let key = parks(&mut rig).await;
    rig.far.close(1011, "gone");
    let (_, reason) = rig.end().await;
    assert!(!matches!(reason, EndReason::Stopped), "{reason:?}");

    let at = |seconds| {
        let clock = move || Timestamp::now() + SignedDuration::from_secs(seconds);
        Approvals::new(store.clone()).unwrap().clock(clock)
    };
    assert_eq!(at(3_000).waiting(&cx(), None).await.unwrap().len(), 1);
    assert!(at(3_601).waiting(&cx(), None).await.unwrap().is_empty());
    let ended = at(3_601).call(&cx(), &key).await.unwrap();
    let CallState::Ended { outcome: Outcome::Expired, detail: Some(why), .. } = ended.state else {
        panic!("{ended:?}")
    };
    assert!(why.contains("nobody decided until"), "{why}");
    let late = Approvals::new(store.clone()).unwrap().deny(&cx(), &key, Answer::new()).await;
    assert!(late.unwrap_err().to_string().contains("expired"));
    // Whoever goes on is told.
    let rig = linked(&agent, ask).await;
    let history = json!(rig.provider.requests()[0].history).to_string();
    assert!(history.contains("nobody decided over the tool call in time"), "{history}");
    assert!(latch.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_d26_a_call_that_expires_while_the_session_lives_is_told_aloud() {
    let (by, store) = (Arc::new(AtomicI64::new(0)), Arc::new(InMemorySessionStore::new()));
    let agent = ahead(store, by.clone());
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.commands().await;
    by.store(25 * 3_600, SeqCst);
    let events = rig.until(is_settled).await;
    let Some(EventKind::ApprovalSettled { approval, outcome, by, .. }) = events.last() else {
        panic!()
    };
    assert_eq!((approval, *outcome, by), (&key, Outcome::Expired, &None));
    let said = rig.commands().await.into_iter().find_map(|command| match command {
        LiveCommand::Say { text, .. } => Some(text),
        _ => None,
    });
    assert!(said.unwrap().contains("in time"));
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_nothing_is_approved() {
    let rig = start().await;
    let error = rig.session.approve("key", Answer::new()).await.unwrap_err();
    assert!(matches!(error, ApprovalError::Unsupported), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn where_no_call_can_wait_the_policys_question_is_a_refusal() {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let asks = policy(|_| Verdict::Ask { reason: "money".into() });
    let setup = Setup::new().build(|builder| builder.registry(Arc::new(registry)).authorize(asks));
    let mut rig = setup.start().await;
    rig.user_says("u1", "Pay.").calls_tool("r1", "c1", "pay", r#"{"amount": 5}"#);
    let events = rig.until(|kind| matches!(kind, EventKind::ToolDenied { .. })).await;
    let Some(EventKind::ToolDenied { reason, .. }) = events.last() else { panic!() };
    assert!(reason.contains("keeps account of calls that wait"), "{reason}");
    // The model promises nothing.
    assert_eq!(rig.outputs().await[0].response["error"], Outcome::Denied.fixed_text());
    assert!(latch.calls().is_empty());
}
