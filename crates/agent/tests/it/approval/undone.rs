//! Calls that wait, and turns that come to nothing; calls that are approved and do not start.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use antiphon_agent::{
    AgentResult, ExecutorLimits, FuncTool, OpenTurn, RuntimeError, ToolErrors, TurnFailure,
};
use tokio::sync::Notify;

use super::*;

impl Rig {
    /// The model asks to pay in a turn that is left open. The turn, and the record.
    async fn asks(&self, invocation: &antiphon_agent::Invocation) -> (OpenTurn, CallRecord) {
        let turn = invocation.begin_turn().unwrap();
        let context = invocation.context().clone().with_turn(turn.context().clone());
        let memory = Arc::new(InMemory::new());
        let mut admission = CallContext::new("s", 1, memory.clone());
        admission.invocation = context.clone();
        let tools = self.tools.with_new_ids();
        let admission = tools.admit(&admission, request("c1", "pay", r#"{"amount": 50}"#));
        let Admission::Run(admitted) = admission else { panic!("{admission:?}") };
        let run = RunContext::new("s", 1, memory, Default::default())
            .with_invocation(context)
            .parking(Parking::default());
        let done = tools.run(admitted, run).await;
        (turn, *done.approval.unwrap())
    }
}

#[tokio::test]
async fn a_turn_that_is_undone_leaves_nothing_to_decide_over() {
    let rig = rig();
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let (turn, asked) = rig.asks(&invocation).await;
    assert_eq!(rig.approvals.waiting(&cx(), None).await.unwrap().len(), 1);
    turn.seal(Err(TurnFailure::roll_back(RuntimeError::internal("the model is gone"))))
        .write()
        .await;
    invocation.finish(Ok(AgentResult::default())).await;

    assert!(rig.approvals.waiting(&cx(), None).await.unwrap().is_empty());
    let late = rig.approve(&asked.key).await.unwrap_err();
    assert!(late.to_string().contains("was undone"), "{late}");
    assert_eq!(rig.paid.count(), 0);
    let call = rig.approvals.call(&cx(), &asked.key).await.unwrap();
    assert_eq!(outcome(&call), Some(Outcome::Cancelled));
    // Nobody is told of what was never said.
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    assert!(invocation.session().messages().is_empty());
}

#[tokio::test]
async fn what_waits_of_a_turn_that_was_kept_is_not_undone_with_the_next() {
    let rig = rig();
    let parked = rig.parks(50).await;
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let (turn, undone) = rig.asks(&invocation).await;
    drop(turn);
    invocation.finish(Ok(AgentResult::default())).await;
    let waiting = rig.approvals.waiting(&cx(), None).await.unwrap();
    assert_eq!(waiting.iter().map(|call| &call.key).collect::<Vec<_>>(), [&parked.key]);
    assert_ne!(undone.key, parked.key);
    rig.approve(&parked.key).await.unwrap();
    assert_eq!(rig.paid.count(), 1);
}

#[tokio::test]
async fn a_call_that_was_approved_before_its_turn_was_undone_is_told() {
    let rig = rig();
    let invocation = rig.agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let (turn, asked) = rig.asks(&invocation).await;
    rig.approve(&asked.key).await.unwrap();
    drop(turn);
    invocation.finish(Ok(AgentResult::default())).await;
    assert_eq!(rig.paid.count(), 1);
    rig.agent.run_text(&cx(), "Did you pay?", AgentInit::session("s")).await.unwrap();
    assert_eq!(rig.outputs().await, [json!({ "paid": 50 })]);
}

#[tokio::test]
async fn a_turn_in_writing_that_fails_beside_a_call_that_waits_leaves_nothing_to_decide_over() {
    let paid = Counter::default();
    let registry = ToolRegistry::new();
    registry.must_register(pay(&paid));
    registry.must_register(FuncTool::new("break", "Breaks.", None, |_, _| async {
        // Once the other one waits.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Err(antiphon_agent::ToolError::new("broken"))
    }));
    let policy: Arc<dyn antiphon_agent::Authorizer> =
        Arc::new(|cx: &CallContext, call: &ToolCall| match &*call.name {
            "pay" => policy(cx, call),
            _ => Verdict::Allow,
        });
    let tools = ToolExecutor::new(Arc::new(registry), Some(policy));
    let rig = over(Arc::new(InMemorySessionStore::new()), tools, paid);
    let two = pays("c1", 50).call("c2", "break", json!({}));
    let model = ScriptedModel::new([two]);
    let prompt = Prompt::builder("clerk").system("Pay.").tool_errors(ToolErrors::Fail);
    let agent: Agent = PromptAgent::inline(prompt.build().unwrap())
        .model(model.shared())
        .tools(rig.tools.clone())
        .agent("clerk")
        .unwrap()
        .shared_store(rig.store.clone())
        .build();
    let output = agent.run_text(&cx(), "Pay.", AgentInit::session("s")).await.unwrap();
    assert!(output.error.is_some(), "{output:?}");
    // It is taken back behind the answer.
    let waits = async {
        while !rig.approvals.waiting(&cx(), None).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("it waits no more");
    assert_eq!(rig.paid.count(), 0);
}

/// The only place is taken by another call: an approved one does not start in its time.
#[tokio::test(start_paused = true)]
async fn an_approved_call_that_finds_no_place_has_that_as_its_outcome() {
    let rig = with_one_place(policy);
    let parked = rig.parks(50).await;
    let holds = rig.holds_the_place().await;
    let done = rig.approve(&parked.key).await.unwrap();
    assert_eq!((outcome(&done), rig.paid.count()), (Some(Outcome::TimedOut), 0));
    holds.abort();
    // It is known that it did not run: nobody is told that it may have.
    assert_eq!(rig.outputs().await[0]["error"], json!("the tool timed out"));
    let again = rig.approve(&parked.key).await.unwrap_err();
    assert!(again.to_string().contains("already by ann"), "{again}");
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_that_the_policy_refuses_while_it_waits_for_a_place_is_denied() {
    let strict = Arc::new(AtomicBool::new(false));
    let now_strict = strict.clone();
    let rig =
        with_one_place(move |cx: &CallContext, call: &ToolCall| match now_strict.load(SeqCst) {
            true => Verdict::Deny(Denial::private("not any more")),
            false => policy(cx, call),
        });
    let parked = rig.parks(50).await;
    let holds = rig.holds_the_place().await;
    let approves = rig.approve(&parked.key);
    let changes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        strict.store(true, SeqCst);
        holds.abort();
    };
    let (done, ()) = tokio::join!(approves, changes);
    assert_eq!((outcome(&done.unwrap()), rig.paid.count()), (Some(Outcome::Denied), 0));
}

/// A rig with a tool that takes its time, and one place for all calls.
fn with_one_place(
    policy: impl Fn(&CallContext, &ToolCall) -> Verdict + Send + Sync + 'static,
) -> Rig {
    let policy = move |cx: &CallContext, call: &ToolCall| match &*call.name {
        "hold" => Verdict::Allow,
        _ => policy(cx, call),
    };
    let paid = Counter::default();
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    let tools = guarded(pay(&paid), policy).limits(limits);
    over(Arc::new(InMemorySessionStore::new()), tools, paid)
}

impl Rig {
    /// Takes the one place with a call that runs on.
    async fn holds_the_place(&self) -> tokio::task::JoinHandle<()> {
        let began = Arc::new(Notify::new());
        let tell = began.clone();
        let hold = FuncTool::new("hold", "Runs on.", None, move |_, _| {
            tell.notify_one();
            std::future::pending()
        });
        self.tools.registry().must_register(hold.timeout(Duration::from_secs(3_600)));
        let tools = self.tools.with_new_ids();
        let admission = tools.admit(&crate::support::call_context(), request("h", "hold", "{}"));
        let Admission::Run(admitted) = admission else { panic!("{admission:?}") };
        let holds = tokio::spawn(async move {
            tools.run(admitted, crate::support::run_context()).await;
        });
        began.notified().await;
        holds
    }
}
