//! What has to be remembered of a call before its tool runs, and after.
//!
//! The policy decides within a short deadline and from what it knows. What it cannot do in that time
//! (take from a limit that others share, write a receipt to the disk) is its [`Witness`]'s: told each
//! decision before anybody acts on it, in its own time, it may still refuse a call that the policy
//! allows; a call that it could not remember does not run.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use antiphon_types::{JsonObject, ToolCall};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallContext, Denial, Executed, Outcome, Verdict};

/// Remembers decisions over calls, and what came of them. May block: it is asked on the blocking pool,
/// within [`ExecutorLimits::record_deadline`](crate::ExecutorLimits::record_deadline).
pub trait Witness: Send + Sync + 'static {
    /// A decision was reached; nobody has acted on it yet. What this returns is kept with the call to
    /// its end. An error refuses a call that was allowed, and changes nothing for another. A panic, or
    /// no answer in time, refuses it too.
    fn decided(
        &self,
        cx: &CallContext,
        decision: &Decision,
    ) -> Result<Option<Box<dyn Commitment>>, Refusal>;
}

/// What a witness keeps with one call, such as a reservation.
pub trait Commitment: Send + 'static {
    /// A call that had to wait was judged again right before it starts. An error refuses it.
    #[allow(unused_variables)] // the names are the documentation
    fn decided_again(&mut self, cx: &CallContext, decision: &Decision) -> Result<(), Refusal> {
        Ok(())
    }

    /// The call is over, whether it ran or not. Called once; on the blocking pool, except where no
    /// runtime is left. It returns where that was written down.
    fn ended(self: Box<Self>, end: &CallEnd) -> Option<Receipt>;
}

/// When a decision is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionPoint {
    /// The model proposes the call.
    Proposed,
    /// The call waited, for a free slot, a person or a restart, and is about to run.
    Start,
}

/// A decision over a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decision {
    /// The call, with the arguments that the tool would be given; without any where they could not be
    /// parsed.
    pub call: ToolCall,
    /// The model's arguments, where the policy wants others.
    pub original: Option<JsonObject>,
    /// What was decided.
    pub ruling: Ruling,
    /// The policies that decided, by name.
    pub policies: Vec<Arc<str>>,
    /// When.
    pub point: DecisionPoint,
    /// Who decided, where it was a person and not the policy.
    pub by: Option<Arc<str>>,
    /// The arguments as they came, where they are no object or too large to be one: the call's are
    /// empty then and say nothing.
    pub unparsed: Option<Arc<str>>,
}

impl Decision {
    /// A decision over a call that no policy came to, such as that of a person.
    pub fn outside(cx: &CallContext, call: ToolCall, ruling: Ruling, by: Option<Arc<str>>) -> Self {
        let (policies, point) = (Vec::new(), cx.point());
        Self { call, original: None, ruling, policies, point, by, unparsed: None }
    }
}

/// Has a decision remembered by which nothing runs. Waits for that for a while, and no longer.
pub(crate) async fn note(witness: Arc<dyn Witness>, cx: CallContext, decision: Decision) {
    let call = decision.call.id.clone();
    let told =
        tokio::task::spawn_blocking(move || caught(|| witness.decided(&cx, &decision)).map(drop));
    if tokio::time::timeout(NOTE_LIMIT, told).await.is_err() {
        tracing::error!(call = &*call, "a decision over a tool call is not written down yet");
    }
}

/// How long a decision by which nothing runs is waited for to be written down.
const NOTE_LIMIT: Duration = Duration::from_secs(5);

/// What was decided over a call, by the policy or by the executor itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ruling {
    /// Its tool may run.
    Run,
    /// The host answers it: what it does, and whether, nobody here sees. What it answers is its end.
    HandOver,
    /// The user is to be asked.
    Confirm {
        /// In these words.
        read_back: String,
    },
    /// A person is to be asked.
    Ask {
        /// Why.
        reason: String,
    },
    /// It does not run.
    Refuse {
        /// Why, as a kind.
        outcome: Outcome,
        /// Why, for the host's records.
        reason: String,
        /// When the same call may be allowed, where that is a matter of time.
        until: Option<Timestamp>,
    },
}

