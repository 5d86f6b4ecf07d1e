//! The decision over a call.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use antiphon_types::{JsonObject, ToolArguments, ToolCall, ToolCallRequest, ToolDefinition};

use super::{
    Admission, AdmittedCall, Outcome, Refused, ToolExecutor,
    calls::{self, AskedBy, Entry},
    elsewhere, refused,
};
use crate::{
    Authorizer, CallContext, Denial, Judgement, RateLimit, RegistryError, ToolRegistry, Verdict,
    json::{parse_object, serialized_len},
    read_back,
    registry::Registered,
    schema::Schema,
    text::shorten,
};

/// Decisions that may be under way on the blocking pool at the same time, late ones included. A
/// policy that hangs costs this many threads and no more; from then on calls are denied.
pub(super) const MAX_LANES: usize = 8;

/// Why a call that the provider runs is refused where the policy wants other arguments.
pub(super) const ONLY_AS_ASKED: &str =
    "the provider runs the call as it is, and the policy wants other arguments";
/// Why a call is refused that the policy changed after it was read back.
const OTHERS_CONFIRMED: &str = "the arguments are not those that the user confirmed";
/// Why a call that the provider runs is refused where there is no policy.
const NOBODY_TO_ASK: &str = "there is no policy that could let the provider run it";

/// The names that the host answers itself, with the schemas of their arguments.
pub(super) type HostTools = HashMap<Arc<str>, Option<Arc<Schema>>>;

impl ToolExecutor {
    /// Decides over a call. No effect beside what the policy does and remembering the id: bounds,
    /// duplicate id, parse, look up, verdict, schema of the arguments it returned, read-back.
    ///
    /// Runs the policy on the caller's thread for as long as it takes; see
    /// [`ToolExecutor::admit_within`].
    pub fn admit(&self, cx: &CallContext, request: ToolCallRequest) -> Admission {
        let entry = calls::lock(&self.calls).enter(&request, cx.confirmed);
        let Decided { admission, policies } = self.decide(cx, request.clone(), entry);
        self.witness_blocking(cx, admission, policies, &request)
    }

    /// [`ToolExecutor::admit`] on the blocking pool. When it has not decided after `deadline`, the
    /// call is denied and the late answer discarded. `None` waits. Dropping the future gives the
    /// call up: [`ToolExecutor::refuse`] makes its output. Without an authorizer there is nobody to
    /// wait for, and the call is decided at once. What the policy's [witness](crate::witness) is to
    /// remember has a time of its own after that.
    pub async fn admit_within(
        &self,
        cx: &CallContext,
        request: ToolCallRequest,
        deadline: Option<Duration>,
    ) -> Admission {
        // Not on the lane: a duplicate that waits for one would be denied, which is an output more.
        let entry = calls::lock(&self.calls).enter(&request, cx.confirmed);
        if matches!(entry, Entry::Duplicate) {
            return Admission::Duplicate;
        }
        if self.authorizer.is_none() {
            let decide = AssertUnwindSafe(|| self.decide(cx, request.clone(), entry));
            let decided = catch_unwind(decide).map(|decided| decided.admission);
            return decided.unwrap_or_else(|panic| {
                let reason = format!("the decision failed: {}", panic_text(&*panic));
                Admission::Refused(self.refuse(&request, Outcome::Denied, reason))
            });
        }
        let decision = {
            let (this, cx, request) = (self.clone(), cx.clone(), request.clone());
            self.on_lane(deadline, move || this.decide(&cx, request, entry))
        };
        let Decided { admission, policies } = match decision.await {
            Ok(decided) => decided,
            Err(reason) => {
                Admission::Refused(self.refuse(&request, Outcome::Denied, reason)).into()
            }
        };
        self.witness(cx, admission, policies, &request).await
    }

    fn decide(&self, cx: &CallContext, request: ToolCallRequest, entry: Entry) -> Decided {
        let mut policies = Vec::new();
        let admission = self.decide_by(cx, request, entry, &mut policies);
        Decided { admission, policies }
    }

