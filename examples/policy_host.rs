//! A payment agent whose host answers for what the model may do: small amounts pass, larger ones wait
//! until a person approves them, forbidden destinations are refused, a limit holds however many calls
//! come at once, and a log of receipts shows if anybody changed it. The same host goes into a voice
//! session with `AgentSession::builder(…).authorize(host)`.
//!
//! Ends with status 1 where anything is not as it says.
//!
//! `cargo run --features tools --example policy_host -- [--receipts FILE]`

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
        Admission, Agent, AgentInit, CallContext, Caller, Executed, FuncTool, InMemory,
        InMemorySessionStore, Invocation, InvocationContext, Invoke, Outcome, Parking, RunContext,
        ToolExecutor, ToolRegistry,
        approval::{Answer, Approvals},
        types::{JsonObject, ToolArguments, ToolCallRequest},
    },
    policy::{
        AllowList, AmountField, AskAbove, Destinations, Limit, Per, PolicyHost, ReceiptLog,
        receipts::{Redaction, verify},
    },
    tools::{CommandSpec, CommandTool},
};
use serde_json::{Value, json};

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
    let tools = ToolExecutor::new(registry(&sent, &path)?, Some(Arc::new(host)));
    let store = Arc::new(InMemorySessionStore::new());
    let bank = Bank::open(tools.clone(), store.clone()).await?;

    let small = bank.call("1", "send_money", json!({"cents": 500})).await;
    println!("5 euros: {}", said(&small));
    let large = bank.call("2", "send_money", json!({"cents": 15_000})).await;
    println!("150 euros: {}", said(&large));
    for (id, cents) in [("3", json!("5 000")), ("4", json!(-1)), ("5", json!(1.5))] {
        let refused = bank.call(id, "send_money", json!({"cents": cents})).await;
        println!("{cents}: {}", said(&refused));
        expect(refused.is_err(), "such an amount is refused")?;
    }
    let number = bank.call("6", "sms", json!({"to": "+4930123456"})).await;
    println!("a number: {}", said(&number));
    let dear = bank.call("7", "sms", json!({"to": "+49900123456"})).await;
    println!("a dear one: {}", said(&dear));
    expect(number.is_ok() && dear.is_err(), "only the dear number is refused")?;
    let audit = bank.call("8", "audit", json!({})).await;
    println!("a program looks for its own receipt: {}", said(&audit));
    let found = audit.is_ok_and(|done| done.output["found_itself"] == true);
    expect(found, "the receipt is there before the program runs")?;

    // A person decides over the large one, who is not the one that it is counted against.
    let parked = large?.approval.ok_or("it waits for a person")?;
    expect(sent.load(Ordering::SeqCst) == 500, "what waits has not been sent")?;
    let clerk = InvocationContext::new().with_caller(Caller::new("a clerk"));
    let answer = Answer::new().by("the night watch").shown(&parked.arguments);
    let memory = Arc::new(InMemory::new());
    let approvals = Approvals::new(store)?;
    let approved = approvals.approve(&clerk, &parked.key, answer, &tools, memory).await?;
    println!("150 euros, approved: {:?}", approved.state);
    expect(sent.load(Ordering::SeqCst) == 15_500, "what was approved is sent, once")?;

    let many: Vec<_> = (0..50).map(|n| format!("many-{n}")).collect();
    let calls = many.iter().map(|id| bank.call(id, "send_money", json!({"cents": 3_000})));
    let passed = futures_util::future::join_all(calls).await.iter().filter(|it| it.is_ok()).count();
    let total = sent.load(Ordering::SeqCst);
    println!("50 times 30 euros at once: {passed} passed, {total} cents sent");
    expect(passed == 11 && total == 48_500, "no more than 500 euros a day")?;

    let head = log.head();
    println!("{} receipts: {:?}", head.count, verified(&path)?);
    // One byte, in a copy.
    let mut text = fs::read(&path)?;
    let at = text.len() / 2;
    text[at] ^= 1;
    let line = text[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    let found = verify(text.as_slice(), Some(&head)).err().ok_or("nobody noticed")?;
    println!("one byte changed: {found}");
    expect(found.line == line, "the changed line is found")
}

