//! Guards over words: nothing that is denied is heard, and no tool acts on what the user may not say.

use std::{sync::Arc, thread, time::Duration};

use antiphon::{
    agent::Outcome,
    audio::{AudioFormat, AudioFrame, ClockedSink},
    live::{LiveCommand, LiveEvent, OutputWords, ReplyOutcome, TextUpdate},
    policy::guards::{PersonalData, Phrases},
    session::{recording::replay, *},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use proptest::prelude::*;
use tokio::sync::Semaphore;

use crate::rig::*;

/// How long a character is spoken: ordinary speech.
const PER_CHARACTER: usize = 60;
/// The samples of words that must not be heard.
const DENIED: i16 = 99;

fn guard() -> Phrases {
    Phrases::new(["the launch code", "swordfish"])
}

fn guarded(words: OutputWords, guard: OutputGuard) -> Setup {
    Setup::able(|can| can.output_words = words).build(|builder| builder.output_guard(guard))
}

/// A word of a reply, before it is spoken.
fn tell(rig: &Rig, word: &str) {
    rig.words("r1", &format!("{word} "));
}

/// The same, spoken.
fn speak(rig: &Rig, word: &str, sample: i16) {
    let samples = word.chars().count() * PER_CHARACTER * PER_MS;
    rig.emit(LiveEvent::Audio {
        reply: "r1".into(),
        item: "r1-item".into(),
        content_index: 0,
        frame: AudioFrame::from_pcm16(24_000, &vec![sample; samples]),
    });
}

/// Somebody listens for so long who hears at once whatever is handed over.
async fn listen(rig: &Rig, ms: u64) {
    for _ in 0..ms / 10 {
        tokio::time::sleep(10 * MS).await;
        rig.speaker.play_all();
    }
}

/// What was heard, without repetitions.
fn heard_words(rig: &Rig) -> Vec<i16> {
    let mut heard = rig.speaker.heard_samples();
    heard.dedup();
    heard
}

fn transcripts(events: &[EventKind]) -> Vec<&str> {
    let text = |kind: &'_ EventKind| match kind {
        EventKind::AgentTranscript { .. } => true,
        _ => matches!(kind, EventKind::AgentText { .. }),
    };
    let all = events.iter().filter(|kind| text(kind));
    all.map(|kind| match kind {
        EventKind::AgentTranscript { text, .. } | EventKind::AgentText { text, .. } => &**text,
        _ => "",
    })
    .collect()
}

fn denials(events: &[EventKind]) -> usize {
    events.iter().filter(|kind| matches!(kind, EventKind::ReplyDenied { .. })).count()
}

#[tokio::test(start_paused = true)]
async fn of_a_denied_phrase_nothing_is_heard_and_something_safe_is_said_instead() {
    let output = OutputGuard::new(guard()).instead("I cannot tell you that.");
    let mut rig = guarded(OutputWords::Before, output).start().await;
    rig.user_says("u1", "What is it?").reply("r1");
    for (at, word) in ["I", "know", "it,", "it", "is"].iter().enumerate() {
        tell(&rig, word);
        speak(&rig, word, at as i16 + 1);
        listen(&rig, 400).await;
    }
    tell(&rig, "swordfish.");
    speak(&rig, "swordfish.", DENIED);
    listen(&rig, 1_000).await;
    assert_eq!(heard_words(&rig), [1, 2, 3, 4, 5]);
    let commands = rig.commands().await;
    let names: Vec<_> = commands.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["cancel_reply", "truncate"]);
    let LiveCommand::Truncate { heard_text, .. } = &commands[1] else { panic!("{commands:?}") };
    assert_eq!(heard_text.as_deref(), Some("I know it, it is"), "the provider forgets the rest");
    rig.done_as("r1", ReplyOutcome::Cancelled);
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, text }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(text, "I cannot tell you that.");
    rig.reply_to("r2", *request).words("r2", text).audio("r2", 1_500).done("r2");
    listen(&rig, 500).await;
    assert_eq!(heard_words(&rig), [1, 2, 3, 4, 5, 7]);
    let events = rig.until(is_turn_finished).await;
    let told = [("I know it, it is".to_owned(), true), (text.clone(), false)];
    assert_eq!(agent_messages(&events), told);
    assert!(transcripts(&events).iter().all(|text| !text.contains("swordfish")), "{events:#?}");
    let EventKind::ReplyDenied { reason, instead } =
        events.iter().find(|kind| matches!(kind, EventKind::ReplyDenied { .. })).unwrap()
    else {
        unreachable!()
    };
    assert_eq!(reason, "the denied phrase 2");
    assert_eq!(instead.as_deref(), Some("I cannot tell you that."));
    let said = serde_json::to_string(&events.iter().collect::<Vec<_>>()).unwrap();
    assert!(!said.contains("swordfish"), "no event has it: {said}");
    assert_eq!(rig.session.stats().denied_replies, 1);
}

