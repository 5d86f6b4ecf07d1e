//! The execution of an admitted call.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use antiphon_types::{JsonObject, Status, ToolCall, ToolResponse};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    sync::OwnedSemaphorePermit,
    task::{JoinError, JoinHandle},
    time::Sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    AdmittedCall, Claimed, Executed, MAX_ERROR_BYTES, Outcome, RunContext, ToolExecutor,
    admit::panic_text,
    apart::Apart,
    cut::cut,
    recorded::{Begun, recorded},
};
use crate::{
    CallContext, Denial, Judgement, Part, ToolContext, ToolError, Verdict,
    id::new_id,
    json::serialized_len,
    ledger::AskedBy,
    registry::Registered,
    text::shorten,
    tool::Attached,
    witness::{CallEnd, Decision, DecisionPoint, Kept, RateLimit, Refusal, Ruling},
};

impl ToolExecutor {
    /// Runs an admitted call and yields exactly one output: result, error, panic, time-out,
    /// cancellation, or a result that is too large.
    ///
    /// The body runs on a task of its own, so that one that blocks its thread cannot keep this
    /// future. The tool's time-out counts from here, waiting for a free slot included; a call that
    /// had to wait is authorised again. Dropping the future cancels the call.
    pub async fn run(&self, call: AdmittedCall, cx: RunContext) -> Executed {
        let AdmittedCall {
            call,
            original,
            registered,
            confirmed,
            question,
            approved,
            approved_by,
            asks,
            mut kept,
        } = call;
        if let Some(reason) = asks {
            let question = json!({ "reason": reason });
            return self.ask(call, &registered, cx, AskedBy::Policy, question, confirmed).await;
        }
        // One that waited for a person is recorded as running: it has to end.
        let claimed = cx.claimed.clone().zip(cx.invocation.account());
        let claimed =
            claimed.map(|(claimed, account)| account.resume(&claimed.record, claimed.hold));
        let confirmed = confirmed || cx.claimed.as_ref().is_some_and(Claimed::confirmed);
        // Also cancels when this future is dropped.
        let cancelled = cx.cancelled.child_token();
        let _on_drop: DropGuard = cancelled.clone().drop_guard();
        let mut timeout = Box::pin(tokio::time::sleep(registered.limits.timeout));

        let again = Again {
            call: &call,
            original,
            confirmed,
            question,
            approved,
            approved_by,
            by_provider: registered.by_provider,
            kept: &mut kept,
        };
        let slot = match self.ready(again, &cx, &cancelled, timeout.as_mut()).await {
            Ok(slot) => slot,
            Err(end) => {
                let executed = end.into_executed(&call, &registered, false);
                let executed = recorded(executed, claimed, None, confirmed, false).await;
                return self.witnessed_end(kept, executed).await;
            }
        };
        let mut entry = match claimed {
            Some(entry) => Some(entry),
            None => {
                let timeout = timeout.as_mut();
                let begun = self.begin(&call, &registered, &cx, approved, &cancelled, timeout);
                match begun.await {
                    Ok(Begun::Run(entry)) => entry,
                    Ok(Begun::Ask(question)) => {
                        if let Some(kept) = kept {
                            let why = "a call like it may have happened; a person decides";
                            kept.end_behind(CallEnd::not_run(Outcome::Paused, why));
                        }
                        let asked_by = AskedBy::Ledger;
                        return self
                            .ask(call, &registered, cx, asked_by, question, confirmed)
                            .await;
                    }
                    Err(end) => {
                        let executed = end.into_executed(&call, &registered, false);
                        return self.witnessed_end(kept, executed).await;
                    }
                }
            }
        };
        let key = match &mut entry {
            Some(entry) => {
                entry.runs();
                entry.key().clone()
            }
            None => new_id(),
        };
        if let Some(kept) = &mut kept {
            kept.runs();
        }
        let parking = cx.parking.clone().filter(|_| cx.parks_interrupts);
        let body = self.body(&call, &registered, slot, cx, key, cancelled, timeout);
        let (end, left) = match &entry {
            Some(entry) => entry.during(body).await,
            None => body.await,
        };
        let executed = end.into_executed(&call, &registered, left.runs_on);
        let executed = recorded(executed, entry, parking, confirmed, left.cut).await;
        self.witnessed_end(kept, executed).await
    }