    /// Says in `policies` who decided.
    fn decide_by(
        &self,
        cx: &CallContext,
        request: ToolCallRequest,
        entry: Entry,
        policies: &mut Vec<Arc<str>>,
    ) -> Admission {
        let asked = match entry {
            Entry::New => None,
            Entry::Confirmed(asked) => Some(asked),
            Entry::Duplicate => return Admission::Duplicate,
            Entry::Changed => {
                return Admission::Refused(refused(
                    &request,
                    Outcome::Denied,
                    Outcome::Denied.fixed_text(),
                    "the confirmed call is not the one that was read back",
                ));
            }
        };
        if calls::lock(&self.calls).is_settled(&request.id) {
            // Denied while it waited for its lane; the policy need not be asked any more.
            return Admission::Duplicate;
        }
        let args = match self.parse(&request) {
            Ok(args) => args,
            Err(reason) => return invalid_arguments(&request, reason, None),
        };
        let target = match cx.by_provider {
            true => elsewhere::registered(&request.name).map(Target::Tool),
            false => self.find(&request.name),
        };
        let Some(target) = target else {
            let name: &str = &shorten(&request.name, 128);
            let text = format!("unknown tool: {name:?}");
            let refused = refused(&request, Outcome::UnknownTool, &text, text.clone());
            return Admission::Refused(Refused { args: Some(args), ..refused });
        };

        let call = ToolCall { id: request.id.clone(), name: request.name.clone(), args };
        let mut asks = None;
        if cx.by_provider && self.authorizer.is_none() {
            // Who cannot be asked has not agreed.
            return denied(&request, Denial::private(NOBODY_TO_ASK), call.args);
        }
        let judgement = self.authorize(cx, &call);
        *policies = judgement.policies;
        let (args, original, words) = match judgement.verdict {
            Verdict::Allow => (call.args, None, None),
            Verdict::AllowWith(args) if cx.by_provider && args == call.args => (args, None, None),
            Verdict::AllowWith(_) if cx.by_provider => {
                let denial = Denial::private(ONLY_AS_ASKED);
                return denied(&request, denial, call.args);
            }
            Verdict::AllowWith(args) => (args, Some(call.args), None),
            Verdict::Confirm { read_back } => (call.args, None, Some(read_back)),
            Verdict::Ask { reason } => {
                asks = (!cx.approved).then_some(reason);
                (call.args, None, None)
            }
            Verdict::Deny(denial) => return denied(&request, denial, call.args),
            Verdict::RateLimited(limit) => return rate_limited(&request, limit, call.args),
        };
        if let Some(Err(reason)) = target.schema().map(|schema| schema.check(&args)) {
            return invalid_arguments(&request, reason, Some(args));
        }

        if let Some(asked) = asked
            && asked.by == AskedBy::Policy
            && original.is_some()
            && words.is_none()
            && !self.words_hold(cx, &call.id, &call.name, &args, asked.words)
        {
            let denial = Denial::private(OTHERS_CONFIRMED);
            return denied(&request, denial, args);
        }
        // What the user's yes stands for: the policy's words, or the tool's with these arguments.
        let question = match words {
            Some(words) => Some((words, AskedBy::Policy)),
            // The policy asked in its own words before and is content now.
            None if asked.is_some_and(|asked| asked.by == AskedBy::Policy) => None,
            // A person decides, or has.
            None if cx.approved || asks.is_some() => None,
            None => target.read_back().map(|t| (read_back::fill(t, &args), AskedBy::Tool)),
        };
        let mut answered_question = None;
        if let Some((words, by)) = question {
            let mut calls = calls::lock(&self.calls);
            let shown = calls.fingerprint(&(&words, &args));
            let answered = match asked {
                Some(asked) => asked.shown == shown,
                // Confirmed elsewhere, before this executor: the host vouches for it.
                None => cx.confirmed,
            };
            if !answered {
                calls.ask(&request, shown, &words, by);
                return Admission::Confirm { read_back: words, request };
            }
            answered_question = (by == AskedBy::Policy).then_some(words);
        }
        let call = ToolCall { id: call.id, name: call.name, args };
        match target {
            Target::Tool(registered) => {
                let (confirmed, approved) = (cx.confirmed, cx.approved);
                let approved_by = cx.approved_by.clone();
                let question = answered_question;
                Admission::Run(AdmittedCall {
                    call,
                    original,
                    registered,
                    confirmed,
                    question,
                    approved,
                    approved_by,
                    asks,
                    kept: None,
                })
            }
            Target::Host(_) if asks.is_some() => {
                // There is no tool that could run once somebody approved.
                let reason = "a person was to decide, and the host answers this call itself";
                let denial = Denial::private(reason);
                denied(&request, denial, call.args)
            }
            Target::Host(_) => Admission::Host(call),
        }
    }

    /// Whether the words that the user said yes to are those for other arguments, too, or these need none.
    fn words_hold(
        &self,
        cx: &CallContext,
        id: &Arc<str>,
        name: &Arc<str>,
        args: &JsonObject,
        words: u64,
    ) -> bool {
        let unasked = CallContext { confirmed: false, ..cx.clone() };
        let call = ToolCall { id: id.clone(), name: name.clone(), args: args.clone() };
        match self.authorize(&unasked, &call).verdict {
            Verdict::Allow => true,
            Verdict::AllowWith(same) => same == *args,
            Verdict::Confirm { read_back } => {
                calls::lock(&self.calls).fingerprint(&&*read_back) == words
            }
            _ => false,
        }
    }