#[tokio::test(start_paused = true)]
async fn the_first_words_of_a_phrase_wait_for_its_last_however_late_that_is() {
    let output = OutputGuard::new(guard());
    for (last, heard) in [("code.", vec![1, 2]), ("pad.", vec![1, 2, DENIED])] {
        let mut rig = guarded(OutputWords::Before, output.clone()).start().await;
        rig.reply("r1");
        for (word, sample) in [("I", 1), ("know", 2), ("the", DENIED), ("launch", DENIED)] {
            tell(&rig, word);
            speak(&rig, word, sample);
        }
        listen(&rig, 5_000).await;
        assert_eq!(heard_words(&rig), [1, 2], "what comes next is not known");
        assert_eq!(transcripts(&rig.now().await).last(), Some(&"I know "));
        tell(&rig, last);
        speak(&rig, last, DENIED);
        rig.done("r1");
        listen(&rig, 1_000).await;
        assert_eq!(heard_words(&rig), heard, "{last}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_heard_once_it_was_held_back_and_none_of_it_is_lost() {
    let output = OutputGuard::new(guard()).hold_back(Duration::from_millis(300));
    let mut rig = guarded(OutputWords::Before, output).start().await;
    rig.reply("r1");
    tell(&rig, "Good");
    speak(&rig, "Good", 1);
    listen(&rig, 280).await;
    assert!(heard_words(&rig).is_empty());
    listen(&rig, 40).await;
    assert_eq!(heard_words(&rig), [1]);
    tell(&rig, "morning.");
    speak(&rig, "morning.", 2);
    rig.settle().await;
    // Of a reply that is over all words are known: nothing waits for its time.
    rig.done("r1");
    listen(&rig, 20).await;
    assert_eq!(heard_words(&rig), [1, 2]);
    let all = "Goodmorning.".len() * PER_CHARACTER * PER_MS;
    assert_eq!(rig.speaker.heard_samples().len(), all);
    let events = rig.until(|kind| *kind == EventKind::PlaybackFinished).await;
    assert_eq!(agent_messages(&events), [("Good morning.".to_owned(), false)]);
    assert_eq!(transcripts(&events).last(), Some(&"Good morning. "));
}

#[tokio::test(start_paused = true)]
async fn words_that_come_after_their_audio_hold_release_or_deny_it_as_the_host_says() {
    for (setting, heard) in [
        (WithoutTranscript::Hold, vec![]),
        (WithoutTranscript::Release, vec![1, 2]),
        (WithoutTranscript::Deny, vec![]),
    ] {
        let output = OutputGuard::new(guard()).without_transcript(setting);
        let mut rig = guarded(OutputWords::Beside, output).start().await;
        rig.reply("r1");
        speak(&rig, "Hello", 1);
        speak(&rig, "there", 2);
        listen(&rig, 1_000).await;
        assert_eq!(heard_words(&rig), heard, "{setting:?}");
        let denied = usize::from(setting == WithoutTranscript::Deny);
        assert_eq!(denials(&rig.now().await), denied, "{setting:?}");
        if denied == 0 {
            tell(&rig, "Hello");
            tell(&rig, "there.");
            rig.done("r1");
            listen(&rig, 1_000).await;
            assert_eq!(heard_words(&rig), [1, 2], "{setting:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_which_no_words_come_is_denied_when_it_is_over() {
    for (words, setting, denied) in [
        (OutputWords::Before, WithoutTranscript::Hold, 1),
        (OutputWords::Beside, WithoutTranscript::Hold, 1),
        (OutputWords::Beside, WithoutTranscript::Release, 0),
    ] {
        let output = OutputGuard::new(guard()).without_transcript(setting);
        let mut rig = guarded(words, output).start().await;
        rig.reply("r1");
        speak(&rig, "Hello", DENIED);
        rig.done("r1");
        listen(&rig, 500).await;
        assert_eq!(denials(&rig.now().await), denied);
        let heard = heard_words(&rig);
        assert_eq!(heard.is_empty(), denied == 1, "{words:?} {setting:?} {heard:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_needs_words_and_starting_says_so() {
    let output = OutputGuard::new(guard());
    let setup = guarded(OutputWords::None, output.clone());
    let (session, _, config, idle, _) = setup.ready();
    let refused = session.start(config, idle).await.unwrap_err();
    assert!(refused.to_string().contains("agent's words"), "{refused}");
    let output = output.without_transcript(WithoutTranscript::Release);
    guarded(OutputWords::None, output).start().await;
    let input = InputGuard::new(guard());
    let deaf = || Setup::able(|can| can.input_transcripts = false);
    let setup = deaf().build(|builder| builder.input_guard(input.clone()));
    let (session, _, config, idle, _) = setup.ready();
    let refused = session.start(config, idle).await.unwrap_err();
    assert!(refused.to_string().contains("user's words"), "{refused}");
    let input = input.run_without_transcript();
    deaf().build(|builder| builder.input_guard(input)).start().await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_or_is_late_denies_and_does_not_hold_up_the_session() {
    let panics = OutputGuard::new(|_: &Words<'_>| -> GuardVerdict { panic!("no guard") });
    let mut rig = guarded(OutputWords::Before, panics).start().await;
    rig.reply("r1");
    tell(&rig, "Hello");
    speak(&rig, "Hello", DENIED);
    listen(&rig, 500).await;
    let events = rig.now().await;
    let reason = "the guard panicked".to_owned();
    assert!(
        events.iter().any(
            |kind| matches!(kind, EventKind::ReplyDenied { reason: why, .. } if *why == reason)
        )
    );
    assert!(heard_words(&rig).is_empty());

    let latch = Arc::new(Semaphore::new(0));
    let theirs = latch.clone();
    let late = OutputGuard::new(move |_: &Words<'_>| {
        while theirs.try_acquire().is_err() {
            thread::yield_now();
        }
        GuardVerdict::Pass
    });
    let mut rig = guarded(OutputWords::Before, late).start().await;
    rig.reply("r1");
    tell(&rig, "Hello");
    speak(&rig, "Hello", DENIED);
    // The clock of a runtime whose threads are at work stands still.
    for _ in 0..100 {
        tokio::time::advance(10 * MS).await;
        tokio::task::yield_now().await;
        rig.speaker.play_all();
    }
    latch.add_permits(100);
    let events = rig.now().await;
    assert!(events.iter().any(
        |kind| matches!(kind, EventKind::ReplyDenied { reason, .. } if reason.contains("500 ms"))
    ));
    assert!(heard_words(&rig).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_held_back_is_not_heard_once_the_user_interrupts() {
    let mut rig = guarded(OutputWords::Before, OutputGuard::new(guard())).start().await;
    rig.reply("r1");
    tell(&rig, "Good");
    speak(&rig, "Good", DENIED);
    rig.done("r1");
    // All of it is known now, but the guard has not answered.
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    listen(&rig, 1_000).await;
    assert!(rig.speaker.heard_samples().len() <= 4 * PER_CHARACTER * PER_MS);
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    // The next reply is heard as ever.
    rig.emit(heard("u1", TextUpdate::Final(Some("Stop".into()))));
    rig.says("r2", "All right.", 600);
    listen(&rig, 1_000).await;
    assert_eq!(heard_words(&rig).last(), Some(&7));
    rig.until(is_turn_finished).await;
}

#[tokio::test(start_paused = true)]
async fn host_audio_comes_after_what_is_held_back() {
    let rig = guarded(OutputWords::Before, OutputGuard::new(guard())).start().await;
    rig.reply("r1");
    tell(&rig, "Well, the");
    speak(&rig, "Well, the", 1);
    rig.settle().await;
    rig.done("r1");
    rig.session.play(AudioFrame::from_pcm16(24_000, &[5; 240])).unwrap();
    listen(&rig, 1_000).await;
    assert_eq!(heard_words(&rig), [1, 5]);
    assert_eq!(rig.speaker.stale_writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_said_instead_is_not_replaced_again() {
    let output = OutputGuard::new(guard()).instead("Not the swordfish.");
    let mut rig = guarded(OutputWords::Before, output).start().await;
    rig.user_says("u1", "What?").says("r1", "It is swordfish.", 900);
    rig.settle().await;
    let commands = rig.commands().await;
    let said = commands.iter().find_map(|command| match command {
        LiveCommand::Say { request, .. } => Some(*request),
        _ => None,
    });
    rig.reply_to("r2", said.unwrap()).words("r2", "Not the swordfish.").audio("r2", 900).done("r2");
    listen(&rig, 1_000).await;
    let events = rig.until(is_turn_finished).await;
    assert_eq!(denials(&events), 2);
    assert!(heard_words(&rig).is_empty());
    let commands = rig.commands().await;
    assert!(!commands.iter().any(|command| command.name() == "say"), "{commands:?}");
}

#[tokio::test(start_paused = true)]
async fn a_card_is_not_read_out_digit_by_digit() {
    let mut rig =
        guarded(OutputWords::Before, OutputGuard::new(PersonalData::default())).start().await;
    rig.reply("r1");
    for (at, word) in ["Your", "card", "is"].iter().enumerate() {
        tell(&rig, word);
        speak(&rig, word, at as i16 + 1);
        listen(&rig, 400).await;
    }
    for group in ["4111", "1111", "1111", "1111."] {
        tell(&rig, group);
        speak(&rig, group, DENIED);
        listen(&rig, 2_000).await;
    }
    assert_eq!(heard_words(&rig), [1, 2, 3]);
    let events = rig.now().await;
    assert_eq!(denials(&events), 1);
    assert!(!serde_json::to_string(&events).unwrap().contains("4111"));
}

#[tokio::test(start_paused = true)]
async fn a_guarded_session_runs_again_from_its_recording() {
    let dir = tempfile::tempdir().unwrap();
    let sink = ClockedSink::new(AudioFormat::pcm16(24_000));
    let setup = guarded(OutputWords::Before, OutputGuard::new(guard()));
    let setup = setup.build(|builder| builder.sink(sink));
    let (session, provider, config, idle, speaker) = setup.ready();
    session.record(dir.path());
    let events = session.events();
    session.start(config, idle).await.unwrap();
    let far = provider.far_end().await;
    let mut rig = Rig { provider, session, far, speaker, events };
    rig.user_says("u1", "What?").says("r1", "It is fine.", 900);
    rig.until(is_turn_finished).await;
    rig.user_says("u2", "What?").says("r2", "It is swordfish.", 900);
    rig.until(|kind| matches!(kind, EventKind::ReplyDenied { .. })).await;
    rig.session.shutdown(SECOND).await.unwrap();
    let file = std::fs::File::open(rig.session.recording_file().unwrap()).unwrap();
    let replayed = replay(std::io::BufReader::new(file)).unwrap();
    assert_eq!(replayed.difference, None, "{replayed}");
}

#[tokio::test(start_paused = true)]
async fn words_that_are_corrected_are_judged_anew() {
    let mut rig = guarded(OutputWords::Before, OutputGuard::new(guard())).start().await;
    rig.reply("r1");
    tell(&rig, "I know");
    speak(&rig, "I know", 1);
    tell(&rig, "all of it");
    listen(&rig, 1_000).await;
    assert_eq!(transcripts(&rig.now().await).last(), Some(&"I know all of it "));
    let corrected = |text: TextUpdate| {
        rig.emit(LiveEvent::OutputTranscript { reply: "r1".into(), item: "r1-item".into(), text });
    };
    corrected(TextUpdate::Snapshot("I know the launch ".into()));
    speak(&rig, "the launch", DENIED);
    listen(&rig, 2_000).await;
    assert_eq!(heard_words(&rig), [1], "what passed before were other words");
    corrected(TextUpdate::Final(Some("I know the launch pad.".into())));
    rig.done("r1");
    listen(&rig, 1_000).await;
    assert_eq!(heard_words(&rig), [1, DENIED]);
    let events = rig.now().await;
    let told = EventKind::AgentTranscript { text: "I know the launch pad.".into(), done: true };
    assert!(events.contains(&told), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn audio_before_any_words_waits_where_words_come_first() {
    let rig = guarded(OutputWords::Before, OutputGuard::new(guard())).start().await;
    rig.reply("r1");
    speak(&rig, "Hello", 1);
    listen(&rig, 1_000).await;
    assert!(heard_words(&rig).is_empty());
    tell(&rig, "Hello.");
    listen(&rig, 500).await;
    assert_eq!(heard_words(&rig), [1]);
}

#[tokio::test(start_paused = true)]
async fn words_that_may_become_a_phrase_are_waited_for_even_where_audio_is_released_without() {
    let output = OutputGuard::new(guard()).without_transcript(WithoutTranscript::Release);
    let mut rig = guarded(OutputWords::Beside, output).start().await;
    rig.reply("r1");
    tell(&rig, "the launch");
    rig.settle().await;
    speak(&rig, "the launch", DENIED);
    listen(&rig, 2_000).await;
    assert!(heard_words(&rig).is_empty(), "its words have come, and are not clear");
    tell(&rig, "code.");
    listen(&rig, 1_000).await;
    assert_eq!((heard_words(&rig), denials(&rig.now().await)), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_told_that_no_more_words_come_and_holds_none_then() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = asked.clone();
    let holds = OutputGuard::new(move |words: &Words<'_>| {
        seen.lock().unwrap().push((words.text.to_owned(), words.complete));
        GuardVerdict::Hold { from: 0 }
    });
    let rig = guarded(OutputWords::Before, holds).start().await;
    rig.reply("r1");
    tell(&rig, "Good");
    speak(&rig, "Good", 1);
    listen(&rig, 1_000).await;
    assert!(heard_words(&rig).is_empty());
    rig.done("r1");
    listen(&rig, 500).await;
    assert_eq!(heard_words(&rig), [1]);
    let asked = asked.lock().unwrap();
    assert_eq!(asked.first().unwrap(), &("Good ".to_owned(), false));
    assert_eq!(asked.last().unwrap(), &("Good ".to_owned(), true));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_denied_calls_no_tool_and_the_provider_forgets_its_words() {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let setup = guarded(OutputWords::Before, OutputGuard::new(guard()));
    let mut rig = setup.build(|it| it.tool(tool)).start().await;
    // It is denied before anything of it was spoken.
    rig.user_says("u1", "Pay.").reply("r1").calls("r1", &[("c1", "pay", "{}")]);
    tell(&rig, "It is swordfish.");
    rig.settle().await;
    let commands = rig.commands().await;
    let cut = commands.iter().find_map(|command| match command {
        LiveCommand::Truncate { audio_end_ms, heard_text, .. } => {
            Some((*audio_end_ms, heard_text.clone()))
        }
        _ => None,
    });
    assert_eq!(cut, Some((0, Some(String::new()))), "{commands:?}");
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.settle().await;
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Interrupted)]);
    assert!(latch.calls().is_empty());
}

/// One tool that must never run, and the policy asked first.
fn armed(input: InputGuard) -> (Setup, antiphon_testkit::ToolLatch) {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    (Setup::new().build(|builder| builder.tool(tool).input_guard(input)), latch)
}

#[tokio::test(start_paused = true)]
async fn no_tool_acts_on_words_that_are_denied() {
    let (setup, latch) = armed(InputGuard::new(guard()).notice("Not that."));
    let mut rig = setup.start().await;
    rig.user_says("u1", "Use the launch code").calls_tool("r1", "c1", "pay", "{}");
    rig.settle().await;
    let events = rig.now().await;
    assert_eq!(outcomes(&events), [("c1".into(), Outcome::Denied)]);
    let why = |kind: &EventKind| matches!(kind, EventKind::WordsDenied { reason } if reason == "the denied phrase 1");
    assert!(events.iter().any(why), "{events:#?}");
    let outputs = rig.outputs().await;
    assert_eq!(outputs[0].response["error"], "Not that.");
    // Nor does another call of the same turn.
    rig.calls_tool("r2", "c2", "pay", "{}");
    assert_eq!(rig.outputs().await.len(), 1);
    assert!(latch.calls().is_empty());
    // The next turn is another matter.
    rig.user_says("u2", "Pay the bill").calls_tool("r3", "c3", "pay", "{}");
    rig.settle().await;
    assert_eq!(latch.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_words_that_come_late_and_is_refused_where_they_do_not() {
    for (words, runs) in
        [(Some("Pay the bill"), true), (Some("Give me the launch code"), false), (None, false)]
    {
        let (setup, latch) = armed(InputGuard::new(guard()));
        let mut rig = setup.start().await;
        // The model answers speech whose words are not known yet.
        rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
        rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
        rig.calls_tool("r1", "c1", "pay", "{}");
        tokio::time::sleep(1_500 * MS).await;
        assert!(latch.calls().is_empty(), "it waits for the words");
        assert!(rig.outputs().await.is_empty());
        if let Some(words) = words {
            rig.emit(heard("u1", TextUpdate::Final(Some(words.into()))));
            rig.settle().await;
        } else {
            tokio::time::sleep(SECOND).await;
        }
        assert_eq!(latch.calls().len(), usize::from(runs), "{words:?}");
        assert_eq!(rig.outputs().await.len(), 1, "one output, always");
    }
    // The host may take that risk.
    let (setup, latch) = armed(InputGuard::new(guard()).run_without_transcript());
    let rig = setup.start().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    rig.calls_tool("r1", "c1", "pay", "{}");
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(latch.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_is_denied_confirms_nothing() {
    // It is the voice of somebody else, say.
    let not_yes = InputGuard::new(|words: &Words<'_>| match words.text.contains("Yes") {
        true => GuardVerdict::Deny(GuardDenial::new("another voice")),
        false => GuardVerdict::Pass,
    });
    for by_voice in [true, false] {
        let (setup, latch) = armed(not_yes.clone());
        let confirm =
            policy(|_| antiphon::agent::Verdict::Confirm { read_back: "Shall I pay?".into() });
        let mut rig = setup.build(|it| it.authorize(confirm)).start().await;
        rig.user_says("u1", "Pay the bill").calls_tool("r1", "c1", "pay", "{}");
        rig.until(|kind| matches!(kind, EventKind::ToolConfirm { .. })).await;
        rig.settle().await;
        rig.reply_to("r2", 1).words("r2", "Shall I pay?").audio("r2", 100).done("r2");
        listen(&rig, 200).await;
        match by_voice {
            true => drop(rig.user_says("u2", "Yes.")),
            false => rig.session.send_text("Yes").unwrap(),
        }
        rig.settle().await;
        rig.settle().await;
        assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Denied)], "{by_voice}");
        assert!(latch.calls().is_empty());
        assert_eq!(rig.outputs().await.len(), 1, "one output, always");
    }
}

#[tokio::test(start_paused = true)]
async fn typed_words_are_judged_too_and_a_guard_that_panics_denies() {
    let (setup, latch) = armed(InputGuard::new(|_: &Words<'_>| -> GuardVerdict { panic!("no") }));
    let mut rig = setup.start().await;
    rig.session.send_text("Pay the bill").unwrap();
    rig.settle().await;
    rig.calls_tool("r1", "c1", "pay", "{}");
    rig.settle().await;
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Denied)]);
    assert!(latch.calls().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// However words and audio come, in whatever pieces and pauses: of a denied phrase nothing is heard
    /// by somebody who hears at once what is handed over, and all is heard where nothing is denied.
    #[test]
    fn whatever_the_order_nothing_denied_is_heard(
        before in 0usize..4,
        denied in any::<bool>(),
        in_step in any::<bool>(),
        lag in 0usize..4,
        pauses in prop::collection::vec(0u64..900, 12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let how = if in_step { OutputWords::Before } else { OutputWords::Beside };
            let mut rig = guarded(how, OutputGuard::new(guard())).start().await;
            rig.reply("r1");
            let mut words = vec!["well"; before];
            words.extend(["tell", "the", "launch", if denied { "code" } else { "team" }, "now"]);
            let is_denied = |at: usize| denied && (before + 1..before + 4).contains(&at);
            // Words run ahead where the provider is in step, and behind where it is not.
            let (mut told, mut spoken) = (0, 0);
            let mut step = 0;
            while told < words.len() || spoken < words.len() {
                let ahead = if in_step { spoken + lag } else { spoken.saturating_sub(lag) };
                while told < words.len() && (told <= ahead && (in_step || told < spoken) || spoken == words.len()) {
                    tell(&rig, words[told]);
                    told += 1;
                }
                if spoken < words.len() {
                    speak(&rig, words[spoken], if is_denied(spoken) { DENIED } else { spoken as i16 + 1 });
                    spoken += 1;
                }
                listen(&rig, pauses[step % pauses.len()]).await;
                step += 1;
            }
            rig.done("r1");
            listen(&rig, 1_500).await;
            let heard = heard_words(&rig);
            assert!(!heard.contains(&DENIED), "{heard:?} {words:?}");
            if denied {
                assert_eq!(denials(&rig.now().await), 1);
            } else {
                let all: Vec<_> = (1..=words.len() as i16).collect();
                assert_eq!(heard, all);
            }
        });
    }
}
