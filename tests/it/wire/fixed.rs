//! F1 to F18, over the wire: what is said, heard and called. The rest is in `lifetime`.

use antiphon::{
    agent::{FuncTool, Outcome},
    live::VoiceActivity,
    session::*,
    types::{JsonObject, ToolResponse, ToolResponseScheduling},
};
use antiphon_testkit::{
    LatchedTool, ToolPlan,
    openai::{Fault, Pace, Reply, Rule, Script, Side, Step},
    tone, voice_like,
};
use serde_json::{Value, json};

use super::rig::*;
use crate::rig::{Log, LoggingHooks, MS, SECOND, agent_messages, outcomes, user_messages};

/// Long enough to be interrupted: three seconds, as fast as they are spoken.
fn story() -> Script {
    Script::auto()
        .pace(Pace::real_time())
        .reply(Rule::on_text(
            "story",
            Reply::spoken("One two three four five six seven eight nine ten.", 3_000),
        ))
        .reply(Rule::always(Reply::spoken("Yes?", 400)))
}

#[tokio::test(start_paused = true)]
async fn f01_over_the_wire_a_final_text_replaces_its_pieces() {
    let mut wire = start(exactly([
        heard("u1", "Hal"),
        all_heard("u1", "Hallo"),
        begins("r1"),
        words("r1", "Gu"),
        voice("r1", 100),
        all_words("r1", "Guten Tag"),
        done("r1"),
    ]))
    .await;
    let events = wire.hear().await;
    assert_eq!(user_messages(&events), ["Hallo"]);
    assert_eq!(agent_messages(&events), [("Guten Tag".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn f02_over_the_wire_an_interrupted_reply_is_cut_where_it_was_heard() {
    let mut wire = start(story().transcript("Wait!")).await;
    wire.session.send_text("Tell me a story.").unwrap();
    wire.until_speaking().await;
    wire.pass(1_500 * MS).await;
    wire.speaker.play(500 * 24);
    wire.speak(400).await;
    let events = wire.hear().await;
    let cut = &wire.sent("conversation.item.truncate")[0];
    assert_eq!((&cut["content_index"], &cut["audio_end_ms"]), (&json!(0), &json!(500)));
    assert_eq!(cut["item_id"], wire.told("response.output_audio.delta")[0]["item_id"]);
    assert_eq!(wire.told("conversation.item.truncated").len(), 1, "the server took it");
    assert_eq!(wire.sent("response.cancel"), Vec::<Value>::new(), "it stops by itself");
    let messages = agent_messages(&events);
    let (told, interrupted) = &messages[0];
    assert!(*interrupted && told.starts_with("One"), "{messages:?}");
    assert!(!told.contains("four"), "half a second of three: {messages:?}");
    assert_eq!(messages[1], ("Yes?".into(), false), "nothing is left for the next message");
    assert_eq!(user_messages(&events), ["Wait!"], "{events:#?}");
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f02_over_the_wire_the_host_interrupts_and_the_server_is_told() {
    let mut wire = start(story()).await;
    wire.session.send_text("Tell me a story.").unwrap();
    wire.until_speaking().await;
    wire.pass(1_500 * MS).await;
    wire.speaker.play(700 * 24);
    wire.session.interrupt().unwrap();
    wire.settle().await;
    let reply = wire.told("response.created")[0]["response"]["id"].clone();
    assert_eq!(wire.sent("response.cancel")[0]["response_id"], reply);
    assert_eq!(wire.sent("conversation.item.truncate")[0]["audio_end_ms"], 700);
    let queued = wire.speaker.queued();
    wire.pass(SECOND).await;
    assert_eq!((queued, wire.speaker.queued()), (0, 0), "nothing more is heard");
    assert_eq!(wire.told("response.done")[0]["response"]["status"], "cancelled");
    wire.assert_alive().await;
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f02_over_the_wire_a_reply_that_is_whole_is_cut_while_it_plays() {
    let script = Script::auto()
        .transcript("Wait!")
        .reply(Rule::on_text("story", Reply::spoken("One two three four five six.", 2_000)))
        .reply(Rule::always(Reply::spoken("Yes?", 400)));
    let mut wire = start(script).await;
    wire.session.send_text("Tell me a story.").unwrap();
    wire.until_speaking().await;
    wire.pass(SECOND).await;
    assert_eq!(wire.told("response.done").len(), 1);
    wire.speaker.play(1_000 * 24);
    wire.speak(400).await;
    let events = wire.hear().await;
    assert_eq!(wire.sent("conversation.item.truncate")[0]["audio_end_ms"], 1_000);
    assert!(agent_messages(&events)[0].1, "{events:#?}");
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f02_over_the_wire_words_that_never_become_final_are_told() {
    let completed = "conversation.item.input_audio_transcription.completed";
    let script = Script::auto()
        .transcript("never quite final")
        .fault(Fault::instead_of(completed, []))
        .fault(Fault::instead_of("response.output_audio_transcript.done", []))
        .reply(Rule::always(Reply::spoken("So it is.", 200)));
    let mut wire = start(script).await;
    wire.speak(400).await;
    let mut events = wire.hear().await;
    wire.pass(4 * SECOND).await;
    events.extend(wire.now().await);
    assert_eq!(user_messages(&events), ["never quite final"]);
    assert_eq!(agent_messages(&events), [("So it is.".into(), false)]);
}

/// A server that speaks what it is told to, in two seconds and one.
fn prompted() -> Script {
    Script::auto()
        .reply(on_instructions("still there", Reply::spoken("Are you still there?", 2_000)))
        .reply(on_instructions("Goodbye", Reply::spoken("Goodbye!", 1_000)))
}

fn is_prompt(kind: &EventKind) -> bool {
    matches!(kind, EventKind::HostPrompt(prompt) if prompt.stage == HostPromptStage::Sent)
}

/// When the server was asked to say something, in milliseconds, and what.
fn prompts(wire: &Wire) -> Vec<(u64, String)> {
    let asked = wire.of(Side::Client, "response.create").into_iter();
    asked
        .filter_map(|record| {
            let instructions = record.frame["response"]["instructions"].as_str()?.to_owned();
            Some((record.t_ms, instructions))
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn f06_over_the_wire_idle_counts_user_activity_only() {
    let mut wire = Setup::new(prompted()).idle(Some(3), Some(6)).start().await;
    // A microphone that never stops is no activity.
    for _ in 0..140 {
        wire.session.send_audio(tone(24_000, 0.0, 20)).unwrap();
        wire.pass(20 * MS).await;
    }
    assert_eq!(wire.end().await.1, EndReason::Idle);
    let prompts = prompts(&wire);
    assert_eq!(prompts.len(), 2, "{prompts:?}");
    let (reminded, goodbye) = (prompts[0].0, prompts[1].0);
    assert!(prompts[0].1.contains("Are you still there?"), "{prompts:?}");
    assert!(prompts[1].1.contains("Goodbye!"), "{prompts:?}");
    assert!((3_000..3_050).contains(&reminded), "{reminded}");
    // The answer to the reminder stops the clock for its length and does not set it back.
    assert!((3_000..4_000).contains(&(goodbye - reminded)), "{prompts:?}");
    wire.assert_closed().await;
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f06_over_the_wire_the_user_calls_a_goodbye_off() {
    let script = prompted().transcript("I am still here");
    let mut wire = Setup::new(script).idle(None, Some(6)).start().await;
    wire.until(is_prompt).await;
    wire.speak(400).await;
    let events = wire.hear().await;
    assert_eq!(user_messages(&events), ["I am still here"]);
    wire.pass(5 * SECOND).await;
    assert_eq!(wire.session.state(), SessionState::Listening);
    assert_eq!(prompts(&wire).len(), 1);
    assert_eq!(wire.end().await.1, EndReason::Idle, "silence after that still ends it");
    assert_eq!(prompts(&wire).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn f06_over_the_wire_no_prompt_while_a_tool_runs_or_the_agent_is_heard() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let script = prompted()
        .reply(Rule::on_text("please", Reply::call("slow", json!({}))))
        .reply(Rule::on_tool_output("*", Reply::spoken("Done.", 200)));
    let setup = Setup::new(script).idle(Some(3), None).build(|builder| builder.tool(tool));
    let mut wire = setup.start().await;
    wire.session.send_text("please").unwrap();
    wire.pass(20 * SECOND).await;
    assert!(prompts(&wire).is_empty(), "a tool runs");
    latch.release(1);
    wire.pass(20 * SECOND).await;
    assert!(prompts(&wire).is_empty(), "not heard to the end yet");
    wire.hear_until(is_prompt).await;
    wire.settle().await;
    assert_eq!(prompts(&wire).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn f07_over_the_wire_panic_timeout_and_cancel_by_id_touch_only_their_call() {
    let (panics, _) = LatchedTool::open("panics", ToolPlan::Panic);
    let (slow, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let late =
        FuncTool::new("late", "never ends", None, |_, _| std::future::pending()).timeout(SECOND);
    let calls = Reply::call("panics", json!({}))
        .and_call("slow", json!({}))
        .and_call("late", json!({}))
        .and_call("slow", json!({"again": true}));
    let script = Script::auto()
        .reply(Rule::on_text("please", calls))
        .reply(Rule::on_tool_output("*", Reply::spoken("Done.", 200)));
    let setup = Setup::new(script).build(|builder| builder.tool(panics).tool(slow).tool(late));
    let mut wire = setup.start().await;
    wire.session.send_text("please").unwrap();
    latch.started().await;
    latch.started().await;
    wire.session.cancel_tool("call_1_4").unwrap();
    wire.pass(2 * SECOND).await;
    latch.release(1);
    let mut outcomes = outcomes(&wire.hear().await);
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    let wanted = [Outcome::Panicked, Outcome::Success, Outcome::TimedOut, Outcome::Cancelled];
    assert_eq!(outcomes.into_iter().map(|(_, outcome)| outcome).collect::<Vec<_>>(), wanted);
    let mut outputs = wire.outputs();
    outputs.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        outputs.into_iter().map(|(_, output)| output).collect::<Vec<_>>(),
        [
            json!({"error": "the tool failed"}),
            json!({"ok": true}),
            json!({"error": "the tool timed out"}),
            json!({"error": "the tool call was cancelled"}),
        ]
    );
    assert_eq!(wire.sent("response.create").len(), 2);
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f08_over_the_wire_one_reply_is_asked_for_after_all_outputs_and_the_end_of_the_reply() {
    let (a, latch_a) = LatchedTool::new("a", ToolPlan::Succeed);
    let (b, latch_b) = LatchedTool::new("b", ToolPlan::Succeed);
    let script = Script::auto()
        // The calls are told half a second before the end of their reply.
        .fault(Fault::after("response.output_item.done", [Step::DelayMs(500)]))
        .reply(Rule::on_text("please", Reply::call("a", json!({})).and_call("b", json!({}))))
        .reply(Rule::on_tool_output("*", Reply::spoken("Both done.", 200)));
    let mut wire = Setup::new(script).build(|builder| builder.tool(a).tool(b)).start().await;
    wire.session.send_text("please").unwrap();
    latch_a.release(1);
    latch_a.started().await;
    latch_b.started().await;
    wire.pass(2 * SECOND).await;
    assert_eq!(wire.outputs().len(), 1);
    assert_eq!(wire.sent("response.create").len(), 1, "one output is missing");
    latch_b.release(1);
    wire.hear().await;
    let done = wire.place(Side::Server, "response.done", 1);
    let first = wire.place(Side::Client, "output", 1);
    let second = wire.place(Side::Client, "output", 2);
    let create = wire.place(Side::Client, "response.create", 2);
    assert!(done < first && first < second && second < create);
    assert_eq!(wire.sent("response.create").len(), 2);
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f08_over_the_wire_what_is_said_during_a_reply_is_asked_after_it() {
    let mut wire = start(story()).await;
    wire.session.send_text("Tell me a story.").unwrap();
    wire.until_speaking().await;
    wire.session.send_text("And then?").unwrap();
    wire.session.say("By the way.").unwrap();
    wire.settle().await;
    assert_eq!(wire.sent("response.create").len(), 1, "one reply at a time");
    for _ in 0..3 {
        wire.hear_until(|kind| matches!(kind, EventKind::AgentMessage { .. })).await;
    }
    for nth in [1, 2] {
        let done = wire.place(Side::Server, "response.done", nth);
        assert!(done < wire.place(Side::Client, "response.create", nth + 1));
    }
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f09_over_the_wire_errors_that_end_nothing_are_events() {
    let errors = [
        ("invalid_request_error", "invalid_value"),
        ("invalid_request_error", "unknown_parameter"),
        ("invalid_request_error", "string_above_max_length"),
        ("rate_limit_error", "rate_limit_exceeded"),
        ("server_error", "internal_error"),
        ("odd_error", "never_heard_of"),
    ];
    let error = |(kind, code): (&str, &str)| {
        Step::Error(json!({"type": kind, "code": code, "message": "Something is odd."}))
    };
    let script = Script::auto().fault(Fault::after("response.created", errors.map(error)));
    let mut wire = start(script).await;
    let events = wire.ask("Hello.").await;
    for (_, code) in errors {
        assert!(events.iter().any(is_error(code)), "{code}: {events:#?}");
    }
    wire.assert_alive().await;
    assert_eq!(wire.server.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn f09_over_the_wire_a_request_that_lost_a_race_is_made_again() {
    let script = Script::auto()
        .transcript("What is the time?")
        .reply(Rule::on_text("time", Reply::spoken("Noon.", 400)))
        .reply(Rule::on_text("weather", Reply::spoken("Sunny.", 400)))
        .fault(Fault::after("input_audio_buffer.committed", [Step::DelayMs(200)]));
    let mut wire = start(script).await;
    // The server answers the voice by itself; our request meets that while its news is on the way.
    wire.speak(400).await;
    wire.session.send_text("And the weather?").unwrap();
    let mut events = wire.hear().await;
    wire.pass(2 * SECOND).await;
    wire.speaker.play_all();
    events.extend(wire.now().await);
    let refused = wire.told("error");
    assert_eq!(refused[0]["error"]["code"], "conversation_already_has_active_response");
    assert_eq!(wire.told("response.created").len(), 2);
    assert_eq!(agent_messages(&events).len(), 2, "{events:#?}");
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::Error { .. })), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn f09_over_the_wire_a_failed_reply_is_told_and_the_session_goes_on() {
    let fails = Rule::always(Reply::failed("rate_limit_exceeded", "Too fast.")).times(1);
    let mut wire = start(Script::auto().reply(fails)).await;
    wire.session.send_text("Hello.").unwrap();
    wire.until(is_error("Too fast.")).await;
    wire.until(crate::rig::is_turn_finished).await;
    wire.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn f10_over_the_wire_a_silent_output_asks_for_no_reply_and_pieces_are_refused() {
    let script = Script::auto().reply(Rule::on_text("please", Reply::call("mine", json!({}))));
    let mut wire = Setup::new(script).host_tool("mine").start().await;
    wire.session.send_text("please").unwrap();
    wire.until(|kind| matches!(kind, EventKind::HostToolCall { .. })).await;
    let mut part = ToolResponse::new("call_1_1", "mine", JsonObject::new());
    part.will_continue = Some(true);
    wire.session.send_tool_response(part).unwrap();
    wire.until(is_error("pieces")).await;
    assert!(wire.outputs().is_empty(), "this protocol takes an output in one piece");
    let mut last = ToolResponse::new("call_1_1", "mine", JsonObject::new());
    last.scheduling = ToolResponseScheduling::Silent;
    wire.session.send_tool_response(last).unwrap();
    wire.pass(SECOND).await;
    assert_eq!(wire.outputs().len(), 1);
    assert_eq!(wire.sent("response.create").len(), 1, "nobody asked for another reply");
    wire.assert_alive().await;
    wire.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn f11_over_the_wire_host_tools_pass_the_hook_and_are_answered_by_the_host() {
    let log = Log::default();
    let script = Script::auto()
        .reply(Rule::on_text("please", Reply::call("mine", json!({"x": 1}))))
        .reply(Rule::on_tool_output("mine", Reply::spoken("Done.", 200)));
    let setup = Setup::new(script)
        .build(|builder| builder.hooks(LoggingHooks(log.clone())))
        .host_tool("mine");
    let mut wire = setup.start().await;
    wire.session.send_text("please").unwrap();
    let events = wire.until(|kind| matches!(kind, EventKind::HostToolCall { .. })).await;
    let Some(EventKind::HostToolCall { args, .. }) = events.last() else { panic!() };
    assert_eq!(json!(args), json!({"x": 1}));
    wire.pass(SECOND).await;
    assert!(wire.outputs().is_empty());
    let response = JsonObject::from_iter([("y".to_owned(), json!(2))]);
    wire.session.send_tool_response(ToolResponse::new("call_1_1", "mine", response)).unwrap();
    let events = wire.hear().await;
    assert_eq!(wire.outputs(), [("call_1_1".to_owned(), json!({"y": 2}))]);
    assert_eq!(agent_messages(&events), [("Done.".into(), false)]);
    for told in ["authorize call_1_1", "call call_1_1", "result call_1_1"] {
        assert_eq!(log.count(told), 1, "{:#?}", log.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn f11_over_the_wire_a_host_that_never_answers_is_answered_for() {
    let script = Script::auto()
        .reply(Rule::on_text("please", Reply::call("mine", json!({}))))
        .reply(Rule::on_tool_output("mine", Reply::spoken("It took too long.", 200)));
    let mut wire = Setup::new(script).host_tool("mine").start().await;
    let events = wire.ask("please").await;
    assert_eq!(outcomes(&events), [("call_1_1".into(), Outcome::TimedOut)]);
    assert_eq!(wire.outputs(), [("call_1_1".to_owned(), json!({"error": "the tool timed out"}))]);
    assert_eq!(wire.server.connections(), 1, "two silent minutes do not lose the connection");
}

#[tokio::test(start_paused = true)]
async fn f13_over_the_wire_a_slow_server_costs_old_audio_and_the_loss_is_counted() {
    let stalls = Fault::after("session.updated", [Step::StallMs(4_000)]);
    let wire = start(Script::auto().fault(stalls)).await;
    for value in 0..200i16 {
        let frame = antiphon::audio::AudioFrame::from_pcm16(24_000, &[value; 480]);
        wire.session.send_audio(frame).unwrap();
        wire.pass(20 * MS).await;
    }
    wire.pass(SECOND).await;
    let dropped = wire.session.stats().uplink_dropped_ms;
    assert!((500..2_100).contains(&dropped), "{dropped}");
    let audio = wire.audio();
    let sent = (audio.len() / 24) as u64;
    assert_eq!(sent + dropped, 4_000, "what was not sent is counted");
    assert_eq!((audio[0], audio[audio.len() - 1]), (0, 199));
    assert!(audio.is_sorted(), "nothing overtakes");
    let gaps = audio.windows(2).filter(|pair| pair[1] - pair[0] > 1).count();
    assert_eq!(gaps, 1, "the oldest of what waited is missing, and nothing else");
}

#[tokio::test(start_paused = true)]
async fn f14_over_the_wire_pieces_of_any_size_are_resampled_as_one_stream() {
    let whole = voice_like(16_000, 1_000);
    let samples: Vec<i16> =
        whole.data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
    let mut heard = Vec::new();
    for size in [16_000, 320, 111] {
        let wire = start(Script::auto()).await;
        for piece in samples.chunks(size) {
            let frame = antiphon::audio::AudioFrame::from_pcm16(16_000, piece);
            wire.session.send_audio(frame).unwrap();
            wire.settle().await;
        }
        wire.session.end_audio().unwrap();
        wire.settle().await;
        heard.push(wire.audio());
    }
    let length = heard.iter().map(Vec::len).min().unwrap();
    assert!(length.abs_diff(heard[0].len()) < 24 * 20, "{length} and {}", heard[0].len());
    assert!(length >= 24_000, "nothing is lost: {length}");
    for other in &heard[1..] {
        let worst = heard[0].iter().zip(other).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst.unwrap() <= 1, "a seam of {worst:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f16_over_the_wire_each_kind_of_turn_taking_is_said_outright() {
    let of = |wire: &Wire| {
        wire.sent("session.update")[0].pointer("/session/audio/input/turn_detection").cloned()
    };
    let mode = |mode| Setup::new(Script::auto()).config(|config| config.voice_activity(mode));

    let mut wire = mode(VoiceActivity::Auto).start().await;
    let detection = of(&wire).unwrap();
    assert_eq!(detection["type"], "server_vad");
    assert_eq!(detection["create_response"], true);
    // The user stops in the middle of a word, and the microphone is closed.
    wire.session.send_audio(voice_like(24_000, 400)).unwrap();
    wire.session.end_audio().unwrap();
    wire.hear().await;
    assert_eq!(wire.kinds(), ["session.update"], "the server hears the end and answers by itself");

    let mut wire = mode(VoiceActivity::Manual).start().await;
    assert_eq!(of(&wire), Some(Value::Null), "null, not left out: the server's default is to hear");
    wire.session.activity_start().unwrap();
    wire.speak(400).await;
    wire.pass(SECOND).await;
    assert!(wire.told("input_audio_buffer.speech_started").is_empty());
    wire.session.activity_end().unwrap();
    wire.hear().await;
    let turn = ["input_audio_buffer.clear", "input_audio_buffer.commit", "response.create"];
    assert_eq!(wire.kinds()[1..], turn);
    wire.assert_clean();

    let mut wire = mode(VoiceActivity::Off).start().await;
    assert_eq!(of(&wire), Some(Value::Null));
    wire.speak(400).await;
    wire.session.end_audio().unwrap();
    wire.hear().await;
    assert_eq!(wire.kinds()[1..], ["input_audio_buffer.commit", "response.create"]);
    // A turn of nothing is not committed.
    wire.session.end_audio().unwrap();
    wire.settle().await;
    assert_eq!(wire.sent("input_audio_buffer.commit").len(), 1);
    wire.assert_clean();
}
