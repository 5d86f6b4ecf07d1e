//! Calls that wait for a person.

mod undone;

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use antiphon_agent::{
    Admission, Agent, AgentFinishReason, AgentInit, AgentInput, AgentOutput, CallContext, Denial,
    Effects, Executed, FuncTool, InMemory, InMemorySessionStore, InterruptibleTool,
    InvocationContext, Invoke, Memory, Message, Messages, Outcome, Parking, Part, Prompt,
    PromptAgent, Role, RunContext, RuntimeError, SessionStore, ToolExecutor, ToolRegistry,
    ToolResume, TurnResult, Verdict,
    approval::{Answer, ApprovalError, Approvals},
    ledger::{Approval, CallChange, CallRecord, CallState, LEDGER, close_parked, parked_request},
    tool::{interrupt, resume},
    types::{JsonObject, ToolCall},
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    ledger::Full,
    support::{Counter, guarded, object, pay, request},
};

fn cx() -> InvocationContext {
    InvocationContext::new()
}

/// A policy that has a person decide over payments above 10, and refuses those above 100.
fn policy(cx: &CallContext, call: &ToolCall) -> Verdict {
    match call.args["amount"].as_u64() {
        Some(..=10) => Verdict::Allow,
        Some(101..) => Verdict::Deny(Denial::told("too much")),
        _ if cx.approved => {
            assert!(cx.waited);
            Verdict::Allow
        }
        _ => Verdict::Ask { reason: "above 10".into() },
    }
}

/// A store, an agent over it, and a tool whose calls wait.
struct Rig {
    store: Arc<dyn SessionStore>,
    agent: Agent,
    tools: ToolExecutor,
    paid: Counter,
    approvals: Approvals,
    now: Arc<Mutex<Timestamp>>,
}

fn rig() -> Rig {
    let store: Arc<dyn SessionStore> = Arc::new(InMemorySessionStore::new());
    let paid = Counter::default();
    over(store, guarded(pay(&paid), policy), paid)
}

fn over(store: Arc<dyn SessionStore>, tools: ToolExecutor, paid: Counter) -> Rig {
    let now = Arc::new(Mutex::new(Timestamp::constant(1_700_000_000, 0)));
    let (clock, time) = (now.clone(), now.clone());
    let agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .shared_store(store.clone())
            .clock(move || *clock.lock().unwrap())
            .build();
    let approvals = Approvals::new(store.clone()).unwrap().clock(move || *time.lock().unwrap());
    Rig { store, agent, tools, paid, approvals, now }
}

impl Rig {
    /// A turn in which the model asks to pay; the call is parked, and ends the turn.
    async fn parks(&self, amount: u64) -> CallRecord {
        let invocation = self.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
        let turn = invocation.begin_turn().unwrap();
        let context = invocation.context().clone().with_turn(turn.context().clone());
        let args = json!({ "amount": amount });
        let done = self.run(context, &args).await;
        assert_eq!(done.outcome, Outcome::Paused);
        assert_eq!(done.response.response["message"], "Wait.");
        let record = *done.approval.unwrap();
        let asked = Part::tool_request("pay", Some("c1".into()), args);
        let question = &record.approval.as_ref().unwrap().question;
        let asked = parked_request(asked, &record.key, question, done.output);
        if let Some(waiting) = close_parked(&invocation.session().messages(), &[]) {
            turn.append(waiting);
        }
        turn.append(Message::user("Pay."));
        turn.append(Message::new(Role::Model, vec![asked]));
        let finish_reason = Some(AgentFinishReason::Interrupted);
        turn.seal(Ok(TurnResult { finish_reason })).write().await;
        record
    }

    /// As [`Rig::parks`], whatever comes of the call; the turn is left as it is.
    async fn runs(&self, amount: u64) -> Executed {
        let invocation = self.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
        let turn = invocation.begin_turn().unwrap();
        let context = invocation.context().clone().with_turn(turn.context().clone());
        self.run(context, &json!({ "amount": amount })).await
    }

    async fn run(&self, context: InvocationContext, args: &Value) -> Executed {
        let memory = Arc::new(InMemory::new());
        let mut admission = CallContext::new("s", 1, memory.clone());
        admission.invocation = context.clone();
        let tools = self.tools.with_new_ids();
        let admitted = match tools.admit(&admission, request("c1", "pay", &args.to_string())) {
            Admission::Run(admitted) => admitted,
            other => panic!("{other:?}"),
        };
        let run = RunContext::new("s", 1, memory, Default::default())
            .with_invocation(context)
            .parking(Parking::new("Wait."));
        tools.run(admitted, run).await
    }

