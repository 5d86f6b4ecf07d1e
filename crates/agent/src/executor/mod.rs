//! The one way a tool runs.
//!
//! [`ToolExecutor::admit`] decides, without any effect: bounds, duplicates, parsing, look-up, the
//! policy's verdict, the schema of the arguments it approved, and whether the user is to be asked
//! first. [`ToolExecutor::run`] consumes an [`AdmittedCall`] and yields exactly one output.
//!
//! Both take their time on the caller's task; [`ToolExecutor::admit_within`] moves the decision to
//! the blocking pool and denies when it is late.

mod admit;
mod apart;
mod calls;
mod context;
mod cut;
mod elsewhere;
mod outcome;
mod recorded;
mod run;
mod witnessed;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use antiphon_types::{
    JsonObject, ToolBehavior, ToolCall, ToolCallRequest, ToolDefinition, ToolResponse,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

pub(crate) use self::context::Claimed;
use self::{admit::HostTools, calls::Calls};
use crate::{
    Authorizer, CallContext, OnInterruption, Part, RegistryError, Tool, ToolRegistry,
    ledger::CallRecord,
    registry::Registered,
    text::shorten,
    witness::{CallEnd, Kept, Receipt, Witness},
};

pub(crate) use self::run::{Bodies, CURRENT_SESSION};
pub use self::{
    context::{Parking, RunContext},
    cut::cut_output,
    outcome::Outcome,
    run::current_session,
};

/// The answer to [`ToolExecutor::admit`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Admission {
    /// It may run, once.
    Run(AdmittedCall),
    /// It is authorised, but the host answers it itself: its name is declared without a tool.
    Host(ToolCall),
    /// It does not run; this is its one output.
    Refused(Refused),
    /// The user is to be asked. If they say yes, admit `request` again with a confirmed context;
    /// else [`ToolExecutor::refuse`] it.
    Confirm {
        /// The words, as a question.
        read_back: String,
        /// The call as it came.
        request: ToolCallRequest,
    },
    /// A call with this id was admitted or refused before; that one yields the output.
    Duplicate,
}

/// A call that does not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The one output.
    pub response: ToolResponse,
    /// Why, as a kind.
    pub outcome: Outcome,
    /// Why, for the host's records; may say more than the output.
    pub reason: String,
    /// The arguments, where they could be parsed.
    pub args: Option<JsonObject>,
    /// When the same call may be allowed, where that is a matter of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A call that passed policy and schema. Nobody else can make or copy one.
///
/// It runs once:
///
/// ```
/// use antiphon_agent::{AdmittedCall, RunContext, ToolExecutor, types::ToolCall};
///
/// async fn once(executor: ToolExecutor, call: AdmittedCall, cx: RunContext) {
///     let _seen: &ToolCall = call.call();
///     executor.run(call, cx.clone()).await;
/// }
/// ```
///
/// and not twice,
///
/// ```compile_fail,E0382
/// # use antiphon_agent::{AdmittedCall, RunContext, ToolExecutor, types::ToolCall};
/// async fn twice(executor: ToolExecutor, call: AdmittedCall, cx: RunContext) {
///     executor.run(call, cx.clone()).await;
///     executor.run(call, cx.clone()).await;
/// }
/// ```
///
/// nor as a copy,
///
/// ```compile_fail,E0599
/// # use antiphon_agent::{AdmittedCall, RunContext, ToolExecutor, types::ToolCall};
/// async fn copied(executor: ToolExecutor, call: AdmittedCall, cx: RunContext) {
///     executor.run(call.clone(), cx.clone()).await;
/// }
/// ```
///
/// nor with other arguments, nor one that somebody else made:
///
/// ```compile_fail,E0616
/// # use antiphon_agent::{AdmittedCall, RunContext, ToolExecutor, types::ToolCall};
/// async fn changed(executor: ToolExecutor, mut call: AdmittedCall, cx: RunContext) {
///     call.call.args.insert("amount".into(), 1_000_000.into());
///     executor.run(call, cx.clone()).await;
/// }
/// ```
///
/// ```compile_fail,E0451
/// # use antiphon_agent::{AdmittedCall, RunContext, ToolExecutor, types::ToolCall};
/// async fn made(executor: ToolExecutor, call: ToolCall, cx: RunContext) {
///     let made = AdmittedCall {
///         call,
///         original: None,
///         registered: todo!(),
///         confirmed: true,
///         question: None,
///         approved: true,
///         approved_by: None,
///         asks: None,
///         kept: None,
///     };
///     executor.run(made, cx.clone()).await;
/// }
/// ```
pub struct AdmittedCall {
    call: ToolCall,
    /// The model's arguments, where the policy approved others.
    original: Option<JsonObject>,
    registered: Arc<Registered>,
    confirmed: bool,
    /// The policy's question that the user's yes answered.
    question: Option<String>,
    /// A person approved it.
    approved: bool,
    approved_by: Option<Arc<str>>,
    /// A person is to decide, by the policy: what they are told. It does not run.
    asks: Option<String>,
    /// What the policy's witness keeps with it.
    kept: Option<Kept>,
}

