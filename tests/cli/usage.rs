//! What is wrong with the command line or its files: one readable line, and the exit status.

use crate::program::Program;

#[track_caller]
fn refuses_with(program: Program, status: i32, reasons: &[&str]) {
    let run = program.run();
    assert_eq!(run.status, status, "{}\n{}", run.stderr, run.stdout);
    for reason in reasons {
        assert!(run.stderr.contains(reason), "{reason:?} is not in:\n{}", run.stderr);
    }
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.starts_with("antiphon: "), "{}", run.stderr);
    assert!(run.stdout.is_empty(), "{}", run.stdout);
}

#[track_caller]
fn refuses_in_one_line(program: Program, status: i32, reason: &str) {
    refuses_with(program, status, &[reason]);
}

fn talk() -> Program {
    Program::talk().args(["--output", "none"])
}

#[test]
fn flags() {
    for (arguments, reason) in [
        (vec!["--nonsense"], "--nonsense"),
        (vec!["--provider", "carrier-pigeon"], "carrier-pigeon"),
        (vec!["--vad", "maybe"], "maybe"),
        (vec!["--events", "xml"], "xml"),
        (vec!["--idle-stop", "soon"], "duration"),
        (vec!["--idle-remind", "0s"], "above zero"),
        (vec!["--barge-in", "stop.wav"], "FILE.wav@MS"),
        (vec!["--barge-in", "stop.wav@soon"], "milliseconds"),
        (vec!["--output", "out.mp3"], ".wav"),
    ] {
        refuses_in_one_line(Program::new(["talk"]).args(arguments), 2, reason);
    }
    for (arguments, reason) in [
        (vec!["--fallback", "offline", "--text", "hello"], "names another provider each time"),
        (vec!["--input", "mic"], "--fast does not go with --input mic"),
        (vec!["--input", "mic", "--text", "hello"], "nothing can come after --input mic"),
        (vec!["--text", "  "], "--text is blank"),
        (vec!["--voice", "nobody", "--text", "hello"], "no voice \"nobody\"; there is: "),
    ] {
        refuses_in_one_line(talk().args(arguments), 2, reason);
    }
    let speaker = Program::talk().args(["--output", "speaker", "--text", "hello"]);
    refuses_in_one_line(speaker, 2, "--fast does not go with --output speaker");
}

#[test]
fn inputs() {
    for (program, file, reason) in [
        (talk(), "missing.wav", "No such file"),
        (talk().file("text.wav", "I am no sound."), "text.wav", "not a WAV file"),
        (talk().file("empty.wav", ""), "empty.wav", "empty"),
        (talk().wav("fast.wav", 96_000, &[0; 9_600]), "fast.wav", "8000 to 48000 Hz"),
        (talk().wav("none.wav", 16_000, &[]), "none.wav", "no audio"),
    ] {
        let line = format!("antiphon: {file}: ");
        refuses_with(program.args(["--input", file]), 2, &[line.as_str(), reason]);
    }
    let barge_in = talk().args(["--text", "hello", "--barge-in", "missing.wav@100"]);
    refuses_in_one_line(barge_in, 2, "missing.wav");
}

#[test]
fn outputs() {
    for output in ["no/such/folder/out.wav", "folder.wav"] {
        let program = Program::talk().args(["--text", "hello", "--output", output]);
        std::fs::create_dir(program.folder.path().join("folder.wav")).unwrap();
        refuses_in_one_line(program, 2, output);
    }
}

#[test]
fn tool_files() {
    let tool = r#"{"name": "a", "description": "d", "command": ["true"]}"#;
    for (content, reason) in [
        ("[\n{\n]".to_owned(), "tools.json:3:"),
        ("[\n{\"nam\": 1}]".to_owned(), "tools.json:2:"),
        (format!("[{tool},\n{tool}]"), "tools.json:2:1: a second tool named \"a\""),
        (tool.replace("\"a\"", "\"clock\""), "tools.json"),
        (
            format!("[{tool},\n{}]", tool.replace("\"a\"", "\"clock\"")),
            "tools.json:2:1: a tool named \"clock\" is registered already",
        ),
        (
            format!("[\n\n{}]", tool.replace("\"d\"", "\"d\", \"phrases\": [\"open [the door\"]")),
            "tools.json:3:1: tool \"a\": ",
        ),
        (format!("[{}]", tool.replace("[\"true\"]", "[]")), "`command` is empty"),
        (
            format!("[{}]", tool.replace("\"d\"", "\"d\", \"parameters\": {\"type\": 5}")),
            "no JSON Schema",
        ),
    ] {
        let program = talk().file("tools.json", &content);
        refuses_in_one_line(program.args(["--text", "hi", "--tools", "tools.json"]), 2, reason);
    }
    refuses_in_one_line(talk().args(["--text", "hi", "--tools", "no.json"]), 2, "no.json");
}

