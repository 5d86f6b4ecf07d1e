//! The contract suite: what every store must do, as tests that anyone can run.
//!
//! ```
//! use std::sync::Arc;
//!
//! use antiphon_agent::{InMemorySessionStore, store::conformance::{self, Stores}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let memory = || async { Stores::new(Arc::new(InMemorySessionStore::new())) };
//! conformance::run(&memory).await.assert_passed();
//! # }
//! ```
//!
//! [`cases`] gives them one by one. Each opens stores of its own through the factory and uses ids
//! that no other uses, so the stores may lie over one database, which need not be empty. Waiting is
//! bounded, on tokio's clock, which may be paused. What a store cannot do is skipped, and so is what
//! needs a second instance where the factory gives none; the report says so.

use std::{fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use self::bench::{Bench, Failure};
use super::SessionStore;

mod bench;
mod chains;
mod latest;
mod ledger;
mod lifecycle;
mod metadata;
mod save;
mod scopes;
mod second_instance;
mod subscriber;

/// How long a case may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// The stores of one case.
#[derive(Clone)]
#[non_exhaustive]
pub struct Stores {
    /// The store that is put to the test.
    pub store: Arc<dyn SessionStore>,
    /// Another over the same rows, as another process would have it.
    pub second: Option<Arc<dyn SessionStore>>,
}

impl Stores {
    /// One store.
    pub fn new(store: Arc<dyn SessionStore>) -> Self {
        Self { store, second: None }
    }

    /// Adds another over the same rows.
    pub fn second(mut self, second: Arc<dyn SessionStore>) -> Self {
        self.second = Some(second);
        self
    }
}

/// Opens stores for the suite: any `Fn() -> impl Future<Output = Stores>`.
pub trait StoreFactory: Send + Sync {
    /// Opens the stores of one case.
    fn open(&self) -> BoxFuture<'_, Stores>;
}

impl<F, Fut> StoreFactory for F
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = Stores> + Send,
{
    fn open(&self) -> BoxFuture<'_, Stores> {
        async move { self().await }.boxed()
    }
}

/// One promise of a store.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    run: fn(Bench) -> BoxFuture<'static, Result<(), Failure>>,
}

impl Case {
    /// Its name, such as `save_uses_the_given_id`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Puts a store to the test.
    pub async fn run(&self, factory: &dyn StoreFactory) -> Outcome {
        let case = async { (self.run)(Bench::new(factory.open().await)).await };
        match tokio::time::timeout(DEADLINE, AssertUnwindSafe(case).catch_unwind()).await {
            Ok(Ok(Ok(()))) => Outcome::Passed,
            Ok(Ok(Err(Failure::Skipped(why)))) => Outcome::Skipped(why),
            Ok(Ok(Err(Failure::Broken(why)))) => Outcome::Failed(why),
            Ok(Err(_)) => Outcome::Failed("the store panicked".into()),
            Err(_) => Outcome::Failed(format!("it took more than {DEADLINE:?}")),
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The store keeps the promise.
    Passed,
    /// The case does not apply; why.
    Skipped(String),
    /// The store broke the promise; how.
    Failed(String),
}

/// What became of all cases.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// The names of the cases and what became of them, in the order in which they ran.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// The names of the cases that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// The names of the cases that passed.
    pub fn passed(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Passed))
    }

    /// The names of the cases that do not apply.
    pub fn skipped(&self) -> Vec<&'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Skipped(_)))
    }

    /// Panics with the whole report if a case failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failed().is_empty(), "{self}");
    }

    fn names(&self, which: impl Fn(&Outcome) -> bool) -> Vec<&'static str> {
        self.cases.iter().filter(|(_, outcome)| which(outcome)).map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of a session store")?;
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "  passed   {name}")?,
                Outcome::Skipped(why) => writeln!(f, "  skipped  {name}: {why}")?,
                Outcome::Failed(why) => writeln!(f, "  FAILED   {name}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Puts the stores of `factory` through every case, one after the other.
pub async fn run(factory: &dyn StoreFactory) -> Report {
    let mut report = Report { cases: Vec::new() };
    for case in CASES {
        report.cases.push((case.name, case.run(factory).await));
    }
    report
}

/// All cases, to make one test of each.
pub fn cases() -> impl Iterator<Item = Case> {
    CASES.iter().copied()
}

macro_rules! cases {
    ($($group:ident { $($name:ident)+ })+) => {
        const CASES: &[Case] = &[$($(
            Case {
                name: concat!(stringify!($group), "_", stringify!($name)),
                run: |bench| Box::pin($group::$name(bench)),
            },
        )+)+];
    };
}

cases! {
    save {
        generates_id_when_empty
        uses_the_given_id
        passes_the_current_row_to_fn
        skips_the_write_when_fn_returns_nil
        returns_the_fn_error
        defaults_empty_status_to_completed
        persists_fields_verbatim
        keeps_the_given_session_id
        preserves_session_id_on_rewrite
        rejects_row_without_session_id
        keeps_nil_and_empty_state_apart
        round_trips_rich_state
        round_trips_large_state
        does_not_alias_caller_values
        serializes_concurrent_rewrites
        accepts_concurrent_new_rows
        empty_snapshot_id_fails
    }
    lifecycle {
        heartbeat_advances_only_heartbeat_at
        heartbeat_skips_settled_row
        heartbeat_keeps_recency
        abort_flips_pending_to_aborting
        abort_leaves_settled_row_alone
        abort_of_missing_row_writes_nothing
        finalize_lands_state_and_clears_heartbeat
        finalize_skips_settled_row
    }
    chains {
        linear_chain_reads_back_every_row
        branches_read_back_independently
        leaf_rewrite_keeps_ancestors
    }
    latest {
        picks_most_recently_created
        ignores_rewrites_of_older_rows
        returns_any_status
        breaks_created_at_ties_by_snapshot_id
        ignores_backdated_new_row
        keeps_sessions_apart
        unknown_session_is_nil
        empty_session_id_fails
    }
    metadata {
        matches_full_read_without_state
        latest_resolves_the_same_row
        unknown_snapshot_is_nil
        unknown_session_is_nil
        empty_session_id_fails
        does_not_alias_the_store
    }
    subscriber {
        yields_current_status_first
        delivers_status_changes
        delivers_in_place_status_change
        fans_out_to_every_subscriber
        missing_snapshot_closes_the_channel
        closes_on_context_cancel
        closes_on_context_deadline
    }
    second_instance {
        reads_rows_written_by_the_other
        delivers_status_changes_from_the_other
        serializes_rewrites_with_the_other
    }
    ledger {
        keeps_what_it_is_given
        lists_what_is_not_settled_in_order
        forgets_what_is_removed
        leaves_all_as_it_is_where_the_update_errs
        lets_one_of_many_win
        keeps_tenants_apart
    }
    scopes {
        isolates_reads
        isolates_writes
        isolates_subscriptions
    }
}
