//! Files that are not as they should be, and what a file says of itself.

use std::{fs, io::Write, path::Path, time::Duration};

use antiphon_agent::{
    Caller, InvocationContext, Memory, RuntimeError, SnapshotReader, SnapshotStatus,
    SnapshotWriter, SqliteMemory, SqliteOptions, SqliteSessionStore, StoreErrorKind, types::Status,
};

use super::{first, next, place, read, refusal, save, turn};

/// Opening is refused, and the file is left as it is.
async fn refused(path: &Path, kind: StoreErrorKind, reason: &str) {
    let before = fs::read(path).ok();
    let error = refusal(SqliteSessionStore::open(path).await);
    assert_eq!(error.kind, kind, "{error}");
    let text = error.to_string();
    let name = path.file_name().unwrap().to_string_lossy();
    assert!(text.contains(reason) && text.contains(&*name), "{text}");
    assert_eq!(fs::read(path).ok(), before);
}

fn patch(path: &Path, at: u64, bytes: &[u8]) {
    use std::io::{Seek, SeekFrom};
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

/// A file with one conversation in it, closed.
async fn written(path: &Path) -> [antiphon_agent::SessionSnapshot; 2] {
    let store = SqliteSessionStore::open(path).await.unwrap();
    let one = save(&store, next(&first("s"), 1, ["one", "1"])).await.unwrap();
    let two = save(&store, next(&one, 2, ["two", "2"])).await.unwrap();
    closed(store).await;
    [one, two]
}

/// Connections are closed on another thread.
async fn closed(store: SqliteSessionStore) {
    let mut log = store.path().as_os_str().to_owned();
    log.push("-wal");
    drop(store);
    let gone = async {
        while Path::new(&log).exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("the file was not closed");
}

#[tokio::test]
async fn what_was_written_outlives_the_store() {
    let (_directory, path) = place();
    let [one, two] = written(&path).await;
    let store = SqliteSessionStore::open(&path).await.unwrap();
    assert_eq!(read(&store, &one.snapshot_id).await, Some(one));
    let latest = store.get_latest_snapshot(&InvocationContext::new(), "s").await.unwrap();
    assert_eq!(latest, Some(two));
}

#[tokio::test]
async fn a_file_of_the_first_version_can_be_read() {
    let (_directory, path) = place();
    fs::write(&path, include_bytes!("version_1.db")).unwrap();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let read = |id| read(&store, id);
    let row = read("67e55044-10b1-426f-9247-bb680e5fe0c8").await.unwrap();
    let expected: antiphon_agent::SessionSnapshot =
        serde_json::from_str(include_str!("version_1.json")).unwrap();
    assert_eq!(row, expected);
    assert_eq!(read("fork").await.unwrap().state.unwrap().messages.len(), 3);
    let tenant = InvocationContext::new().with_caller(Caller::new("x").scope("tenant"));
    let row = store.get_latest_snapshot(&tenant, "s").await.unwrap().unwrap();
    assert_eq!(row.status(), SnapshotStatus::Pending);
    assert_eq!(store.memory().get("key").await.unwrap().as_deref(), Some("value"));
    // And it can be gone on with.
    let row = save(&store, next(&row, 9, ["more", "9"])).await.unwrap();
    assert_eq!(read(&row.snapshot_id).await, Some(row));
}

#[tokio::test]
async fn what_is_no_store_is_refused_and_left_alone() {
    let (_directory, path) = place();
    for foreign in [&b"not a database"[..], &[0; 4096], b"SQLite format 3\0 and no more"] {
        fs::write(&path, foreign).unwrap();
        refused(&path, StoreErrorKind::Foreign, "not a SQLite database").await;
    }
    fs::remove_file(&path).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE a (x); INSERT INTO a VALUES (1)").unwrap();
    drop(other);
    refused(&path, StoreErrorKind::Foreign, "another program").await;
    // Nothing in it is nobody's.
    fs::write(&path, "").unwrap();
    written(&path).await;
}

#[tokio::test]
async fn a_newer_file_is_refused_and_left_alone() {
    let (_directory, path) = place();
    written(&path).await;
    patch(&path, 60, &99_u32.to_be_bytes());
    refused(&path, StoreErrorKind::NewerVersion, "version 99").await;
    let error = SqliteMemory::open(&path).await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);
}

#[tokio::test]
async fn damage_is_told_where_it_is_met_and_nothing_is_made_up() {
    let (_directory, path) = place();
    let [one, two] = written(&path).await;
    let whole = fs::read(&path).unwrap();
    let pages = whole.len() / 4096;
    let mut met = 0;
    for page in 1..pages {
        fs::write(&path, &whole).unwrap();
        patch(&path, page as u64 * 4096, &[0xa5; 4096]);
        let store = match SqliteSessionStore::open(&path).await {
            Ok(store) => store,
            Err(error) => {
                assert_eq!(error.status(), Status::DataLoss, "{error}");
                met += 1;
                continue;
            }
        };
        let cx = InvocationContext::new();
        for row in [&one, &two] {
            match store.get_snapshot(&cx, &row.snapshot_id).await {
                Ok(read) => assert_eq!(read.as_ref(), Some(row)),
                Err(error) => {
                    assert_eq!(refusal::<()>(Err(error)).kind, StoreErrorKind::Corrupt);
                    met += 1;
                }
            }
        }
        closed(store).await;
    }
    assert!(met >= 5, "{met} of {pages} pages");
}

#[tokio::test]
async fn a_file_that_was_cut_short_is_refused() {
    let (_directory, path) = place();
    let [_, two] = written(&path).await;
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..4096]).unwrap();
    let cx = InvocationContext::new();
    let store = SqliteSessionStore::open(&path).await;
    let error = match store {
        Ok(store) => refusal(store.get_snapshot(&cx, &two.snapshot_id).await),
        Err(error) => refusal::<()>(Err(error)),
    };
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn places_that_cannot_hold_a_file_are_typed_errors() {
    let (directory, path) = place();
    refused(&directory.path().join("no/where.db"), StoreErrorKind::NotFound, "").await;
    refused(&path.join("below.db"), StoreErrorKind::NotFound, "").await;
    assert!(refusal(SqliteSessionStore::open(directory.path()).await).reason.contains("directory"));
    #[cfg(unix)]
    assert!(refusal(SqliteSessionStore::open("/dev/null").await).reason.contains("no file"));
    assert!(SqliteSessionStore::open("").await.is_err());
    assert!(SqliteSessionStore::open("/").await.is_err());
}

