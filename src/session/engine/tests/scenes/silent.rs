//! A provider that hears the user and says nothing, and moments that are quiet though something was
//! heard.

use super::*;
use crate::session::OnStall;

/// A session that does this about a silent provider.
fn silent(on_stall: OnStall) -> Scene {
    Scene::with(|config, _| config.limits.on_stall = on_stall)
}

/// What was told of stalls since it was last looked at.
fn stalls(scene: &mut Scene) -> Vec<(u64, Option<OnStall>)> {
    let told = scene.told().into_iter();
    told.filter_map(|kind| match kind {
        EventKind::Stalled { ms, reaction, .. } => Some((ms, reaction)),
        _ => None,
    })
    .collect()
}

/// The user's audio, for so long; `value`: how loud.
fn hears(scene: &mut Scene, value: i16, time: Duration) {
    for _ in 0..time.as_millis() / 20 {
        scene.host(HostCommand::Audio(frame(value)));
        scene.wait(20 * MS);
    }
}

/// The user speaks for two seconds, as the provider tells.
fn utterance(scene: &mut Scene) {
    scene.speaks().wait(2 * SECOND).falls_silent();
}

fn going_away() -> LiveEvent {
    LiveEvent::GoingAway { time_left: Some(60 * SECOND) }
}

const VOICE: i16 = 8_000;
const HUM: i16 = 40;

