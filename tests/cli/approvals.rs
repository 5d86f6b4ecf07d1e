//! Calls that wait for a person, decided over from another process.

use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Program, Run, Running};

pub const TOOLS: &str = r#"[{"name": "open_door", "description": "Opens the door.",
  "phrases": ["open the door"], "answer": "It is open.",
  "command": ["/bin/sh", "-c", "echo $ANTIPHON_CALL_ID >> opened; printf '{\"open\": true}'"]}]"#;
pub const POLICY: &str = r#"{"default": "allow",
  "rules": [{"tool": "open_door", "action": "ask", "reason": "somebody has to look"}]}"#;
const WITH_TOOLS: [&str; 6] = ["--tools", "tools.json", "--policy", "policy.json", "--by", "ann"];
/// How long a program may take for what it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// `talk` with the tool and the policy.
pub fn equipped(program: Program, store: &str) -> Program {
    program
        .file("tools.json", TOOLS)
        .file("policy.json", POLICY)
        .args(["--output", "none", "--tools", "tools.json", "--policy", "policy.json"])
        .args(["--store", store])
}

pub fn talk() -> Program {
    equipped(Program::talk().text("open the door"), "turns.db")
}

/// One that listens on, as a caller who waits.
pub fn waits(arguments: &[&str]) -> Running {
    let program = Program::new(["talk", "--events", "json", "--text", "open the door"]);
    equipped(program, "turns.db").args(["--idle-stop", "10m"]).args(arguments).spawn()
}

fn approvals(folder: TempDir, arguments: &[&str]) -> Run {
    let program = Program::new(["approvals"]).args(arguments);
    program.args(["--store", "turns.db", "--json"]).in_folder(folder).run()
}

pub fn approve(folder: TempDir, key: &str) -> Run {
    approvals(folder, &[&["approve", key][..], &WITH_TOOLS].concat())
}