impl AdmittedCall {
    /// The call with the arguments that the policy approved.
    pub fn call(&self) -> &ToolCall {
        &self.call
    }

    /// Whether the model waits for the output.
    pub fn behavior(&self) -> ToolBehavior {
        self.registered.tool.behavior()
    }

    /// What an interruption by the user does to the call while it runs.
    pub fn on_interruption(&self) -> OnInterruption {
        self.registered.tool.on_interruption()
    }

    /// Why the policy has a person decide over the call, where it does: it waits then, where it can.
    pub fn asks(&self) -> Option<&str> {
        self.asks.as_deref()
    }

    /// Gives the call up before it ran, for example because the reply that held it was
    /// interrupted. The result is the call's one output.
    pub fn withdraw(self, outcome: Outcome, reason: impl Into<String>) -> Refused {
        let ToolCall { id, name, args } = self.call;
        let reason = reason.into();
        if let Some(kept) = self.kept {
            kept.end_behind(CallEnd::not_run(outcome, reason.as_str()));
        }
        Refused {
            response: ToolResponse::error(id, name, outcome.fixed_text()),
            outcome,
            reason,
            args: Some(args),
            until: None,
        }
    }
}

impl fmt::Debug for AdmittedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AdmittedCall").field(&self.call).finish()
    }
}

/// A call that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Executed {
    /// The one output, for providers that take objects only: an output that is another value stands
    /// in it as `{"output": value}`.
    pub response: ToolResponse,
    /// The output as the tool gave it; `{"error": text}` for failures.
    pub output: Value,
    /// What the tool attached to its output.
    pub parts: Vec<Part>,
    /// Why the tool waits, where it does: an object, or `true`.
    pub interrupt: Option<Value>,
    /// The record of a call that was parked: see [`RunContext::parking`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Box<CallRecord>>,
    /// How it ended.
    pub outcome: Outcome,
    /// All of an output that was cut: see [`RunContext::cut_outputs`].
    pub whole: Option<Value>,
    /// The tool's body goes on although the call is over: it blocks and ignores cancellation.
    pub detached: bool,
    /// What happened, for the host's records; may say more than the output.
    pub detail: Option<String>,
    /// The tool erred, and is sure that nothing was done: see
    /// [`ToolError::not_done`](crate::ToolError::not_done).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_done: bool,
    /// Where the policy's [witness](crate::witness) wrote the outcome down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Box<Receipt>>,
}

impl Executed {
    /// A call with this output that no tool made.
    pub fn new(response: ToolResponse, outcome: Outcome) -> Self {
        let output = Value::Object(response.response.clone());
        Self {
            response,
            output,
            parts: Vec::new(),
            interrupt: None,
            approval: None,
            outcome,
            whole: None,
            detached: false,
            detail: None,
            not_done: false,
            receipt: None,
        }
    }
}

