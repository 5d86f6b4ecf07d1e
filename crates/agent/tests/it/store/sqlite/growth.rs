//! What turns cost, and what is shared.

use std::{fs, path::Path, sync::Arc};

use antiphon_agent::{
    Artifact, InvocationContext, Message, Part, SessionSnapshot, SnapshotWriter, SqliteOptions,
    SqliteSessionStore,
};
use serde_json::json;

use super::{first, next, place, read, save};

/// How many bytes of bodies the file holds.
fn stored(path: &Path, table: &str) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = format!("SELECT coalesce(sum(length(body)), 0) FROM {table}");
    connection.query_row(&sql, (), |row| row.get(0)).unwrap()
}

fn size(path: &Path) -> u64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(())).unwrap();
    fs::metadata(path).unwrap().len()
}

#[tokio::test]
async fn a_turn_writes_what_is_new_in_it() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let text = "x".repeat(300);
    let mut row = save(&store, first("s")).await.unwrap();
    let mut sizes = Vec::new();
    for number in 1..=200 {
        let before = stored(&path, "runs");
        row = save(&store, next(&row, number, [&text, &text])).await.unwrap();
        sizes.push(stored(&path, "runs") - before);
    }
    assert!(sizes.iter().all(|size| *size == sizes[0] && *size < 700), "{sizes:?}");
    assert!(size(&path) < 200 * 600 * 3, "{}", size(&path));
    // Also where the conversation was read again, or came from a client that has a copy of it.
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let before = stored(&path, "runs");
    let again = read(&store, &row.snapshot_id).await.unwrap();
    let row = save(&store, next(&again, 201, [&text, &text])).await.unwrap();
    let copy: SessionSnapshot =
        serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
    let row = save(&store, next(&copy, 202, [&text, &text])).await.unwrap();
    assert_eq!(stored(&path, "runs") - before, 2 * sizes[0]);
    // And where nobody has read it before.
    let store = SqliteOptions::new(&path).cache_bytes(0).open().await.unwrap();
    let row = save(&store, next(&row, 203, [&text, &text])).await.unwrap();
    assert_eq!(stored(&path, "runs") - before, 3 * sizes[0]);
    assert_eq!(read(&store, &row.snapshot_id).await, Some(row));
}

#[tokio::test]
async fn forks_and_rewrites_cost_what_is_new_in_them() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let mut rows = vec![save(&store, first("s")).await.unwrap()];
    for number in 1..=50 {
        let row = next(&rows[number - 1], number, ["question", "answer"]);
        rows.push(save(&store, row).await.unwrap());
    }
    let before = stored(&path, "runs");
    let mut forks = Vec::new();
    for (number, parent) in rows.iter().enumerate() {
        let fork = save(&store, next(parent, 100 + number, ["but", "well"])).await.unwrap();
        forks.push(save(&store, next(&fork, 200 + number, ["and", "so"])).await.unwrap());
    }
    assert!(stored(&path, "runs") - before < 51 * 2 * 120);
    // A row whose text is corrected goes on from what it shares with itself.
    let before = stored(&path, "runs");
    let mut corrected = rows[50].clone();
    corrected.state.as_mut().unwrap().messages.replace(99, Message::model("another answer"));
    let corrected = save(&store, corrected).await.unwrap();
    assert!(stored(&path, "runs") - before < 100);
    rows[50] = corrected;

    let store = SqliteSessionStore::open(&path).await.unwrap();
    for row in rows.iter().chain(&forks) {
        assert_eq!(read(&store, &row.snapshot_id).await.as_ref(), Some(row));
    }
}