fn expect(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("this does not hold: {what}").into()) }
}

fn said(done: &Result<Executed, String>) -> String {
    match done {
        Ok(executed) if executed.outcome == Outcome::Paused => "a person has to decide".to_owned(),
        Ok(executed) => format!("done {}", executed.output),
        Err(reason) => format!("refused: {reason}"),
    }
}

/// A turn of the agent, in Ann's name.
struct Bank {
    tools: ToolExecutor,
    cx: InvocationContext,
    /// As long as it goes on, so does what is known of its calls.
    _invocation: Invocation,
}

impl Bank {
    async fn open(
        tools: ToolExecutor,
        store: Arc<InMemorySessionStore>,
    ) -> Result<Self, Box<dyn Error>> {
        let agent =
            Agent::custom("bank", |_cx, _responder, runner| async move { Ok(runner.result()) });
        let agent: Agent = agent.shared_store(store).build();
        let ann = InvocationContext::new().with_caller(Caller::new("ann"));
        let invocation = agent.open(&ann, AgentInit::session("example")).await?;
        Ok(Self { tools, cx: invocation.context().clone(), _invocation: invocation })
    }

    /// Has the host decide over a call, and runs it if it may. Errs with why it was refused.
    async fn call(&self, id: &str, tool: &str, args: Value) -> Result<Executed, String> {
        let memory = Arc::new(InMemory::new());
        let mut cx = CallContext::new("example", 1, memory.clone());
        cx.invocation = self.cx.clone();
        let mut args: JsonObject = args.as_object().cloned().unwrap_or_default();
        if tool == "send_money" {
            args.insert("iban".into(), "DE02120300000000202051".into());
        }
        let arguments = ToolArguments::Object(args);
        let request = ToolCallRequest { id: id.into(), name: tool.into(), arguments };
        match self.tools.admit_within(&cx, request, Some(Duration::from_secs(10))).await {
            Admission::Run(call) => {
                let run = RunContext::new("example", 1, memory, Default::default())
                    .with_invocation(cx.invocation)
                    .parking(Parking::default());
                let executed = self.tools.run(call, run).await;
                match executed.outcome {
                    Outcome::Success | Outcome::Paused => Ok(executed),
                    other => Err(format!("{other:?}: {}", executed.output)),
                }
            }
            Admission::Refused(refused) => Err(refused.reason),
            other => Err(format!("{other:?}")),
        }
    }
}

fn registry(sent: &Arc<AtomicU64>, log: &Path) -> Result<Arc<ToolRegistry>, Box<dyn Error>> {
    let registry = ToolRegistry::new();
    let sent = sent.clone();
    let anything = || json!({"type": "object"});
    registry.register(FuncTool::new("send_money", "Sends.", anything(), move |_, args| {
        let cents = args.get("cents").and_then(|cents| cents.as_u64()).unwrap_or(0);
        sent.fetch_add(cents, Ordering::SeqCst);
        async move { Ok(JsonObject::from_iter([("sent".to_owned(), json!(cents))])) }
    }))?;
    registry.register(FuncTool::new("sms", "Sends a text.", anything(), |_, _| async {
        Ok(JsonObject::new())
    }))?;
    // A program of its own, which reads the log while it runs.
    let script = r#"grep "\"call\":\"$ANTIPHON_CALL_ID\"" "$0" | grep -q '"verdict":"allow"' &&
        echo '{"found_itself": true}'"#;
    let log = log.to_str().ok_or("the path of the log is no text")?;
    let command = ["/bin/sh", "-c", script, log].map(str::to_owned).to_vec();
    registry.register(CommandTool::new(CommandSpec::new("audit", command)))?;
    Ok(Arc::new(registry))
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
