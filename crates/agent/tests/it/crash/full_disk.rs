//! A session on a disk that is full: a process that may not write larger files.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use antiphon_agent::{
    AgentInit, InvocationContext, Message, RuntimeError, SessionSnapshot, SessionState,
    StoreErrorKind,
};
use jiff::Timestamp;

use super::worker::{Kind, Opened, accountant};

const JOB: &str = "ANTIPHON_FULL_DISK_JOB";

#[test]
fn a_session_in_files_on_a_full_disk_says_so_and_goes_on() {
    says_so_and_goes_on(Kind::Files);
}

#[cfg(feature = "sqlite")]
#[test]
fn a_session_in_a_sqlite_file_on_a_full_disk_says_so_and_goes_on() {
    says_so_and_goes_on(Kind::Sqlite);
}

fn says_so_and_goes_on(kind: Kind) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    // The shell's limit is inherited, and so is that the signal is ignored: writes then err.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\""])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "crash::full_disk::talks_when_told_to", "--nocapture"])
        .env(JOB, format!("{kind:?}|{}", path.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let ids: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("committed ")).collect();
    assert!(!ids.is_empty() && said.contains("\nthe disk is full\n"), "{said}");

    // With room again the conversation goes on from the last turn that was written.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, cx) = (Opened::open(kind, &path).await, InvocationContext::new());
        for id in &ids {
            assert!(store.reader().get_snapshot(&cx, id).await.unwrap().is_some());
        }
        let latest = store.reader().get_latest_snapshot(&cx, "s").await.unwrap().unwrap();
        assert_eq!(Some(&&*latest.snapshot_id), ids.last());
        let agent = accountant(store.shared());
        let output = agent.run_text(&cx, "There is room.", AgentInit::session("s")).await.unwrap();
        assert!(output.snapshot_id.is_some());
    });
}

/// Talks until the disk is full, and on.
#[test]
fn talks_when_told_to() {
    let Ok(job) = env::var(JOB) else { return };
    let (kind, path) = job.split_once('|').unwrap();
    let kind = Kind::parse(kind);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, cx) =
            (Opened::open(kind, Path::new(path)).await.shared(), InvocationContext::new());
        let agent = accountant(store.clone());
        let mut connection = agent.connect(&cx, AgentInit::session("s")).await.unwrap();
        let mut unwritten = 0;
        // Turns go on although they cannot be written any more.
        for turn in 0..100 {
            connection.send_text("x".repeat(10_000)).await.unwrap();
            let end = loop {
                if let Some(end) = connection.next_chunk().await.unwrap().turn_end {
                    break end;
                }
            };
            match end.snapshot_id {
                Some(id) if unwritten == 0 => println!("\ncommitted {id}"),
                Some(id) => panic!("{id} was written after {unwritten} that were not"),
                None => unwritten += 1,
            }
            if unwritten == 3 {
                break;
            }
            assert!(turn < 99, "the disk does not fill up");
        }
        let output = connection.output().await.unwrap();
        assert!(output.error.is_none(), "{output:?}");

        // What the store says of it.
        let mut row = SessionSnapshot::new("", "s", Timestamp::UNIX_EPOCH);
        row.state = Some(SessionState {
            messages: vec![Message::user("x".repeat(100_000))].into(),
            ..Default::default()
        });
        let saved = store.save_snapshot(&cx, Some("more"), &|_| Ok(Some(row.clone()))).await;
        let Err(RuntimeError::Store(error)) = saved else { panic!("{saved:?}") };
        // To SQLite a limit on files is some failure of the system.
        let expected = match kind {
            Kind::Files => StoreErrorKind::Full,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => StoreErrorKind::Io,
        };
        assert_eq!(error.kind, expected, "{error}");
        assert_eq!(store.get_snapshot(&cx, "more").await.unwrap(), None);
        println!("\nthe disk is full");
    });
}
