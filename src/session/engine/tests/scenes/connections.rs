//! Connections that are lost and replaced.

use antiphon_live::Resumption;

use super::*;
use crate::session::{Continuity, SessionState};

#[test]
fn who_asks_for_another_connection_while_one_is_waited_for_gets_no_second_one() {
    let mut scene = Scene::with(|config, _| config.reconnect.initial_backoff = 2 * SECOND);
    scene.lose();
    scene.told();
    scene.host(HostCommand::Reconnect);
    assert_eq!((scene.connects(), scene.told().len()), (0, 0));
    scene.wait(3 * SECOND);
    assert_eq!(scene.connects(), 1);

    // Also where the last one was resumed by a handle.
    let mut scene = Scene::with(|config, can| {
        config.reconnect.initial_backoff = 2 * SECOND;
        can.resumption = true;
    });
    scene.event(handle()).reconnect().lose();
    scene.connects();
    scene.host(HostCommand::Reconnect);
    assert_eq!(scene.connects(), 0);
    scene.wait(5 * SECOND);
    assert_eq!(scene.connects(), 1);
}

#[test]
fn turns_by_hand_that_did_not_leave_go_up_again_in_their_order() {
    let mut scene = Scene::new();
    let turn = [
        HostCommand::ActivityStart,
        HostCommand::Audio(frame(1)),
        HostCommand::Image { media_type: "image/png".into(), data: vec![1].into() },
        HostCommand::Audio(frame(2)),
        HostCommand::ActivityEnd,
        HostCommand::EndAudio,
        // The user speaks again.
        HostCommand::ActivityStart,
        HostCommand::Audio(frame(3)),
    ];
    for command in turn.clone() {
        scene.host(command);
    }
    let sent = scene.uplink();
    assert_eq!(sent.len(), 8);
    let epoch = scene.engine.epoch;
    let unheld = Vec::new();
    scene.give(Input::Returned { epoch, commands: turn.into(), lost: Duration::ZERO, unheld });
    scene.reconnect();
    assert_eq!(scene.uplink(), sent);
}

#[test]
fn the_end_of_another_connection_is_not_that_of_this_one() {
    let mut scene = Scene::new();
    scene.reconnect();
    let lost = |epoch| Input::Disconnected { epoch, error: None };
    scene.give(lost(1));
    assert_eq!(scene.engine.state(), SessionState::Listening);
    scene.lose();
    scene.told();
    let epoch = scene.engine.epoch;
    scene.give(lost(epoch));
    assert!(scene.told().is_empty(), "it is over already");
}

/// What the last connection that was made is said to know.
fn restored(scene: &mut Scene) -> Continuity {
    let told = scene.told().into_iter().rev().find_map(|told| match told {
        EventKind::StateRestored { restored, .. } => Some(restored),
        _ => None,
    });
    told.expect("a connection that was replaced")
}

fn handle() -> LiveEvent {
    LiveEvent::Resumable(Resumption { handle: "h".to_owned().into() })
}

#[test]
fn only_who_resumes_by_a_handle_knows_everything() {
    let talked = |resumes: bool| {
        let mut scene = Scene::with(|_, can| can.resumption = resumes);
        scene.user_says("u1", "Hello.").says("r1", "Hello to you.");
        scene
    };
    let mut scene = talked(true);
    scene.event(handle()).reconnect();
    assert_eq!(restored(&mut scene), Continuity::Full);

    let mut scene = talked(true);
    scene.reconnect();
    assert_eq!(restored(&mut scene), Continuity::History, "there was no handle");

    let mut scene = talked(true);
    scene.event(handle());
    scene.can.resumption = false;
    scene.reconnect();
    assert_eq!(restored(&mut scene), Continuity::History, "it can resume no more");
    // And the handle of before is not used again.
    scene.can.resumption = true;
    scene.reconnect();
    assert_eq!(restored(&mut scene), Continuity::History);

    let mut scene = talked(true);
    scene.event(handle()).event(LiveEvent::NotResumable).reconnect();
    assert_eq!(restored(&mut scene), Continuity::History, "something is not in it");
}

