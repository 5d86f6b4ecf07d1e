//! Stores of snapshots.
//!
//! A store is [`SnapshotReader`] and [`SnapshotWriter`], together [`SessionStore`]; what it can do
//! besides ([`SnapshotSubscriber`], [`SnapshotMetadataReader`], [`CallLedger`]) it offers at run
//! time. It keeps rows with custom states of raw JSON: the agent knows the type.
//! [`InMemorySessionStore`] is one that ends with the process, [`FileSessionStore`] one in a
//! directory; with the feature `sqlite`, `SqliteSessionStore` is one in a file.
//!
//! # What a store owes
//!
//! - It owns the ids of rows, and that the session of a row never changes. Times and status are the
//!   caller's: it keeps them as they are given, but that no status means completed.
//! - It keeps tenants apart: [`InvocationContext::scope`] is part of every key. The same id in two
//!   scopes is two rows.
//! - Writes to a row happen one after the other, each seeing what the one before left.
//! - What it returned and what it was given are copies to it: who changes them does not change the
//!   store.
//! - When the caller's context ends it may give up with [`RuntimeError::Cancelled`] or
//!   [`RuntimeError::DeadlineExceeded`]. A write is then there as a whole or not at all.
//!
//! # Unchanged messages
//!
//! The row of a turn that ended shares its messages with the row of the turn before: they are the
//! same [`Message`]s, so [`Messages::shared_prefix`] with the parent's row says, at the price of
//! what is new, how many of them need not be written again. A rewrite shares in the same way with
//! the row that its closure was given.
//!
//! [`Message`]: crate::Message
//! [`Messages::shared_prefix`]: crate::Messages::shared_prefix

pub mod conformance;
mod error;
mod file;
mod listing;
mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub use self::{
    error::{StoreError, StoreErrorKind},
    file::FileSessionStore,
    listing::{SessionSummary, SnapshotSummary},
    memory::InMemorySessionStore,
};
use crate::{
    InvocationContext, Messages, RuntimeError,
    ledger::CallLedger,
    state::{SessionSnapshot, SnapshotStatus},
};

/// Reads snapshots.
///
/// An empty id is [`RuntimeError::InvalidArgument`].
#[async_trait]
pub trait SnapshotReader: Send + Sync {
    /// The snapshot as it was written; `None` where there is none of this id.
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError>;

    /// The snapshot of the session that was created last, whatever its status; `None` where the
    /// session has none.
    ///
    /// That is the one of the greatest [`created_at`], and of those of the same time the one of the
    /// greatest id. Rewriting an older row does not bring it forward, and its parent plays no part:
    /// where a conversation was forked, the branch created last wins.
    ///
    /// [`created_at`]: SessionSnapshot::created_at
    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError>;
}

/// What [`SnapshotWriter::save_snapshot`] does with the row that there is, if any: gives the row
/// to be written, or `None` to leave things as they are.
///
/// It may be called again where another write came between, so nothing but its result may come of
/// it. No lock is held while it runs.
pub type SnapshotUpdate<'a> = dyn Fn(Option<&SessionSnapshot>) -> Result<Option<SessionSnapshot>, RuntimeError>
    + Send
    + Sync
    + 'a;

/// Writes snapshots.
#[async_trait]
pub trait SnapshotWriter: Send + Sync {
    /// Reads the row of this id, lets `update` say what becomes of it, and writes that, all as one
    /// step. Without an id it makes a new one and there is no row yet.
    ///
    /// What `update` returns is kept as it is, but for
    ///
    /// - the id: it is `snapshot_id`, or the new one, whatever the row says;
    /// - the session: it stays what it was when the row was first written, whatever the row says
    ///   now. A first row names it itself; one that does not, or names an empty one, is refused with
    ///   [`RuntimeError::SessionIdRequired`], and it is not taken from a parent (nor need the parent
    ///   exist);
    /// - the status: where it has none it is completed.
    ///
    /// The times are the caller's. Who makes a row sets [`created_at`] and [`updated_at`]; who
    /// changes its state keeps the one and moves the other; a heartbeat keeps both.
    ///
    /// Returns the row as it was written, or `None` where `update` left it at that. An error of
    /// `update` is returned as it is and nothing is written. An empty id is
    /// [`RuntimeError::InvalidArgument`].
    ///
    /// [`created_at`]: SessionSnapshot::created_at
    /// [`updated_at`]: SessionSnapshot::updated_at
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        snapshot_id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError>;
}

