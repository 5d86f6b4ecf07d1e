//! Calls that wait for a person, decided over by HTTP.
#![cfg(unix)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    approvals::{goes_on, key_of, opened, talk, waits},
    program::Program,
};

const TOKEN: &str = "a token that nobody guesses";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// `antiphon approvals serve` in a folder where something is kept.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        Self::with(folder, &["--token-env", "TOKEN"])
    }

    /// Lets in whoever has a token of these.
    fn with(folder: &Path, tokens: &[&str]) -> Self {
        let mut child = Program::new(["approvals", "serve", "--listen", "127.0.0.1:0"])
            .args(tokens)
            .args(["--store", "turns.db", "--tools", "tools.json", "--policy", "policy.json"])
            .args(["--json"])
            .environment("TOKEN", TOKEN)
            .command()
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let address = told["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Self { child, address }
    }

    /// As any client of HTTP asks: the status, and the body.
    fn ask(&self, request: &str, token: Option<&str>, body: &str) -> (u16, Value) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let (token, length) = (token.unwrap_or_default(), body.len());
        let head =
            format!("{request} HTTP/1.1\r\nhost: x\r\n{token}content-length: {length}\r\n\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}")))
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.ask(&format!("GET {path}"), Some(TOKEN), "")
    }

    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        self.ask(&format!("POST {path}"), Some(TOKEN), body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn approve(key: &str) -> String {
    format!("/approvals/{key}/approve")
}

#[test]
fn a_call_of_a_conversation_that_is_dead_is_approved_once_by_http() {
    let mut running = waits(&[]);
    let key = key_of(&running.event("approval_requested"));
    running.event("turn_committed");
    let folder: TempDir = running.kill();
    let server = Server::start(folder.path());

    let (status, list) = server.get("/approvals");
    let calls = list["approvals"].as_array().unwrap();
    assert_eq!((status, calls.len()), (200, 1), "{list}");
    assert_eq!((&calls[0]["key"], &calls[0]["state"]), (&key.as_str().into(), &"waiting".into()));
    assert_eq!(calls[0]["question"]["reason"], "somebody has to look");
    let session = calls[0]["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/approvals?session={session}")).1, list);
    assert_eq!(server.get("/approvals?session=other").1["approvals"], Value::Array(vec![]));
    assert_eq!(server.get(&format!("/approvals/{key}")).1, calls[0]);

    // Nobody without the token, nothing by accident, and nothing that was not shown.
    for token in [None, Some("a token that somebody guesses"), Some("")] {
        let (status, body) = server.ask(&format!("POST {}", approve(&key)), token, "");
        assert_eq!((status, &body["error"]["status"]), (401, &"UNAUTHENTICATED".into()));
    }
    assert_eq!(server.get("/approvals/nothing").0, 404);
    assert_eq!(server.get("/other").0, 404);
    assert_eq!(server.get(&approve(&key)).0, 405);
    assert_eq!(server.post(&approve(&key), "{").0, 400);
    assert_eq!(server.post(&approve(&key), r#"{"arguments": {"door": 2}}"#).0, 409);
    assert_eq!(server.post(&approve(&key), r#"{"argument": {}}"#).0, 400, "a slip of the pen");
    assert_eq!(opened(&folder), 0);

    let (status, done) = server.post(&approve(&key), r#"{"by": "ann", "arguments": {}}"#);
    assert_eq!((status, &done["outcome"]), (200, &"success".into()), "{done}");
    assert_eq!((&done["decision"]["by"], opened(&folder)), (&"ann".into(), 1));
    let (status, again) = server.post(&approve(&key), "");
    assert_eq!((status, &again["approval"]["outcome"]), (409, &"success".into()), "{again}");
    assert!(again["error"]["message"].as_str().unwrap().contains("already by ann"));
    assert_eq!(server.get("/approvals").1["approvals"], Value::Array(vec![]));
    // The history knows, once.
    assert_eq!(opened(&goes_on(folder)), 1);
}

#[test]
fn who_still_talks_is_told_aloud_what_was_decided_by_http() {
    let mut running = waits(&[]);
    let key = key_of(&running.event("approval_requested"));
    let server = Server::start(running.folder.path());
    let (status, done) = server.post(&approve(&key), r#"{"by": "ann"}"#);
    assert_eq!((status, &done["state"]), (200, &"ended".into()), "{done}");
    let settled = running.event("approval_settled");
    assert_eq!((&settled["outcome"], &settled["by"]), (&"success".into(), &"ann".into()));
    loop {
        let said = running.event("agent_message")["text"].as_str().unwrap().to_owned();
        if said.contains("It is open.") {
            break;
        }
    }
    running.interrupt();
    assert_eq!(opened(&running.wait().folder), 1);
}

#[test]
fn a_call_is_refused_by_http_and_one_that_expired_is_gone() {
    let run = talk().run().ok();
    let key = key_of(run.one("approval_requested"));
    let server = Server::start(run.folder.path());
    let path = format!("/approvals/{key}/deny");
    let (status, denied) = server.post(&path, r#"{"by": "ann", "reason": "it is late"}"#);
    assert_eq!((status, &denied["outcome"]), (200, &"not_approved".into()), "{denied}");
    assert_eq!((server.post(&approve(&key), "").0, opened(&run.folder)), (409, 0));
    drop(server);

    let run = talk().args(["--approve-within", "1s"]).run().ok();
    let key = key_of(run.one("approval_requested"));
    let server = Server::start(run.folder.path());
    let began = Instant::now();
    loop {
        let (_, call) = server.get(&format!("/approvals/{key}"));
        if call["outcome"] == "expired" {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{call}");
    }
    let (status, gone) = server.post(&approve(&key), "");
    assert_eq!((status, opened(&run.folder)), (410, 0), "{gone}");
}

#[test]
fn without_a_token_nothing_is_served() {
    let run = talk().run().ok();
    let serve = ["approvals", "serve", "--store", "turns.db", "--token-env", "NO_SUCH_TOKEN"];
    let serve = [&serve[..], &["--policy", "built-in"]].concat();
    let run = Program::new(&serve).in_folder_of(run).run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(run.stderr.contains("NO_SUCH_TOKEN"), "{}", run.stderr);
    let program = Program::new(&serve).environment("NO_SUCH_TOKEN", "short").in_folder_of(run);
    let run = program.run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(run.stderr.contains("8 characters"), "{}", run.stderr);
}

/// Who decides, and by which token.
const APPROVERS: &str = "ann = the token of ann\nbob = the token of bob\ncay = the token of cay\n";

#[test]
fn of_many_who_decide_at_once_over_http_and_here_one_does_and_the_tool_runs_once() {
    for round in 0..4 {
        let run = talk().run().ok();
        let key = key_of(run.one("approval_requested"));
        let folder = run.folder;
        std::fs::write(folder.path().join("approvers"), APPROVERS).unwrap();
        let server = Server::with(folder.path(), &["--tokens", "approvers"]);
        // With somebody else's name nobody decides.
        let token = Some("the token of ann");
        let (status, _) = server.ask(&format!("POST {}", approve(&key)), token, r#"{"by": "bob"}"#);
        assert_eq!(status, 403);

        let here = |verb: &'static str, by: String| {
            let mut arguments = vec!["approvals", verb, &*key, "--store", "turns.db", "--by", &*by];
            if verb == "approve" {
                arguments.extend(["--tools", "tools.json", "--policy", "policy.json"]);
            }
            let output = Program::new(arguments).command().current_dir(folder.path()).output();
            let output = output.unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let by_http = |name: &str, verb: &str| {
            let token = format!("the token of {name}");
            server.ask(&format!("POST /approvals/{key}/{verb}"), Some(&token), "")
        };
        // Who decided, and whether for the tool.
        let decided: Vec<(String, bool)> = std::thread::scope(|scope| {
            let http = (0..12).map(|at| {
                let (name, verb) = (["ann", "bob", "cay"][at % 3], ["approve", "deny"][at % 2]);
                scope.spawn(move || match by_http(name, verb) {
                    (200, call) => {
                        assert_eq!(call["decision"]["by"], name, "{call}");
                        Some((name.to_owned(), verb == "approve"))
                    }
                    (409, _) => None,
                    other => panic!("{other:?}"),
                })
            });
            let http: Vec<_> = http.collect();
            let lines = (0..4).map(|at| {
                let (verb, by) = (["approve", "deny"][at % 2], format!("somebody {at}"));
                scope.spawn(move || match here(verb, by.clone()) {
                    (Some(0), _) => Some((by, verb == "approve")),
                    (Some(1), words) if words.contains("already by") => None,
                    other => panic!("{other:?}"),
                })
            });
            let lines: Vec<_> = lines.collect();
            http.into_iter().chain(lines).filter_map(|one| one.join().unwrap()).collect()
        });
        let [(by, approved)] = &decided[..] else { panic!("round {round}: {decided:?}") };
        let token = Some("the token of cay");
        let (_, call) = server.ask(&format!("GET /approvals/{key}"), token, "");
        assert_eq!(call["decision"]["by"], **by, "round {round}: {call}");
        let outcome = if *approved { "success" } else { "not_approved" };
        assert_eq!(call["outcome"], outcome, "round {round}: {call}");
        assert_eq!(opened(&folder), usize::from(*approved), "round {round}");
    }
}

#[test]
fn tokens_that_would_not_tell_who_decided_are_not_served() {
    let run = talk().run().ok();
    let serve = ["approvals", "serve", "--store", "turns.db", "--policy", "built-in"];
    let program = Program::new(serve).args(["--tokens", "approvers"]).in_folder_of(run);
    let run = program.file("approvers", "ann = one token for all\nbob = one token for all\n").run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(run.stderr.contains("bob") && !run.stderr.contains("one token"), "{}", run.stderr);
}
