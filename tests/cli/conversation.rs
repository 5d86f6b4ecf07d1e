//! Conversations with the built-in tools.

use serde_json::{Value, json};

use crate::program::{Program, bundled_samples};

#[test]
fn a_spoken_question_is_answered_and_the_session_ends() {
    let run = Program::talk().question("time.wav").args(["--output", "none"]).run().ok();
    assert!(run.one("user_message")["text"].as_str().unwrap().to_lowercase().contains("time"));
    assert_eq!(run.one("tool_call")["name"], "clock");
    assert_eq!(run.one("tool_result")["outcome"], "success");
    assert!(run.said()[0].starts_with("It is "), "{:?}", run.said());
    assert_eq!(run.one("session_ended")["reason"], "stopped");
    assert_eq!(run.events.first().unwrap()["type"], "session_started");
    assert_eq!(run.events.last().unwrap()["type"], "session_ended");
}

#[test]
fn another_provider_goes_on_where_the_first_cannot_be_reached() {
    // Nobody listens there.
    let away = ["--provider", "openai", "--url", "ws://127.0.0.1:1"];
    let run = Program::new(["talk", "--events", "json", "--output", "none"])
        .environment("OPENAI_API_KEY", "sk-test")
        .args(away)
        .args(["--fallback", "offline"])
        .text("what time is it")
        .run()
        .ok();
    assert_eq!(run.one("session_started")["provider"], "offline");
    assert_eq!(run.one("tool_call")["name"], "clock");
    assert!(run.said()[0].starts_with("It is "), "{:?}", run.said());
}

