//! What the cases work with.

use std::{
    fmt::{self, Debug},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use futures_util::{StreamExt, stream::BoxStream};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{super::SessionStore, Stores};
use crate::{
    Caller, InvocationContext, Message, RuntimeError,
    id::new_id,
    state::{SessionSnapshot, SessionState, SnapshotStatus},
    store::SnapshotSubscriber,
};

/// Why a case did not pass.
pub enum Failure {
    /// It does not apply.
    Skipped(String),
    /// The store broke a promise.
    Broken(String),
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        Self::Broken(format!("the store failed: {error}"))
    }
}

pub(super) type Checked<T = ()> = Result<T, Failure>;

/// The store does what it should not, or not what it should.
pub(super) fn broken<T>(how: impl fmt::Display) -> Checked<T> {
    Err(Failure::Broken(how.to_string()))
}

pub(super) fn ensure(holds: bool, otherwise: impl fmt::Display) -> Checked {
    if holds { Ok(()) } else { broken(otherwise) }
}

/// Both are the same.
pub(super) fn same<T: PartialEq + Debug + ?Sized>(what: &str, found: &T, expected: &T) -> Checked {
    ensure(found == expected, format_args!("{what} is\n{found:?}\nand not\n{expected:?}"))
}

/// It was refused as a wrong argument.
pub(super) fn refused<T>(what: &str, result: Result<T, RuntimeError>) -> Checked {
    match result {
        Err(error) if error.status() == antiphon_types::Status::InvalidArgument => Ok(()),
        Err(error) => broken(format_args!("{what} failed as {}: {error}", error.status())),
        Ok(_) => broken(format_args!("{what} was accepted")),
    }
}

/// A store, and what a case needs beside it.
pub struct Bench {
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) second: Option<Arc<dyn SessionStore>>,
    pub(super) cx: InvocationContext,
    /// Makes ids that no other case uses.
    unique: Arc<str>,
    /// Milliseconds that the case's own clock has gone.
    clock: AtomicI64,
}

impl Bench {
    pub(super) fn new(stores: Stores) -> Self {
        Self {
            store: stores.store,
            second: stores.second,
            cx: InvocationContext::new(),
            unique: new_id(),
            clock: AtomicI64::new(0),
        }
    }

    /// An id of this case. Ids of different names sort as the names do.
    pub(super) fn id(&self, name: &str) -> String {
        format!("{}-{name}", self.unique)
    }

    /// The case's session.
    pub(super) fn session(&self) -> String {
        self.id("session")
    }

    /// A millisecond later than the last time.
    pub(super) fn now(&self) -> Timestamp {
        // A point in time that no system clock is near.
        const START: Timestamp = Timestamp::constant(1_700_000_000, 0);
        START + SignedDuration::from_millis(self.clock.fetch_add(1, Ordering::Relaxed))
    }

    /// A settled row of the session, made now, that says `text`.
    pub(super) fn row(&self, text: &str) -> SessionSnapshot {
        let mut row = SessionSnapshot::new("", self.session(), self.now());
        row.status = Some(SnapshotStatus::Completed);
        row.state = Some(self.state(text));
        row
    }

    /// A row of the session that stands for work in the background.
    pub(super) fn pending(&self) -> SessionSnapshot {
        let mut row = SessionSnapshot::new("", self.session(), self.now());
        row.status = Some(SnapshotStatus::Pending);
        row.heartbeat_at = Some(row.created_at);
        row
    }

    /// A state that says `text`.
    pub(super) fn state(&self, text: &str) -> SessionState {
        SessionState {
            session_id: Some(self.session().into()),
            messages: vec![Message::user(text), Message::model("Yes.")].into(),
            custom: Some(json!({ "said": text })),
            ..SessionState::default()
        }
    }

    /// Writes `row`, whatever is there.
    pub(super) async fn write(
        &self,
        id: Option<&str>,
        row: SessionSnapshot,
    ) -> Checked<SessionSnapshot> {
        match self.store.save_snapshot(&self.cx, id, &|_| Ok(Some(row.clone()))).await? {
            Some(written) => Ok(written),
            None => broken("save_snapshot wrote nothing, though it was given a row"),
        }
    }

    /// Writes `row` under the id of `name` and returns it as it must be read back.
    pub(super) async fn put(&self, name: &str, row: SessionSnapshot) -> Checked<SessionSnapshot> {
        let id = self.id(name);
        let expected = SessionSnapshot { snapshot_id: id.as_str().into(), ..row.clone() };
        same("what save_snapshot returned", &self.write(Some(&id), row).await?, &expected)?;
        Ok(expected)
    }

