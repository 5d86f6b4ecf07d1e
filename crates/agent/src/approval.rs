//! Calls that wait for a person.
//!
//! A call waits because its tool [pauses](crate::tool::interrupt), or because the policy says
//! [`Verdict::Ask`](crate::Verdict). Where it is [parked](crate::Parking), as all of them are in a voice
//! session and those of the policy in writing, the conversation goes on meanwhile, and [`Approvals`]
//! decides over it: in this process or another, now or after a restart. The tool then runs once, whoever
//! decides at the same time.
//!
//! While the turn that asked is the last one, the request stands at the end of the conversation as an
//! interrupt does, and a turn that resumes it approves it, too. Once another turn begins it has an
//! output there that says that it waits, and is decided over here alone; how it ended is then told as a
//! round of its own.
//!
//! What is approved is what was shown: the record holds call id, tool, arguments, agent and snapshot,
//! and the policy is asked again, with [`CallContext::approved`] and [`CallContext::waited`] set.
//!
//! ```
//! use std::sync::Arc;
//!
//! use antiphon_agent::{
//!     InMemory, InvocationContext, SessionStore, ToolExecutor,
//!     approval::{Answer, ApprovalError, Approvals},
//! };
//!
//! async fn approve_all(
//!     store: Arc<dyn SessionStore>,
//!     tools: ToolExecutor,
//! ) -> Result<(), ApprovalError> {
//!     let (approvals, cx) = (Approvals::new(store)?, InvocationContext::new());
//!     for call in approvals.waiting(&cx, None).await? {
//!         let answer = Answer::new().by("the night watch");
//!         let memory = Arc::new(InMemory::new());
//!         let call = approvals.approve(&cx, &call.key, answer, &tools, memory).await?;
//!         println!("{}: {:?}", call.tool, call.state);
//!     }
//!     Ok(())
//! }
//! ```

mod error;

use std::{fmt, sync::Arc, time::Duration};

use antiphon_types::{JsonObject, Status, ToolArguments, ToolCall, ToolCallRequest};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    Admission, Agent, AgentFinishReason, AgentInit, AgentResult, Authorizer, CallContext, InMemory,
    InvocationContext, Invoke, Memory, Outcome, Parking, Refused, RunContext, RuntimeError,
    ScopedMemory, ToolExecutor, TurnResult,
    agent::WallClock,
    executor::Claimed,
    ledger::{
        Account, AskedBy, CallChange, CallLedger, CallRecord, CallState, Decision, Hold, Keeper,
        Lease, Lost, canonical_hash, later,
    },
    store::SessionStore,
    witness::{self, Witness},
};

pub use self::error::ApprovalError;

/// How long one operation of the store may take.
const STORE_LIMIT: Duration = Duration::from_secs(30);

/// Decides over the calls of a store that wait for a person.
#[derive(Clone)]
pub struct Approvals {
    store: Arc<dyn SessionStore>,
    /// Only its calls; all, where it is not said.
    agent: Option<Arc<str>>,
    /// Whose tools calls are approved with; `None`: those of the agent whose session it is.
    tools_of: Option<Arc<str>>,
    clock: WallClock,
    /// The session of an invocation, which tells the outcomes of its calls itself. Others that nobody
    /// tells become snapshots.
    within: Option<Arc<str>>,
    /// The memory that is handed over is as tools see it.
    scoped: bool,
    /// Remembers what is decided here without any policy.
    witness: Option<Arc<dyn Witness>>,
    /// Nothing is written down, neither what nobody decided over in time.
    looks: bool,
    /// Held while a call is judged and taken: of two who approve it at the same time the second one does not
    /// take from limits what the first one is about to.
    taking: Arc<tokio::sync::Mutex<()>>,
}

