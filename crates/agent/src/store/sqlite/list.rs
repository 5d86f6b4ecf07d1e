//! Looking through the file.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::{
    fault::Fault,
    lineage::Point,
    read::{latest_row_of, one, scope_no, session_no},
    row::{COLUMNS, Id, IdRef, Row},
};
use crate::store::{SessionSummary, SnapshotSummary};

pub(super) fn scopes(connection: &Connection) -> Result<Vec<Arc<str>>, Fault> {
    let mut statement = connection.prepare_cached("SELECT name FROM scopes ORDER BY name")?;
    let names = statement.query_map((), |row| row.get::<_, Arc<str>>(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

pub(super) fn sessions(
    connection: &Connection,
    scope: Option<&str>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<SessionSummary>, Fault> {
    let Some(scope) = scope_no(connection, scope)? else { return Ok(Vec::new()) };
    let before = match after {
        None => i64::MAX,
        Some(after) => match session_no(connection, scope, after)? {
            Some(session) => session,
            None => return Ok(Vec::new()),
        },
    };
    let sql = "SELECT no, id FROM sessions WHERE scope = ?1 AND no < ?2 ORDER BY no DESC LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![scope, before, bounded(limit)])?;
    let mut sessions = Vec::new();
    while let Some(row) = rows.next()? {
        let Id(session_id) = row.get(1)?;
        sessions.extend(session(connection, row.get(0)?, session_id)?);
    }
    Ok(sessions)
}

fn session(
    connection: &Connection,
    session: i64,
    session_id: Arc<str>,
) -> Result<Option<SessionSummary>, Fault> {
    let Some(latest) = latest_row_of(connection, session)? else { return Ok(None) };
    let sql = "SELECT created_s, created_ns FROM snapshots WHERE session = ?1 \
               ORDER BY created_s, created_ns LIMIT 1";
    let first = connection
        .prepare_cached(sql)?
        .query_row([session], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sql = "SELECT count(*) FROM snapshots WHERE session = ?1";
    let snapshots: Option<i64> = one(connection, sql, [session])?;
    Ok(Some(SessionSummary {
        session_id,
        snapshots: snapshots.unwrap_or(0).unsigned_abs(),
        first_created_at: Timestamp::new(first.0, first.1).map_err(Fault::corrupt)?,
        latest: latest.snapshot,
    }))
}

pub(super) fn snapshots(
    connection: &Connection,
    scope: Option<&str>,
    session: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<SnapshotSummary>, Fault> {
    let Some(scope) = scope_no(connection, scope)? else { return Ok(Vec::new()) };
    let Some(session) = session_no(connection, scope, session)? else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT {COLUMNS} FROM snapshots n JOIN sessions s ON s.no = n.session \
         WHERE n.session = ?1 AND n.no > \
             (CASE WHEN ?3 IS NULL THEN 0 \
              ELSE (SELECT no FROM snapshots WHERE scope = ?2 AND id = ?3) END) \
         ORDER BY n.no LIMIT ?4"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![session, scope, after.map(IdRef), bounded(limit)])?;
    let mut snapshots = Vec::new();
    while let Some(row) = rows.next()? {
        let Row { snapshot, state, .. } = Row::read(row)?;
        let parts = state.map(|state| state.parts);
        let len = |point: Option<Point>| point.map_or(0, |point| point.len);
        snapshots.push(SnapshotSummary {
            snapshot,
            messages: parts.as_ref().map(|parts| len(parts.messages)),
            artifacts: parts.as_ref().map(|parts| len(parts.artifacts)),
        });
    }
    Ok(snapshots)
}

fn bounded(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
