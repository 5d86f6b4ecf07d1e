//! Time, room, and what is given up.

use std::{
    future::Future,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    task::Poll,
    time::Duration,
};

use antiphon_agent::{
    InvocationContext, RuntimeError, SessionSnapshot, SnapshotReader, SnapshotStatus,
    SnapshotSubscriber, SnapshotWriter, SqliteOptions, SqliteSessionStore, StoreErrorKind,
    types::Status,
};
use futures_util::{FutureExt, StreamExt, future::join_all};
use tokio_util::sync::CancellationToken;

use super::{first, next, place, read, refusal, save, turn};

/// Keeps everybody else from writing until it is dropped.
fn locked(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_write_at_once() {
    let (_directory, path) = place();
    let store = SqliteOptions::new(&path).queue(8).open().await.unwrap();
    let sessions = (0..100).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut row = save(&store, first(&format!("session {number}"))).await.unwrap();
            for turn in 1..=3 {
                row = save(&store, next(&row, turn, ["question", "answer"])).await.unwrap();
            }
            row
        })
    });
    for row in join_all(sessions).await {
        let row = row.unwrap();
        assert_eq!(read(&store, &row.snapshot_id).await, Some(row));
    }
    let all = store.sessions(&InvocationContext::new(), None, 1000).await.unwrap();
    assert_eq!(all.iter().map(|session| session.snapshots).collect::<Vec<_>>(), [4; 100]);
}

#[tokio::test]
async fn a_file_that_others_keep_locked_is_a_typed_error() {
    let (_directory, path) = place();
    let options = SqliteOptions::new(&path).deadline(Duration::from_millis(200));
    let store = options.open().await.unwrap();
    let row = save(&store, first("s")).await.unwrap();
    let lock = locked(&path);
    let writes = join_all((0..3).map(|number| save(&store, turn("s", number)))).await;
    for write in writes {
        let error = refusal(write);
        assert_eq!((error.kind, error.status()), (StoreErrorKind::Busy, Status::Unavailable));
    }
    // Who reads does not wait for who writes.
    assert_eq!(read(&store, &row.snapshot_id).await.as_ref(), Some(&row));
    drop(lock);
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let row = save(&store, next(&row, 1, ["one", "1"])).await.unwrap();
    assert_eq!(read(&store, &row.snapshot_id).await, Some(row));
}

#[tokio::test]
async fn a_call_that_ended_ends_its_write() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let row = save(&store, first("s")).await.unwrap();
    let change = |cx: InvocationContext| {
        let (store, row) = (store.clone(), next(&row, 1, ["one", "1"]));
        async move { store.save_snapshot(&cx, Some("late"), &|_| Ok(Some(row.clone()))).await }
    };
    let cancelled = CancellationToken::new();
    let over = InvocationContext::new().with_cancellation(cancelled.clone());
    let lock = locked(&path);
    let write = change(over.clone());
    let cancel = async {
        tokio::task::yield_now().await;
        cancelled.cancel();
    };
    let (written, ()) = futures_util::future::join(write, cancel).await;
    assert!(matches!(written, Err(RuntimeError::Cancelled(_))));
    let soon = tokio::time::Instant::now() + Duration::from_millis(20);
    let written = change(InvocationContext::new().with_deadline(soon)).await;
    assert!(matches!(written, Err(RuntimeError::DeadlineExceeded(_))));
    drop(lock);
    let read = store.get_snapshot(&over, "late").await;
    assert!(matches!(read, Err(RuntimeError::Cancelled(_))));
    // It is there as a whole or not at all, and others go on.
    let other = save(&store, turn("s", 2)).await.unwrap();
    assert_eq!(super::read(&store, &other.snapshot_id).await, Some(other));
    if let Some(late) = super::read(&store, "late").await {
        assert_eq!(late.state.unwrap().messages.len(), 2);
    }
}

