//! Policies, limits and receipts as one authoriser.

mod about;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use antiphon_agent::{
    Authorizer, CallContext, Denial, Judgement, RateLimit, Receipt, Verdict, Witness,
    witness::{CallEnd, Commitment, Decision, Happened, Refusal, Ruling},
};
use antiphon_types::ToolCall;
use jiff::Timestamp;

use self::about::{About, refused};
use super::{
    Draw, InMemoryLimits, Limit, LimitStore, Policies, Policy, PolicyContext, PolicyError,
    ReceiptLog, ReservationId, Reserved, Spent,
    pattern::ToolPattern,
    receipts::{Argument, Hidden, Redaction, UNSAFE_NUMBER},
};

/// Decides over tool calls with several policies, has them take from limits, and writes receipts.
///
/// It is an [`Authorizer`]: give it as it is, and not wrapped in a closure, which would know nothing of
/// limits and receipts (and so is refused everything), to a session
/// ([`authorize`](crate::session::SessionBuilder::authorize)) or to a
/// [`ToolExecutor`](antiphon_agent::ToolExecutor). Clones share everything.
///
/// What happens to a call:
///
/// 1. The model proposes it; all policies judge it together (see [`Policies`]).
/// 2. Where they allow it, it takes from each limit that it falls under; where one has no room, it is
///    refused until there is some. A limit or receipt that cannot be written denies it.
/// 3. The decision is written down, whatever it is. Only then may the tool run.
/// 4. Where it had to wait (for a free slot, for a person, for a restart) 1 to 3 happen once more right
///    before it runs; what it took already is not taken again.
/// 5. Its outcome is written down. Where it was not done, what it took is given back; where nobody can
///    tell, because it was given up while it ran, that stays taken.
///
/// ```
/// use std::time::Duration;
///
/// use antiphon::policy::{
///     AllowList, AmountField, AskAbove, Limit, Per, PolicyError, PolicyHost, ReceiptLog,
/// };
///
/// # fn host(log: ReceiptLog) -> Result<PolicyHost, PolicyError> {
/// let cents = || AmountField::minor("cents");
/// let day = Duration::from_secs(24 * 60 * 60);
/// PolicyHost::builder()
///     .policy(AllowList::new("tools", ["send_money", "look_up_*"])?)
///     .policy(AskAbove::new("large", "send_money", cents(), 10_000)?)
///     .limit(Limit::new("daily", "send_money", day)?.per(Per::Caller).amount(cents(), 50_000))
///     .receipts(log)
///     .durable("send_money")
///     .build()
/// # }
/// ```
#[derive(Clone)]
pub struct PolicyHost {
    inner: Arc<Inner>,
    /// The same one each time, so that nothing is taken twice where several are asked.
    witness: Arc<dyn Witness>,
}

struct Inner {
    policies: Policies,
    limits: Vec<Limit>,
    store: Arc<dyn LimitStore>,
    receipts: Option<Arc<ReceiptLog>>,
    durable: Vec<ToolPattern>,
    redactions: Vec<Redaction>,
    clock: Arc<Clock>,
    counts: Counts,
    /// What calls took that have not ended.
    held: Mutex<HashMap<CallKey, Vec<Draw>>>,
}

type Clock = dyn Fn() -> Timestamp + Send + Sync;

/// How a [`PolicyHost`] is made.
#[must_use]
pub struct PolicyHostBuilder {
    policies: Vec<Arc<dyn Policy>>,
    limits: Vec<Limit>,
    store: Option<Arc<dyn LimitStore>>,
    receipts: Option<Arc<ReceiptLog>>,
    durable: Vec<String>,
    redactions: Vec<Redaction>,
    clock: Arc<Clock>,
    problem: Option<PolicyError>,
}

/// What a host says of a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The verdict.
    pub verdict: Verdict,
    /// The policies or limits that came to it.
    pub policies: Vec<Arc<str>>,
    /// What each policy says by itself of the model's arguments.
    pub each: Vec<(Arc<str>, Verdict)>,
}

