//! Calls of tools.

use antiphon_agent::{ModelResponseChunk, Part, Role};

use super::*;

#[test]
fn an_output_that_nobody_can_be_told_is_counted() {
    let mut scene = Scene::new();
    scene.reply("r1").calls("r1", &["look"]).allow().done("r1");
    // The next connection knows nothing of the call and takes no words.
    scene.can.resumption = false;
    scene.can.text_input = false;
    scene.reconnect();
    scene.sent();
    scene.tool_ends(Outcome::Success);
    assert_eq!(scene.names(), ["create_reply"], "the user waits for an answer all the same");
    assert_eq!(scene.engine.stats().late_tool_results, 1);
}

#[test]
fn a_call_that_did_not_run_is_not_told_to_a_connection_that_does_not_know_it() {
    let mut scene = Scene::new();
    scene.reply("r1").calls("r1", &["look"]).allow().done("r1");
    scene.can.resumption = false;
    scene.lose();
    scene.tool_ends(Outcome::Cancelled);
    scene.wait(5 * SECOND).connect();
    assert!(!scene.names().contains(&"text"));
    assert_eq!(scene.engine.stats().late_tool_results, 1);
}

#[test]
fn an_output_that_nobody_waits_for_is_counted() {
    let mut scene = Scene::new();
    scene.reply("r1").calls("r1", &["look"]).allow().done("r1");
    let ticket = scene.begun();
    scene.ends(ticket, Outcome::Success);
    scene.sent();
    scene.ends(ticket, Outcome::Success).ends(ticket, Outcome::Success);
    assert_eq!((scene.names().len(), scene.engine.stats().late_tool_results), (0, 2));
    assert_eq!(scene.engine.stats().tool_calls, 1);
}

#[test]
fn the_pieces_of_an_earlier_connections_call_are_not_for_the_next_one() {
    let piece = |ticket| {
        let part = Part::tool_response("look", Some("look".into()), "half");
        let progress = ModelResponseChunk::new(Role::Tool, 0, vec![part]).into();
        Input::ToolProgress { ticket, progress }
    };
    let mut scene = Scene::with(|_, can| can.non_blocking_tools = true);
    scene.reply("r1").calls("r1", &["look"]).allow_beside().done("r1");
    let ticket = scene.begun();
    scene.give(piece(ticket));
    assert_eq!(scene.names(), ["tool_response"]);
    scene.can.resumption = false;
    scene.reconnect();
    scene.sent();
    scene.told();
    scene.give(piece(ticket));
    assert_eq!(scene.names(), [""; 0]);
    assert!(matches!(scene.told()[..], [EventKind::ToolProgress { .. }]), "the host is told");
}

#[test]
fn what_was_held_for_a_verdict_is_told_when_the_session_ends() {
    let mut scene = Scene::new();
    scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).done("r1");
    scene.user_says("u2", "And be quick.");
    let is_words = |told: &EventKind| matches!(told, EventKind::UserMessage { text } if text == "And be quick.");
    assert!(!scene.told().iter().any(is_words), "before the call is decided");
    scene.stop();
    assert!(scene.told().iter().any(is_words));
    assert_eq!(scene.end(), Some(EndReason::Stopped));
}

#[test]
fn a_reply_that_fails_takes_those_of_its_calls_along_that_did_not_start() {
    let outcomes = |scene: &mut Scene| {
        let results = scene.told().into_iter().filter_map(|told| match told {
            EventKind::ToolResult { id, outcome, .. } => Some((id.to_string(), outcome)),
            _ => None,
        });
        results.collect::<Vec<_>>()
    };
    let mut scene = Scene::with(|_, can| can.tools_after_reply = true);
    scene.reply("r1").calls("r1", &["first"]).allow().done("r1");
    scene.reply("r2").calls("r2", &["second"]).allow();
    scene.done_as("r2", ReplyOutcome::Failed);
    assert_eq!(outcomes(&mut scene), [("second".to_owned(), Outcome::Cancelled)]);
    scene.tool_ends(Outcome::Success);
    assert_eq!(outcomes(&mut scene), [("first".to_owned(), Outcome::Success)]);
}
