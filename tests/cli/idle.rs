//! Silence.

use crate::program::Program;

#[test]
fn silence_is_asked_about_and_then_ends_the_session() {
    let run = Program::talk()
        .text("what time is it")
        .args(["--idle-remind", "3s", "--idle-stop", "6s", "--output", "none"])
        .run()
        .ok();
    assert_eq!(run.one("session_ended")["reason"], "idle", "{}", run.stdout);
    let prompts: Vec<&str> = run
        .of("host_prompt")
        .iter()
        .filter(|prompt| prompt["stage"] == "sent")
        .filter_map(|prompt| prompt["prompt"].as_str())
        .collect();
    assert_eq!(prompts, ["idle_reminder", "idle_deactivate"], "{}", run.stdout);
}

#[test]
fn with_a_reminder_alone_the_session_ends_after_it() {
    let run = Program::talk()
        .text("what time is it")
        .args(["--idle-remind", "3s", "--output", "none"])
        .run()
        .ok();
    assert_eq!(run.one("session_ended")["reason"], "stopped");
    assert!(run.of("host_prompt").iter().any(|prompt| prompt["prompt"] == "idle_reminder"));
}
