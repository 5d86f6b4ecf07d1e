//! Calls that never start, never end, or start though they must not.

use antiphon::{
    agent::{Outcome, Verdict},
    live::ReplyOutcome,
    session::*,
};
use antiphon_testkit::{LatchedTool, ToolPlan};

use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn trial_d01_a_running_tool_answers_although_the_reply_was_interrupted() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.reply("r1").words("r1", "Let me look.").audio("r1", 1_000);
    rig.calls("r1", &[("c1", "slow", "{}")]).done("r1");
    latch.started().await;
    rig.session.interrupt().unwrap();
    latch.release(1);
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 1);
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Success)]);
}

#[tokio::test(start_paused = true)]
async fn trial_d04_and_d05_a_call_of_an_interrupted_reply_never_starts() {
    let log = Log::default();
    let (tool, latch) = LatchedTool::open("end_call", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| builder.tool(tool).hooks(LoggingHooks(log.clone())));
    let mut rig = setup.start().await;
    rig.reply("r1").audio("r1", 500).calls("r1", &[("c1", "end_call", "{}")]);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.done_as("r1", ReplyOutcome::Cancelled);
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 1, "one output, and it says why");
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Interrupted)]);
    assert!(latch.calls().is_empty());
    assert_eq!((log.count("call "), log.count("result c1")), (0, 1), "{:#?}", log.lines());
    // Nothing is left in flight: the next turn goes as usual.
    rig.user_says("u1", "Go on").says("r2", "Sure.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
}

#[tokio::test(start_paused = true)]
async fn trial_d07_calls_wait_for_the_end_of_their_reply() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.reply("r1").calls("r1", &[("c1", "note", "{}")]);
    rig.settle().await;
    assert!(latch.calls().is_empty(), "the reply is not done");
    rig.done_as("r1", ReplyOutcome::Failed);
    assert_eq!(rig.outputs().await.len(), 1);
    assert!(latch.calls().is_empty(), "and did not succeed");
}

#[tokio::test(start_paused = true)]
async fn trial_d08_malformed_arguments_never_run_a_tool() {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    let bad = [r#"{"amount":"#, "[]", "", r#"{"a":1,"a":2}"#, "{} {}"];
    for (index, args) in bad.into_iter().enumerate() {
        let id = format!("c{index}");
        rig.calls_tool(&format!("r{index}"), &id, "pay", args);
        let outputs = rig.outputs().await;
        assert_eq!(outputs.len(), 1, "{args}");
        assert!(outputs[0].response.contains_key("error"), "{args}");
        // The model answers before the next attempt.
        rig.says(&format!("a{index}"), "Hm.", 10);
        rig.settle().await;
        rig.far.drain();
    }
    assert!(latch.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_d09_whatever_a_tool_does_there_is_one_output() {
    let (panics, _) = LatchedTool::open("panics", ToolPlan::Panic);
    let (hangs, _) = LatchedTool::open("hangs", ToolPlan::Hang);
    let setup = Setup::new().build(|builder| builder.tool(panics).tool(hangs));
    let mut rig = setup.start().await;
    let calls = [("p", "panics", "{}"), ("u", "unknown", "{}"), ("h", "hangs", "{}")];
    rig.reply("r1").calls("r1", &calls).done("r1");
    let stalled = rig.until(|kind| matches!(kind, EventKind::Stalled { .. })).await;
    assert!(matches!(stalled.last(), Some(EventKind::Stalled { what, .. }) if &**what == "tool"));
    tokio::time::sleep(40 * SECOND).await;
    let outputs = rig.outputs().await;
    let mut ids: Vec<_> = outputs.iter().map(|output| output.id.to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["h", "p", "u"]);
    assert!(outputs.iter().all(|output| output.response.contains_key("error")));
}

#[tokio::test(start_paused = true)]
async fn trial_d24_a_policy_that_panics_denies() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| {
        builder.tool(tool).authorize(policy(|_| panic!("a policy that panics, as planned")))
    });
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "note", "{}");
    assert_eq!(rig.outputs().await.len(), 1);
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Denied)]);
    assert!(latch.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn trial_d24_a_policy_that_is_late_denies_and_its_late_answer_does_nothing() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let setup = Setup::new().build(|builder| {
        builder.tool(tool).authorize(policy(move |_| {
            let _ = held.lock().unwrap().recv();
            Verdict::Allow
        }))
    });
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "note", "{}");
    let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    assert_eq!(outcomes(&events), [("c1".into(), Outcome::Denied)]);
    hold.send(()).unwrap();
    rig.settle().await;
    assert!(latch.calls().is_empty());
    rig.session.shutdown(SECOND).await.unwrap();
}
