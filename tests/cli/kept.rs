//! Conversations that are kept in a store.

use antiphon_testkit::openai::{Reply, Rule, Script, Server};
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

/// What one connection told the server before it asked for the first reply.
fn told_before_the_first_reply(events: &[Value]) -> Vec<String> {
    let asked = events.iter().position(|event| event["type"] == "response.create").unwrap();
    events[..asked]
        .iter()
        .filter(|event| event["type"] == "conversation.item.create")
        .map(|event| {
            let item = &event["item"];
            match item["type"].as_str().unwrap() {
                "message" => {
                    format!("{}: {}", text(item, "role"), text(&item["content"][0], "text"))
                }
                "function_call" => format!("? {}", text(item, "name")),
                "function_call_output" => "!".to_owned(),
                other => panic!("{other}"),
            }
        })
        .collect()
}

#[test]
fn a_conversation_goes_from_one_provider_to_another_and_back() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::new(
        Script::auto()
            .reply(Rule::on_text("Anna", Reply::spoken("Hello Anna.", 100)))
            .reply(Rule::always(Reply::spoken("I was there, too.", 100))),
    );
    let serving = runtime.block_on(server.listen(None)).unwrap();
    let openai = |text: &str| {
        let arguments = ["talk", "--events", "json", "--provider", "openai", "--output", "none"];
        Program::new(arguments)
            .args(["--url", serving.url(), "--store", "turns.db", "--text", text])
            .environment("OPENAI_API_KEY", "sk-test")
    };
    let run = openai("My name is Anna.").run().ok();
    let (first, _) = committed(&run);
    let run = talk("what time is it", &["--resume-latest"]).in_folder_of(run).run().ok();
    let resumed = run.one("session_resumed");
    assert_eq!((text(resumed, "snapshot_id"), &resumed["items"]), (first, &Value::from(2)));
    let answer = format!("assistant: {}", run.said()[0]);
    let (second, _) = committed(&run);
    let before = server.client_events().len();
    let run = openai("And who was there?").args(["--resume-latest"]).in_folder_of(run).run().ok();
    assert_eq!(committed(&run).1, Some(second));
    assert_eq!(run.said(), ["I was there, too."]);
    let expected = [
        "user: My name is Anna.",
        "assistant: Hello Anna.",
        "user: what time is it",
        "? clock",
        "!",
        answer.as_str(),
        "user: And who was there?",
    ];
    assert_eq!(told_before_the_first_reply(&server.client_events()[before..]), expected);
    assert_eq!(server.failures(), Vec::<String>::new());
}

/// A tool that runs until it may end.
#[cfg(unix)]
const SLOW: &str = r#"[{
    "name": "bake",
    "description": "Bakes a cake.",
    "phrases": ["bake a cake"],
    "answer": "The cake is done.",
    "command": ["sh", "-c", "until test -e done; do sleep 0.05; done; echo '{}'"],
    "timeout_ms": 60000
}]"#;

#[cfg(unix)]
fn bakes() -> Program {
    let arguments = ["talk", "--events", "json", "--output", "none", "--text", "bake a cake"];
    Program::new(arguments)
        .args(["--store", "turns.db", "--on-hangup", "detach", "--tools", "tools.json"])
        .file("tools.json", SLOW)
}

#[cfg(unix)]
#[test]
fn who_hangs_up_on_work_finds_it_done() {
    let mut running = bakes().spawn();
    running.event("tool_call");
    running.interrupt();
    let id = text(&running.event("detached"), "snapshot_id");
    let shown = running.beside(["snapshots", "show", id.as_str(), "--json", "--store", "turns.db"]);
    assert!(shown.contains("\"pending\""), "{shown}");
    let wait = ["snapshots", "wait", id.as_str(), "--store", "turns.db"];
    let late = running.try_beside([&wait[..], &["--within", "200ms"]].concat());
    assert_eq!(late.status.code(), Some(1), "it goes on");
    std::fs::write(running.folder.path().join("done"), "").unwrap();
    let waited = running.beside(wait);
    assert_eq!(waited.trim(), format!("{id} completed"));
    let run = running.wait().ok();
    assert_eq!(committed(&run).0, id);
    assert_eq!(run.one("turn_committed")["finish_reason"], "stop");
}

#[cfg(unix)]
#[test]
fn closing_the_terminal_is_hanging_up_and_the_work_goes_on() {
    let mut running = bakes().spawn();
    running.event("tool_call");
    running.hang_up();
    let id = text(&running.event("detached"), "snapshot_id");
    std::fs::write(running.folder.path().join("done"), "").unwrap();
    let run = running.wait().ok();
    assert_eq!(committed(&run).0, id);
    assert_eq!(run.one("turn_committed")["finish_reason"], "stop");
    assert_eq!(run.one("tool_result")["outcome"], "success");
}

#[cfg(unix)]
#[test]
fn closing_the_terminal_ends_a_conversation_that_leaves_nothing_behind() {
    let arguments = ["talk", "--events", "json", "--output", "none", "--text", "what time is it"];
    let program = Program::new(arguments).args(["--store", "turns.db", "--idle-stop", "10m"]);
    let mut running = program.spawn();
    running.event("turn_committed");
    running.hang_up();
    let run = running.wait().ok();
    assert_eq!(run.one("session_ended")["reason"], "stopped");
}

#[cfg(unix)]
#[test]
fn work_that_was_left_is_aborted_from_another_process() {
    let mut running = bakes().spawn();
    running.event("tool_call");
    running.interrupt();
    let id = text(&running.event("detached"), "snapshot_id");
    running.beside(["snapshots", "abort", id.as_str(), "--store", "turns.db"]);
    let run = running.wait().ok();
    assert_eq!(committed(&run).0, id);
    assert_eq!(run.one("turn_committed")["finish_reason"], "aborted");
    assert_eq!(run.one("tool_result")["outcome"], "cancelled");
}

#[test]
fn after_a_resume_the_offline_agent_answers_by_voice_from_what_was_said_before() {
    let run = talk("convert ten miles to kilometers", &[]).run().ok();
    let answer = run.said()[0].to_owned();
    assert!(answer.contains("16.09"), "{answer}");
    let run = Program::new(["speak", "Can you repeat that?", "--output", "again.wav"])
        .in_folder_of(run)
        .run()
        .ok();
    let run = Program::talk()
        .args(["--input", "again.wav", "--output", "answer.wav"])
        .args(["--store", "turns.db", "--resume-latest"])
        .in_folder_of(run)
        .run()
        .ok();
    assert_eq!(run.said(), [answer], "{}", run.stdout);
    assert!(run.of("tool_call").is_empty(), "{}", run.stdout);
    let (samples, rate) = run.samples("answer.wav");
    let loud = samples.iter().filter(|sample| sample.unsigned_abs() > 1_000).count();
    assert!(loud > rate as usize / 10, "{loud} loud samples");
}
