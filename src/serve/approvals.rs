//! Calls that wait for a person, decided over by HTTP.
//!
//! | request | what it does |
//! |---|---|
//! | `GET /approvals` | `{"approvals": [..]}`: the calls that wait; of one session with `?session=ID` |
//! | `GET /approvals/{key}` | one call, waiting or not |
//! | `POST /approvals/{key}/approve` | approves it, runs its tool, and gives the call with its outcome |
//! | `POST /approvals/{key}/deny` | refuses it |
//!
//! A body is a JSON object or empty. Its members, all of which may be left out: `by`, who decides (with a
//! token that is somebody's it is them, and nobody else may be said); `reason`, why; and to approve also `arguments`, those that the person was shown (a call with others is
//! not approved), and `answer`, the object that a tool which asked is told.
//!
//! Where the tool takes longer than [`ApprovalsHttp::patience`], the answer is 202 with the call as it is,
//! and the tool runs on, also where the client is gone. A call is [as JSON](call_as_json); an error is
//! `{"error": {"status", "message"}}`, with the call as `approval` where it does not wait any more: 401
//! without a right token, 403 in the name of somebody else, 404 for a key that is not there, 409 where somebody decided before, the
//! arguments are others or the agent is, 410 where it expired, 422 where its tool is not here, 501 where
//! the store keeps no account of calls, 503 where store or session cannot do it now.
//!
//! Every request needs a token: `Authorization: Bearer TOKEN`. Those of [`Tokens::named`] say who decides. [`ApprovalsHttp`] is a
//! [`Gate`] for a [`Listener`](antiphon_live::acceptor::Listener); hosts with a server of their own ask
//! [`ApprovalsHttp::respond`]. Beside a live session its handle is the desk, and the outcome is spoken:
//!
//! ```no_run
//! use antiphon::{
//!     live::acceptor::{Accepted, Acceptor, Listener},
//!     serve::approvals::{ApprovalsHttp, Tokens},
//!     session::AgentSession,
//! };
//!
//! # async fn example(session: AgentSession) -> Result<(), Box<dyn std::error::Error>> {
//! let tokens = Tokens::parse(&std::fs::read_to_string("approvers.txt")?)?;
//! let approvals = ApprovalsHttp::new(session, tokens);
//! let listener = Listener::bind("127.0.0.1:8089", Acceptor::default()).await?;
//! listener.serve(approvals, |_: Accepted| async {}).await?;
//! # Ok(()) }
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use antiphon_agent::{
    InvocationContext, Memory, Outcome, RuntimeError, ToolExecutor,
    approval::{Answer, ApprovalError, Approvals},
    ledger::{CallRecord, CallState},
    types::Status,
};
use antiphon_live::acceptor::{Answer as HttpAnswer, Gate, Request};
use antiphon_types::JsonObject;
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinSet, time::timeout};

use super::tokens::Bearer;
use crate::session::AgentSession;

pub use super::tokens::{TokenError, Tokens};

/// Where the calls are.
const ROOT: &str = "/approvals";
/// Decisions that are carried out at once; more are told to come again.
const MAX_AT_WORK: usize = 64;
/// The longest body, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// The longest name of who decides, and the longest reason, in bytes.
const MAX_TEXT: usize = 2_000;

