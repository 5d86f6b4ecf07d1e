//! Recordings: made by `talk`, read by `replay` and `explain`.

use std::fs;

use crate::program::Program;

#[test]
fn a_conversation_is_recorded_and_runs_again_and_is_explained() {
    let run = Program::talk()
        .question("time.wav")
        .args(["--output", "none", "--record", "calls"])
        .run()
        .ok();
    assert!(run.stderr.contains("recorded in"), "{}", run.stderr);
    let calls = run.folder.path().join("calls");
    let file = fs::read_dir(&calls).unwrap().next().unwrap().unwrap().path();
    let file = file.to_str().unwrap().to_owned();
    assert!(!fs::read_to_string(&file).unwrap().contains("base64"), "no samples were asked for");

    let run = Program::new(["replay", &file]).in_folder_of(run).run();
    assert_eq!(run.status, 0, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("the same"), "{}", run.stdout);
    let run = Program::new(["explain", &file]).in_folder_of(run).run();
    assert_eq!(run.status, 0, "{}{}", run.stdout, run.stderr);
    for part in ["Turn 1", "the user: ", "the tool clock took", "it said “It is "] {
        assert!(run.stdout.contains(part), "no {part:?} in {}", run.stdout);
    }

    // A word of the user is another than the engine was given then.
    let text = fs::read_to_string(&file).unwrap();
    let heard = |line: &str| line.contains("input_transcript");
    let changed: String = text
        .lines()
        .map(|line| if heard(line) { line.replace("time", "tide") } else { line.to_owned() } + "\n")
        .collect();
    assert_ne!(changed, text);
    let run = Program::new(["replay", "changed.jsonl"]).file("changed.jsonl", &changed).run();
    assert_eq!(run.status, 1, "{}", run.stdout);
    assert!(run.stdout.contains("not the same") && run.stdout.contains("line "), "{}", run.stdout);
}

#[test]
fn what_is_no_recording_is_told() {
    let run = Program::new(["replay", "notes.txt"]).file("notes.txt", "hello\n").run();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("notes.txt: no recording"), "{}", run.stderr);
    let run = Program::new(["explain", "nowhere.jsonl"]).run();
    assert_eq!(run.status, 2);
    let run = Program::new(["talk", "--record-audio", "--text", "hi"]).run();
    assert_eq!(run.status, 2, "--record-audio needs --record");
}
