//! Reading snapshots.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params, types::FromSql};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    fault::Fault,
    lineage::{KnownList, KnownLists, Piece, Point, Track, pieces},
    recent::Recent,
    row::{COLUMNS, Content, IdRef, Parts, Row, StateRow},
};
use crate::{
    Artifact, Message,
    state::{SessionSnapshot, SessionState},
    store::StoreErrorKind,
};

/// What this process remembers of the file. None of it can change there.
pub(super) struct Known {
    /// Messages, by track.
    pub(super) lists: KnownLists<u64>,
    pub(super) artifacts: Recent<Point, Arc<Artifacts>>,
    /// Custom states, by their number.
    pub(super) contents: Recent<i64, Arc<str>>,
    /// What the states of snapshots were made of when they were last seen, by scope and id. They
    /// may be others now, but this is there all the same, to go on from.
    pub(super) parts: Recent<(Option<Arc<str>>, Arc<str>), Parts>,
}

/// Artifacts and the numbers of their contents.
#[derive(Clone, Default)]
pub(super) struct Artifacts {
    pub(super) items: Vec<Arc<Artifact>>,
    pub(super) contents: Vec<i64>,
    pub(super) bytes: usize,
}

impl Known {
    /// Messages up to so many bytes, and the rest in proportion.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            lists: KnownLists::new(max_bytes),
            artifacts: Recent::new(max_bytes / 4),
            contents: Recent::new(max_bytes / 4),
            parts: Recent::new(max_bytes / 16),
        }
    }

    pub(super) fn remember(&self, scope: Option<&str>, snapshot_id: &Arc<str>, parts: Parts) {
        let bytes = 256 + scope.map_or(0, str::len) + snapshot_id.len();
        self.parts.insert((scope.map(Arc::from), snapshot_id.clone()), parts, bytes);
    }
}

/// The number of a scope; `None` where nothing was ever written in it.
pub(super) fn scope_no(connection: &Connection, scope: Option<&str>) -> Result<Option<i64>, Fault> {
    match scope {
        None => Ok(Some(0)),
        Some(name) => one(connection, "SELECT no FROM scopes WHERE name = ?1", [name]),
    }
}

/// The number of a session.
pub(super) fn session_no(
    connection: &Connection,
    scope: i64,
    session: &str,
) -> Result<Option<i64>, Fault> {
    let sql = "SELECT no FROM sessions WHERE scope = ?1 AND id = ?2";
    one(connection, sql, params![scope, IdRef(session)])
}