/// Decides over calls that wait for a person: a session that lives, or a [`StoreDesk`].
#[async_trait]
pub trait ApprovalDesk: Send + Sync + 'static {
    /// The calls that wait, of this session or of all.
    async fn waiting(&self, session_id: Option<&str>) -> Result<Vec<CallRecord>, ApprovalError>;
    /// A call that waits, or did.
    async fn call(&self, key: &str) -> Result<CallRecord, ApprovalError>;
    /// Approves a call and runs its tool to its end.
    async fn approve(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError>;
    /// Refuses a call.
    async fn deny(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError>;
}

#[async_trait]
impl ApprovalDesk for AgentSession {
    async fn waiting(&self, session_id: Option<&str>) -> Result<Vec<CallRecord>, ApprovalError> {
        self.waiting_calls(session_id).await
    }

    async fn call(&self, key: &str) -> Result<CallRecord, ApprovalError> {
        self.waiting_call(key).await
    }

    async fn approve(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        AgentSession::approve(self, key, answer).await
    }

    async fn deny(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        AgentSession::deny(self, key, answer).await
    }
}

/// Decides over the calls of a store, with tools of its own. Sessions that live on the store, in whatever
/// process, find what was decided and say so.
#[derive(Clone)]
pub struct StoreDesk {
    approvals: Approvals,
    tools: ToolExecutor,
    memory: Arc<dyn Memory>,
    cx: InvocationContext,
}

impl StoreDesk {
    /// Over these calls. `memory` is that of the sessions, as a whole. The policy of `tools` judges, and
    /// remembers refusals, too.
    pub fn new(approvals: Approvals, tools: ToolExecutor, memory: Arc<dyn Memory>) -> Self {
        let approvals = approvals.witnessed_as(&tools);
        Self { approvals, tools, memory, cx: InvocationContext::new() }
    }

    /// In whose name it is decided, and of which tenant. Default: nobody's.
    pub fn context(mut self, cx: InvocationContext) -> Self {
        self.cx = cx;
        self
    }
}

#[async_trait]
impl ApprovalDesk for StoreDesk {
    async fn waiting(&self, session_id: Option<&str>) -> Result<Vec<CallRecord>, ApprovalError> {
        self.approvals.waiting(&self.cx, session_id).await
    }

    async fn call(&self, key: &str) -> Result<CallRecord, ApprovalError> {
        self.approvals.call(&self.cx, key).await
    }

    async fn approve(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        let memory = self.memory.clone();
        self.approvals.approve(&self.cx, key, answer, &self.tools, memory).await
    }

    async fn deny(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        self.approvals.deny(&self.cx, key, answer).await
    }
}

impl fmt::Debug for StoreDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreDesk").field("approvals", &self.approvals).finish_non_exhaustive()
    }
}

/// Answers requests about calls that wait. See the head of this module.
#[derive(Clone)]
pub struct ApprovalsHttp {
    desk: Arc<dyn ApprovalDesk>,
    tokens: Arc<Tokens>,
    patience: Duration,
    at_work: Arc<Mutex<JoinSet<()>>>,
}

/// A request, as any server has it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ApprovalRequest<'a> {
    /// Such as `GET`.
    pub method: &'a str,
    /// As sent, beginning with `/approvals`.
    pub path: &'a str,
    /// The parameter `session` of the query, decoded.
    pub session: Option<&'a str>,
    /// The token of `Authorization: Bearer`.
    pub token: Option<&'a str>,
    /// The body; empty where there is none.
    pub body: &'a [u8],
}

impl<'a> ApprovalRequest<'a> {
    /// A request without query and body.
    pub fn new(method: &'a str, path: &'a str, token: &'a str) -> Self {
        Self { method, path, token: Some(token), ..Self::default() }
    }

    /// With a body.
    pub fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    /// Of one session.
    pub fn session(mut self, session_id: &'a str) -> Self {
        self.session = Some(session_id);
        self
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ApprovalResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body, JSON.
    pub body: Value,
}

/// What a body may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    by: Option<String>,
    reason: Option<String>,
    arguments: Option<JsonObject>,
    answer: Option<JsonObject>,
}

