//! What holds beyond one turn, one invocation, and one process at a time.

use antiphon_agent::{
    Admission, CallContext, Executed, InMemory, Invoke, Outcome, Part, Role, RunContext,
    SessionSnapshot, SnapshotStatus, ToolResume, TurnResult, approval::Approvals,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::support::request;

/// A tool that runs until it is let go.
fn slow(effects: Effects) -> (ToolExecutor, Arc<Notify>, Arc<Notify>) {
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (began.clone(), go.clone());
    let tool = FuncTool::new("pay", "Pays.", json!({ "type": "object" }), move |_cx, args| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.notify_one();
            wait.notified().await;
            Ok(object(json!({ "paid": args["amount"] })))
        }
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool.effects(effects));
    (ToolExecutor::new(Arc::new(registry), None), began, go)
}

/// Runs a call within an invocation, as a voice session does.
async fn run(
    invocation: &antiphon_agent::Invocation,
    turn: &antiphon_agent::OpenTurn,
    tools: &ToolExecutor,
    id: &str,
    cancelled: CancellationToken,
) -> Executed {
    let context = invocation.context().clone().with_turn(turn.context().clone());
    let memory = Arc::new(InMemory::new());
    let mut admission = CallContext::new("s", 1, memory.clone());
    admission.invocation = context.clone();
    let admission = tools.with_new_ids().admit(&admission, request(id, "pay", r#"{"amount": 9}"#));
    let Admission::Run(admitted) = admission else { panic!("{admission:?}") };
    let run = RunContext::new("s", 1, memory, cancelled).with_invocation(context);
    tools.run(admitted, run).await
}

fn notes(messages: &[Arc<Message>]) -> Vec<(String, String)> {
    let responses = messages.iter().flat_map(|message| message.tool_responses());
    responses
        .filter_map(|(part, _)| part.metadata_entry(LEDGER))
        .map(|note| {
            let text = |name: &str| note[name].as_str().unwrap().to_owned();
            (text("key"), text("outcome"))
        })
        .collect()
}

fn messages(agent: &antiphon_agent::Invocation) -> Vec<Arc<Message>> {
    agent.session().messages().iter().cloned().collect()
}

#[tokio::test]
async fn a_call_that_runs_is_nobody_elses_to_tell_of() {
    let rig = rig(Effects::Once, [ModelTurn::says("One."), ModelTurn::says("Two.")]);
    rig.say("Hello.").await;
    let (tools, began, go) = slow(Effects::Once);
    let first = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = first.begin_turn().unwrap();
    let runs = run(&first, &turn, &tools, "c1", CancellationToken::new());
    let meanwhile = async {
        began.notified().await;
        // Another device goes on with the conversation.
        rig.say("Hello again.").await;
        assert!(outputs(&rig.shown()).is_empty(), "it runs");
        assert!(rig.open().await[0].is_running(Timestamp::now()));
        go.notify_one();
    };
    let (done, ()) = tokio::join!(runs, meanwhile);
    assert_eq!(done.outcome, Outcome::Success);
    // The first one is gone before it commits: whoever goes on knows.
    drop((turn, first));
    let next = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    assert_eq!(outputs(&messages(&next)), [(Some("c1".into()), json!({ "paid": 9 }))]);
}

#[tokio::test]
async fn an_outcome_that_comes_after_it_was_told_as_unknown_is_told() {
    let rig = rig(Effects::Once, ["One.", "Two.", "Three.", "Four."].map(ModelTurn::says));
    let first = rig.say("Hello.").await;
    let mut record = rig.killed("c1", json!({ "amount": 9 }), first).await;
    rig.say("Did you pay?").await;
    rig.settled().await;
    // It was not killed: it had only been silent for long.
    record.state = CallState::Ended {
        at: Timestamp::now(),
        outcome: Outcome::Success,
        output: json!({ "paid": 9 }),
        detail: None,
    };
    rig.put(&record).await;
    rig.say("And now?").await;
    let key = String::from("key-c1");
    let told = [(key.clone(), "unknown".to_owned()), (key, "success".to_owned())];
    assert_eq!(notes(&rig.shown()), told);
    rig.settled().await;
    rig.say("Thanks.").await;
    assert_eq!(notes(&rig.shown()), told);
}

#[tokio::test]
async fn an_idempotent_tool_gets_the_key_however_much_was_said_since() {
    let says = ["One.", "Two.", "Three."].map(ModelTurn::says);
    let turns = says.into_iter().chain([calls("c2", 9), ModelTurn::says("Paid.")]);
    let turns = turns.chain([calls("c3", 9), ModelTurn::says("Paid again.")]);
    let rig = rig(Effects::Idempotent, turns);
    let first = rig.say("Hello.").await;
    let killed = rig.killed("c1", json!({ "amount": 9 }), first).await;
    rig.say("Hello?").await;
    rig.settled().await;
    rig.say("Are you there?").await;
    rig.say("Pay.").await;
    rig.settled().await;
    rig.say("Pay once more.").await;
    let seen = rig.seen.lock().unwrap().clone();
    assert_eq!(seen[0].0, killed.key);
    let record = &seen[0].1[0];
    assert!(record.key != killed.key && record.idempotency_key() == &killed.key);
    // It succeeded: the next one is another.
    assert!(seen[1].0 != killed.key);
}

#[tokio::test]
async fn a_run_in_the_place_of_one_that_is_unknown_may_itself_be_lost() {
    let turns = ["One.", "Two."].map(ModelTurn::says).into_iter();
    let rig = rig(Effects::Idempotent, turns.chain([calls("c3", 9), ModelTurn::says("Paid.")]));
    let first = rig.say("Hello.").await;
    let killed = rig.killed("c1", json!({ "amount": 9 }), first).await;
    let (tools, began, _) = slow(Effects::Idempotent);
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    {
        let runs = run(&invocation, &turn, &tools, "c2", CancellationToken::new());
        tokio::select! {
            _ = runs => panic!("it is not let go"),
            () = began.notified() => {}
        }
    }
    // The turn is committed without it.
    turn.append(Message::user("Never mind."));
    turn.seal(Ok(TurnResult::default())).write().await;
    invocation.finish(Ok(Default::default())).await;
    rig.say("What happened?").await;
    let told = notes(&rig.shown());
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|(_, outcome)| outcome == "unknown"));
    rig.say("Pay.").await;
    assert_eq!(rig.seen.lock().unwrap()[0].0, killed.key);
}