/// What a host has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostStatistics {
    /// Calls that were allowed.
    pub allowed: u64,
    /// Decisions that were not to allow a call.
    pub not_allowed: u64,
    /// Receipts that could not be written. Those of a call that was to run denied it.
    pub lost_receipts: u64,
    /// Reservations that could be neither settled nor given back; they stay taken.
    pub stuck_reservations: u64,
}

#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    not_allowed: AtomicU64,
    lost_receipts: AtomicU64,
    stuck_reservations: AtomicU64,
}

impl PolicyHost {
    /// A host that allows nothing yet.
    pub fn builder() -> PolicyHostBuilder {
        PolicyHostBuilder {
            policies: Vec::new(),
            limits: Vec::new(),
            store: None,
            receipts: None,
            durable: Vec::new(),
            redactions: Vec::new(),
            clock: Arc::new(Timestamp::now),
            problem: None,
        }
    }

    /// Its policies.
    pub fn policies(&self) -> &Policies {
        &self.inner.policies
    }

    /// What it says of a call, and what each policy says by itself. Nothing is written down, and what
    /// the call takes from limits is given back at once.
    pub fn explain(&self, cx: &CallContext, call: &ToolCall) -> Explanation {
        let inner = &*self.inner;
        let mut context = PolicyContext::of(cx, (inner.clock)());
        if let Ok(spent) = inner.spent(cx, call, context.now) {
            context.spent = spent;
        }
        let each = inner.policies.explain(&context, call);
        let Judgement { verdict, policies, .. } = self.judge(cx, call);
        let args = match &verdict {
            Verdict::Allow => call.args.clone(),
            Verdict::AllowWith(args) => args.clone(),
            _ => return Explanation { verdict, policies, each },
        };
        match inner.reserve(cx, &ToolCall { args, ..call.clone() }) {
            Ok(reservation) => {
                if let Some(Err(error)) = reservation.map(|taken| inner.store.give_back(taken)) {
                    tracing::error!(%error, "what an explanation took stays taken");
                }
                Explanation { verdict, policies, each }
            }
            Err((limit, refusal)) => {
                Explanation { verdict: refusal.into(), policies: vec![limit], each }
            }
        }
    }

    /// What was counted so far.
    pub fn statistics(&self) -> HostStatistics {
        let counts = &self.inner.counts;
        HostStatistics {
            allowed: counts.allowed.load(Ordering::Relaxed),
            not_allowed: counts.not_allowed.load(Ordering::Relaxed),
            lost_receipts: counts.lost_receipts.load(Ordering::Relaxed),
            stuck_reservations: counts.stuck_reservations.load(Ordering::Relaxed),
        }
    }
}

