//! The store in a directory.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use antiphon_agent::{
    Artifact, Caller, FileSessionStore, InvocationContext, Message, Part, RuntimeError,
    SessionSnapshot, SessionState, SnapshotMetadataReader, SnapshotReader, SnapshotStatus,
    SnapshotSubscriber, SnapshotWriter, StoreErrorKind,
    store::conformance::{self, Outcome, Stores},
};
use futures_util::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

#[tokio::test]
async fn the_file_store_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let factory = move || {
        let path = path.clone();
        async move {
            let store = FileSessionStore::open(&path).await.unwrap();
            let second = FileSessionStore::open(&path).await.unwrap();
            Stores::new(Arc::new(store)).second(Arc::new(second))
        }
    };
    let report = conformance::run(&factory).await;
    report.assert_passed();
    assert!(report.skipped().is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_file_store_conforms_on_several_threads() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(FileSessionStore::open(directory.path()).await.unwrap());
    let second = Arc::new(FileSessionStore::open(directory.path()).await.unwrap());
    let factory = move || std::future::ready(Stores::new(store.clone()).second(second.clone()));
    let mut running = tokio::task::JoinSet::new();
    for case in conformance::cases() {
        let factory = factory.clone();
        running.spawn(async move { (case.name(), case.run(&factory).await) });
    }
    for (name, outcome) in running.join_all().await {
        assert_eq!(outcome, Outcome::Passed, "{name}");
    }
}

/// A store in a directory that goes with it.
struct Rig {
    directory: tempfile::TempDir,
    store: FileSessionStore,
    cx: InvocationContext,
}

impl Rig {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path()).await;
        Self { directory, store, cx: InvocationContext::new() }
    }

    /// Another over the same directory, as a process would have it that starts now.
    async fn reopened(&self) -> FileSessionStore {
        open(self.directory.path()).await
    }

    async fn save(&self, id: &str, row: SessionSnapshot) -> SessionSnapshot {
        save(&self.store, id, row).await
    }

    async fn read(&self, id: &str) -> SessionSnapshot {
        self.store.get_snapshot(&self.cx, id).await.unwrap().unwrap()
    }

    /// All files, with what is in them, sorted by path.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        files(self.directory.path())
    }

    fn only_log(&self) -> PathBuf {
        let logs = self.files().into_iter().map(|(path, _)| path);
        let mut logs = logs.filter(|path| path.extension().is_some_and(|ext| ext == "log"));
        logs.next().unwrap()
    }

    fn log_len(&self) -> u64 {
        self.only_log().metadata().unwrap().len()
    }
}

async fn open(path: &Path) -> FileSessionStore {
    FileSessionStore::open(path).await.unwrap()
}

async fn save(store: &FileSessionStore, id: &str, row: SessionSnapshot) -> SessionSnapshot {
    let cx = InvocationContext::new();
    store.save_snapshot(&cx, Some(id), &|_| Ok(Some(row.clone()))).await.unwrap().unwrap()
}

fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

fn row(session: &str, second: i64) -> SessionSnapshot {
    SessionSnapshot::new("", session, Timestamp::from_second(second).unwrap())
}

/// A settled row of the session `s` with this state, made in that second.
fn with(state: &SessionState, parent: Option<&str>, second: i64) -> SessionSnapshot {
    let mut row = row("s", second);
    row.status = Some(SnapshotStatus::Completed);
    row.parent_id = parent.map(Into::into);
    row.state = Some(state.clone());
    row
}

fn say(state: &mut SessionState, turn: usize) {
    state.messages.push(Message::user(format!("question {turn:05} {}", "x".repeat(280))));
    state.messages.push(Message::model(format!("answer {turn:05} {}", "x".repeat(280))));
}

