//! Where a bound is reached exactly, and what else of a call can be known from outside.

use antiphon_agent::{
    Admission, CallContext, ExecutorLimits, FuncTool, OnInterruption, Outcome, RegistryError,
    ToolContext, ToolError, ToolExecutor, ToolLimits, ToolRegistry, Verdict, cut_output,
    types::{JsonObject, Status, ToolArguments, ToolBehavior, ToolCall, ToolCallRequest},
};
use serde_json::{Value, json};

use crate::support::*;

/// A tool without parameters that gives `output`.
fn gives(name: &str, output: Value) -> FuncTool {
    FuncTool::new(name, "A tool.", None, move |_, _| {
        let output = object(output.clone());
        async move { Ok(output) }
    })
}

/// An executor for `first` and `second`.
fn two() -> ToolExecutor {
    let registry = ToolRegistry::new();
    registry.must_register(gives("first", json!({})));
    registry.must_register(gives("second", json!({})));
    ToolExecutor::new(registry.into(), None)
}

fn admit(executor: &ToolExecutor, id: &str, name: &str) -> Admission {
    executor.admit(&call_context(), request(id, name, "{}"))
}

fn names(executor: &ToolExecutor) -> (Vec<String>, Vec<String>) {
    let definitions = executor.definitions();
    let definitions = definitions.iter().map(|definition| definition.name.to_string());
    let tools = executor.tools();
    let tools = tools.iter().map(|tool| tool.name().to_owned());
    (definitions.collect(), tools.collect())
}

#[test]
fn what_a_tool_declares_is_known_before_it_runs() {
    let plain = executor(gives("tool", json!({})));
    let call = admitted(admit(&plain, "1", "tool"));
    assert_eq!(call.behavior(), ToolBehavior::default());
    assert_eq!(call.on_interruption(), OnInterruption::default());

    let tool = gives("tool", json!({}))
        .behavior(ToolBehavior::NonBlocking)
        .on_interruption(OnInterruption::Cancel);
    let call = admitted(admit(&executor(tool), "1", "tool"));
    assert_eq!(call.behavior(), ToolBehavior::NonBlocking);
    assert_eq!(call.on_interruption(), OnInterruption::Cancel);
}

#[test]
fn an_executor_for_some_of_its_tools_knows_no_others() {
    let all = two();
    let both = vec!["first".to_owned(), "second".to_owned()];
    assert_eq!(names(&all), (both.clone(), both));
    let some = all.only(["first"]).unwrap();
    let first = vec!["first".to_owned()];
    assert_eq!(names(&some), (first.clone(), first));
    admitted(admit(&some, "1", "first"));
    assert_eq!(refused(admit(&some, "2", "second")).outcome, Outcome::UnknownTool);
    admitted(admit(&all, "3", "second"));

    // Neither a tool that nobody registered, nor one that was taken away before.
    let unknown = all.only(["first", "third"]).unwrap_err();
    assert_eq!(unknown, RegistryError::Unknown("third".into()));
    assert!(some.only(["second"]).is_err());
    assert!(some.only(["first"]).is_ok());
}

#[test]
fn calls_of_another_conversation_have_ids_of_their_own() {
    let one = two();
    let other = one.with_new_ids();
    admitted(admit(&one, "1", "first"));
    admitted(admit(&other, "1", "first"));
    assert!(matches!(admit(&one, "1", "first"), Admission::Duplicate));
    assert!(matches!(admit(&other, "1", "first"), Admission::Duplicate));
}

#[test]
fn arguments_may_have_exactly_so_many_bytes() {
    let mut limits = ExecutorLimits::default();
    limits.max_argument_bytes = 100;
    let executor = executor(gives("tool", json!({}))).limits(limits);
    let text = |bytes: usize| json!({ "a": "x".repeat(bytes - 8) }).to_string();
    for (bytes, fits) in [(99, true), (100, true), (101, false)] {
        let text = text(bytes);
        assert_eq!(text.len(), bytes);
        let parsed = ToolArguments::Object(serde_json::from_str(&text).unwrap());
        for (id, arguments) in [("text", ToolArguments::Json(text)), ("object", parsed)] {
            let id = format!("{id} of {bytes}");
            let (id, name) = (id.as_str().into(), "tool".into());
            let admission =
                executor.admit(&call_context(), ToolCallRequest { id, name, arguments });
            match fits {
                true => drop(admitted(admission)),
                false => assert_eq!(refused(admission).outcome, Outcome::InvalidArguments),
            }
        }
    }
}

