//! F7, F8, F10, F11: tools.

use std::sync::Arc;

use antiphon::{
    agent::{FuncTool, Outcome, Tool, ToolContext, ToolError},
    live::LiveCommand,
    session::*,
    types::{JsonObject, ToolBehavior, ToolDefinition, ToolResponse, ToolResponseScheduling},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn f07_panic_timeout_and_cancel_by_id_touch_only_their_call() {
    let (panics, _) = LatchedTool::open("panics", ToolPlan::Panic);
    let (slow, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let late =
        FuncTool::new("late", "never ends", None, |_, _| std::future::pending()).timeout(SECOND);
    let setup = Setup::new().build(|builder| builder.tool(panics).tool(slow).tool(late));
    let mut rig = setup.start().await;
    let calls =
        [("p", "panics", "{}"), ("s", "slow", "{}"), ("l", "late", "{}"), ("k", "slow", "{}")];
    rig.reply("r1").calls("r1", &calls).done("r1");
    latch.started().await;
    rig.session.cancel_tool("k").unwrap();
    tokio::time::sleep(2 * SECOND).await;
    latch.release(1);
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 4, "{outputs:?}");
    let mut outcomes = outcomes(&rig.now().await);
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        outcomes,
        [
            ("k".into(), Outcome::Cancelled),
            ("l".into(), Outcome::TimedOut),
            ("p".into(), Outcome::Panicked),
            ("s".into(), Outcome::Success),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn f08_one_reply_is_asked_for_after_all_siblings_and_the_end_of_the_reply() {
    let (a, latch_a) = LatchedTool::new("a", ToolPlan::Succeed);
    let (b, latch_b) = LatchedTool::new("b", ToolPlan::Succeed);
    let setup = Setup::able(|can| {
        can.replies_after_tools = false;
        can.tools_after_reply = false;
    });
    let mut rig = setup.build(|builder| builder.tool(a).tool(b)).start().await;
    let is_create = |command: &LiveCommand| matches!(command, LiveCommand::CreateReply { .. });
    rig.reply("r1").calls("r1", &[("c1", "a", "{}"), ("c2", "b", "{}")]);
    latch_a.release(1);
    assert!(!rig.commands().await.iter().any(is_create), "one output is missing");
    latch_b.release(1);
    assert!(!rig.commands().await.iter().any(is_create), "the reply is still active");
    rig.done("r1");
    let commands = rig.commands().await;
    assert_eq!(commands.iter().filter(|command| is_create(command)).count(), 1);
}

struct Background;

#[async_trait]
impl Tool for Background {
    fn name(&self) -> &str {
        "background"
    }
    fn description(&self) -> &str {
        "works while the model talks"
    }
    fn behavior(&self) -> ToolBehavior {
        ToolBehavior::NonBlocking
    }
    async fn invoke(&self, _: ToolContext, _: JsonObject) -> Result<Value, ToolError> {
        Ok(Value::Object(JsonObject::new()))
    }
}

#[tokio::test(start_paused = true)]
async fn f10_behaviour_scheduling_and_continuation_are_reachable() {
    let setup = Setup::able(|can| can.replies_after_tools = false)
        .build(|builder| builder.tool(Background))
        .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    let tools = &rig.provider.requests()[0].config.tools;
    assert_eq!(tools[1].behavior, ToolBehavior::NonBlocking);
    rig.calls_tool("r1", "c1", "mine", "{}");
    rig.settle().await;
    let mut part = ToolResponse::new("c1", "mine", JsonObject::new());
    part.will_continue = Some(true);
    rig.session.send_tool_response(part.clone()).unwrap();
    let mut last = ToolResponse::new("c1", "mine", JsonObject::new());
    last.scheduling = ToolResponseScheduling::Silent;
    rig.session.send_tool_response(last.clone()).unwrap();
    let commands = rig.commands().await;
    assert_eq!(
        commands,
        [LiveCommand::ToolResponse(part), LiveCommand::ToolResponse(last)],
        "and a silent one asks for no reply"
    );
}

#[tokio::test(start_paused = true)]
async fn f11_host_tools_pass_the_hook_and_are_answered_by_the_host() {
    let log = Log::default();
    let setup = Setup::new()
        .build(|builder| builder.hooks(LoggingHooks(log.clone())))
        .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "mine", r#"{"x": 1}"#);
    let events = rig.until(|kind| matches!(kind, EventKind::HostToolCall { .. })).await;
    let Some(EventKind::HostToolCall { args, .. }) = events.last() else { panic!() };
    assert_eq!(json!(args), json!({"x": 1}));
    assert!(rig.outputs().await.is_empty());
    let response = JsonObject::from_iter([("y".to_owned(), json!(2))]);
    rig.session.send_tool_response(ToolResponse::new("c1", "mine", response)).unwrap();
    assert_eq!(rig.outputs().await.len(), 1);
    for told in ["authorize c1", "call c1", "result c1"] {
        assert_eq!(log.count(told), 1, "{:#?}", log.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn f11_a_host_that_never_answers_times_out() {
    let setup =
        Setup::new().config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "mine", "{}");
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(rig.outputs().await.len(), 1);
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::TimedOut)]);
}

#[tokio::test(start_paused = true)]
async fn f12_a_tool_that_shuts_its_own_session_down_does_not_wait_for_itself() {
    let own: Arc<std::sync::OnceLock<WeakAgentSession>> = Arc::default();
    let session = own.clone();
    let (returned, mut returns) = tokio::sync::mpsc::unbounded_channel();
    let tool = FuncTool::new("hang_up", "Ends the call.", None, move |_, _| {
        let session = session.get().and_then(WeakAgentSession::upgrade).unwrap();
        let returned = returned.clone();
        async move {
            session.shutdown(60 * SECOND).await.unwrap();
            assert!(session.ended().await.is_none());
            returned.send(()).unwrap();
            Ok(JsonObject::new())
        }
    });
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    assert!(own.set(rig.session.downgrade()).is_ok());
    let before = tokio::time::Instant::now();
    rig.calls_tool("r1", "c1", "hang_up", "{}");
    assert_eq!(rig.end().await.1, EndReason::Stopped);
    assert_eq!(returns.recv().await, Some(()));
    assert!(before.elapsed() < SECOND, "it waited for itself");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_pauses_yields_one_output() {
    let asks = FuncTool::new("asks", "waits for somebody", None, |_, _| async {
        Err(antiphon_agent::tool::interrupt(json!({ "reason": "large_amount" })))
    });
    let mut rig = Setup::new().build(|builder| builder.tool(asks)).start().await;
    rig.calls_tool("r1", "c1", "asks", "{}");
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 1);
    // The model is told that it waits; why is for those who are asked.
    let text = outputs[0].response["error"].as_str().unwrap();
    assert!(text.contains("waits") && !text.contains("large_amount"), "{text}");
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Paused)]);
}
