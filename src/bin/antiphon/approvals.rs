//! `antiphon approvals`.

use std::{
    env, fs,
    io::{self, Write},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use antiphon::{
    agent::{
        Caller, InvocationContext, Memory, ToolExecutor,
        approval::{Answer, ApprovalError, Approvals},
        ledger::{CallRecord, CallState},
        memory::FileMemory,
    },
    live::acceptor::{Accepted, Acceptor, AcceptorOptions, Listener},
    policy::{PolicyFile, PolicyHost, ReceiptLog},
    serve::approvals::{ApprovalsHttp, StoreDesk, Tokens, call_as_json},
    types::JsonObject,
};
use serde_json::json;

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
                // Who only looks keeps no receipts, so that nothing may end by that.
                let approvals = desk.approvals.looking();
                let waiting = approvals.waiting(&desk.cx, session.as_deref()).await;
                print(&waiting.map_err(refused)?, common.json)
            }
            ApprovalsCommand::Show { key, common } => {
                let desk = Desk::open(&common).await?;
                let approvals = desk.approvals.looking();
                let call = approvals.call(&desk.cx, &key).await.map_err(refused)?;
                print(&[call], common.json)
            }
            ApprovalsCommand::Approve {
                key,
                by,
                arguments,
                answer,
                tools,
                agent,
                policy,
                books,
                memory,
                common,
            } => {
                let equipment = Equipment::read(tools.as_deref(), named(&policy), &books)?;
                equipment.remembers()?;
                let desk = Desk::open(&common).await?.with_tools_of(agent);
                let (tools, memory) = desk.equip(equipment, memory.as_deref()).await?;
                let mut decision = answered_by(by);
                if let Some(text) = arguments {
                    decision = decision.shown(&object(&text)?);
                }
                if let Some(text) = answer {
                    decision = decision.told(object(&text)?);
                }
                let approvals = desk.approvals.witnessed_as(&tools);
                let approved = approvals.approve(&desk.cx, &key, decision, &tools, memory).await;
                print(&[approved.map_err(refused)?], common.json)
            }
            ApprovalsCommand::Serve {
                listen,
                token_env,
                tokens,
                tools,
                agent,
                policy,
                books,
                memory,
                common,
            } => {
                let tokens = match tokens {
                    Some(file) => tokens_of(&file)?,
                    None => token_in(&token_env)?,
                };
                let equipment = Equipment::read(tools.as_deref(), named(&policy), &books)?;
                equipment.remembers()?;
                let desk = Desk::open(&common).await?.with_tools_of(agent);
                let (tools, memory) = desk.equip(equipment, memory.as_deref()).await?;
                let Desk { approvals, cx, .. } = desk;
                let desk = StoreDesk::new(approvals, tools, memory).context(cx);
                let approvals = ApprovalsHttp::new(desk, tokens);
                serve(approvals, listen, common.json).await
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
    store: Store,
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
        Ok(Self { store, approvals, cx: InvocationContext::new().with_caller(caller) })
    }

    fn with_tools_of(mut self, agent: Option<String>) -> Self {
        if let Some(agent) = agent {
            self.approvals = self.approvals.with_tools_of(agent);
        }
        self
    }

    /// The tools, under their policy, and the memory that the sessions of the store have.
    async fn equip(
        &self,
        equipment: Equipment,
        memory: Option<&Path>,
    ) -> Result<(ToolExecutor, Arc<dyn Memory>), Failure> {
        let memory: Arc<dyn Memory> = match memory {
            Some(path) => Arc::new(FileMemory::open(path).await.map_err(Failure::usage)?),
            None => self.store.memory().await?,
        };
        let (toolbox, policy) = Toolbox::new(equipment, memory.clone())?;
        Ok((ToolExecutor::new(toolbox.registry, Some(Arc::new(policy))), memory))
    }
}

/// How long tools of approved calls may take once the program is to end.
const LAST_TOOLS: Duration = Duration::from_secs(5);

/// Lets others decide, until the program is told to end.
async fn serve(approvals: ApprovalsHttp, listen: SocketAddr, json: bool) -> Result<(), Failure> {
    let mut options = AcceptorOptions::default();
    (options.max_body, options.max_connections) = (64 * 1024, 64);
    let listener = Listener::bind(listen, Acceptor::new(options)).await;
    let listener = listener.map_err(|error| Failure::usage(format!("{listen}: {error}")))?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    let told = match json {
        true => json!({ "type": "listening", "url": format!("http://{address}") }).to_string(),
        false => format!("listening on http://{address}"),
    };
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{told}").and_then(|()| out.flush());
    drop(out);
    printed.map_err(|error| Failure::failed(format!("output: {error}")))?;
    let ended = tokio::select! {
        served = listener.serve(approvals.clone(), |_: Accepted| async {}) => {
            served.map_err(Failure::failed)
        }
        () = crate::signals::interrupted() => Ok(()),
    };
    approvals.drain(LAST_TOOLS).await;
    ended
}

/// The token of whoever decides.
fn token_in(variable: &str) -> Result<Tokens, Failure> {
    let token = env::var(variable).map_err(|error| {
        Failure::usage(format!("the environment variable {variable} with the token: {error}"))
    })?;
    Tokens::one(token.trim().into()).map_err(Failure::usage)
}

/// The tokens of those who decide.
fn tokens_of(file: &Path) -> Result<Tokens, Failure> {
    let named = |error: String| Failure::usage(format!("{}: {error}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
    Tokens::parse(&text).map_err(|error| named(error.to_string()))
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
        true => writeln!(out, "{}", call_as_json(call)),
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
