//! What one write appends to a log: what is new in a state, and where all of it is.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{
    cache::{KnownSession, StoredArtifact},
    log::{LockedLog, LogHeader, NewBlock, Written},
    record::{self, Kind, Place},
    row::{MAX_CUSTOM_HERE, Point, StoredCustom, StoredState, unreadable},
};
use crate::{
    RuntimeError,
    message::{Message, Messages},
    state::{Artifact, SessionState},
    store::shared_items,
};

/// A state that another may have something in common with.
pub(super) struct Base {
    pub(super) messages: Option<(Place, Messages)>,
    pub(super) artifacts: Option<(Place, Arc<[StoredArtifact]>)>,
    pub(super) custom: Option<Place>,
}

/// Records that are to be appended.
pub(super) struct Batch<'a> {
    log: &'a mut LockedLog,
    known: &'a KnownSession,
    /// Where the first byte goes.
    at: u64,
    bytes: Vec<u8>,
    records: usize,
    /// What is known once the records are written.
    learned: Vec<Learned>,
}

enum Learned {
    Messages(Place, Messages),
    Artifacts(Place, Arc<[StoredArtifact]>),
    Value(Vec<u8>, Place),
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        log: &'a mut LockedLog,
        known: &'a KnownSession,
    ) -> Result<Self, RuntimeError> {
        let bytes = log.line_break()?.to_vec();
        Ok(Self { at: log.len(), log, known, bytes, records: 0, learned: Vec::new() })
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(super) fn log(&mut self) -> &mut LockedLog {
        self.log
    }

    pub(super) fn header(&mut self, header: &LogHeader) -> Result<(), RuntimeError> {
        self.push(Kind::Header, header).map(drop)
    }

    /// Adds what none of `bases` has of a state. Also gives the custom state where it is to be kept
    /// in the row.
    pub(super) fn state(
        &mut self,
        state: &SessionState,
        bases: &[Base],
    ) -> Result<(StoredState, Option<Value>), RuntimeError> {
        let custom = state.custom.as_ref().map(|custom| self.custom(custom, bases)).transpose()?;
        let stored = StoredState {
            session_id: state.session_id.clone(),
            messages: self.messages(&state.messages, bases)?,
            artifacts: self.artifacts(&state.artifacts, bases)?,
            custom,
            extra: state.extra.clone(),
        };
        let here = state.custom.as_ref().filter(|_| custom == Some(StoredCustom::Here));
        Ok((stored, here.cloned()))
    }

    /// Adds a row that is about to be written, and brings all to the disk.
    pub(super) fn append(mut self, written: &Written) -> Result<(), RuntimeError> {
        self.push(Kind::Written, written)?;
        self.log.append(&self.bytes)?;
        let mut known = self.known.known();
        for learned in self.learned {
            match learned {
                Learned::Messages(place, messages) => known.keep_messages(place, messages),
                Learned::Artifacts(place, list) => known.keep_artifacts(place, list),
                Learned::Value(line, place) => known.keep_value(&line, place),
            }
        }
        Ok(())
    }

    fn messages(
        &mut self,
        messages: &Messages,
        bases: &[Base],
    ) -> Result<Option<Point>, RuntimeError> {
        if messages.is_empty() {
            return Ok(None);
        }
        let (before, start) = match self.base_of(messages, bases) {
            Some((place, shared)) if shared == messages.len() => {
                return Ok(Some(Point { place, count: shared }));
            }
            Some((place, shared)) => (Some(place), shared),
            None => (None, 0),
        };
        let items: Vec<Arc<Message>> = messages.range(start).cloned().collect();
        let block = NewBlock { before, start, items: &items };
        let (place, line) = self.push(Kind::Messages, &block)?;
        if !block.is(line) {
            return Err(unreadable(&"a message reads back otherwise"));
        }
        self.learned.push(Learned::Messages(place, messages.clone()));
        Ok(Some(Point { place, count: messages.len() }))
    }

    /// The list with which `messages` has most in common, and how much.
    fn base_of(&self, messages: &Messages, bases: &[Base]) -> Option<(Place, usize)> {
        let known = self.known.known().base_of(messages);
        let candidates = bases.iter().filter_map(|base| base.messages.clone()).chain(known);
        let (place, list) = candidates.max_by_key(|(_, list)| messages.shared_prefix(list))?;
        let shared = shared_items(&list, messages);
        (shared > 0).then_some((place, shared))
    }

    fn custom(&mut self, custom: &Value, bases: &[Base]) -> Result<StoredCustom, RuntimeError> {
        let mut line = Vec::new();
        record::encode(&mut line, Kind::Custom, custom).map_err(|error| unreadable(&error))?;
        if line.len() <= MAX_CUSTOM_HERE {
            return Ok(StoredCustom::Here);
        }
        let like = bases.iter().filter_map(|base| base.custom).collect();
        if let Some(place) = self.place_of(&line, like)? {
            return Ok(StoredCustom::Log(place));
        }
        match record::decode::<Value>(&line, Kind::Custom) {
            Ok(back) if back == *custom => Ok(StoredCustom::Log(self.push_value(line))),
            Ok(_) => Err(unreadable(&"the custom state reads back otherwise")),
            Err(damaged) => Err(unreadable(&damaged)),
        }
    }

    fn artifacts(
        &mut self,
        artifacts: &[Arc<Artifact>],
        bases: &[Base],
    ) -> Result<Option<Point>, RuntimeError> {
        if artifacts.is_empty() {
            return Ok(None);
        }
        let mut lists: Vec<_> = bases.iter().filter_map(|base| base.artifacts.clone()).collect();
        lists.extend(self.known.known().artifact_lists().cloned());
        let mut stored = Vec::with_capacity(artifacts.len());
        for (index, artifact) in artifacts.iter().enumerate() {
            let mut same_place = lists.iter().filter_map(|(_, list)| list.get(index));
            let same = same_place
                .find(|stored| Arc::ptr_eq(&stored.artifact, artifact))
                .or_else(|| {
                    let mut all = lists.iter().flat_map(|(_, list)| list.iter());
                    all.find(|stored| Arc::ptr_eq(&stored.artifact, artifact))
                })
                .or_else(|| {
                    let mut same_place = lists.iter().filter_map(|(_, list)| list.get(index));
                    same_place.find(|stored| stored.artifact == *artifact)
                });
            let place = match same {
                Some(stored) => stored.place,
                None => self.artifact(artifact)?,
            };
            stored.push(StoredArtifact { artifact: artifact.clone(), place });
        }
        let same_list = lists.iter().find(|(_, list)| {
            let pairs = || list.iter().zip(&stored);
            list.len() == stored.len() && pairs().all(|(old, new)| old.place == new.place)
        });
        let count = stored.len();
        if let Some((place, _)) = same_list {
            return Ok(Some(Point { place: *place, count }));
        }
        let places: Vec<Place> = stored.iter().map(|stored| stored.place).collect();
        let (place, _) = self.push(Kind::Artifacts, &places)?;
        self.learned.push(Learned::Artifacts(place, stored.into()));
        Ok(Some(Point { place, count }))
    }

    fn artifact(&mut self, artifact: &Arc<Artifact>) -> Result<Place, RuntimeError> {
        let mut line = Vec::new();
        record::encode(&mut line, Kind::Artifact, artifact).map_err(|error| unreadable(&error))?;
        if let Some(place) = self.place_of(&line, Vec::new())? {
            return Ok(place);
        }
        match record::decode::<Artifact>(&line, Kind::Artifact) {
            Ok(back) if back == **artifact => Ok(self.push_value(line)),
            Ok(_) => Err(unreadable(&"an artifact reads back otherwise")),
            Err(damaged) => Err(unreadable(&damaged)),
        }
    }

    /// Where the record is already, be it at one of the places `like`.
    fn place_of(&mut self, line: &[u8], like: Vec<Place>) -> Result<Option<Place>, RuntimeError> {
        let known = self.known.known().values_like(line);
        for place in like.into_iter().chain(known) {
            if self.log.log().holds(place, line)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    fn push_value(&mut self, line: Vec<u8>) -> Place {
        let place = Place { at: self.next(), len: line.len() as u64 };
        self.bytes.extend_from_slice(&line);
        self.records += 1;
        self.learned.push(Learned::Value(line, place));
        place
    }

    /// Adds a record. Returns where it will be, and its bytes.
    fn push(
        &mut self,
        kind: Kind,
        content: &impl Serialize,
    ) -> Result<(Place, &[u8]), RuntimeError> {
        let at = self.next();
        let range =
            record::encode(&mut self.bytes, kind, content).map_err(|error| unreadable(&error))?;
        self.records += 1;
        Ok((Place { at, len: range.len() as u64 }, &self.bytes[range]))
    }

    /// Where the next record goes.
    fn next(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}
