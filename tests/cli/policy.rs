//! Policies and receipts with the real program.

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Program, Run};

pub(crate) const POLICY: &str = r#"{
  "policies": [
    {"id": "tools", "kind": "allow_list", "tools": ["pay_supplier", "look_up_*"]},
    {"id": "large", "kind": "ask_above", "tools": "pay_supplier",
     "amount": {"field": "cents", "unit": "minor"}, "above": "10000"}
  ],
  "limits": [
    {"id": "daily", "tools": "pay_supplier", "per": ["caller"], "window": "1d",
     "amount": {"field": "cents", "unit": "minor"}, "max": "50000"}
  ]
}"#;

const CEDAR: &str = r#"@id("customers")
permit (principal, action == Action::"pay_supplier", resource)
when { principal.known && context.arguments.cents <= 50000 };

@id("large")
@ask("somebody has to look")
forbid (principal, action == Action::"pay_supplier", resource)
when { context.arguments.cents > 10000 };
"#;

const TOOLS: &str = r#"[{"name": "pay_supplier", "description": "Sends money.",
  "parameters": {"type": "object", "required": ["cents"],
                 "properties": {"cents": {"type": "integer"}}},
  "command": ["/bin/true"]}]"#;

fn policy(arguments: &[&str]) -> Program {
    let program = Program::new(["policy"]).args(arguments);
    program.file("p.json", POLICY).file("p.cedar", CEDAR).file("tools.json", TOOLS).file(
        "both.json",
        r#"{"policies": [
              {"id": "tools", "kind": "allow_list", "tools": ["pay_supplier"]},
              {"id": "bank", "kind": "cedar", "files": ["p.cedar"]}]}"#,
    )
}

#[test]
fn a_policy_file_is_checked_with_and_without_its_tools() {
    let run = policy(&["check", "p.json"]).run().ok();
    assert_eq!(run.stdout, "p.json: fine\n");
    let run = policy(&["check", "p.json", "--tools", "tools.json"]).run();
    assert_eq!(run.status, 1);
    assert_eq!(run.stdout, "p.json: no tool fits \"look_up_*\"\n");
    let broken = POLICY.replace("ask_above", "ask_below");
    let run = policy(&["check", "p.json"]).file("p.json", &broken).run();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("p.json:4:") && run.stderr.contains("ask_below"), "{}", run.stderr);
    assert_eq!(policy(&["check", "none.json"]).run().status, 2);
    // The built-in tools are known.
    let notes = r#"{"default": "allow", "rules": [{"tool": "delete_notes", "action": "deny"}]}"#;
    let run = policy(&["check", "n.json", "--tools", "tools.json"]).file("n.json", notes).run();
    run.ok();
}

#[test]
fn policies_in_cedar_are_checked_against_the_tools() {
    let with_tools = |file: &str| policy(&["check", file, "--tools", "tools.json"]);
    with_tools("p.cedar").run().ok();
    with_tools("both.json").run().ok();
    let run = policy(&["check", "p.cedar"]).run();
    assert_eq!(run.status, 2, "without the tools there is no such action");
    assert!(run.stderr.contains("p.cedar:"), "{}", run.stderr);
    let typo = CEDAR.replace("context.arguments.cents > 10000", "context.arguments.euros > 100");
    let run = with_tools("both.json").file("p.cedar", &typo).run();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("p.cedar:8:") && run.stderr.contains("euros"), "{}", run.stderr);
    let run = with_tools("p.cedar").file("p.cedar", "permit (principal;").run();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("p.cedar:1:"), "{}", run.stderr);
    let run = policy(&["schema", "p.json", "--tools", "tools.json"]).run().ok();
    assert!(run.stdout.contains("pay_supplier") && run.stdout.contains("daily"), "{}", run.stdout);
}

