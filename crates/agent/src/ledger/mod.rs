//! The account of tool calls: a call happens at most once, or is known to be unknown.
//!
//! A store may keep a [`CallLedger`]
//! ([`SessionStore::call_ledger`](crate::SessionStore::call_ledger)); the stores here do. Then the
//! [`ToolExecutor`](crate::ToolExecutor) records each call of an agent's turn before its tool runs,
//! and its outcome after, by what the tool says of its [`Effects`](crate::tool::Effects). Once a
//! snapshot holds the outcome the record is gone.
//!
//! When a conversation goes on from a snapshot, what calls did after it that no snapshot holds stands
//! in the history as a round of tools: with their outputs, or saying that the outcome is not known,
//! where the process ended while the tool ran. The parts have metadata under [`LEDGER`].
//!
//! More than one may go on with a conversation at the same time. Who runs a call says so in its record
//! ([`Lease`]); nobody takes such a call for lost. The record of a call that was told as unknown is kept:
//! its key is there for the next call like it, however many snapshots later, until one in its place
//! succeeds; and where its outcome comes after all, whoever goes on is told.
//!
//! Without such a store, and outside of agents, nothing is recorded: the turn that was under way is
//! lost with what its tools did, and they run again where the user asks again.
//!
//! A call that waits for a person is such a record, too: see [`approval`](crate::approval).

mod account;
mod canonical;
mod lease;
mod lost;
mod record;
mod tail;

use std::sync::Arc;

use async_trait::async_trait;

pub(crate) use self::{
    account::{Account, Begin, Entry, Keeper, Waits, later},
    lease::Hold,
    lost::Lost,
    tail::waiting_key,
};
pub use self::{
    canonical::{canonical_hash, canonical_json, canonical_object},
    lease::Lease,
    record::{Approval, AskedBy, CallRecord, CallState, CalledBy, Decision},
    tail::{close_parked, parked_output, parked_request, unanswered},
};
use crate::{InvocationContext, RuntimeError};

/// The key of the metadata that the ledger leaves on the parts of a round of tools which it tells of:
/// an object with `key`, that of the record, and `outcome`: how the call ended, `unknown`, or
/// `waiting`.
pub const LEDGER: &str = "ledger";

/// What [`CallLedger::save_call`] does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CallChange {
    /// Nothing.
    Keep,
    /// Writes this record.
    Write(Box<CallRecord>),
    /// Forgets the record.
    Remove,
}

/// Says what becomes of the record that there is, if any. It may be called again where another change
/// came between, so nothing but its result may come of it. No lock is held while it runs.
pub type CallUpdate<'a> =
    dyn Fn(Option<&CallRecord>) -> Result<CallChange, RuntimeError> + Send + Sync + 'a;

/// Keeps account of calls. Tenants are kept apart as they are for snapshots.
#[async_trait]
pub trait CallLedger: Send + Sync {
    /// The record of this key, settled or not; `None` where there is none.
    async fn call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError>;

    /// The records that are not settled, of this session or of all, those made first first.
    async fn open_calls(
        &self,
        cx: &InvocationContext,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError>;

    /// Reads the record of this key, lets `update` say what becomes of it, and does that, all as one
    /// step: of two who change the same record at the same time, one sees what the other left. On
    /// the disk when it returns, where the store has one. Returns the record as it is then.
    ///
    /// The key of what `update` gives is `key`, whatever it says. An error of `update` is returned as
    /// it is and nothing changes. An empty key is [`RuntimeError::InvalidArgument`].
    async fn save_call(
        &self,
        cx: &InvocationContext,
        key: &str,
        update: &CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError>;
}

/// The record as a store keeps it: under its own key.
pub(crate) fn kept(key: &str, change: CallChange) -> CallChange {
    match change {
        CallChange::Write(mut record) if *record.key != *key => {
            record.key = Arc::from(key);
            CallChange::Write(record)
        }
        other => other,
    }
}

/// In the order in which they were made.
pub(crate) fn in_order(records: &mut [CallRecord]) {
    records.sort_by(|a, b| (a.created_at, &a.key).cmp(&(b.created_at, &b.key)));
}
