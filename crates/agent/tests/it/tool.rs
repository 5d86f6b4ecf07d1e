//! Typed tools, and what tools and their callers say to each other.

use std::sync::{Arc, Mutex};

use antiphon_agent::{
    Executed, FuncTool, InterruptibleTool, InvocationContext, Outcome, Part, RunContext, Session,
    SessionState, Tool, ToolError, ToolExecutor, ToolRegistry, TypedTool,
    message::ModelResponseChunk,
    tool::{interrupt, interrupt_as, replace_input, respond, resume},
    types::{JsonObject, Status},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::*;

#[derive(Debug, Deserialize, JsonSchema)]
struct Transfer {
    /// Who gets it.
    to: String,
    amount: f64,
    #[serde(default)]
    route: Option<Route>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Route {
    bank: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Reason {
    reason: String,
    amount: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Confirmation {
    #[serde(default)]
    approved: bool,
}

#[derive(Serialize, JsonSchema)]
struct Receipt {
    status: &'static str,
}

fn transfer() -> InterruptibleTool<Transfer, Receipt, Confirmation> {
    InterruptibleTool::new(
        "transfer",
        "Transfers money.",
        |_cx, input: Transfer, answer: Option<Confirmation>| async move {
            match answer {
                None if input.amount > 100.0 => {
                    let bank = input.route.map_or("ours".into(), |route| route.bank);
                    let reason = format!("large amount for {} at {bank}", input.to);
                    Err(interrupt(Reason { reason, amount: input.amount }))
                }
                Some(Confirmation { approved: false }) => Ok(Receipt { status: "cancelled" }),
                _ => Ok(Receipt { status: "completed" }),
            }
        },
    )
}

async fn run(tool: impl Tool, args: &str, cx: RunContext) -> Executed {
    let name = tool.name().to_owned();
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let executor = ToolExecutor::new(Arc::new(registry), None);
    let call = admitted(executor.admit(&call_context(), request("1", &name, args)));
    executor.run(call, cx).await
}

fn paused_part() -> Part {
    let input = json!({"to": "alice", "amount": 200});
    Part::tool_request("transfer", Some("t1".into()), input)
        .with_metadata_entry("interrupt", json!({"reason": "large", "amount": 200.0}))
}

#[tokio::test]
async fn output_schema_matches_classic() {
    let definition = transfer().definition();
    let input = definition.input_schema.unwrap();
    assert_eq!(input["type"], "object");
    assert_eq!(input["properties"]["to"]["description"], "Who gets it.");
    assert_eq!(input["required"], json!(["to", "amount"]));
    let text = input.to_string();
    assert!(text.contains("bank") && !text.contains("$ref"), "not in one piece: {text}");
    let output = definition.output_schema.unwrap();
    assert_eq!(output["properties"]["status"]["type"], "string");

    let plain = TypedTool::new("now", "The time.", |_cx, (): ()| async { Ok("noon") });
    assert_eq!(plain.definition().input_schema, None);
    assert_eq!(plain.definition().output_schema.unwrap()["type"], "string");
    let done = run(plain, "{}", run_context()).await;
    assert_eq!((done.outcome, done.output), (Outcome::Success, json!("noon")));
    // A provider that takes objects gets one.
    assert_eq!(done.response.response, object(json!({"output": "noon"})));
}

#[tokio::test]
async fn an_interrupt_is_an_end_of_its_own() {
    let args = r#"{"to": "alice", "amount": 200}"#;
    let done = run(transfer(), args, run_context()).await;
    assert_eq!(done.outcome, Outcome::Paused);
    let data = json!({"reason": "large amount for alice at ours", "amount": 200.0});
    assert_eq!(done.interrupt, Some(data));
    // Where nobody can answer the model is told.
    assert!(error_text(&done.response.response).contains("waits"));

    for (answer, status) in [
        (json!({"approved": true}), "completed"),
        (json!({"approved": false}), "cancelled"),
        // An answer without data is one of no members.
        (json!(true), "cancelled"),
    ] {
        let mut cx = run_context();
        cx.resumed = Some(answer);
        let done = run(transfer(), args, cx).await;
        assert_eq!((done.outcome, &done.output), (Outcome::Success, &json!({"status": status})));
    }

    let mut cx = run_context();
    cx.resumed = Some(json!({"approved": "perhaps"}));
    let done = run(transfer(), args, cx).await;
    assert_eq!(done.outcome, Outcome::Error);
    assert!(done.detail.unwrap().contains("Confirmation"));
}

#[test]
fn interruptible_tool_typed_round_trip_and_ownership_check() {
    let (tool, part) = (transfer(), paused_part());
    let told: Reason = interrupt_as(&part).unwrap();
    assert_eq!(told, Reason { reason: "large".into(), amount: 200.0 });
    assert_eq!(interrupt_as::<Vec<u8>>(&part), None);
    assert_eq!(interrupt_as::<Value>(&Part::text("no interrupt")), None);

    let restart = tool.resume(&part, Confirmation { approved: true }).unwrap();
    let expected = json!({
        "toolRequest": {
            "name": "transfer", "ref": "t1", "input": {"to": "alice", "amount": 200},
        },
        "metadata": { "resumed": {"approved": true} },
    });
    assert_eq!(serde_json::to_value(&restart).unwrap(), expected);

    let response = tool.respond(&part, Receipt { status: "refused" }).unwrap();
    let expected = json!({
        "toolResponse": { "name": "transfer", "ref": "t1", "output": {"status": "refused"} },
        "metadata": { "interruptResponse": true },
    });
    assert_eq!(serde_json::to_value(&response).unwrap(), expected);

    let mut foreign = Part::tool_request("delete", None, json!({}));
    foreign = foreign.with_metadata_entry("interrupt", true);
    let settled = Part::tool_request("transfer", Some("t1".into()), json!({}));
    for wrong in [foreign, settled, Part::text("hello")] {
        let error = tool.resume(&wrong, Confirmation { approved: true }).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        let error = tool.respond(&wrong, Receipt { status: "" }).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
    }
}

#[test]
fn resume_and_interrupt_non_object_data_error() {
    let part = paused_part();
    let restart = resume(&part, json!({"approved": true})).unwrap();
    assert_eq!(restart.metadata_entry("resumed"), Some(&json!({"approved": true})));
    assert_eq!(restart.metadata_entry("interrupt"), None);
    let bare = resume(&part, ()).unwrap();
    assert_eq!(bare.metadata_entry("resumed"), Some(&json!(true)));
    for wrong in [json!("yes"), json!([1]), json!(3), json!(false)] {
        let error = resume(&part, &wrong).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{wrong}");
        assert_eq!(interrupt(&wrong).interrupt, None, "{wrong}");
        // An answer may be anything.
        assert!(respond(&part, &wrong).is_ok());
    }
    assert_eq!(interrupt(()).interrupt, Some(json!(true)));

    let other = replace_input(restart, json!({"to": "bob", "amount": 1})).unwrap();
    let other = replace_input(other, json!({"to": "eve", "amount": 2})).unwrap();
    let original = json!({"to": "alice", "amount": 200});
    assert_eq!(other.metadata_entry("replacedInput"), Some(&original));
    assert!(replace_input(Part::text("x"), 1).is_err());
}

#[tokio::test]
async fn a_tool_that_interrupts_with_anything_but_an_object_fails() {
    let tool = TypedTool::new("ask", "Asks.", |_cx, (): ()| async {
        Err::<(), _>(interrupt("just a text"))
    });
    let done = run(tool, "{}", run_context()).await;
    assert_eq!(done.outcome, Outcome::Error);
    assert!(done.detail.unwrap().contains("object"));

    for data in [Value::Null, json!(false), json!("by hand")] {
        let tool = TypedTool::new("ask", "Asks.", move |_cx, (): ()| {
            let mut error = ToolError::new("waits");
            error.interrupt = Some(data.clone());
            async { Err::<(), _>(error) }
        });
        let done = run(tool, "{}", run_context()).await;
        assert_eq!((done.outcome, done.interrupt), (Outcome::Error, None));
    }
}

#[tokio::test]
async fn attach_parts_within_a_bound() {
    let picture = || Part::media("data:image/png;base64,AAAA", Some("image/png".into()));
    let tool = TypedTool::new("shot", "Takes a picture.", move |cx, (): ()| async move {
        cx.attach_parts([picture(), Part::text("a caption")]);
        Ok("captured")
    });
    let done = run(tool.clone(), "{}", run_context()).await;
    assert_eq!(done.output, json!("captured"));
    assert_eq!(done.parts, [picture(), Part::text("a caption")]);

    let small = tool.limits(antiphon_agent::ToolLimits::default().max_attached_bytes(60));
    let done = run(small, "{}", run_context()).await;
    assert_eq!(done.outcome, Outcome::OutputTooLarge);
    assert!(done.parts.is_empty());
}

#[tokio::test]
async fn send_partial_streams_partial_and_is_a_no_op_without_stream() {
    let tool = || {
        FuncTool::new("work", "Works.", None, |cx, _| async move {
            cx.send_partial(json!({"progress": 50})).await;
            let content = vec![Part::text("half")];
            cx.send_chunk(ModelResponseChunk { content, ..Default::default() }).await;
            Ok(object(json!({"done": true})))
        })
    };
    let done = run(tool(), "{}", run_context()).await;
    assert_eq!(done.outcome, Outcome::Success);

    let (sender, mut chunks) = mpsc::channel(8);
    let cx = run_context().with_stream(sender, Some("w1".into()));
    run(tool(), "{}", cx).await;
    let chunk = chunks.recv().await.unwrap();
    let expected = json!({
        "role": "tool",
        "content": [{
            "toolResponse": { "name": "work", "ref": "w1", "output": {"progress": 50} },
            "metadata": { "partial": true },
        }],
    });
    assert_eq!(serde_json::to_value(&chunk).unwrap(), expected);
    assert!(chunk.tool_responses().all(Part::is_partial));
    assert_eq!(chunks.recv().await.unwrap().text(), "half");
    assert_eq!(chunks.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn progress_that_nobody_reads_does_not_outlast_the_call() {
    let tool = FuncTool::new("work", "Works.", None, |cx, _| async move {
        while !cx.cancelled.is_cancelled() {
            cx.send_partial(1).await;
        }
        Ok(JsonObject::new())
    });
    let (sender, _chunks) = mpsc::channel(2);
    let done = run(tool, "{}", run_context().with_stream(sender, None)).await;
    assert_eq!(done.outcome, Outcome::TimedOut);
    assert!(!done.detached);
}

#[tokio::test]
async fn a_tool_reaches_input_caller_and_session() {
    #[derive(Clone, Default, Serialize, Deserialize)]
    struct Basket {
        items: Vec<String>,
    }
    let seen = Arc::new(Mutex::new(None));
    let saw = seen.clone();
    let tool = TypedTool::new("add", "Adds.", move |cx, input: Value| {
        let saw = saw.clone();
        async move {
            let session = cx.invocation.session::<Basket>().ok_or(ToolError::new("no session"))?;
            session.update_custom(|mut basket| {
                basket.items.push("milk".into());
                basket
            });
            let original: Option<Value> = cx.original_input();
            let caller = cx.invocation.caller().map(|caller| caller.id.clone());
            *saw.lock().unwrap() = Some((input, original, caller, cx.resumed().cloned()));
            Ok(())
        }
    });
    let session = Arc::new(Session::<Basket>::new("s", SessionState::default()));
    let mut cx = run_context().with_invocation(
        InvocationContext::new()
            .with_caller(antiphon_agent::Caller::new("ann"))
            .with_session(session.clone()),
    );
    cx.original_input = Some(json!({"n": 1}));
    cx.resumed = Some(json!(true));
    let done = run(tool, r#"{"n": 2}"#, cx).await;
    assert_eq!(done.outcome, Outcome::Success, "{done:?}");
    let seen = seen.lock().unwrap().take().unwrap();
    assert_eq!(
        seen,
        (json!({"n": 2}), Some(json!({"n": 1})), Some("ann".into()), Some(json!(true)))
    );
    assert_eq!(session.custom().items, ["milk"]);
}

#[test]
fn an_executor_can_be_narrowed_to_some_tools() {
    let registry = Arc::new(ToolRegistry::new());
    for name in ["b", "a", "c"] {
        registry.must_register(TypedTool::new(name, "", |_cx, (): ()| async { Ok(()) }));
    }
    let all = ToolExecutor::new(registry, None);
    let some = all.only(["c", "a"]).unwrap();
    let names: Vec<_> = some.definitions().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["a".into(), "c".into()] as [Arc<str>; 2]);
    let refused = refused(some.admit(&call_context(), request("1", "b", "{}")));
    assert_eq!(refused.outcome, Outcome::UnknownTool);
    assert_eq!(all.only(["d"]).unwrap_err().status(), Status::NotFound);
    assert_eq!(some.only(["b"]).unwrap_err().status(), Status::NotFound);
    // The same id may come again in another message.
    assert!(matches!(
        all.with_new_ids().admit(&call_context(), request("1", "b", "{}")),
        antiphon_agent::Admission::Run(_)
    ));
}
