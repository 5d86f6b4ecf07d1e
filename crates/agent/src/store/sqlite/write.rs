//! Writing snapshots: what a commit adds to the file.

use std::{collections::HashMap, sync::Arc};

use rusqlite::{Connection, OptionalExtension, ToSql, params};
use serde::Serialize;

use super::{
    fault::Fault,
    lineage::{self, KnownList, Placement, Point},
    read::{self, Artifacts, Known, one, place, track},
    row::{Content, IdRef, Parts, Time, Written, members, to_json},
};
use crate::{
    Artifact, Message,
    state::{SessionSnapshot, SessionState},
    store::{StoreErrorKind, shared_items},
};

/// A row to be written.
pub(super) struct Commit {
    pub(super) scope: Option<Arc<str>>,
    /// With its own id, its session and a status.
    pub(super) row: Arc<SessionSnapshot>,
    /// The row that it was made from; `None` where there was none.
    pub(super) before: Option<Written>,
    /// What the state of that row is made of, where it has one.
    pub(super) parts: Option<Parts>,
}

/// A commit of which all is known but where it comes to lie. It can be [applied](Draft::apply) again
/// after a transaction that was rolled back.
pub(super) struct Draft {
    commit: Commit,
    state: Option<StateDraft>,
}

struct StateDraft {
    messages: ListDraft,
    /// All messages of the row, to be remembered.
    known: KnownList,
    artifacts: ListDraft,
    /// By the order of the artifacts.
    contents: Vec<ArtifactDraft>,
    artifact_bytes: usize,
    custom: Option<CustomDraft>,
}

/// A list, of which the first `shared` items are those of `base`.
#[derive(Default)]
struct ListDraft {
    base: Option<Point>,
    shared: usize,
    len: usize,
    /// The others as a JSON list. Of artifacts it is made when their contents have numbers.
    body: String,
}

enum ArtifactDraft {
    Kept(i64),
    New(String),
}

enum CustomDraft {
    /// It is that of the base, or short.
    There(Content),
    New(Arc<str>),
}

/// What came of applying a draft.
pub(super) enum Applied {
    /// The row is not the one that it was made from.
    Stale,
    /// It is written, once the transaction is.
    Written(New),
}

/// What is to be remembered once the transaction is committed.
#[derive(Default)]
pub(super) struct New {
    parts: Option<Parts>,
    contents: Vec<i64>,
}

/// Custom states up to this length lie in the row, as long as a row otherwise is.
const INLINE: usize = 96;

impl Draft {
    /// Compares the row with what is there to go on from. Reads the file where that is not known.
    pub(super) fn new(
        connection: &Connection,
        known: &Known,
        mut commit: Commit,
    ) -> Result<Self, Fault> {
        let Some(state) = &commit.row.state else { return Ok(Self { commit, state: None }) };
        let base = match commit.parts.take() {
            Some(parts) => parts,
            None => parent(connection, known, &commit)?.unwrap_or_default(),
        };
        let state = StateDraft::new(connection, known, &base, state)?;
        Ok(Self { state: Some(state), commit })
    }

    /// Writes it within a transaction.
    pub(super) fn apply(&self, connection: &Connection) -> Result<Applied, Fault> {
        let Commit { scope, row, before, .. } = &self.commit;
        let scope = scope_no_or_new(connection, scope.as_deref())?;
        let sql = "SELECT no, version FROM snapshots WHERE scope = ?1 AND id = ?2";
        let there = connection
            .prepare_cached(sql)?
            .query_row(params![scope, IdRef(&row.snapshot_id)], |row| {
                Ok(Written { no: row.get(0)?, version: row.get(1)? })
            })
            .optional()?;
        if there != *before {
            return Ok(Applied::Stale);
        }
        let mut new = New::default();
        if let Some(state) = &self.state {
            new = state.apply(connection)?;
        }
        match before {
            Some(before) => write_row(connection, row, &new, Place::Row(before.no))?,
            None => {
                let id = row.session_id.as_deref().unwrap_or("");
                let session = match read::session_no(connection, scope, id)? {
                    Some(session) => session,
                    None => {
                        let sql = "INSERT INTO sessions (scope, id) VALUES (?1, ?2) RETURNING no";
                        inserted(connection, sql, params![scope, IdRef(id)])?
                    }
                };
                write_row(connection, row, &new, Place::New { scope, session })?;
            }
        }
        Ok(Applied::Written(new))
    }