#[test]
fn what_each_policy_says_of_a_call_is_explained() {
    let call = r#"{"tool": "pay_supplier", "args": {"cents": 20000}, "caller": "ann"}"#;
    let run = policy(&["explain", "p.json", call]).run().ok();
    assert!(run.stdout.contains("tools: allow\n"), "{}", run.stdout);
    assert!(run.stdout.contains("=> ask a person: "), "{}", run.stdout);
    assert!(run.stdout.trim_end().ends_with("(decided by large)"), "{}", run.stdout);
    let run = policy(&["explain", "both.json", call, "--tools", "tools.json"]).run().ok();
    assert!(run.stdout.contains("ask a person: somebody has to look"), "{}", run.stdout);
    assert!(run.stdout.trim_end().ends_with("(decided by bank/large)"), "{}", run.stdout);
    let run = policy(&["explain", "p.json", r#"{"tol": "x"}"#]).run();
    assert_eq!(run.status, 2, "{}", run.stderr);
}

#[test]
fn a_table_of_scenarios_is_met_or_not() {
    let table = |expect: &str| {
        format!(
            r#"[{{"name": "small", "tool": "pay_supplier", "args": {{"cents": 5}}, "caller": "ann",
                 "expect": "{expect}"}},
                {{"name": "spent", "tool": "pay_supplier", "args": {{"cents": 5}}, "caller": "ann",
                 "spent": {{"daily": {{"amount": 49999}}}}, "expect": "rate_limited",
                 "by": ["daily"]}}]"#
        )
    };
    let test = |table: &str| policy(&["test", "p.json", "s.json"]).file("s.json", table).run();
    let run = test(&table("allow"));
    assert_eq!(run.status, 0, "{}", run.stdout);
    assert!(run.stdout.ends_with("2 of 2 scenarios are as expected\n"), "{}", run.stdout);
    let run = test(&table("deny"));
    assert_eq!(run.status, 1);
    assert!(run.stdout.contains("FAIL small") && run.stdout.contains("1 of 2"), "{}", run.stdout);
    let run = test(&table("allow").replace("daily", "dayly"));
    assert_eq!(run.status, 2, "a limit that there is not: {}", run.stdout);
    let cedar = r#"[{"tool": "pay_supplier", "args": {"cents": 5}, "caller": "ann",
                     "expect": "allow", "by": ["cedar/customers"]},
                    {"tool": "pay_supplier", "args": {"cents": 5}, "expect": "deny"}]"#;
    let arguments = ["test", "p.cedar", "s.json", "--tools", "tools.json"];
    policy(&arguments).file("s.json", cedar).run().ok();
}

/// A tool that finds its own receipt while it runs, and is asked for in words.
const DOOR: &str = r#"[{"name": "open_door", "description": "Opens the door.",
  "phrases": ["open the door"], "answer": "It is open.",
  "command": ["/bin/sh", "-c",
    "grep '\"call\":\"'$ANTIPHON_CALL_ID'\"' receipts | grep -q '\"verdict\":\"allow\"' && echo $ANTIPHON_CALL_ID >> opened && printf '{\"open\": true}'"]}]"#;

/// Ann opens the door once a day; `action` says by whom it is decided.
fn door(action: &str) -> String {
    format!(
        r#"{{"policies": [
             {{"id": "tools", "kind": "allow_list", "tools": ["open_door"]}},
             {{"kind": "rules", "default": "allow", "rules":
               [{{"tool": "open_door", "action": "{action}", "reason": "somebody has to look"}}]}}],
            "limits": [{{"id": "once", "tools": "open_door", "per": ["caller"], "window": "1d",
                        "calls": 1}}],
            "receipts": {{"durable": ["open_door"]}}}}"#
    )
}

const BOOKS: [&str; 8] = [
    "--tools",
    "tools.json",
    "--policy",
    "policy.json",
    "--limits",
    "limits.db",
    "--receipts",
    "receipts",
];

/// Somebody asks for the door.
fn asks(folder: Option<TempDir>, caller: &str, action: &str) -> Run {
    let mut program = Program::talk();
    if let Some(folder) = folder {
        program = program.in_folder(folder);
    }
    let program = program.text("open the door").file("tools.json", DOOR);
    let program = program.file("policy.json", &door(action)).args(BOOKS);
    program.args(["--output", "none", "--store", "turns.db", "--caller", caller]).run().ok()
}

fn entries(run: &Run) -> Vec<Value> {
    let text = std::fs::read_to_string(run.folder.path().join("receipts")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|mut line| line["entry"].take()).collect()
}

fn said(entries: &[Value]) -> Vec<String> {
    let said = entries.iter().map(|entry| {
        let kind = if entry["kind"] == "decision" { "verdict" } else { "outcome" };
        let who = entry["caller"].as_str().unwrap_or_default();
        format!("{} {who}", entry[kind].as_str().unwrap_or_default()).trim().to_owned()
    });
    said.collect()
}

fn opened(run: &Run) -> usize {
    let file = std::fs::read_to_string(run.folder.path().join("opened"));
    file.map_or(0, |text| text.lines().count())
}

fn verify(folder: TempDir, arguments: &[&str]) -> Run {
    Program::new(["receipts", "verify", "receipts"]).args(arguments).in_folder(folder).run()
}

#[cfg(unix)]
#[test]
fn a_command_finds_its_own_receipt_and_the_limit_outlives_the_program() {
    let run = asks(None, "ann", "allow");
    assert_eq!(opened(&run), 1, "{}", run.stdout);
    let run = asks(Some(run.folder), "ann", "allow");
    assert_eq!(opened(&run), 1, "once a day");
    let run = asks(Some(run.folder), "bob", "allow");
    assert_eq!(opened(&run), 2);
    let entries = entries(&run);
    assert_eq!(
        said(&entries),
        ["allow ann", "success", "rate_limited ann", "allow bob", "success"]
    );
    let run = verify(run.folder, &[]).ok();
    assert_eq!(run.stdout, "receipts: 5 entries, each as it was written\n");
}