/// Bounds over all calls.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ExecutorLimits {
    /// Calls that run at the same time; further ones wait, within their time-out. A detached body
    /// counts until it ends. At least 1. Default: 16.
    pub max_concurrent: usize,
    /// Bytes of JSON text that arguments may have. Default: 1 MiB.
    pub max_argument_bytes: usize,
    /// How many call ids are remembered to recognise duplicates; the oldest is forgotten first.
    /// Default: 4,096.
    pub max_remembered_calls: usize,
    /// How long the policy may take over a call that waited for a free slot and is authorised
    /// again. `None`: no deadline. Default: 100 ms.
    pub authorize_deadline: Option<Duration>,
    /// How long the policy's [witness](crate::witness) may take to remember a decision, after which
    /// the call is denied, and an outcome, after which the call ends without a receipt.
    /// Default: 5 s.
    pub record_deadline: Duration,
    /// How long a body may go on after its call was cancelled or timed out, to clean up, before it
    /// is dropped. Its result does not count any more, and its call's output waits for it.
    /// Default: 50 ms.
    pub grace: Duration,
}

impl Default for ExecutorLimits {
    fn default() -> Self {
        Self {
            max_concurrent: 16,
            max_argument_bytes: 1024 * 1024,
            max_remembered_calls: 4_096,
            authorize_deadline: Some(Duration::from_millis(100)),
            record_deadline: Duration::from_secs(5),
            grace: Duration::from_millis(50),
        }
    }
}

/// Admits and runs the calls of one session. Clones share everything.
#[derive(Clone)]
pub struct ToolExecutor {
    registry: Arc<ToolRegistry>,
    authorizer: Option<Arc<dyn Authorizer>>,
    /// Remembers the authoriser's decisions.
    witness: Option<Arc<dyn Witness>>,
    host_tools: Arc<RwLock<HostTools>>,
    /// The tools that may be called; all, where it is not said.
    only: Option<Arc<BTreeSet<Arc<str>>>>,
    calls: Arc<Mutex<Calls>>,
    /// What the witness keeps with calls that the host answers, by id.
    handed: Arc<Mutex<HashMap<Arc<str>, Kept>>>,
    limits: ExecutorLimits,
    slots: Arc<Semaphore>,
    lanes: Arc<Semaphore>,
    records: Arc<Semaphore>,
    detached: Arc<AtomicU64>,
}

impl ToolExecutor {
    /// An executor over `registry`; without an authoriser every call is allowed.
    pub fn new(registry: Arc<ToolRegistry>, authorizer: Option<Arc<dyn Authorizer>>) -> Self {
        let limits = ExecutorLimits::default();
        Self {
            registry,
            witness: authorizer.as_ref().and_then(|authorizer| authorizer.witness()),
            authorizer,
            host_tools: Arc::default(),
            only: None,
            calls: Arc::new(Mutex::new(Calls::new(limits.max_remembered_calls))),
            handed: Arc::default(),
            limits,
            slots: Arc::new(Semaphore::new(limits.max_concurrent)),
            lanes: Arc::new(Semaphore::new(admit::MAX_LANES)),
            records: Arc::new(Semaphore::new(witnessed::MAX_RECORDS)),
            detached: Arc::default(),
        }
    }

    /// Names that the host answers itself, with any arguments. [`ToolExecutor::set_host_tools`]
    /// takes definitions with schemas. A host's tool goes before a registered one of its name, which
    /// can come later.
    pub fn host_tools(self, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let tools = names.into_iter().map(|name| (name, None)).collect();
        admit::replace(&self.host_tools, tools);
        self
    }

    /// The same executor for only these of its tools: calls of others are refused as unknown. It
    /// shares everything else. Errs with the name of a tool that is not registered.
    pub fn only<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, RegistryError> {
        let mut only = BTreeSet::new();
        for name in names {
            let name: Arc<str> = name.into();
            if !self.offers(&name) || self.registry.registered(&name).is_none() {
                return Err(RegistryError::Unknown(name));
            }
            only.insert(name);
        }
        Ok(Self { only: Some(Arc::new(only)), ..self.clone() })
    }

