//! Calls of tools.

use antiphon_agent::{ModelResponseChunk, Part, Role};
use antiphon_live::ErrorInfo;

use super::*;
use crate::session::SessionState;

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
fn a_tool_that_blocks_nobody_does_so_where_the_model_cannot_go_on_without_it() {
    for (goes_on, state) in [(true, SessionState::Listening), (false, SessionState::Processing)] {
        let mut scene = Scene::with(|_, can| {
            (can.non_blocking_tools, can.replies_after_tools) = (goes_on, true);
        });
        scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).allow_beside();
        scene.done("r1");
        assert_eq!(scene.engine.state(), state);
    }
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

#[test]
fn only_the_newest_progress_of_a_call_waits_to_be_spoken_and_none_once_it_is_over() {
    let says = |ticket, words: &str| {
        let progress = ModelResponseChunk::new(Role::Tool, 0, vec![Part::text(words)]).into();
        Input::ToolProgress { ticket, progress }
    };
    let spoken = |scene: &mut Scene| {
        let texts = scene.sent().into_iter().filter_map(|command| match command {
            LiveCommand::Say { text, .. } => Some(text),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    for ends in [false, true] {
        let mut scene = Scene::new();
        scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).allow().done("r1");
        let ticket = scene.begun();
        for words in ["One.", "Two.", "Three."] {
            scene.give(says(ticket, words));
        }
        assert_eq!(spoken(&mut scene), ["One."], "the others wait until it was said");
        if ends {
            scene.ends(ticket, Outcome::Success);
        }
        scene.reply_to("r2", 1).done("r2");
        let next: &[&str] = if ends { &[] } else { &["Three."] };
        assert_eq!(spoken(&mut scene), next);
    }
}

#[test]
fn an_output_is_given_again_once_for_each_that_was_refused() {
    let mut scene = Scene::new();
    scene.reply("r1").calls("r1", &["a", "b"]).judge(|call| Decision::Host { call }).done("r1");
    let answer = |id: &str| HostCommand::ToolResponse(ToolResponse::new(id, id, JsonObject::new()));
    scene.host(answer("a")).host(answer("b"));
    let given = |scene: &mut Scene| {
        let given = scene.sent().into_iter().filter_map(|command| match command {
            LiveCommand::ToolResponse(response) => Some(response.id.to_string()),
            _ => None,
        });
        given.collect::<Vec<_>>()
    };
    assert_eq!(given(&mut scene), ["a", "b"]);
    for call in ["a", "b"] {
        let mut error = ErrorInfo::new("invalid", "not like that");
        error.call = Some(call.into());
        scene.event(LiveEvent::Error(error));
    }
    scene.told();
    scene.host(answer("a")).host(answer("a")).host(answer("b"));
    assert_eq!(given(&mut scene), ["a", "b"]);
    let told = scene.told();
    let waits = |told: &EventKind| matches!(told, EventKind::Error { message, .. } if message.contains("no call"));
    assert_eq!(told.iter().filter(|told| waits(told)).count(), 1);
}

#[test]
fn the_next_call_is_read_back_when_the_one_before_is_taken_back() {
    let mut scene = Scene::new();
    scene.user_says("u1", "Pay both.").reply("r1").calls("r1", &["a", "b", "c"]);
    scene.judge(|call| Decision::Confirm { read_back: format!("Pay {}?", call.id) }).done("r1");
    let asked = |scene: &mut Scene| {
        let asked = scene.sent().into_iter().filter_map(|command| match command {
            LiveCommand::Say { text, .. } => Some(text),
            _ => None,
        });
        asked.collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut scene), ["Pay a?"]);
    scene.reply_to("r2", 1).done("r2");
    // One that nobody was asked about changes nothing.
    scene.host(HostCommand::CancelTool { id: "b".into() });
    assert_eq!(asked(&mut scene), [""; 0]);
    scene.host(HostCommand::CancelTool { id: "a".into() });
    assert_eq!(asked(&mut scene), ["Pay c?"]);
}

#[test]
fn a_second_verdict_takes_nothing_away_from_a_call_that_waits_to_start() {
    let mut scene = Scene::with(|_, can| can.tools_after_reply = true);
    scene.reply("r1").calls("r1", &["look"]);
    let ticket = scene.take(|output| match output {
        Output::Admit { ticket, .. } => Some(*ticket),
        _ => None,
    });
    let ticket = ticket.expect("a call to judge");
    let verdict = || {
        let call = ToolCall { id: "look".into(), name: "look".into(), args: JsonObject::new() };
        Input::Admission { ticket, decision: Decision::Run { call, manner: Manner::default() } }
    };
    let discarded = |output: &Output| matches!(output, Output::Discard { .. });
    scene.give(verdict()).give(verdict());
    assert!(!scene.has(discarded));
    scene.done("r1");
    assert_eq!(scene.begun(), ticket);
    scene.ends(ticket, Outcome::Success).give(verdict());
    assert!(scene.has(discarded), "nobody needs it any more");
}
