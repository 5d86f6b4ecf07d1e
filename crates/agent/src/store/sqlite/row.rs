//! Rows of the table of snapshots.

use std::sync::Arc;

use antiphon_types::JsonObject;
use jiff::Timestamp;
use rusqlite::{
    ToSql,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, Value as SqlValue, ValueRef},
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, value::StrDeserializer},
};

use super::{fault::Fault, lineage::Point};
use crate::state::SessionSnapshot;

/// A snapshot as it lies in the file.
pub(super) struct Row {
    pub(super) written: Written,
    /// Without its state.
    pub(super) snapshot: SessionSnapshot,
    pub(super) state: Option<StateRow>,
}

/// Which row, and after which of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) no: i64,
    pub(super) version: i64,
}

/// A state as it lies in the file.
pub(super) struct StateRow {
    pub(super) session_id: Option<Arc<str>>,
    pub(super) extra: JsonObject,
    pub(super) parts: Parts,
}

/// What states share.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub(super) messages: Option<Point>,
    pub(super) artifacts: Option<Point>,
    pub(super) custom: Option<Content>,
}

/// A custom state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// In the row, as JSON.
    Inline(Arc<str>),
    /// Among the contents.
    Kept(i64),
}

/// What [`Row::read`] takes.
pub(super) const COLUMNS: &str = "n.no, n.version, n.id, s.id, n.parent, n.created_s, \
     n.created_ns, n.updated, n.heartbeat, n.status, n.finish_reason, n.error, n.extra, \
     n.messages, n.messages_track, n.artifacts, n.artifacts_track, n.custom, n.state_session, \
     n.state_extra";

impl Row {
    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Self, Fault> {
        let written = Written { no: row.get(0)?, version: row.get(1)? };
        let Id(snapshot_id) = row.get(2)?;
        let Id(session_id) = row.get(3)?;
        let created_at = Timestamp::new(row.get(5)?, row.get(6)?)
            .map_err(|error| Fault::corrupt(format_args!("a row has no time: {error}")))?;
        let mut snapshot = SessionSnapshot::new(snapshot_id, session_id.clone(), created_at);
        snapshot.parent_id = row.get::<_, Option<Id>>(4)?.map(|Id(id)| id);
        snapshot.updated_at = row.get::<_, Option<Time>>(7)?.map(|Time(time)| time);
        snapshot.heartbeat_at = row.get::<_, Option<Time>>(8)?.map(|Time(time)| time);
        snapshot.status = Some(row.get::<_, Name<_>>(9)?.0);
        snapshot.finish_reason = row.get::<_, Option<Name<_>>>(10)?.map(|Name(reason)| reason);
        snapshot.error = json(row.get_ref(11)?)?;
        snapshot.extra = json(row.get_ref(12)?)?.unwrap_or_default();
        let state = match row.get_ref(13)? {
            ValueRef::Null => None,
            _ => Some(StateRow {
                session_id: match row.get_ref(18)? {
                    ValueRef::Null => None,
                    ValueRef::Integer(_) => Some(session_id),
                    other => Some(Id::column_result(other).map_err(rusqlite::Error::from)?.0),
                },
                extra: json(row.get_ref(19)?)?.unwrap_or_default(),
                parts: Parts {
                    messages: point(row.get(13)?, row.get(14)?)?,
                    artifacts: point(row.get(15)?, row.get(16)?)?,
                    custom: row.get(17)?,
                },
            }),
        };
        Ok(Self { written, snapshot, state })
    }
}

fn point(len: Option<i64>, track: Option<i64>) -> Result<Option<Point>, Fault> {
    let Some(track) = track else { return Ok(None) };
    let negative = |_| Fault::corrupt("a row points at no list");
    let len = usize::try_from(len.unwrap_or(0)).map_err(negative)?;
    Ok(Some(Point { track: u64::try_from(track).map_err(negative)?, len }))
}

fn json<T: DeserializeOwned>(text: ValueRef<'_>) -> Result<Option<T>, Fault> {
    match text {
        ValueRef::Null => Ok(None),
        text => Ok(Some(serde_json::from_str(text.as_str().map_err(rusqlite::Error::from)?)?)),
    }
}