impl PolicyHostBuilder {
    /// Adds a policy; all must allow a call.
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policies.push(Arc::new(policy));
        self
    }

    /// Adds a limit.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Sets where what was used of the limits is remembered. Default: in this process's memory, with a
    /// count of this host's own.
    pub fn limit_store(mut self, store: impl LimitStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets where receipts are written. Several hosts may share a log.
    pub fn receipts(mut self, log: impl Into<Arc<ReceiptLog>>) -> Self {
        self.receipts = Some(log.into());
        self
    }

    /// Receipts of these tools, by name or pattern, are on the disk before the tool runs.
    pub fn durable(mut self, tools: &str) -> Self {
        self.durable.push(tools.to_owned());
        self
    }

    /// Receipts do not show this argument.
    pub fn redact(mut self, redaction: Redaction) -> Self {
        self.redactions.push(redaction);
        self
    }

    /// There is something that no host can be made of.
    #[cfg(feature = "cedar")]
    pub(super) fn problem(mut self, problem: PolicyError) -> Self {
        self.problem = Some(problem);
        self
    }

    /// Tells the time of day, in the place of the system's clock.
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The host.
    ///
    /// # Errors
    ///
    /// Two policies or limits have one name, a limit limits nothing, or there is no receipt that could be durable.
    pub fn build(self) -> Result<PolicyHost, PolicyError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let mut limits = self.limits;
        limits.sort_by(|one, other| one.id().cmp(other.id()));
        if let Some(twice) = limits.windows(2).find(|pair| pair[0].id() == pair[1].id()) {
            return Err(PolicyError::of(twice[0].id(), "two limits have this name"));
        }
        if let Some(empty) = limits.iter().find(|limit| limit.is_empty()) {
            return Err(PolicyError::of(empty.id(), "a limit of neither calls nor an amount"));
        }
        let durable = self.durable.iter().map(|tools| super::pattern_of("durable", tools));
        let durable: Vec<_> = durable.collect::<Result<_, _>>()?;
        if self.receipts.is_none() && !durable.is_empty() {
            return Err(PolicyError::of("durable", "there is no log of receipts"));
        }
        let inner = Arc::new(Inner {
            policies: Policies::new(self.policies)?,
            limits,
            store: self.store.unwrap_or_else(|| Arc::new(InMemoryLimits::new())),
            receipts: self.receipts,
            durable,
            redactions: self.redactions,
            clock: self.clock,
            counts: Counts::default(),
            held: Mutex::default(),
        });
        let witness = Arc::new(Books(inner.clone()));
        Ok(PolicyHost { inner, witness })
    }
}

impl Authorizer for PolicyHost {
    /// Denies: whoever asks only this has nothing taken from limits, and no receipt written. What asks
    /// policies asks [`Authorizer::judge`] and tells the witness; to only look, there is
    /// [`PolicyHost::explain`].
    fn authorize_tool_call(&self, _: &CallContext, _: &ToolCall) -> Verdict {
        Verdict::Deny(Denial::private("the policy was asked without its limits and receipts"))
    }

    fn judge(&self, cx: &CallContext, call: &ToolCall) -> Judgement {
        let inner = &*self.inner;
        let mut context = PolicyContext::of(cx, (inner.clock)());
        if inner.policies.read_spent() {
            match inner.spent(cx, call, context.now) {
                Ok(spent) => context.spent = spent,
                Err((limit, reason)) => {
                    let denial = Verdict::Deny(Denial::private(reason));
                    return Judgement::new(denial, vec![limit]);
                }
            }
        }
        inner.policies.judge(&context, call)
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        Some(self.witness.clone())
    }
}

/// Takes from limits, and writes receipts.
struct Books(Arc<Inner>);

impl Witness for Books {
    fn decided(
        &self,
        cx: &CallContext,
        decision: &Decision,
    ) -> Result<Option<Box<dyn Commitment>>, Refusal> {
        let inner = &self.0;
        if !matches!(decision.ruling, Ruling::Run | Ruling::HandOver) {
            inner.counts.not_allowed.fetch_add(1, Ordering::Relaxed);
            inner.note(cx, decision);
            return Ok(None);
        }
        let reservation = inner.reserve(cx, &decision.call).map_err(|(limit, refusal)| {
            inner.counts.not_allowed.fetch_add(1, Ordering::Relaxed);
            inner.note(cx, &refused(decision, limit, &refusal));
            refusal
        })?;
        let mut commitment = Taken {
            inner: inner.clone(),
            reservation,
            about: About::of(cx, decision),
            hidden: inner.hidden(decision),
            entry: None,
            held: None,
            begun: false,
        };
        match inner.write(cx, decision) {
            Ok(receipt) => commitment.entry = receipt.map(|receipt| receipt.sequence),
            Err(denial) => {
                inner.counts.not_allowed.fetch_add(1, Ordering::Relaxed);
                commitment.give_back();
                return Err(Refusal::Denied(denial));
            }
        }
        inner.counts.allowed.fetch_add(1, Ordering::Relaxed);
        if commitment.reservation.is_some() {
            let held = (cx.session_id.clone(), decision.call.id.clone());
            let draws = inner.draws(cx, &decision.call).unwrap_or_default();
            lock(&inner.held).insert(held.clone(), draws);
            commitment.held = Some(held);
        }
        commitment.begun = true;
        Ok(Some(Box::new(commitment)))
    }
}

