use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc, time::Duration};

use antiphon_agent::{Caller, FileMemory, InMemory, Memory, ScopedMemory, types::Status};
use proptest::prelude::*;

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memory.json");
    (directory, path)
}

async fn keeps_the_rules(memory: &dyn Memory) {
    assert_eq!(memory.get("a").await.unwrap(), None);
    for (key, value) in [("b/2", "two"), ("a", ""), ("b/1", "one"), ("b", "b"), ("ä\n\"", "ö\0")]
    {
        memory.set(key, value).await.unwrap();
    }
    assert_eq!(memory.get("a").await.unwrap().as_deref(), Some(""));
    assert_eq!(memory.get("ä\n\"").await.unwrap().as_deref(), Some("ö\0"));
    assert_eq!(memory.list("b/").await.unwrap(), ["b/1", "b/2"]);
    assert_eq!(memory.list("").await.unwrap(), ["a", "b", "b/1", "b/2", "ä\n\""]);
    memory.set("b/1", "1").await.unwrap();
    memory.delete("b/2").await.unwrap();
    memory.delete("b/2").await.unwrap();
    assert_eq!(memory.get("b/1").await.unwrap().as_deref(), Some("1"));
    assert_eq!(memory.list("b/").await.unwrap(), ["b/1"]);
    memory.set("b/3", "three").await.unwrap();
    assert_eq!(memory.forget("b/").await.unwrap(), 2);
    assert_eq!(memory.forget("b/").await.unwrap(), 0);
    assert_eq!(memory.list("").await.unwrap(), ["a", "b", "ä\n\""]);
}

#[tokio::test]
async fn a_view_forgets_what_is_its_own() {
    let memory: Arc<dyn Memory> = Arc::new(InMemory::new());
    memory.set("ann", "not under it").await.unwrap();
    let mut tenants = Caller::new("ann");
    tenants.scope = Some("home".into());
    let views = [
        ScopedMemory::of_caller(memory.clone(), &Caller::new("ann")),
        ScopedMemory::of_caller(memory.clone(), &tenants),
        ScopedMemory::new(memory.clone(), "anna"),
    ];
    for view in &views {
        view.set("dog", "Rex").await.unwrap();
    }
    assert_eq!(memory.list("").await.unwrap(), ["/home/ann/dog", "ann", "ann/dog", "anna/dog"]);
    assert_eq!(views[0].forget("").await.unwrap(), 1);
    assert_eq!(memory.list("").await.unwrap(), ["/home/ann/dog", "ann", "anna/dog"]);
}

