//! Processes that are killed while they write, and what is left of their work.
//!
//! `KILLS` says how often (20), `SEED` with which numbers (1); when the kill comes within a write is
//! up to the machine.

mod calls;
mod full_disk;
mod worker;

use std::{
    collections::HashMap,
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use antiphon_agent::{InvocationContext, SnapshotStatus};

use self::worker::{Kind, Opened, Turn, digest};

/// How long a worker may take for what it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn nothing_announced_is_lost_by_the_file_store() {
    kill_again_and_again(Kind::Files);
}

#[cfg(feature = "sqlite")]
#[test]
fn nothing_announced_is_lost_by_the_sqlite_store() {
    kill_again_and_again(Kind::Sqlite);
}

fn kill_again_and_again(kind: Kind) {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let (kills, seed) = (number("KILLS", 20), number("SEED", 1));
    println!("seed {seed}, {kills} kills");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut random = Random(seed);
    let mut announced: HashMap<String, Vec<Turn>> = HashMap::new();
    for round in 0..kills {
        // A few rounds go on with the same sessions, so that conversations stay short.
        let sessions = format!("{}", round / 4);
        let mut worker = Worker::spawn(kind, &path, &sessions, random.next());
        // Sometimes two are at the same sessions.
        let other = random.next();
        let rival = (round % 3 == 1).then(|| Worker::spawn(kind, &path, &sessions, other));
        // Sometimes while it starts.
        let wanted = if round % 5 == 4 { 0 } else { 1 + random.below(24) };
        let mut turns: Vec<_> = (0..wanted).map_while(|_| worker.next_turn()).collect();
        assert_eq!(turns.len() as u64, wanted, "the worker ended by itself: seed {seed}");
        thread::sleep(Duration::from_micros(random.below(20_000)));
        turns.extend(worker.kill());
        turns.extend(rival.into_iter().flat_map(Worker::kill));
        for turn in turns {
            announced.entry(turn.session.clone()).or_default().push(turn);
        }
        let last = round + 1 == kills;
        verify(
            kind,
            &path,
            |session| last || session.starts_with(&format!("{sessions}-")),
            &announced,
        );
    }
    let all: usize = announced.values().map(Vec::len).sum();
    println!("{all} turns in {} sessions", announced.len());
    assert!(all as u64 > kills);
}

/// Opens the store after a kill and looks through it.
fn verify(
    kind: Kind,
    path: &Path,
    wanted: impl Fn(&str) -> bool,
    announced: &HashMap<String, Vec<Turn>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, cx) = (Opened::open(kind, path).await, InvocationContext::new());
        let sessions = store.sessions().await;
        for session in announced.keys().filter(|session| wanted(session)) {
            assert!(sessions.contains(session), "session {session} is gone");
        }
        for session in sessions.iter().filter(|session| wanted(session)) {
            let rows = store.snapshots(session).await;
            let mut found = HashMap::new();
            let mut latest = None;
            for id in &rows {
                // Nothing is there in part, be it announced or not.
                let row = store.reader().get_snapshot(&cx, id).await.unwrap().unwrap();
                assert_eq!(row.status(), SnapshotStatus::Completed);
                assert_eq!(row.session_id.as_deref(), Some(&**session));
                let state = row.state.unwrap();
                let custom = state.custom.unwrap();
                assert_eq!(custom["digest"], digest(&state.messages));
                let turns = custom["turns"].as_u64().unwrap();
                assert_eq!(state.messages.len() as u64, 2 * turns);
                assert_eq!(state.artifacts[0].parts[0].as_text(), Some(&*turns.to_string()));
                if let Some(parent) = &row.parent_id {
                    let parent = store.reader().get_snapshot(&cx, parent).await.unwrap();
                    assert!(parent.is_some(), "the parent of {id} is gone");
                }
                latest = latest.max(Some((row.created_at, row.snapshot_id.clone())));
                found.insert(row.snapshot_id.to_string(), turns);
            }
            for turn in announced.get(session).into_iter().flatten() {
                assert_eq!(found.get(&turn.snapshot), Some(&turn.turns), "{turn:?} is gone");
            }
            let row = store.reader().get_latest_snapshot(&cx, session).await.unwrap().unwrap();
            assert_eq!(Some((row.created_at, row.snapshot_id)), latest);
        }
    });
}

/// A process of this program that commits turns and announces them.
struct Worker {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Worker {
    fn spawn(kind: Kind, path: &Path, sessions: &str, seed: u64) -> Self {
        let job = format!("{kind:?}|{sessions}|{seed}|{}", path.display());
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "crash::worker::works_when_told_to", "--nocapture"])
            .env(worker::JOB, job)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { process, lines }
    }

    fn next_turn(&mut self) -> Option<Turn> {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).ok()?;
            if let Some(turn) = Turn::parse(&line) {
                return Some(turn);
            }
        }
    }

    /// Kills it; gives what it had announced besides.
    fn kill(mut self) -> Vec<Turn> {
        // SIGKILL, where there is such a thing.
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.iter().filter_map(|line| Turn::parse(&line)).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
