//! What the user's speech does to the agent's.

use antiphon::{
    live::{Capabilities, LiveCommand, LiveEvent, ReplyOutcome, TextUpdate, VoiceActivity},
    session::*,
};
use antiphon_testkit::ScriptedProvider;

use crate::rig::*;

fn judged(edit: impl FnOnce(SpeechJudge) -> SpeechJudge) -> Setup {
    let judge = edit(SpeechJudge::default());
    Setup::new().build(|builder| builder.barge_in(BargeIn::Judged(judge)))
}

fn started() -> LiveEvent {
    LiveEvent::SpeechStarted { audio_start_ms: None }
}

fn stopped() -> LiveEvent {
    LiveEvent::SpeechStopped { audio_end_ms: None }
}

fn names(commands: &[LiveCommand]) -> Vec<&'static str> {
    commands.iter().map(LiveCommand::name).collect()
}

/// A long reply of which so much has been heard.
async fn talking(setup: Setup, heard_ms: usize) -> Rig {
    let mut rig = setup.start().await;
    rig.says("r1", "One two three four five six seven eight nine ten.", 10_000);
    rig.settle().await;
    rig.speaker.play(heard_ms * PER_MS);
    rig.now().await;
    rig
}

fn count(events: &[EventKind], is: impl Fn(&EventKind) -> bool) -> usize {
    events.iter().filter(|kind| is(kind)).count()
}

fn resumed(cause: ResumeCause) -> impl Fn(&EventKind) -> bool {
    move |kind| *kind == EventKind::PlaybackResumed { cause }
}

#[tokio::test(start_paused = true)]
async fn trial_c01_a_noise_pauses_and_the_reply_goes_on_at_the_same_sample() {
    let mut rig = talking(judged(|judge| judge), 2_000).await;
    rig.emit(started());
    rig.settle().await;
    assert!(rig.speaker.is_paused());
    assert_eq!(rig.speaker.play(500 * PER_MS), 0, "nothing is heard while it is judged");
    tokio::time::sleep(300 * MS).await;
    rig.emit(stopped());
    tokio::time::sleep(1_100 * MS).await;
    let events = rig.now().await;
    assert_eq!(count(&events, resumed(ResumeCause::Noise)), 1, "{events:#?}");
    assert!(!events.contains(&EventKind::Interrupted));
    rig.speaker.play_all();
    assert_eq!(rig.speaker.heard_samples().len(), 10_000 * PER_MS, "no sample is lost or doubled");
    let events = rig.now().await;
    assert_eq!(
        agent_messages(&events),
        [("One two three four five six seven eight nine ten.".to_owned(), false)]
    );
    assert!(rig.commands().await.is_empty(), "nobody is told, and nothing is asked for");
    assert_eq!(rig.session.stats().interruptions, 0);
}

#[tokio::test(start_paused = true)]
async fn trial_c03_a_backchannel_is_neither_an_interruption_nor_the_next_turn() {
    for words in ["Yes.", "mhm", "Okay, okay"] {
        let mut rig = talking(judged(|judge| judge), 2_000).await;
        rig.emit(started());
        tokio::time::sleep(400 * MS).await;
        rig.emit(stopped());
        // The recogniser is not sure at once.
        rig.emit(heard("u1", TextUpdate::Snapshot("Yes".into())));
        rig.settle().await;
        assert!(rig.speaker.is_paused());
        rig.emit(heard("u1", TextUpdate::Final(Some(words.into()))));
        let events = rig.now().await;
        assert_eq!(count(&events, resumed(ResumeCause::Backchannel)), 1, "{events:#?}");
        rig.speaker.play_all();
        let events = rig.now().await;
        assert!(user_messages(&events).is_empty(), "{events:#?}");
        tokio::time::sleep(20 * SECOND).await;
        assert_eq!(names(&rig.commands().await), ["forget_input"], "and not answered: {words}");
        assert_eq!(rig.speaker.heard_samples().len(), 10_000 * PER_MS);
    }
}