#[test]
fn a_connection_is_not_left_while_anything_of_it_is_under_way() {
    type Doing = (&'static str, fn(&mut Scene));
    let doing: [Doing; 10] = [
        ("the words of the user are not complete", |scene| {
            let part = TextUpdate::Delta("Hello".into());
            scene.says("r1", "Well.").hears("u1", part).says("r2", "Well.");
            scene.engine.timers.stop(super::super::super::Timer::TranscriptWait);
        }),
        ("something waits for the wire", |scene| {
            scene.host(HostCommand::EndAudio);
        }),
        ("the answer is waited for", |scene| {
            scene.user_says("u1", "Hello.");
        }),
        ("the answer is late, and may come", |scene| {
            scene.user_says("u1", "Hello.").wait(31 * SECOND);
            assert_eq!(scene.engine.state(), SessionState::Listening);
        }),
        ("the answer to a turn by hand is waited for", |scene| {
            scene.host(HostCommand::ActivityStart).host(HostCommand::ActivityEnd);
            scene.uplink();
        }),
        ("a reply is being made", |scene| {
            scene.reply("r1");
        }),
        ("a reply was asked for", |scene| {
            let options = Default::default();
            scene.host(HostCommand::Say { text: "Hello.".into(), options, request: None });
        }),
        ("a reply is heard", |scene| {
            scene.reply("r1").audio("r1", 500).done("r1");
        }),
        ("a tool runs beside", |scene| {
            scene.can.non_blocking_tools = true;
            let capabilities = scene.can.clone().into();
            scene.event(LiveEvent::Ready { capabilities });
            scene.reply("r1").calls("r1", &["look"]).allow_beside().done("r1");
            assert_eq!(scene.engine.state(), SessionState::Listening);
        }),
        ("what a handle does not hold", |scene| {
            scene.user_says("u1", "Hello.").event(handle()).says("r1", "Well.");
        }),
    ];
    let going_away = || LiveEvent::GoingAway { time_left: Some(60 * SECOND) };
    for (what, begin) in doing {
        let mut scene = Scene::with(|_, can| (can.resumption, can.tells_speech) = (true, true));
        begin(&mut scene);
        scene.event(going_away());
        assert_eq!(scene.connects(), 0, "{what}");
        scene.wait(49 * SECOND);
        scene.wait(2 * SECOND);
        assert!(scene.connects() > 0, "{what}: the time is up");
    }

    type Quiet = (&'static str, fn(&mut Scene));
    let quiet: [Quiet; 3] = [
        ("nothing was said", |_| {}),
        ("all was said and heard", |scene| {
            scene.user_says("u1", "Hello.").says("r1", "Well.");
        }),
        ("a handle holds what is still heard", |scene| {
            scene.user_says("u1", "Hello.").reply("r1").audio("r1", 500).done("r1");
            scene.event(handle());
        }),
    ];
    for (what, begin) in quiet {
        let mut scene = Scene::with(|_, can| (can.resumption, can.tells_speech) = (true, true));
        begin(&mut scene);
        scene.event(going_away());
        assert_eq!(scene.connects(), 1, "{what}");
    }
}

#[test]
fn where_nobody_says_that_the_user_speaks_a_pause_in_their_audio_is_waited_for() {
    let going_away = || LiveEvent::GoingAway { time_left: Some(60 * SECOND) };
    // Whether the provider tells of speech, what of the user's audio there is, and the wait.
    for (tells, waits, sent, pause) in [
        (true, false, true, false),
        (false, false, false, false),
        (false, false, true, true),
        (false, true, false, true),
    ] {
        let mut scene = Scene::with(|_, can| can.tells_speech = tells);
        if waits || sent {
            scene.host(HostCommand::Audio(frame(8_000)));
        }
        if sent {
            scene.uplink();
        }
        scene.event(going_away()).wait(1_900 * MS);
        assert_eq!(scene.connects(), usize::from(!pause), "{tells} {waits} {sent}");
        scene.wait(200 * MS);
        assert_eq!(scene.connects(), usize::from(pause), "{tells} {waits} {sent}");
    }
}

#[test]
fn who_is_owed_an_answer_gets_it_by_the_next_connection() {
    type Owed = (&'static str, bool, fn(&mut Scene));
    let owed: [Owed; 5] = [
        ("it was asked for", true, |scene| {
            scene.tool_ends(Outcome::Success);
        }),
        ("nothing of it came", true, |scene| {
            scene.tool_ends(Outcome::Success).reply_to("r2", 1);
        }),
        ("it has begun", false, |scene| {
            scene.tool_ends(Outcome::Success).reply_to("r2", 1).words("r2", "There");
        }),
        ("its calls did not start", true, |scene| {
            scene.tool_ends(Outcome::Success).reply_to("r2", 1).words("r2", "There");
            scene.calls("r2", &["again"]).allow();
        }),
        ("the tool is still at work on it", false, |_| {}),
    ];
    for (what, is_owed, begin) in owed {
        let mut scene = Scene::with(|_, can| {
            (can.resumption, can.tools_after_reply, can.history) = (false, true, true);
        });
        scene.user_says("u1", "Look.").reply("r1").calls("r1", &["look"]).allow().done("r1");
        begin(&mut scene);
        scene.sent();
        scene.reconnect();
        let asked = scene.names().contains(&"create_reply");
        assert_eq!(asked, is_owed, "{what}");
    }
}
