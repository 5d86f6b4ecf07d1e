//! Looking through a store.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    disk::Disk,
    failure::failed,
    log::{Entry, Log},
};
use crate::{
    RuntimeError,
    store::{SessionSummary, SnapshotSummary},
};

impl Disk {
    /// The tenants that have written something, sorted by name.
    pub(super) fn scopes(&self) -> Result<Vec<Arc<str>>, RuntimeError> {
        let mut scopes = Vec::new();
        for tenant in entries(&self.layout.tenants())? {
            // The name of a directory may be short for that of the tenant.
            for log in logs(&tenant.join("sessions"))? {
                let begin = Log::open(log)?.map(|mut log| log.begin()).transpose()?.flatten();
                if let Some(scope) = begin.and_then(|(header, _)| header.scope) {
                    scopes.push(scope);
                    break;
                }
            }
        }
        scopes.sort_unstable();
        Ok(scopes)
    }

    /// The sessions of a tenant, those begun last first.
    pub(super) fn sessions(
        &self,
        scope: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, RuntimeError> {
        let mut sessions = Vec::new();
        for path in logs(&self.layout.sessions(scope))? {
            let Some(mut log) = Log::open(path)? else { continue };
            if let Some((header, first)) = log.begin()? {
                sessions.push((first.created_at, header.session));
            }
        }
        sessions.sort_unstable_by(|a, b| b.cmp(a));
        let mut summaries = Vec::new();
        let at = sessions.iter().position(|(_, session)| Some(&**session) == after);
        for (_, session) in sessions.into_iter().skip(first_of_page(after, at)) {
            if summaries.len() == limit {
                break;
            }
            summaries.extend(self.summary(scope, session)?);
        }
        Ok(summaries)
    }

    fn summary(
        &self,
        scope: Option<&str>,
        session_id: Arc<str>,
    ) -> Result<Option<SessionSummary>, RuntimeError> {
        let Some(latest) = self.latest(scope, &session_id)? else { return Ok(None) };
        let written = self.written(scope, &session_id)?;
        let there = written.iter().filter(|entry| self.layout.row(scope, &entry.id).exists());
        let first = written.iter().map(|entry| entry.created_at).min();
        Ok(Some(SessionSummary {
            session_id,
            snapshots: there.count() as u64,
            first_created_at: first.unwrap_or(latest.row.created_at),
            latest: latest.row,
        }))
    }

    /// The snapshots of a session in the order in which they were first written.
    pub(super) fn snapshots(
        &self,
        scope: Option<&str>,
        session: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<SnapshotSummary>, RuntimeError> {
        let written = self.written(scope, session)?;
        let mut summaries = Vec::new();
        let at = written.iter().position(|entry| Some(&*entry.id) == after);
        for entry in written.into_iter().skip(first_of_page(after, at)) {
            if summaries.len() == limit {
                break;
            }
            // Its writer may not have come to write it, or another session may have the id.
            let Some(row) = self.row(scope, &entry.id)? else { continue };
            if row.row.session_id.as_deref() != Some(session) {
                continue;
            }
            let state = row.state.as_ref();
            summaries.push(SnapshotSummary {
                messages: state.map(|state| state.messages.map_or(0, |list| list.count)),
                artifacts: state.map(|state| state.artifacts.map_or(0, |list| list.count)),
                snapshot: row.row,
            });
        }
        Ok(summaries)
    }

    /// Each row of a session once, as it was first written.
    fn written(&self, scope: Option<&str>, session: &str) -> Result<Vec<Entry>, RuntimeError> {
        let Some(mut log) = Log::open(self.layout.log(scope, session))? else {
            return Ok(Vec::new());
        };
        let mut known = HashSet::new();
        let entries = log.scan()?.into_iter().map(|written| written.row);
        Ok(entries.filter(|entry| known.insert(entry.id.clone())).collect())
    }
}

/// The logs in a directory, which may hold what others put there.
fn logs(directory: &Path) -> Result<impl Iterator<Item = PathBuf>, RuntimeError> {
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    Ok(entries(directory)?.into_iter().filter(is_log))
}

/// Where a page begins that comes `after` something, which was found at `at`.
fn first_of_page(after: Option<&str>, at: Option<usize>) -> usize {
    match (after, at) {
        (None, _) => 0,
        (Some(_), Some(at)) => at + 1,
        // Nothing comes after what there is not.
        (Some(_), None) => usize::MAX,
    }
}

/// What is in a directory, which may not be there.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, RuntimeError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(directory, "read", &error)),
    };
    let path = |entry: io::Result<fs::DirEntry>| Ok(entry?.path());
    entries.map(path).collect::<io::Result<_>>().map_err(|e| failed(directory, "read", &e))
}