    /// What the record says of the approval.
    async fn change(&self, call: &CallRecord, change: impl Fn(&mut Approval) + Sync) {
        let write = |record: Option<&CallRecord>| -> Result<CallChange, RuntimeError> {
            let mut record = record.unwrap().clone();
            change(record.approval.as_mut().unwrap());
            Ok(CallChange::Write(Box::new(record)))
        };
        self.store.call_ledger().unwrap().save_call(&cx(), &call.key, &write).await.unwrap();
    }

    async fn approve(&self, key: &str) -> Result<CallRecord, ApprovalError> {
        self.approve_as(key, Answer::new().by("ann")).await
    }

    async fn approve_as(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        let memory = Arc::new(InMemory::new());
        self.approvals.approve(&cx(), key, answer, &self.tools, memory).await
    }

    async fn history(&self) -> Messages {
        let latest = self.agent.get_latest_snapshot(&cx(), "s").await.unwrap();
        latest.state.unwrap().messages
    }

    /// The outputs in the latest snapshot.
    async fn outputs(&self) -> Vec<Value> {
        let history = self.history().await;
        let all = history.iter().flat_map(|message| message.tool_responses());
        all.map(|(_, response)| response.output.clone().unwrap()).collect()
    }

    fn later(&self, hours: i64) {
        let mut now = self.now.lock().unwrap();
        *now += SignedDuration::from_hours(hours);
    }
}

fn outcome(record: &CallRecord) -> Option<Outcome> {
    match record.state {
        CallState::Ended { outcome, .. } => Some(outcome),
        _ => None,
    }
}

#[tokio::test]
async fn an_approved_call_runs_once_and_its_outcome_stands_in_the_history() {
    let rig = rig();
    let parked = rig.parks(50).await;
    assert_eq!(rig.paid.count(), 0);
    let waiting = rig.approvals.waiting(&cx(), Some("s")).await.unwrap();
    assert_eq!(waiting, std::slice::from_ref(&parked));
    let tip = rig.agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert_eq!(tip.finish_reason, Some(AgentFinishReason::Interrupted));
    assert_eq!(parked.snapshot_id, Some(tip.snapshot_id));
    assert_eq!((&*parked.agent, &*parked.call_id), ("clerk", "c1"));

    let done = rig.approve(&parked.key).await.unwrap();
    assert_eq!((outcome(&done), rig.paid.count()), (Some(Outcome::Success), 1));
    let decision = done.approval.unwrap().decision.unwrap();
    assert_eq!((decision.approved, decision.by.as_deref()), (true, Some("ann")));
    // While the turn that parked it is the last, its request gets the output.
    assert_eq!(rig.outputs().await, [json!({ "paid": 50 })]);
    let again = rig.approve(&parked.key).await.unwrap_err();
    assert!(matches!(again, ApprovalError::NotWaiting(_)), "{again:?}");
    assert!(again.to_string().contains("already by ann"), "{again}");
    assert_eq!(rig.paid.count(), 1);
    assert!(rig.approvals.waiting(&cx(), None).await.unwrap().is_empty());
}

#[tokio::test]
async fn once_the_conversation_went_on_the_outcome_is_a_round_of_its_own() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    let waiting = close_parked(&invocation.session().messages(), &[]).unwrap();
    turn.append(waiting);
    turn.append(Message::user("Meanwhile?"));
    turn.seal(Ok(TurnResult::default())).write().await;
    rig.approve(&parked.key).await.unwrap();
    let outputs = rig.outputs().await;
    assert_eq!(outputs[0]["status"], "waiting_for_approval");
    assert_eq!(outputs[1..], [json!({ "paid": 50 })]);
    let history = rig.history().await;
    let last = history.last().unwrap();
    let note = last.content[0].metadata_entry(LEDGER).unwrap();
    assert_eq!((&note["key"], &note["outcome"]), (&json!(parked.key), &json!("success")));
    // It is told once.
    rig.agent.run_text(&cx(), "And?", AgentInit::session("s")).await.unwrap();
    assert_eq!(rig.outputs().await.len(), 2);
}

