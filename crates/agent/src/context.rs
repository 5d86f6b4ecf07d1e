//! What travels with a call through agents, prompts, tools, transforms and stores.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::Arc,
};

use antiphon_types::{JsonObject, Status};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    ledger::Account,
    protocol::TurnContext,
    session::{Session, SessionAccess, State},
};

/// What an agent function, a tool, a transform and a store know of the call that they serve: who
/// calls, what the host handed along, how long it may take, whether it was taken back, and, while a
/// turn runs, the session and the turn. Clones cost little and share the cancellation.
#[derive(Clone, Default)]
pub struct InvocationContext {
    caller: Option<Arc<Caller>>,
    values: Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    deadline: Option<Instant>,
    callers: Option<CallersDeadline>,
    cancelled: CancellationToken,
    session: Option<Arc<dyn SessionAccess>>,
    turn: Option<Arc<TurnContext>>,
    account: Option<Arc<Account>>,
}

/// When the caller wants to be answered: work that goes on without the caller outlives it.
#[derive(Clone)]
struct CallersDeadline {
    at: Instant,
    lifted: CancellationToken,
}

impl CallersDeadline {
    fn stands(&self) -> Option<Instant> {
        (!self.lifted.is_cancelled()).then_some(self.at)
    }

    async fn passed(&self) {
        tokio::select! {
            biased;
            () = self.lifted.cancelled() => std::future::pending().await,
            () = tokio::time::sleep_until(self.at) => {}
        }
    }
}

/// Who calls.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Caller {
    /// The caller's id.
    pub id: Arc<str>,
    /// The tenant that the caller belongs to. What one tenant stores no other can see.
    pub scope: Option<Arc<str>>,
    /// What the host knows of the caller besides, such as roles.
    pub claims: JsonObject,
}

impl Caller {
    /// A caller without tenant and claims.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Sets the tenant.
    pub fn scope(mut self, scope: impl Into<Arc<str>>) -> Self {
        self.scope = Some(scope.into());
        self
    }

    /// Adds a claim.
    pub fn claim(mut self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.claims.insert(key.into(), value.into());
        self
    }
}

/// How surely the host knows who calls: 0 is not at all; what higher ones mean is the host's to say.
/// A host hands it along with [`InvocationContext::with_value`], or as the claim `verified_level` of
/// the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerifiedLevel(pub u8);

impl VerifiedLevel {
    /// What the host says of this call; 0 where it says nothing.
    pub fn of(cx: &InvocationContext) -> Self {
        let claimed = || {
            let claim = cx.caller()?.claims.get("verified_level")?;
            u8::try_from(claim.as_u64()?).ok().map(Self)
        };
        cx.value().copied().or_else(claimed).unwrap_or_default()
    }
}

impl InvocationContext {
    /// A call of nobody in particular that may take as long as it likes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets who calls.
    pub fn with_caller(mut self, caller: Caller) -> Self {
        self.caller = Some(Arc::new(caller));
        self
    }

    /// Hands a value along, in the place of the one of its type.
    pub fn with_value<T: Any + Send + Sync>(mut self, value: T) -> Self {
        Arc::make_mut(&mut self.values).insert(TypeId::of::<T>(), Arc::new(value));
        self
    }

    /// Sets when the call has to be over; an earlier deadline stays.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        self
    }

    /// Sets what takes the call back.
    pub fn with_cancellation(mut self, cancelled: CancellationToken) -> Self {
        self.cancelled = cancelled;
        self
    }

    /// Sets the session that the call runs in.
    pub fn with_session(mut self, session: Arc<dyn SessionAccess>) -> Self {
        self.session = Some(session);
        self
    }

    /// Sets the turn that the call runs in.
    pub fn with_turn(mut self, turn: TurnContext) -> Self {
        self.turn = Some(Arc::new(turn));
        self
    }

    /// Sets where the calls of tools are recorded.
    pub(crate) fn with_account(mut self, account: Option<Arc<Account>>) -> Self {
        self.account = account;
        self
    }

    /// The same for the one who called before, as surely as that was known then, and not for whoever
    /// decides over it now. The tenant stays.
    pub(crate) fn on_behalf_of(&self, caller: Option<Caller>, verified: VerifiedLevel) -> Self {
        let caller = match (caller, self.scope()) {
            (Some(caller), _) => Some(caller),
            // Nobody knows who called; a policy is not to take the approver for them.
            (None, Some(tenant)) => Some(Caller::default().scope(tenant)),
            (None, None) => None,
        };
        Self { caller: caller.map(Arc::new), ..self.clone() }.with_value(verified)
    }

    /// The same caller, outside of the session that the call runs in.
    pub(crate) fn outside(&self) -> Self {
        Self { session: None, turn: None, account: None, ..self.clone() }
    }

    /// The same call, but neither its deadline nor its cancellation: for writes that must land and
    /// work that goes on.
    pub fn uncancelled(&self) -> Self {
        Self { deadline: None, callers: None, cancelled: CancellationToken::new(), ..self.clone() }
    }

    /// The context of work that may go on without its caller: it is taken back by `work`, and its
    /// deadline is gone once `lifted` comes.
    pub(crate) fn detachable(&self, work: CancellationToken, lifted: CancellationToken) -> Self {
        let callers = self.deadline().map(|at| CallersDeadline { at, lifted });
        Self { deadline: None, callers, cancelled: work, ..self.clone() }
    }

    /// Who calls.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_deref()
    }

    /// The tenant that the caller belongs to.
    pub fn scope(&self) -> Option<&str> {
        self.caller.as_ref()?.scope.as_deref()
    }

    /// The value of this type that the host handed along.
    pub fn value<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.values.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// When the call has to be over. Work that goes on in the background has no deadline any more.
    pub fn deadline(&self) -> Option<Instant> {
        let callers = self.callers.as_ref().and_then(CallersDeadline::stands);
        self.deadline.into_iter().chain(callers).min()
    }

    /// What takes the call back.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Waits until the call is taken back or its time is up, and says which.
    pub async fn ended(&self) -> Status {
        let late = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let late_for_the_caller = async {
            match &self.callers {
                Some(callers) => callers.passed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Status::Cancelled,
            () = late => Status::DeadlineExceeded,
            () = late_for_the_caller => Status::DeadlineExceeded,
        }
    }

    /// Whether the call was taken back or its time is up, and which.
    pub fn has_ended(&self) -> Option<Status> {
        if self.cancelled.is_cancelled() {
            return Some(Status::Cancelled);
        }
        self.deadline()
            .is_some_and(|deadline| deadline <= Instant::now())
            .then_some(Status::DeadlineExceeded)
    }

    /// The running session, whatever its custom state is.
    pub fn session_access(&self) -> Option<&Arc<dyn SessionAccess>> {
        self.session.as_ref()
    }

    /// The running session; `None` outside of one, and where its custom state is of another type.
    pub fn session<S: State>(&self) -> Option<&Session<S>> {
        self.session.as_deref()?.typed()
    }

    /// Where the calls of tools are recorded; `None` outside of an agent and without a store that
    /// keeps account.
    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// The turn that runs.
    pub fn turn(&self) -> Option<&TurnContext> {
        self.turn.as_deref()
    }
}

impl fmt::Debug for InvocationContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvocationContext")
            .field("caller", &self.caller.as_ref().map(|caller| &caller.id))
            .field("deadline", &self.deadline())
            .field("cancelled", &self.cancelled.is_cancelled())
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}