#[cfg(unix)]
#[test]
fn whoever_approves_a_call_it_is_the_callers_and_the_log_says_who() {
    let run = asks(None, "ann", "ask");
    let key = run.one("approval_requested")["approval"].as_str().unwrap().to_owned();
    let approve = |folder, key: &str, books: &[&str]| {
        let program = Program::new(["approvals", "approve", key, "--store", "turns.db", "--json"]);
        program.args(["--by", "the night watch"]).args(books).in_folder(folder).run()
    };
    // Not without the policy, the log and the count that the conversation had.
    let mut folder = run.folder;
    for missing in ["--policy", "--receipts", "--limits"] {
        let at = BOOKS.iter().position(|flag| *flag == missing).unwrap();
        let books = [&BOOKS[..at], &BOOKS[at + 2..]].concat();
        let run = approve(folder, &key, &books);
        assert_eq!(run.status, 2, "without {missing}: {}", run.stderr);
        folder = run.folder;
    }
    let run = approve(folder, &key, &BOOKS).ok();
    assert_eq!(opened(&run), 1);
    let run = asks(Some(run.folder), "ann", "ask");
    let key = run.one("approval_requested")["approval"].as_str().unwrap().to_owned();
    let run = approve(run.folder, &key, &BOOKS);
    assert_eq!(opened(&run), 1, "Ann has had it: {}", run.stdout);
    let log = entries(&run);
    let expected = ["ask ann", "allow ann", "success", "ask ann", "rate_limited ann"];
    assert_eq!(said(&log), expected);
    assert_eq!(
        (&log[1]["approved_by"], &log[1]["point"]),
        (&"the night watch".into(), &"start".into())
    );

    let run = asks(Some(run.folder), "bob", "ask");
    let key = run.one("approval_requested")["approval"].as_str().unwrap().to_owned();
    let deny = ["approvals", "deny", &*key, "--store", "turns.db", "--by", "ann"];
    let program = Program::new(deny).args(["--policy", "policy.json", "--receipts", "receipts"]);
    let run = program.args(["--reason", "it is late"]).in_folder_of(run).run().ok();
    let log = entries(&run);
    let last = log.last().unwrap();
    assert_eq!((&last["verdict"], &last["decided_by"]), (&"not_approved".into(), &"ann".into()));
    assert_eq!((&last["reason"], &last["caller"]), (&"it is late".into(), &"bob".into()));
    verify(run.folder, &[]).ok();
}

#[cfg(unix)]
#[test]
fn whatever_is_done_to_a_log_is_found_where_it_is() {
    let mut run = asks(None, "ann", "allow");
    for caller in ["bob", "carl"] {
        run = asks(Some(run.folder), caller, "allow");
    }
    let path = run.folder.path().join("receipts");
    let whole = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    assert_eq!(lines.len(), 6);
    let run = verify(run.folder, &["--print-head"]).ok();
    let head = run.stdout.trim().to_owned();
    assert!(head.starts_with("6:") && head.len() == 66, "{head}");
    let with_head = ["--head", &*head];
    let run = verify(run.folder, &with_head).ok();
    let without = |removed: usize| {
        let kept = lines.iter().enumerate().filter(|(n, _)| *n != removed);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    let mut swapped = lines.clone();
    swapped.swap(1, 2);
    let swapped = swapped.iter().map(|line| format!("{line}\n")).collect::<String>();
    let torn = whole[..whole.len() - 20].to_owned();
    let tail = lines[..4].iter().map(|line| format!("{line}\n")).collect::<String>();
    let cases: [(String, &[&str], &str); 6] = [
        (whole.replacen("\"bob\"", "\"rob\"", 1), &[], "line 3: "),
        (without(1), &[], "line 2: "),
        (swapped, &[], "line 2: "),
        (torn, &[], "line 6: "),
        (tail, &with_head, "line 5: "),
        (String::new(), &with_head, "line 1: "),
    ];
    let mut folder = run.folder;
    for (text, flags, place) in cases {
        std::fs::write(&path, text).unwrap();
        let run = verify(folder, flags);
        assert_eq!(run.status, 1, "{}", run.stdout);
        assert!(run.stderr.contains(place), "{place} {}", run.stderr);
        folder = run.folder;
    }
    // A log of the same length that is another's.
    std::fs::remove_file(&path).unwrap();
    let mut run = asks(Some(folder), "dora", "allow");
    for caller in ["eve", "fred"] {
        run = asks(Some(run.folder), caller, "allow");
    }
    let run = verify(run.folder, &with_head);
    assert!(run.status == 1 && run.stderr.contains("line 6: "), "{}", run.stderr);
    let run = verify(run.folder, &["--head", "6:12"]);
    assert_eq!(run.status, 2);
}

#[test]
fn durable_receipts_need_a_log() {
    let program = Program::talk().text("open the door").file("tools.json", DOOR);
    let program = program.file("policy.json", &door("allow"));
    let run = program
        .args(["--output", "none", "--tools", "tools.json", "--policy", "policy.json"])
        .run();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("--receipts"), "{}", run.stderr);
}