/// Reads snapshots without their state, for a store to which that is cheaper.
#[async_trait]
pub trait SnapshotMetadataReader: Send + Sync {
    /// [`SnapshotReader::get_snapshot`] without the state.
    async fn get_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError>;

    /// [`SnapshotReader::get_latest_snapshot`] without the state.
    async fn get_latest_snapshot_metadata(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError>;
}

/// Tells of changes. Work in the background needs it: this is how it learns that it shall stop.
pub trait SnapshotSubscriber: Send + Sync {
    /// The status of the snapshot, now and whenever it has changed.
    ///
    /// What counts is the level: of changes in quick succession only the last need be told, and a
    /// status may be told again. The stream ends when `cx` ends, without an item where there is no
    /// such snapshot, and where the store cannot tell any more; whoever waits then reads the row.
    fn on_snapshot_status_change(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> BoxStream<'static, SnapshotStatus>;
}

/// Where an agent keeps the snapshots of its sessions.
///
/// [`conformance`] holds an implementation to all that is promised here.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of sessions",
    note = "implement `antiphon_agent::store::SessionStore` with `SnapshotReader` and \
            `SnapshotWriter`, or use `InMemorySessionStore`"
)]
pub trait SessionStore: SnapshotReader + SnapshotWriter {
    /// Itself, where it can tell of changes. Work cannot go on in the background without.
    fn subscriber(&self) -> Option<&dyn SnapshotSubscriber> {
        None
    }

    /// Itself, where it can read rows without their state at a lower price.
    fn metadata_reader(&self) -> Option<&dyn SnapshotMetadataReader> {
        None
    }

    /// Itself, where it keeps account of tool calls: see [`ledger`](crate::ledger).
    fn call_ledger(&self) -> Option<&dyn CallLedger> {
        None
    }
}

impl dyn SessionStore {
    /// A snapshot without its state, by the store's own way where it has one.
    pub async fn read_metadata(
        &self,
        cx: &InvocationContext,
        snapshot_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        match self.metadata_reader() {
            Some(reader) => reader.get_snapshot_metadata(cx, snapshot_id).await,
            None => Ok(self.get_snapshot(cx, snapshot_id).await?.map(without_state)),
        }
    }

    /// The latest snapshot of a session without its state, by the store's own way where it has one.
    pub async fn read_latest_metadata(
        &self,
        cx: &InvocationContext,
        session_id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        match self.metadata_reader() {
            Some(reader) => reader.get_latest_snapshot_metadata(cx, session_id).await,
            None => Ok(self.get_latest_snapshot(cx, session_id).await?.map(without_state)),
        }
    }
}

fn without_state(snapshot: SessionSnapshot) -> SessionSnapshot {
    snapshot.with_state(None)
}

/// The row as the store keeps it: with its own id, its first session, and a status.
fn kept_row(
    mut row: SessionSnapshot,
    id: &Arc<str>,
    before: Option<&SessionSnapshot>,
) -> Result<SessionSnapshot, RuntimeError> {
    row.snapshot_id = id.clone();
    if let Some(before) = before {
        row.session_id = before.session_id.clone();
    }
    if row.session_id.as_deref().unwrap_or("").is_empty() {
        return Err(RuntimeError::SessionIdRequired);
    }
    row.status = Some(row.status());
    Ok(row)
}

fn required<'a>(what: &str, id: &'a str) -> Result<&'a str, RuntimeError> {
    if id.is_empty() {
        return Err(RuntimeError::InvalidArgument(format!("the {what} is empty")));
    }
    Ok(id)
}

/// How many items at the beginning of `list` are those of `base`: at little more than the price of
/// what is new where the one was made from the other, else by comparing them.
fn shared_items(base: &Messages, list: &Messages) -> usize {
    let same = base.shared_prefix(list);
    same + base.range(same).zip(list.range(same)).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    fn numbered(numbers: &[usize]) -> Messages {
        numbers.iter().map(|number| Message::user(number.to_string())).collect()
    }

    #[test]
    fn items_are_shared_by_identity_and_by_content() {
        let base = numbered(&[1, 2, 3]);
        let mut longer = base.clone();
        longer.push(Message::user("4"));
        assert_eq!(shared_items(&base, &longer), 3);
        assert_eq!(shared_items(&base, &numbered(&[1, 2, 4, 3])), 2);
        longer.replace(1, Message::user("2"));
        assert_eq!(shared_items(&base, &longer), 3);
        assert_eq!(shared_items(&base, &numbered(&[2])), 0);
        assert_eq!(shared_items(&Messages::new(), &base), 0);
    }
}