/// What a person says to a call.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Who says it.
    pub by: Option<Arc<str>>,
    /// Why, in words. The model is told why a call was not approved.
    pub reason: Option<String>,
    /// What a tool that asked is told: an object. Default: `true`.
    pub told: Option<Value>,
    /// The [`canonical_hash`] of the arguments that the person was shown.
    pub shown: Option<String>,
}

impl Answer {
    /// An answer of nobody in particular.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets who says it.
    pub fn by(mut self, name: impl Into<Arc<str>>) -> Self {
        self.by = Some(name.into());
        self
    }

    /// Sets why.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets what a tool that asked is told.
    pub fn told(mut self, answer: JsonObject) -> Self {
        self.told = Some(Value::Object(answer));
        self
    }

    /// Sets the arguments that the person was shown: a call with others is refused.
    pub fn shown(mut self, arguments: &JsonObject) -> Self {
        // What has no hash is like nothing that was ever recorded.
        self.shown = Some(canonical_hash(arguments).unwrap_or_else(|| "none".into()));
        self
    }
}

impl Approvals {
    /// Over the calls of this store.
    pub fn new(store: Arc<dyn SessionStore>) -> Result<Self, ApprovalError> {
        if store.call_ledger().is_none() {
            return Err(ApprovalError::Unsupported);
        }
        Ok(Self {
            store,
            agent: None,
            tools_of: None,
            clock: Arc::new(Timestamp::now),
            within: None,
            scoped: false,
            witness: None,
            looks: false,
            taking: Arc::default(),
        })
    }

