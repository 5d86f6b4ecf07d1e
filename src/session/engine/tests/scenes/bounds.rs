//! Silence, goodbyes and other ends.

use super::*;
use crate::session::{HostPromptKind, HostPromptStage, RequestEnd, SayOptions, journal::Linked};

/// The prompt that the host is asked about.
fn prompt(scene: &mut Scene, kind: HostPromptKind) -> u64 {
    let asked = scene.take(|output| match output {
        Output::AskPrompt { prompt, .. } if prompt.prompt == kind => Some(prompt.id),
        _ => None,
    });
    asked.unwrap_or_else(|| panic!("{kind:?} was not asked for"))
}

/// The number of the text that the provider is to speak.
fn said(scene: &mut Scene) -> u64 {
    match &scene.sent()[..] {
        [LiveCommand::Say { request, .. }] => *request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_host_has_said_is_no_goodbye() {
    let idle = |config: &mut EngineConfig, _: &mut Capabilities| {
        config.idle = IdleConfig::new(None, Some(20 * SECOND));
    };
    let mut scene = Scene::with(idle);
    scene.wait(20 * SECOND);
    let id = prompt(&mut scene, HostPromptKind::IdleDeactivate);
    // The host has a goodbye of its own.
    scene.give(Input::PromptVerdict { id, allowed: false });
    let (text, options) = ("One moment.".to_owned(), SayOptions::default());
    scene.host(HostCommand::Say { text, options, request: None });
    let number = said(&mut scene);
    scene.reply_to("r1", number).audio("r1", 500).done("r1").play_all();
    scene.wait(4 * SECOND);
    assert_eq!(scene.end(), None, "the user has five seconds to speak up");
    scene.wait(SECOND);
    assert_eq!(scene.end(), Some(EndReason::Idle));

    let mut scene = Scene::with(idle);
    scene.wait(20 * SECOND);
    let id = prompt(&mut scene, HostPromptKind::IdleDeactivate);
    scene.give(Input::PromptVerdict { id, allowed: true });
    let number = said(&mut scene);
    scene.reply_to("r1", number).audio("r1", 500).done("r1").play_all();
    assert_eq!(scene.end(), Some(EndReason::Idle), "it was heard");
}

/// A session whose caller may leave work behind.
fn linked(edit: impl FnOnce(&mut Capabilities)) -> Scene {
    Scene::with(|config, can| {
        config.linked = Some(Linked { detaches: true });
        edit(can);
    })
}

/// What is under way, and how it comes to be so.
type Work = (&'static str, fn(&mut Scene));

#[test]
fn a_caller_leaves_behind_whatever_is_under_way() {
    let works: [Work; 6] = [
        ("a reply", |scene| {
            scene.user_says("u1", "Hello.").reply("r1").words("r1", "Well");
        }),
        ("an answer that waits for the end of a reply that was cut", |scene| {
            scene.user_says("u1", "Hello.").reply("r1").audio("r1", 500);
            scene.host(HostCommand::Interrupt).host(HostCommand::Text("And now?".into()));
        }),
        ("an answer that was asked for", |scene| {
            scene.host(HostCommand::Text("Hello.".into()));
        }),
        ("a tool that nobody waits for", |scene| {
            scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).allow_beside();
            scene.done("r1");
            assert_eq!(scene.engine.state(), crate::session::SessionState::Listening);
        }),
        ("an answer that the provider owes", |scene| {
            scene.user_says("u1", "Hello.");
        }),
        ("an answer that the next connection owes", |scene| {
            scene.user_says("u1", "Hello.").lose();
        }),
    ];
    for (what, work) in works {
        let mut scene = linked(|can| can.non_blocking_tools = true);
        work(&mut scene);
        scene.stop();
        assert!(scene.has(|output| matches!(output, Output::HungUp { .. })), "{what}");
        assert_eq!(scene.end(), None, "{what}");
    }
}

#[test]
fn a_caller_leaves_nothing_behind_where_nothing_is_under_way() {
    let idle: [Work; 4] = [
        ("answered", |scene| {
            scene.user_says("u1", "Hello.").says("r1", "Hello to you.");
        }),
        ("the provider said nothing for so long that it is not waited for", |scene| {
            scene.user_says("u1", "Hello.").wait(31 * SECOND);
        }),
        ("a connection is missing, and nobody for whom to have one", |scene| {
            scene.user_says("u1", "Hello.").says("r1", "Hello to you.").lose();
        }),
        ("only the caller could decide", |scene| {
            scene.user_says("u1", "Pay.").reply("r1").calls("r1", &["pay"]);
            scene.judge(|_| Decision::Confirm { read_back: "Really?".into() }).done("r1");
        }),
    ];
    for (what, idle) in idle {
        let mut scene = linked(|_| {});
        idle(&mut scene);
        scene.stop();
        assert!(!scene.has(|output| matches!(output, Output::HungUp { .. })), "{what}");
        assert_eq!(scene.end(), Some(EndReason::Stopped), "{what}");
    }
}

#[test]
fn an_answer_in_writing_that_nobody_hears_is_told_as_a_whole() {
    let mut scene = linked(|_| {});
    scene.user_says("u1", "Hello.").reply("r1").stop();
    scene.told();
    let text = TextUpdate::Delta("Hello to you.".into());
    scene.event(LiveEvent::OutputText { reply: "r1".into(), item: "r1".into(), text });
    scene.done("r1");
    let told = scene.told();
    let whole =
        |told: &EventKind| matches!(told, EventKind::AgentMessage { interrupted: false, .. });
    assert!(told.iter().any(whole), "{told:?}");
    assert_eq!(scene.end(), Some(EndReason::Stopped), "the work is done");
}

#[test]
fn a_second_stop_may_be_sooner_and_leaves_tools_their_time() {
    let mut scene = Scene::new();
    scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).allow().done("r1");
    scene.stop();
    let stop = Input::Stop { reason: EndReason::Stopped, within: Some(SECOND) };
    scene.give(stop).wait(900 * MS);
    assert_eq!(scene.end(), None);
    scene.wait(100 * MS);
    assert_eq!(scene.end(), Some(EndReason::Stopped));
}

#[test]
fn only_a_request_that_had_its_time_to_begin_is_given_up() {
    let say = |within| {
        let options = SayOptions { begin_within: Some(within), ..SayOptions::default() };
        HostCommand::Say { text: "Now or never.".into(), options, request: Some(1) }
    };
    let ends = |scene: &mut Scene| {
        let ends = scene.told().into_iter().filter_map(|told| match told {
            EventKind::ReplyRequest { outcome, .. } => Some(outcome),
            _ => None,
        });
        ends.collect::<Vec<_>>()
    };
    let mut scene = Scene::new();
    scene.reply("r1").audio("r1", 500).host(say(2 * SECOND)).wait(1_900 * MS);
    assert_eq!(ends(&mut scene), []);
    scene.wait(100 * MS);
    assert_eq!(ends(&mut scene), [RequestEnd::TimedOut]);
    scene.done("r1").play_all();
    assert_eq!(scene.names(), [""; 0]);
}

#[test]
fn nothing_comes_after_the_end() {
    let mut scene = Scene::new();
    scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).allow().done("r1");
    let ticket = scene.begun();
    scene.stop().ends(ticket, Outcome::Success);
    assert_eq!(scene.end(), Some(EndReason::Stopped));
    scene.outputs.clear();
    scene.give(Input::SinkFailed { message: "gone".into() }).ends(ticket, Outcome::Success);
    scene.host(HostCommand::Text("Hello?".into())).lose().stop().wait(60 * SECOND);
    assert!(scene.outputs.is_empty(), "{:?}", scene.outputs);
}

