//! A conversation that is killed while it works for a caller who hung up.
#![cfg(unix)]

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::Program;

/// A tool that runs until it may end.
const SLOW: &str = r#"[{
    "name": "bake",
    "description": "Bakes a cake.",
    "phrases": ["bake a cake"],
    "answer": "The cake is done.",
    "command": ["sh", "-c", "touch begun; until test -e done; do sleep 0.05; done; echo '{}'"],
    "timeout_ms": 60000
}]"#;
/// How long a program may take for what it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn its_snapshot_is_shown_as_expired_within_the_configured_time() {
    let arguments = ["talk", "--events", "json", "--output", "none"];
    let mut running = Program::new(arguments)
        .args(["--text", "convert 2 miles to kilometers", "--text", "bake a cake"])
        .args(["--store", "turns.db", "--on-hangup", "detach", "--heartbeat", "500ms"])
        .args(["--tools", "tools.json"])
        .file("tools.json", SLOW)
        .spawn();
    let session = running.event("session_started")["session_id"].as_str().unwrap().to_owned();
    while running.event("tool_call")["name"] != "bake" {}
    running.interrupt();
    let detached = running.event("detached");
    let id = detached["snapshot_id"].as_str().unwrap().to_owned();
    let show = ["snapshots", "show", &*id, "--json", "--store", "turns.db"];
    let row: Value = serde_json::from_str(&running.beside(show)).unwrap();
    assert_eq!(row["status"], "pending");
    let before = row["parentId"].as_str().unwrap().to_owned();

    let mut folder = running.kill();
    // The tool outlives its caller.
    std::fs::write(folder.path().join("done"), "").unwrap();
    let began = Instant::now();
    loop {
        let run = Program::new(show).args(["--stale-after", "1s"]).in_folder(folder).run().ok();
        folder = run.folder;
        let row: Value = serde_json::from_str(&run.stdout).unwrap();
        if row["status"] == "expired" {
            break;
        }
        assert_eq!(row["status"], "pending");
        assert!(began.elapsed() < PATIENCE, "{row}");
    }
    for command in ["list", "history"] {
        let run =
            Program::new(["snapshots", command, "--store", "turns.db", "--stale-after", "1s"])
                .in_folder(folder)
                .run()
                .ok();
        assert!(run.stdout.contains(" expired"), "{}", run.stdout);
        folder = run.folder;
    }

    // The caller rings again: the conversation goes on from before the work that was lost.
    let talk = Program::talk().text("what time is it").args(["--output", "none"]);
    let kept = ["--store", "turns.db", "--tools", "tools.json", "--heartbeat", "500ms"];
    let run = talk.args(kept).args(["--resume", &session]).in_folder(folder).run().ok();
    let resumed = run.one("session_resumed");
    assert_eq!((&resumed["lost_work"], &resumed["snapshot_id"]), (&id.into(), &before.into()));
    assert_eq!(resumed["unknown_calls"].as_array().map(Vec::len), Some(1), "{resumed}");
    assert_eq!(run.one("session_started")["session_id"], *session);
}

#[test]
fn a_conversation_that_was_killed_in_the_tool_of_its_first_turn_is_gone_on_with() {
    let arguments = ["talk", "--events", "json", "--output", "none", "--text", "bake a cake"];
    let kept = ["--store", "turns.db", "--tools", "tools.json"];
    let mut running = Program::new(arguments).args(kept).file("tools.json", SLOW).spawn();
    let session = running.event("session_started")["session_id"].as_str().unwrap().to_owned();
    running.event("tool_call");
    // The call is written down before its tool begins.
    let begun = running.folder.path().join("begun");
    let since = Instant::now();
    while !begun.exists() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let folder = running.kill();
    std::fs::write(folder.path().join("done"), "").unwrap();
    let talk = || Program::talk().text("what time is it").args(["--output", "none"]).args(kept);
    let run = talk().args(["--resume", "nobody"]).in_folder(folder).run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    let run = talk().args(["--resume", &session]).in_folder_of(run).run().ok();
    let resumed = run.one("session_resumed");
    assert_eq!(resumed["unknown_calls"].as_array().map(Vec::len), Some(1), "{resumed}");
    assert_eq!(run.one("session_started")["session_id"], *session);
    let id = run.one("turn_committed")["snapshot_id"].as_str().unwrap().to_owned();
    let show = ["snapshots", "show", &*id, "--json", "--store", "turns.db"];
    let run = Program::new(show).in_folder_of(run).run().ok();
    assert!(run.stdout.contains("The outcome of this call is not known"), "{}", run.stdout);
}
