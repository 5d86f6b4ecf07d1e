//! Reading and writing snapshots. All of this blocks.

use std::{path::Path, sync::Arc, time::Duration};

use super::{
    batch::{Base, Batch},
    cache::{Cache, Known, KnownSession, StoredArtifact},
    layout::{Layout, sync_directory},
    log::{Entry, LockedLog, Log, LogHeader, Written},
    record::{Kind, Place},
    row::{Row, StoredCustom, StoredState},
};
use crate::{
    RuntimeError,
    message::Messages,
    state::{Artifact, SessionSnapshot, SessionState},
};

/// How long a writer waits for those of other processes.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// A store's files and what is known of them.
pub(super) struct Disk {
    pub(super) layout: Layout,
    cache: Cache,
}

/// A snapshot and how it is stored.
pub(super) struct Loaded {
    pub(super) snapshot: SessionSnapshot,
    pub(super) version: u64,
    stored: Option<StoredState>,
}

/// Whether a row is what an entry says.
enum Standing {
    Stands(Box<Row>),
    /// There is no such row of this session.
    Missing,
    /// It was made at another time.
    Moved,
}

impl Disk {
    pub(super) fn open(root: &Path) -> Result<Self, RuntimeError> {
        Ok(Self { layout: Layout::open(root)?, cache: Cache::default() })
    }

    pub(super) fn root(&self) -> &Path {
        self.layout.root()
    }

    /// What is known of a session.
    pub(super) fn session(&self, scope: Option<&str>, session: &str) -> Arc<KnownSession> {
        self.cache.session(scope, session)
    }

    /// A row without its state.
    pub(super) fn row(&self, scope: Option<&str>, id: &str) -> Result<Option<Row>, RuntimeError> {
        Row::read(&self.layout.row(scope, id), id)
    }

    /// A snapshot.
    pub(super) fn snapshot(
        &self,
        scope: Option<&str>,
        id: &str,
    ) -> Result<Option<Loaded>, RuntimeError> {
        self.row(scope, id)?.map(|row| self.load(scope, row)).transpose()
    }

    /// The latest row of a session.
    pub(super) fn latest(
        &self,
        scope: Option<&str>,
        session: &str,
    ) -> Result<Option<Row>, RuntimeError> {
        match Log::open(self.layout.log(scope, session))? {
            Some(mut log) => self.latest_in(&mut log, scope, session, None),
            None => Ok(None),
        }
    }

    /// Reads the state of a row.
    pub(super) fn load(&self, scope: Option<&str>, row: Row) -> Result<Loaded, RuntimeError> {
        let Row { version, row: mut snapshot, state: stored, custom } = row;
        if let Some(stored) = &stored {
            let session = snapshot.session_id.clone().unwrap_or_default();
            let known = self.cache.session(scope, &session);
            let mut log = LazyLog { disk: self, scope, session: &session, log: None };
            snapshot.state = Some(SessionState {
                session_id: stored.session_id.clone(),
                messages: match stored.messages {
                    Some(point) => {
                        let mut messages = messages(&mut log, &known, point.place)?;
                        messages.truncate(point.count);
                        messages
                    }
                    None => Messages::new(),
                },
                custom: match stored.custom {
                    None => None,
                    Some(StoredCustom::Here) => custom,
                    Some(StoredCustom::Log(place)) => Some(log.get()?.read(place, Kind::Custom)?),
                },
                artifacts: match stored.artifacts {
                    Some(list) => artifacts(&mut log, &known, list.place)?
                        .iter()
                        .map(|stored| stored.artifact.clone())
                        .collect(),
                    None => Vec::new(),
                },
                extra: stored.extra.clone(),
            });
        }
        Ok(Loaded { snapshot, version, stored })
    }