    /// The same executor for calls whose ids have nothing to do with those of before. It shares
    /// registry, policy and slots.
    pub fn with_new_ids(&self) -> Self {
        let calls = Arc::new(Mutex::new(Calls::new(self.limits.max_remembered_calls)));
        Self { calls, handed: Arc::default(), ..self.clone() }
    }

    /// What models are told of the tools whose calls it runs, by name in byte order.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        let mut definitions = self.registry.definitions();
        definitions.retain(|definition| self.offers(&definition.name));
        definitions
    }

    /// The tools whose calls it runs, by name in byte order.
    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut tools = self.registry.all();
        tools.retain(|tool| self.offers(tool.name()));
        tools
    }

    /// The policy over the calls; `None` where every call is allowed.
    pub fn authorizer(&self) -> Option<&Arc<dyn Authorizer>> {
        self.authorizer.as_ref()
    }

    /// Decides over a call of a text turn, within the executor's own deadline.
    pub(crate) async fn admit_text(&self, cx: &CallContext, request: ToolCallRequest) -> Admission {
        self.admit_within(cx, request, self.limits.authorize_deadline).await
    }

    fn offers(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(name))
    }

    /// Sets the bounds. Calls of before are forgotten.
    pub fn limits(mut self, limits: ExecutorLimits) -> Self {
        self.calls = Arc::new(Mutex::new(Calls::new(limits.max_remembered_calls)));
        self.slots =
            Arc::new(Semaphore::new(limits.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)));
        self.limits = limits;
        self
    }

    /// Replaces the tools that the host answers itself; from now on their arguments are checked
    /// against these schemas. Errs, and changes nothing, where a definition is nameless, invalid,
    /// or has the name of another or of a registered tool.
    pub fn set_host_tools(&self, definitions: &[ToolDefinition]) -> Result<(), RegistryError> {
        let tools = admit::compile(definitions, &self.registry)?;
        admit::replace(&self.host_tools, tools);
        Ok(())
    }

    /// The tools whose calls it runs.
    pub fn registry(&self) -> &Arc<ToolRegistry> {
        &self.registry
    }

    /// How many calls so far left a body behind that went on after they were over.
    pub fn detached_calls(&self) -> u64 {
        self.detached.load(Ordering::Relaxed)
    }

    /// The one output of a call that will not run for a reason outside of the executor: the user did
    /// not confirm it, its reply was interrupted, the session ended. The model is told the outcome's
    /// [`Outcome::fixed_text`]. From now on another call with its id is a duplicate.
    pub fn refuse(
        &self,
        request: &ToolCallRequest,
        outcome: Outcome,
        reason: impl Into<String>,
    ) -> Refused {
        calls::lock(&self.calls).settle(&request.id);
        refused(request, outcome, outcome.fixed_text(), reason)
    }

    /// [`ToolExecutor::refuse`], which the policy's [witness](crate::witness) is told of: the user said
    /// no, or the call was given up before anybody decided over it. Nobody waits for that to be written
    /// down.
    pub fn refuse_in(
        &self,
        cx: &CallContext,
        request: &ToolCallRequest,
        outcome: Outcome,
        reason: impl Into<String>,
    ) -> Refused {
        let refused = self.refuse(request, outcome, reason);
        self.witness_refusal(cx, request, &refused);
        refused
    }
}

impl fmt::Debug for ToolExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolExecutor")
            .field("registry", &self.registry)
            .field("limits", &self.limits)
            .field("detached", &self.detached)
            .finish_non_exhaustive()
    }
}

/// A refusal that tells the model `text`.
fn refused(
    request: &ToolCallRequest,
    outcome: Outcome,
    text: &str,
    reason: impl Into<String>,
) -> Refused {
    Refused {
        response: ToolResponse::error(
            request.id.clone(),
            request.name.clone(),
            shorten(text, MAX_ERROR_BYTES),
        ),
        outcome,
        reason: reason.into(),
        args: None,
        until: None,
    }
}

/// The longest text of an error for the model, in bytes.
const MAX_ERROR_BYTES: usize = 4 * 1024;