    /// Only calls of this agent; others are refused.
    pub fn of_agent(mut self, agent: impl Into<Arc<str>>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// The tools that calls are approved with are those of this agent: a call that another one asked for
    /// is refused as [`ApprovalError::AnotherAgent`], whatever tools by its name there are. Default: they
    /// are those of the agent whose session it is, so that a call which another one asked for, to which
    /// the conversation had been handed over, is refused.
    pub fn with_tools_of(mut self, agent: impl Into<Arc<str>>) -> Self {
        self.tools_of = Some(agent.into());
        self
    }

    /// Has refusals, and calls that nobody decides over in time, remembered by the
    /// [witness] of this policy. One that approves is remembered by the policy of the
    /// tools that it is given.
    pub fn witnessed_by(mut self, policy: &dyn Authorizer) -> Self {
        self.witness = policy.witness();
        self
    }

    /// [`Approvals::witnessed_by`] the policy of these tools.
    pub fn witnessed_as(self, tools: &ToolExecutor) -> Self {
        match tools.authorizer() {
            Some(policy) => self.witnessed_by(&**policy),
            None => self,
        }
    }

    /// Only looks: a call whose time is up is shown as expired, and becomes so once somebody looks who keeps
    /// receipts of that.
    pub fn looking(mut self) -> Self {
        self.looks = true;
        self
    }

    /// Tells the time of day, in the place of the system's clock.
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Hands tools the memory that [`Approvals::approve`] is given as it is. Default: they see the part
    /// of the call's session, or of its caller, as the other tools of the session do.
    pub fn scoped_memory(mut self) -> Self {
        self.scoped = true;
        self
    }

    /// The calls that wait, of this session or of all, those that began to wait first first. What has
    /// waited for too long is expired by this.
    pub async fn waiting(
        &self,
        cx: &InvocationContext,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, ApprovalError> {
        let mut calls = self.unsettled(cx, session_id).await?;
        calls.retain(CallRecord::is_waiting);
        Ok(calls)
    }

    /// [`Approvals::waiting`], and the calls that ran or were refused since, of which no snapshot tells
    /// yet.
    pub async fn unsettled(
        &self,
        cx: &InvocationContext,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, ApprovalError> {
        let mut calls = Vec::new();
        for record in in_time(self.ledger()?.open_calls(cx, session_id)).await? {
            let ours = self.agent.as_ref().is_none_or(|agent| *agent == record.agent);
            if ours && record.approval.is_some() {
                calls.push(self.expire_if_due(cx, record).await?);
            }
        }
        Ok(calls)
    }

    /// Whether the history that the invocation of `cx` began with tells of the outcome of this call.
    pub fn is_told(&self, cx: &InvocationContext, key: &str) -> bool {
        cx.account().is_some_and(|account| account.tells_of(key))
    }

    /// Whether this call waited, or ran, when the invocation of `cx` began, and had been asked for in
    /// the conversation that it goes on with. Another branch of the session is not to tell its outcome.
    pub fn is_awaited(&self, cx: &InvocationContext, key: &str) -> bool {
        cx.account().is_some_and(|account| account.awaits(key))
    }

    /// A call that waits for a person, or did.
    pub async fn call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<CallRecord, ApprovalError> {
        if key.is_empty() {
            return Err(ApprovalError::NotFound(key.into()));
        }
        let record = in_time(self.ledger()?.call(cx, key)).await?;
        let record = record.filter(|record| record.approval.is_some());
        let record = record.ok_or_else(|| ApprovalError::NotFound(key.into()))?;
        match &self.agent {
            Some(agent) if *agent != record.agent => {
                Err(ApprovalError::AnotherAgent { key: record.key, agent: record.agent })
            }
            _ => self.expire_if_due(cx, record).await,
        }
    }

    /// Refuses a call. Its tool does not run any more.
    pub async fn deny(
        &self,
        cx: &InvocationContext,
        key: &str,
        answer: Answer,
    ) -> Result<CallRecord, ApprovalError> {
        self.check(cx, key, &answer).await?;
        let mut text = Outcome::NotApproved.fixed_text().to_owned();
        if let Some(reason) = &answer.reason {
            text = format!("{text}: {reason}");
        }
        let ended = self.ended(Outcome::NotApproved, json!({ "error": text }), None);
        let decision = self.decision(answer, false);
        let record = self.decide(cx, key, &ended, Some(decision)).await?;
        self.witness(cx, &record).await;
        self.deliver(cx, record).await
    }

    /// Approves a call and runs its tool to its end. The policy of `tools` is asked again before that;
    /// where it refuses, that is how the call ends.
    ///
    /// Of several who approve at the same time one runs the tool; the others are told
    /// [`ApprovalError::NotWaiting`]. Dropping the future cancels the tool.
    pub async fn approve(
        &self,
        cx: &InvocationContext,
        key: &str,
        answer: Answer,
        tools: &ToolExecutor,
        memory: Arc<dyn Memory>,
    ) -> Result<CallRecord, ApprovalError> {
        let record = self.check(cx, key, &answer).await?;
        self.check_tools(&record)?;
        let record = self.run(cx, &record, answer, tools, memory).await?;
        self.deliver(cx, record).await
    }

    /// Has the policy judge the call, takes it, and runs it.
    async fn run(
        &self,
        cx: &InvocationContext,
        record: &CallRecord,
        answer: Answer,
        tools: &ToolExecutor,
        memory: Arc<dyn Memory>,
    ) -> Result<CallRecord, ApprovalError> {
        let session = record.session_id.clone();
        let memory_of = record.approval.as_ref().and_then(|approval| approval.memory_of.as_ref());
        let memory: Arc<dyn Memory> = match self.scoped {
            true => memory,
            false => {
                let whose = memory_of.unwrap_or(&session);
                Arc::new(ScopedMemory::of_tenant(memory, cx.scope(), whose))
            }
        };
        // What belongs to another session is none of the business of this one: neither its state nor
        // its account.
        let cx = match cx.account() {
            Some(account) if *account.session_id() == session => cx.clone(),
            _ => {
                let cx = cx.outside();
                let keeper = Keeper {
                    agent: record.agent.clone(),
                    session_id: session.clone(),
                    clock: self.clock.clone(),
                    limit: STORE_LIMIT,
                };
                let tip = record.parent_id.clone();
                let account = Account::new(&self.store, &cx, keeper, tip, Lost::default());
                cx.with_account(account)
            }
        };
        let mut context = CallContext::new(session.clone(), record.turn, memory.clone());
        (context.approved, context.waited) = (true, true);
        context.confirmed = record.approval.as_ref().is_some_and(|approval| approval.confirmed);
        let approver = cx.caller().map(|caller| caller.id.clone()).filter(|id| !id.is_empty());
        let answer = Answer { by: answer.by.or(approver), ..answer };
        context.approved_by = answer.by.clone();
        // Judged, counted and run in the name of who asked for it.
        let invocation = record.on_behalf(&cx);
        context.invocation = invocation.clone();
        let request = ToolCallRequest {
            id: record.call_id.clone(),
            name: record.tool.clone(),
            arguments: ToolArguments::Object(record.arguments.clone()),
        };
        let by_provider = record.approval.as_ref().is_some_and(|approval| approval.by_provider);
        if by_provider && !record.is_attended((self.clock)()) {
            let text = "nobody is there any more who could do it";
            let detail = "the session is over whose provider asked for it".to_owned();
            let output = json!({ "error": text });
            let ended = self.ended(Outcome::Cancelled, output, Some(detail));
            return self.decide(&cx, &record.key, &ended, Some(self.decision(answer, true))).await;
        }
        context.by_provider = by_provider;
        let tools = tools.with_new_ids();
        let decision = self.decision(answer, true);
        let refused = |outcome: Outcome, output: Value, detail: String| {
            self.ended(outcome, output, Some(detail))
        };
        let taking = self.taking.clone().lock_owned().await;
        let refusal = match tools.admit_text(&context, request).await {
            Admission::Run(admitted) if admitted.call().args == record.arguments => {
                let asked_by = record.approval.as_ref().map(|approval| approval.asked_by);
                let told = decision.answer.clone().unwrap_or(Value::Bool(true));
                let claimed = self.take(&cx, &record.key, decision).await?;
                drop(taking);
                let cancelled = cx.cancellation().child_token();
                let mut run = RunContext::new(session, record.turn, memory, cancelled)
                    .with_invocation(invocation)
                    .parking(Parking::default());
                run.claimed = Some(claimed);
                run.resumed = (asked_by == Some(AskedBy::Tool)).then_some(told);
                tools.run(admitted, run).await;
                if let Some(account) = cx.account() {
                    // What is known of one that was cut off is written behind.
                    account.flush().await;
                }
                let record = self.call(&cx, &record.key).await?;
                if record.is_lost((self.clock)()) {
                    let lost = "the call was cut off while its tool ran: how it ended is not known";
                    return Err(RuntimeError::Cancelled(lost.into()).into());
                }
                return Ok(record);
            }
            Admission::Run(admitted) => {
                let text = Outcome::Denied.fixed_text();
                let detail = "the policy wants other arguments than those that were approved";
                admitted.withdraw(Outcome::Denied, detail);
                refused(Outcome::Denied, json!({ "error": text }), detail.into())
            }
            Admission::Refused(refusal) if refusal.outcome == Outcome::UnknownTool => {
                return Err(ApprovalError::NoTool(record.tool.clone()));
            }
            Admission::Refused(refusal) => {
                let output = Value::Object(refusal.response.response);
                refused(refusal.outcome, output, refusal.reason)
            }
            Admission::Host(_) => return Err(ApprovalError::NoTool(record.tool.clone())),
            Admission::Confirm { .. } => {
                let text = Outcome::Denied.fixed_text();
                let detail = "the policy wants the caller to confirm it, who is not there";
                refused(Outcome::Denied, json!({ "error": text }), detail.into())
            }
            Admission::Duplicate => {
                return Err(RuntimeError::internal("the call was judged twice").into());
            }
        };
        self.decide(&cx, &record.key, &refusal, Some(decision)).await
    }

    /// The history tells of the outcome, by a snapshot of its own, unless a session lives that does so.
    /// Where the conversation has gone on elsewhere, whoever goes on from here is told.
    async fn deliver(
        &self,
        cx: &InvocationContext,
        record: CallRecord,
    ) -> Result<CallRecord, ApprovalError> {
        let now = (self.clock)();
        let over = matches!(record.state, CallState::Ended { .. }) && !record.settled;
        let within = self.within.as_ref() == Some(&record.session_id);
        if within || !over || record.is_attended(now) {
            return Ok(record);
        }
        if let Err(error) = self.append_outcome(cx, &record).await {
            let call = &*record.key;
            tracing::warn!(call, %error, "the outcome waits for whoever goes on with the session");
        }
        Ok(record)
    }

    /// Has the history tell how a call ended, by a snapshot of its own, where no snapshot does: its session
    /// is over, and did not come to it.
    pub async fn tell(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<CallRecord, ApprovalError> {
        let record = self.call(cx, key).await?;
        Self { within: None, ..self.clone() }.deliver(&cx.outside(), record).await
    }

    async fn append_outcome(
        &self,
        cx: &InvocationContext,
        record: &CallRecord,
    ) -> Result<(), RuntimeError> {
        let clock = self.clock.clone();
        // The agent may be any: what it adds is what the store knows.
        let agent: Agent = Agent::custom(record.agent.clone(), |_cx, _responder, _runner| async {
            Ok(AgentResult::default())
        })
        .shared_store(self.store.clone())
        .clock(move || clock())
        .build();
        let init = AgentInit::session(record.session_id.clone());
        let invocation = agent.open(cx, init).await?;
        // Where it tells already there is nothing to add.
        let tells = invocation.context().account().is_some_and(|it| it.begins_with(&record.key));
        if tells {
            let finish_reason = Some(AgentFinishReason::Stop);
            let end = invocation.begin_turn()?.seal(Ok(TurnResult { finish_reason })).write().await;
            if end.snapshot_id.is_some() {
                self.settle(cx, &record.key).await?;
            }
        }
        invocation.finish(Ok(AgentResult::default())).await;
        Ok(())
    }

    /// A snapshot tells how the call ended. Not left to be written behind: the process may end now.
    async fn settle(&self, cx: &InvocationContext, key: &str) -> Result<(), RuntimeError> {
        let update = |record: Option<&CallRecord>| {
            Ok(match record {
                Some(record) => {
                    CallChange::Write(Box::new(CallRecord { settled: true, ..record.clone() }))
                }
                None => CallChange::Keep,
            })
        };
        if let Ok(ledger) = self.ledger() {
            in_time(ledger.save_call(cx, key, &update)).await?;
        }
        Ok(())
    }

    /// The call, where it waits and is the one that was shown.
    async fn check(
        &self,
        cx: &InvocationContext,
        key: &str,
        answer: &Answer,
    ) -> Result<CallRecord, ApprovalError> {
        let record = self.call(cx, key).await?;
        if !record.is_waiting() {
            return Err(ApprovalError::NotWaiting(Box::new(record)));
        }
        if answer.shown.as_ref().is_some_and(|shown| **shown != *record.arguments_hash) {
            return Err(ApprovalError::ChangedArguments(record.key));
        }
        Ok(record)
    }

    /// Whether the tools here are those of the agent that asked for the call: no other agent's by the same
    /// name run.
    pub(crate) fn check_tools(&self, record: &CallRecord) -> Result<(), ApprovalError> {
        let asker = record.asker();
        if asker == self.tools_of.as_ref().unwrap_or(&record.agent) {
            return Ok(());
        }
        Err(ApprovalError::AnotherAgent { key: record.key.clone(), agent: asker.clone() })
    }

    /// Says that a session lives that is going to tell the outcome of a call that waits, for so long
    /// from now; `None`: not any more. Until then nobody else does.
    pub async fn attend(
        &self,
        cx: &InvocationContext,
        key: &str,
        within: Option<Duration>,
    ) -> Result<(), ApprovalError> {
        let until = within.and_then(|within| later((self.clock)(), within));
        let update = |record: Option<&CallRecord>| {
            Ok(match record.filter(|record| !record.settled) {
                Some(record) => {
                    let mut record = record.clone();
                    if let Some(approval) = &mut record.approval {
                        approval.attended_until = until;
                    }
                    CallChange::Write(Box::new(record))
                }
                None => CallChange::Keep,
            })
        };
        in_time(self.ledger()?.save_call(cx, key, &update)).await?;
        Ok(())
    }

    /// The conversation of `cx` is going to tell of the outcome of this call. Once a snapshot does, the
    /// call is settled.
    pub fn note(&self, cx: &InvocationContext, record: &CallRecord) {
        if let Some(account) = cx.account() {
            account.note_ended(record);
        }
    }

    /// Over the calls of an invocation's agent in its store.
    pub(crate) fn of_account(account: &Arc<Account>) -> Result<Self, ApprovalError> {
        let (within, agent) = (Some(account.session_id().clone()), Some(account.agent().clone()));
        let account = account.clone();
        let approvals = Self::new(account.store().clone())?.clock(move || account.now());
        Ok(Self { within, agent, ..approvals })
    }

    /// Takes a call for somebody who approves it and is going to run it: `call`, as it was shown.
    pub(crate) async fn claim(
        &self,
        cx: &InvocationContext,
        key: &str,
        call: &ToolCall,
        by: Option<Arc<str>>,
    ) -> Result<Claimed, ApprovalError> {
        let record = self.call(cx, key).await?;
        if !record.is_like(call) {
            return Err(ApprovalError::ChangedArguments(key.into()));
        }
        self.check_tools(&record)?;
        self.take(cx, key, self.decision(Answer { by, ..Answer::default() }, true)).await
    }

    async fn take(
        &self,
        cx: &InvocationContext,
        key: &str,
        decision: Decision,
    ) -> Result<Claimed, ApprovalError> {
        let now = (self.clock)();
        // Before the record says so.
        let hold = Arc::new(Hold::new(key.into()));
        let running = CallState::Running { since: now, lease: Some(Lease::new(now)) };
        let record = self.decide(cx, key, &running, Some(decision)).await?;
        Ok(Claimed { record, hold })
    }

    /// Somebody gave the output of a call in the place of its tool: a refusal, where it is an error.
    pub(crate) async fn answer(
        &self,
        account: &Arc<Account>,
        key: &str,
        output: Value,
        by: Option<Arc<str>>,
    ) -> Result<(), ApprovalError> {
        let decision = self.decision(Answer { by, ..Answer::default() }, false);
        let outcome = match output.get("error") {
            Some(_) => Outcome::NotApproved,
            None => Outcome::Success,
        };
        let ended = self.ended(outcome, output, Some("answered by hand".into()));
        let record = self.decide(account.context(), key, &ended, Some(decision)).await?;
        self.witness(account.context(), &record).await;
        account.note_ended(&record);
        Ok(())
    }

    /// The policy refused a call that waits.
    pub(crate) async fn refuse(
        &self,
        account: &Arc<Account>,
        key: &str,
        refusal: &Refused,
    ) -> Result<(), ApprovalError> {
        let output = Value::Object(refusal.response.response.clone());
        let ended = self.ended(refusal.outcome, output, Some(refusal.reason.clone()));
        let record = self.decide(account.context(), key, &ended, None).await?;
        account.note_ended(&record);
        Ok(())
    }

    /// Takes a call that waits to another state. One of those who try at the same time does.
    async fn decide(
        &self,
        cx: &InvocationContext,
        key: &str,
        state: &CallState,
        decision: Option<Decision>,
    ) -> Result<CallRecord, ApprovalError> {
        let mut taken = None;
        let update = |record: Option<&CallRecord>| {
            Ok(match record {
                Some(record) if record.is_waiting() => {
                    let mut record = record.clone();
                    record.state = state.clone();
                    if let Some(approval) = &mut record.approval {
                        approval.decision = decision.clone().or(approval.decision.take());
                    }
                    CallChange::Write(Box::new(record))
                }
                _ => CallChange::Keep,
            })
        };
        let record = in_time(self.ledger()?.save_call(cx, key, &update)).await?;
        // The state says when, and the decision by whom, so that it is this one or nobody's.
        if let Some(record) = record {
            let decided = record.approval.as_ref().and_then(|approval| approval.decision.as_ref());
            if record.state == *state && (decision.is_none() || decided == decision.as_ref()) {
                return Ok(record);
            }
            taken = Some(record);
        }
        match taken {
            Some(record) => Err(ApprovalError::NotWaiting(Box::new(record))),
            None => Err(ApprovalError::NotFound(key.into())),
        }
    }

    /// Has it remembered that a call is over without having run, and who decided so.
    async fn witness(&self, cx: &InvocationContext, record: &CallRecord) {
        let Some(witness) = self.witness.clone() else { return };
        let CallState::Ended { outcome, detail, .. } = &record.state else { return };
        let said = record.approval.as_ref().and_then(|approval| approval.decision.as_ref());
        let reason = said.and_then(|said| said.reason.clone()).or_else(|| detail.clone());
        let memory: Arc<dyn Memory> = Arc::new(InMemory::new());
        let mut context = CallContext::new(record.session_id.clone(), record.turn, memory);
        context.invocation = record.on_behalf(cx);
        context.waited = true;
        let ruling = witness::Ruling::Refuse {
            outcome: *outcome,
            reason: reason.unwrap_or_default(),
            until: None,
        };
        let by = said.map(|said| said.by.clone().unwrap_or_else(|| "somebody".into()));
        let decision = witness::Decision::outside(&context, record.call(), ruling, by);
        witness::note(witness, context, decision).await;
    }

    /// A call that waited for too long is over, with that as its outcome.
    async fn expire_if_due(
        &self,
        cx: &InvocationContext,
        record: CallRecord,
    ) -> Result<CallRecord, ApprovalError> {
        let Some(ended) = record.expired((self.clock)()) else { return Ok(record) };
        if self.looks {
            return Ok(CallRecord { state: ended, ..record });
        }
        match self.decide(cx, &record.key, &ended, None).await {
            Ok(record) => {
                self.witness(cx, &record).await;
                self.deliver(cx, record).await
            }
            // Somebody decided in this moment.
            Err(ApprovalError::NotWaiting(record)) => Ok(*record),
            Err(error) => Err(error),
        }
    }

    fn ended(&self, outcome: Outcome, output: Value, detail: Option<String>) -> CallState {
        CallState::Ended { at: (self.clock)(), outcome, output, detail }
    }

    fn decision(&self, answer: Answer, approved: bool) -> Decision {
        let Answer { by, reason, told, .. } = answer;
        let nonce = crate::id::new_id();
        Decision { approved, by, at: (self.clock)(), reason, answer: told, nonce }
    }

    fn ledger(&self) -> Result<&dyn CallLedger, ApprovalError> {
        self.store.call_ledger().ok_or(ApprovalError::Unsupported)
    }
}

/// What a store answers, which it has so long for.
async fn in_time<T>(
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let late = || {
        let text = format!("the store did not answer within {STORE_LIMIT:?}");
        RuntimeError::new(Status::Unavailable, text)
    };
    timeout(STORE_LIMIT, answer).await.unwrap_or_else(|_| Err(late()))
}

impl fmt::Debug for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approvals").field("agent", &self.agent).finish_non_exhaustive()
    }
}