#[test]
fn every_line_fits_the_schema() {
    let schema = include_str!("../../schemas/talk-events.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let run = Program::talk()
        .question("time.wav")
        .question("timer.wav")
        .text("send 900 euros to Alice")
        .text("send 5 euros to Alice")
        .text("yes")
        .args(["--output", "none"])
        .run()
        .ok();
    assert_eq!(run.events.len(), run.stdout.lines().count(), "a line is no JSON:\n{}", run.stdout);
    for event in &run.events {
        let errors: Vec<String> = validator.iter_errors(event).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{event}: {errors:?}");
    }
    for kind in [
        "session_started",
        "state",
        "user_message",
        "tool_call",
        "tool_denied",
        "tool_confirm",
        "tool_result",
        "agent_message",
        "timer",
        "session_ended",
    ] {
        assert!(!run.of(kind).is_empty(), "no {kind}:\n{}", run.stdout);
    }
    let times: Vec<u64> = run.events.iter().map(|event| event["t_ms"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    // The schema refuses what is no event.
    for bad in [
        json!({"type": "timer", "t_ms": 1, "epoch": 1, "turn": 1}),
        json!({"type": "surprise", "t_ms": 1, "epoch": 1, "turn": 1}),
        json!({"type": "user_message", "t_ms": 1, "epoch": 1, "turn": 1, "text": "a", "x": 1}),
    ] {
        assert!(!validator.is_valid(&bad), "{bad}");
    }
}

#[test]
fn texts_and_files_are_given_in_order_each_after_the_answer() {
    let run = Program::talk()
        .text("convert ten miles to kilometers")
        .question("time.wav")
        .text("what timers are running")
        .args(["--output", "none"])
        .run()
        .ok();
    let calls: Vec<&str> =
        run.of("tool_call").iter().filter_map(|call| call["name"].as_str()).collect();
    assert_eq!(calls, ["convert_units", "clock", "list_timers"]);
    assert_eq!(
        run.order(&["user_message", "turn_finished"]),
        ["user_message", "turn_finished"].repeat(3)
    );
    assert!(run.said()[0].contains("16.09"), "{:?}", run.said());
}

#[test]
fn two_questions_in_one_file_are_two_turns() {
    let mut samples = bundled_samples("time.wav");
    samples.extend(vec![0; 2 * 16_000]);
    samples.extend(bundled_samples("convert.wav"));
    let run = Program::talk()
        .wav("both.wav", 16_000, &samples)
        .args(["--input", "both.wav", "--output", "none"])
        .run()
        .ok();
    assert_eq!(run.of("user_message").len(), 2, "{}", run.stdout);
    let calls: Vec<&str> =
        run.of("tool_call").iter().filter_map(|call| call["name"].as_str()).collect();
    assert_eq!(calls, ["clock", "convert_units"]);
    assert_eq!(run.of("user_message")[1]["turn"], 2);
}

#[test]
fn much_money_is_denied_and_little_is_read_back() {
    let run = Program::talk()
        .text("send 900 euros to Alice")
        .text("yes")
        .text("send 5 euros to Alice")
        .text("no")
        .text("send 5 euros to Alice")
        .text("yes")
        .args(["--output", "none"])
        .run()
        .ok();
    assert_eq!(
        run.order(&["tool_denied", "tool_confirm", "tool_call"]),
        ["tool_denied", "tool_confirm", "tool_confirm", "tool_call"],
        "{}",
        run.stdout
    );
    assert!(run.one("tool_denied")["reason"].as_str().unwrap().contains("limit of 100"));
    assert_eq!(run.of("tool_confirm")[0]["read_back"], "Send 5 euros to Alice?");
    assert_eq!(run.one("tool_call")["args"], json!({"amount": 5, "name": "Alice"}));
    let outcomes: Vec<&str> =
        run.of("tool_result").iter().filter_map(|result| result["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["denied", "not_confirmed", "success"]);
}

#[test]
fn money_by_voice_is_confirmed_by_voice() {
    let run = Program::talk()
        .question("send-money.wav")
        .question("yes.wav")
        .args(["--output", "none"])
        .run()
        .ok();
    assert_eq!(
        run.order(&["tool_confirm", "tool_call", "tool_result"]),
        ["tool_confirm", "tool_call", "tool_result"],
        "{}",
        run.stdout
    );
    assert_eq!(run.one("tool_result")["outcome"], "success");
}

#[test]
fn turns_by_hand_need_no_silence() {
    let run = Program::talk()
        .question("time.wav")
        .args(["--vad", "manual", "--output", "none"])
        .run()
        .ok();
    assert_eq!(run.one("tool_call")["name"], "clock");
}

#[test]
fn noise_gets_no_answer_but_the_next_question_does() {
    let run = Program::talk()
        .wav("silence.wav", 16_000, &[0; 16_000])
        .args(["--input", "silence.wav"])
        .question("time.wav")
        .args(["--output", "none"])
        .run()
        .ok();
    assert!(run.stderr.contains("no answer to silence.wav"), "{}", run.stderr);
    assert_eq!(run.one("tool_call")["name"], "clock");
}

#[test]
fn a_barge_in_cuts_the_answer() {
    let path = crate::program::bundled("time.wav");
    let run = Program::talk()
        .text("convert ten miles to kilometers")
        .args(["--barge-in", &format!("{}@300", path.display()), "--output", "out.wav"])
        .run()
        .ok();
    assert!(!run.of("interrupted").is_empty(), "{}", run.stdout);
    let messages = run.of("agent_message");
    assert_eq!(messages[0]["interrupted"], true, "{}", run.stdout);
    let heard = messages[0]["text"].as_str().unwrap();
    let generated = messages[0]["generated"].as_str().unwrap();
    assert!(generated.starts_with(heard) && heard.len() < generated.len(), "{messages:?}");
    assert_eq!(run.of("tool_call").last().unwrap()["name"], "clock");
}

#[test]
fn the_pretty_transcript_names_who_said_what() {
    let run = Program::new(["talk", "--fast", "--output", "none"])
        .text("send 5 euros to Alice")
        .text("yes")
        .run()
        .ok();
    for part in [" you: send 5 euros to Alice", "  it: Send 5 euros to Alice?", "> send_money"] {
        assert!(run.stdout.contains(part), "{part}:\n{}", run.stdout);
    }
}

#[test]
fn without_devices_and_inputs_the_bundled_questions_are_asked() {
    let run = Program::talk().run().ok();
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("antiphon-talk.wav"), "{}", run.stderr);
    assert!(run.folder.path().join("antiphon-talk.wav").exists());
    let calls: Vec<&str> =
        run.of("tool_call").iter().filter_map(|call| call["name"].as_str()).collect();
    assert_eq!(calls, ["clock", "convert_units", "send_money", "set_timer"], "{}", run.stdout);
    assert_eq!(run.of("timer").len(), 1);
}