/// What is asked for.
enum Asked<'a> {
    List,
    Show(&'a str),
    Decide { key: &'a str, approves: bool },
}

impl ApprovalsHttp {
    /// Has `desk` decide for whoever has one of these tokens.
    pub fn new(desk: impl ApprovalDesk, tokens: Tokens) -> Self {
        Self {
            desk: Arc::new(desk),
            tokens: Arc::new(tokens),
            patience: Duration::from_secs(5),
            at_work: Arc::default(),
        }
    }

    /// How long a request waits for its answer; tools run on beyond. Default: 5 s, which is within the
    /// time that an [`Acceptor`](antiphon_live::acceptor::Acceptor) leaves to one.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Whether a path is one of these.
    pub fn is_for(path: &str) -> bool {
        path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request.
    pub async fn respond(&self, request: ApprovalRequest<'_>) -> ApprovalResponse {
        // Nothing is told to whoever does not show it, not even what there is.
        let Some(bearer) = request.token.and_then(|token| self.tokens.bearer(token)) else {
            return refused(401, Status::Unauthenticated, "the token is missing, or another");
        };
        let asked = match asked(&request) {
            Ok(asked) => asked,
            Err(refusal) => return refusal,
        };
        if request.body.len() > MAX_BODY {
            return refused(413, Status::InvalidArgument, "the body is too large");
        }
        let done = match asked {
            Asked::List => {
                let waiting = self.in_time(self.desk.waiting(request.session)).await;
                waiting.map(|calls| {
                    let calls: Vec<_> = calls.iter().map(call_as_json).collect();
                    (200, json!({ "approvals": calls }))
                })
            }
            Asked::Show(key) => {
                self.in_time(self.desk.call(key)).await.map(|call| (200, call_as_json(&call)))
            }
            Asked::Decide { key, approves } => match answer_of(request.body, approves, bearer) {
                Ok(answer) => self.decide(key, answer, approves).await,
                Err(refusal) => return refusal,
            },
        };
        match done {
            Ok((status, body)) => ApprovalResponse { status, body },
            Err(error) => told(&error),
        }
    }

    /// Waits so long for the tools of calls that were approved, and ends what is left: of these nobody
    /// knows how they ended.
    pub async fn drain(&self, within: Duration) {
        let mut tasks = std::mem::take(&mut *lock(&self.at_work));
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(within, all_ended).await;
        tasks.shutdown().await;
    }

    /// Decides on a task of its own, so that a client who leaves does not end the tool.
    async fn decide(
        &self,
        key: &str,
        answer: Answer,
        approves: bool,
    ) -> Result<(u16, Value), ApprovalError> {
        let (desk, owned): (_, Arc<str>) = (self.desk.clone(), key.into());
        let (done, decided) = oneshot::channel();
        let work = async move {
            let result = match approves {
                true => desk.approve(&owned, answer).await,
                false => desk.deny(&owned, answer).await,
            };
            // Nobody may be there any more who wants to know.
            let _ = done.send(result);
        };
        {
            let mut tasks = lock(&self.at_work);
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= MAX_AT_WORK {
                let many = format!("{MAX_AT_WORK} calls are at work: try again later");
                return Err(RuntimeError::new(Status::ResourceExhausted, many).into());
            }
            tasks.spawn(work);
        }
        match timeout(self.patience, decided).await {
            Ok(Ok(result)) => result.map(|call| (200, call_as_json(&call))),
            Ok(Err(_)) => Err(RuntimeError::Cancelled("the server ends".into()).into()),
            Err(_) => {
                let call = self.in_time(self.desk.call(key)).await?;
                Ok((202, call_as_json(&call)))
            }
        }
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ApprovalError>>,
    ) -> Result<T, ApprovalError> {
        let late = || {
            let text = format!("no answer within {} ms", self.patience.as_millis());
            ApprovalError::from(RuntimeError::new(Status::DeadlineExceeded, text))
        };
        timeout(self.patience, work).await.unwrap_or_else(|_| Err(late()))
    }
}

#[async_trait]
impl Gate for ApprovalsHttp {
    async fn answer(&self, request: &Request) -> HttpAnswer {
        let session = request.parameter("session");
        let ApprovalResponse { status, body } = self
            .respond(ApprovalRequest {
                method: request.method(),
                path: request.path(),
                session: session.as_deref(),
                token: request.bearer(),
                body: request.body(),
            })
            .await;
        let answer = HttpAnswer::json(status, &body).header("cache-control", "no-store");
        match status {
            401 => answer.header("www-authenticate", "Bearer"),
            405 => answer.header("allow", "GET, POST"),
            503 => answer.header("retry-after", "5"),
            _ => answer,
        }
    }
}

impl fmt::Debug for ApprovalsHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalsHttp").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// A call as these answers, and the command line, show it: `key`, `state` (`waiting`, `running`, `ended`),
/// `outcome` and `output` of one that ended, `tool`, `arguments` and their `argumentsHash`, `question`
/// (what the person is told), `sessionId`, `agent`, `speaker` (to whom the conversation was handed over), `callId`, `snapshotId`, `requestedAt`, `expiresAt`,
/// and the `decision` where there is one.
pub fn call_as_json(call: &CallRecord) -> Value {
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
        "speaker": approval.and_then(|it| it.speaker.clone()),
        "callId": call.call_id,
        "snapshotId": call.snapshot_id,
        "requestedAt": approval.map(|it| it.requested_at),
        "expiresAt": approval.and_then(|it| it.expires_at),
        "decision": approval.and_then(|it| it.decision.clone()),
    })
}

