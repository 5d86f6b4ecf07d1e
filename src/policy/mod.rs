//! Policies over tool calls, limits that they share, and receipts of what was decided.
//!
//! Whatever implements [`Authorizer`](antiphon_agent::Authorizer) is a policy that a session can be
//! given. Two are ready-made:
//!
//! * [`RulePolicy`] is one that is written as a JSON file: an ordered list of rules, the first that
//!   fits decides.
//! * [`PolicyHost`] is for hosts that answer for what a model does: several [`Policy`]s that all must
//!   allow a call ([`AllowList`], [`ArgumentBounds`], [`AskAbove`], [`Destinations`], [`TimeWindow`],
//!   or your own), [`Limit`]s that calls take from before they run, and a [`ReceiptLog`].

mod allow_list;
mod ask_above;
mod bounds;
#[cfg(feature = "cedar")]
mod cedar;
mod compose;
mod context;
mod destinations;
mod file;
pub mod guards;
mod host;
mod limits;
mod money;
mod pattern;
pub mod receipts;
mod rules;
mod scenario;
mod time_window;

use self::pattern::ToolPattern;

#[cfg(feature = "cedar")]
pub use self::cedar::{Cedar, CedarPolicies};
#[cfg(feature = "sqlite")]
pub use self::limits::SqliteLimits;
pub use self::{
    allow_list::AllowList,
    ask_above::AskAbove,
    bounds::ArgumentBounds,
    compose::Policies,
    context::{Policy, PolicyContext, Spent},
    destinations::Destinations,
    file::PolicyFile,
    host::{Explanation, HostStatistics, PolicyHost, PolicyHostBuilder},
    limits::{Draw, InMemoryLimits, Limit, LimitError, LimitStore, Per, ReservationId, Reserved},
    money::{AmountError, AmountField, MAX_AMOUNT, Wrong},
    receipts::ReceiptLog,
    rules::RulePolicy,
    scenario::{Expected, Scenario, Used},
    time_window::TimeWindow,
};
pub use crate::json_file::FileError;
pub use antiphon_agent::VerifiedLevel;

/// A policy that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy:?}: {reason}")]
pub struct PolicyError {
    /// Its name.
    pub policy: String,
    /// What is wrong.
    pub reason: String,
}

impl PolicyError {
    fn of(policy: &str, reason: impl Into<String>) -> Self {
        Self { policy: policy.to_owned(), reason: reason.into() }
    }
}

fn pattern_of(policy: &str, tools: &str) -> Result<ToolPattern, PolicyError> {
    ToolPattern::parse(tools).map_err(|reason| PolicyError::of(policy, reason))
}
