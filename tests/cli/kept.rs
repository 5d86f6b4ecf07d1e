//! Conversations that are kept in a store.

use serde_json::Value;

use crate::program::{Program, Run};

fn talk(text: &str, arguments: &[&str]) -> Program {
    Program::talk().text(text).args(["--output", "none", "--store", "turns.db"]).args(arguments)
}

fn text(event: &Value, member: &str) -> String {
    event[member].as_str().unwrap_or_else(|| panic!("no {member} in {event}")).to_owned()
}

fn committed(run: &Run) -> (String, Option<String>) {
    let event = run.one("turn_committed");
    (text(event, "snapshot_id"), event["parent_id"].as_str().map(str::to_owned))
}

#[test]
fn a_conversation_goes_on_where_it_was_left_or_from_any_turn_before() {
    let run = talk("what time is it", &[]).run().ok();
    let session = text(run.one("session_started"), "session_id");
    let (first, before) = committed(&run);
    assert_eq!(before, None);
    assert!(run.of("session_resumed").is_empty());

    let run = talk("what day is it", &["--resume-latest"]).in_folder_of(run).run().ok();
    let resumed = run.one("session_resumed");
    assert_eq!(text(resumed, "snapshot_id"), first);
    assert_eq!(resumed["restored"], "full");
    assert_eq!(text(run.one("session_started"), "session_id"), session);
    let (second, before) = committed(&run);
    assert_eq!(before.as_ref(), Some(&first));

    let run = talk("what time is it", &["--resume", &session]).in_folder_of(run).run().ok();
    assert_eq!(committed(&run).1, Some(second));
    let run = talk("what day is it", &["--resume", &first]).in_folder_of(run).run().ok();
    assert_eq!(committed(&run).1, Some(first), "a branch");

    let run = talk("hello", &["--resume", "nowhere"]).in_folder_of(run).run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(run.stderr.contains("nowhere"), "{}", run.stderr);
}