    /// Runs `decide` on the blocking pool, at most [`MAX_LANES`] at a time.
    pub(super) async fn on_lane<T: Send + 'static>(
        &self,
        deadline: Option<Duration>,
        decide: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let lanes = self.lanes.clone();
        let decision = async move {
            // The semaphore is never closed.
            let lane = lanes.acquire_owned().await.ok();
            let decided = tokio::task::spawn_blocking(move || {
                let _lane = lane;
                decide()
            });
            decided.await.map_err(|error| format!("the decision failed: {error}"))
        };
        match deadline {
            None => decision.await,
            Some(deadline) => match tokio::time::timeout(deadline, decision).await {
                Ok(decided) => decided,
                Err(_) => Err(format!("no decision within {} ms", deadline.as_millis())),
            },
        }
    }

    /// The policy's verdict; a panic denies.
    pub(super) fn authorize(&self, cx: &CallContext, call: &ToolCall) -> Judgement {
        let Some(authorizer) = &self.authorizer else {
            return Verdict::Allow.into();
        };
        judgement(authorizer.as_ref(), cx, call)
    }

    pub(super) fn parse(&self, request: &ToolCallRequest) -> Result<JsonObject, String> {
        let max = self.limits.max_argument_bytes;
        let too_large = |bytes| Err(format!("{bytes} bytes, at most {max} are allowed"));
        match &request.arguments {
            ToolArguments::Json(text) if text.len() > max => too_large(text.len()),
            ToolArguments::Json(text) => parse_object(text),
            ToolArguments::Object(object) => match serialized_len(object) {
                bytes if bytes > max => too_large(bytes),
                _ => Ok(object.clone()),
            },
        }
    }

    fn find(&self, name: &Arc<str>) -> Option<Target> {
        let tools = self.host_tools.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(schema) = tools.get(name) {
            return Some(Target::Host(schema.clone()));
        }
        drop(tools);
        if !self.offers(name) {
            return None;
        }
        self.registry.registered(name).map(Target::Tool)
    }
}

/// Who answers a call.
enum Target {
    Tool(Arc<Registered>),
    Host(Option<Arc<Schema>>),
}

impl Target {
    fn schema(&self) -> Option<&Schema> {
        match self {
            Self::Tool(registered) => registered.schema.as_ref(),
            Self::Host(schema) => schema.as_deref(),
        }
    }

    fn read_back(&self) -> Option<&str> {
        match self {
            Self::Tool(registered) => registered.read_back.as_deref(),
            Self::Host(_) => None,
        }
    }
}

/// An admission, and the policies that came to it.
pub(super) struct Decided {
    pub(super) admission: Admission,
    pub(super) policies: Vec<Arc<str>>,
}

impl From<Admission> for Decided {
    fn from(admission: Admission) -> Self {
        Self { admission, policies: Vec::new() }
    }
}

fn judgement(authorizer: &dyn Authorizer, cx: &CallContext, call: &ToolCall) -> Judgement {
    let decide = AssertUnwindSafe(|| authorizer.judge(cx, call));
    catch_unwind(decide).unwrap_or_else(|panic| {
        let reason = format!("the policy panicked: {}", panic_text(&*panic));
        Verdict::Deny(Denial::private(reason)).into()
    })
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    shorten(text.unwrap_or("no text"), 1024)
}

pub(super) fn compile(
    definitions: &[ToolDefinition],
    registry: &ToolRegistry,
) -> Result<HostTools, RegistryError> {
    let mut tools = HostTools::new();
    for definition in definitions {
        if definition.name.trim().is_empty() {
            return Err(RegistryError::NoName);
        }
        let schema = Schema::of(definition)?.map(Arc::new);
        let taken = tools.insert(definition.name.clone(), schema).is_some();
        if taken || registry.registered(&definition.name).is_some() {
            return Err(RegistryError::Duplicate(definition.name.clone()));
        }
    }
    Ok(tools)
}

pub(super) fn replace(host_tools: &RwLock<HostTools>, tools: HostTools) {
    *host_tools.write().unwrap_or_else(PoisonError::into_inner) = tools;
}

fn invalid_arguments(
    request: &ToolCallRequest,
    reason: String,
    args: Option<JsonObject>,
) -> Admission {
    let text = format!("invalid arguments: {reason}");
    let refused = refused(request, Outcome::InvalidArguments, &text, reason);
    Admission::Refused(Refused { args, ..refused })
}

pub(super) fn denied(request: &ToolCallRequest, denial: Denial, args: JsonObject) -> Admission {
    let text = denial.to_model.as_deref().unwrap_or(Outcome::Denied.fixed_text());
    let refused = refused(request, Outcome::Denied, text, denial.reason);
    Admission::Refused(Refused { args: Some(args), ..refused })
}

pub(super) fn rate_limited(
    request: &ToolCallRequest,
    limit: RateLimit,
    args: JsonObject,
) -> Admission {
    let text = limit.to_model();
    let refused = refused(request, Outcome::RateLimited, &text, limit.reason);
    Admission::Refused(Refused { args: Some(args), until: Some(limit.until), ..refused })
}