#[tokio::test]
async fn a_tool_that_asks_does_so_until_a_person_has_decided() {
    let turns = ["One.", "Two.", "Three."].map(ModelTurn::says);
    let turns = turns.into_iter().chain([calls("c2", 9), ModelTurn::says("Paid.")]);
    let rig = rig(Effects::Ask, turns.chain([calls("c3", 9), ModelTurn::says("Again.")]));
    let first = rig.say("Hello.").await;
    rig.killed("c1", json!({ "amount": 9 }), first).await;
    rig.say("Hello?").await;
    rig.settled().await;
    rig.say("Are you there?").await;
    let chat = rig.agent.api().chat(AgentInit::session("s"));
    let asks = chat.send("Pay.").await.unwrap();
    assert_eq!(asks.finish_reason(), antiphon_agent::AgentFinishReason::Interrupted);
    assert!(rig.seen.lock().unwrap().is_empty());
    let restart = asks.interrupts().iter().map(|it| it.restart()).collect();
    chat.resume(ToolResume { restart, ..ToolResume::default() }).await.unwrap();
    assert_eq!(rig.seen.lock().unwrap().len(), 1);
    rig.settled().await;
    // They knew of it: the next one is another.
    rig.say("Pay once more.").await;
    assert_eq!(rig.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_call_that_timed_out_is_as_unknown_for_as_long_as_the_invocation() {
    let rig = rig(Effects::Idempotent, [ModelTurn::says("One.")]);
    let (tools, began, _) = slow(Effects::Idempotent);
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    let cancelled = CancellationToken::new();
    let runs = run(&invocation, &turn, &tools, "c1", cancelled.clone());
    let cancel = async {
        began.notified().await;
        let key = rig.open().await[0].key.clone();
        cancelled.cancel();
        key
    };
    let (done, key) = tokio::join!(runs, cancel);
    assert_eq!(done.outcome, Outcome::Cancelled);
    let (tool, seen) = pay(rig.store.clone(), Effects::Idempotent);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let tools = ToolExecutor::new(Arc::new(registry), None);
    run(&invocation, &turn, &tools, "c2", CancellationToken::new()).await;
    run(&invocation, &turn, &tools, "c3", CancellationToken::new()).await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].0, key);
    assert!(seen[1].0 != key);
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_unknown_to_whoever_goes_on_until_one_in_its_place_succeeds() {
    let turns = [ModelTurn::says("I do not know."), calls("c2", 9), ModelTurn::says("Paid.")];
    let turns = turns.into_iter().chain([calls("c3", 9), ModelTurn::says("Paid again.")]);
    let rig = rig(Effects::Idempotent, turns);
    let (tools, began, _) = slow(Effects::Idempotent);
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    let cancelled = CancellationToken::new();
    let runs = run(&invocation, &turn, &tools, "c1", cancelled.clone());
    let hangs_up = async {
        began.notified().await;
        let key = rig.open().await[0].key.clone();
        cancelled.cancel();
        key.to_string()
    };
    let (done, key) = tokio::join!(runs, hangs_up);
    let text = done.output["error"].as_str().unwrap();
    assert!(text.contains("cancelled") && text.contains("may have taken effect"), "{text}");
    // The turn holds the call, as any other.
    let (name, id) = ("pay", Some(Arc::from("c1")));
    turn.append(Message::user("Pay."));
    let asked = Part::tool_request(name, id.clone(), json!({ "amount": 9 }));
    turn.append(Message::new(Role::Model, vec![asked]));
    turn.append(Message::new(Role::Tool, vec![Part::tool_response(name, id, done.output)]));
    turn.seal(Ok(TurnResult::default())).write().await;
    invocation.finish(Ok(Default::default())).await;

    rig.say("Did it work?").await;
    assert_eq!(notes(&rig.shown()), [(key.clone(), "unknown".to_owned())]);
    rig.settled().await;
    rig.say("Do it again.").await;
    assert_eq!(notes(&rig.shown()).len(), 1, "told once");
    rig.say("Once more.").await;
    let seen = rig.seen.lock().unwrap();
    assert_eq!(*seen[0].0, *key, "the same thing is done once");
    assert!(*seen[1].0 != *key, "it succeeded: this is another");
}

#[tokio::test]
async fn a_call_that_only_read_is_not_unknown_when_it_was_cut_off() {
    let rig = rig(Effects::ReadOnly, [ModelTurn::says("One.")]);
    let (tools, began, _) = slow(Effects::ReadOnly);
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    let cancelled = CancellationToken::new();
    let runs = run(&invocation, &turn, &tools, "c1", cancelled.clone());
    let cancel = async {
        began.notified().await;
        cancelled.cancel();
    };
    let (done, ()) = tokio::join!(runs, cancel);
    assert_eq!(done.output, json!({ "error": "the tool call was cancelled" }));
    let (name, id) = ("pay", Some(Arc::from("c1")));
    let asked = Part::tool_request(name, id.clone(), json!({ "amount": 9 }));
    turn.append(Message::new(Role::Model, vec![asked]));
    turn.append(Message::new(Role::Tool, vec![Part::tool_response(name, id, done.output)]));
    turn.seal(Ok(TurnResult::default())).write().await;
    invocation.finish(Ok(Default::default())).await;
    rig.say("And?").await;
    assert!(notes(&rig.shown()).is_empty());
}

#[tokio::test]
async fn a_call_that_another_snapshot_carried_is_not_told_again() {
    let rig =
        rig(Effects::Once, [calls("c1", 9), ModelTurn::says("Paid."), ModelTurn::says("Yes.")]);
    rig.say("Pay.").await;
    rig.settled().await;
    // The snapshot that its turn was to become was never written, but the next one holds it.
    let mut record = rig.killed("c1", json!({ "amount": 9 }), None).await;
    record.state = CallState::Ended {
        at: Timestamp::now(),
        outcome: Outcome::Success,
        output: json!({ "paid": 9 }),
        detail: None,
    };
    record.created_at = Timestamp::UNIX_EPOCH;
    rig.put(&record).await;
    rig.say("Did you?").await;
    assert_eq!(outputs(&rig.shown()).len(), 1);
}

#[tokio::test]
async fn a_call_of_a_first_turn_that_was_not_written_is_told() {
    let rig = rig(Effects::Once, ["One.", "Two."].map(ModelTurn::says));
    let mut record = rig.killed("c1", json!({ "amount": 9 }), None).await;
    record.created_at = Timestamp::now();
    rig.put(&record).await;
    // The turn after it was.
    let mut row = SessionSnapshot::new("root", "s", Timestamp::now());
    row.status = Some(SnapshotStatus::Completed);
    row.state = Some(Default::default());
    rig.store.save_snapshot(&cx(), Some("root"), &|_| Ok(Some(row.clone()))).await.unwrap();
    rig.say("Did you pay?").await;
    assert_eq!(notes(&rig.shown()), [("key-c1".to_owned(), "unknown".to_owned())]);
}

#[tokio::test]
async fn a_session_whose_first_turn_was_left_and_lost_goes_on_from_nothing() {
    let rig = rig(Effects::Once, ["One."].map(ModelTurn::says));
    rig.killed("c1", json!({ "amount": 9 }), None).await;
    let mut row = SessionSnapshot::new("left", "s", Timestamp::UNIX_EPOCH);
    row.status = Some(SnapshotStatus::Pending);
    row.heartbeat_at = Some(Timestamp::UNIX_EPOCH);
    rig.store.save_snapshot(&cx(), Some("left"), &|_| Ok(Some(row.clone()))).await.unwrap();
    rig.say("Hello?").await;
    assert_eq!(notes(&rig.shown()), [("key-c1".to_owned(), "unknown".to_owned())]);
}

#[tokio::test]
async fn an_old_record_without_lease_is_lost_with_its_process() {
    let record = json!({
        "key": "k", "sessionId": "s", "agent": "clerk", "turn": 1, "callId": "c1", "tool": "pay",
        "arguments": "{}", "argumentsHash": "", "effects": "once",
        "createdAt": "2026-01-01T00:00:00Z",
        "state": { "name": "running", "since": "2026-01-01T00:00:00Z" },
    });
    let record: CallRecord = serde_json::from_value(record).unwrap();
    assert!(record.is_lost(Timestamp::UNIX_EPOCH) && record.idempotency_key() == &record.key);
    let approvals = Approvals::new(Arc::new(InMemorySessionStore::new())).unwrap();
    assert!(!approvals.is_awaited(&cx(), "k"));
}