#[test]
fn policy_files() {
    for (content, reason) in [
        ("{", "policy.json:1:"),
        ("{\"default\": \"allow\"}", "rules"),
        ("{\"default\": \"allow\",\n\"rules\": [{\"tool\": \"x\"}]}", "policy.json:2:"),
        (
            "{\"default\": \"allow\", \"rules\": [\n{\"tool\": \"x\", \"action\": \"deny\", \"when\": {\"type\": 1}}]}",
            "policy.json:2:",
        ),
        (
            "{\"default\": \"allow\", \"rules\": [\n{\"tool\": \"send_[money\", \"action\": \"deny\"}]}",
            "policy.json:2:1: a rule: '[' in the pattern",
        ),
    ] {
        let program = talk().file("policy.json", content);
        refuses_in_one_line(program.args(["--text", "hi", "--policy", "policy.json"]), 2, reason);
    }
}

#[test]
fn memory_files() {
    let program = talk().file("memory.json", "not json");
    refuses_in_one_line(
        program.args(["--text", "hi", "--memory", "memory.json"]),
        2,
        "memory.json",
    );
    let kept = talk()
        .file("memory.json", "not json")
        .args(["--text", "hi", "--memory", "memory.json"])
        .run();
    let content = std::fs::read_to_string(kept.folder.path().join("memory.json")).unwrap();
    assert_eq!(content, "not json", "a corrupt file is left alone");
}

#[test]
fn models_that_are_missing_or_corrupt() {
    let missing = talk().args(["--text", "hi", "--models", "nowhere"]);
    refuses_in_one_line(missing, 1, "nowhere");

    let program = talk().args(["--text", "hi", "--models", "models"]);
    let folder = program.folder.path().join("models");
    std::fs::create_dir(&folder).unwrap();
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    for entry in std::fs::read_dir(models).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    let vocabulary = folder.join("hibari.vocab.json");
    let mut bytes = std::fs::read(&vocabulary).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&vocabulary, bytes).unwrap();
    refuses_in_one_line(program, 1, "hibari.vocab.json is corrupt");
}

#[test]
fn the_doctor_says_whether_talk_would_work() {
    let well = Program::new(["doctor"]).run();
    assert_eq!(well.status, 0, "{}{}", well.stdout, well.stderr);
    for part in ["models", "self-test", "will work"] {
        assert!(well.stdout.contains(part), "{}", well.stdout);
    }
    let ill = Program::new(["doctor", "--models", "nowhere"]).run();
    assert_eq!(ill.status, 1, "{}", ill.stdout);
    assert!(ill.stdout.contains("BROKEN   models") && ill.stdout.contains("-> "), "{}", ill.stdout);
    assert!(ill.stderr.is_empty(), "{}", ill.stderr);
}

#[test]
fn speaking_into_a_file() {
    let run =
        Program::new(["speak", "Good morning.", "-o", "out.wav", "--rate", "8000"]).run().ok();
    let (samples, rate) = run.samples("out.wav");
    assert_eq!(rate, 8_000);
    assert!(samples.len() > 4_000 && samples.iter().any(|sample| sample.unsigned_abs() > 1_000));
    refuses_in_one_line(Program::new(["speak", " ", "-o", "out.wav"]), 2, "blank");
    refuses_in_one_line(Program::new(["speak", "hi", "-o", "no/out.wav"]), 2, "no/out.wav");
}

#[cfg(target_os = "linux")]
#[test]
fn events_that_cannot_be_written_are_a_failure() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let run = talk().text("hello").run_into(full);
    assert_eq!(run.status, 1, "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("standard output: No space left"), "{}", run.stderr);
}

/// A pipe whose other end nobody opens.
#[cfg(unix)]
#[test]
fn a_pipe_that_nobody_writes_to_is_given_up() {
    let program = talk();
    let made = std::process::Command::new("mkfifo")
        .arg(program.folder.path().join("pipe.wav"))
        .status()
        .unwrap();
    assert!(made.success());
    refuses_in_one_line(program.args(["--input", "pipe.wav"]), 2, "pipe.wav: nobody wrote");
}