    /// Waits for a free slot, and has the policy look again if it had to wait.
    async fn ready(
        &self,
        again: Again<'_>,
        cx: &RunContext,
        cancelled: &CancellationToken,
        timeout: Pin<&mut Sleep>,
    ) -> Result<OwnedSemaphorePermit, End> {
        if cancelled.is_cancelled() {
            return Err(End::of(Outcome::Cancelled, "cancelled before it started"));
        }
        let free = self.slots.clone().try_acquire_owned().ok();
        if let Some(slot) = free {
            if !cx.waited {
                return Ok(slot);
            }
            return tokio::select! {
                biased;
                () = cancelled.cancelled() => {
                    Err(End::of(Outcome::Cancelled, "cancelled before it started"))
                }
                () = timeout => Err(End::of(Outcome::TimedOut, "not decided in its time")),
                judged = self.authorize_again(again, cx) => judged.map(|()| slot),
            };
        }
        let slot = async {
            // The semaphore is never closed; were it, the call could not run.
            let slot = self
                .slots
                .clone()
                .acquire_owned()
                .await
                .map_err(|_| End::of(Outcome::Cancelled, "the executor is closed"))?;
            self.authorize_again(again, cx).await?;
            Ok(slot)
        };
        tokio::select! {
            biased;
            () = cancelled.cancelled() => {
                Err(End::of(Outcome::Cancelled, "cancelled while it waited for a free slot"))
            }
            () = timeout => Err(End::of(Outcome::TimedOut, "no free slot in its time")),
            slot = slot => slot,
        }
    }

    async fn authorize_again(&self, again: Again<'_>, cx: &RunContext) -> Result<(), End> {
        if self.authorizer.is_none() {
            return Ok(());
        }
        let Again { call, original, confirmed, question, approved, approved_by, by_provider, kept } =
            again;
        let mut context = CallContext::new(cx.session_id.clone(), cx.turn, cx.memory.clone());
        context.invocation = cx.invocation.clone();
        context.confirmed = confirmed;
        context.approved = approved;
        context.approved_by = approved_by;
        (context.waited, context.by_provider) = (true, by_provider);
        // The policy sees what it saw the first time: the model's arguments.
        let narrowed = original.is_some();
        let mut same = call.clone();
        same.args = original.unwrap_or(same.args);
        let this = self.clone();
        let judged = {
            let (context, original) = (context.clone(), same.args.clone());
            let judged = self
                .on_lane(self.limits.authorize_deadline, move || this.authorize(&context, &same))
                .await;
            (
                judged.unwrap_or_else(|reason| Verdict::Deny(Denial::private(reason)).into()),
                original,
            )
        };
        let (Judgement { verdict, policies }, original) = judged;
        let refused = Self::refused_again(verdict, call, narrowed, question, approved);
        let decision = Decision {
            call: call.clone(),
            original: narrowed.then_some(original),
            ruling: refused.as_ref().map_or(Ruling::Run, End::as_ruling),
            policies,
            point: DecisionPoint::Start,
            by: None,
            unparsed: None,
        };
        self.witness_again(kept, context, decision).await?;
        refused.map_or(Ok(()), Err)
    }

