//! `antiphon approvals`.

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use antiphon::{
    agent::{
        Caller, InvocationContext, Memory, ToolExecutor,
        approval::{Answer, ApprovalError, Approvals},
        ledger::{CallRecord, CallState},
        memory::{FileMemory, InMemory},
    },
    policy::{PolicyFile, PolicyHost, ReceiptLog},
    types::JsonObject,
};
use serde_json::{Value, json};

use crate::{
    args::{ApprovalsArguments, ApprovalsCommand, StoreArguments},
    failure::Failure,
    store::Store,
    toolbox::{Equipment, Toolbox},
};

/// Does what the command line says.
pub fn run(arguments: ApprovalsArguments) -> Result<(), Failure> {
    // Blocking tools and the store have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    runtime.block_on(async {
        match arguments.command {
            ApprovalsCommand::List { session, common } => {
                let desk = Desk::open(&common).await?;
                let waiting = desk.approvals.waiting(&desk.cx, session.as_deref()).await;
                print(&waiting.map_err(refused)?, common.json)
            }
            ApprovalsCommand::Show { key, common } => {
                let desk = Desk::open(&common).await?;
                let call = desk.approvals.call(&desk.cx, &key).await.map_err(refused)?;
                print(&[call], common.json)
            }
            ApprovalsCommand::Approve {
                key,
                by,
                arguments,
                answer,
                tools,
                policy,
                books,
                memory,
                common,
            } => {
                let equipment = Equipment::read(tools.as_deref(), named(&policy), &books)?;
                equipment.remembers()?;
                let memory: Arc<dyn Memory> = match &memory {
                    Some(path) => Arc::new(FileMemory::open(path).await.map_err(Failure::usage)?),
                    None => Arc::new(InMemory::new()),
                };
                let desk = Desk::open(&common).await?;
                let mut decision = answered_by(by);
                if let Some(text) = arguments {
                    decision = decision.shown(&object(&text)?);
                }
                if let Some(text) = answer {
                    decision = decision.told(object(&text)?);
                }
                let (toolbox, policy) = Toolbox::new(equipment, memory.clone())?;
                let tools = ToolExecutor::new(toolbox.registry, Some(Arc::new(policy)));
                let approved =
                    desk.approvals.approve(&desk.cx, &key, decision, &tools, memory).await;
                print(&[approved.map_err(refused)?], common.json)
            }
            ApprovalsCommand::Deny { key, by, reason, receipts, policy, common } => {
                let books = receipts.zip(policy);
                let book = books.map(|(receipts, policy)| book(&receipts, &policy)).transpose()?;
                let mut desk = Desk::open(&common).await?;
                let mut answer = answered_by(by);
                answer.reason = reason;
                if let Some(book) = book {
                    desk.approvals = desk.approvals.witnessed_by(&book);
                }
                let denied = desk.approvals.deny(&desk.cx, &key, answer).await;
                print(&[denied.map_err(refused)?], common.json)
            }
        }
    })
}

/// What stands for the rules that come with the program.
const BUILT_IN: &str = "built-in";

fn named(policy: &Path) -> Option<&Path> {
    (policy != Path::new(BUILT_IN)).then_some(policy)
}

/// Where a refusal is written down, without what the policy does not show. Nothing is judged by it.
fn book(receipts: &Path, policy: &Path) -> Result<PolicyHost, Failure> {
    let log = ReceiptLog::open(receipts).map_err(Failure::usage)?;
    let mut host = PolicyHost::builder().receipts(log);
    if let Some(policy) = named(policy) {
        for redaction in PolicyFile::load(policy).map_err(Failure::usage)?.redactions() {
            host = host.redact(redaction.clone());
        }
    }
    host.build().map_err(Failure::usage)
}

/// A store and in whose name it is decided.
struct Desk {
    approvals: Approvals,
    cx: InvocationContext,
}

impl Desk {
    async fn open(common: &StoreArguments) -> Result<Self, Failure> {
        let mut caller = Caller::new("command line");
        if let Some(scope) = &common.scope {
            caller = caller.scope(scope.as_str());
        }
        let store = Store::open_existing(&common.store).await?;
        let approvals = Approvals::new(store.shared()).map_err(Failure::failed)?;
        Ok(Self { approvals, cx: InvocationContext::new().with_caller(caller) })
    }
}

fn answered_by(by: Option<String>) -> Answer {
    Answer::new().by(by.unwrap_or_else(|| "command line".into()))
}

fn object(text: &str) -> Result<JsonObject, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::usage(format!("{text:?} is no JSON object: {error}")))
}

/// A key that is not there, or a tool, is wrong usage; a call that was decided over is a failure.
fn refused(error: ApprovalError) -> Failure {
    match error {
        ApprovalError::NotFound(_) | ApprovalError::NoTool(_) => Failure::usage(error),
        error => Failure::failed(error),
    }
}

fn print(calls: &[CallRecord], json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let printed = calls.iter().try_for_each(|call| match json {
        true => writeln!(out, "{}", as_json(call)),
        false => writeln!(out, "{}", in_words(call)),
    });
    match printed.and_then(|()| out.flush()) {
        // Who closes the pipe has read enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("output: {error}")))
        }
        _ => Ok(()),
    }
}

fn as_json(call: &CallRecord) -> Value {
    let approval = call.approval.as_ref();
    let (state, outcome, output) = match &call.state {
        CallState::Waiting => ("waiting", Value::Null, Value::Null),
        CallState::Running { .. } => ("running", Value::Null, Value::Null),
        CallState::Ended { outcome, output, .. } => ("ended", json!(outcome), output.clone()),
        _ => ("unknown", Value::Null, Value::Null),
    };
    json!({
        "key": call.key,
        "state": state,
        "outcome": outcome,
        "output": output,
        "tool": call.tool,
        "arguments": call.arguments,
        "argumentsHash": call.arguments_hash,
        "question": approval.map(|it| it.question.clone()),
        "sessionId": call.session_id,
        "agent": call.agent,
        "callId": call.call_id,
        "snapshotId": call.snapshot_id,
        "requestedAt": approval.map(|it| it.requested_at),
        "expiresAt": approval.and_then(|it| it.expires_at),
        "decision": approval.and_then(|it| it.decision.clone()),
    })
}

fn in_words(call: &CallRecord) -> String {
    let asks = call.approval.as_ref().map(|approval| &approval.question);
    let asks = asks.map(|question| match question["reason"].as_str() {
        Some(reason) => reason.to_owned(),
        None => question.to_string(),
    });
    let (key, tool, args) = (&call.key, &call.tool, json!(call.arguments));
    let state = match &call.state {
        CallState::Waiting => {
            let until = call.approval.as_ref().and_then(|approval| approval.expires_at);
            until.map_or_else(|| "waits".to_owned(), |until| format!("waits until {until:.0}"))
        }
        CallState::Running { since, .. } => format!("runs since {since:.0}"),
        CallState::Ended { outcome, output, .. } => {
            format!("{}: {output}", json!(outcome).as_str().unwrap_or_default())
        }
        _ => "unknown".to_owned(),
    };
    format!("{key}  {tool} {args}  {state}  ({})", asks.unwrap_or_default())
}