/// That a witness refuses a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// For good.
    Denied(Denial),
    /// For now.
    RateLimited(RateLimit),
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Denied(denial) => Self::Deny(denial),
            Refusal::RateLimited(limit) => Self::RateLimited(limit),
        }
    }
}

/// Until when a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// When the same call may be allowed. The model is told.
    pub until: Timestamp,
    /// What the host's records say.
    pub reason: String,
}

impl RateLimit {
    /// A call is refused until then.
    pub fn new(until: Timestamp, reason: impl Into<String>) -> Self {
        Self { until, reason: reason.into() }
    }

    /// What the model is told.
    pub(crate) fn to_model(&self) -> String {
        // Whole seconds, and none too early.
        let seconds = self.until.as_millisecond().div_euclid(1_000).saturating_add(1);
        let until = Timestamp::from_second(seconds).unwrap_or(self.until);
        format!("{}; not before {until}", Outcome::RateLimited.fixed_text())
    }
}

/// How a call ended, for its witness.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallEnd {
    /// As a kind.
    pub outcome: Outcome,
    /// The tool's body began.
    pub ran: bool,
    /// The output, where the body gave one.
    pub output: Option<Value>,
    /// What happened, for the host's records.
    pub detail: Option<String>,
    /// The tool erred, and is sure that nothing was done.
    pub not_done: bool,
    /// The host answered the call in the place of a tool.
    pub by_host: bool,
}

/// Whether what a call was to do was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// It was.
    Yes,
    /// It was not: the tool did not run, waits, or is [sure](crate::ToolError::not_done) that it did
    /// nothing.
    No,
    /// Nobody can tell: the tool erred, panicked, or was given up while it ran.
    Unknown,
}

impl CallEnd {
    /// Whether what the call was to do was done.
    pub fn happened(&self) -> Happened {
        match self.outcome {
            _ if !self.ran => Happened::No,
            Outcome::Success | Outcome::OutputTooLarge => Happened::Yes,
            Outcome::Paused if !self.by_host => Happened::No,
            _ if self.not_done => Happened::No,
            _ => Happened::Unknown,
        }
    }
}

/// Where a decision or an outcome is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receipt {
    /// The number of the entry, from 1.
    pub sequence: u64,
    /// Its hash, which that of the next entry includes: 64 hexadecimal digits.
    pub hash: Arc<str>,
    /// What it says.
    pub entry: JsonObject,
}

impl Receipt {
    /// An entry of a log.
    pub fn new(sequence: u64, hash: impl Into<Arc<str>>, entry: JsonObject) -> Self {
        Self { sequence, hash: hash.into(), entry }
    }
}

/// Several witnesses as one: each is told in this order, and any may refuse. One that occurs twice is
/// told once.
pub fn together(witnesses: Vec<Arc<dyn Witness>>) -> Option<Arc<dyn Witness>> {
    let mut each: Vec<Arc<dyn Witness>> = Vec::new();
    for witness in witnesses {
        if !each.iter().any(|known| Arc::ptr_eq(known, &witness)) {
            each.push(witness);
        }
    }
    match each.len() {
        0 | 1 => each.pop(),
        _ => Some(Arc::new(Together(each))),
    }
}

struct Together(Vec<Arc<dyn Witness>>);

impl Witness for Together {
    fn decided(
        &self,
        cx: &CallContext,
        decision: &Decision,
    ) -> Result<Option<Box<dyn Commitment>>, Refusal> {
        // Those that agreed before another refused are told by its drop that the call did not run.
        let mut kept = All(Vec::new());
        for witness in &self.0 {
            kept.0.extend(witness.decided(cx, decision)?);
        }
        Ok((!kept.0.is_empty()).then(|| Box::new(kept) as _))
    }
}

struct All(Vec<Box<dyn Commitment>>);

impl Commitment for All {
    fn decided_again(&mut self, cx: &CallContext, decision: &Decision) -> Result<(), Refusal> {
        self.0.iter_mut().try_for_each(|each| each.decided_again(cx, decision))
    }