#[test]
fn the_host_may_change_how_long_silence_may_last() {
    let mut scene = Scene::new();
    let idle = IdleConfig::new(Some(10 * SECOND), None);
    scene.host(HostCommand::SetIdle(idle)).wait(10 * SECOND);
    prompt(&mut scene, HostPromptKind::IdleReminder);
}

#[test]
fn leave_is_taken_before_a_bound_and_the_host_learns_that_it_was_sent() {
    let mut scene = Scene::with(|config, _| config.limits.max_length = Some(60 * SECOND));
    scene.wait(45 * SECOND);
    let id = prompt(&mut scene, HostPromptKind::WrapUp);
    scene.give(Input::PromptVerdict { id, allowed: true });
    said(&mut scene);
    scene.told();
    scene.give(Input::PromptSent { id });
    let stages = scene.told().into_iter().filter_map(|told| match told {
        EventKind::HostPrompt(prompt) => Some(prompt.stage),
        _ => None,
    });
    assert_eq!(stages.collect::<Vec<_>>(), [HostPromptStage::Sent]);
    scene.wait(14 * SECOND);
    assert_eq!(scene.end(), None);
    scene.wait(SECOND);
    let limit = "session_length".into();
    assert_eq!(scene.end(), Some(EndReason::Limit { limit }));
}