#[test]
fn the_arguments_for_an_unknown_tool_are_on_record() {
    let admission = two().admit(&call_context(), request("1", "third", r#"{"a":1}"#));
    assert_eq!(refused(admission).args, Some(object(json!({"a": 1}))));
}

#[test]
fn what_is_told_of_an_outcome_says_how_it_ended() {
    use Outcome::*;
    for (outcome, status, words) in [
        (Success, None, "no output"),
        (Error, Some(Status::Internal), "failed"),
        (Panicked, Some(Status::Internal), "failed"),
        (Denied, Some(Status::PermissionDenied), "denied"),
        (NotConfirmed, Some(Status::PermissionDenied), "not confirm"),
        (NotApproved, Some(Status::PermissionDenied), "not approved"),
        (UnknownTool, Some(Status::NotFound), "unknown"),
        (InvalidArguments, Some(Status::InvalidArgument), "invalid"),
        (TimedOut, Some(Status::DeadlineExceeded), "timed out"),
        (Expired, Some(Status::DeadlineExceeded), "in time"),
        (Cancelled, Some(Status::Cancelled), "cancelled"),
        (Interrupted, Some(Status::Cancelled), "interrupted"),
        (OutputTooLarge, Some(Status::ResourceExhausted), "too large"),
        (Paused, None, "waits"),
    ] {
        assert_eq!(outcome.status(), status, "{outcome:?}");
        assert!(outcome.fixed_text().contains(words), "{outcome:?}: {}", outcome.fixed_text());
    }
}

#[test]
fn nothing_is_left_behind_before_anything_ran() {
    let executor = two();
    assert_eq!(executor.detached_calls(), 0);
    assert!(executor.authorizer().is_none());
    let guarded = guarded(pay(&Counter::default()), |_: &CallContext, _: &ToolCall| Verdict::Allow);
    assert!(guarded.authorizer().is_some());
}

/// Runs a call of `tool`, whose outputs may be cut.
async fn cut(tool: FuncTool) -> antiphon_agent::Executed {
    let executor = executor(tool);
    let call = admitted(admit(&executor, "1", "tool"));
    executor.run(call, run_context().cut_outputs()).await
}

#[tokio::test]
async fn trial_d17_an_output_is_cut_only_where_it_does_not_fit() {
    let of = |bytes: usize| json!({ "text": "x".repeat(bytes - 11) });
    let limits = ToolLimits::default().max_output_bytes(1_000);
    let fits = cut(gives("tool", of(1_000)).limits(limits)).await;
    assert_eq!((fits.outcome, fits.whole), (Outcome::Success, None));
    assert_eq!(fits.output, of(1_000));

    let done = cut(gives("tool", of(1_001)).limits(limits)).await;
    assert_eq!(done.outcome, Outcome::Success);
    assert_eq!(done.whole, Some(of(1_001)));
    let output = json!(done.response.response);
    assert_eq!((&output["truncated"], &output["total_bytes"]), (&json!(true), &json!(1_001)));
    assert!(output["text"].as_str().unwrap().starts_with("xxx"), "under its own name");
    let bytes = output.to_string().len();
    assert!((990..=1_000).contains(&bytes), "as much as fits, and not {bytes} bytes");
}

#[tokio::test]
async fn trial_d17_what_is_no_single_text_is_cut_as_json() {
    let limits = ToolLimits::default().max_output_bytes(200);
    let (text, number) = ("y".repeat(300), 10_u64.pow(15));
    for (output, begins) in [
        (json!({ "a": text, "b": text }), r#"{"a":"yyy"#),
        (json!({ "list": vec![number; 40] }), r#"{"list":[1000000000000000,1"#),
        (json!({ "a": text, "b": 1 }), r#"{"a":"yyy"#),
    ] {
        let done = cut(gives("tool", output.clone()).limits(limits)).await;
        let told = json!(done.response.response);
        assert!(told["output"].as_str().unwrap().starts_with(begins), "{told}");
        assert!(told.to_string().len() <= 200, "{told}");
        assert_eq!(done.whole, Some(output));
    }
}

#[tokio::test]
async fn trial_d17_megabytes_are_cut_as_fast_as_kilobytes() {
    // A step per byte would not end in the time that a test has.
    let done = cut(gives("tool", json!({ "text": "\u{1}😀".repeat(500_000) }))).await;
    let bytes = json!(done.response.response).to_string().len();
    assert!((60_000..=65_536).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn trial_d17_whoever_runs_a_tool_may_take_less_than_it_may_give() {
    let of = |bytes: usize| json!({ "text": "x".repeat(bytes - 11) });
    let run = async |output: Value| {
        let executor = executor(gives("tool", output));
        let call = admitted(admit(&executor, "1", "tool"));
        executor.run(call, run_context().cut_outputs_at(500)).await
    };
    assert_eq!(run(of(500)).await.whole, None);
    let done = run(of(501)).await;
    assert_eq!((done.outcome, done.whole), (Outcome::Success, Some(of(501))));
    assert!((490..=500).contains(&json!(done.response.response).to_string().len()));

    // The same for what comes another way.
    assert_eq!(cut_output(&object(of(500)), 500), None);
    let cut = json!(cut_output(&object(of(501)), 500).unwrap());
    assert_eq!((&cut["truncated"], &cut["total_bytes"]), (&json!(true), &json!(501)));
    assert!((490..=500).contains(&cut.to_string().len()));
}

/// A tool that waits for somebody, and says so with `data`.
fn waits(data: Value) -> FuncTool {
    FuncTool::new("tool", "A tool.", None, move |_, _| {
        let mut error = ToolError::new("it waits");
        error.interrupt = Some(data.clone());
        async move { Err::<JsonObject, _>(error) }
    })
}

async fn run(tool: FuncTool) -> antiphon_agent::Executed {
    let executor = executor(tool);
    let call = admitted(admit(&executor, "1", "tool"));
    executor.run(call, run_context()).await
}

#[tokio::test]
async fn a_call_waits_only_with_a_reason_that_can_be_told() {
    let limits = ToolLimits::default().max_output_bytes(100);
    let of = |bytes: usize| json!({ "why": "x".repeat(bytes - 10) });
    for data in [json!(true), json!({}), of(99), of(100)] {
        let done = run(waits(data.clone()).limits(limits)).await;
        assert_eq!((done.outcome, &done.interrupt), (Outcome::Paused, &Some(data)));
    }
    let long = run(waits(of(101)).limits(limits)).await;
    assert_eq!((long.outcome, long.interrupt), (Outcome::OutputTooLarge, None));
    assert!(error_text(&long.response.response).contains("101 bytes, at most 100"));
    for data in [json!(false), json!(1), json!("yes"), json!([])] {
        let done = run(waits(data)).await;
        assert_eq!((done.outcome, done.interrupt), (Outcome::Error, None));
        assert_eq!(error_text(&done.response.response), "the tool failed");
    }
}

#[tokio::test]
async fn a_tool_may_notice_itself_that_it_has_too_much_to_give() {
    let tool = FuncTool::new("tool", "A tool.", None, |_: ToolContext, _| async {
        Err::<JsonObject, _>(ToolError::output_too_large("the page has 9 MB"))
    });
    let done = run(tool).await;
    assert_eq!(done.outcome, Outcome::OutputTooLarge);
    assert_eq!(error_text(&done.response.response), "the page has 9 MB");
}

#[tokio::test]
async fn an_error_may_be_long_but_not_endless() {
    for bytes in [4_000, 4_096, 5_000] {
        let tool = FuncTool::new("tool", "A tool.", None, move |_: ToolContext, _| async move {
            Err::<JsonObject, _>(ToolError::new("x".repeat(bytes)))
        });
        let done = run(tool).await;
        let text = error_text(&done.response.response).to_owned();
        assert_eq!(text.ends_with('…'), bytes > 4_096);
        assert!(text.len() <= 4_096 && text.len() >= bytes.min(4_090), "{}", text.len());
    }
}

#[tokio::test]
async fn a_panic_without_words_is_one_output_too() {
    let tool =
        FuncTool::new("tool", "A tool.", None, |_: ToolContext, args: JsonObject| async move {
            if args.is_empty() {
                std::panic::panic_any(7);
            }
            Ok(args)
        });
    let done = run(tool).await;
    assert_eq!((done.outcome, done.detail.as_deref()), (Outcome::Panicked, Some("no text")));
}