    fn ended(mut self: Box<Self>, end: &CallEnd) -> Option<Receipt> {
        let each = std::mem::take(&mut self.0);
        each.into_iter().filter_map(|each| each.ended(end)).last()
    }
}

impl Drop for All {
    fn drop(&mut self) {
        let end = CallEnd {
            outcome: Outcome::Denied,
            ran: false,
            output: None,
            detail: Some("another witness refused the call".into()),
            not_done: false,
            by_host: false,
        };
        for each in std::mem::take(&mut self.0) {
            let _ = each.ended(&end);
        }
    }
}

/// A commitment that is told the end of its call whatever becomes of that.
pub(crate) struct Kept {
    commitment: Option<Box<dyn Commitment>>,
    ran: bool,
    by_host: bool,
    /// How the call ended, once that is known.
    end: Option<CallEnd>,
}

impl Kept {
    pub(crate) fn new(commitment: Box<dyn Commitment>) -> Self {
        Self { commitment: Some(commitment), ran: false, by_host: false, end: None }
    }

    /// The host is going to answer the call.
    pub(crate) fn by_host(self) -> Self {
        let mut handed = self;
        handed.by_host = true;
        handed
    }

    /// From here on the tool, or the host, may do something.
    pub(crate) fn runs(&mut self) {
        self.ran = true;
    }

    /// See [`Commitment::decided_again`]. A panic refuses.
    pub(crate) fn decided_again(
        &mut self,
        cx: &CallContext,
        decision: &Decision,
    ) -> Result<(), Refusal> {
        let Some(commitment) = &mut self.commitment else { return Ok(()) };
        caught(|| commitment.decided_again(cx, decision))
    }

    /// The call is over, and ended so: whoever drops this from here on says that.
    pub(crate) fn ends(&mut self, end: CallEnd) {
        self.end = Some(end);
    }

    /// The call is over. Blocks.
    pub(crate) fn end(mut self) -> Option<Receipt> {
        let end = self.end.take()?;
        ended(self.commitment.take()?, &end)
    }

    pub(crate) fn is_by_host(&self) -> bool {
        self.by_host
    }

    pub(crate) fn has_run(&self) -> bool {
        self.ran
    }

    /// The call is over; nobody waits for that to be written down.
    pub(crate) fn end_behind(mut self, end: CallEnd) {
        if let Some(commitment) = self.commitment.take() {
            let end = CallEnd { ran: self.ran, by_host: self.by_host, ..end };
            behind(commitment, end);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(commitment) = self.commitment.take() else { return };
        let given_up = || CallEnd {
            ran: self.ran,
            by_host: self.by_host,
            ..CallEnd::not_run(
                Outcome::Cancelled,
                match self.ran {
                    true => "given up while it ran",
                    false => "given up before it ran",
                },
            )
        };
        let end = self.end.take().unwrap_or_else(given_up);
        behind(commitment, end);
    }
}

fn behind(commitment: Box<dyn Commitment>, end: CallEnd) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || ended(commitment, &end))),
        Err(_) => drop(ended(commitment, &end)),
    }
}

fn ended(commitment: Box<dyn Commitment>, end: &CallEnd) -> Option<Receipt> {
    catch_unwind(AssertUnwindSafe(|| commitment.ended(end))).unwrap_or_else(|_| {
        tracing::error!("the witness of a call panicked when it ended");
        None
    })
}

/// Asks a witness; a panic refuses.
pub(crate) fn caught<T>(ask: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| {
        Err(Refusal::Denied(Denial::private("the witness of the policy panicked")))
    })
}

impl CallEnd {
    pub(crate) fn of(executed: &Executed, ran: bool) -> Self {
        let output = (executed.outcome == Outcome::Success && ran)
            .then(|| executed.whole.clone().unwrap_or_else(|| executed.output.clone()));
        let (detail, not_done) = (executed.detail.clone(), executed.not_done);
        Self { outcome: executed.outcome, ran, output, detail, not_done, by_host: false }
    }

    pub(crate) fn not_run(outcome: Outcome, detail: impl Into<String>) -> Self {
        Self {
            outcome,
            ran: false,
            output: None,
            detail: Some(detail.into()),
            not_done: false,
            by_host: false,
        }
    }
}