/// What a call took from limits, until its end is known.
struct Taken {
    inner: Arc<Inner>,
    reservation: Option<ReservationId>,
    about: About,
    /// What receipts do not show.
    hidden: Hidden,
    /// The receipt that allowed it.
    entry: Option<u64>,
    /// How others find what it took.
    held: Option<CallKey>,
    /// Somebody may act on it.
    begun: bool,
}

/// A session, and a call of it.
type CallKey = (Arc<str>, Arc<str>);

impl Commitment for Taken {
    fn decided_again(&mut self, cx: &CallContext, decision: &Decision) -> Result<(), Refusal> {
        if decision.ruling != Ruling::Run {
            self.inner.counts.not_allowed.fetch_add(1, Ordering::Relaxed);
            self.inner.note(cx, decision);
            return Ok(());
        }
        let receipt = self.inner.write(cx, decision).map_err(Refusal::Denied)?;
        self.entry = receipt.map(|receipt| receipt.sequence);
        Ok(())
    }

    fn ended(mut self: Box<Self>, end: &CallEnd) -> Option<Receipt> {
        let receipt = self.inner.receipts.as_ref().and_then(|log| {
            let entry = self.about.outcome(end, &self.hidden, self.entry, (self.inner.clock)());
            let written = match self.inner.is_durable(&self.about.tool) && end.ran {
                true => log.append_durably(entry),
                false => log.append(entry),
            };
            written.inspect_err(|error| self.inner.lost(&self.about.tool, error)).ok()
        });
        match end.happened() {
            Happened::No => self.give_back(),
            Happened::Yes | Happened::Unknown => self.settle(),
        }
        receipt
    }
}

impl Taken {
    fn settle(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        self.done(self.inner.store.settle(reservation));
    }

    fn give_back(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        self.done(self.inner.store.give_back(reservation));
    }

    fn done(&self, done: Result<(), super::LimitError>) {
        if let Err(error) = done {
            self.inner.counts.stuck_reservations.fetch_add(1, Ordering::Relaxed);
            tracing::error!(tool = &*self.about.tool, %error, "what a call took stays taken");
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            lock(&self.inner.held).remove(&held);
        }
        match self.begun {
            false => self.give_back(),
            // Nobody said how it ended, so it may have happened.
            true => self.settle(),
        }
    }
}