    /// Writes a row where it still is as it was `seen`; on the disk when this returns. Gives its
    /// version, or `None` where another write came between.
    pub(super) fn commit(
        &self,
        scope: Option<&str>,
        seen: Option<&Loaded>,
        after: &SessionSnapshot,
    ) -> Result<Option<u64>, RuntimeError> {
        let (id, session) = (&after.snapshot_id, after.session_id.clone().unwrap_or_default());
        let known = self.cache.session(scope, &session);
        let bases = match &after.state {
            Some(_) => self.bases(scope, &session, seen, after, &known),
            None => Vec::new(),
        };
        let (row_path, log_path) = (self.layout.row(scope, id), self.layout.log(scope, &session));
        self.layout.make_directory_of(&row_path)?;
        self.layout.make_directory_of(&log_path)?;

        let mut log = LockedLog::open(&log_path, LOCK_PATIENCE)?;
        let version = self.row(scope, id)?.map(|row| row.version);
        if version != seen.map(|seen| seen.version) {
            return Ok(None);
        }
        let begun = log.len() > 0;
        let mut batch = Batch::new(&mut log, &known)?;
        if !begun {
            sync_directory(log_path.parent())?;
            batch.header(&LogHeader { session: session.clone(), scope: scope.map(Arc::from) })?;
        }
        let state = after.state.as_ref().map(|state| batch.state(state, &bases)).transpose()?;
        let (state, custom) = state.unzip();
        let row = Row {
            version: version.unwrap_or(0) + 1,
            row: after.to_metadata(),
            state,
            custom: custom.flatten(),
        };
        // Before anything is written, since it may be refused.
        let text = row.encode()?;

        let entry = Entry { created_at: after.created_at, id: id.clone() };
        let moved = seen.is_some_and(|seen| seen.snapshot.created_at != after.created_at);
        let mut latest = None;
        if seen.is_none() || moved || !batch.is_empty() {
            let before = self.latest_before(batch.log(), scope, &session, moved.then_some(id))?;
            batch.append(&Written { row: entry.clone(), latest: before.clone() })?;
            latest = before.into_iter().chain([entry]).max();
        }
        let aside = self.layout.write_aside(&text)?;
        match seen {
            Some(_) => aside.replace(&row_path)?,
            None if aside.claim(&row_path)? => {}
            // A session of another name has a row of this id since.
            None => return Ok(None),
        }
        if latest.is_some() {
            known.known().latest = Some((log.len(), latest));
        }
        Ok(Some(row.version))
    }

    /// The states that the state of `after` may have something in common with.
    fn bases(
        &self,
        scope: Option<&str>,
        session: &str,
        seen: Option<&Loaded>,
        after: &SessionSnapshot,
        known: &KnownSession,
    ) -> Vec<Base> {
        let parent = || {
            let row = self.row(scope, after.parent_id.as_deref().filter(|id| !id.is_empty())?);
            row.ok()??.state_in(session)
        };
        let stored = [seen.and_then(|seen| seen.stored.clone()), parent()];
        let mut log = LazyLog { disk: self, scope, session, log: None };
        let mut bases = Vec::new();
        // What cannot be read any more is stored again.
        for stored in stored.into_iter().flatten() {
            bases.push(Base {
                messages: stored.messages.and_then(|point| {
                    let messages = messages(&mut log, known, point.place).ok()?;
                    Some((point.place, messages))
                }),
                artifacts: stored.artifacts.and_then(|list| {
                    Some((list.place, artifacts(&mut log, known, list.place).ok()?))
                }),
                custom: match stored.custom {
                    Some(StoredCustom::Log(place)) => Some(place),
                    _ => None,
                },
            });
        }
        bases
    }

    /// The latest row of the session as its next writer finds it. Not that of `but`, which is about
    /// to move.
    fn latest_before(
        &self,
        log: &mut LockedLog,
        scope: Option<&str>,
        session: &str,
        but: Option<&Arc<str>>,
    ) -> Result<Option<Entry>, RuntimeError> {
        if but.is_none() {
            let known = self.cache.session(scope, session);
            let latest = known.known().latest.clone();
            match latest {
                Some((len, latest)) if len == log.len() => return Ok(latest),
                _ => {}
            }
        }
        let latest = self.latest_in(log.log(), scope, session, but)?;
        Ok(latest.map(|row| row.entry()))
    }