    /// Changes the row of `name`, which is there.
    pub(super) async fn change(
        &self,
        name: &str,
        change: impl Fn(&SessionSnapshot) -> Option<SessionSnapshot> + Send + Sync,
    ) -> Checked<Option<SessionSnapshot>> {
        let update = |row: Option<&SessionSnapshot>| match row {
            Some(row) => Ok(change(row)),
            None => Err(RuntimeError::internal("the closure was given no row, but there is one")),
        };
        Ok(self.store.save_snapshot(&self.cx, Some(&self.id(name)), &update).await?)
    }

    /// Sets the status of the row of `name`.
    pub(super) async fn set_status(&self, name: &str, status: SnapshotStatus) -> Checked {
        let now = self.now();
        self.change(name, |row| {
            Some(SessionSnapshot { status: Some(status), updated_at: Some(now), ..row.clone() })
        })
        .await?;
        Ok(())
    }

    /// The row of `name`, which must be there.
    pub(super) async fn read(&self, name: &str) -> Checked<SessionSnapshot> {
        match self.store.get_snapshot(&self.cx, &self.id(name)).await? {
            Some(row) => Ok(row),
            None => broken(format_args!("the row {name:?} is not there")),
        }
    }

    /// The row of `name` reads as `expected`.
    pub(super) async fn reads(&self, name: &str, expected: &SessionSnapshot) -> Checked {
        same(&format!("the row {name:?}"), &self.read(name).await?, expected)
    }

    /// There is no row of `name`.
    pub(super) async fn absent(&self, name: &str) -> Checked {
        let row = self.store.get_snapshot(&self.cx, &self.id(name)).await?;
        ensure(row.is_none(), format_args!("there is a row {name:?}: {row:?}"))
    }

    /// The session's latest row is that of `name`.
    pub(super) async fn latest_is(&self, name: &str) -> Checked {
        self.latest_of_is(&self.session(), name).await
    }

    pub(super) async fn latest_of_is(&self, session: &str, name: &str) -> Checked {
        let latest = self.store.get_latest_snapshot(&self.cx, session).await?;
        same("the latest row", &latest, &Some(self.read(name).await?))
    }

    /// The same case in another tenant's name.
    pub(super) fn scoped(&self, scope: &str) -> Self {
        let caller = Caller::new("caller").scope(self.id(scope));
        self.called_with(InvocationContext::new().with_caller(caller))
    }

    /// The same case without a tenant.
    pub(super) fn scoped_to_nobody(&self) -> Self {
        self.called_with(InvocationContext::new())
    }

    fn called_with(&self, cx: InvocationContext) -> Self {
        Self {
            store: self.store.clone(),
            second: None,
            cx,
            unique: self.unique.clone(),
            clock: AtomicI64::new(self.clock.load(Ordering::Relaxed)),
        }
    }

    pub(super) fn subscriber(&self) -> Checked<&dyn SnapshotSubscriber> {
        let none = || Failure::Skipped("the store cannot tell of changes".into());
        self.store.subscriber().ok_or_else(none)
    }

    /// The statuses of the row of `name` from now on.
    pub(super) fn subscribe(&self, name: &str) -> Checked<Statuses> {
        let id = self.id(name);
        Ok(Statuses(self.subscriber()?.on_snapshot_status_change(&self.cx, &id)))
    }
}

/// A subscription.
pub(super) struct Statuses(pub(super) BoxStream<'static, SnapshotStatus>);

impl Statuses {
    /// The next status.
    pub(super) async fn next(&mut self) -> Checked<SnapshotStatus> {
        match self.0.next().await {
            Some(status) => Ok(status),
            None => broken("the subscription ended"),
        }
    }

    /// Reads until `expected` comes. Statuses may be repeated or left out, but those in `never`
    /// never were.
    pub(super) async fn until(
        &mut self,
        expected: SnapshotStatus,
        never: &[SnapshotStatus],
    ) -> Checked {
        loop {
            let status = self.next().await?;
            if status == expected {
                return Ok(());
            }
            ensure(
                !never.contains(&status),
                format_args!("the subscription told of {status}, which the row never was"),
            )?;
        }
    }

    /// Reads to the end.
    pub(super) async fn end(mut self) {
        while self.0.next().await.is_some() {}
    }
}