#[tokio::test]
async fn c16_memory_rules() {
    keeps_the_rules(&InMemory::new()).await;
    keeps_the_rules(&ScopedMemory::new(Arc::new(InMemory::new()), "session")).await;
    let (_directory, path) = directory();
    keeps_the_rules(&FileMemory::open(path).await.unwrap()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn c16_memory_rules_in_a_database() {
    use antiphon_agent::SqliteMemory;
    let (_directory, path) = directory();
    keeps_the_rules(&SqliteMemory::open(&path).await.unwrap()).await;
    let memory = SqliteMemory::open(&path).await.unwrap();
    assert_eq!(memory.get("ä\n\"").await.unwrap().as_deref(), Some("ö\0"));
    memory.set("\u{10ffff}", "last").await.unwrap();
    assert_eq!(memory.list("\u{10ffff}").await.unwrap(), ["\u{10ffff}"]);
    let large = "x".repeat(17 << 20);
    let error = memory.set("a", &large).await.unwrap_err();
    assert_eq!(error.status(), Status::ResourceExhausted);

    // What is set at the same time, by several with the same file, is all there.
    let other = SqliteMemory::open(&path).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..50 {
        let memory = if writer % 2 == 0 { memory.clone() } else { other.clone() };
        writers.spawn(async move { memory.set(&format!("k{writer:02}"), "v").await });
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap().unwrap();
    }
    assert_eq!(memory.list("k").await.unwrap().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c16_fifty_writers_lose_nothing() {
    let (_directory, path) = directory();
    let memories: [Arc<dyn Memory>; 2] =
        [Arc::new(InMemory::new()), Arc::new(FileMemory::open(&path).await.unwrap())];
    for memory in memories {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..50 {
            let memory = memory.clone();
            writers.spawn(async move { memory.set(&format!("k{writer:02}"), "v").await });
        }
        while let Some(written) = writers.join_next().await {
            written.unwrap().unwrap();
        }
        assert_eq!(memory.list("k").await.unwrap().len(), 50);
    }
    let written: BTreeMap<String, String> =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(written.len(), 50);
}

#[tokio::test]
async fn a_session_sees_its_own_keys_only() {
    let raw: Arc<dyn Memory> = Arc::new(InMemory::new());
    let (one, other) = (ScopedMemory::new(raw.clone(), "1"), ScopedMemory::new(raw.clone(), "12"));
    one.set("note", "a").await.unwrap();
    other.set("note", "b").await.unwrap();
    assert_eq!(one.get("note").await.unwrap().as_deref(), Some("a"));
    assert_eq!(one.list("").await.unwrap(), ["note"]);
    assert_eq!(raw.list("").await.unwrap(), ["1/note", "12/note"]);
    one.delete("note").await.unwrap();
    assert_eq!(raw.list("").await.unwrap(), ["12/note"]);
}

#[tokio::test]
async fn no_session_lies_within_another() {
    let raw: Arc<dyn Memory> = Arc::new(InMemory::new());
    let of = |tenant, session| ScopedMemory::of_tenant(raw.clone(), tenant, session);
    let views = [
        of(None, "a"),
        of(None, "a/b"),
        of(None, "a%2Fb"),
        of(None, "/t/a"),
        of(Some("t"), "a"),
        of(Some("t"), "a/b"),
        of(Some("t/a"), "b"),
        of(Some(""), "a"),
    ];
    for (n, view) in views.iter().enumerate() {
        for key in ["b/x", "x", "a/b/x"] {
            assert_eq!(view.get(key).await.unwrap(), None, "{n} sees what another has");
            view.set(key, "v").await.unwrap();
        }
    }
    assert_eq!(raw.list("").await.unwrap().len(), 3 * views.len());
    for view in views {
        assert_eq!(view.list("").await.unwrap(), ["a/b/x", "b/x", "x"]);
    }
}

#[tokio::test]
async fn memory_is_bounded() {
    let memory = InMemory::with_max_bytes(10);
    memory.set("key", "1234567").await.unwrap();
    let full = memory.set("k", "").await.unwrap_err();
    assert_eq!(full.status(), Status::ResourceExhausted);
    assert_eq!(memory.list("").await.unwrap(), ["key"]);
    memory.set("key", "7654321").await.unwrap();
    assert!(memory.set("key", "12345678").await.is_err());
    assert_eq!(memory.get("key").await.unwrap().as_deref(), Some("7654321"));
    memory.delete("key").await.unwrap();
    memory.set("yek", "1234567").await.unwrap();
}

#[tokio::test]
async fn a_file_outlives_its_memory() {
    let (_directory, path) = directory();
    let memory = FileMemory::open(&path).await.unwrap();
    assert!(!path.exists(), "nothing was set yet");
    memory.set("b", "2").await.unwrap();
    memory.set("a", "1").await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\n  \"a\": \"1\",\n  \"b\": \"2\"\n}\n");
    drop(memory);
    let memory = FileMemory::open(&path).await.unwrap();
    assert_eq!(memory.get("a").await.unwrap().as_deref(), Some("1"));
}

#[tokio::test]
async fn sessions_of_one_process_share_a_file() {
    let (directory, path) = directory();
    let one = FileMemory::open(&path).await.unwrap();
    let other = FileMemory::open(directory.path().join(".").join("memory.json")).await.unwrap();
    one.set("a", "1").await.unwrap();
    other.set("b", "2").await.unwrap();
    assert_eq!(one.list("").await.unwrap(), ["a", "b"]);
    let written: BTreeMap<String, String> =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written.len(), 2);
}

#[tokio::test]
async fn another_process_is_refused() {
    let (directory, path) = directory();
    let lock = fs::File::create(directory.path().join("memory.json.lock")).unwrap();
    lock.lock().unwrap();
    let error = FileMemory::open(&path).await.unwrap_err();
    assert_eq!(error.status(), Status::FailedPrecondition);
    assert!(error.to_string().contains("memory.json is in use"), "{error}");
    drop(lock);
    FileMemory::open(&path).await.unwrap();
}

#[tokio::test]
async fn a_corrupt_file_is_refused_with_path_and_reason_and_left_alone() {
    let (_directory, path) = directory();
    for corrupt in [&b"{\"a\": \"1\","[..], b"[]", b"{\"a\": 1}", b"{} x", b"\xff\xfe", b" "] {
        fs::write(&path, corrupt).unwrap();
        let error = FileMemory::open(&path).await.unwrap_err();
        assert_eq!(error.status(), Status::DataLoss);
        let text = error.to_string();
        assert!(text.contains("memory.json") && text.contains("JSON object of strings"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), corrupt);
    }
    fs::write(&path, "").unwrap();
    FileMemory::open(&path).await.unwrap();
}

#[tokio::test]
async fn places_that_cannot_hold_a_file_are_typed_errors() {
    let (directory, path) = directory();
    let missing = FileMemory::open(directory.path().join("no/where.json")).await.unwrap_err();
    assert_eq!(missing.status(), Status::NotFound);
    assert!(missing.to_string().contains("where.json"), "{missing}");
    assert!(FileMemory::open(directory.path()).await.is_err());
    assert!(FileMemory::open("/").await.is_err());
    assert!(FileMemory::open("").await.is_err());

    // A write that fails changes nothing for readers.
    let memory = FileMemory::open(&path).await.unwrap();
    memory.set("a", "1").await.unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("in the way"), "").unwrap();
    memory.set("a", "2").await.unwrap_err();
    assert_eq!(memory.get("a").await.unwrap().as_deref(), Some("1"));
    fs::remove_dir_all(&path).unwrap();
    memory.set("a", "3").await.unwrap();
    assert_eq!(memory.get("a").await.unwrap().as_deref(), Some("3"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_keeps_its_permissions_and_its_link() {
    use std::os::unix::fs::PermissionsExt;

    let (directory, path) = directory();
    fs::write(&path, "{}").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let link = directory.path().join("link.json");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let memory = FileMemory::open(&link).await.unwrap();
    memory.set("a", "1").await.unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&path).unwrap().contains("\"a\""));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}

#[tokio::test]
async fn a_change_that_is_given_up_is_whole_or_absent() {
    let (_directory, path) = directory();
    let memory = FileMemory::open(&path).await.unwrap().deadline(Duration::ZERO);
    let late = memory.set("a", "1").await;
    if let Err(error) = late {
        assert_eq!(error.status(), Status::DeadlineExceeded);
    }
    // The next change waits its turn and finds the first one done or not begun.
    let memory = memory.deadline(Duration::from_secs(60));
    memory.set("b", "2").await.unwrap();
    let written: BTreeMap<String, String> =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        written.keys().collect::<Vec<_>>(),
        memory.list("").await.unwrap().iter().collect::<Vec<_>>()
    );
}

#[derive(Clone, Debug)]
enum Change {
    Set(String, String),
    Delete(String),
    Reopen,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        4 => ("[ab/\u{e4}]{0,3}", ".{0,8}").prop_map(|(key, value)| Change::Set(key, value)),
        2 => "[ab/\u{e4}]{0,3}".prop_map(Change::Delete),
        1 => Just(Change::Reopen),
    ];
    prop::collection::vec(change, 0..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_file_behaves_like_a_sorted_map(changes in changes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (_directory, path) = directory();
            let mut memory = FileMemory::open(&path).await.unwrap();
            let mut model = BTreeMap::new();
            for change in changes {
                match change {
                    Change::Set(key, value) => {
                        memory.set(&key, &value).await.unwrap();
                        model.insert(key, value);
                    }
                    Change::Delete(key) => {
                        memory.delete(&key).await.unwrap();
                        model.remove(&key);
                    }
                    Change::Reopen => {
                        drop(memory);
                        memory = FileMemory::open(&path).await.unwrap();
                    }
                }
                for prefix in ["", "a", "a/", "ä", "zz"] {
                    let expected: Vec<_> =
                        model.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
                    assert_eq!(memory.list(prefix).await.unwrap(), expected);
                }
            }
            for (key, value) in model {
                assert_eq!(memory.get(&key).await.unwrap(), Some(value));
            }
        });
    }
}