#[tokio::test]
async fn a_refused_call_never_runs_and_says_why() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let answer = Answer::new().by("ann").reason("not today");
    let denied = rig.approvals.deny(&cx(), &parked.key, answer).await.unwrap();
    assert_eq!(outcome(&denied), Some(Outcome::NotApproved));
    let text = json!({ "error": "the tool call was not approved: not today" });
    assert_eq!(rig.outputs().await, [text]);
    let late = rig.approve(&parked.key).await.unwrap_err();
    assert!(late.to_string().contains("refused already by ann"), "{late}");
    assert_eq!(rig.paid.count(), 0);
}

#[tokio::test]
async fn what_was_not_shown_is_not_approved() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let shown = Answer::new().shown(&object(json!({ "amount": 5 })));
    let changed = rig.approve_as(&parked.key, shown).await.unwrap_err();
    assert!(matches!(changed, ApprovalError::ChangedArguments(_)), "{changed:?}");
    let other = rig.approvals.clone().of_agent("baker").call(&cx(), &parked.key).await.unwrap_err();
    assert!(matches!(other, ApprovalError::AnotherAgent { .. }), "{other:?}");
    let missing = rig.approve("nothing").await.unwrap_err();
    assert!(matches!(missing, ApprovalError::NotFound(_)), "{missing:?}");
    let none = ToolExecutor::new(Arc::new(ToolRegistry::new()), None);
    let memory = Arc::new(InMemory::new());
    let no_tool = rig.approvals.approve(&cx(), &parked.key, Answer::new(), &none, memory).await;
    assert!(matches!(no_tool, Err(ApprovalError::NoTool(_))), "{no_tool:?}");
    // None of these took it.
    let shown = Answer::new().shown(&object(json!({ "amount": 50.0 })));
    assert_eq!(outcome(&rig.approve_as(&parked.key, shown).await.unwrap()), Some(Outcome::Success));
}

#[tokio::test]
async fn the_policy_is_asked_again_before_the_call_runs() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let strict = |_: &CallContext, _: &ToolCall| Verdict::Deny(Denial::private("not any more"));
    let tools = guarded(pay(&rig.paid), strict);
    let memory = Arc::new(InMemory::new());
    let done = rig.approvals.approve(&cx(), &parked.key, Answer::new(), &tools, memory).await;
    assert_eq!(outcome(&done.unwrap()), Some(Outcome::Denied));
    assert_eq!(rig.paid.count(), 0);
}

#[tokio::test]
async fn a_call_that_nobody_decides_over_expires() {
    let rig = rig();
    let parked = rig.parks(50).await;
    rig.later(23);
    assert_eq!(rig.approvals.waiting(&cx(), None).await.unwrap().len(), 1);
    rig.later(2);
    // Who only looks sees it so, and ends nothing.
    let seen = rig.approvals.clone().looking().call(&cx(), &parked.key).await.unwrap();
    assert_eq!(outcome(&seen), Some(Outcome::Expired));
    let late = rig.approve(&parked.key).await.unwrap_err();
    assert!(late.to_string().contains("expired"), "{late}");
    let call = rig.approvals.call(&cx(), &parked.key).await.unwrap();
    assert_eq!(outcome(&call), Some(Outcome::Expired));
    let outputs = rig.outputs().await;
    assert!(outputs[0]["error"].as_str().unwrap().contains("in time"), "{outputs:?}");
    assert_eq!(rig.paid.count(), 0);
}

#[tokio::test]
async fn while_a_session_attends_nobody_else_tells_the_outcome() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let attended = Some(Duration::from_secs(60));
    rig.approvals.attend(&cx(), &parked.key, attended).await.unwrap();
    rig.approve(&parked.key).await.unwrap();
    assert!(rig.outputs().await.is_empty());
    // Whoever goes on with the session does.
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let last = invocation.session().messages().last().cloned().unwrap();
    assert_eq!(last.tool_responses().next().unwrap().1.output, Some(json!({ "paid": 50 })));
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Payment {
    amount: u64,
}

#[derive(serde::Serialize, Deserialize)]
struct Signature {
    signed: Option<String>,
}

