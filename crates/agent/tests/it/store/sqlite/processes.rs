//! Several processes with one file.

use std::{
    path::Path,
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use antiphon_agent::{
    InvocationContext, Message, SessionSnapshot, SnapshotStatus, SnapshotSubscriber,
    SnapshotWriter, SqliteSessionStore,
};
use futures_util::StreamExt;

use super::{first, next, place, read, save, turn};

const APPENDED: usize = 20;

/// Starts this program again, with one test that is [`the_other_process`].
fn other_process(path: &Path, task: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["store::sqlite::processes::the_other_process", "--exact"])
        .env("STORE_PATH", path)
        .env("STORE_TASK", task)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn the_other_process() {
    let (Some(path), Ok(task)) = (std::env::var_os("STORE_PATH"), std::env::var("STORE_TASK"))
    else {
        return; // Nobody started it as such.
    };
    let store = SqliteSessionStore::open(path).await.unwrap();
    match task.as_str() {
        "abort" => {
            let abort = |row: Option<&SessionSnapshot>| {
                let status = Some(SnapshotStatus::Aborting);
                Ok(Some(SessionSnapshot { status, ..row.unwrap().clone() }))
            };
            store.save_snapshot(&InvocationContext::new(), Some("work"), &abort).await.unwrap();
        }
        name => write(&store, name).await,
    }
}

/// Appends to a row that others append to as well, and has a session of its own.
async fn write(store: &SqliteSessionStore, name: &str) {
    let cx = InvocationContext::new();
    let mut row = save(store, first(name)).await.unwrap();
    for number in 1..=APPENDED {
        let append = |row: Option<&SessionSnapshot>| {
            let mut row = row.unwrap().clone();
            let text = format!("{name} {number}");
            row.state.as_mut().unwrap().messages.push(Message::user(text));
            Ok(Some(row))
        };
        store.save_snapshot(&cx, Some("shared"), &append).await.unwrap().unwrap();
        row = save(store, next(&row, number, ["question", name])).await.unwrap();
    }
}

#[tokio::test]
async fn what_processes_write_at_the_same_time_is_all_there() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let mut shared = first("shared");
    shared.snapshot_id = "shared".into();
    save(&store, shared).await.unwrap();

    let children = ["left", "right"].map(|name| other_process(&path, name));
    write(&store, "own").await;
    for mut child in children {
        let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
        assert!(ended.success());
    }

    let row = read(&store, "shared").await.unwrap();
    let mut texts: Vec<_> = row.state.unwrap().messages.iter().map(|m| m.joined_text()).collect();
    // Each in its own order, and each once.
    for name in ["own", "left", "right"] {
        let of_one: Vec<_> = texts.extract_if(.., |text| text.starts_with(name)).collect();
        let expected: Vec<_> = (1..=APPENDED).map(|number| format!("{name} {number}")).collect();
        assert_eq!(of_one, expected);
        let session = store.snapshots(&InvocationContext::new(), name, None, 100).await.unwrap();
        let messages: Vec<_> = session.iter().filter_map(|summary| summary.messages).collect();
        assert_eq!(messages, (0..=APPENDED).map(|number| 2 * number).collect::<Vec<_>>());
        let last = read(&store, &session[APPENDED].snapshot.snapshot_id).await.unwrap();
        assert!(
            last.state
                .unwrap()
                .messages
                .iter()
                .skip(1)
                .step_by(2)
                .all(|m| { m.joined_text() == name })
        );
    }
    assert_eq!(texts, Vec::<String>::new());
}

#[tokio::test]
async fn what_another_process_does_is_told() {
    let (_directory, path) = place();
    let store = Arc::new(SqliteSessionStore::open(&path).await.unwrap());
    let mut row = turn("s", 0);
    row.snapshot_id = "work".into();
    row.status = Some(SnapshotStatus::Pending);
    save(&store, row).await.unwrap();
    let mut statuses = store.on_snapshot_status_change(&InvocationContext::new(), "work");
    assert_eq!(statuses.next().await, Some(SnapshotStatus::Pending));
    let mut child = other_process(&path, "abort");
    let told = async { while statuses.next().await.unwrap() != SnapshotStatus::Aborting {} };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("it was not told");
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    assert!(ended.success());
}