#[tokio::test]
async fn writes_that_are_dropped_at_any_moment_are_whole_or_absent() {
    let (_directory, path) = place();
    let store = SqliteOptions::new(&path).queue(2).open().await.unwrap();
    let parent = save(&store, first("s")).await.unwrap();
    for polls in 0..12 {
        let mut row = next(&parent, polls, ["question", "answer"]);
        row.snapshot_id = format!("row {polls}").into();
        {
            let mut write = Box::pin(save(&store, row.clone()));
            for _ in 0..polls {
                let poll = std::future::poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await;
                if poll.is_ready() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        // What comes after finds the writer free.
        save(&store, turn("s", polls)).await.unwrap();
        if let Some(written) = read(&store, &row.snapshot_id).await {
            row.status = Some(SnapshotStatus::Completed);
            assert_eq!(written, row);
        }
    }
}

#[tokio::test]
async fn an_update_is_asked_again_for_what_others_left_but_not_for_ever() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let row = save(&store, first("s")).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    let other = std::sync::Mutex::new(other);
    let asked = AtomicU32::new(0);
    let meddle = |times: u32| {
        let (asked, other) = (&asked, &other);
        move |row: Option<&SessionSnapshot>| {
            if asked.fetch_add(1, Ordering::Relaxed) < times {
                let sql = "UPDATE snapshots SET version = version + 1, finish_reason = 'stop'";
                other.lock().unwrap().execute(sql, ()).unwrap();
            }
            Ok(row.cloned())
        }
    };
    let cx = InvocationContext::new();
    let id = Some(&*row.snapshot_id);
    let written = store.save_snapshot(&cx, id, &meddle(3)).await.unwrap().unwrap();
    assert_eq!(asked.swap(0, Ordering::Relaxed), 4);
    assert!(written.finish_reason.is_some());
    let error = refusal(store.save_snapshot(&cx, id, &meddle(u32::MAX)).await);
    assert_eq!((error.kind, error.status()), (StoreErrorKind::Contended, Status::Aborted));
}

#[tokio::test]
async fn no_task_is_left_when_nobody_is_subscribed() {
    let (_directory, path) = place();
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let options = SqliteOptions::new(&path).poll_interval(Duration::from_millis(1));
    let store = options.open().await.unwrap();
    let cx = InvocationContext::new();
    let row = save(&store, turn("s", 0)).await.unwrap();
    assert_eq!(alive(), before);
    for _ in 0..2 {
        let mut statuses: Vec<_> =
            (0..3).map(|_| store.on_snapshot_status_change(&cx, &row.snapshot_id)).collect();
        for statuses in &mut statuses {
            assert_eq!(statuses.next().await, Some(SnapshotStatus::Completed));
        }
        assert_eq!(alive(), before + 1);
        drop(statuses);
        while alive() > before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // A subscription keeps the file open, and the store may go.
    let mut statuses = store.on_snapshot_status_change(&cx, &row.snapshot_id);
    drop(store);
    assert_eq!(statuses.next().await, Some(SnapshotStatus::Completed));
    let other = SqliteSessionStore::open(&path).await.unwrap();
    let aborted = SessionSnapshot { status: Some(SnapshotStatus::Aborted), ..row };
    save(&other, aborted).await.unwrap();
    while statuses.next().await.unwrap() != SnapshotStatus::Aborted {}
    drop(statuses);
    while alive() > before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_store_outlives_the_runtime_that_opened_it() {
    let (_directory, path) = place();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (store, mut statuses) = runtime().block_on(async {
        let store = SqliteSessionStore::open(&path).await.unwrap();
        let mut row = turn("s", 0);
        row.snapshot_id = "row".into();
        save(&store, row).await.unwrap();
        let mut statuses = store.on_snapshot_status_change(&InvocationContext::new(), "row");
        assert_eq!(statuses.next().await, Some(SnapshotStatus::Completed));
        // A write that is under way when the runtime ends.
        let _ = save(&store, turn("s", 1)).now_or_never();
        (store, statuses)
    });
    runtime().block_on(async {
        // Whoever looked at the file is gone, and so is the subscription; a new one is as ever.
        while let Some(status) = statuses.next().await {
            assert_eq!(status, SnapshotStatus::Completed);
        }
        let written = save(&store, turn("s", 2)).await.unwrap();
        assert_eq!(read(&store, &written.snapshot_id).await, Some(written));
        let mut statuses = store.on_snapshot_status_change(&InvocationContext::new(), "row");
        assert_eq!(statuses.next().await, Some(SnapshotStatus::Completed));
    });
}
