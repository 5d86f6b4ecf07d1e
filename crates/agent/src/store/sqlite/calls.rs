//! Records of tool calls.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    ATTEMPTS, SqliteSessionStore,
    database::{Done, Work},
    fault::Fault,
    owned,
    read::scope_no,
    row::{IdRef, to_json},
    write::{Applied, scope_no_or_new},
};
use crate::{
    InvocationContext, RuntimeError,
    ledger::{CallChange, CallLedger, CallRecord, CallUpdate, in_order, kept},
    store::{StoreErrorKind, required},
};

/// A record to be written.
pub(super) struct CallWrite {
    scope: Option<Arc<str>>,
    key: Arc<str>,
    /// After which of its writes it was seen; `None` where there was none.
    before: Option<i64>,
    /// `None` where it is to be removed.
    after: Option<CallRecord>,
}

impl CallWrite {
    /// Writes it within a transaction.
    pub(super) fn apply(&self, connection: &Connection) -> Result<Applied, Fault> {
        let scope = scope_no_or_new(connection, self.scope.as_deref())?;
        let sql = "SELECT version FROM calls WHERE scope = ?1 AND key = ?2";
        let there = connection
            .prepare_cached(sql)?
            .query_row(params![scope, IdRef(&self.key)], |row| row.get::<_, i64>(0))
            .optional()?;
        if there != self.before {
            return Ok(Applied::Stale);
        }
        match &self.after {
            Some(record) => {
                let sql = "INSERT INTO calls (scope, key, session, version, settled, body) \
                           VALUES (?1, ?2, ?3, 0, ?4, ?5) ON CONFLICT DO UPDATE SET \
                           version = version + 1, settled = excluded.settled, \
                           body = excluded.body";
                connection.prepare_cached(sql)?.execute(params![
                    scope,
                    IdRef(&self.key),
                    IdRef(&record.session_id),
                    record.settled,
                    to_json(record),
                ])?;
            }
            None => {
                let sql = "DELETE FROM calls WHERE scope = ?1 AND key = ?2";
                connection.prepare_cached(sql)?.execute(params![scope, IdRef(&self.key)])?;
            }
        }
        Ok(Applied::Written(Default::default()))
    }
}

impl SqliteSessionStore {
    /// A record, and after which of its writes.
    async fn read_call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<Option<(i64, CallRecord)>, RuntimeError> {
        let (scope, key) = (owned(cx.scope()), required("call key", key)?.to_owned());
        let call = self.read(move |connection, _| {
            let Some(scope) = scope_no(connection, scope.as_deref())? else { return Ok(None) };
            let sql = "SELECT version, body FROM calls WHERE scope = ?1 AND key = ?2";
            let found = connection
                .prepare_cached(sql)?
                .query_row(params![scope, IdRef(&key)], |row| {
                    Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
                })
                .optional()?;
            let Some((version, body)) = found else { return Ok(None) };
            Ok(Some((version, serde_json::from_str(&body)?)))
        });
        self.within(cx, call).await
    }

    async fn write_call(
        &self,
        cx: &InvocationContext,
        key: &str,
        update: &CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        for _ in 0..ATTEMPTS {
            let (before, seen) = self.read_call(cx, key).await?.unzip();
            let after = match kept(key, update(seen.as_ref())?) {
                CallChange::Keep => return Ok(seen),
                CallChange::Write(record) => Some(*record),
                CallChange::Remove if seen.is_none() => return Ok(None),
                CallChange::Remove => None,
            };
            let write = CallWrite {
                scope: owned(cx.scope()),
                key: key.into(),
                before,
                after: after.clone(),
            };
            match self.database.write(Work::Call(Box::new(write))).await? {
                Done::Written => return Ok(after),
                Done::Stale => {}
            }
        }
        let reason = format!("others changed the call {key:?} {ATTEMPTS} times meanwhile");
        Err(self.error(StoreErrorKind::Contended, reason).into())
    }
}

#[async_trait]
impl CallLedger for SqliteSessionStore {
    async fn call(
        &self,
        cx: &InvocationContext,
        key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        Ok(self.read_call(cx, key).await?.map(|(_, call)| call))
    }

    async fn open_calls(
        &self,
        cx: &InvocationContext,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError> {
        let (scope, session) = (owned(cx.scope()), owned(session_id));
        let calls = self.read(move |connection, _| {
            let Some(scope) = scope_no(connection, scope.as_deref())? else {
                return Ok(Vec::new());
            };
            const ALL: &str = "SELECT body FROM calls WHERE scope = ?1 AND settled = 0";
            const OF_SESSION: &str = "SELECT body FROM calls \
                 WHERE scope = ?1 AND settled = 0 AND session = ?2";
            let sql = if session.is_some() { OF_SESSION } else { ALL };
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = match session.as_deref() {
                Some(session) => statement.query(params![scope, IdRef(session)])?,
                None => statement.query(params![scope])?,
            };
            let mut calls = Vec::new();
            while let Some(row) = rows.next()? {
                let body = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
                calls.push(serde_json::from_str(body)?);
            }
            in_order(&mut calls);
            Ok(calls)
        });
        self.within(cx, calls).await
    }

    async fn save_call(
        &self,
        cx: &InvocationContext,
        key: &str,
        update: &CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        required("call key", key)?;
        self.within(cx, self.write_call(cx, key, update)).await
    }
}