fn asked<'a>(request: &ApprovalRequest<'a>) -> Result<Asked<'a>, ApprovalResponse> {
    let nowhere = || refused(404, Status::NotFound, "there is nothing here");
    let rest = request.path.strip_prefix(ROOT).ok_or_else(nowhere)?;
    let mut steps = rest.split('/');
    // Before the first slash there is nothing.
    let (before, key, what) = (steps.next(), steps.next().unwrap_or_default(), steps.next());
    if before != Some("") || steps.next().is_some() {
        return Err(nowhere());
    }
    let (asked, method) = match what {
        None if key.is_empty() => (Asked::List, "GET"),
        None => (Asked::Show(key), "GET"),
        Some("approve") => (Asked::Decide { key, approves: true }, "POST"),
        Some("deny") => (Asked::Decide { key, approves: false }, "POST"),
        Some(_) => return Err(nowhere()),
    };
    match request.method == method {
        true => Ok(asked),
        false => Err(refused(405, Status::Unimplemented, &format!("only {method} is for this"))),
    }
}

fn answer_of(body: &[u8], approves: bool, bearer: Bearer) -> Result<Answer, ApprovalResponse> {
    let wrong = |why: &str| refused(400, Status::InvalidArgument, why);
    let Decision { by, reason, arguments, answer } = match body.trim_ascii() {
        b"" => Decision::default(),
        body => {
            serde_json::from_slice(body).map_err(|error| wrong(&format!("the body: {error}")))?
        }
    };
    for (name, text) in [("by", &by), ("reason", &reason)] {
        if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT) {
            return Err(wrong(&format!("{name} has more than {MAX_TEXT} bytes")));
        }
    }
    if !approves && (arguments.is_some() || answer.is_some()) {
        return Err(wrong("arguments and answer are for approving"));
    }
    let by = match (bearer, by) {
        (Bearer::Named(name), Some(by)) if *name != *by => {
            return Err(refused(403, Status::PermissionDenied, "the token is somebody else's"));
        }
        (Bearer::Named(name), _) => Some(name),
        (Bearer::Anybody, by) => by.map(Arc::from),
    };
    let mut decision = Answer::new();
    (decision.by, decision.reason) = (by, reason);
    if let Some(arguments) = arguments {
        decision = decision.shown(&arguments);
    }
    if let Some(answer) = answer {
        decision = decision.told(answer);
    }
    Ok(decision)
}

fn told(error: &ApprovalError) -> ApprovalResponse {
    let status = match error {
        ApprovalError::NotFound(_) => 404,
        ApprovalError::NotWaiting(call) => match call.state {
            CallState::Ended { outcome: Outcome::Expired, .. } => 410,
            _ => 409,
        },
        ApprovalError::ChangedArguments(_) | ApprovalError::AnotherAgent { .. } => 409,
        ApprovalError::NoTool(_) => 422,
        ApprovalError::Unsupported => 501,
        error => match error.status() {
            Status::InvalidArgument => 400,
            Status::PermissionDenied => 403,
            Status::NotFound => 404,
            Status::FailedPrecondition | Status::Cancelled | Status::Unavailable => 503,
            Status::DeadlineExceeded | Status::ResourceExhausted => 503,
            _ => 500,
        },
    };
    // Clients are not told where a store lies.
    let message = match error {
        ApprovalError::Runtime(error) => error.to_details().message,
        error => error.to_string(),
    };
    let mut response = refused(status, error.status(), &message);
    if let ApprovalError::NotWaiting(call) = error {
        response.body["approval"] = call_as_json(call);
    }
    response
}

fn refused(status: u16, code: Status, message: &str) -> ApprovalResponse {
    let body = json!({ "error": { "status": code, "message": message } });
    ApprovalResponse { status, body }
}

/// Held for moves of plain data only.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