#[tokio::test]
async fn a_tool_that_asked_is_told_the_answer_and_may_ask_again() {
    let tool = InterruptibleTool::new(
        "pay",
        "Pays.",
        |_cx, input: Payment, answer: Option<Signature>| async move {
            match answer {
                None => Err(interrupt(json!({ "amount": input.amount }))),
                Some(Signature { signed: None }) => Err(interrupt(json!({ "needs": "a name" }))),
                Some(Signature { signed: Some(name) }) => Ok(json!({ "signed": name })),
            }
        },
    );
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let store: Arc<dyn SessionStore> = Arc::new(InMemorySessionStore::new());
    let rig = over(store, ToolExecutor::new(Arc::new(registry), None), Counter::default());
    let parked = rig.parks(7).await;
    assert_eq!(parked.approval.unwrap().question, json!({ "amount": 7 }));
    let again = rig.approve(&parked.key).await.unwrap();
    assert!(again.is_waiting());
    assert_eq!(again.approval.unwrap().question, json!({ "needs": "a name" }));
    let told = object(json!({ "signed": "Ann" }));
    rig.approve_as(&parked.key, Answer::new().told(told)).await.unwrap();
    assert_eq!(rig.outputs().await, [json!({ "signed": "Ann" })]);
}

#[tokio::test]
async fn a_question_that_cannot_be_kept_fails_the_call_and_tells_what_is_still_at_work() {
    let (began, begins) = mpsc::channel::<()>();
    let (release, latch) = mpsc::channel::<()>();
    let inner = Arc::new(Mutex::new(Some((began, latch))));
    let begins = Arc::new(Mutex::new(begins));
    let tool = FuncTool::new("pay", "Pays.", None, move |cx, _| {
        let ((began, latch), begins) = (inner.lock().unwrap().take().unwrap(), begins.clone());
        async move {
            tokio::spawn(async move {
                let work = move || {
                    began.send(()).unwrap();
                    let _ = latch.recv();
                };
                let _ = cx.spawn_blocking(work).await;
            });
            let begun = move || begins.lock().unwrap().recv();
            tokio::task::spawn_blocking(begun).await.unwrap().unwrap();
            Err(interrupt(json!({ "amount": 7 })))
        }
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool.effects(Effects::ReadOnly));
    let tools = ToolExecutor::new(Arc::new(registry), None);
    let store: Arc<dyn SessionStore> = Arc::new(Full(InMemorySessionStore::new()));
    let rig = over(store, tools, Counter::default());
    let done = rig.runs(7).await;
    assert_eq!((done.outcome, done.approval), (Outcome::Error, None));
    assert_eq!(done.response.response["error"], Outcome::Error.fixed_text());
    let detail = done.detail.unwrap();
    assert!(detail.contains("could not be parked") && detail.contains("full"), "{detail}");
    assert!(done.detached, "it works in the background");
    drop(release);
}

#[tokio::test]
async fn of_many_who_approve_at_once_one_runs_the_tool() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let all = (0..8).map(|_| rig.approve(&parked.key));
    let done = futures_util::future::join_all(all).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    assert_eq!(rig.paid.count(), 1);
}

/// The agent of the rig with a model and its tools, so that it can be resumed in writing.
fn in_writing(rig: &Rig, turns: impl IntoIterator<Item = ModelTurn>) -> (Agent, ScriptedModel) {
    named(rig, "clerk", turns)
}

fn named(
    rig: &Rig,
    name: &str,
    turns: impl IntoIterator<Item = ModelTurn>,
) -> (Agent, ScriptedModel) {
    let (model, clock) = (ScriptedModel::new(turns), rig.now.clone());
    let prompt = Prompt::builder(name).system("Pay.").build().unwrap();
    let agent = PromptAgent::inline(prompt)
        .model(model.shared())
        .tools(rig.tools.clone())
        .agent(name)
        .unwrap()
        .shared_store(rig.store.clone())
        .clock(move || *clock.lock().unwrap())
        .build();
    (agent, model)
}

/// Has the request at the end of the conversation run again.
fn restart(history: &Messages) -> AgentInput {
    let asked = history.iter_back().find(|message| message.tool_requests().next().is_some());
    let part = resume(&asked.unwrap().content[0], ()).unwrap();
    let resume = ToolResume { restart: vec![part], ..ToolResume::default() };
    AgentInput { resume: Some(resume), ..AgentInput::default() }
}

#[tokio::test]
async fn a_turn_in_writing_that_resumes_the_call_approves_it() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let (agent, _) = in_writing(&rig, [ModelTurn::says("Paid.")]);
    let input = restart(&rig.history().await);
    let output = agent.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    assert_eq!((output.error, rig.paid.count()), (None, 1));
    assert_eq!(rig.outputs().await, [json!({ "paid": 50 })]);
    let late = rig.approve(&parked.key).await.unwrap_err();
    assert!(matches!(late, ApprovalError::NotWaiting(_)), "{late:?}");
    assert_eq!(rig.paid.count(), 1);
}

