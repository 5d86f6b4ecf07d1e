//! `antiphon bridge check`, and tokens.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::program::{Program, Run};

const CONFIG: &str = r#"listen = "127.0.0.1:0"
public_url = "https://calls.example.com"
token_secret_env = "TOKENS"
records = "calls.jsonl"

[carriers.twilio]
verify = "signature_and_token"
auth_token_env = "TOKENS"
account_sid = "AC1"

[outbound]
carrier = "twilio"
from = "+15550199"
allow = ["+1555"]
calls_per_day = 5
ledger = "outbound.sqlite"

[agent]
provider = "offline"
limits = "limits.sqlite"
receipts = "receipts"

[agents.sales]
policy = "sales.json"
"#;

fn bridge(config: &str, arguments: &[&str]) -> Run {
    Program::new(["bridge", "--config", "bridge.toml"])
        .args(arguments)
        .environment("TOKENS", "a secret of some length")
        .file("bridge.toml", config)
        .file("sales.json", r#"{"default": "allow", "rules": []}"#)
        .run()
}

#[test]
fn check_looks_at_everything_that_a_configuration_names() {
    let run = bridge(CONFIG, &["check"]);
    assert_eq!(run.status, 0, "{}{}", run.stdout, run.stderr);
    for part in [
        "ok      listen: 127.0.0.1:0 is free",
        "ok      carriers.twilio: wss://calls.example.com/telephony/twilio",
        "ok      agent.provider: the offline agent",
        "ok      agent.limits: limits.sqlite",
        "ok      agent.receipts: receipts",
        "ok      agents.sales.policy: sales.json",
        "ok      outbound: by twilio, from +15550199",
        "ok      records: calls.jsonl",
    ] {
        assert!(run.stdout.contains(part), "{part:?} is not in:\n{}", run.stdout);
    }
}

#[test]
fn check_tells_the_line_of_what_cannot_be_used() {
    for (change, line, setting) in [
        (("provider = \"offline\"", "provider = \"openai\""), 19, "agent.provider"),
        (("limits.sqlite", "missing/limits.sqlite"), 20, "agent.limits"),
        (("= \"receipts\"", "= \"missing/receipts\""), 21, "agent.receipts"),
        (("sales.json", "missing.json"), 24, "agents.sales.policy"),
        (("policy = \"sales.json\"", "provider = \"gemini\""), 24, "agents.sales.provider"),
        (("records = \"", "records = \"missing/"), 4, "records"),
        (("account_sid = \"AC1\"\n", ""), 10, "outbound"),
    ] {
        let config = CONFIG.replace(change.0, change.1);
        assert_ne!(config, CONFIG);
        let run = bridge(&config, &["check"]);
        assert_eq!(run.status, 1, "{setting}: {}{}", run.stdout, run.stderr);
        let told = format!("failed  {setting}: line {line}, column ");
        assert!(run.stdout.contains(&told), "{told:?} is not in:\n{}", run.stdout);
    }
}

#[test]
fn a_token_names_an_agent_that_there_is() {
    let run = bridge(CONFIG, &["token", "--agent", "sales", "--call", "CA1"]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    assert_eq!(run.stdout.trim().split('.').count(), 2, "{}", run.stdout);
    let run = bridge(CONFIG, &["token", "--agent", "nobody"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("no [agents.nobody]"), "{}", run.stderr);
}

/// Ended with the test.
struct Bridge(Child);

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A call over AudioSocket, with 20 ms of silence.
fn call(address: &str, number: u8) -> TcpStream {
    let mut line = TcpStream::connect(address).unwrap();
    line.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    line.write_all(&[&[0x01, 0, 16][..], &[number; 16]].concat()).unwrap();
    line.write_all(&[&[0x10, 1, 64][..], &[0; 320]].concat()).unwrap();
    line
}

#[test]
fn who_reads_no_records_silences_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let config = "listen = \"127.0.0.1:0\"\naudiosocket = \"127.0.0.1:0\"\n\
                  [agent]\nprovider = \"offline\"\ngreeting = \"Hello.\"\n";
    std::fs::write(folder.path().join("bridge.toml"), config).unwrap();
    let mut bridge = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    bridge.arg("bridge").current_dir(folder.path());
    let bridge = bridge.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut bridge = Bridge(bridge);
    let mut told = BufReader::new(bridge.0.stderr.take().unwrap()).lines();
    let address = told
        .find_map(|line| {
            Some(line.unwrap().strip_prefix("antiphon: answering AudioSocket at ")?.to_owned())
        })
        .unwrap();
    // More than a pipe holds; nobody reads from it.
    for number in 0..100 {
        let mut line = call(&address, number);
        line.write_all(&[0x00, 0, 0]).unwrap();
        // Until it is over.
        let _ = line.read_to_end(&mut Vec::new());
    }
    let mut line = call(&address, 200);
    let began = Instant::now();
    let mut packet = [0; 323];
    while packet[3..].iter().all(|byte| *byte == 0) {
        assert!(began.elapsed() < Duration::from_secs(60), "the greeting is not heard");
        line.read_exact(&mut packet).unwrap();
    }
}