    fn latest_in(
        &self,
        log: &mut Log,
        scope: Option<&str>,
        session: &str,
        but: Option<&Arc<str>>,
    ) -> Result<Option<Row>, RuntimeError> {
        let Some(last) = log.last_written()? else { return Ok(None) };
        if but.is_none() {
            let mut candidates: Vec<_> = last.latest.into_iter().chain([last.row]).collect();
            candidates.sort_unstable();
            while let Some(entry) = candidates.pop() {
                match self.standing(scope, session, &entry)? {
                    Standing::Stands(row) => return Ok(Some(*row)),
                    Standing::Missing => {}
                    Standing::Moved => break,
                }
            }
        }
        // A row was moved, or its writer did not come to write it.
        let mut entries: Vec<_> = log.scan()?.into_iter().map(|written| written.row).collect();
        entries.sort_unstable();
        entries.dedup();
        while let Some(entry) = entries.pop() {
            if but.is_some_and(|but| *but == entry.id) {
                continue;
            }
            if let Standing::Stands(row) = self.standing(scope, session, &entry)? {
                return Ok(Some(*row));
            }
        }
        Ok(None)
    }

    fn standing(
        &self,
        scope: Option<&str>,
        session: &str,
        entry: &Entry,
    ) -> Result<Standing, RuntimeError> {
        Ok(match self.row(scope, &entry.id)? {
            Some(row) if row.row.session_id.as_deref() != Some(session) => Standing::Missing,
            Some(row) if row.row.created_at != entry.created_at => Standing::Moved,
            Some(row) => Standing::Stands(Box::new(row)),
            None => Standing::Missing,
        })
    }
}

impl Row {
    fn entry(&self) -> Entry {
        Entry { created_at: self.row.created_at, id: self.row.snapshot_id.clone() }
    }

    /// Its state, where it is of this session.
    fn state_in(self, session: &str) -> Option<StoredState> {
        self.state.filter(|_| self.row.session_id.as_deref() == Some(session))
    }
}

/// A log that is opened once it is needed.
struct LazyLog<'a> {
    disk: &'a Disk,
    scope: Option<&'a str>,
    session: &'a str,
    log: Option<Log>,
}

impl LazyLog<'_> {
    fn get(&mut self) -> Result<&mut Log, RuntimeError> {
        let log = match self.log.take() {
            Some(log) => log,
            None => {
                let path = self.disk.layout.log(self.scope, self.session);
                let missing = || super::failure::corrupt(&path, "it is missing");
                Log::open(path.clone())?.ok_or_else(missing)?
            }
        };
        Ok(self.log.insert(log))
    }
}

/// All messages up to the last in the record at `place`.
fn messages(
    log: &mut LazyLog<'_>,
    known: &KnownSession,
    place: Place,
) -> Result<Messages, RuntimeError> {
    let found = known.known().messages(place);
    if let Some(messages) = found {
        return Ok(messages);
    }
    let messages = log.get()?.messages(place, |place| known.known().messages(place))?;
    known.known().keep_messages(place, messages.clone());
    Ok(messages)
}

fn artifacts(
    log: &mut LazyLog<'_>,
    known: &KnownSession,
    place: Place,
) -> Result<Arc<[StoredArtifact]>, RuntimeError> {
    let found = known.known().artifacts(place);
    if let Some(list) = found {
        return Ok(list);
    }
    let log = log.get()?;
    let places: Vec<Place> = log.read(place, Kind::Artifacts)?;
    // Those of other lists are the same ones.
    let shared = |known: &Known, place: Place| {
        let mut all = known.artifact_lists().flat_map(|(_, list)| list.iter());
        all.find(|stored| stored.place == place).map(|stored| stored.artifact.clone())
    };
    let mut list = Vec::with_capacity(places.len());
    for place in places {
        let artifact = shared(&known.known(), place);
        let artifact = match artifact {
            Some(artifact) => artifact,
            None => Arc::new(log.read::<Artifact>(place, Kind::Artifact)?),
        };
        list.push(StoredArtifact { artifact, place });
    }
    let list: Arc<[StoredArtifact]> = list.into();
    known.known().keep_artifacts(place, list.clone());
    Ok(list)
}
