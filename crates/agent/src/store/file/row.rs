//! Rows: what a snapshot is beside its messages, artifacts and larger custom states, and where
//! those are.

use std::{fs, io, path::Path, sync::Arc};

use antiphon_types::JsonObject;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    failure::{corrupt, failed},
    record::{self, Kind, Place},
};
use crate::{RuntimeError, state::SessionSnapshot};

/// The longest custom state that is kept in the row, in bytes. A file takes a block of 4 KiB anyway.
pub(super) const MAX_CUSTOM_HERE: usize = 2048;

/// A row as it is in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    /// How often it was written. Whoever writes it must have seen the last one.
    pub(super) version: u64,
    /// All but the state.
    pub(super) row: SessionSnapshot,
    pub(super) state: Option<StoredState>,
    /// The custom state, where it is kept here: a record of its own, so that it may be as deep as
    /// JSON may be.
    #[serde(skip)]
    pub(super) custom: Option<Value>,
}

/// A state by the places of its parts in the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoredState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session_id: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) messages: Option<Point>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) artifacts: Option<Point>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) custom: Option<StoredCustom>,
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    pub(super) extra: JsonObject,
}

/// The first items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Point {
    /// The record that holds the last of them.
    pub(super) place: Place,
    pub(super) count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum StoredCustom {
    /// In the file of the row.
    Here,
    /// In the log.
    Log(Place),
}

impl Row {
    /// Reads a row; `None` where there is none.
    pub(super) fn read(path: &Path, id: &str) -> Result<Option<Self>, RuntimeError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path, "read", &error)),
        };
        let row = Self::decode(&text).map_err(|reason| corrupt(path, reason))?;
        if *row.row.snapshot_id != *id {
            return Err(corrupt(path, format_args!("it holds {:?}", row.row.snapshot_id)));
        }
        Ok(Some(row))
    }

    /// The bytes of its file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, RuntimeError> {
        let mut text = Vec::with_capacity(1024);
        let encoded = record::encode(&mut text, Kind::Row, self).and_then(|_| match &self.custom {
            Some(custom) => record::encode(&mut text, Kind::Custom, custom).map(drop),
            None => Ok(()),
        });
        encoded.map_err(|error| unreadable(&error))?;
        // What cannot be read back must not be written: keys that come twice, values too deep.
        match Self::decode(&text) {
            Ok(row) if row == *self => Ok(text),
            Ok(_) => Err(unreadable(&"it reads back otherwise")),
            Err(reason) => Err(unreadable(&reason)),
        }
    }

    fn decode(text: &[u8]) -> Result<Self, String> {
        let mut lines = text.split_inclusive(|byte| *byte == b'\n');
        let mut next = || lines.next().unwrap_or_default();
        let mut row: Self =
            record::decode(next(), Kind::Row).map_err(|damaged| damaged.to_string())?;
        let here = |state: &StoredState| state.custom == Some(StoredCustom::Here);
        if row.state.as_ref().is_some_and(here) {
            let custom = record::decode(next(), Kind::Custom);
            row.custom = Some(custom.map_err(|damaged| damaged.to_string())?);
        }
        if !next().is_empty() {
            return Err("it is longer than a row".to_owned());
        }
        Ok(row)
    }
}

/// A snapshot that JSON cannot hold.
pub(super) fn unreadable(reason: &dyn std::fmt::Display) -> RuntimeError {
    RuntimeError::InvalidArgument(format!("the snapshot could not be read back: {reason}"))
}