#[tokio::test]
async fn once_the_conversation_went_on_in_writing_a_resume_names_approvals() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let input = restart(&rig.history().await);
    let (agent, model) = in_writing(&rig, [ModelTurn::says("It waits.")]);
    agent.run_text(&cx(), "And?", AgentInit::session("s")).await.unwrap();
    assert_eq!(rig.outputs().await[0]["status"], "waiting_for_approval");
    assert_eq!(model.requests().len(), 1);
    let refused = agent.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    let text = refused.error.unwrap().message;
    assert!(text.contains("no longer pending") && text.contains("approvals"), "{text}");
    rig.approve(&parked.key).await.unwrap();
    assert_eq!(rig.paid.count(), 1);
}

#[tokio::test]
async fn a_call_that_was_decided_over_elsewhere_is_not_resumed() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let input = restart(&rig.history().await);
    rig.approvals.attend(&cx(), &parked.key, Some(Duration::from_secs(60))).await.unwrap();
    rig.approve(&parked.key).await.unwrap();
    let (agent, _) = in_writing(&rig, []);
    let refused = agent.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    assert!(refused.error.is_some());
    assert_eq!(rig.paid.count(), 1);
}

fn pays(id: &str, amount: u64) -> ModelTurn {
    ModelTurn::calls(id, "pay", json!({ "amount": amount }))
}

async fn says(agent: &Agent, text: &str) -> AgentOutput {
    let output = agent.run_text(&cx(), text, AgentInit::session("s")).await.unwrap();
    assert_eq!(output.error, None);
    output
}

#[tokio::test]
async fn in_writing_a_call_over_which_a_person_decides_is_approved_from_elsewhere_too() {
    let rig = rig();
    let (agent, model) = in_writing(&rig, [pays("c1", 50), ModelTurn::says("It is paid.")]);
    let output = says(&agent, "Pay.").await;
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Interrupted));
    // The turn ends with the request, as for any client of an agent.
    let message = output.message.unwrap();
    let asked = &message.content[0];
    assert_eq!(asked.metadata_entry("interrupt"), Some(&json!({ "reason": "above 10" })));
    let waiting = rig.approvals.waiting(&cx(), Some("s")).await.unwrap();
    let [parked] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!(asked.metadata_entry(LEDGER).unwrap()["key"], json!(parked.key));
    assert_eq!(parked.snapshot_id, output.snapshot_id);
    assert_eq!((&*parked.agent, &*parked.call_id, rig.paid.count()), ("clerk", "c1", 0));

    rig.approve(&parked.key).await.unwrap();
    assert_eq!(rig.paid.count(), 1);
    assert_eq!(rig.outputs().await, [json!({ "paid": 50 })]);
    says(&agent, "And?").await;
    let told = model.requests().last().unwrap().messages.clone();
    let told = told.iter().flat_map(|message| message.tool_responses()).next().unwrap().1.clone();
    assert_eq!(told.output, Some(json!({ "paid": 50 })));
    assert_eq!(rig.outputs().await.len(), 1, "told once");
}

#[tokio::test]
async fn what_waits_in_writing_is_resumed_as_any_interrupt_while_it_is_the_end() {
    let rig = rig();
    let turns = [pays("c1", 50), ModelTurn::says("Paid."), pays("c2", 60), ModelTurn::says("No?")];
    let (agent, _) = in_writing(&rig, turns);
    says(&agent, "Pay.").await;
    let input = restart(&rig.history().await);
    let output = agent.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    assert_eq!((output.error, rig.paid.count()), (None, 1));
    assert!(rig.approvals.waiting(&cx(), None).await.unwrap().is_empty());

    // Once the conversation went on, it is for approvals.
    says(&agent, "Pay more.").await;
    let late = restart(&rig.history().await);
    says(&agent, "Never mind.").await;
    assert_eq!(rig.outputs().await[1]["status"], "waiting_for_approval");
    let refused = agent.run(&cx(), late, AgentInit::session("s")).await.unwrap();
    let text = refused.error.unwrap().message;
    assert!(text.contains("no longer pending") && text.contains("approvals"), "{text}");
    let waiting = rig.approvals.waiting(&cx(), None).await.unwrap();
    rig.approvals.deny(&cx(), &waiting[0].key, Answer::new().reason("too late")).await.unwrap();
    let outputs = rig.outputs().await;
    assert_eq!(outputs[2]["error"], "the tool call was not approved: too late");
    assert_eq!(rig.paid.count(), 1);
}