#[test]
fn a_provider_that_hears_the_user_and_says_nothing_is_told_and_left() {
    type Said = (&'static str, bool, fn(&mut Scene));
    let said: [Said; 5] = [
        ("speech", true, utterance),
        ("speech that was committed", true, |scene| {
            utterance(scene);
            scene.event(LiveEvent::InputCommitted { item: "u1".into() });
        }),
        ("an interruption", true, |scene| {
            scene.reply("r1").words("r1", "Well").audio("r1", 500);
            scene.event(LiveEvent::Interrupted { reply: Some("r1".into()) });
            scene.done_as("r1", ReplyOutcome::Interrupted);
        }),
        ("a voice, where nobody else tells of it", false, |scene| {
            hears(scene, VOICE, 2 * SECOND);
        }),
        ("a second speech in the same silence", true, |scene| {
            utterance(scene);
            scene.wait(5 * SECOND);
            utterance(scene);
        }),
    ];
    for (what, tells, begin) in said {
        let mut scene = Scene::with(|config, can| {
            config.limits.on_stall = OnStall::Resume;
            can.tells_speech = tells;
        });
        scene.user_says("u0", "Hello.").says("r0", "Hello to you.");
        begin(&mut scene);
        scene.connects();
        scene.wait(9 * SECOND);
        assert_eq!((stalls(&mut scene).len(), scene.connects()), (0, 0), "{what}: it may think");
        scene.wait(2 * SECOND);
        let told = stalls(&mut scene);
        assert!(matches!(told[..], [(_, Some(OnStall::Resume))]), "{what}: {told:?}");
        assert_eq!(scene.connects(), 1, "{what}");
    }
}

#[test]
fn the_next_connection_hears_what_the_silent_one_did_not_answer() {
    let mut scene = silent(OnStall::Resume);
    scene.speaks();
    hears(&mut scene, VOICE, 2 * SECOND);
    let said = scene.uplink().len();
    scene.falls_silent().wait(11 * SECOND).connect();
    assert_eq!(scene.uplink().len(), said);
    assert!(!scene.names().contains(&"create_reply"), "who hears the question answers it");
    // It says nothing either, and is not replaced for that.
    scene.falls_silent().wait(30 * SECOND);
    assert_eq!(stalls(&mut scene).last().map(|(_, reaction)| *reaction), Some(None));
    assert_eq!(scene.connects(), 1);
}

#[test]
fn what_is_done_about_silence_after_speech_is_as_configured() {
    let mut scene = silent(OnStall::Tell);
    utterance(&mut scene);
    scene.wait(60 * SECOND);
    assert_eq!(stalls(&mut scene), [(12_000, None)], "once");
    utterance(&mut scene);
    scene.wait(60 * SECOND);
    assert_eq!(stalls(&mut scene), [(12_000, None)], "and again for what is said again");

    let mut scene = silent(OnStall::Nudge);
    utterance(&mut scene);
    scene.wait(11 * SECOND);
    assert_eq!(scene.names(), ["create_reply"]);

    let mut scene = silent(OnStall::Fail);
    utterance(&mut scene);
    scene.wait(11 * SECOND);
    assert!(matches!(scene.end(), Some(EndReason::Failed { .. })));
}

#[test]
fn what_is_answered_or_is_no_speech_is_no_stall() {
    type Said = (&'static str, bool, fn(&mut Scene));
    let said: [Said; 7] = [
        ("an answer", true, |scene| {
            utterance(scene);
            scene.says("r1", "Well.");
        }),
        ("a noise, by its words", true, |scene| {
            utterance(scene);
            scene.understood("u1", "");
        }),
        ("a noise, by its length", true, |scene| {
            scene.speaks().wait(200 * MS).falls_silent();
        }),
        ("a tool that runs", true, |scene| {
            utterance(scene);
            scene.reply("r1").calls("r1", &["look"]).allow().done("r1");
            scene.tool_ends(Outcome::Success);
            scene.reply_to("r2", 1).words("r2", "Well.").audio("r2", 500).done("r2").play_all();
        }),
        ("a knock, where nobody tells of speech", false, |scene| {
            hears(scene, VOICE, 200 * MS);
            hears(scene, HUM, SECOND);
        }),
        ("a hum, where nobody tells of speech", false, |scene| {
            hears(scene, HUM, 5 * SECOND);
        }),
        ("the agent's own voice, where nobody tells of speech", false, |scene| {
            scene.reply("r1").words("r1", "Well").audio("r1", 500);
            hears(scene, VOICE, 2 * SECOND);
            scene.done("r1").play_all();
        }),
    ];
    for (what, tells, begin) in said {
        let mut scene = Scene::with(|config, can| {
            config.limits.on_stall = OnStall::Resume;
            can.tells_speech = tells;
        });
        begin(&mut scene);
        scene.wait(60 * SECOND);
        assert_eq!((stalls(&mut scene).len(), scene.connects()), (0, 0), "{what}");
    }
}

#[test]
fn a_noise_makes_no_moment_unquiet_for_long() {
    type Heard = (&'static str, Duration, fn(&mut Scene));
    // Until when the connection is kept that was told to go.
    let heard: [Heard; 4] = [
        ("a cough", 5 * SECOND, |scene| {
            scene.speaks().wait(200 * MS).falls_silent();
        }),
        ("a noise that was found to be one", Duration::ZERO, |scene| {
            utterance(scene);
            scene.understood("u1", "");
        }),
        ("speech, until it should have been answered", 10 * SECOND, utterance),
        ("speech without an end", 40 * SECOND, |scene| {
            scene.speaks();
        }),
    ];
    for (what, kept, begin) in heard {
        let mut scene = Scene::new();
        begin(&mut scene);
        scene.event(going_away());
        if !kept.is_zero() {
            scene.wait(kept - 20 * MS);
            assert_eq!(scene.connects(), 0, "{what}");
        }
        scene.wait(40 * MS);
        assert_eq!(scene.connects(), 1, "{what}");
    }
}

#[test]
fn a_question_that_nobody_tells_of_is_answered_before_its_connection_is_left() {
    let asks = || {
        let mut scene = Scene::with(|_, can| can.tells_speech = false);
        hears(&mut scene, VOICE, 2 * SECOND);
        hears(&mut scene, HUM, 3 * SECOND);
        scene.uplink();
        scene.event(going_away());
        scene
    };
    // The model thinks for longer than a pause.
    let mut scene = asks();
    scene.wait(4 * SECOND);
    assert_eq!(scene.connects(), 0);
    scene.reply("r1").words("r1", "It is one.").audio("r1", 500).done("r1");
    assert_eq!(scene.connects(), 0, "it is being heard");
    scene.play_all();
    assert_eq!(scene.connects(), 1);

    // Or it never answers.
    let mut scene = asks();
    scene.wait(8 * SECOND);
    assert_eq!(scene.connects(), 1);
}

fn fails(scene: &mut Scene, error: LiveError) {
    let connects = scene.take_all(|output| match output {
        Output::Connect { request, .. } => Some(request.epoch),
        _ => None,
    });
    let epoch = *connects.last().expect("a connection that is being made");
    scene.give(Input::ConnectFailed { epoch, error });
}

#[test]
fn a_connection_that_is_well_is_not_given_up_for_one_that_is_refused() {
    let mut scene = Scene::new();
    scene.event(going_away());
    let used = scene.engine.epoch;
    for _ in 0..20 {
        if scene.has(|output| matches!(output, Output::Connect { .. })) {
            fails(&mut scene, LiveError::Unauthorized("the key was changed".into()));
        }
        scene.wait(3 * SECOND);
        assert!(!scene.has(|output| matches!(output, Output::Close { epoch } if *epoch == used)));
    }
    assert_eq!(scene.end(), None);
    // It is talked to until it ends.
    scene.user_says("u1", "Still there?").says("r1", "Yes.");
    assert!(scene.told().iter().any(|kind| matches!(kind, EventKind::AgentMessage { .. })));
    let error = Some(LiveError::Closed { code: 1001, reason: "time is up".into() });
    scene.give(Input::Disconnected { epoch: used, error }).wait(5 * SECOND);
    fails(&mut scene, LiveError::Unauthorized("the key was changed".into()));
    assert!(scene.end().is_some());
}

#[test]
fn a_connection_that_cannot_be_made_beside_is_tried_again_after_growing_waits() {
    let mut scene = Scene::new();
    scene.event(LiveEvent::GoingAway { time_left: Some(400 * SECOND) });
    let (began, mut tried) = (scene.now, Vec::new());
    while scene.now - began < 300 * SECOND {
        if scene.has(|output| matches!(output, Output::Connect { .. })) {
            tried.push((scene.now - began).as_secs());
            fails(&mut scene, LiveError::Transport("down".into()));
        }
        scene.wait(SECOND);
    }
    assert_eq!(tried, [0, 5, 10, 20, 40, 80, 160, 240]);
}

#[test]
fn who_hangs_up_on_a_handle_is_told_the_conversation_before_all_attempts_are_over() {
    for attempts in 1..=3 {
        let mut scene = Scene::with(|config, can| {
            can.resumption = true;
            config.reconnect.max_attempts = attempts;
        });
        scene.user_says("u1", "Hello.").says("r1", "Hello to you.");
        scene.event(LiveEvent::Resumable(antiphon_live::Resumption {
            handle: "h".to_owned().into(),
        }));
        scene.lose();
        let mut resumed = Vec::new();
        for _ in 0..=attempts {
            scene.wait(10 * SECOND);
            resumed.extend(scene.take_all(|output| match output {
                Output::Connect { request, .. } => {
                    assert_eq!(request.history.len(), 2);
                    Some(request.resume.is_some())
                }
                _ => None,
            }));
            let epoch = scene.engine.epoch;
            let error = LiveError::Closed { code: 1011, reason: "internal error".into() };
            scene.give(Input::ConnectFailed { epoch, error });
        }
        let expected: Vec<_> = (0..=attempts).map(|attempt| attempt < attempts).collect();
        assert_eq!(resumed, expected, "{attempts}");
    }
}

#[test]
fn what_a_failed_reply_owes_is_asked_of_the_next_connection() {
    let failed = |words: bool| {
        let mut scene = Scene::new();
        scene.user_says("u1", "Hello.").reply("r1");
        if words {
            scene.words("r1", "Well");
        }
        scene.done_as("r1", ReplyOutcome::Failed);
        scene.sent();
        scene
    };
    let asked = |scene: &mut Scene| scene.names().contains(&"create_reply");
    let finished = |scene: &mut Scene| {
        scene.told().iter().any(|kind| matches!(kind, EventKind::TurnFinished { .. }))
    };

    let mut scene = failed(false);
    scene.reconnect();
    assert!(asked(&mut scene));
    assert!(!finished(&mut scene));
    scene.reply_to("r2", 1).words("r2", "Hello to you.").audio("r2", 500).done("r2").play_all();
    assert!(finished(&mut scene));

    let mut scene = failed(true);
    scene.reconnect();
    assert!(!asked(&mut scene), "it has begun");

    // Where the connection stays, nothing more comes.
    let mut scene = failed(false);
    scene.wait(2 * SECOND);
    assert!(finished(&mut scene));
    scene.reconnect();
    assert!(!asked(&mut scene), "the turn is over");
}