#[tokio::test]
async fn custom_states_and_artifacts_are_stored_once() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let mut row = first("s");
    let state = row.state.as_mut().unwrap();
    state.custom = Some(json!({ "notes": "n".repeat(10_000) }));
    for number in 0..20 {
        let part = Part::text(format!("{number}").repeat(5_000));
        state.artifacts.push(Arc::new(Artifact::new(format!("doc {number}"), vec![part])));
    }
    let mut row = save(&store, row).await.unwrap();
    let before = stored(&path, "contents");
    let mut rows = vec![row.clone()];
    for number in 1..=20 {
        row = next(&row, number, ["more", "yes"]);
        let artifacts = &mut row.state.as_mut().unwrap().artifacts;
        match number {
            5 => artifacts[0] = Arc::new(Artifact::new("doc 0", vec![Part::text("changed")])),
            6 => artifacts.rotate_left(3),
            7 => drop(artifacts.remove(4)),
            // Equal, and not the same.
            8 => artifacts[1] = Arc::new(Artifact::clone(&artifacts[1])),
            9 => artifacts.clear(),
            _ => {}
        }
        if number == 10 {
            row.state.as_mut().unwrap().artifacts = rows[8].state.clone().unwrap().artifacts;
        }
        row = save(&store, row).await.unwrap();
        rows.push(row.clone());
        if number == 8 {
            assert!(stored(&path, "contents") - before < 100);
        }
    }
    for cache_bytes in [64 << 20, 0] {
        let store = SqliteOptions::new(&path).cache_bytes(cache_bytes).open().await.unwrap();
        for row in &rows {
            assert_eq!(read(&store, &row.snapshot_id).await.as_ref(), Some(row));
        }
    }
}

#[tokio::test]
async fn metadata_is_read_without_what_it_is_of() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let row = save(&store, next(&first("s"), 1, ["one", "1"])).await.unwrap();
    // The messages are gone, which nobody notices who does not read them.
    rusqlite::Connection::open(&path).unwrap().execute("DELETE FROM runs", ()).unwrap();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let cx = InvocationContext::new();
    let store: Arc<dyn antiphon_agent::SessionStore> = Arc::new(store);
    let expected = Some(row.clone().with_state(None));
    assert_eq!(store.read_metadata(&cx, &row.snapshot_id).await.unwrap(), expected);
    assert_eq!(store.read_latest_metadata(&cx, "s").await.unwrap(), expected);
    store.get_snapshot(&cx, &row.snapshot_id).await.unwrap_err();
}

#[tokio::test]
async fn the_file_can_be_looked_through_page_by_page() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let cx = InvocationContext::new();
    let mut rows = Vec::new();
    for session in ["a", "b", "c"] {
        let mut row = save(&store, first(session)).await.unwrap();
        for number in 1..=3 {
            rows.push(row.clone());
            row = save(&store, next(&row, number, ["one", "1"])).await.unwrap();
        }
        rows.push(row);
    }
    let page = store.sessions(&cx, None, 2).await.unwrap();
    let names: Vec<_> = page.iter().map(|session| &*session.session_id).collect();
    assert_eq!(names, ["c", "b"]);
    assert_eq!(page[0].snapshots, 4);
    assert_eq!(page[0].first_created_at, rows[8].created_at);
    assert_eq!(page[0].latest, rows[11].clone().with_state(None));
    let page = store.sessions(&cx, Some("b"), 2).await.unwrap();
    assert_eq!(page.iter().map(|session| &*session.session_id).collect::<Vec<_>>(), ["a"]);
    assert_eq!(store.sessions(&cx, Some("a"), 2).await.unwrap(), []);

    let page = store.snapshots(&cx, "b", None, 3).await.unwrap();
    let ids: Vec<_> = page.iter().map(|summary| summary.snapshot.clone()).collect();
    let expected: Vec<_> = rows[4..7].iter().map(|row| row.clone().with_state(None)).collect();
    assert_eq!(ids, expected);
    assert_eq!((page[2].messages, page[2].artifacts), (Some(4), Some(0)));
    let last = store.snapshots(&cx, "b", Some(&ids[2].snapshot_id), 3).await.unwrap();
    assert_eq!(last.len(), 1);
    assert_eq!(store.snapshots(&cx, "missing", None, 3).await.unwrap(), []);
    assert!(store.snapshots(&cx, "", None, 3).await.is_err());

    let caller = antiphon_agent::Caller::new("x").scope("tenant");
    let tenant = InvocationContext::new().with_caller(caller);
    assert_eq!(store.sessions(&tenant, None, 9).await.unwrap(), []);
    let row = first("a");
    store.save_snapshot(&tenant, None, &|_| Ok(Some(row.clone()))).await.unwrap();
    assert_eq!(store.sessions(&tenant, None, 9).await.unwrap()[0].snapshots, 1);
    assert_eq!(store.scopes().await.unwrap(), ["tenant".into()]);
}