#[tokio::test]
async fn what_ran_beside_a_call_that_waits_is_told_when_the_conversation_goes_on() {
    let rig = rig();
    let two = pays("c1", 5).call("c2", "pay", json!({ "amount": 50 }));
    let (agent, model) = in_writing(&rig, [two, ModelTurn::says("One of two.")]);
    says(&agent, "Pay both.").await;
    assert_eq!(rig.paid.count(), 1);
    says(&agent, "And?").await;
    let outputs = rig.outputs().await;
    assert_eq!((outputs.len(), &outputs[0]), (2, &json!({ "paid": 5 })));
    assert_eq!(outputs[1]["status"], "waiting_for_approval");
    let shown = model.requests().last().unwrap().messages.clone();
    let shown = shown.iter().flat_map(|message| message.tool_responses());
    assert_eq!(shown.count(), 2);
    let waiting = rig.approvals.waiting(&cx(), None).await.unwrap();
    rig.approve(&waiting[0].key).await.unwrap();
    assert_eq!(rig.outputs().await[2..], [json!({ "paid": 50 })]);
    assert_eq!(rig.paid.count(), 2);
}

#[tokio::test]
async fn another_agent_does_not_resume_the_call() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let (baker, _) = named(&rig, "baker", []);
    let input = restart(&rig.history().await);
    let refused = baker.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    let text = refused.error.unwrap().message;
    assert!(text.contains("clerk"), "{text}");
    assert_eq!(rig.paid.count(), 0);
    rig.approve(&parked.key).await.unwrap();
}

#[tokio::test]
async fn in_writing_a_call_that_nobody_decides_over_expires_though_nobody_looks() {
    let rig = rig();
    let parked = rig.parks(50).await;
    rig.later(25);
    let (agent, _) = in_writing(&rig, [ModelTurn::says("Nobody did.")]);
    says(&agent, "And?").await;
    let text = Outcome::Expired.fixed_text();
    assert_eq!(rig.outputs().await, [json!({ "error": text })]);
    let record = rig.store.call_ledger().unwrap().call(&cx(), &parked.key).await.unwrap();
    assert_eq!(outcome(&record.unwrap()), Some(Outcome::Expired));
}

#[tokio::test]
async fn in_writing_nobody_resumes_a_call_of_the_agent_that_had_the_conversation() {
    let rig = rig();
    let parked = rig.parks(50).await;
    rig.change(&parked, |approval| approval.speaker = Some("accountant".into())).await;
    let (clerk, _) = in_writing(&rig, []);
    let input = restart(&rig.history().await);
    let refused = clerk.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    let text = refused.error.unwrap().message;
    assert!(text.contains("accountant"), "{text}");
    let refused = rig.approve(&parked.key).await.unwrap_err();
    assert!(matches!(refused, ApprovalError::AnotherAgent { .. }), "{refused:?}");
    assert_eq!(rig.paid.count(), 0);
    // To refuse it nobody's tools are needed.
    rig.approvals.deny(&cx(), &parked.key, Answer::new()).await.unwrap();
}

#[tokio::test]
async fn whoever_goes_on_from_where_a_call_waits_is_told_how_it_ended_however_often_that_was_told()
{
    let rig = rig();
    let parked = rig.parks(50).await;
    let asked = rig.agent.get_latest_snapshot(&cx(), "s").await.unwrap().snapshot_id;
    let turns = ["It waits.", "It is paid.", "So it is.", "Yes."].map(ModelTurn::says);
    let (agent, model) = in_writing(&rig, turns);
    let waits = says(&agent, "And?").await.snapshot_id.unwrap();
    // Approved elsewhere, which becomes a snapshot beside those that a client goes on from.
    rig.approve(&parked.key).await.unwrap();
    let told = |model: &ScriptedModel| {
        let shown = model.requests().last().unwrap().messages.clone();
        let outputs = shown.iter().flat_map(|message| message.tool_responses());
        let paid = |output: &Option<Value>| *output == Some(json!({ "paid": 50 }));
        outputs.filter(|(_, it)| paid(&it.output)).count()
    };
    let output = agent.run_text(&cx(), "Is it paid?", AgentInit::snapshot(waits)).await.unwrap();
    assert_eq!(told(&model), 1);
    let next = AgentInit::snapshot(output.snapshot_id.unwrap());
    agent.run_text(&cx(), "Sure?", next).await.unwrap();
    assert_eq!(told(&model), 1, "once");
    // A branch from where it was asked for is told, too.
    agent.run_text(&cx(), "Well?", AgentInit::snapshot(asked)).await.unwrap();
    assert_eq!((told(&model), rig.paid.count()), (1, 1));
}