#[tokio::test(start_paused = true)]
async fn words_that_mean_something_interrupt_where_the_agent_paused() {
    let mut rig = talking(judged(|judge| judge), 2_000).await;
    rig.emit(started());
    tokio::time::sleep(300 * MS).await;
    rig.emit(stopped());
    rig.emit(heard("u1", TextUpdate::Final(Some("Stop.".into()))));
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["truncate", "create_reply"]);
    let LiveCommand::Truncate { audio_end_ms, .. } = commands[0] else { panic!() };
    assert_eq!(audio_end_ms, 2_000);
    assert!(!rig.speaker.is_paused(), "the next reply is heard");
    let events = rig.now().await;
    assert_eq!(count(&events, |kind| *kind == EventKind::Interrupted), 1);
    assert_eq!(user_messages(&events), ["Stop."]);
    assert_eq!(agent_messages(&events), [("One two".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn words_that_come_after_all_patience_still_count() {
    for playing in [true, false] {
        let mut rig = talking(judged(|judge| judge), 2_000).await;
        rig.emit(started());
        tokio::time::sleep(300 * MS).await;
        rig.emit(stopped());
        tokio::time::sleep(1_100 * MS).await;
        let events = rig.now().await;
        assert_eq!(count(&events, resumed(ResumeCause::Noise)), 1, "{events:#?}");
        if !playing {
            rig.speaker.play_all();
            rig.settle().await;
        }
        rig.emit(heard("u1", TextUpdate::Final(Some("Please stop".into()))));
        let told = names(&rig.commands().await);
        if playing {
            assert_eq!(told, ["truncate", "create_reply"]);
        } else {
            assert_eq!(told, ["create_reply"]);
        }
        assert_eq!(user_messages(&rig.now().await), ["Please stop"]);
    }
}

#[tokio::test(start_paused = true)]
async fn speech_that_lasts_interrupts_before_its_words_are_known() {
    let setup = judged(|judge| judge.min_speech(700 * MS));
    let mut rig = setup.start().await;
    rig.reply("r1").words("r1", "One two three four").audio("r1", 4_000);
    rig.settle().await;
    rig.speaker.play(1_000 * PER_MS);
    rig.emit(started());
    tokio::time::sleep(690 * MS).await;
    assert!(rig.commands().await.is_empty());
    tokio::time::sleep(20 * MS).await;
    assert_eq!(names(&rig.commands().await), ["cancel_reply", "truncate"]);
    rig.done_as("r1", ReplyOutcome::Cancelled);
    assert!(rig.commands().await.is_empty(), "the user still speaks");
    rig.emit(stopped());
    assert_eq!(names(&rig.commands().await), ["create_reply"], "once, at the end of the turn");
    rig.emit(heard("u1", TextUpdate::Final(Some("Never mind.".into()))));
    assert!(rig.commands().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_a_pause_short_speech_is_answered_after_the_reply() {
    let setup = judged(|judge| judge.pause(false).min_speech(500 * MS));
    let mut rig = talking(setup, 2_000).await;
    rig.emit(started());
    tokio::time::sleep(300 * MS).await;
    rig.emit(stopped());
    rig.emit(heard("u1", TextUpdate::Final(Some("And tomorrow?".into()))));
    rig.settle().await;
    assert!(!rig.speaker.is_paused());
    let events = rig.now().await;
    assert!(!events.contains(&EventKind::Interrupted), "{events:#?}");
    assert_eq!(user_messages(&events), ["And tomorrow?"]);
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn so_many_words_must_have_been_understood() {
    let setup = judged(|judge| judge.min_words(3).min_speech(MS));
    let mut rig = talking(setup, 2_000).await;
    rig.emit(started());
    tokio::time::sleep(3 * SECOND).await;
    rig.emit(heard("u1", TextUpdate::Snapshot("please tell".into())));
    let events = rig.now().await;
    assert!(!events.contains(&EventKind::Interrupted));
    rig.emit(heard("u1", TextUpdate::Snapshot("please tell me".into())));
    let events = rig.now().await;
    assert!(events.contains(&EventKind::Interrupted), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn trial_c06_protected_speech_is_not_interrupted_and_the_user_is_heard_or_not_as_set() {
    for audio in [UserAudio::Keep, UserAudio::Drop] {
        let mut rig = judged(|judge| judge).start().await;
        let options = SayOptions::new().protected(audio);
        let number = rig.session.say_with("Calls are recorded.", options).unwrap();
        let commands = rig.commands().await;
        let [LiveCommand::Say { request, .. }] = &commands[..] else { panic!("{commands:?}") };
        rig.reply_to("r1", *request).words("r1", "Calls are recorded.").audio("r1", 2_000);
        rig.settle().await;
        rig.speaker.play(500 * PER_MS);
        let told = EventKind::ReplyRequest {
            request: Some(number),
            origin: RequestOrigin::Host,
            outcome: RequestEnd::Started,
        };
        assert!(rig.now().await.contains(&told));
        rig.session.send_audio(antiphon_testkit::voice_like(16_000, 100)).unwrap();
        rig.settle().await;
        let sent = rig.far.drain();
        let [LiveCommand::AppendAudio(frame)] = &sent[..] else { panic!("{sent:?}") };
        let silent = frame.data.iter().all(|byte| *byte == 0);
        assert_eq!(silent, audio == UserAudio::Drop);
        assert_eq!(frame.samples(), 1_600, "something flows, so that nobody hangs up");
        if audio == UserAudio::Keep {
            rig.emit(started());
            tokio::time::sleep(2 * SECOND).await;
            rig.emit(stopped());
            rig.emit(heard("u1", TextUpdate::Final(Some("Stop that now".into()))));
        }
        rig.done("r1");
        rig.settle().await;
        rig.speaker.play_all();
        let events = rig.now().await;
        assert!(!events.contains(&EventKind::Interrupted), "{audio:?}: {events:#?}");
        assert_eq!(rig.speaker.heard_samples().len(), 2_000 * PER_MS);
        let answered = names(&rig.commands().await);
        let muted = rig.session.stats().muted_user_ms;
        match audio {
            UserAudio::Keep => assert_eq!((&answered[..], muted), (&["create_reply"][..], 0)),
            _ => assert_eq!((&answered[..], muted), (&[][..], 100)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_never_lets_only_the_host_interrupt() {
    let never = BargeIn::Never { audio: UserAudio::Keep };
    let setup = Setup::new().build(|builder| builder.barge_in(never));
    let mut rig = talking(setup, 2_000).await;
    assert_eq!(
        rig.config().policies.activity.handling,
        antiphon::live::ActivityHandling::NoInterruption
    );
    rig.emit(started());
    tokio::time::sleep(5 * SECOND).await;
    assert!(!rig.now().await.contains(&EventKind::Interrupted));
    rig.session.interrupt().unwrap();
    assert!(rig.now().await.contains(&EventKind::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn the_agents_own_echo_is_not_judged_unless_it_is_cancelled() {
    for (cancelled, lasts_ms, interrupted) in
        [(false, 600, false), (true, 600, true), (false, 3_000, true)]
    {
        let setup = judged(|judge| judge.min_speech(300 * MS).echo_guard(SECOND));
        let mut rig = setup.start().await;
        rig.session.set_echo_cancelled(cancelled).unwrap();
        rig.reply("r1").words("r1", "One two three four").audio("r1", 4_000);
        tokio::time::sleep(100 * MS).await;
        rig.emit(started());
        tokio::time::sleep(lasts_ms * MS).await;
        rig.emit(stopped());
        rig.emit(heard("u1", TextUpdate::Final(Some("One two three".into()))));
        let events = rig.now().await;
        assert_eq!(events.contains(&EventKind::Interrupted), interrupted, "{events:#?}");
        assert_eq!(user_messages(&events).is_empty(), !interrupted, "{events:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_meets_the_users_speech_waits_and_is_given_up() {
    let mut rig = judged(|judge| judge.min_speech(500 * MS)).start().await;
    rig.user_says("u1", "Tell me a story");
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
    rig.emit(started());
    rig.settle().await;
    rig.reply_to("r1", 1).words("r1", "Once upon").audio("r1", 1_000);
    rig.settle().await;
    assert_eq!(rig.speaker.play_all(), 0, "nobody talks into the user's words");
    tokio::time::sleep(SECOND).await;
    assert_eq!(names(&rig.commands().await), ["cancel_reply", "truncate"]);
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.emit(stopped());
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn a_yes_during_a_read_back_is_an_answer_and_no_backchannel() {
    let (tool, latch) =
        antiphon_testkit::LatchedTool::open("pay", antiphon_testkit::ToolPlan::Succeed);
    let setup = judged(|judge| judge).build(|builder| {
        let ask = policy(|_| antiphon::agent::Verdict::Confirm { read_back: "Pay?".into() });
        builder.tool(tool).authorize(ask)
    });
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "pay", "{}");
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, .. }] = &commands[..] else { panic!("{commands:?}") };
    rig.reply_to("r2", *request).words("r2", "Pay?").audio("r2", 1_000).done("r2");
    rig.settle().await;
    rig.speaker.play(500 * PER_MS);
    rig.user_says("u1", "Yes.");
    let commands = rig.commands().await;
    assert_eq!(latch.calls().len(), 1, "{commands:?}");
    assert_eq!(names(&commands), ["truncate", "tool_response", "create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_leaves_nothing_paused() {
    let mut rig = talking(judged(|judge| judge), 2_000).await;
    rig.emit(started());
    rig.settle().await;
    assert!(rig.speaker.is_paused());
    rig.far.fail(antiphon::live::LiveError::Transport("reset".into()));
    rig.settle().await;
    assert!(!rig.speaker.is_paused());
    rig.speaker.play_all();
    assert_eq!(agent_messages(&rig.now().await).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_policy_needs_and_is_not_there_is_refused_before_connecting() {
    type Edit = fn(&mut Capabilities);
    let judge = BargeIn::Judged(SpeechJudge::default());
    let words = BargeIn::Judged(SpeechJudge::default().min_words(2));
    let slow = BargeIn::Judged(SpeechJudge::default().min_speech(60 * SECOND));
    let cases: [(BargeIn, Edit, &str); 5] = [
        (judge.clone(), |can| can.session_answers = false, "answers by itself"),
        (judge.clone(), |can| can.cancel_reply = false, "cannot stop"),
        (judge.clone(), |can| can.create_reply = false, "answers by itself"),
        (words, |can| can.input_transcripts = false, "transcripts"),
        (slow, |_| {}, "min_speech"),
    ];
    for (policy, edit, why) in cases {
        let setup = Setup::able(edit).build(|builder| builder.barge_in(policy));
        let (session, provider, config, idle, _) = setup.ready();
        let error = session.start(config, idle).await.unwrap_err();
        assert!(matches!(&error, StartError::InvalidConfig(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(provider.requests().is_empty());
    }
    // Without a sink of the host's nothing can be paused.
    let provider = ScriptedProvider::default();
    let session = AgentSession::builder(std::sync::Arc::new(provider)).barge_in(judge).build();
    let error = session.unwrap().start(Default::default(), IdleConfig::OFF).await.unwrap_err();
    assert!(error.to_string().contains("sink"), "{error}");
    // A provider that stops its replies by itself cannot be kept from it while it hears.
    let rig = start().await;
    let keep = SayOptions::new().protected(UserAudio::Keep);
    assert!(matches!(rig.session.say_with("Hi", keep), Err(SendError::Unsupported(_))));
    rig.session.say_with("Hi", SayOptions::new().protected(UserAudio::Drop)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_by_hand_interrupts_at_once_whatever_is_judged() {
    let setup = judged(|judge| judge).config(|config| config.voice_activity(VoiceActivity::Manual));
    let mut rig = talking(setup, 2_000).await;
    rig.session.activity_start().unwrap();
    assert!(rig.now().await.contains(&EventKind::Interrupted));
    rig.session.activity_end().unwrap();
    let names = names(&rig.commands().await);
    assert!(!names.contains(&"create_reply"), "the provider answers turns by hand: {names:?}");
}

#[tokio::test(start_paused = true)]
async fn each_request_ends_once_and_says_how() {
    let mut rig = start().await;
    let short = SayOptions::new().begin_within(2 * SECOND);
    let late = rig.session.say_with("One", short).unwrap();
    let next = rig.session.say_with("Two", SayOptions::new()).unwrap();
    let last = rig.session.say_with("Three", SayOptions::new()).unwrap();
    tokio::time::sleep(2_100 * MS).await;
    let commands = rig.commands().await;
    let [_, LiveCommand::Say { request, .. }] = &commands[..] else { panic!("{commands:?}") };
    rig.emit(LiveEvent::Error(antiphon::live::ErrorInfo::new("busy", "no").for_request(*request)));
    rig.settle().await;
    rig.session.stop();
    let (events, _) = rig.end().await;
    let ends: Vec<_> = events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::ReplyRequest { request, outcome, .. } => Some((request.unwrap(), *outcome)),
            _ => None,
        })
        .collect();
    assert_eq!(
        ends,
        [(late, RequestEnd::TimedOut), (next, RequestEnd::Refused), (last, RequestEnd::Superseded)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_heard_is_told_by_the_times_of_words_where_the_provider_gives_them() {
    let mut rig = start().await;
    rig.user_says("u1", "Count.").reply("r1").words("r1", "One two three four.");
    let word = |word: &str, ms: u64| antiphon::live::WordTime::new(word, ms as u32 * MS);
    rig.audio("r1", 4_000).emit(LiveEvent::WordTimes {
        reply: "r1".into(),
        item: "r1-item".into(),
        words: vec![word("One", 200), word("two", 400), word("three", 3_000), word("four", 3_900)],
    });
    rig.settle().await;
    rig.speaker.play(1_000 * PER_MS);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    let told = rig.now().await.into_iter().find_map(|kind| match kind {
        EventKind::AgentMessage { text, interrupted: true, .. } => Some(text),
        _ => None,
    });
    // By the share of the audio that was heard it would be one word.
    assert_eq!(told.as_deref(), Some("One two"));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_request_runs_while_it_waits_for_its_turn() {
    let mut rig = start().await;
    rig.user_says("u1", "Hello.").reply("r1").words("r1", "Well").audio("r1", 500);
    rig.settle().await;
    let soon = rig.session.say_with("Soon", SayOptions::new().begin_within(2 * SECOND)).unwrap();
    let patient = rig.session.say_with("Whenever", SayOptions::new()).unwrap();
    rig.now().await;
    tokio::time::sleep(1_900 * MS).await;
    assert!(!rig.now().await.iter().any(|kind| matches!(kind, EventKind::ReplyRequest { .. })));
    tokio::time::sleep(200 * MS).await;
    let ends: Vec<_> = rig.now().await.into_iter().filter_map(request_end).collect();
    assert_eq!(ends, [(soon, RequestEnd::TimedOut)], "nobody wants to hear it any more");
    // Who set no time waits for as long as the reply takes.
    tokio::time::sleep(20 * SECOND).await;
    rig.done("r1");
    let [LiveCommand::Say { request, text }] = &rig.commands().await[..] else { panic!() };
    assert_eq!(text, "Whenever");
    rig.reply_to("r2", *request).settle().await;
    let ends: Vec<_> = rig.now().await.into_iter().filter_map(request_end).collect();
    assert_eq!(ends, [(patient, RequestEnd::Started)]);
}

/// The request of the host that ended, and how.
fn request_end(kind: EventKind) -> Option<(u64, RequestEnd)> {
    match kind {
        EventKind::ReplyRequest { request, outcome, .. } => Some((request?, outcome)),
        _ => None,
    }
}