/// The JSON of members, `None` where there are none.
pub(super) fn members(extra: &JsonObject) -> Option<String> {
    (!extra.is_empty()).then(|| to_json(extra))
}

/// The JSON of what has no keys but strings, so that nothing can fail.
pub(super) fn to_json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// An id: 16 bytes where it is a UUID in its canonical form.
pub(super) struct Id(pub(super) Arc<str>);

impl FromSql for Id {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Blob(bytes) => {
                let uuid = uuid::Uuid::from_slice(bytes).map_err(FromSqlError::other)?;
                let mut buffer = uuid::Uuid::encode_buffer();
                Ok(Self(Arc::from(&*uuid.hyphenated().encode_lower(&mut buffer))))
            }
            other => Ok(Self(Arc::from(other.as_str()?))),
        }
    }
}

/// The same for writing.
pub(super) struct IdRef<'a>(pub(super) &'a str);

impl ToSql for IdRef<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let mut buffer = uuid::Uuid::encode_buffer();
        let canonical = uuid::Uuid::try_parse(self.0)
            .ok()
            .filter(|uuid| uuid.hyphenated().encode_lower(&mut buffer) == self.0);
        Ok(match canonical {
            Some(uuid) => ToSqlOutput::Owned(SqlValue::Blob(uuid.into_bytes().into())),
            None => ToSqlOutput::Borrowed(ValueRef::Text(self.0.as_bytes())),
        })
    }
}

/// A status, or another word that serde knows.
pub(super) struct Name<T>(pub(super) T);

impl<T: for<'de> Deserialize<'de>> FromSql for Name<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let name = StrDeserializer::<serde::de::value::Error>::new(value.as_str()?);
        Ok(Self(T::deserialize(name).map_err(FromSqlError::other)?))
    }
}

/// A time that nothing is sorted by.
pub(super) struct Time(pub(super) Timestamp);

impl FromSql for Time {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let time = match value {
            ValueRef::Integer(nanoseconds) => Timestamp::from_nanosecond(nanoseconds.into()),
            other => other.as_str()?.parse(),
        };
        Ok(Self(time.map_err(FromSqlError::other)?))
    }
}

impl ToSql for Time {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(match i64::try_from(self.0.as_nanosecond()) {
            Ok(nanoseconds) => SqlValue::Integer(nanoseconds),
            Err(_) => SqlValue::Text(self.0.to_string()),
        }))
    }
}

impl FromSql for Content {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Integer(no) => Ok(Self::Kept(no)),
            other => Ok(Self::Inline(Arc::from(other.as_str()?))),
        }
    }
}

impl ToSql for Content {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Inline(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Kept(no) => ToSqlOutput::Owned(SqlValue::Integer(*no)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn canonical_uuids_take_sixteen_bytes_and_all_ids_come_back() {
        let connection = Connection::open_in_memory().unwrap();
        for (id, bytes) in [
            ("67e55044-10b1-426f-9247-bb680e5fe0c8", 16),
            ("67E55044-10b1-426f-9247-bb680e5fe0c8", 36),
            ("67e5504410b1426f9247bb680e5fe0c8", 32),
            ("{67e55044-10b1-426f-9247-bb680e5fe0c8}", 38),
            ("a", 1),
            ("\0\u{e4}", 3),
        ] {
            let (Id(read), length): (Id, i64) = connection
                .query_row("SELECT ?1, length(CAST(?1 AS BLOB))", [IdRef(id)], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .unwrap();
            assert_eq!((&*read, length), (id, bytes));
        }
    }

    proptest! {
        #[test]
        fn times_come_back_to_the_nanosecond(
            second in Timestamp::MIN.as_second()..Timestamp::MAX.as_second(),
            nanosecond in 0..1_000_000_000,
        ) {
            let time = Timestamp::new(second, nanosecond).unwrap();
            let connection = Connection::open_in_memory().unwrap();
            let Time(read) =
                connection.query_row("SELECT ?1", [Time(time)], |row| row.get(0)).unwrap();
            prop_assert_eq!(read, time);
        }
    }
}
