//! Limits that remember: how many calls, and how much money, within a window of time.
//!
//! A call that the policy allows takes from each [`Limit`] that it falls under before its tool runs, so
//! that calls at the same time cannot overspend together, and gives it back where the tool did not do
//! it. What was taken by a process that died stays taken until its window is over.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;
mod window;

use std::{sync::Arc, time::Duration};

use antiphon_agent::CallContext;
use antiphon_types::ToolCall;
use jiff::Timestamp;

use super::{AmountField, PolicyError, Spent, pattern::ToolPattern};

pub use self::memory::InMemoryLimits;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteLimits;

/// How often tools may be called, and how much money their calls may move, within any window of time.
///
/// ```
/// use std::time::Duration;
///
/// use antiphon::policy::{AmountField, Limit, Per};
///
/// # fn main() -> Result<(), antiphon::policy::PolicyError> {
/// let day = Duration::from_secs(24 * 60 * 60);
/// let limit = Limit::new("daily", "send_money", day)?
///     .per(Per::Caller)
///     .calls(10)
///     .amount(AmountField::major("amount", 2), 50_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    id: Arc<str>,
    tools: ToolPattern,
    window: Duration,
    per: Vec<Per>,
    max_calls: Option<u64>,
    max_amount: Option<(AmountField, u64)>,
}

/// What has a count of its own under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Per {
    /// Each tenant ([`Caller::scope`](antiphon_agent::Caller)). A call without one is denied.
    Tenant,
    /// Each caller of each tenant. A call without one is denied.
    Caller,
    /// Each session.
    Session,
    /// Each tool.
    Tool,
}

impl Limit {
    /// A limit over calls of these tools, by name or by a pattern in which `*` stands for any
    /// characters, within any window of this length: at least a millisecond and at most a hundred
    /// years. Its name is unlike any other's. Everybody shares it, unless [`Limit::per`] says
    /// otherwise.
    ///
    /// The window slides in steps of a sixtieth of its length; what was used counts until the step in
    /// which it was used has wholly left, so up to a sixtieth longer and never shorter.
    pub fn new(id: &str, tools: &str, window: Duration) -> Result<Self, PolicyError> {
        if window < Duration::from_millis(1) || window > MAX_WINDOW {
            return Err(PolicyError::of(id, "a window is from 1 ms to 100 years"));
        }
        Ok(Self {
            id: id.into(),
            tools: super::pattern_of(id, tools)?,
            window,
            per: Vec::new(),
            max_calls: None,
            max_amount: None,
        })
    }

    /// Each of these has the whole limit for itself.
    pub fn per(mut self, per: Per) -> Self {
        self.per.push(per);
        self.per.sort_unstable();
        self.per.dedup();
        self
    }

    /// At most so many calls.
    pub fn calls(mut self, max: u64) -> Self {
        self.max_calls = Some(max);
        self
    }

    /// At most so many minor units, of which each call takes what this argument says. A call whose
    /// amount cannot be read is denied.
    pub fn amount(mut self, field: AmountField, max: u64) -> Self {
        self.max_amount = Some((field, max));
        self
    }

    /// Its name.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Whether calls of this tool fall under it.
    #[cfg(feature = "cedar")]
    pub(crate) fn fits(&self, tool: &str) -> bool {
        self.tools.fits(tool)
    }

    /// Whether it refuses anything at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.max_calls.is_none() && self.max_amount.is_none()
    }

    /// Whose count of it this call falls under, to look at what is used; the amount is 0.
    pub(crate) fn look(&self, cx: &CallContext, call: &ToolCall) -> Result<Option<Draw>, String> {
        if !self.tools.fits(&call.name) {
            return Ok(None);
        }
        self.drawn(cx, call, 0).map(Some)
    }

    /// What this call takes from it: nothing, where it does not fall under it.
    ///
    /// # Errors
    ///
    /// Why the call is denied: nobody knows who calls, or how much it is.
    pub(crate) fn draw(&self, cx: &CallContext, call: &ToolCall) -> Result<Option<Draw>, String> {
        if !self.tools.fits(&call.name) {
            return Ok(None);
        }
        let amount = match &self.max_amount {
            Some((field, _)) => field.read(&call.args).map_err(|error| error.to_string())?,
            None => 0,
        };
        self.drawn(cx, call, amount).map(Some)
    }

    fn drawn(&self, cx: &CallContext, call: &ToolCall, amount: u64) -> Result<Draw, String> {
        Ok(Draw {
            limit: self.id.clone(),
            key: self.key(cx, call)?,
            window: self.window,
            amount,
            max_calls: self.max_calls,
            max_amount: self.max_amount.as_ref().map(|(_, max)| *max),
        })
    }

    /// Whose count it is. No two of them have one key, whatever characters names have.
    fn key(&self, cx: &CallContext, call: &ToolCall) -> Result<String, String> {
        let mut key: Vec<&str> = vec![&self.id];
        for per in &self.per {
            let tenant = cx.invocation.scope();
            match per {
                Per::Session => key.extend(["session", &*cx.session_id]),
                Per::Tool => key.extend(["tool", &*call.name]),
                Per::Tenant => {
                    key.extend(["tenant", tenant.ok_or("nobody knows which tenant calls")?]);
                }
                Per::Caller => {
                    let caller = cx.invocation.caller().filter(|caller| !caller.id.is_empty());
                    let caller = caller.ok_or("nobody knows who calls")?;
                    key.extend(["caller", &*caller.id]);
                    key.extend(tenant);
                }
            }
        }
        serde_json::to_string(&key).map_err(|error| error.to_string())
    }
}

const MAX_WINDOW: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// What a call takes from a limit, or wants to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Draw {
    /// The limit.
    pub limit: Arc<str>,
    /// Whose count it is.
    pub key: String,
    /// The window.
    pub window: Duration,
    /// Minor units. The number of calls is always one.
    pub amount: u64,
    /// At most so many calls within the window.
    pub max_calls: Option<u64>,
    /// At most so many minor units within the window.
    pub max_amount: Option<u64>,
}

/// Names a reservation in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationId(pub u64);

/// What came of an attempt to take from limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserved {
    /// All was taken.
    Yes(ReservationId),
    /// Nothing was taken: this limit has no room.
    No {
        /// The limit: the first in the order of the draws.
        limit: Arc<str>,
        /// When it has, if nothing else is used until then; `None`: it never has so much.
        until: Option<Timestamp>,
    },
}

/// Why a store of limits gave no answer. The call is denied then.
#[derive(Clone, Debug, thiserror::Error)]
#[error("limits: {0}")]
pub struct LimitError(pub String);

/// Remembers what was used. Its methods may block, and are called from several threads at once.
pub trait LimitStore: Send + Sync + 'static {
    /// Takes from all of these limits, or, where one of them has no room, from none.
    fn reserve(&self, now: Timestamp, draws: &[Draw]) -> Result<Reserved, LimitError>;

    /// The call was made: what it took is used. Does nothing for a reservation that is settled.
    fn settle(&self, reservation: ReservationId) -> Result<(), LimitError>;

    /// The call was not made: what it took is free again. Does nothing for a reservation that is
    /// settled or given back.
    fn give_back(&self, reservation: ReservationId) -> Result<(), LimitError>;

    /// What is used of each of these limits, reservations included.
    fn spent(&self, now: Timestamp, draws: &[Draw]) -> Result<Vec<Spent>, LimitError>;
}