/// The row of a snapshot.
pub(super) fn row(
    connection: &Connection,
    scope: Option<&str>,
    snapshot_id: &str,
) -> Result<Option<Row>, Fault> {
    let Some(scope) = scope_no(connection, scope)? else { return Ok(None) };
    let sql = format!(
        "SELECT {COLUMNS} FROM snapshots n JOIN sessions s ON s.no = n.session \
         WHERE n.scope = ?1 AND n.id = ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![scope, IdRef(snapshot_id)])?;
    rows.next()?.map(Row::read).transpose()
}

/// The row of a session's latest snapshot.
pub(super) fn latest_row(
    connection: &Connection,
    scope: Option<&str>,
    session: &str,
) -> Result<Option<Row>, Fault> {
    let Some(scope) = scope_no(connection, scope)? else { return Ok(None) };
    let Some(session) = session_no(connection, scope, session)? else { return Ok(None) };
    latest_row_of(connection, session)
}

/// The same by the number of the session.
pub(super) fn latest_row_of(connection: &Connection, session: i64) -> Result<Option<Row>, Fault> {
    let sql = format!(
        "SELECT {COLUMNS} FROM snapshots n JOIN sessions s ON s.no = n.session \
         WHERE n.session = ?1 AND (n.created_s, n.created_ns) = ( \
             SELECT created_s, created_ns FROM snapshots WHERE session = ?1 \
             ORDER BY created_s DESC, created_ns DESC LIMIT 1)"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([session])?;
    let mut latest: Option<Row> = None;
    while let Some(row) = rows.next()? {
        let row = Row::read(row)?;
        // The file sorts UUIDs apart from other ids.
        let id = |row: &Row| row.snapshot.snapshot_id.clone();
        if latest.as_ref().is_none_or(|latest| id(latest) < id(&row)) {
            latest = Some(row);
        }
    }
    Ok(latest)
}

/// The snapshot of a row, with its state.
pub(super) fn snapshot(
    connection: &Connection,
    known: &Known,
    scope: Option<&str>,
    row: Row,
) -> Result<SessionSnapshot, Fault> {
    let Some(StateRow { session_id, extra, parts }) = row.state else { return Ok(row.snapshot) };
    let state = SessionState {
        session_id,
        messages: messages(connection, known, parts.messages)?.items,
        custom: match &parts.custom {
            Some(custom) => Some(serde_json::from_str::<Value>(&body(connection, known, custom)?)?),
            None => None,
        },
        artifacts: artifacts(connection, known, parts.artifacts)?.items.clone(),
        extra,
    };
    known.remember(scope, &row.snapshot.snapshot_id, parts);
    Ok(row.snapshot.with_state(Some(state)))
}

/// The messages up to a point: those that are known, and the rest from the file.
pub(super) fn messages(
    connection: &Connection,
    known: &Known,
    point: Option<Point>,
) -> Result<KnownList, Fault> {
    let Some(point) = point else { return Ok(KnownList::default()) };
    let mut list = known.lists.find(&point.track, point.len);
    if list.items.len() == point.len {
        return Ok(list);
    }
    let pieces = pieces(Some(point), 0, |number| track(connection, number))?;
    for piece in pieces.iter().rev().skip(1) {
        if list.items.is_empty() {
            list = known.lists.find(&piece.track, piece.items.end);
        }
    }
    for Piece { track, items } in pieces {
        if items.end > list.items.len() {
            let start = items.start.max(list.items.len());
            let piece = Piece { track, items: start..items.end };
            list.bytes +=
                read_items(connection, &piece, |message: Message| list.items.push(message))?;
        }
    }
    known.lists.insert(point.track, list.clone());
    Ok(list)
}

/// The artifacts up to a point.
pub(super) fn artifacts(
    connection: &Connection,
    known: &Known,
    point: Option<Point>,
) -> Result<Arc<Artifacts>, Fault> {
    let Some(point) = point else { return Ok(Arc::default()) };
    if let Some(list) = known.artifacts.find(&point) {
        return Ok(list);
    }
    let mut list = Artifacts::default();
    for piece in pieces(Some(point), 0, |number| track(connection, number))? {
        read_items(connection, &piece, |content: i64| list.contents.push(content))?;
    }
    for content in &list.contents {
        let body: String = content_body(connection, *content)?;
        list.bytes += body.len();
        list.items.push(Arc::new(serde_json::from_str(&body)?));
    }
    let list = Arc::new(list);
    known.artifacts.insert(point, list.clone(), list.weight());
    Ok(list)
}

impl Artifacts {
    /// About how many bytes it takes to remember it.
    pub(super) fn weight(&self) -> usize {
        64 * self.items.len() + self.bytes
    }
}

/// The JSON of a custom state.
pub(super) fn body(
    connection: &Connection,
    known: &Known,
    content: &Content,
) -> Result<Arc<str>, Fault> {
    let number = match content {
        Content::Inline(body) => return Ok(body.clone()),
        Content::Kept(number) => *number,
    };
    if let Some(body) = known.contents.find(&number) {
        return Ok(body);
    }
    let body: Arc<str> = content_body(connection, number)?;
    known.contents.insert(number, body.clone(), body.len());
    Ok(body)
}

fn content_body<T: FromSql>(connection: &Connection, number: i64) -> Result<T, Fault> {
    one(connection, "SELECT body FROM contents WHERE no = ?1", [number])?
        .ok_or_else(|| Fault::corrupt(format_args!("content {number} is missing")))
}

/// What the file knows of a track.
pub(super) fn track(connection: &Connection, number: u64) -> Result<Track, Fault> {
    let missing = || Fault::corrupt(format_args!("list {number} is missing"));
    let sql = "SELECT from_track, from_len FROM tracks WHERE no = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let from = statement
        .query_row([place(number, 0)? >> 32], |row| {
            Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?))
        })
        .optional()?;
    let from = match from.ok_or_else(missing)? {
        (Some(track), Some(len)) => Some(Point {
            track: u64::try_from(track).map_err(|_| missing())?,
            len: usize::try_from(len).map_err(|_| missing())?,
        }),
        _ => None,
    };
    let sql = "SELECT place, items FROM runs WHERE place >= ?1 AND place < ?2 \
               ORDER BY place DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    let last = statement
        .query_row([place(number, 0)?, place(number + 1, 0)?], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        })
        .optional()?;
    let end = match last {
        Some((place, items)) => {
            let end = (place & INDEX).checked_add(items);
            end.and_then(|end| usize::try_from(end).ok()).ok_or_else(missing)?
        }
        None => from.map_or(0, |from| from.len),
    };
    Ok(Track { from, end })
}

/// Reads the items of a piece, and returns how many bytes were read.
fn read_items<T: DeserializeOwned>(
    connection: &Connection,
    piece: &Piece,
    mut each: impl FnMut(T),
) -> Result<usize, Fault> {
    let missing = || {
        let (track, items) = (piece.track, &piece.items);
        Fault::corrupt(format_args!("items {items:?} of list {track} are not all there"))
    };
    // From the run that the first item lies in.
    let sql = "SELECT place, items, body FROM runs \
               WHERE place >= (SELECT max(place) FROM runs WHERE place <= ?1) AND place < ?2 \
               ORDER BY place";
    let mut statement = connection.prepare_cached(sql)?;
    let places = [place(piece.track, piece.items.start)?, place(piece.track, piece.items.end)?];
    let mut runs = statement.query(places)?;
    let (mut next, mut bytes) = (None, 0);
    while let Some(run) = runs.next()? {
        let place: i64 = run.get(0)?;
        let start = usize::try_from(place & INDEX).map_err(|_| missing())?;
        let on_track = (place >> 32) as u64 == piece.track;
        if !on_track || next.map_or(start > piece.items.start, |next| next != start) {
            return Err(missing());
        }
        let body = run.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
        let items: Vec<T> = serde_json::from_str(body)?;
        if usize::try_from(run.get::<_, i64>(1)?) != Ok(items.len()) {
            return Err(missing());
        }
        bytes += body.len();
        next = Some(start + items.len());
        for (index, item) in items.into_iter().enumerate() {
            if piece.items.contains(&(start + index)) {
                each(item);
            }
        }
    }
    if next.is_none_or(|next| next < piece.items.end) {
        return Err(missing());
    }
    Ok(bytes)
}

/// The bits of a place that are the index.
const INDEX: i64 = (1 << 32) - 1;

/// Where an item lies among the runs.
pub(super) fn place(track: u64, index: usize) -> Result<i64, Fault> {
    let bounded = (index as u64) <= INDEX as u64 && track < 1 << 31;
    let place = bounded.then_some((track << 32 | index as u64) as i64);
    place.ok_or_else(|| Fault::of(StoreErrorKind::TooLarge, "there are too many lists or items"))
}

/// The first column of the one row there may be.
pub(super) fn one<T: FromSql>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<Option<T>, Fault> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params, |row| row.get(0)).optional()?)
}
