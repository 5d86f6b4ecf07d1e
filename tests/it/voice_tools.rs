//! Tools beside a conversation: interruptions, schedules, progress, outputs that are too large.

use antiphon::{
    agent::{FuncTool, OnInterruption, Outcome, ToolLimits},
    live::{LiveCommand, LiveEvent, ReplyOutcome},
    session::*,
    types::{JsonObject, ToolBehavior, ToolDefinition, ToolResponse, ToolResponseScheduling},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use serde_json::json;

use crate::rig::*;

/// A tool that takes ten seconds.
fn slow(name: &str) -> FuncTool {
    FuncTool::new(name, "slow", None, |_, _| async {
        tokio::time::sleep(10 * SECOND).await;
        Ok(JsonObject::from_iter([("found".to_owned(), json!(3))]))
    })
}

/// A provider that goes on beside its tools only because the session asks it to.
fn plain() -> Setup {
    Setup::able(|can| can.non_blocking_tools = false)
}

fn names(commands: &[LiveCommand]) -> Vec<&'static str> {
    commands.iter().map(LiveCommand::name).collect()
}

#[tokio::test(start_paused = true)]
async fn an_interruption_keeps_or_cancels_a_running_tool_as_the_tool_says() {
    for (on_interruption, outcome) in
        [(OnInterruption::Keep, Outcome::Success), (OnInterruption::Cancel, Outcome::Cancelled)]
    {
        let tool = slow("search").on_interruption(on_interruption);
        let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
        rig.reply("r1").words("r1", "Let me look.").audio("r1", 2_000);
        rig.calls("r1", &[("c1", "search", "{}")]).done("r1");
        rig.settle().await;
        rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
        tokio::time::sleep(20 * SECOND).await;
        let events = rig.now().await;
        assert!(events.contains(&EventKind::Interrupted));
        assert_eq!(outcomes(&events), [("c1".into(), outcome)]);
        assert_eq!(rig.outputs().await.len(), 1, "one output, always");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_nobody_waits_for_leaves_the_turn_and_answers_when_it_is_done() {
    let tool = slow("search").behavior(ToolBehavior::NonBlocking);
    let mut rig = plain().build(|builder| builder.tool(tool)).start().await;
    rig.user_says("u1", "Search");
    rig.reply("r1").words("r1", "I will tell you.").audio("r1", 100);
    rig.calls("r1", &[("c1", "search", "{}")]).done("r1");
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    assert_eq!(rig.session.state(), SessionState::Listening);
    // The conversation goes on meanwhile.
    rig.user_says("u2", "And how are you?").says("r2", "Fine.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    assert!(rig.commands().await.is_empty());
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(names(&rig.commands().await), ["tool_response", "create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn a_result_is_silent_waits_or_cuts_in_as_the_tool_says() {
    for (scheduling, before, after) in [
        (ToolResponseScheduling::Silent, vec!["tool_response"], vec![]),
        (ToolResponseScheduling::WhenIdle, vec!["tool_response"], vec!["create_reply"]),
        (
            ToolResponseScheduling::Interrupt,
            vec!["tool_response", "cancel_reply", "truncate"],
            vec!["create_reply"],
        ),
    ] {
        let tool = slow("search").behavior(ToolBehavior::NonBlocking).scheduling(scheduling);
        let mut rig = plain().build(|builder| builder.tool(tool)).start().await;
        rig.calls_tool("r1", "c1", "search", "{}");
        tokio::time::sleep(5 * SECOND).await;
        rig.reply("r2").words("r2", "A long story").audio("r2", 30_000);
        rig.settle().await;
        rig.speaker.play(1_000 * PER_MS);
        tokio::time::sleep(6 * SECOND).await;
        let mut commands = names(&rig.commands().await);
        commands.sort_unstable();
        let mut before = before;
        before.sort_unstable();
        assert_eq!(commands, before, "{scheduling:?}");
        let cut = scheduling == ToolResponseScheduling::Interrupt;
        rig.done_as("r2", if cut { ReplyOutcome::Cancelled } else { ReplyOutcome::Completed });
        rig.settle().await;
        rig.speaker.play_all();
        assert_eq!(names(&rig.commands().await), after, "{scheduling:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn progress_is_spoken_when_nobody_speaks_and_only_the_newest_waits() {
    let tool = FuncTool::new("search", "slow", None, |cx, _| async move {
        for step in ["Looking.", "Still looking.", "Nearly there."] {
            cx.say(step).await;
            tokio::time::sleep(5 * SECOND).await;
        }
        cx.send_partial(json!({"done": 0.9})).await;
        tokio::time::sleep(SECOND).await;
        Ok(JsonObject::new())
    });
    let mut rig = plain().build(|builder| builder.tool(tool)).start().await;
    rig.calls_tool("r1", "c1", "search", "{}");
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, text }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(text, "Looking.");
    // It is still being said when the next two come; only the last of them is worth saying.
    rig.reply_to("p1", *request).words("p1", "Looking.").audio("p1", 500);
    tokio::time::sleep(11 * SECOND).await;
    assert!(rig.commands().await.is_empty());
    rig.done("p1");
    rig.settle().await;
    rig.speaker.play_all();
    tokio::time::sleep(6 * SECOND).await;
    let commands = names(&rig.commands().await);
    assert_eq!(commands, ["tool_response", "create_reply"], "what is over is not told any more");
    let told: Vec<_> = rig
        .now()
        .await
        .into_iter()
        .filter_map(|kind| match kind {
            EventKind::ToolProgress { text, output, .. } => Some((text, output)),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 4);
    assert_eq!(told[3], (None, Some(json!({"done": 0.9}))));
}

#[tokio::test(start_paused = true)]
async fn progress_in_pieces_goes_to_a_provider_that_takes_them() {
    let tool = FuncTool::new("search", "slow", None, |cx, _| async move {
        cx.send_partial(json!({"done": 0.5})).await;
        tokio::time::sleep(SECOND).await;
        Ok(JsonObject::new())
    })
    .behavior(ToolBehavior::NonBlocking);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    rig.calls_tool("r1", "c1", "search", "{}");
    tokio::time::sleep(2 * SECOND).await;
    let outputs = rig.outputs().await;
    let continues: Vec<_> = outputs.iter().map(|output| output.will_continue).collect();
    assert_eq!(continues, [Some(true), None]);
}

/// A tool that tells of so many steps and is done at once with the last.
fn hasty(steps: u64) -> FuncTool {
    let tool = FuncTool::new("count", "quick", None, move |cx, _| async move {
        for step in 1..=steps {
            cx.send_partial(json!({ "step": step })).await;
        }
        Ok(JsonObject::from_iter([("steps".to_owned(), json!(steps))]))
    });
    tool.behavior(ToolBehavior::NonBlocking)
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_tells_right_before_its_end_comes_before_its_output() {
    // More than may wait for the provider, too.
    for steps in [1, 16, 100] {
        let mut rig = Setup::new().build(|builder| builder.tool(hasty(steps))).start().await;
        rig.calls_tool("r1", "c1", "count", "{}");
        let outputs = rig.outputs().await;
        let told: Vec<_> = outputs.iter().filter_map(|told| told.response.get("step")).collect();
        assert!(told.iter().map(|step| step.as_u64().unwrap()).eq(1..=steps), "{told:?}");
        let last = outputs.last().unwrap();
        assert_eq!((&last.response["steps"], last.will_continue), (&json!(steps), None));
        let events = rig.now().await;
        let progress = |kind: &&EventKind| matches!(kind, EventKind::ToolProgress { .. });
        assert_eq!(events.iter().filter(progress).count() as u64, steps);
        assert_eq!(rig.session.stats().late_tool_results, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tool_tells_comes_before_its_output_on_other_threads_too() {
    let mut rig = Setup::new().build(|builder| builder.tool(hasty(3))).start().await;
    for number in 0..50 {
        rig.calls_tool(&format!("r{number}"), &format!("c{number}"), "count", "{}");
        let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
        let progress = |kind: &&EventKind| matches!(kind, EventKind::ToolProgress { .. });
        assert_eq!(events.iter().filter(progress).count(), 3, "{events:?}");
    }
    assert_eq!(rig.session.stats().late_tool_results, 0);
}

#[tokio::test(start_paused = true)]
async fn trial_d17_a_huge_output_is_cut_marked_and_kept_whole_for_the_host() {
    let flood = FuncTool::new("flood", "too much", None, |_, _| async {
        Ok(JsonObject::from_iter([("text".to_owned(), json!("ä😀".repeat(400_000)))]))
    });
    let mut rig = Setup::new().build(|builder| builder.tool(flood)).start().await;
    rig.calls_tool("r1", "c1", "flood", "{}");
    let outputs = rig.outputs().await;
    let output = json!(outputs[0].response);
    assert_eq!((&output["truncated"], &output["total_bytes"]), (&json!(true), &json!(2_400_011)));
    let text = output["text"].as_str().unwrap();
    assert!("ä😀".repeat(12_000).starts_with(text), "it ends between characters");
    assert!((60_000..=65_536).contains(&output.to_string().len()));
    let events = rig.now().await;
    assert_eq!(outcomes(&events), [("c1".into(), Outcome::Success)]);
    let told = events.iter().find_map(|kind| match kind {
        EventKind::ToolResult { whole_bytes, .. } => *whole_bytes,
        _ => None,
    });
    assert_eq!(told, Some(2_400_011));
    let whole = rig.session.whole_output("c1").unwrap();
    assert_eq!(whole["text"].as_str().unwrap().len(), 2_400_000);
    // The conversation goes on.
    rig.reply_to("r2", 1).words("r2", "A lot.").audio("r2", 100).done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    assert_eq!(agent_messages(&rig.now().await), [("A lot.".to_owned(), false)]);
}

/// An output of five megabytes.
fn five_megabytes() -> JsonObject {
    JsonObject::from_iter([("text".to_owned(), json!("ä".repeat(2_500_000)))])
}

/// Whether it is cut, marked, and as large as it may be.
fn is_cut(output: &JsonObject) -> bool {
    let bytes = json!(output).to_string().len();
    output["truncated"] == true
        && output["total_bytes"] == 5_000_011
        && (1_000_000..=1_048_576).contains(&bytes)
}

#[tokio::test(start_paused = true)]
async fn trial_d17_the_providers_bound_holds_for_tools_that_may_give_more_and_for_the_host() {
    let flood = FuncTool::new("flood", "too much", None, |cx, _| async move {
        cx.send_partial(five_megabytes()).await;
        tokio::time::sleep(SECOND).await;
        Ok(five_megabytes())
    })
    .behavior(ToolBehavior::NonBlocking)
    .limits(ToolLimits::default().max_output_bytes(100 << 20));
    let setup = Setup::new()
        .build(|builder| builder.tool(flood))
        .config(|config| config.host_tool(ToolDefinition::new("mine", "the host's")));
    let mut rig = setup.start().await;
    rig.reply("r1").calls("r1", &[("c1", "flood", "{}"), ("c2", "mine", "{}")]).done("r1");
    tokio::time::sleep(2 * SECOND).await;
    rig.session.send_tool_response(ToolResponse::new("c2", "mine", five_megabytes())).unwrap();
    let outputs = rig.outputs().await;
    assert_eq!(outputs.len(), 3, "a piece and two outputs");
    for output in &outputs {
        assert!(is_cut(&output.response), "{} is not cut as it should be", output.id);
    }
    for id in ["c1", "c2"] {
        assert_eq!(*rig.session.whole_output(id).unwrap(), json!(five_megabytes()));
    }
}

#[tokio::test(start_paused = true)]
async fn so_many_tools_run_at_the_same_time() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let mut limits = SessionLimits::default();
    limits.tools = 2;
    let setup = Setup::new().build(|builder| builder.tool(tool).limits(limits));
    let mut rig = setup.start().await;
    let calls: Vec<_> = ["a", "b", "c", "d"].map(|id| (id, "slow", "{}")).into();
    rig.reply("r1").calls("r1", &calls).done("r1");
    rig.settle().await;
    assert_eq!(latch.calls().len(), 2);
    latch.release(4);
    assert_eq!(rig.outputs().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn arguments_that_are_odd_or_huge_never_run_a_tool_with_something_else() {
    let (tool, latch) = LatchedTool::open("note", ToolPlan::Succeed);
    let mut rig = Setup::new().build(|builder| builder.tool(tool)).start().await;
    let huge = format!(r#"{{"text":"{}"}}"#, "x".repeat(5_000_000));
    for (index, args) in [r#"{"a":"\ud83d"}"#, r#"{"a":"\ude00\ud83d"}"#, r#"{"a":"\u12"}"#, &huge]
        .into_iter()
        .enumerate()
    {
        rig.calls_tool(&format!("r{index}"), &format!("c{index}"), "note", args);
        let outputs = rig.outputs().await;
        assert_eq!(outputs.len(), 1);
        assert!(outputs[0].response.contains_key("error"));
        rig.says(&format!("a{index}"), "Hm.", 10);
        rig.settle().await;
        rig.far.drain();
    }
    assert!(latch.calls().is_empty());
    rig.calls_tool("r9", "c9", "note", r#"{"a":"\ud83d\ude00 \u00e4"}"#);
    rig.settle().await;
    assert_eq!(json!(latch.calls()[0].1), json!({"a": "😀 ä"}));
}