    /// Why the call may not run any more as it was admitted.
    fn refused_again(
        verdict: Verdict,
        call: &ToolCall,
        narrowed: bool,
        question: Option<String>,
        approved: bool,
    ) -> Option<End> {
        let denied = |why: &str| Some(End::of(Outcome::Denied, why));
        match verdict {
            Verdict::Allow if !narrowed => None,
            Verdict::AllowWith(args) if args == call.args => None,
            // The same question, and the user has answered it.
            Verdict::Confirm { read_back }
                if question.as_ref() == Some(&read_back) && !narrowed =>
            {
                None
            }
            // The arguments were announced and perhaps read back; they cannot change any more.
            Verdict::Allow | Verdict::AllowWith(_) => {
                denied("the policy changed its mind about the arguments")
            }
            Verdict::Confirm { .. } => denied("the policy wants a confirmation now"),
            Verdict::Ask { .. } if approved && !narrowed => None,
            Verdict::Ask { .. } => denied("the policy wants a person to decide now"),
            Verdict::Deny(denial) => Some(End::refused(Refusal::Denied(denial))),
            Verdict::RateLimited(limit) => Some(End::rate_limited(&limit)),
        }
    }

    /// Runs the body to its end, or to the end of its call.
    #[allow(clippy::too_many_arguments)] // all that a body is given, from the one place above
    async fn body(
        &self,
        call: &ToolCall,
        registered: &Arc<Registered>,
        slot: OwnedSemaphorePermit,
        cx: RunContext,
        idempotency_key: Arc<str>,
        cancelled: CancellationToken,
        mut timeout: Pin<Box<Sleep>>,
    ) -> (End, Left) {
        let bodies = Arc::new(Bodies::new(slot));
        let attached = Arc::new(Attached::new(registered.limits.max_attached_bytes));
        let (cuts, most) = (cx.cuts_outputs, cx.max_output_bytes);
        let context = ToolContext {
            session_id: cx.session_id,
            call_id: call.id.clone(),
            idempotency_key,
            turn: cx.turn,
            memory: cx.memory,
            cancelled: cancelled.clone(),
            invocation: cx.invocation,
            resumed: cx.resumed.map(Arc::new),
            original_input: cx.original_input.map(Arc::new),
            tool: call.name.clone(),
            stream: cx.stream,
            attached: attached.clone(),
            bodies: bodies.clone(),
        };
        let task = tokio::spawn({
            let (registered, args, bodies) =
                (registered.clone(), call.args.clone(), bodies.clone());
            CURRENT_SESSION.scope(context.session_id.clone(), async move {
                let Some(_running) = bodies.begin() else {
                    return End::of(Outcome::Cancelled, "cancelled before it started");
                };
                let result = Apart::new(registered.tool.invoke(context, args)).await;
                let most = most.min(registered.limits.max_output_bytes);
                End::of_result(result, most, cuts).with_parts(&attached)
            })
        });
        let mut task = Body { task, bodies, detached: self.detached.clone() };

        let over = tokio::select! {
            biased;
            ended = &mut task.task => {
                // Whoever keeps what the tool was given is told that the call is over.
                cancelled.cancel();
                return (End::of_task(ended), Left { cut: false, runs_on: task.close() });
            }
            () = cancelled.cancelled() => End::of(Outcome::Cancelled, "cancelled while it ran"),
            () = &mut timeout => {
                let ms = registered.limits.timeout.as_millis();
                End::of(Outcome::TimedOut, format!("not done after {ms} ms"))
            }
        };
        cancelled.cancel();
        let cut = !task.ends_within(self.limits.grace).await;
        if cut {
            task.task.abort();
            // Dropping a future that yields takes no time; one that blocks its thread shows here.
            task.ends_within(self.limits.grace).await;
        }
        (over, Left { cut, runs_on: task.close() })
    }
}

tokio::task_local! {
    pub(crate) static CURRENT_SESSION: Arc<str>;
}

/// The id of the session whose tool this code is part of: the tool's future, and work that it gave
/// to [`ToolContext::spawn_blocking`]. What waits for the tools of a session must not wait here.
pub fn current_session() -> Option<Arc<str>> {
    CURRENT_SESSION.try_with(Arc::clone).ok()
}

