use std::{
    future::pending,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use antiphon_agent::{
    Admission, CallContext, Denial, Executed, ExecutorLimits, FuncTool, Outcome, ToolContext,
    ToolError, ToolExecutor, ToolLimits, Verdict, current_session,
    types::{JsonObject, Status, ToolBehavior, ToolCall, ToolResponseScheduling},
};
use proptest::prelude::*;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// A tool without parameters.
fn tool<F, Fut>(body: F) -> FuncTool
where
    F: Fn(ToolContext, JsonObject) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<JsonObject, ToolError>> + Send + 'static,
{
    FuncTool::new("tool", "A tool.", None, body)
}

async fn run(executor: &ToolExecutor) -> Executed {
    run_as(executor, "1", run_context()).await
}

async fn run_as(executor: &ToolExecutor, id: &str, cx: antiphon_agent::RunContext) -> Executed {
    let call = admitted(executor.admit(&call_context(), request(id, "tool", "{}")));
    executor.run(call, cx).await
}

#[tokio::test]
async fn c13_a_result_echoes_id_and_name() {
    let executor = executor(tool(|cx, _| async move {
        assert_eq!((&*cx.session_id, &*cx.call_id, cx.turn), ("session", "1", 1));
        Ok(object(json!({"n": 1})))
    }));
    let executed = run(&executor).await;
    assert_eq!(executed.outcome, Outcome::Success);
    assert_eq!(executed.response.response, object(json!({"n": 1})));
    assert_eq!((&*executed.response.id, &*executed.response.name), ("1", "tool"));
    assert!(!executed.detached);
}

#[tokio::test]
async fn a_body_knows_whose_tool_it_is() {
    let here = || {
        let session = current_session().map(|id| id.to_string());
        Ok(object(json!({ "session": session })))
    };
    for tool in [
        tool(move |_, _| async move { here() }),
        FuncTool::blocking("tool", "A tool.", None, move |_, _| here()),
    ] {
        let executed = run(&executor(tool)).await;
        assert_eq!(executed.response.response, object(json!({"session": "session"})));
    }
    assert_eq!(current_session(), None);
}

#[tokio::test]
async fn c12_errors_and_empty_results_have_payloads() {
    let fails = executor(tool(|_, _| async { Err(ToolError::new("no such city")) }));
    let executed = run(&fails).await;
    assert_eq!(executed.outcome, Outcome::Error);
    assert_eq!(executed.response.response, object(json!({"error": "no such city"})));

    let empty = executor(tool(|_, _| async { Ok(JsonObject::new()) }));
    let executed = run(&empty).await;
    assert_eq!(executed.outcome, Outcome::Success);
    assert_eq!(executed.response.response, object(json!({})));
}

#[tokio::test]
async fn private_errors_stay_with_the_host() {
    let executor = executor(tool(|_, _| async { Err(ToolError::private("db 10.0.0.7 is down")) }));
    let executed = run(&executor).await;
    assert_eq!(error_text(&executed.response.response), "the tool failed");
    assert_eq!(executed.detail.as_deref(), Some("db 10.0.0.7 is down"));
}

#[tokio::test]
async fn f07_a_panic_is_one_output() {
    for panics in [
        tool(|_, _| async { panic!("index 7") }),
        FuncTool::blocking("tool", "A tool.", None, |_, _| panic!("index 7")),
        // Not in the future, but where it is made.
        tool(|_, _| -> std::future::Ready<Result<JsonObject, ToolError>> { panic!("index 7") }),
    ] {
        let executed = run(&executor(panics)).await;
        assert_eq!(executed.outcome, Outcome::Panicked);
        assert_eq!(error_text(&executed.response.response), "the tool failed");
        assert_eq!(executed.detail.as_deref(), Some("index 7"));
        assert!(!executed.detached);
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d09_a_tool_that_never_answers_times_out() {
    let executor = executor(tool(|_, _| pending()).timeout(Duration::from_secs(7)));
    let begin = tokio::time::Instant::now();
    let executed = run(&executor).await;
    assert_eq!(executed.outcome, Outcome::TimedOut);
    assert_eq!(error_text(&executed.response.response), "the tool timed out");
    assert!(!executed.detached);
    assert!(begin.elapsed() >= Duration::from_secs(7));
    assert!(begin.elapsed() < Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn f07_cancelling_drops_the_body_after_a_moment_of_grace() {
    struct SetOnDrop(Counter);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.add();
        }
    }
    let (dropped, began) = (Counter::default(), Arc::new(Notify::new()));
    let executor = executor(tool({
        let (dropped, began) = (dropped.clone(), began.clone());
        move |_, _| {
            let guard = SetOnDrop(dropped.clone());
            let began = began.clone();
            async move {
                let _guard = guard;
                began.notify_one();
                pending().await
            }
        }
    }));
    let token = CancellationToken::new();
    let (executed, ()) = tokio::join!(run_as(&executor, "1", cancellable(token.clone())), async {
        began.notified().await;
        token.cancel();
    });
    assert_eq!(executed.outcome, Outcome::Cancelled);
    assert!(!executed.detached);
    assert_eq!(dropped.count(), 1);
}

#[tokio::test]
async fn a_tool_that_heeds_cancellation_ends_by_itself() {
    let cleaned = Counter::default();
    let clean = cleaned.clone();
    let executor = executor(tool(move |cx, _| {
        let clean = clean.clone();
        async move {
            cx.cancelled.cancelled().await;
            clean.add();
            Ok(object(json!({"ignored": true})))
        }
    }));
    let token = CancellationToken::new();
    let cx = cancellable(token.clone());
    let (executed, ()) = tokio::join!(run_as(&executor, "1", cx), async {
        tokio::task::yield_now().await;
        token.cancel();
    });
    assert_eq!(executed.outcome, Outcome::Cancelled);
    assert_eq!(cleaned.count(), 1);
    assert_eq!(error_text(&executed.response.response), "the tool call was cancelled");
}

#[tokio::test]
async fn a_call_that_is_cancelled_already_never_starts() {
    let counter = Counter::default();
    let count = counter.clone();
    let executor = executor(tool(move |_, _| {
        count.add();
        async { Ok(JsonObject::new()) }
    }));
    let token = CancellationToken::new();
    token.cancel();
    assert_eq!(run_as(&executor, "1", cancellable(token)).await.outcome, Outcome::Cancelled);
    assert_eq!(counter.count(), 0);
}

#[tokio::test]
async fn a_blocking_body_that_ignores_cancellation_is_detached_and_keeps_its_slot() {
    let (release, latch) = mpsc::channel::<()>();
    let latch = Mutex::new(latch);
    let stubborn = FuncTool::blocking("tool", "A tool.", None, move |_, _| {
        let _ = latch.lock().unwrap().recv();
        Ok(JsonObject::new())
    });
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    let executor = executor(stubborn.timeout(Duration::from_millis(20))).limits(limits);

    let executed = run_as(&executor, "1", run_context()).await;
    assert_eq!(executed.outcome, Outcome::TimedOut);
    assert!(executed.detached);
    assert_eq!(executor.detached_calls(), 1);

    let waiting = run_as(&executor, "2", run_context()).await;
    assert_eq!(waiting.outcome, Outcome::TimedOut);
    assert_eq!(waiting.detail.as_deref(), Some("no free slot in its time"));
    assert!(!waiting.detached);

    // Once its body ended, the slot is free again, for a body that finds the latch open.
    drop(release);
    let mut after = run_as(&executor, "3", run_context()).await;
    for id in 4..100 {
        if after.outcome == Outcome::Success {
            break;
        }
        after = run_as(&executor, &id.to_string(), run_context()).await;
    }
    assert_eq!(after.outcome, Outcome::Success);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_that_blocks_its_thread_cannot_hold_its_call() {
    let (release, latch) = mpsc::channel::<()>();
    let latch = Mutex::new(latch);
    let executor = executor(
        tool(move |_, _| {
            let _ = latch.lock().unwrap().recv();
            async { Ok(JsonObject::new()) }
        })
        .timeout(Duration::from_millis(20)),
    );
    let executed = run(&executor).await;
    assert_eq!(executed.outcome, Outcome::TimedOut);
    assert!(executed.detached);
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_future_that_blocks_its_thread_holds_up_no_other_task() {
    let (release, latch) = mpsc::channel::<()>();
    let latch = Mutex::new(latch);
    let began = Arc::new(Notify::new());
    let begins = began.clone();
    let executor = Arc::new(executor(tool(move |_, _| {
        begins.notify_one();
        let _ = latch.lock().unwrap().recv();
        async { Ok(JsonObject::new()) }
    })));
    // Everything on the only worker.
    let running = tokio::spawn(async move { run(&executor).await });
    let other = tokio::spawn(async move {
        began.notified().await;
        release.send(()).unwrap();
    });
    other.await.unwrap();
    assert_eq!(running.await.unwrap().outcome, Outcome::Success);
}

#[tokio::test]
async fn a_tool_may_keep_the_time_itself() {
    let executor = executor(tool(|_, _| async {
        Err(ToolError::new("no answer from the bank").with_status(Status::DeadlineExceeded))
    }));
    let executed = run(&executor).await;
    assert_eq!(executed.outcome, Outcome::TimedOut);
    assert_eq!(error_text(&executed.response.response), "no answer from the bank");
}

#[tokio::test]
async fn a_blocking_body_can_heed_cancellation() {
    let executor = executor(
        FuncTool::blocking("tool", "A tool.", None, |cx, _| {
            while !cx.cancelled.is_cancelled() {
                std::thread::yield_now();
            }
            Ok(JsonObject::new())
        })
        .timeout(Duration::from_millis(10)),
    );
    let mut limits = ExecutorLimits::default();
    limits.grace = Duration::from_secs(20);
    let executed = run(&executor.limits(limits)).await;
    assert_eq!(executed.outcome, Outcome::TimedOut);
    assert!(!executed.detached);
}

#[tokio::test]
async fn trial_d17_an_output_that_is_too_large_is_one_small_error() {
    let executor =
        executor(tool(|_, _| async { Ok(object(json!({"blob": "x".repeat(24 << 20)}))) }));
    let executed = run(&executor).await;
    assert_eq!(executed.outcome, Outcome::OutputTooLarge);
    let text = error_text(&executed.response.response);
    assert!(text.contains("25165835 bytes, at most 65536"), "{text}");

    let fits = |bytes| {
        super::super::support::executor(
            tool(move |_, _| async move { Ok(object(json!({"b": "x".repeat(bytes)}))) })
                .limits(ToolLimits::default().max_output_bytes(100)),
        )
    };
    assert_eq!(run(&fits(92)).await.outcome, Outcome::Success);
    assert_eq!(run(&fits(93)).await.outcome, Outcome::OutputTooLarge);
}

#[tokio::test]
async fn an_endless_error_is_shortened() {
    let executor = executor(tool(|_, _| async { Err(ToolError::new("ä".repeat(1 << 20))) }));
    let executed = run(&executor).await;
    assert_eq!(executed.outcome, Outcome::Error);
    let text = error_text(&executed.response.response);
    assert!(text.len() <= 4096 && text.ends_with('…'));
}

#[tokio::test]
async fn f10_behaviour_and_scheduling_reach_definition_and_response() {
    let quiet = tool(|_, _| async { Ok(JsonObject::new()) })
        .behavior(ToolBehavior::NonBlocking)
        .scheduling(ToolResponseScheduling::Silent)
        .output_schema(json!({"type": "object"}));
    let executor = executor(quiet);
    let definition = executor.registry().definitions().remove(0);
    assert_eq!(definition.behavior, ToolBehavior::NonBlocking);
    assert_eq!(*definition.output_schema.unwrap(), json!({"type": "object"}));
    assert_eq!(run(&executor).await.response.scheduling, ToolResponseScheduling::Silent);
}

/// A tool that waits for permits of a semaphore, and an executor with one slot for it.
fn one_slot(
    verdict_after_waiting: Verdict,
) -> (ToolExecutor, Arc<tokio::sync::Semaphore>, Counter) {
    let (gate, began) = (Arc::new(tokio::sync::Semaphore::new(0)), Counter::default());
    let body = {
        let (gate, began) = (gate.clone(), began.clone());
        tool(move |_, _| {
            let gate = gate.clone();
            began.add();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(JsonObject::new())
            }
        })
    };
    let policy = move |cx: &CallContext, _: &ToolCall| match cx.waited {
        true => verdict_after_waiting.clone(),
        false => Verdict::Allow,
    };
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    limits.authorize_deadline = None;
    (guarded(body, policy).limits(limits), gate, began)
}

#[tokio::test]
async fn calls_beyond_the_bound_wait_and_are_authorised_again() {
    for (verdict, outcome, bodies) in [
        (Verdict::Allow, Outcome::Success, 2),
        (Verdict::AllowWith(JsonObject::new()), Outcome::Success, 2),
        (Verdict::AllowWith(object(json!({"a": 1}))), Outcome::Denied, 1),
        (Verdict::Deny(Denial::default()), Outcome::Denied, 1),
        (Verdict::Confirm { read_back: "Really?".into() }, Outcome::Denied, 1),
    ] {
        let (executor, gate, began) = one_slot(verdict.clone());
        let (first, second, ()) = tokio::join!(
            biased;
            run_as(&executor, "1", run_context()),
            run_as(&executor, "2", run_context()),
            async {
                assert_eq!(began.count(), 0);
                gate.add_permits(2);
            }
        );
        assert_eq!(first.outcome, Outcome::Success);
        assert_eq!(second.outcome, outcome, "{verdict:?}");
        assert_eq!(began.count(), bodies, "{verdict:?}");
    }
}

#[tokio::test]
async fn a_call_that_waited_is_covered_by_the_question_that_was_answered_only() {
    for (later, outcome) in [("Pay 5?", Outcome::Success), ("Pay 50?", Outcome::Denied)] {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let body = {
            let gate = gate.clone();
            tool(move |_, _| {
                let gate = gate.clone();
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok(JsonObject::new())
                }
            })
        };
        let policy = move |cx: &CallContext, call: &ToolCall| match (&*call.id, cx.waited) {
            ("1", _) => Verdict::Allow,
            (_, waited) => {
                Verdict::Confirm { read_back: if waited { later } else { "Pay 5?" }.into() }
            }
        };
        let mut limits = ExecutorLimits::default();
        limits.max_concurrent = 1;
        limits.authorize_deadline = None;
        let executor = guarded(body, policy).limits(limits);
        let asked = executor.admit(&call_context(), request("2", "tool", "{}"));
        assert!(matches!(asked, Admission::Confirm { .. }), "{asked:?}");
        let confirmed = call_context().confirmed();
        let call = admitted(executor.admit(&confirmed, request("2", "tool", "{}")));
        let (first, second, ()) = tokio::join!(
            biased;
            run_as(&executor, "1", run_context()),
            executor.run(call, run_context()),
            async { gate.add_permits(2) }
        );
        assert_eq!((first.outcome, second.outcome), (Outcome::Success, outcome), "{later}");
    }
}

#[tokio::test]
async fn a_policy_that_narrows_sees_the_models_arguments_both_times() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let body = {
        let gate = gate.clone();
        tool(move |_, args| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(args)
            }
        })
    };
    let policy = |_: &CallContext, call: &ToolCall| {
        assert_eq!(call.args, object(json!({"amount": 5, "note": "hi"})));
        Verdict::AllowWith(object(json!({"amount": 5})))
    };
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    limits.authorize_deadline = None;
    let executor = guarded(body, policy).limits(limits);
    let admit = |id| {
        let request = request(id, "tool", r#"{"amount":5,"note":"hi"}"#);
        admitted(executor.admit(&call_context(), request))
    };
    let (one, two) = (admit("1"), admit("2"));
    let (one, two, ()) = tokio::join!(
        biased;
        executor.run(one, run_context()),
        executor.run(two, run_context()),
        async { gate.add_permits(2) }
    );
    for executed in [one, two] {
        assert_eq!(executed.response.response, object(json!({"amount": 5})));
    }
}

#[tokio::test]
async fn a_waiting_call_can_be_cancelled() {
    let (executor, gate, began) = one_slot(Verdict::Allow);
    let token = CancellationToken::new();
    let (first, second, ()) = tokio::join!(
        biased;
        run_as(&executor, "1", run_context()),
        run_as(&executor, "2", cancellable(token.clone())),
        async {
            token.cancel();
            gate.add_permits(1);
        }
    );
    assert_eq!((first.outcome, second.outcome), (Outcome::Success, Outcome::Cancelled));
    assert_eq!(began.count(), 1);
}

#[tokio::test]
async fn dropping_the_run_cancels_and_frees_everything() {
    let (executor, gate, _) = one_slot(Verdict::Allow);
    let token = CancellationToken::new();
    let call = admitted(executor.admit(&call_context(), request("1", "tool", "{}")));
    let mut dropped = Box::pin(executor.run(call, cancellable(token.clone())));
    tokio::select! {
        biased;
        _ = &mut dropped => panic!("the gate is closed"),
        () = tokio::task::yield_now() => {}
    }
    drop(dropped);
    assert!(!token.is_cancelled(), "the caller's token is the caller's");
    gate.add_permits(1);
    assert_eq!(run_as(&executor, "2", run_context()).await.outcome, Outcome::Success);
}

#[derive(Clone, Debug)]
enum Step {
    Admit { id: u8, args: u8 },
    Confirm { id: u8 },
    Refuse { id: u8 },
    Cancel { id: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6u8, 0..6u8).prop_map(|(id, args)| Step::Admit { id, args }),
        2 => (0..6u8).prop_map(|id| Step::Confirm { id }),
        1 => (0..6u8).prop_map(|id| Step::Refuse { id }),
        2 => (0..6u8).prop_map(|id| Step::Cancel { id }),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is asked, confirmed, given up and cancelled in whatever order: every call has
    /// exactly one output in the end.
    #[test]
    fn every_call_has_exactly_one_output(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let outputs = runtime.block_on(drive(steps));
        for (id, count) in outputs {
            prop_assert_eq!(count, 1, "call {}", id);
        }
    }
}

/// Runs `steps` and counts the outputs of each call.
async fn drive(steps: Vec<Step>) -> std::collections::BTreeMap<u8, usize> {
    use antiphon_agent::Admission;

    let schema = json!({"type": "object", "properties": {"how": {"type": "integer"}}});
    let body = FuncTool::new("tool", "A tool.", schema, |_, args| async move {
        match args["how"].as_i64() {
            Some(0) => Ok(JsonObject::new()),
            Some(1) => Err(ToolError::new("no")),
            Some(2) => panic!("oh"),
            _ => pending().await,
        }
    });
    let policy = |cx: &CallContext, call: &ToolCall| match call.args["how"].as_i64() {
        Some(4) if !cx.confirmed => Verdict::Confirm { read_back: "Yes?".into() },
        Some(5) => Verdict::Deny(Denial::default()),
        _ => Verdict::Allow,
    };
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 2;
    let executor = Arc::new(guarded(body.timeout(Duration::from_secs(3)), policy).limits(limits));

    let mut outputs = std::collections::BTreeMap::<u8, usize>::new();
    let mut asked = std::collections::BTreeMap::new();
    let mut tokens = std::collections::BTreeMap::new();
    let mut running = tokio::task::JoinSet::new();
    for step in steps {
        let (id, admission) = match step {
            Step::Admit { id, args } => {
                outputs.entry(id).or_default();
                let args =
                    if args == 3 { "{".to_owned() } else { json!({"how": args}).to_string() };
                let request = request(&id.to_string(), "tool", &args);
                (id, executor.admit(&call_context(), request))
            }
            Step::Confirm { id } => match asked.remove(&id) {
                Some(request) => (id, executor.admit(&call_context().confirmed(), request)),
                None => continue,
            },
            Step::Refuse { id } => {
                if let Some(request) = asked.remove(&id) {
                    let refused = executor.refuse(&request, Outcome::NotConfirmed, "no");
                    assert_eq!(&*refused.response.id, id.to_string());
                    *outputs.entry(id).or_default() += 1;
                }
                continue;
            }
            Step::Cancel { id } => {
                if let Some(token) = tokens.get(&id) {
                    CancellationToken::cancel(token);
                }
                tokio::task::yield_now().await;
                continue;
            }
        };
        match admission {
            Admission::Run(call) => {
                let token = CancellationToken::new();
                tokens.insert(id, token.clone());
                let executor = executor.clone();
                running.spawn(async move { (id, executor.run(call, cancellable(token)).await) });
            }
            Admission::Refused(_) => *outputs.entry(id).or_default() += 1,
            Admission::Confirm { request, .. } => {
                asked.insert(id, request);
            }
            Admission::Duplicate => {}
            other => panic!("{other:?}"),
        }
    }
    for (id, request) in asked {
        executor.refuse(&request, Outcome::Cancelled, "the session ended");
        *outputs.entry(id).or_default() += 1;
    }
    while let Some(done) = running.join_next().await {
        let (id, executed) = done.unwrap();
        assert_eq!(&*executed.response.id, id.to_string());
        *outputs.entry(id).or_default() += 1;
    }
    outputs
}