#[tokio::test]
async fn a_file_that_may_only_be_read_is_read_and_not_written() {
    let (_directory, path) = place();
    let error = refusal(SqliteOptions::new(&path).read_only(true).open().await);
    assert_eq!(error.kind, StoreErrorKind::NotFound);
    assert!(!path.exists());

    let [one, two] = written(&path).await;
    let before = fs::read(&path).unwrap();
    let store = SqliteOptions::new(&path).read_only(true).open().await.unwrap();
    assert_eq!(read(&store, &one.snapshot_id).await, Some(one));
    let error = refusal(save(&store, next(&two, 3, ["three", "3"])).await);
    assert_eq!((error.kind, error.status()), (StoreErrorKind::ReadOnly, Status::PermissionDenied));
    store.memory().set("key", "value").await.unwrap_err();
    drop(store);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn several_may_make_the_file_at_once() {
    for _ in 0..5 {
        let (_directory, path) = place();
        let opened =
            futures_util::future::join_all((0..4).map(|_| SqliteSessionStore::open(&path))).await;
        let mut stores = Vec::new();
        for store in opened {
            stores.push(store.unwrap());
        }
        let mut row = save(&stores[0], first("s")).await.unwrap();
        for (number, store) in stores.iter().enumerate() {
            row = save(store, next(&row, number, ["question", "answer"])).await.unwrap();
        }
        assert_eq!(read(&stores[0], &row.snapshot_id).await, Some(row));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    save(&store, turn("s", 0)).await.unwrap();
    for name in ["store.db", "store.db-wal"] {
        let file = fs::metadata(path.with_file_name(name)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_has_one_log_whatever_link_it_was_opened_by() {
    let (directory, path) = place();
    let one = SqliteSessionStore::open(&path).await.unwrap();
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let other = SqliteSessionStore::open(&link).await.unwrap();
    let row = save(&one, turn("s", 0)).await.unwrap();
    assert_eq!(read(&other, &row.snapshot_id).await, Some(row));
    assert_eq!(other.path(), one.path());
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_written_to_a_file_that_is_gone() {
    let (directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let row = save(&store, turn("s", 0)).await.unwrap();
    fs::rename(&path, directory.path().join("moved.db")).unwrap();
    let error = refusal(save(&store, turn("s", 1)).await);
    assert_eq!(error.kind, StoreErrorKind::NotFound);
    fs::write(&path, "").unwrap();
    let error = refusal(save(&store, turn("s", 1)).await);
    assert!(error.reason.contains("another file"), "{error}");
    fs::rename(directory.path().join("moved.db"), &path).unwrap();
    save(&store, next(&row, 1, ["one", "1"])).await.unwrap();
}

#[tokio::test]
async fn the_disk_that_is_full_is_told_and_what_is_there_stays() {
    let (_directory, path) = place();
    let store = SqliteOptions::new(&path).max_bytes(1 << 20).open().await.unwrap();
    let mut row = save(&store, first("s")).await.unwrap();
    let text = "x".repeat(100_000);
    let error = loop {
        match save(&store, next(&row, 1, [&text, "yes"])).await {
            Ok(written) => row = written,
            Err(error) => break refusal::<()>(Err(error)),
        }
    };
    assert_eq!((error.kind, error.status()), (StoreErrorKind::Full, Status::ResourceExhausted));
    assert!(error.to_string().contains("store.db"), "{error}");
    let told = RuntimeError::Store(error).to_details();
    assert_eq!(told.message, "the session store cannot do this: full");
    assert!(row.state.as_ref().unwrap().messages.len() >= 10);
    assert_eq!(read(&store, &row.snapshot_id).await.as_ref(), Some(&row));

    // Those that wait together with one that is too large are written all the same.
    let large = next(&row, 2, [&text, "yes"]);
    let small: Vec<_> = (0..8).map(|n| turn(&format!("session {n}"), 0)).collect();
    let small = small.into_iter().map(|row| save(&store, row));
    let (large, small) =
        futures_util::future::join(save(&store, large), futures_util::future::join_all(small))
            .await;
    assert_eq!(refusal(large).kind, StoreErrorKind::Full);
    for written in small {
        let written = written.unwrap();
        assert_eq!(read(&store, &written.snapshot_id).await, Some(written));
    }
}

#[tokio::test]
async fn what_could_not_be_read_again_is_not_written() {
    let (_directory, path) = place();
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let nested = |depth| {
        (0..depth).fold(serde_json::Value::Null, |inner, _| serde_json::Value::Array(vec![inner]))
    };
    let mut row = first("s");
    row.state.as_mut().unwrap().custom = Some(nested(127));
    let row = save(&store, row).await.unwrap();
    closed(store).await;
    let store = SqliteSessionStore::open(&path).await.unwrap();
    assert_eq!(read(&store, &row.snapshot_id).await, Some(row.clone()));
    let mut deeper = row;
    deeper.state.as_mut().unwrap().custom = Some(nested(128));
    let error = save(&store, deeper).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Store(_)));
    assert_eq!(error.status(), Status::InvalidArgument);
    let empty = InvocationContext::new();
    let written = store.save_snapshot(&empty, None, &|_| Ok(None)).await.unwrap();
    assert_eq!(written, None);
}
