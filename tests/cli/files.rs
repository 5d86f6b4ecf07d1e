//! Tools, policy and memory from files.

use serde_json::{Value, json};

use crate::program::Program;

const DOOR: &str = r#"[
  {"name": "open_door", "description": "Opens a door.",
   "parameters": {"type": "object", "properties": {"which": {"enum": ["garden", "cellar"]}},
                  "required": ["which"], "additionalProperties": false},
   "phrases": ["open the {which} door"], "answer": "The {which} door is open.",
   "command": ["sh", "-c", "printf '{\"got\": %s, \"session\": \"%s\", \"call\": \"%s\"}' \"$(cat)\" \"$ANTIPHON_SESSION_ID\" \"$ANTIPHON_CALL_ID\""]}
]"#;

#[test]
fn a_tool_of_ones_own_is_reached_by_its_phrases() {
    let run = Program::talk()
        .file("tools.json", DOOR)
        .text("open the garden door")
        .args(["--tools", "tools.json", "--output", "none"])
        .run()
        .ok();
    let result = run.one("tool_result");
    assert_eq!(result["response"]["got"], json!({"which": "garden"}), "{result}");
    assert_eq!(result["response"]["session"], run.one("session_started")["session_id"]);
    assert_eq!(result["response"]["call"], result["id"]);
    assert_eq!(run.said(), ["The garden door is open."]);
}

#[test]
fn a_tool_that_fails_is_told_and_the_session_lives_on() {
    let tool = |name: &str, script: &str| {
        json!({"name": name, "description": name, "phrases": [format!("please {name} it")],
               "command": ["sh", "-c", script], "timeout_ms": 300})
    };
    let tools = json!([
        tool("break", "exit 3"),
        tool("hang", "sleep 30"),
        tool("flood", "yes"),
        tool("babble", "echo hello"),
    ]);
    let run = Program::talk()
        .file("tools.json", &tools.to_string())
        .args(["--tools", "tools.json", "--output", "none"])
        .text("break it")
        .text("hang it")
        .text("flood it")
        .text("babble it")
        .text("what time is it")
        .run()
        .ok();
    let outcomes: Vec<&str> =
        run.of("tool_result").iter().filter_map(|result| result["outcome"].as_str()).collect();
    assert_eq!(
        outcomes,
        ["error", "timed_out", "output_too_large", "error", "success"],
        "{}",
        run.stdout
    );
}

#[test]
fn a_tool_may_want_a_confirmation() {
    let tools = DOOR.replace("\"answer\"", "\"confirm\": \"Open the {which} door?\", \"answer\"");
    let run = Program::talk()
        .file("tools.json", &tools)
        .text("open the cellar door")
        .text("no")
        .args(["--tools", "tools.json", "--output", "none"])
        .run()
        .ok();
    assert_eq!(run.one("tool_confirm")["read_back"], "Open the cellar door?");
    assert!(run.of("tool_call").is_empty());
}

#[test]
fn a_policy_of_ones_own_replaces_the_built_in_one() {
    let policy = r#"{"default": "allow", "rules": [
        {"tool": "clock", "action": "deny", "reason": "no clocks here"}]}"#;
    let run = Program::talk()
        .file("policy.json", policy)
        .text("what time is it")
        .text("send 900 euros to Alice")
        .args(["--policy", "policy.json", "--output", "none"])
        .run()
        .ok();
    assert_eq!(run.one("tool_denied")["name"], "clock");
    assert_eq!(run.one("tool_denied")["reason"], "no clocks here");
    // The tool's own read-back stays.
    assert_eq!(run.one("tool_confirm")["name"], "send_money");
    assert!(run.of("tool_call").is_empty());
}

#[test]
fn a_rule_for_a_tool_that_there_is_not_is_a_warning() {
    let policy = r#"{"default": "allow", "rules": [{"tool": "clokc", "action": "deny"}]}"#;
    let run = Program::talk()
        .file("policy.json", policy)
        .text("what time is it")
        .args(["--policy", "policy.json", "--output", "none"])
        .run()
        .ok();
    assert!(run.stderr.contains("clokc"), "{}", run.stderr);
}

#[test]
fn memory_outlives_the_session() {
    let first = Program::talk()
        .text("take a note buy milk")
        .args(["--memory", "memory.json", "--output", "none"])
        .run()
        .ok();
    assert_eq!(first.one("tool_result")["outcome"], "success");
    let second = Program::talk()
        .in_folder_of(first)
        .text("read my notes")
        .args(["--memory", "memory.json", "--output", "none"])
        .run()
        .ok();
    assert_eq!(second.one("tool_result")["response"]["notes"], json!(["buy milk"]));
    assert!(second.said()[0].contains("buy milk"), "{:?}", second.said());
}

#[test]
fn memory_that_cannot_be_written_is_a_visible_error() {
    let tools = json!([{
        "name": "lose", "description": "Loses the disk.", "phrases": ["lose the disk"],
        "command": ["sh", "-c", "rm -r notes && echo '{}'"]
    }]);
    let program = Program::talk();
    std::fs::create_dir(program.folder.path().join("notes")).unwrap();
    let run = program
        .file("tools.json", &tools.to_string())
        .args(["--tools", "tools.json", "--memory", "notes/memory.json", "--output", "none"])
        .text("lose the disk")
        .text("take a note buy milk")
        .run()
        .ok();
    let error = run.one("error");
    assert_eq!(error["kind"], "tool");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("add_note: ") && message.contains("memory.json"), "{message}");
    assert_eq!(run.of("tool_result")[1]["outcome"], "error");
    assert_eq!(run.said()[1], "Sorry, that did not work.");
}

#[test]
fn a_text_without_words_has_an_answer() {
    let run = Program::talk().text("\u{1f600}").args(["--output", "none"]).run().ok();
    assert!(run.said()[0].starts_with("Sorry"), "{:?}", run.said());
}

#[test]
fn the_samples_fit_their_schemas() {
    let read = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let policy = read(include_str!("../../schemas/policy.schema.json"));
    let tools = read(include_str!("../../schemas/tools.schema.json"));
    assert!(jsonschema::is_valid(&policy, &read(include_str!("../../examples/policy.json"))));
    assert!(jsonschema::is_valid(&policy, &read(crate::policy::POLICY)));
    let cedar = r#"{"policies": [{"id": "bank", "kind": "cedar", "files": ["bank.cedar"]}]}"#;
    assert!(jsonschema::is_valid(&policy, &read(cedar)));
    assert!(!jsonschema::is_valid(&policy, &read(&cedar.replace("files", "file"))));
    assert!(jsonschema::is_valid(&tools, &read(include_str!("../../examples/tools.json"))));
    assert!(jsonschema::is_valid(&tools, &read(DOOR)));
}
