//! Calls that wait: for a free slot, for a thread, for the verdict over them.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use antiphon_agent::{
    CallContext, Denial, Executed, ExecutorLimits, FuncTool, Outcome, Verdict,
    types::{JsonObject, ToolCall},
};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::*;

/// A call that waits for the one slot while another runs, and how it ended. The policy says `first`
/// of it before, and `second` once it waited.
async fn waited(cx: &CallContext, first: Verdict, second: Verdict) -> (Executed, u64) {
    let (gate, began) = (Arc::new(Semaphore::new(0)), Counter::default());
    let body = {
        let (gate, began) = (gate.clone(), began.clone());
        FuncTool::new("tool", "A tool.", None, move |_, args| {
            let gate = gate.clone();
            began.add();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(args)
            }
        })
    };
    let policy = move |cx: &CallContext, call: &ToolCall| match (&*call.id, cx.waited) {
        ("ahead", _) => Verdict::Allow,
        (_, false) => first.clone(),
        (_, true) => second.clone(),
    };
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    limits.authorize_deadline = None;
    let executor = guarded(body, policy).limits(limits);
    let admit = |id, cx| admitted(executor.admit(cx, request(id, "tool", r#"{"a":5}"#)));
    let (ahead, call) = (admit("ahead", &call_context()), admit("1", cx));
    let (ahead, executed, ()) = tokio::join!(
        biased;
        executor.run(ahead, run_context()),
        executor.run(call, run_context()),
        async { gate.add_permits(2) }
    );
    assert_eq!(ahead.outcome, Outcome::Success);
    (executed, began.count() - 1)
}

fn with(a: u64) -> Verdict {
    Verdict::AllowWith(object(json!({ "a": a })))
}

#[tokio::test]
async fn arguments_that_were_narrowed_stay_so_or_the_call_does_not_run() {
    for (second, outcome) in [
        (with(4), Outcome::Success),
        (with(3), Outcome::Denied),
        // This would be the model's own again, which nobody was told of.
        (Verdict::Allow, Outcome::Denied),
        (Verdict::Confirm { read_back: "Really?".into() }, Outcome::Denied),
        (Verdict::Ask { reason: "much".into() }, Outcome::Denied),
    ] {
        let (executed, bodies) = waited(&call_context(), with(4), second.clone()).await;
        assert_eq!(executed.outcome, outcome, "{second:?}");
        assert_eq!(bodies, u64::from(outcome == Outcome::Success), "{second:?}");
        if outcome == Outcome::Success {
            assert_eq!(executed.response.response, object(json!({"a": 4})));
        }
    }
}

#[tokio::test]
async fn a_person_who_is_wanted_only_later_has_not_decided() {
    let ask = Verdict::Ask { reason: "much".into() };
    let (executed, bodies) = waited(&call_context(), Verdict::Allow, ask.clone()).await;
    assert_eq!((executed.outcome, bodies), (Outcome::Denied, 0));
    assert!(executed.interrupt.is_none());

    let mut approved = call_context();
    approved.approved = true;
    let (executed, bodies) = waited(&approved, ask.clone(), ask.clone()).await;
    assert_eq!((executed.outcome, bodies), (Outcome::Success, 1));
    // They approved what the policy narrowed since.
    let (executed, bodies) = waited(&approved, with(4), ask).await;
    assert_eq!((executed.outcome, bodies), (Outcome::Denied, 0));
}

#[tokio::test]
async fn a_late_denial_says_what_the_policy_wants_told_and_no_more() {
    for (denial, told) in [
        (Denial::told("the limit is used up"), "the limit is used up"),
        (Denial::private("user 17 is blocked"), "tool call denied by host policy"),
    ] {
        let reason = denial.reason.clone();
        let (executed, bodies) =
            waited(&call_context(), Verdict::Allow, Verdict::Deny(denial)).await;
        assert_eq!((executed.outcome, bodies), (Outcome::Denied, 0));
        assert_eq!(error_text(&executed.response.response), told);
        assert_eq!(executed.detail, Some(reason));
    }
}

fn asks(_: &CallContext, _: &ToolCall) -> Verdict {
    Verdict::Ask { reason: "much".into() }
}

#[tokio::test]
async fn a_call_over_which_a_person_decides_is_not_read_back_to_the_user_as_well() {
    let paid = Counter::default();
    let executor = guarded(pay(&paid).read_back("Pay {amount}?"), asks);
    let request = |id| request(id, "pay", r#"{"amount":5}"#);
    let call = admitted(executor.admit(&call_context(), request("1")));
    let executed = executor.run(call, run_context()).await;
    assert_eq!((executed.outcome, paid.count()), (Outcome::Paused, 0));
    assert!(executed.interrupt.is_some_and(|why| why.to_string().contains("much")));

    let mut approved = call_context();
    approved.approved = true;
    let call = admitted(executor.admit(&approved, request("2")));
    let executed = executor.run(call, run_context()).await;
    assert_eq!((executed.outcome, paid.count()), (Outcome::Success, 1));
}

#[test]
fn no_person_decides_over_what_the_host_answers_itself() {
    let executor = guarded(pay(&Counter::default()), asks).host_tools(["mine".into()]);
    let refused = refused(executor.admit(&call_context(), request("1", "mine", "{}")));
    assert_eq!(refused.outcome, Outcome::Denied);
    assert_eq!(error_text(&refused.response.response), "tool call denied by host policy");
}

#[tokio::test]
async fn a_tool_that_keeps_what_it_was_given_does_not_keep_its_slot() {
    let (kept, mut keeps) = tokio::sync::mpsc::unbounded_channel();
    let tool = FuncTool::new("tool", "A tool.", None, move |cx, args| {
        kept.send(cx).unwrap();
        async move { Ok(args) }
    });
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    let executor = executor(tool.timeout(Duration::from_millis(200))).limits(limits);
    let (chunks, mut told) = tokio::sync::mpsc::channel(8);
    let mut contexts = Vec::new();
    for id in ["1", "2", "3"] {
        let call = admitted(executor.admit(&call_context(), request(id, "tool", "{}")));
        let run = run_context().with_stream(chunks.clone(), None);
        assert_eq!(executor.run(call, run).await.outcome, Outcome::Success);
        contexts.push(keeps.recv().await.unwrap());
    }
    assert!(contexts.iter().all(|cx| cx.cancelled.is_cancelled()), "and is told that it is over");
    contexts[0].say("I am still at it.").await;
    assert!(told.try_recv().is_err(), "progress of a call that is over");
}

/// A runtime with one thread for blocking work, which is taken until something is sent.
fn taken_thread() -> (tokio::runtime::Runtime, mpsc::Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let (release, latch) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || latch.recv());
    (runtime, release)
}

#[test]
fn a_call_that_was_denied_while_it_waited_for_a_thread_is_not_shown_to_the_policy() {
    let asked = Counter::default();
    let asks = asked.clone();
    let executor = guarded(pay(&Counter::default()), move |_: &CallContext, _: &ToolCall| {
        asks.add();
        Verdict::Allow
    });
    let (runtime, release) = taken_thread();
    runtime.block_on(async {
        let cx = call_context();
        let admit = |id, ms| {
            let request = request(id, "pay", r#"{"amount":5}"#);
            executor.admit_within(&cx, request, Some(Duration::from_millis(ms)))
        };
        assert_eq!(refused(admit("1", 5).await).outcome, Outcome::Denied);
        release.send(()).unwrap();
        // Its turn comes before that of this one.
        admitted(admit("2", 60_000).await);
    });
    assert_eq!(asked.count(), 1);
}

#[test]
fn work_that_finds_no_thread_before_its_call_is_over_never_begins() {
    let (began, told) = (Counter::default(), Counter::default());
    let tool = {
        let (began, told) = (began.clone(), told.clone());
        FuncTool::new("tool", "A tool.", None, move |cx, _| {
            let (began, told) = (began.clone(), told.clone());
            async move {
                let worked = cx.spawn_blocking(move || began.add()).await;
                told.add();
                worked.map(|()| JsonObject::new())
            }
        })
    };
    let executor = executor(tool.timeout(Duration::from_millis(5)));
    let (runtime, release) = taken_thread();
    let executed = runtime.block_on(async {
        let call = admitted(executor.admit(&call_context(), request("1", "tool", "{}")));
        let executed = executor.run(call, run_context()).await;
        release.send(()).unwrap();
        // Its turn would come before that of this.
        tokio::task::spawn_blocking(|| {}).await.unwrap();
        executed
    });
    assert_eq!((executed.outcome, executed.detached), (Outcome::TimedOut, false));
    assert_eq!((began.count(), told.count(), executor.detached_calls()), (0, 0, 0));
}