    /// Remembers what was written.
    pub(super) fn learn(self, known: &Known, new: New) {
        let (Some(state), Some(parts)) = (self.state, new.parts) else { return };
        if let Some(point) = parts.messages {
            known.lists.insert(point.track, state.known);
        }
        let row = &self.commit.row;
        if let (Some(point), Some(row)) = (parts.artifacts, &row.state) {
            let list = Artifacts {
                items: row.artifacts.clone(),
                contents: new.contents,
                bytes: state.artifact_bytes,
            };
            let bytes = list.weight();
            known.artifacts.insert(point, Arc::new(list), bytes);
        }
        if let (Some(Content::Kept(number)), Some(CustomDraft::New(body))) =
            (&parts.custom, state.custom)
        {
            known.contents.insert(*number, body.clone(), body.len());
        }
        known.remember(self.commit.scope.as_deref(), &row.snapshot_id, parts);
    }

    pub(super) fn commit(&self) -> &Commit {
        &self.commit
    }
}

/// The number of a tenant, who may be new.
pub(super) fn scope_no_or_new(connection: &Connection, scope: Option<&str>) -> Result<i64, Fault> {
    if let Some(number) = read::scope_no(connection, scope)? {
        return Ok(number);
    }
    inserted(connection, "INSERT INTO scopes (name) VALUES (?1) RETURNING no", [scope])
}

/// What the state of the row's parent is made of.
fn parent(connection: &Connection, known: &Known, commit: &Commit) -> Result<Option<Parts>, Fault> {
    let Some(parent) = &commit.row.parent_id else { return Ok(None) };
    if let Some(parts) = known.parts.find(&(commit.scope.clone(), parent.clone())) {
        return Ok(Some(parts));
    }
    let row = read::row(connection, commit.scope.as_deref(), parent)?;
    Ok(row.and_then(|row| row.state).map(|state| state.parts))
}

impl StateDraft {
    fn new(
        connection: &Connection,
        known: &Known,
        base: &Parts,
        state: &SessionState,
    ) -> Result<Self, Fault> {
        let there = read::messages(connection, known, base.messages)?;
        let shared = shared_items(&there.items, &state.messages);
        let new: Vec<&Arc<Message>> = state.messages.range(shared).collect();
        let body = if new.is_empty() { String::new() } else { readable(&new)? };
        let bytes = there.bytes + body.len();
        let messages = ListDraft { base: base.messages, shared, len: state.messages.len(), body };

        let there = read::artifacts(connection, known, base.artifacts)?;
        let mut artifact_bytes = there.bytes;
        let mut finder = Finder::new(&there);
        let mut contents = Vec::with_capacity(state.artifacts.len());
        for (index, artifact) in state.artifacts.iter().enumerate() {
            contents.push(match finder.number(index, artifact) {
                Some(number) => ArtifactDraft::Kept(number),
                None => {
                    let body = readable(artifact)?;
                    artifact_bytes += body.len();
                    ArtifactDraft::New(body)
                }
            });
        }
        let same = |(draft, number): &(&ArtifactDraft, &i64)| match draft {
            ArtifactDraft::Kept(kept) => kept == *number,
            ArtifactDraft::New(_) => false,
        };
        let shared = contents.iter().zip(&there.contents).take_while(same).count();
        let artifacts =
            ListDraft { base: base.artifacts, shared, len: contents.len(), body: String::new() };

        let custom = match &state.custom {
            None => None,
            Some(custom) => {
                let custom = readable(custom)?;
                Some(match &base.custom {
                    Some(base) if *read::body(connection, known, base)? == *custom => {
                        CustomDraft::There(base.clone())
                    }
                    _ if custom.len() <= INLINE => {
                        CustomDraft::There(Content::Inline(custom.into()))
                    }
                    _ => CustomDraft::New(custom.into()),
                })
            }
        };
        let known = KnownList { items: state.messages.clone(), bytes };
        Ok(Self { messages, known, artifacts, contents, artifact_bytes, custom })
    }