fn lines(run: &Run) -> Vec<Value> {
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn key_of(event: &Value) -> String {
    event["approval"].as_str().unwrap().to_owned()
}

/// How often the tool ran.
pub fn opened(folder: &TempDir) -> usize {
    let file = std::fs::read_to_string(folder.path().join("opened"));
    file.map_or(0, |text| text.lines().count())
}

#[test]
fn a_call_that_waits_is_approved_once_after_the_conversation() {
    let run = talk().run().ok();
    let requested = run.one("approval_requested").clone();
    let key = key_of(&requested);
    assert_eq!(requested["question"]["reason"], "somebody has to look");
    assert_eq!(opened(&run.folder), 0);

    let run = approvals(run.folder, &["list"]).ok();
    let [call] = &lines(&run)[..] else { panic!("{}", run.stdout) };
    assert_eq!((call["key"].as_str(), call["state"].as_str()), (Some(&*key), Some("waiting")));
    let run = approvals(run.folder, &["approve", &key]);
    assert_eq!(run.status, 2, "without its tools: {}", run.stderr);
    let changed = [&["approve", &key, "--arguments", r#"{"door": 2}"#][..], &WITH_TOOLS].concat();
    let run = approvals(run.folder, &changed);
    assert_eq!((run.status, opened(&run.folder)), (1, 0));
    assert!(run.stderr.contains("not those that were shown"), "{}", run.stderr);

    let shown = [&["approve", &key, "--arguments", "{}"][..], &WITH_TOOLS].concat();
    let run = approvals(run.folder, &shown).ok();
    assert_eq!((lines(&run)[0]["outcome"].as_str(), opened(&run.folder)), (Some("success"), 1));
    let run = approve(run.folder, &key);
    assert_eq!((run.status, opened(&run.folder)), (1, 1));
    assert!(run.stderr.contains("already by ann"), "{}", run.stderr);
    let run = approvals(run.folder, &["list"]).ok();
    assert_eq!(run.stdout, "");
    let run = approvals(run.folder, &["show", &key]).ok();
    assert_eq!(lines(&run)[0]["decision"]["by"], "ann");

    // The history knows.
    let session = lines(&run)[0]["sessionId"].as_str().unwrap().to_owned();
    let show = ["snapshots", "show", &*session, "--store", "turns.db", "--json"];
    let run = Program::new(show).in_folder_of(run).run().ok();
    assert!(run.stdout.contains(r#""open":true"#), "{}", run.stdout);
    let folder = goes_on(run.folder);
    assert_eq!(opened(&folder), 1);
}

/// Whoever goes on with the conversation finds the outcome in the history, once, and has an answer to
/// what it asks.
pub fn goes_on(folder: TempDir) -> TempDir {
    let program = Program::talk().text("what time is it").in_folder(folder);
    let run = equipped(program, "turns.db").args(["--resume-latest"]).run().ok();
    assert!(run.of("approval_settled").is_empty(), "{}", run.stdout);
    assert!(run.said().iter().any(|said| said.contains(":")), "a time: {:?}", run.said());
    let snapshot = run.one("turn_committed")["snapshot_id"].as_str().unwrap().to_owned();
    let show = ["snapshots", "show", &*snapshot, "--store", "turns.db", "--json"];
    let run = Program::new(show).in_folder_of(run).run().ok();
    assert_eq!(run.stdout.matches(r#""open":true"#).count(), 1, "{}", run.stdout);
    run.folder
}

#[test]
fn a_policy_that_asks_wants_a_store_that_calls_can_wait_in() {
    let program = Program::talk().text("open the door").file("policy.json", POLICY);
    let run = program.args(["--output", "none", "--policy", "policy.json"]).run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(run.stderr.contains("policy.json") && run.stderr.contains("--store"), "{}", run.stderr);
}

#[test]
fn a_bridge_refuses_a_policy_that_asks() {
    let config = "listen = \"127.0.0.1:0\"\n[carriers.twilio]\nverify = \"none\"\n\
                  [agent]\nprovider = \"offline\"\npolicy = \"policy.json\"\n";
    let bridge = |arguments: &[&str]| {
        let program = Program::new(["bridge", "--config", "bridge.toml"]).args(arguments);
        program.file("bridge.toml", config).file("policy.json", POLICY).run()
    };
    let run = bridge(&["check"]);
    assert_ne!(run.status, 0, "{}", run.stdout);
    assert!(
        run.stdout.contains("failed  agent.policy: line 6, column 10: a rule has a person"),
        "{}",
        run.stdout
    );
    let run = bridge(&[]);
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(run.stderr.contains("no store in which they could wait"), "{}", run.stderr);
}

#[test]
fn a_call_of_another_agent_is_not_approved_with_these_tools() {
    let run = talk().run().ok();
    let key = key_of(run.one("approval_requested"));
    let approve = |folder: TempDir, agent: &str| {
        let arguments = [&["approve", &*key, "--agent", agent][..], &WITH_TOOLS].concat();
        approvals(folder, &arguments)
    };
    let run = approve(run.folder, "accountant");
    assert_eq!((run.status, opened(&run.folder)), (1, 0), "{}", run.stderr);
    let agent = run.stderr.rsplit('"').nth(1).unwrap().to_owned();
    let run = approve(run.folder, &agent).ok();
    assert_eq!(opened(&run.folder), 1);
}

#[test]
fn a_call_that_is_refused_does_not_run() {
    let run = talk().run().ok();
    let key = key_of(run.one("approval_requested"));
    let run = approvals(run.folder, &["deny", &key, "--reason", "it is late"]).ok();
    assert_eq!(lines(&run)[0]["outcome"], "not_approved");
    let run = approve(run.folder, &key);
    assert_eq!((run.status, opened(&run.folder)), (1, 0));
    let run = approvals(run.folder, &["show", "nothing"]);
    assert_eq!(run.status, 2, "{}", run.stderr);
    let run = approvals(run.folder, &["deny", "nothing"]);
    assert_eq!(run.status, 2, "{}", run.stderr);
}

#[test]
fn of_processes_that_approve_at_once_one_runs_the_tool() {
    for store in ["turns.db", "turns/"] {
        let run = equipped(Program::talk().text("open the door"), store).run().ok();
        let key = key_of(run.one("approval_requested"));
        let program = Program::new(["approvals", "approve", &*key, "--store", store]);
        let program = program.args(WITH_TOOLS).in_folder_of(run);
        let (ends, folder) = program.run_at_once(4);
        let won = ends.iter().filter(|end| end.status.success()).count();
        let told: Vec<_> = ends.iter().map(|end| String::from_utf8_lossy(&end.stderr)).collect();
        assert_eq!(won, 1, "{store}: {told:?}");
        for end in ends.iter().filter(|end| !end.status.success()) {
            let text = String::from_utf8_lossy(&end.stderr);
            assert_eq!(end.status.code(), Some(1), "{store}: {text}");
            assert!(text.contains("already by ann"), "{store}: {text}");
        }
        assert_eq!(opened(&folder), 1, "{store}");
    }
}

#[test]
fn who_still_talks_is_told_aloud_what_was_decided_elsewhere() {
    let mut running = waits(&[]);
    let key = key_of(&running.event("approval_requested"));
    let approve = ["approvals", "approve", &*key, "--store", "turns.db"];
    running.beside([&approve[..], &WITH_TOOLS].concat());
    let settled = running.event("approval_settled");
    assert_eq!((&settled["outcome"], &settled["by"]), (&"success".into(), &"ann".into()));
    let said = loop {
        let text = running.event("agent_message")["text"].as_str().unwrap().to_owned();
        if text.contains("approved") {
            break text;
        }
    };
    assert!(said.contains("It is open."), "{said}");
    running.interrupt();
    let run = running.wait();
    assert_eq!(opened(&run.folder), 1);
}

#[cfg(unix)]
#[test]
fn a_call_of_a_killed_conversation_is_approved_and_told_to_whoever_goes_on() {
    let mut running = waits(&[]);
    let key = key_of(&running.event("approval_requested"));
    running.event("turn_committed");
    let run = approve(running.kill(), &key).ok();
    assert_eq!((lines(&run)[0]["outcome"].as_str(), opened(&run.folder)), (Some("success"), 1));
    assert_eq!(opened(&goes_on(run.folder)), 1);
}

#[cfg(unix)]
#[test]
fn a_call_of_a_killed_conversation_expires() {
    let mut running = waits(&["--approve-within", "1s"]);
    let key = key_of(&running.event("approval_requested"));
    let mut folder = running.kill();
    let began = Instant::now();
    let ended = loop {
        let run = approvals(folder, &["show", &key]).ok();
        let call = lines(&run).remove(0);
        folder = run.folder;
        if call["state"] == "ended" {
            break call;
        }
        assert!(began.elapsed() < PATIENCE, "{call}");
    };
    assert_eq!((&ended["outcome"], &ended["decision"]), (&"expired".into(), &Value::Null));
    let run = approve(folder, &key);
    assert_eq!((run.status, opened(&run.folder)), (1, 0));
    assert!(run.stderr.contains("it expired"), "{}", run.stderr);
    assert_eq!(approvals(run.folder, &["list"]).ok().stdout, "");
}

/// A policy that has a person decide over notes.
const NOTES: &str = r#"{"default": "allow",
  "rules": [{"tool": "add_note", "action": "ask", "reason": "somebody has to look"}]}"#;

#[test]
fn an_approved_tool_leaves_what_it_notes_where_the_conversation_finds_it() {
    for store in ["turns.db", "turns/"] {
        let talk = |text: &str| {
            let program = Program::talk().text(text).file("notes.json", NOTES);
            program.args(["--output", "none", "--policy", "notes.json", "--store", store])
        };
        let run = talk("take a note buy milk").run().ok();
        let key = key_of(run.one("approval_requested"));
        let approve = ["approvals", "approve", &*key, "--policy", "notes.json", "--store", store];
        let run = Program::new(approve).in_folder_of(run).run().ok();
        let read = ["--output", "none", "--policy", "notes.json", "--store", store];
        let program = Program::talk().text("read my notes").args(read).args(["--resume-latest"]);
        let run = program.in_folder_of(run).run().ok();
        let said = run.said().join(" ");
        assert!(said.contains("buy milk"), "{store}: {said}");
    }
}