/// What it takes to authorise a call once more.
struct Again<'a> {
    call: &'a ToolCall,
    /// The model's arguments, where the policy approved others.
    original: Option<JsonObject>,
    confirmed: bool,
    /// The policy's question that the user has answered.
    question: Option<String>,
    /// A person approved it.
    approved: bool,
    approved_by: Option<Arc<str>>,
    by_provider: bool,
    /// What the policy's witness keeps with it.
    kept: &'a mut Option<Kept>,
}

/// How a body was left when its call was over.
struct Left {
    /// It did not end by itself.
    cut: bool,
    /// Something of it still runs.
    runs_on: bool,
}

/// The task of a body. Dropping it ends the body.
struct Body {
    task: JoinHandle<End>,
    bodies: Arc<Bodies>,
    detached: Arc<AtomicU64>,
}

impl Body {
    /// Whether the body ends within `grace`. Nothing that it says counts any more.
    async fn ends_within(&mut self, grace: Duration) -> bool {
        tokio::time::timeout(grace, self.bodies.all_ended()).await.is_ok()
    }

    /// Lets nothing new begin, and tells whether something still runs.
    fn close(&mut self) -> bool {
        let running = self.bodies.close();
        if running {
            self.detached.fetch_add(1, Ordering::Relaxed);
        }
        running
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.task.abort();
        self.bodies.close();
    }
}

/// What runs for one call: its task and its blocking work. Holds the call's slot until all of it
/// has ended.
pub(crate) struct Bodies {
    state: Mutex<BodiesState>,
    ended: tokio::sync::Notify,
}

struct BodiesState {
    running: usize,
    closed: bool,
    slot: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    fn new(slot: OwnedSemaphorePermit) -> Self {
        let state = BodiesState { running: 0, closed: false, slot: Some(slot) };
        Self { state: Mutex::new(state), ended: tokio::sync::Notify::new() }
    }

    /// Counts one more until the guard is dropped; `None` when the call is over.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Running> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        state.running += 1;
        Some(Running(self.clone()))
    }

    fn close(&self) -> bool {
        let mut state = self.lock();
        state.closed = true;
        state.release();
        state.running > 0
    }

    async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().running == 0 {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BodiesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodiesState {
    fn release(&mut self) {
        if self.closed && self.running == 0 {
            self.slot = None;
        }
    }
}

/// Something that runs for a call.
pub(crate) struct Running(Arc<Bodies>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        state.release();
        drop(state);
        self.0.ended.notify_waiters();
    }
}

/// How a call ended, before it is told.
pub(super) struct End {
    outcome: Outcome,
    /// The output, or the error's text; `None` is the outcome's fixed one.
    output: Result<Value, Option<String>>,
    parts: Vec<Part>,
    interrupt: Option<Value>,
    /// All of an output that was cut.
    whole: Option<Value>,
    detail: Option<String>,
    /// The tool is sure that nothing was done.
    not_done: bool,
    /// When the same call may be allowed.
    until: Option<Timestamp>,
}