/// Only plain data is moved under this lock, so a poisoned one still guards whole data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// What was used of the limits that a call falls under, itself not counted.
    fn spent(
        &self,
        cx: &CallContext,
        call: &ToolCall,
        now: Timestamp,
    ) -> Result<Vec<Spent>, (Arc<str>, String)> {
        // Whose counts they are does not depend on the arguments, which policies may still complete.
        let looks = self
            .limits
            .iter()
            .map(|limit| limit.look(cx, call).map_err(|reason| (limit.id().clone(), reason)));
        let looks: Vec<Draw> = looks.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        let Some(first) = looks.first() else { return Ok(Vec::new()) };
        let spent = self.store.spent(now, &looks);
        let mut spent = spent.map_err(|error| (first.limit.clone(), error.to_string()))?;
        // One that waited for a slot holds what it took.
        if cx.waited
            && let Some(held) = lock(&self.held).get(&(cx.session_id.clone(), call.id.clone()))
        {
            for draw in held {
                for of in spent.iter_mut().filter(|of| of.limit == draw.limit) {
                    of.calls = of.calls.saturating_sub(1);
                    of.amount = of.amount.saturating_sub(draw.amount);
                }
            }
        }
        Ok(spent)
    }

    fn hidden(&self, decision: &Decision) -> Hidden {
        let (tool, args) = (&decision.call.name, &decision.call.args);
        let argument = Argument::of(tool, args, &self.redactions, false);
        argument.map_or_else(|| Hidden::of(tool, &self.redactions), |argument| argument.hidden)
    }

    fn draws(&self, cx: &CallContext, call: &ToolCall) -> Result<Vec<Draw>, (Arc<str>, String)> {
        let draws = self
            .limits
            .iter()
            .map(|limit| limit.draw(cx, call).map_err(|reason| (limit.id().clone(), reason)));
        draws.filter_map(Result::transpose).collect()
    }

    fn reserve(
        &self,
        cx: &CallContext,
        call: &ToolCall,
    ) -> Result<Option<ReservationId>, (Arc<str>, Refusal)> {
        let draws = self
            .draws(cx, call)
            .map_err(|(limit, reason)| (limit, Refusal::Denied(Denial::told(reason))))?;
        let Some(first) = draws.first() else { return Ok(None) };
        match self.store.reserve((self.clock)(), &draws) {
            Ok(Reserved::Yes(reservation)) => Ok(Some(reservation)),
            Ok(Reserved::No { limit, until: Some(until) }) => {
                let limited = RateLimit::new(until, "the limit has no room");
                Err((limit, Refusal::RateLimited(limited)))
            }
            Ok(Reserved::No { limit, until: None }) => {
                let denial = Denial::private("it is more than the limit allows at all");
                Err((limit, Refusal::Denied(denial)))
            }
            Err(error) => {
                Err((first.limit.clone(), Refusal::Denied(Denial::private(error.to_string()))))
            }
        }
    }

    /// Writes a decision down that lets a call run. Errs where it cannot be.
    fn write(&self, cx: &CallContext, decision: &Decision) -> Result<Option<Receipt>, Denial> {
        let Some(log) = &self.receipts else { return Ok(None) };
        let about = About::of(cx, decision);
        let entry = about.decision(cx, decision, (self.clock)(), &self.redactions);
        let Some(entry) = entry else {
            self.note(cx, decision);
            return Err(Denial::told(UNSAFE_NUMBER));
        };
        let written = match self.is_durable(&about.tool) {
            true => log.append_durably(entry),
            false => log.append(entry),
        };
        written.map(Some).map_err(|error| {
            self.lost(&about.tool, &error);
            Denial::private(format!("no receipt could be written: {error}"))
        })
    }

    /// Writes a decision down that lets nothing run.
    fn note(&self, cx: &CallContext, decision: &Decision) {
        let Some(log) = &self.receipts else { return };
        let about = About::of(cx, decision);
        let entry = about.decision(cx, decision, (self.clock)(), &self.redactions);
        // What it is about cannot be said exactly, but that it was refused can.
        let entry = entry.unwrap_or_else(|| {
            let mut entry = about.entry("decision", (self.clock)());
            entry.insert("verdict".to_owned(), "deny".into());
            entry.insert("reason".to_owned(), UNSAFE_NUMBER.into());
            entry
        });
        if let Err(error) = log.append(entry) {
            self.lost(&about.tool, &error);
        }
    }

    fn lost(&self, tool: &str, error: &super::receipts::ReceiptError) {
        self.counts.lost_receipts.fetch_add(1, Ordering::Relaxed);
        tracing::error!(tool, %error, "a receipt could not be written");
    }

    fn is_durable(&self, tool: &str) -> bool {
        self.durable.iter().any(|pattern| pattern.fits(tool))
    }
}

impl fmt::Debug for PolicyHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyHost")
            .field("policies", &self.inner.policies)
            .field("limits", &self.inner.limits)
            .field("receipts", &self.inner.receipts.as_ref().map(|log| log.path()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PolicyHostBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyHostBuilder").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