#[tokio::test]
async fn in_writing_an_approved_call_sees_the_memory_of_its_caller() {
    let rig = {
        let store: Arc<dyn SessionStore> = Arc::new(InMemorySessionStore::new());
        let tool =
            FuncTool::new("pay", "Notes.", json!({ "type": "object" }), |cx, _| async move {
                cx.memory.set("paid", "yes").await.unwrap();
                Ok(JsonObject::new())
            });
        over(store, guarded(tool, policy), Counter::default())
    };
    let parked = rig.parks(50).await;
    rig.change(&parked, |approval| approval.memory_of = Some("ann".into())).await;
    let (memory, clock) = (Arc::new(InMemory::new()), rig.now.clone());
    let prompt = Prompt::builder("clerk").system("Pay.").build().unwrap();
    let agent: Agent = PromptAgent::inline(prompt)
        .model(ScriptedModel::new([ModelTurn::says("Noted.")]).shared())
        .tools(rig.tools.clone())
        .memory(memory.clone())
        .agent("clerk")
        .unwrap()
        .shared_store(rig.store.clone())
        .clock(move || *clock.lock().unwrap())
        .build();
    let input = restart(&rig.history().await);
    let output = agent.run(&cx(), input, AgentInit::session("s")).await.unwrap();
    assert_eq!(output.error, None);
    assert_eq!(memory.list("").await.unwrap(), ["ann/paid"]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Park,
    Approve(usize),
    ApproveTwice(usize),
    Deny(usize),
    Wait(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Park),
        3 => (0..6usize).prop_map(Step::Approve),
        1 => (0..6usize).prop_map(Step::ApproveTwice),
        2 => (0..6usize).prop_map(Step::Deny),
        1 => (1..20u8).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_call_runs_at_most_once_and_only_when_approved(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut rig = rig();
            let mut keys: Vec<Arc<str>> = Vec::new();
            let mut approved = 0;
            for step in steps {
                match step {
                    Step::Park => keys.push(rig.parks(50).await.key),
                    Step::Approve(at) => {
                        if let Some(key) = keys.get(at) {
                            approved += u64::from(rig.approve(key).await.is_ok());
                        }
                    }
                    Step::ApproveTwice(at) => {
                        if let Some(key) = keys.get(at) {
                            let both = tokio::join!(rig.approve(key), rig.approve(key));
                            let wins = u64::from(both.0.is_ok()) + u64::from(both.1.is_ok());
                            assert!(wins <= 1);
                            approved += wins;
                        }
                    }
                    Step::Deny(at) => {
                        if let Some(key) = keys.get(at) {
                            let _ = rig.approvals.deny(&cx(), key, Answer::new()).await;
                        }
                    }
                    Step::Wait(hours) => rig.later(hours.into()),
                    Step::Restart => {
                        let now = *rig.now.lock().unwrap();
                        rig = over(rig.store, rig.tools, rig.paid);
                        *rig.now.lock().unwrap() = now;
                    }
                }
                assert_eq!(rig.paid.count(), approved);
            }
            // Each outcome is told once.
            let history = match rig.agent.get_latest_snapshot(&cx(), "s").await {
                Ok(latest) => latest.state.unwrap().messages,
                Err(_) => Messages::new(),
            };
            for key in &keys {
                let told = history.iter().flat_map(|message| message.tool_responses());
                let told = told.filter(|(part, _)| {
                    let note: Option<&JsonObject> =
                        part.metadata_entry(LEDGER).and_then(Value::as_object);
                    note.is_some_and(|note| {
                        note["key"] == json!(key) && note["outcome"] != "waiting"
                    })
                });
                let ended = outcome(&rig.approvals.call(&cx(), key).await.unwrap()).is_some();
                assert!(told.count() <= usize::from(ended));
            }
        });
    }
}