    fn apply(&self, connection: &Connection) -> Result<New, Fault> {
        let mut contents = Vec::with_capacity(self.contents.len());
        for content in &self.contents {
            contents.push(match content {
                ArtifactDraft::Kept(number) => *number,
                ArtifactDraft::New(body) => kept(connection, body)?,
            });
        }
        let new = contents.get(self.artifacts.shared..).unwrap_or_default();
        let parts = Parts {
            messages: self.messages.apply(connection, &self.messages.body)?,
            artifacts: self.artifacts.apply(connection, &to_json(new))?,
            custom: match &self.custom {
                None => None,
                Some(CustomDraft::There(content)) => Some(content.clone()),
                Some(CustomDraft::New(body)) => Some(Content::Kept(kept(connection, body)?)),
            },
        };
        Ok(New { parts: Some(parts), contents })
    }
}

impl ListDraft {
    /// Writes the items that are new and says where the list lies.
    fn apply(&self, connection: &Connection, body: &str) -> Result<Option<Point>, Fault> {
        let lookup = |number| track(connection, number);
        let placement = lineage::place::<Fault>(self.base, self.shared, self.len, lookup)?;
        let track = match placement {
            Placement::There(point) => return Ok(point),
            Placement::Append { track, .. } => track,
            Placement::Begin(from) => {
                let sql = "INSERT INTO tracks (from_track, from_len) VALUES (?1, ?2) RETURNING no";
                let from = from.map(|from| (from.track as i64, from.len as i64)).unzip();
                inserted(connection, sql, from)? as u64
            }
        };
        let end = place(track, self.len)?;
        let sql = "INSERT INTO runs (place, items, body) VALUES (?1, ?2, ?3)";
        let items = self.len - self.shared;
        connection.prepare_cached(sql)?.execute(params![end - items as i64, items as i64, body])?;
        Ok(Some(Point { track, len: self.len }))
    }
}

/// Finds artifacts among those that are there.
struct Finder<'a> {
    there: &'a Artifacts,
    /// The indexes by address, once one was not found at its own.
    moved: Option<HashMap<*const Artifact, usize>>,
}

impl<'a> Finder<'a> {
    fn new(there: &'a Artifacts) -> Self {
        Self { there, moved: None }
    }

    /// The number of the content, where it is that of the artifact at the same index, or of the
    /// same artifact at another.
    fn number(&mut self, index: usize, artifact: &Arc<Artifact>) -> Option<i64> {
        let items = &self.there.items;
        let same = |other: &Arc<Artifact>| Arc::ptr_eq(other, artifact) || other == artifact;
        if items.get(index).is_some_and(same) {
            return self.there.contents.get(index).copied();
        }
        let moved = self.moved.get_or_insert_with(|| {
            items.iter().enumerate().map(|(index, item)| (Arc::as_ptr(item), index)).collect()
        });
        self.there.contents.get(*moved.get(&Arc::as_ptr(artifact))?).copied()
    }
}

/// Where a row is written.
enum Place {
    New {
        scope: i64,
        session: i64,
    },
    /// In the place of what is there, but for what never changes.
    Row(i64),
}

