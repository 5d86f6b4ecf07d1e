//! The user's turns.

use antiphon_live::{LiveCommand, TextUpdate, VoiceActivity, WordTime};

use super::*;
use crate::session::{
    Confidence, Heard, SessionState, SpeechJudge, UserAudio,
    engine::{HandOff, Origin, Persona},
};

#[test]
fn words_of_an_utterance_that_is_over_are_counted_and_change_nothing() {
    let mut scene = Scene::new();
    scene.user_says("u1", "Hello.");
    scene.told();
    scene.hears("u1", TextUpdate::Delta("Hello again".into())).understood("u1", "Hello again.");
    assert!(scene.told().is_empty());
    assert_eq!(scene.engine.stats().ignored_events, 2);
}

#[test]
fn the_end_of_the_audio_ends_a_turn_where_there_was_one() {
    for (voice_activity, speaks, state) in [
        (VoiceActivity::Auto, false, SessionState::Listening),
        (VoiceActivity::Auto, true, SessionState::Processing),
        (VoiceActivity::Manual, false, SessionState::Processing),
    ] {
        let mut scene = Scene::with(|config, _| config.live.voice_activity = voice_activity);
        if speaks {
            scene.speaks();
        }
        scene.host(HostCommand::EndAudio);
        assert_eq!(scene.engine.state(), state, "{voice_activity:?}, {speaks}");
        assert_eq!(scene.uplink(), [LiveCommand::EndAudio]);
    }
}

#[test]
fn what_says_nothing_of_the_answer_puts_no_stall_off() {
    let stalls = |scene: &mut Scene| {
        let is_stall = |told: &EventKind| matches!(told, EventKind::Stalled { .. });
        scene.told().iter().filter(|told| is_stall(told)).count()
    };
    let mut scene = Scene::new();
    scene.user_says("u1", "Hello.").wait(9 * SECOND);
    scene.event(LiveEvent::Ignored { kind: "rate_limits.updated".into() }).wait(SECOND);
    assert_eq!(stalls(&mut scene), 1);

    let mut scene = Scene::new();
    scene.user_says("u1", "Hello.").wait(9 * SECOND).reply("r1").wait(9 * SECOND);
    assert_eq!(stalls(&mut scene), 0);
    scene.wait(SECOND);
    assert_eq!(stalls(&mut scene), 1);
}

#[test]
fn the_end_of_the_words_is_not_the_end_of_the_reply() {
    let mut scene = Scene::new();
    scene.user_says("u1", "Hello.").reply("r1");
    let text = TextUpdate::Final(Some("Hello to you.".into()));
    scene.event(LiveEvent::OutputTranscript { reply: "r1".into(), item: "r1".into(), text });
    scene.wait(800 * MS);
    assert_eq!(scene.engine.state(), SessionState::Processing);
    scene.wait(100 * MS);
    assert_eq!(scene.engine.state(), SessionState::Listening, "nothing came of it");
    scene.audio("r1", 500);
    assert_eq!(scene.engine.state(), SessionState::Speaking);
}

fn user_messages(scene: &mut Scene) -> Vec<String> {
    let messages = scene.told().into_iter().filter_map(|told| match told {
        EventKind::UserMessage { text } => Some(text),
        _ => None,
    });
    messages.collect()
}

#[test]
fn words_that_never_become_final_are_taken_as_they_are_some_time_after_the_answer() {
    let begin = || {
        let mut scene = Scene::new();
        scene.speaks().falls_silent().hears("u1", TextUpdate::Delta("Hello".into()));
        scene.reply("r1").words("r1", "Hello to you.");
        scene
    };
    let mut scene = begin();
    scene.done("r1").wait(2_900 * MS);
    assert_eq!(user_messages(&mut scene), [""; 0]);
    scene.wait(100 * MS);
    assert_eq!(user_messages(&mut scene), ["Hello"]);

    // While the user speaks again, what they said before may still be being written down.
    let mut scene = begin();
    scene.speaks().done("r1").wait(4 * SECOND);
    assert_eq!(user_messages(&mut scene), [""; 0]);
}

