//! The store in a SQLite file.

mod bounds;
mod files;
mod growth;
mod model;
mod processes;

use std::{path::PathBuf, sync::Arc};

use antiphon_agent::{
    InvocationContext, Message, RuntimeError, SessionSnapshot, SessionState, SnapshotReader,
    SnapshotWriter, SqliteOptions, SqliteSessionStore, StoreError,
    store::conformance::{self, Stores},
};
use jiff::{SignedDuration, Timestamp};

/// A place for a file, which is gone with the first of the two.
fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    (directory, path)
}

/// The row of a turn, so many milliseconds after the first.
fn turn(session: &str, number: usize) -> SessionSnapshot {
    const START: Timestamp = Timestamp::constant(1_700_000_000, 0);
    SessionSnapshot::new("", session, START + SignedDuration::from_millis(number as i64))
}

/// Goes on from `parent` with what a user and a model say.
fn next(parent: &SessionSnapshot, number: usize, texts: [&str; 2]) -> SessionSnapshot {
    let mut state = parent.state.clone().unwrap_or_default();
    state.messages.push(Message::user(texts[0]));
    state.messages.push(Message::model(texts[1]));
    let session = parent.session_id.as_deref().unwrap();
    SessionSnapshot {
        parent_id: Some(parent.snapshot_id.clone()),
        state: Some(state),
        ..turn(session, number)
    }
}

fn first(session: &str) -> SessionSnapshot {
    let state = SessionState { session_id: Some(session.into()), ..SessionState::default() };
    SessionSnapshot { state: Some(state), ..turn(session, 0) }
}

async fn save(
    store: &SqliteSessionStore,
    row: SessionSnapshot,
) -> Result<SessionSnapshot, RuntimeError> {
    let id = (!row.snapshot_id.is_empty()).then(|| row.snapshot_id.clone());
    let cx = InvocationContext::new();
    let written = store.save_snapshot(&cx, id.as_deref(), &|_| Ok(Some(row.clone()))).await?;
    Ok(written.unwrap())
}

async fn read(store: &SqliteSessionStore, id: &str) -> Option<SessionSnapshot> {
    store.get_snapshot(&InvocationContext::new(), id).await.unwrap()
}

/// Why the store refused.
fn refusal<T>(result: Result<T, RuntimeError>) -> StoreError {
    match result {
        Err(RuntimeError::Store(error)) => error,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

async fn stores(path: &PathBuf) -> Stores {
    let open = async || Arc::new(SqliteSessionStore::open(path).await.unwrap());
    Stores::new(open().await).second(open().await)
}

fn assert_all_passed(report: &conformance::Report) {
    report.assert_passed();
    assert_eq!(report.skipped(), Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_every_promise_of_a_store() {
    let (_directory, path) = place();
    assert_all_passed(&conformance::run(&|| stores(&path)).await);
}

#[tokio::test(start_paused = true)]
async fn keeps_every_promise_on_a_paused_clock() {
    let (_directory, path) = place();
    assert_all_passed(&conformance::run(&|| stores(&path)).await);
}

/// Nothing is remembered, so that all is read from the file.
#[tokio::test]
async fn keeps_every_promise_with_a_bad_memory() {
    let (_directory, path) = place();
    let open = async || {
        Arc::new(SqliteOptions::new(&path).cache_bytes(0).readers(1).open().await.unwrap())
    };
    let factory = || async { Stores::new(open().await).second(open().await) };
    assert_all_passed(&conformance::run(&factory).await);
}