fn write_row(
    connection: &Connection,
    row: &SessionSnapshot,
    new: &New,
    place: Place,
) -> Result<(), Fault> {
    let parts = new.parts.as_ref();
    let list = |point: Option<Option<Point>>| {
        let len = point.map(|point| point.map_or(0, |point| point.len as i64));
        (len, point.flatten().map(|point| point.track as i64))
    };
    let (messages, messages_track) = list(parts.map(|parts| parts.messages));
    let (artifacts, artifacts_track) = list(parts.map(|parts| parts.artifacts));
    let state = row.state.as_ref();
    let state_session = state.and_then(|state| state.session_id.as_ref());
    let same_session = state_session == row.session_id.as_ref();
    let state_session = state_session.map(|id| IdRef(id));
    let state_session: Option<&dyn ToSql> = match &state_session {
        Some(_) if same_session => Some(&0),
        Some(id) => Some(id),
        None => None,
    };
    let parent = row.parent_id.as_deref().map(IdRef);
    let times = (row.created_at.as_second(), row.created_at.subsec_nanosecond());
    let (updated, heartbeat) = (row.updated_at.map(Time), row.heartbeat_at.map(Time));
    let finish_reason = row.finish_reason.map(|reason| reason.as_str());
    let error = row.error.as_ref().map(to_json);
    let (extra, state_extra) = (members(&row.extra), state.and_then(|state| members(&state.extra)));
    let custom = parts.and_then(|parts| parts.custom.as_ref());
    let status = row.status().as_str();
    let columns = params![
        parent,
        times.0,
        times.1,
        updated,
        heartbeat,
        status,
        finish_reason,
        error,
        extra,
        messages,
        messages_track,
        artifacts,
        artifacts_track,
        custom,
        state_session,
        state_extra,
    ];
    const INSERT: &str = "INSERT INTO snapshots (parent, created_s, created_ns, updated, \
         heartbeat, status, finish_reason, error, extra, messages, messages_track, artifacts, \
         artifacts_track, custom, state_session, state_extra, version, scope, session, id) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 0, ?17, \
         ?18, ?19)";
    const UPDATE: &str = "UPDATE snapshots SET parent = ?1, created_s = ?2, created_ns = ?3, \
         updated = ?4, heartbeat = ?5, status = ?6, finish_reason = ?7, error = ?8, extra = ?9, \
         messages = ?10, messages_track = ?11, artifacts = ?12, artifacts_track = ?13, \
         custom = ?14, state_session = ?15, state_extra = ?16, version = version + 1 \
         WHERE no = ?17";
    match place {
        Place::New { scope, session } => {
            let id = IdRef(&row.snapshot_id);
            let columns = [columns, params![scope, session, id]].concat();
            connection.prepare_cached(INSERT)?.execute(columns.as_slice())?
        }
        Place::Row(no) => {
            let columns = [columns, params![no]].concat();
            connection.prepare_cached(UPDATE)?.execute(columns.as_slice())?
        }
    };
    Ok(())
}

fn kept(connection: &Connection, body: &str) -> Result<i64, Fault> {
    inserted(connection, "INSERT INTO contents (body) VALUES (?1) RETURNING no", [body])
}

/// The number of the row that a statement inserts.
fn inserted(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<i64, Fault> {
    one(connection, sql, params)?.ok_or_else(|| Fault::corrupt("a row was not written"))
}

/// JSON that can be read again: not nested deeper than a reader follows.
fn readable(value: &(impl Serialize + ?Sized)) -> Result<String, Fault> {
    const MAX_DEPTH: usize = 127;
    let text = to_json(value);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            let reason = format_args!("the state is nested more than {MAX_DEPTH} levels deep");
            return Err(Fault::of(StoreErrorKind::TooLarge, reason));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let nested = |depth| (0..depth).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        let text = readable(&nested(127)).unwrap();
        serde_json::from_str::<Value>(&text).unwrap();
        readable(&nested(128)).unwrap_err();
        let brackets = Value::from("[\"\\[".repeat(100));
        assert_eq!(serde_json::from_str::<Value>(&readable(&brackets).unwrap()).unwrap(), brackets);
    }
}
