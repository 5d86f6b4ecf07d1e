//! A payment agent whose host answers for what the model may do: small amounts pass, larger ones wait
//! for a person, forbidden destinations are refused, a limit holds however many calls come at once,
//! and a log of receipts shows if anybody changed it. No session is needed for it: the same host goes
//! into one with `AgentSession::builder(…).authorize(host)`.
//!
//! `cargo run --example policy_host -- [--receipts FILE]`

use std::{
    error::Error,
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use antiphon::{
    agent::{
        Admission, CallContext, Caller, FuncTool, InMemory, InvocationContext, Outcome, RunContext,
        ToolExecutor, ToolRegistry,
        types::{JsonObject, ToolArguments, ToolCallRequest},
    },
    policy::{
        AllowList, AmountField, AskAbove, Destinations, Limit, Per, PolicyHost, ReceiptLog,
        receipts::{Redaction, verify},
    },
};
use serde_json::json;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (path, _kept) = log_path()?;
    let log = Arc::new(ReceiptLog::open(&path)?);
    let cents = || AmountField::minor("cents");
    let host = PolicyHost::builder()
        .policy(AllowList::new("tools", ["send_money", "sms", "audit"])?)
        .policy(AskAbove::new("large", "send_money", cents(), 10_000)?)
        .policy(Destinations::new("numbers", "sms", "to")?.allow("+49")?.deny("+49900")?)
        .limit(Limit::new("daily", "send_money", DAY)?.per(Per::Caller).amount(cents(), 50_000))
        .receipts(log.clone())
        .durable("send_money")
        .redact(Redaction::new("send_money", "iban")?)
        .build()?;
    let sent = Arc::new(AtomicU64::new(0));
    let tools = ToolExecutor::new(registry(&sent, &path), Some(Arc::new(host.clone())));

    println!("5 euros: {}", call(&tools, "1", "send_money", json!({"cents": 500})).await);
    println!("900 euros: {}", call(&tools, "2", "send_money", json!({"cents": 90_000})).await);
    println!("\"5 000\": {}", call(&tools, "3", "send_money", json!({"cents": "5 000"})).await);
    println!("a number: {}", call(&tools, "4", "sms", json!({"to": "+4930123456"})).await);
    println!("a dear one: {}", call(&tools, "5", "sms", json!({"to": "+49900123456"})).await);
    println!("its own receipt: {}", call(&tools, "6", "audit", json!({})).await);

    let mut calls = tokio::task::JoinSet::new();
    for n in 0..50 {
        let tools = tools.clone();
        calls.spawn(async move {
            call(&tools, &format!("many-{n}"), "send_money", json!({"cents": 3_000})).await
        });
    }
    let said = calls.join_all().await;
    let passed = said.iter().filter(|said| said.starts_with("done")).count();
    println!(
        "50 times 30 euros at once: {passed} passed, {} cents sent",
        sent.load(Ordering::SeqCst)
    );

    let head = log.head();
    println!("{} receipts: {:?}", head.count, verified(&path)?);
    // One byte, in a copy.
    let mut text = fs::read(&path)?;
    let at = text.len() / 2;
    text[at] ^= 1;
    match verify(text.as_slice(), Some(&head)) {
        Ok(_) => println!("nobody noticed"),
        Err(found) => println!("one byte changed: {found}"),
    }
    Ok(())
}

/// Has the host decide over a call, and runs it if it may.
async fn call(tools: &ToolExecutor, id: &str, tool: &str, args: serde_json::Value) -> String {
    let memory = Arc::new(InMemory::new());
    let mut cx = CallContext::new("example", 1, memory.clone());
    cx.invocation = InvocationContext::new().with_caller(Caller::new("ann"));
    let mut args: JsonObject = args.as_object().cloned().unwrap_or_default();
    if tool == "send_money" {
        args.insert("iban".into(), "DE02120300000000202051".into());
    }
    let arguments = ToolArguments::Object(args);
    let request = ToolCallRequest { id: id.into(), name: tool.into(), arguments };
    match tools.admit_within(&cx, request, Some(Duration::from_secs(10))).await {
        Admission::Run(call) => {
            let run = RunContext::new("example", 1, memory, Default::default());
            let executed = tools.run(call, run.with_invocation(cx.invocation)).await;
            match executed.outcome {
                Outcome::Success => format!("done {}", executed.output),
                Outcome::Paused => "a person has to decide".to_owned(),
                other => format!("{other:?}"),
            }
        }
        Admission::Refused(refused) => format!("refused: {}", refused.reason),
        other => format!("{other:?}"),
    }
}

fn registry(sent: &Arc<AtomicU64>, log: &Path) -> Arc<ToolRegistry> {
    let registry = ToolRegistry::new();
    let (sent, log) = (sent.clone(), log.to_owned());
    let anything = || json!({"type": "object"});
    registry.must_register(FuncTool::new("send_money", "Sends.", anything(), move |_, args| {
        let cents = args.get("cents").and_then(|cents| cents.as_u64()).unwrap_or(0);
        sent.fetch_add(cents, Ordering::SeqCst);
        async move { Ok(JsonObject::from_iter([("sent".to_owned(), json!(cents))])) }
    }));
    registry.must_register(FuncTool::new("sms", "Sends a text.", anything(), |_, _| async {
        Ok(JsonObject::new())
    }));
    registry.must_register(FuncTool::new("audit", "Reads the log.", anything(), move |cx, _| {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let own = format!(r#""call":"{}""#, cx.call_id);
        let found =
            text.lines().any(|line| line.contains(&own) && line.contains(r#""verdict":"allow""#));
        async move { Ok(JsonObject::from_iter([("found_itself".to_owned(), found.into())])) }
    }));
    Arc::new(registry)
}

fn verified(path: &Path) -> Result<u64, Box<dyn Error>> {
    Ok(verify(BufReader::new(fs::File::open(path)?), None)?.count)
}

/// The file of `--receipts`, or one that is removed at the end.
fn log_path() -> Result<(PathBuf, Option<Removed>), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("--receipts"), Some(path)) => Ok((path.into(), None)),
        (None, _) => {
            let name = format!("antiphon-receipts-{}.jsonl", std::process::id());
            let path = std::env::temp_dir().join(name);
            Ok((path.clone(), Some(Removed(path))))
        }
        _ => Err("usage: policy_host [--receipts FILE]".into()),
    }
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It is the example's own, and nobody misses it.
        let _ = fs::remove_file(&self.0);
    }
}