#[test]
fn words_belong_to_the_speech_that_the_provider_named() {
    let mut scene = Scene::new();
    for (turn, item) in ["u1", "u2"].into_iter().enumerate() {
        scene.speaks().falls_silent().event(LiveEvent::InputCommitted { item: item.into() });
        let reply = format!("r{turn}");
        scene.says(&reply, "Well.");
        assert_eq!(scene.engine.turn.number, turn as u64 + 1);
    }
    scene.outputs.clear();
    // The words of the second come first.
    scene.understood("u2", "Two.").understood("u1", "One.");
    let words = scene.take_all(|output| match output {
        Output::Emit(event) => match &event.kind {
            EventKind::UserMessage { text } => Some((event.turn, text.clone())),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(words, [(2, "Two.".to_owned()), (1, "One.".to_owned())]);
    assert_eq!(scene.engine.stats().turns, 2);
}

#[test]
fn the_times_of_words_of_no_reply_are_counted_and_change_nothing() {
    let mut scene = Scene::new();
    let words = vec![WordTime::new("Hello", SECOND)];
    scene.event(LiveEvent::WordTimes { reply: "r1".into(), item: "r1".into(), words });
    assert_eq!(scene.engine.stats().ignored_events, 1);
    assert_eq!(scene.engine.stats().replies, 0);
}

#[test]
fn what_a_provider_can_do_is_what_it_said_last() {
    let mut scene = Scene::new();
    let mut can = scene.can.clone();
    can.say = false;
    scene.event(LiveEvent::Ready { capabilities: can.into() });
    scene.host(HostCommand::Say {
        text: "Hello.".into(),
        options: Default::default(),
        request: None,
    });
    assert_eq!(scene.names(), [""; 0]);
    let told = scene.told();
    assert!(matches!(&told[0], EventKind::Error { message, .. } if message.contains("say")));
}

#[test]
fn how_exactly_a_sink_knows_what_was_heard_is_told() {
    let error = 40 * MS;
    for (source, confidence, error_ms) in [
        (PositionSource::DeviceClock, Confidence::DeviceClock, 0),
        (PositionSource::CarrierMark, Confidence::CarrierMark, 0),
        (PositionSource::Estimate { error }, Confidence::Estimate, 40),
    ] {
        let mut scene = Scene::new();
        scene.wait(SECOND).reply("r1").words("r1", "Hello.").audio("r1", 500).done("r1");
        let played = Played { source, ..scene.played(500 * MS, true) };
        scene.give(Input::Played(played));
        let heard = scene.told().into_iter().find_map(|told| match told {
            EventKind::AgentMessage { heard, .. } => heard,
            _ => None,
        });
        let expected =
            Heard { began_ms: 1_000, heard_ms: 500, generated_ms: 500, confidence, error_ms };
        assert_eq!(heard, Some(expected));
    }
}

#[test]
fn a_long_queue_of_audio_wants_to_know_how_far_it_was_heard() {
    let mut scene = Scene::new();
    scene.reply("r1").audio("r1", 60_000);
    assert!(!scene.engine.wants_position());
    scene.audio("r1", 20);
    assert!(scene.engine.wants_position());
    let played = scene.played(10 * SECOND, false);
    scene.give(Input::Played(played));
    assert!(!scene.engine.wants_position());
}

#[test]
fn audio_that_the_wire_does_not_take_is_dropped_and_counted() {
    let mut scene = Scene::new();
    for _ in 0..125 {
        scene.host(HostCommand::Audio(frame(1)));
    }
    assert_eq!(scene.engine.stats().uplink_dropped_ms, 500);
    assert_eq!(scene.uplink().len(), 100);
}

#[test]
fn a_turn_by_hand_that_was_not_taken_is_none_unless_something_is_under_way() {
    type Doing = (SessionState, fn(&mut Scene));
    let doing: [Doing; 4] = [
        (SessionState::Listening, |_| {}),
        (SessionState::Processing, |scene| {
            scene.reply("r1").words("r1", "Well");
        }),
        (SessionState::Processing, |scene| {
            scene.host(HostCommand::Interrupt).host(HostCommand::Text("Hello.".into()));
        }),
        (SessionState::Processing, |scene| {
            scene.reply("r1").calls("r1", &["look"]).allow().done("r1");
        }),
    ];
    for (at, (state, begin)) in doing.into_iter().enumerate() {
        let mut scene = Scene::new();
        scene.host(HostCommand::ActivityStart).host(HostCommand::ActivityEnd);
        begin(&mut scene);
        assert_eq!(scene.engine.state(), SessionState::Processing);
        let epoch = scene.engine.epoch;
        let error = LiveError::InvalidCommand("nothing was said".into());
        let (command, origin) = ("activity_end", Origin::None);
        scene.give(Input::Refused { epoch, command, origin, error });
        assert_eq!(scene.engine.state(), state, "{at}");
    }
}

#[test]
fn a_provider_that_never_ends_what_it_was_asked_to_stop_is_not_waited_for() {
    let mut scene = Scene::new();
    scene.reply("r1").audio("r1", 500).host(HostCommand::Interrupt);
    scene.host(HostCommand::Text("And now?".into()));
    assert!(!scene.names().contains(&"text"));
    scene.wait(9 * SECOND);
    assert_eq!(scene.names(), [""; 0]);
    scene.wait(SECOND);
    assert_eq!(scene.names(), ["text"]);
    let gave_up = |told: &EventKind| matches!(told, EventKind::Error { message, .. } if message.contains("never ended"));
    assert!(scene.told().iter().any(gave_up));
}

#[test]
fn what_the_host_plays_has_an_echo_as_well() {
    for (guard, paused) in [(SECOND, false), (Duration::ZERO, true)] {
        let judge = SpeechJudge::default().echo_guard(guard);
        let mut scene = Scene::with(|config, can| {
            config.barge_in = BargeIn::Judged(judge);
            (can.session_answers, can.interrupts) = (true, false);
        });
        let (frame, options) = (AudioFrame::from_pcm16(24_000, &[7; 48_000]), Default::default());
        scene.host(HostCommand::Play { frame, options, request: None });
        scene.wait(500 * MS).speaks();
        assert_eq!(scene.has(|output| matches!(output, Output::PausePlayback)), paused);
    }
}

#[test]
fn a_user_who_is_not_to_be_heard_is_silent_to_the_provider_while_the_agent_speaks() {
    for (audio, muted) in [(UserAudio::Drop, true), (UserAudio::Keep, false)] {
        let mut scene = Scene::with(|config, _| config.barge_in = BargeIn::Never { audio });
        scene.reply("r1").audio("r1", 500).done("r1").host(HostCommand::Audio(frame(9)));
        scene.play_all().host(HostCommand::Audio(frame(9)));
        let spoken = LiveCommand::AppendAudio(frame(9));
        let first = if muted { LiveCommand::AppendAudio(frame(0)) } else { spoken.clone() };
        assert_eq!(scene.uplink(), [first, spoken]);
        assert_eq!(scene.engine.stats().muted_user_ms, if muted { 20 } else { 0 });
    }
}

#[test]
fn words_alone_do_not_interrupt_before_the_speech_has_lasted() {
    let judge = SpeechJudge::default().min_speech(800 * MS);
    let mut scene = Scene::with(|config, can| {
        config.barge_in = BargeIn::Judged(judge);
        (can.session_answers, can.interrupts) = (true, false);
        // So long after the end of speech it is told.
        can.end_silence = 500 * MS;
    });
    scene.reply("r1").audio("r1", 5_000).speaks().wait(900 * MS);
    scene.hears("u1", TextUpdate::Delta("What time".into()));
    let cleared = |output: &Output| matches!(output, Output::ClearPlayback { .. });
    assert!(scene.has(|output| matches!(output, Output::PausePlayback)));
    assert!(!scene.has(cleared), "it may have been over after 400 ms");
    scene.wait(400 * MS);
    assert!(scene.has(cleared));
}

#[test]
fn who_takes_over_speaks_first_also_where_only_words_ask_for_that() {
    let mut scene = Scene::with(|_, can| can.create_reply = false);
    let persona = Persona { instructions: None, tools: Vec::new(), voice: None };
    let order = HandOff { number: 1, to: Some("b".into()), persona: Some(persona), speaks: true };
    scene.host(HostCommand::HandOff(order)).connect();
    let sent = scene.sent();
    let [LiveCommand::Text { text, reply: true }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(text, "(You have just taken over the conversation. Go on with it.)");
}