impl End {
    pub(super) fn of(outcome: Outcome, detail: impl Into<String>) -> Self {
        Self {
            outcome,
            output: Err(None),
            parts: Vec::new(),
            interrupt: None,
            whole: None,
            detail: Some(detail.into()),
            not_done: false,
            until: None,
        }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Denied(denial) => {
                Self { output: Err(denial.to_model), ..Self::of(Outcome::Denied, denial.reason) }
            }
            Refusal::RateLimited(limit) => Self::rate_limited(&limit),
        }
    }

    fn rate_limited(limit: &RateLimit) -> Self {
        let end = Self::of(Outcome::RateLimited, limit.reason.as_str());
        Self { output: Err(Some(limit.to_model())), until: Some(limit.until), ..end }
    }

    fn as_ruling(&self) -> Ruling {
        let reason = self.detail.clone().unwrap_or_default();
        Ruling::Refuse { outcome: self.outcome, reason, until: self.until }
    }

    /// `cuts`: an output that is too large is cut.
    fn of_result(result: Result<Value, ToolError>, max_bytes: usize, cuts: bool) -> Self {
        match result {
            Ok(output) => match serialized_len(&output) {
                bytes if bytes > max_bytes && cuts => Self {
                    whole: Some(output.clone()),
                    ..Self::success(cut(output, bytes, max_bytes))
                },
                bytes if bytes > max_bytes => Self::too_large("output", bytes, max_bytes),
                _ => Self::success(output),
            },
            Err(ToolError { interrupt: Some(data), .. })
                if !matches!(data, Value::Object(_) | Value::Bool(true)) =>
            {
                // Nobody would see that such a call waits.
                Self::of(Outcome::Error, "the data of an interrupt has to be an object, or true")
            }
            Err(ToolError { interrupt: Some(data), .. }) => match serialized_len(&data) {
                bytes if bytes > max_bytes => Self::too_large("interrupt", bytes, max_bytes),
                _ => Self {
                    interrupt: Some(data),
                    ..Self::of(Outcome::Paused, "the tool waits for an answer")
                },
            },
            Err(error) => Self {
                parts: Vec::new(),
                interrupt: None,
                whole: None,
                outcome: match error.status {
                    _ if error.too_large => Outcome::OutputTooLarge,
                    // A tool that keeps the time itself may say more than a fixed text.
                    Status::DeadlineExceeded => Outcome::TimedOut,
                    _ => Outcome::Error,
                },
                output: Err((!error.private).then(|| error.message.clone())),
                detail: Some(shorten(&error.message, MAX_ERROR_BYTES)),
                not_done: error.not_done,
                until: None,
            },
        }
    }

    fn success(output: Value) -> Self {
        Self { output: Ok(output), detail: None, ..Self::of(Outcome::Success, "") }
    }

    fn too_large(what: &str, bytes: usize, max: usize) -> Self {
        let text = format!("the {what} of the tool is too large: {bytes} bytes, at most {max}");
        Self { output: Err(Some(text.clone())), ..Self::of(Outcome::OutputTooLarge, text) }
    }

    /// Adds what the tool attached, where it has an output.
    fn with_parts(self, attached: &Attached) -> Self {
        if self.outcome != Outcome::Success {
            return self;
        }
        match attached.take() {
            Ok(parts) => Self { parts, ..self },
            Err(bytes) => Self::too_large("attached content", bytes, attached.max_bytes()),
        }
    }

    fn of_task(ended: Result<Self, JoinError>) -> Self {
        match ended.map_err(JoinError::try_into_panic) {
            Ok(end) => end,
            Err(Ok(panic)) => Self::of(Outcome::Panicked, panic_text(&*panic)),
            // Only the end of the runtime aborts the task while it is waited for.
            Err(Err(_)) => Self::of(Outcome::Cancelled, "the runtime ended"),
        }
    }

    /// The call waits for somebody; why.
    pub(super) fn paused(interrupt: Value) -> Self {
        let paused = Self::of(Outcome::Paused, "the call waits for a person");
        Self { interrupt: Some(interrupt), ..paused }
    }

    pub(super) fn into_executed(
        self,
        call: &ToolCall,
        registered: &Registered,
        detached: bool,
    ) -> Executed {
        let Self { outcome, output, parts, interrupt, whole, detail, not_done, .. } = self;
        let (id, name) = (call.id.clone(), call.name.clone());
        let mut response = match &output {
            Ok(Value::Object(output)) => ToolResponse::new(id, name, output.clone()),
            Ok(value) => {
                let object = JsonObject::from_iter([("output".to_owned(), value.clone())]);
                ToolResponse::new(id, name, object)
            }
            Err(text) => {
                let text = text.as_deref().unwrap_or(outcome.fixed_text());
                ToolResponse::error(id, name, shorten(text, MAX_ERROR_BYTES))
            }
        };
        response.scheduling = registered.scheduling;
        let output = output.unwrap_or_else(|_| Value::Object(response.response.clone()));
        Executed {
            response,
            output,
            parts,
            interrupt,
            approval: None,
            outcome,
            whole,
            detached,
            detail,
            not_done,
            receipt: None,
        }
    }
}
