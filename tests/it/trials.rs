//! What users of other voice toolkits suffered from, as far as it concerns the core of a session.
//! Each test is named after the kind of fault it shows.

use std::{sync::Arc, time::Duration};

use antiphon::{
    agent::{FuncTool, Outcome, Verdict},
    live::{LiveCommand, LiveError, LiveEvent, ReplyOutcome, TextUpdate},
    session::*,
    types::{JsonObject, ToolCall},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use serde_json::json;

use crate::rig::*;

/// The truncations among commands: item and milliseconds.
fn truncations(commands: &[LiveCommand]) -> Vec<(String, u32)> {
    commands
        .iter()
        .filter_map(|command| match command {
            LiveCommand::Truncate { item, audio_end_ms, .. } => {
                Some((item.to_string(), *audio_end_ms))
            }
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn trial_a02_a_second_text_never_meets_an_active_reply() {
    let mut rig = start().await;
    rig.reply("r1").audio("r1", 100);
    rig.settle().await;
    rig.session.send_text("one").unwrap();
    rig.session.send_text("two").unwrap();
    assert!(rig.commands().await.is_empty());
    rig.done("r1");
    assert_eq!(rig.commands().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_a04_a_reply_that_never_begins_is_an_error_and_the_session_lives_on() {
    let mut rig = start().await;
    rig.session.say("Hello").unwrap();
    rig.session.say("Again").unwrap();
    assert_eq!(rig.commands().await.len(), 1);
    let events = rig.until(|kind| matches!(kind, EventKind::Error { .. })).await;
    assert!(
        matches!(events.last(), Some(EventKind::Error { message, .. }) if message.contains("not begun"))
    );
    assert_eq!(rig.commands().await.len(), 1, "the next one is tried");
}

#[tokio::test(start_paused = true)]
async fn trial_a07_a_new_reply_waits_for_the_end_of_the_cancelled_one() {
    let mut rig = start().await;
    rig.reply("r1").audio("r1", 1_000);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.session.say("New").unwrap();
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["cancel_reply", "truncate"]);
    tokio::time::sleep(300 * MS).await;
    rig.done_as("r1", ReplyOutcome::Cancelled);
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["say"]);
}

#[tokio::test(start_paused = true)]
async fn trial_b01_no_truncation_beyond_what_was_received() {
    for by_voice in [true, false] {
        let mut rig = start().await;
        rig.reply("r1").audio("r1", 500);
        rig.settle().await;
        rig.speaker.play_all();
        tokio::time::sleep(3 * SECOND).await;
        if by_voice {
            rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
        } else {
            rig.session.interrupt().unwrap();
        }
        let cut = truncations(&rig.commands().await);
        assert_eq!(cut, [("r1-item".to_owned(), 500)], "by voice: {by_voice}");
    }
}

#[tokio::test(start_paused = true)]
async fn trial_b03_nothing_is_truncated_before_the_first_frame() {
    let mut rig = start().await;
    rig.reply("r1").words("r1", "Well");
    rig.settle().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    assert!(truncations(&rig.commands().await).is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_b04_and_b07_each_item_is_cut_at_its_own_position() {
    let mut rig = start().await;
    rig.reply("r1");
    for item in ["a", "b", "c"] {
        rig.emit(LiveEvent::Audio {
            reply: "r1".into(),
            item: item.into(),
            content_index: 0,
            frame: antiphon_testkit::tone(24_000, 440.0, 1_000),
        });
    }
    rig.settle().await;
    rig.speaker.play(1_400 * PER_MS);
    rig.session.interrupt().unwrap();
    let cut = truncations(&rig.commands().await);
    assert_eq!(cut, [("b".to_owned(), 400), ("c".to_owned(), 0)]);
    // Late news of the cleared generation changes nothing.
    rig.speaker.play_all();
    assert!(truncations(&rig.commands().await).is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_b06_speech_stops_what_is_only_being_played_any_more() {
    let mut rig = start().await;
    rig.says("r1", "One two three four five six seven eight nine ten.", 10_000);
    rig.settle().await;
    rig.speaker.play(2_500 * PER_MS);
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    let cut = truncations(&rig.commands().await);
    assert_eq!(cut, [("r1-item".to_owned(), 2_500)]);
    assert_eq!(rig.speaker.queued(), 0);
    let messages = agent_messages(&rig.now().await);
    assert_eq!(messages, [("One two".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn trial_b08_and_b11_the_heard_part_is_kept_with_a_flag_and_no_more() {
    let log = Log::default();
    let setup = Setup::new().build(|builder| builder.hooks(LoggingHooks(log.clone())));
    let mut rig = setup.start().await;
    rig.reply("r1");
    for sentence in ["First sentence.", " Second sentence.", " Third one.", " The last."] {
        rig.words("r1", sentence).audio("r1", 1_000);
    }
    rig.done("r1");
    rig.settle().await;
    rig.speaker.play(1_000 * PER_MS);
    rig.session.interrupt().unwrap();
    let events = rig.now().await;
    let message = events.iter().find_map(|kind| match kind {
        EventKind::AgentMessage { text, interrupted: true, generated } => {
            Some((text.clone(), generated.clone().unwrap()))
        }
        _ => None,
    });
    let (text, generated) = message.unwrap();
    assert_eq!(text, "First sentence.");
    assert!(generated.ends_with("The last."));
    assert_eq!(log.count("agent First sentence. true"), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_b09_without_a_position_the_time_tells_what_was_heard() {
    // No sink at all: playout is reckoned by the clock.
    let (sink, _) = antiphon_testkit::Speaker::new(antiphon::audio::AudioFormat::pcm16(24_000), 1);
    drop(sink);
    let provider = antiphon_testkit::ScriptedProvider::default();
    let session = AgentSession::builder(Arc::new(provider.clone())).build().unwrap();
    let mut events = session.events();
    session.start(antiphon::live::LiveConfig::new(), IdleConfig::OFF).await.unwrap();
    let far = provider.far_end().await;
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: None });
    far.emit(LiveEvent::OutputTranscript {
        reply: "r1".into(),
        item: "i".into(),
        text: TextUpdate::Delta("One two three four five six seven eight.".into()),
    });
    far.emit(LiveEvent::Audio {
        reply: "r1".into(),
        item: "i".into(),
        content_index: 0,
        frame: antiphon_testkit::tone(24_000, 440.0, 4_000),
    });
    tokio::time::sleep(2 * SECOND).await;
    session.interrupt().unwrap();
    let messages = agent_messages(&now(&mut events).await);
    assert_eq!(messages, [("One two three four".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn trial_b12_the_next_reply_is_not_cancelled_for_the_last_ones_sake() {
    let mut rig = start().await;
    rig.reply("r1").audio("r1", 1_000);
    rig.settle().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    rig.done_as("r1", ReplyOutcome::Interrupted);
    rig.reply("r2").audio("r2", 100).done("r2");
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["truncate"], "and no cancel at all");
    rig.speaker.play_all();
    assert_eq!(rig.speaker.heard_samples().len(), 100 * PER_MS);
}

#[tokio::test(start_paused = true)]
async fn trial_b14_an_old_interruption_stops_nothing() {
    let mut rig = start().await;
    rig.says("r1", "Old.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.reply("r2").audio("r2", 500);
    rig.now().await;
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    let events = rig.now().await;
    assert!(!events.contains(&EventKind::Interrupted), "{events:?}");
    assert_eq!(rig.speaker.queued(), 500 * PER_MS);
    assert_eq!(rig.session.stats().ignored_events, 1);
}

#[tokio::test(start_paused = true)]
async fn trial_b15_no_sample_of_the_reply_after_an_interruption_is_lost() {
    let rig = start().await;
    rig.reply("r1").audio("r1", 1_000);
    rig.settle().await;
    rig.emit(LiveEvent::Interrupted { reply: None });
    rig.done_as("r1", ReplyOutcome::Interrupted);
    tokio::time::sleep(200 * MS).await;
    rig.says("r2", "New.", 300);
    rig.settle().await;
    rig.speaker.play_all();
    assert_eq!(rig.speaker.heard_samples().len(), 300 * PER_MS);
}

#[tokio::test(start_paused = true)]
async fn trial_b16_late_audio_between_cancel_and_done_is_not_heard() {
    let rig = start().await;
    rig.reply("r1").audio("r1", 100);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.settle().await;
    for _ in 0..5 {
        rig.audio("r1", 20);
    }
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.audio("r1", 20);
    rig.settle().await;
    assert_eq!((rig.speaker.queued(), rig.speaker.play_all()), (0, 0));
    assert_eq!(rig.session.stats().stale_audio_frames, 6);
}

#[tokio::test(start_paused = true)]
async fn trial_c07_speech_within_a_tool_does_not_wake_the_idle_timer() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let setup = Setup::new().idle(Some(15), None).build(|builder| builder.tool(tool));
    let mut rig = setup.start().await;
    rig.calls_tool("r1", "c1", "slow", "{}");
    tokio::time::sleep(5 * SECOND).await;
    rig.says("r2", "One moment.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    tokio::time::sleep(25 * SECOND).await;
    let prompted = rig.now().await.iter().any(|kind| matches!(kind, EventKind::HostPrompt(_)));
    assert!(!prompted);
    latch.release(1);
}

#[tokio::test(start_paused = true)]
async fn trial_c09_line_noise_does_not_put_idle_off_for_ever() {
    let mut rig = Setup::new().idle(Some(15), None).start().await;
    let began = tokio::time::Instant::now();
    for turn in 0..20 {
        rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
        tokio::time::sleep(200 * MS).await;
        rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
        rig.emit(heard(&format!("u{turn}"), TextUpdate::Final(Some(String::new()))));
        tokio::time::sleep(2_800 * MS).await;
        if rig.now().await.iter().any(|kind| matches!(kind, EventKind::HostPrompt(_))) {
            assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
            return;
        }
    }
    panic!("nobody was reminded");
}

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

fn confirming() -> (Setup, antiphon_testkit::ToolLatch) {
    let (tool, latch) = LatchedTool::open("send_money", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| {
        builder.tool(tool).authorize(policy(|call| Verdict::Confirm {
            read_back: format!("Send {} euros?", call.args["amount"]),
        }))
    });
    (setup, latch)
}

/// A call that waits for the user's answer: its read-back has been spoken.
async fn read_back(rig: &mut Rig) {
    read_back_call(rig, r#"{"amount": 5}"#).await;
}

async fn read_back_call(rig: &mut Rig, args: &str) {
    rig.calls_tool("r1", "c1", "send_money", args);
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, text }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(text, "Send 5 euros?");
    rig.reply_to("r2", *request).words("r2", text).audio("r2", 100).done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    rig.settle().await;
}

#[tokio::test(start_paused = true)]
async fn trial_d22_a_confirmed_call_runs_with_what_was_read_back() {
    for by_voice in [true, false] {
        let (setup, latch) = confirming();
        let mut rig = setup.start().await;
        read_back(&mut rig).await;
        assert!(latch.calls().is_empty() && rig.outputs().await.is_empty());
        if by_voice {
            rig.user_says("u1", "Yes, please.");
        } else {
            rig.session.send_text("yes").unwrap();
        }
        let outputs = rig.outputs().await;
        assert_eq!(outputs.len(), 1);
        assert_eq!(latch.calls().len(), 1);
        assert_eq!(json!(latch.calls()[0].1), json!({"amount": 5}));
        assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Success)]);
    }
}

struct Narrows;

impl LifecycleHooks for Narrows {
    fn authorize_tool_call(
        &self,
        _: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        let mut args = call.args.clone();
        args.retain(|name, _| name == "amount");
        Ok(args)
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_a_yes_stands_for_the_words_that_were_read_back() {
    for (hooked, args) in [(false, r#"{"amount": 5}"#), (true, r#"{"amount": 5, "x": 1}"#)] {
        for (second, outcome) in
            [("Send 5 euros?", Outcome::Success), ("Send 500 euros?", Outcome::Denied)]
        {
            let (tool, latch) = LatchedTool::open("send_money", ToolPlan::Succeed);
            // This policy always asks, and perhaps something else the second time.
            let setup = Setup::new().build(|builder| {
                let builder = builder.tool(tool).authorize(
                    move |cx: &antiphon::agent::CallContext, _: &ToolCall| Verdict::Confirm {
                        read_back: if cx.confirmed { second } else { "Send 5 euros?" }.into(),
                    },
                );
                if hooked { builder.hooks(Narrows) } else { builder.hooks(NoHooks) }
            });
            let mut rig = setup.start().await;
            read_back_call(&mut rig, args).await;
            rig.user_says("u1", "Yes.");
            assert_eq!(rig.outputs().await.len(), 1);
            let ends = outcomes(&rig.now().await);
            if outcome == Outcome::Success {
                assert_eq!(ends, [("c1".into(), outcome)]);
                assert_eq!(json!(latch.calls()[0].1), json!({"amount": 5}));
            } else {
                assert!(matches!(ends[0].1, Outcome::Denied | Outcome::NotConfirmed), "{ends:?}");
                assert!(latch.calls().is_empty(), "{second}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_anything_but_a_yes_is_a_no_and_so_is_silence() {
    for answer in [Some("no"), Some("yes but make it fifty"), None] {
        let (setup, latch) = confirming();
        let mut rig = setup.start().await;
        read_back(&mut rig).await;
        match answer {
            Some(words) => {
                rig.user_says("u1", words);
            }
            None => tokio::time::sleep(61 * SECOND).await,
        }
        assert_eq!(rig.outputs().await.len(), 1, "{answer:?}");
        assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::NotConfirmed)]);
        assert!(latch.calls().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_words_from_before_the_read_back_decide_nothing() {
    let (setup, latch) = confirming();
    let mut rig = setup.start().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.settle().await;
    rig.calls_tool("r1", "c1", "send_money", r#"{"amount": 5}"#);
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, .. }] = &commands[..] else { panic!("{commands:?}") };
    rig.reply_to("r2", *request).audio("r2", 100);
    // The transcript of what the user said before comes late.
    rig.emit(heard("u0", TextUpdate::Final(Some("yes".into()))));
    rig.settle().await;
    assert!(latch.calls().is_empty() && rig.outputs().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_d23_two_calls_are_read_back_one_after_the_other() {
    let (setup, latch) = confirming();
    let mut rig = setup.start().await;
    let two = [("a", "send_money", r#"{"amount":1}"#), ("b", "send_money", r#"{"amount":2}"#)];
    rig.reply("r1").calls("r1", &two).done("r1");
    for (index, answer) in ["yes", "no"].into_iter().enumerate() {
        let commands = rig.commands().await;
        let says: Vec<_> = commands
            .iter()
            .filter_map(|command| match command {
                LiveCommand::Say { request, text } => Some((*request, text.clone())),
                _ => None,
            })
            .collect();
        let [(request, text)] = &says[..] else { panic!("{commands:?}") };
        assert_eq!(*text, format!("Send {} euros?", index + 1));
        let reply = format!("s{index}");
        rig.reply_to(&reply, *request).audio(&reply, 50).done(&reply);
        rig.settle().await;
        rig.speaker.play_all();
        rig.user_says(&format!("u{index}"), answer);
    }
    rig.settle().await;
    let outcomes = outcomes(&rig.now().await);
    assert_eq!(outcomes, [("a".into(), Outcome::Success), ("b".into(), Outcome::NotConfirmed)]);
    assert_eq!(latch.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_d26_a_parked_call_ends_with_its_session() {
    let (setup, _) = confirming();
    let mut rig = setup.start().await;
    read_back(&mut rig).await;
    rig.far.close(4000, "gone");
    let (events, _) = rig.end().await;
    assert_eq!(outcomes(&events).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_e09_a_drop_during_a_reply_leaves_nobody_waiting() {
    let mut rig = start().await;
    rig.user_says("u1", "Tell me").reply("r1").words("r1", "Once upon").audio("r1", 200);
    rig.settle().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.settle().await;
    rig.speaker.play_all();
    let far = rig.provider.far_end().await;
    rig.far = far;
    let events = rig.now().await;
    assert_eq!(agent_messages(&events), [("Once upon".into(), true)]);
    assert_eq!(rig.session.state(), SessionState::Listening);
}

#[tokio::test(start_paused = true)]
async fn trial_e10_a_clean_close_ends_the_stream() {
    let mut rig = start().await;
    rig.far.close(1000, "");
    let (_, reason) = rig.end().await;
    assert_eq!(reason, EndReason::ProviderClosed { code: 1000, reason: String::new() });
    assert!(rig.events.next().await.is_none());
    assert!(rig.events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn trial_e14_the_users_audio_goes_to_the_new_connection() {
    let mut rig = start().await;
    rig.emit(LiveEvent::GoingAway { time_left: None });
    rig.settle().await;
    rig.far = rig.provider.far_end().await;
    for _ in 0..10 {
        rig.session.send_audio(antiphon_testkit::voice_like(16_000, 20)).unwrap();
    }
    rig.settle().await;
    assert_eq!(rig.far.drain().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn trial_f08_a_wire_that_takes_nothing_does_not_hold_up_the_agent() {
    let rig = start().await;
    rig.far.stall(true);
    for _ in 0..450 {
        rig.session.send_audio(antiphon_testkit::voice_like(16_000, 20)).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    rig.says("r1", "Hello.", 100);
    rig.settle().await;
    assert_eq!(rig.speaker.queued(), 100 * PER_MS);
    rig.far.stall(false);
}

#[tokio::test(start_paused = true)]
async fn trial_h02_a_transcript_after_the_reply_belongs_to_its_turn() {
    let mut rig = start().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    rig.says("r1", "It is noon.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
    tokio::time::sleep(2 * SECOND).await;
    rig.emit(heard("u1", TextUpdate::Final(Some("What time is it?".into()))));
    let mut turn = None;
    for _ in 0..2 {
        let event = rig.events.next().await.unwrap();
        turn = matches!(event.kind, EventKind::UserMessage { .. }).then_some(event.turn);
    }
    assert_eq!(turn, Some(1));
    assert_eq!(rig.session.stats().turns, 1);
    assert_eq!(rig.session.state(), SessionState::Listening, "nothing is waited for");
}

#[tokio::test(start_paused = true)]
async fn trial_d17_an_output_that_is_too_large_is_an_error() {
    let flood = FuncTool::new("flood", "too much", None, |_, _| async {
        Ok(JsonObject::from_iter([("text".to_owned(), json!("x".repeat(200_000)))]))
    });
    let mut rig = Setup::new().build(|builder| builder.tool(flood)).start().await;
    rig.calls_tool("r1", "c1", "flood", "{}");
    let outputs = rig.outputs().await;
    assert!(outputs[0].response.contains_key("error"));
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::OutputTooLarge)]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_endless_audio_is_cancelled_at_the_bound() {
    let mut limits = SessionLimits::default();
    limits.reply_audio = Duration::from_secs(5);
    let mut rig = Setup::new().build(|builder| builder.limits(limits)).start().await;
    rig.reply("r1");
    for _ in 0..20 {
        rig.audio("r1", 1_000);
    }
    let names: Vec<_> = rig.commands().await.iter().map(LiveCommand::name).collect();
    assert_eq!(names, ["cancel_reply"]);
    assert_eq!(rig.speaker.queued(), 5_000 * PER_MS, "what is queued is still heard");
    rig.done_as("r1", ReplyOutcome::Cancelled);
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(|kind| *kind == EventKind::PlaybackFinished).await;
}