#[track_caller]
fn assert_store_error<T>(result: Result<T, RuntimeError>, kind: StoreErrorKind, path: &Path) {
    match result {
        Err(RuntimeError::Store(error)) => {
            assert_eq!(error.kind, kind, "{error}");
            assert_eq!(*error.path, *path, "{error}");
            assert!(!error.reason.is_empty());
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was accepted"),
    }
}

#[tokio::test]
async fn what_is_no_store_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();

    let file = path.join("file");
    fs::write(&file, "notes").unwrap();
    assert_store_error(FileSessionStore::open(&file).await, StoreErrorKind::Foreign, &file);
    assert_eq!(fs::read(&file).unwrap(), b"notes");

    // A directory with a file in it.
    assert_store_error(FileSessionStore::open(&path).await, StoreErrorKind::Foreign, &path);
    assert_eq!(files(&path).len(), 1);

    let missing = path.join("not/there");
    assert_store_error(FileSessionStore::open(&missing).await, StoreErrorKind::NotFound, &missing);

    for (text, kind) in [
        (r#"{"format":"antiphon-snapshots","version":2}"#, StoreErrorKind::NewerVersion),
        (r#"{"format":"something-else","version":1}"#, StoreErrorKind::Foreign),
        (r#"{"format":"antiphon-snap"#, StoreErrorKind::Corrupt),
        ("", StoreErrorKind::Corrupt),
    ] {
        let store = tempfile::tempdir().unwrap();
        let format = store.path().canonicalize().unwrap().join("antiphon-store.json");
        fs::write(&format, text).unwrap();
        assert_store_error(FileSessionStore::open(store.path()).await, kind, &format);
        assert_eq!(files(store.path()).len(), 1);
        assert_eq!(fs::read_to_string(&format).unwrap(), text);
    }
}

#[tokio::test]
async fn any_id_is_a_file_within_the_directory() {
    let rig = Rig::new().await;
    let ids = ["../x", "..", ".", "/etc/passwd", "a", "A", "ä", "a%2fb", "a/b", "nul\0", " "];
    let long: Vec<_> = ["x", "y"].iter().map(|letter| letter.repeat(5000)).collect();
    let ids: Vec<_> = ids.into_iter().chain(long.iter().map(String::as_str)).collect();
    let mut written = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        for scope in [None, Some(*id)] {
            let cx = match scope {
                Some(scope) => InvocationContext::new().with_caller(Caller::new("x").scope(scope)),
                None => InvocationContext::new(),
            };
            let mut row = row(id, number as i64);
            row.extra.insert("scope".into(), json!(scope));
            let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
            let row = rig.store.save_snapshot(&cx, Some(id), &update).await.unwrap().unwrap();
            written.push((cx, row));
        }
    }
    let other = rig.reopened().await;
    for (cx, row) in &written {
        let read = other.get_snapshot(cx, &row.snapshot_id).await.unwrap();
        assert_eq!(read.as_ref(), Some(row));
        let session = row.session_id.as_deref().unwrap();
        assert_eq!(other.get_latest_snapshot(cx, session).await.unwrap().as_ref(), Some(row));
    }
    let mut scopes = other.scopes().await.unwrap();
    scopes.sort();
    let mut expected = ids.clone();
    expected.sort();
    assert_eq!(scopes.iter().map(|scope| &**scope).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_damaged_row_is_refused_and_harms_no_other() {
    let rig = Rig::new().await;
    rig.save("sound", row("other", 1)).await;
    let before: Vec<_> = rig.files();
    rig.save("hurt", row("s", 1)).await;
    let is_new = |path: &PathBuf| before.iter().all(|(old, _)| old != path);
    let hurt = rig.files().into_iter().map(|(path, _)| path).filter(is_new);
    let hurt = hurt.into_iter().find(|path| path.extension().is_some_and(|e| e == "row")).unwrap();

    let whole = fs::read(&hurt).unwrap();
    let mut flipped = whole.clone();
    flipped[20] ^= 1;
    for bytes in [&b""[..], &whole[..whole.len() / 2], &flipped, &[&whole[..], b"\n"].concat()] {
        fs::write(&hurt, bytes).unwrap();
        let store = rig.reopened().await;
        let path = hurt.canonicalize().unwrap();
        let read = store.get_snapshot(&rig.cx, "hurt").await;
        assert_store_error(read, StoreErrorKind::Corrupt, &path);
        let latest = store.get_latest_snapshot(&rig.cx, "s").await;
        assert_store_error(latest, StoreErrorKind::Corrupt, &path);
        let row = row("s", 2);
        let saved = store.save_snapshot(&rig.cx, Some("hurt"), &|_| Ok(Some(row.clone()))).await;
        assert_store_error(saved, StoreErrorKind::Corrupt, &path);
        assert_eq!(fs::read(&hurt).unwrap(), bytes, "it is left as it is");
        assert!(store.get_snapshot(&rig.cx, "sound").await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_damaged_log_is_refused_where_something_is_lost() {
    let rig = Rig::new().await;
    let mut state = SessionState::default();
    say(&mut state, 1);
    rig.save("one", with(&state, None, 1)).await;
    let log = rig.only_log().canonicalize().unwrap();
    let whole = fs::read(&log).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for bytes in [&flipped[..], &whole[..whole.len() / 2], b""] {
        fs::write(&log, bytes).unwrap();
        let store = rig.reopened().await;
        let read = store.get_snapshot(&rig.cx, "one").await;
        assert_store_error(read, StoreErrorKind::Corrupt, &log);
        // What does not need the log is there.
        assert!(store.get_snapshot_metadata(&rig.cx, "one").await.unwrap().is_some());
    }
    fs::remove_file(&log).unwrap();
    let read = rig.reopened().await.get_snapshot(&rig.cx, "one").await;
    assert_store_error(read, StoreErrorKind::Corrupt, &log);
}

#[tokio::test]
async fn what_a_killed_writer_left_is_passed_over() {
    let rig = Rig::new().await;
    let mut state = SessionState::default();
    say(&mut state, 1);
    let first = rig.save("one", with(&state, None, 1)).await;
    let sound = fs::read(rig.only_log()).unwrap();
    say(&mut state, 2);
    let second = rig.save("two", with(&state, Some("one"), 2)).await;
    let longer = fs::read(rig.only_log()).unwrap();
    let row_of_two = rig.files().into_iter().find(|(path, text)| {
        path.extension().is_some_and(|e| e == "row")
            && String::from_utf8_lossy(text).contains("\"two\"")
    });
    let (row_of_two, _) = row_of_two.unwrap();

    // The row was not written, and of the log nothing, some bytes, or all; and garbage.
    let mut tails: Vec<Vec<u8>> = [0, 1, 9, 300, longer.len() - sound.len() - 1]
        .iter()
        .map(|len| longer[sound.len()..sound.len() + len].to_vec())
        .collect();
    tails.push(longer[sound.len()..].to_vec());
    tails.push(vec![0; 5000]);
    tails.push([vec![b'\n'; 3], vec![0xff; 9000]].concat());
    for tail in tails {
        let _ = fs::remove_file(&row_of_two);
        fs::write(rig.only_log(), [&sound[..], &tail].concat()).unwrap();
        let store = rig.reopened().await;
        assert_eq!(store.get_snapshot(&rig.cx, "two").await.unwrap(), None);
        let latest = store.get_latest_snapshot(&rig.cx, "s").await.unwrap();
        assert_eq!(latest.as_ref(), Some(&first));
        assert_eq!(store.snapshots(&rig.cx, "s", None, 9).await.unwrap().len(), 1);
        // The next writer goes on.
        let again = save(&store, "two", with(&state, Some("one"), 2)).await;
        assert_eq!(again, second);
        let third = save(&store, "three", with(&state, Some("two"), 3)).await;
        let store = rig.reopened().await;
        assert_eq!(store.get_snapshot(&rig.cx, "two").await.unwrap().as_ref(), Some(&second));
        assert_eq!(store.get_snapshot(&rig.cx, "one").await.unwrap().as_ref(), Some(&first));
        let latest = store.get_latest_snapshot(&rig.cx, "s").await.unwrap();
        assert_eq!(latest.as_ref(), Some(&third));
        let row_of_three = rig.files().into_iter().find(|(path, text)| {
            path.extension().is_some_and(|e| e == "row")
                && String::from_utf8_lossy(text).contains("\"three\"")
        });
        fs::remove_file(row_of_three.unwrap().0).unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_written_is_a_typed_error_and_there_is_nothing_of_it() {
    let rig = Rig::new().await;
    let first = rig.save("one", row("s", 1)).await;
    // Where a directory should be there is a file, as on a disk that cannot be written to.
    let sessions = rig.directory.path().canonicalize().unwrap().join("unscoped/sessions");
    let aside = rig.directory.path().join("aside");
    fs::rename(&sessions, &aside).unwrap();
    fs::write(&sessions, "").unwrap();
    let row = row("s", 2);
    let save = rig.store.save_snapshot(&rig.cx, Some("two"), &|_| Ok(Some(row.clone()))).await;
    assert!(
        matches!(&save, Err(RuntimeError::Store(e)) if e.path.starts_with(&sessions)),
        "{save:?}"
    );
    assert_eq!(rig.store.get_snapshot(&rig.cx, "two").await.unwrap(), None);

    fs::remove_file(&sessions).unwrap();
    fs::rename(&aside, &sessions).unwrap();
    let latest = rig.store.get_latest_snapshot(&rig.cx, "s").await.unwrap();
    assert_eq!(latest, Some(first));
    save_ok(&rig, "two", row).await;
}

async fn save_ok(rig: &Rig, id: &str, row: SessionSnapshot) {
    let written = rig.save(id, row).await;
    assert_eq!(rig.read(id).await, written);
}

#[tokio::test]
async fn a_caller_that_is_gone_leaves_a_whole_row_or_none() {
    let rig = Rig::new().await;
    let cancelled = tokio_util::sync::CancellationToken::new();
    let cx = InvocationContext::new().with_cancellation(cancelled.clone());
    cancelled.cancel();
    let row = row("s", 1);
    for id in ["one", "two", "three"] {
        let save = rig.store.save_snapshot(&cx, Some(id), &|_| Ok(Some(row.clone()))).await;
        let read = rig.store.get_snapshot(&rig.cx, id).await.unwrap();
        match save {
            Ok(written) => assert_eq!(written, read),
            Err(RuntimeError::Cancelled(_)) => {}
            Err(other) => panic!("{other}"),
        }
        // And one that is dropped in the middle.
        let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
        let dropped = rig.store.save_snapshot(&rig.cx, Some(id), &update);
        let _ = tokio::time::timeout(Duration::ZERO, dropped).await;
        save_ok(&rig, id, row.clone()).await;
    }
}

#[tokio::test]
async fn what_json_cannot_hold_is_refused_before_it_is_written() {
    let rig = Rig::new().await;
    let deep = |levels| (0..levels).fold(json!("deep"), |inner, _| json!([inner]));
    let large = Value::String("x".repeat(5000));
    let mut twice = row("s", 1);
    twice.extra.insert("createdAt".into(), json!(1));
    let mut in_message = SessionState::default();
    let mut message = Message::user("hello");
    message.extra.insert("role".into(), json!("model"));
    in_message.messages.push(message);
    let custom = |custom| SessionState { custom: Some(custom), ..SessionState::default() };
    let bad = [
        twice,
        with(&in_message, None, 1),
        with(&custom(deep(200)), None, 1),
        with(&custom(json!([large, deep(200)])), None, 1),
    ];
    for row in bad {
        let save = rig.store.save_snapshot(&rig.cx, Some("one"), &|_| Ok(Some(row.clone()))).await;
        assert!(matches!(save, Err(RuntimeError::InvalidArgument(_))), "{save:?}");
        assert_eq!(rig.store.get_snapshot(&rig.cx, "one").await.unwrap(), None);
    }
    // As deep as JSON may be, and null, which is not the same as nothing.
    save_ok(&rig, "deep", with(&custom(deep(120)), None, 1)).await;
    save_ok(&rig, "null", with(&custom(Value::Null), None, 2)).await;
}

#[tokio::test]
async fn a_turn_costs_what_is_new() {
    let rig = Rig::new().await;
    let mut state = SessionState::default();
    let (mut last, mut grown) = (None::<String>, Vec::new());
    for turn in 0..150 {
        say(&mut state, turn);
        state.custom = Some(json!({ "turn": turn }));
        let (id, before) = (format!("turn-{turn}"), rig.files().len());
        let len = if before == 1 { 0 } else { rig.log_len() };
        rig.save(&id, with(&state, last.as_deref(), turn as i64)).await;
        grown.push(rig.log_len() - len);
        last = Some(id);
    }
    assert!(grown[149] < 1100 && grown[149] < grown[10] + 50, "{grown:?}");

    // Another process goes on, and one that was given the conversation anew, as a client would.
    for own in [true, false] {
        let (store, len) = (rig.reopened().await, rig.log_len());
        let mut state = match own {
            true => store.get_snapshot(&rig.cx, "turn-149").await.unwrap().unwrap().state.unwrap(),
            false => serde_json::from_value(serde_json::to_value(&state).unwrap()).unwrap(),
        };
        say(&mut state, 150);
        save(&store, &format!("on-{own}"), with(&state, Some("turn-149"), 150)).await;
        assert!(rig.log_len() - len < 1100, "{own}: {}", rig.log_len() - len);
    }

    // A fork, and a rewrite of what the fork has in common with others.
    let mut forked = rig.read("turn-20").await.state.unwrap();
    say(&mut forked, 21);
    let len = rig.log_len();
    let fork = rig.save("fork", with(&forked, Some("turn-20"), 200)).await;
    assert!(rig.log_len() - len < 1100);
    forked.messages.replace(40, Message::user("instead"));
    rig.save("fork", with(&forked, Some("turn-20"), 200)).await;
    assert!(rig.log_len() - len < 3000);
    forked.messages.truncate(5);
    let len = rig.log_len();
    rig.save("short", with(&forked, Some("fork"), 201)).await;
    assert!(rig.log_len() - len < 300);
    let store = rig.reopened().await;
    assert_eq!(store.get_snapshot(&rig.cx, "short").await.unwrap().unwrap().state, Some(forked));
    assert_ne!(rig.read("fork").await, fork);
    for turn in 0..150 {
        let state = store.get_snapshot(&rig.cx, &format!("turn-{turn}")).await.unwrap().unwrap();
        assert_eq!(state.state.unwrap().messages.len(), 2 * turn + 2);
    }
}

#[tokio::test]
async fn artifacts_and_custom_states_are_stored_once() {
    let rig = Rig::new().await;
    let large = json!({ "text": "y".repeat(20_000) });
    let artifact = |text: &str| Arc::new(Artifact::new("doc", vec![Part::text(text.repeat(5000))]));
    let mut state = SessionState { custom: Some(large.clone()), ..SessionState::default() };
    state.artifacts = vec![artifact("a"), Arc::new(Artifact::default())];
    rig.save("one", with(&state, None, 1)).await;
    let (log, len) = (rig.only_log(), rig.log_len());
    // Unchanged, changed and back, and the same again from a process that starts.
    rig.save("two", with(&state, Some("one"), 2)).await;
    let mut other = state.clone();
    other.custom = Some(json!("short"));
    other.artifacts.pop();
    rig.save("three", with(&other, Some("two"), 3)).await;
    rig.save("four", with(&state, Some("three"), 4)).await;
    let mut copy: SessionState =
        serde_json::from_value(serde_json::to_value(&state).unwrap()).unwrap();
    save(&rig.reopened().await, "five", with(&copy, Some("four"), 5)).await;
    assert!(log.metadata().unwrap().len() - len < 1500);
    copy.artifacts[0] = artifact("b");
    rig.save("six", with(&copy, Some("five"), 6)).await;
    assert!(log.metadata().unwrap().len() - len < 8000);
    let store = rig.reopened().await;
    for (id, state) in [("one", &state), ("three", &other), ("five", &state), ("six", &copy)] {
        let read = store.get_snapshot(&rig.cx, id).await.unwrap().unwrap();
        assert_eq!(read.state.as_ref(), Some(state), "{id}");
    }
}

#[tokio::test]
async fn a_heartbeat_writes_the_row_alone_and_metadata_reads_read_nothing_else() {
    let rig = Rig::new().await;
    let mut state = SessionState::default();
    say(&mut state, 1);
    let written = rig.save("one", with(&state, None, 1)).await;
    let len = rig.log_len();
    let beat = |row: Option<&SessionSnapshot>| {
        Ok(row.map(|row| SessionSnapshot { heartbeat_at: Some(row.created_at), ..row.clone() }))
    };
    rig.store.save_snapshot(&rig.cx, Some("one"), &beat).await.unwrap();
    assert_eq!(rig.log_len(), len);
    fs::remove_file(rig.only_log()).unwrap();
    let metadata = rig.reopened().await.get_snapshot_metadata(&rig.cx, "one").await.unwrap();
    let expected =
        SessionSnapshot { heartbeat_at: Some(written.created_at), ..written.with_state(None) };
    assert_eq!(metadata, Some(expected));
}

#[tokio::test]
async fn a_row_whose_time_is_changed_is_found_by_the_new_one() {
    let rig = Rig::new().await;
    for (id, second) in [("a", 1), ("b", 2), ("c", 3)] {
        rig.save(id, row("s", second)).await;
    }
    let latest = async |store: &FileSessionStore| {
        store.get_latest_snapshot(&rig.cx, "s").await.unwrap().unwrap().snapshot_id
    };
    rig.save("c", row("s", 0)).await;
    assert_eq!(&*latest(&rig.store).await, "b");
    assert_eq!(&*latest(&rig.reopened().await).await, "b");
    rig.save("a", row("s", 5)).await;
    assert_eq!(&*latest(&rig.reopened().await).await, "a");
    rig.save("a", row("s", 1)).await;
    rig.save("d", row("s", 1)).await;
    assert_eq!(&*latest(&rig.store).await, "b");
    assert_eq!(&*latest(&rig.reopened().await).await, "b");
}

#[tokio::test]
async fn two_sessions_cannot_have_a_row_of_the_same_id() {
    let rig = Rig::new().await;
    let other = rig.reopened().await;
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..16 {
        let store = if number % 2 == 0 { rig.store.clone() } else { other.clone() };
        writers.spawn(async move {
            let update = |before: Option<&SessionSnapshot>| {
                Ok(before.is_none().then(|| row(&format!("session-{number}"), 1)))
            };
            store.save_snapshot(&InvocationContext::new(), Some("row"), &update).await.unwrap()
        });
    }
    let written: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    assert_eq!(written.len(), 1, "each of the others saw the row of the first");
    assert_eq!(rig.read("row").await, written[0]);
    for number in 0..16 {
        let session = format!("session-{number}");
        let latest = other.get_latest_snapshot(&rig.cx, &session).await.unwrap();
        assert_eq!(latest.is_some(), written[0].session_id.as_deref() == Some(&*session));
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_others_are_told_and_a_store_that_goes_ends_what_it_tells() {
    let rig = Rig::new().await;
    let mut pending = row("s", 1);
    pending.status = Some(SnapshotStatus::Pending);
    rig.save("one", pending.clone()).await;
    let other = rig.reopened().await.poll_interval(Duration::from_secs(3600));
    let mut statuses = other.on_snapshot_status_change(&rig.cx, "one");
    assert_eq!(statuses.next().await, Some(SnapshotStatus::Pending));
    let begun = tokio::time::Instant::now();
    rig.save("one", SessionSnapshot { status: Some(SnapshotStatus::Aborting), ..pending }).await;
    assert_eq!(statuses.next().await, Some(SnapshotStatus::Aborting));
    assert!(begun.elapsed() <= Duration::from_millis(2100), "an interval has a bound");
    drop(other);
    assert_eq!(statuses.next().await, None);
}

#[tokio::test]
async fn a_store_can_be_looked_through_page_by_page() {
    let rig = Rig::new().await;
    for session in 0..5 {
        for turn in 0..3 {
            let mut state = SessionState::default();
            (0..turn).for_each(|turn| say(&mut state, turn));
            let mut row = row(&format!("session-{session}"), 10 * session + turn as i64);
            row.state = (turn > 0).then_some(state);
            rig.save(&format!("{session}-{turn}"), row).await;
        }
    }
    // Neither of a store.
    fs::write(rig.only_log().with_file_name("notes.txt"), "").unwrap();
    let store = rig.reopened().await;
    let page = store.sessions(&rig.cx, None, 2).await.unwrap();
    let ids: Vec<_> = page.iter().map(|session| &*session.session_id).collect();
    assert_eq!(ids, ["session-4", "session-3"]);
    assert_eq!(page[0].snapshots, 3);
    assert_eq!(page[0].first_created_at, Timestamp::from_second(40).unwrap());
    assert_eq!(&*page[0].latest.snapshot_id, "4-2");
    let rest = store.sessions(&rig.cx, Some("session-3"), 9).await.unwrap();
    assert_eq!(rest.len(), 3);
    assert!(store.sessions(&rig.cx, Some("unknown"), 9).await.unwrap().is_empty());

    let page = store.snapshots(&rig.cx, "session-1", None, 2).await.unwrap();
    assert_eq!(page.iter().map(|row| row.messages).collect::<Vec<_>>(), [None, Some(2)]);
    assert!(page.iter().all(|row| row.snapshot.state.is_none()));
    let rest = store.snapshots(&rig.cx, "session-1", Some("1-1"), 9).await.unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].artifacts, Some(0));
    assert!(store.snapshots(&rig.cx, "unknown", None, 9).await.unwrap().is_empty());
    assert!(store.scopes().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_left_aside_is_swept_away_in_time() {
    let rig = Rig::new().await;
    let aside = rig.directory.path().join("tmp");
    fs::create_dir_all(&aside).unwrap();
    let (old, new) = (aside.join("old"), aside.join("new"));
    fs::File::create(&new).unwrap().write_all(b"x").unwrap();
    let file = fs::File::create(&old).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).unwrap();
    rig.reopened().await;
    assert!(!old.exists() && new.exists());
}
