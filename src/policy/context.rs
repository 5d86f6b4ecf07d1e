//! What a policy is, and what it sees.

use std::sync::Arc;

use antiphon_agent::{CallContext, Caller, DecisionPoint, Judgement, Verdict, VerifiedLevel};
use antiphon_types::ToolCall;
use jiff::Timestamp;

/// One policy over tool calls, of which several are [composed](super::Policies).
///
/// It decides from what it is given, reads no clock and waits for nothing: a session gives all
/// policies together 100 ms, after which the call is denied. One that panics denies.
pub trait Policy: Send + Sync + 'static {
    /// Its name, in receipts and explanations; unlike any other's of the same host.
    fn id(&self) -> &str;

    /// Decides over one call with the model's arguments. Asked when the model proposes the call, and
    /// again right before it runs where it waited: see [`PolicyContext::point`].
    fn decide(&self, cx: &PolicyContext, call: &ToolCall) -> Verdict;

    /// The verdict with the names of the policies that came to it: its own, unless it consists of
    /// several.
    fn judge(&self, cx: &PolicyContext, call: &ToolCall) -> Judgement {
        Judgement::new(self.decide(cx, call), vec![self.id().into()])
    }

    /// Whether it looks at [`PolicyContext::spent`], which is empty otherwise: finding out takes time of
    /// its own, for limits in a file more than all policies together. Default: yes.
    fn reads_spent(&self) -> bool {
        true
    }
}

impl<P: Policy + ?Sized> Policy for Arc<P> {
    fn id(&self) -> &str {
        (**self).id()
    }

    fn decide(&self, cx: &PolicyContext, call: &ToolCall) -> Verdict {
        (**self).decide(cx, call)
    }

    fn judge(&self, cx: &PolicyContext, call: &ToolCall) -> Judgement {
        (**self).judge(cx, call)
    }

    fn reads_spent(&self) -> bool {
        (**self).reads_spent()
    }
}

/// What a policy sees beside the call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PolicyContext {
    /// The session.
    pub session_id: Arc<str>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// Who calls, with tenant and claims, where the host knows.
    pub caller: Option<Caller>,
    /// How surely.
    pub verified: VerifiedLevel,
    /// The time of day.
    pub now: Timestamp,
    /// Whether the model proposes the call, or it waited and is about to run.
    pub point: DecisionPoint,
    /// The user confirmed this very call after it was read back.
    pub confirmed: bool,
    /// A person approved this very call.
    pub approved: bool,
    /// The provider runs the call itself: see [`CallContext::by_provider`].
    pub by_provider: bool,
    /// What was used so far of each [`Limit`](super::Limit) that this call takes from, this call not
    /// counted.
    pub spent: Vec<Spent>,
}

/// What was used of a limit within its window.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spent {
    /// The limit.
    pub limit: Arc<str>,
    /// Calls, those that run at present included.
    pub calls: u64,
    /// Money in minor units, likewise.
    pub amount: u64,
}

impl Spent {
    /// So many calls and so much money, of this limit.
    pub fn new(limit: impl Into<Arc<str>>, calls: u64, amount: u64) -> Self {
        Self { limit: limit.into(), calls, amount }
    }
}

impl PolicyContext {
    /// A call of nobody in particular in the session's first turn.
    pub fn new(session_id: impl Into<Arc<str>>, now: Timestamp) -> Self {
        Self {
            session_id: session_id.into(),
            turn: 1,
            caller: None,
            verified: VerifiedLevel::default(),
            now,
            point: DecisionPoint::Proposed,
            confirmed: false,
            approved: false,
            by_provider: false,
            spent: Vec::new(),
        }
    }

    /// What the executor knows of the call, at this time of day.
    pub fn of(cx: &CallContext, now: Timestamp) -> Self {
        let caller = cx.invocation.caller().cloned();
        Self {
            session_id: cx.session_id.clone(),
            turn: cx.turn,
            verified: VerifiedLevel::of(&cx.invocation),
            // One without a name is nobody in particular.
            caller: caller.filter(|caller| !caller.id.is_empty() || caller.scope.is_some()),
            now,
            point: cx.point(),
            confirmed: cx.confirmed,
            approved: cx.approved,
            by_provider: cx.by_provider,
            spent: Vec::new(),
        }
    }

    /// Sets who calls.
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Sets how surely the host knows who calls.
    pub fn verified(mut self, level: u8) -> Self {
        self.verified = VerifiedLevel(level);
        self
    }

    /// After a person approved the call, when it is about to run.
    pub fn approved(mut self) -> Self {
        (self.approved, self.point) = (true, DecisionPoint::Start);
        self
    }
}
