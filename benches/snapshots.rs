//! What a turn costs on each store of snapshots, and whether that grows with the conversation:
//! `cargo bench --features full --bench snapshots`, on Linux.
//!
//! One session per store is grown to `TURNS` (10,000) turns of 300 bytes from the user and 300 from
//! the agent. Each turn is an invocation of its own that goes on from the snapshot before, so all
//! that the runtime and the store take for it is counted. The agent is a function: one over a model
//! would hand it the whole conversation each time, whatever the store. Printed are medians of the 50 turns around each mark:
//! bytes that the process had written to the disk, processor time, time. Then what is left: memory,
//! and files against the text of the messages. A fresh process then resumes the conversation and
//! reads metadata. Last, 500 sessions commit at the same time.
//!
//! The file store of Genkit is printed beside where its packages are installed (`npm install` in
//! `benches/peers/genkit-store`) and `node` is there.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon::agent::{
    Agent, AgentFinishReason, AgentInit, FileSessionStore, InMemorySessionStore, InvocationContext,
    Message, SessionSnapshot, SessionState, SessionStore, SnapshotStatus, SqliteSessionStore,
    TurnResult,
};
use rustix::time::{ClockId, clock_gettime};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// What each side says in a turn, in bytes.
const SAID: usize = 300;
const MARKS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Turns around a mark.
const WINDOW: usize = 50;
/// Sessions that commit at the same time, and how often each.
const SESSIONS: usize = 500;
const COMMITS: usize = 20;
const SESSION: &str = "bench";

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).filter(|text| text != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["grow", kind, path, turns] => run(grow(kind, Path::new(path), turns.parse()?)),
        ["resume", kind, path] => run(resume(kind, Path::new(path))),
        ["together", kind, path] => run(together(kind, Path::new(path))),
        _ => all(),
    }
}

/// Each measurement in a process of its own, so that none has the memory of another.
fn all() -> Outcome {
    let turns: usize = env::var("TURNS").map_or(Ok(10_000), |text| text.parse())?;
    // Where the disk is one, which a temporary directory need not be.
    let base = env::var_os("DIR").map_or_else(env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(base)?;
    println!("store     turn     bytes  CPU us  wall us");
    for kind in ["memory", "files", "sqlite"] {
        let path = directory.path().join(kind);
        again(&["grow", kind, &path.to_string_lossy(), &turns.to_string()])?;
        // Now that the process has closed them.
        if path.exists() {
            let times = size(&path)? as f64 / (2 * SAID * turns) as f64;
            println!("{kind:<8} files {times:.2} times the text");
        }
    }
    genkit(turns)?;
    for kind in ["files", "sqlite"] {
        again(&["resume", kind, &directory.path().join(kind).to_string_lossy()])?;
    }
    for kind in ["files", "sqlite"] {
        let path = directory.path().join(format!("together-{kind}"));
        again(&["together", kind, &path.to_string_lossy()])?;
    }
    Ok(())
}

fn again(arguments: &[&str]) -> Outcome {
    let status = Command::new(env::current_exe()?).args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(format!("{arguments:?}: {status}").into()) }
}

fn run(measurement: impl Future<Output = Outcome>) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measurement)
}

async fn open(kind: &str, path: &Path) -> Outcome<Arc<dyn SessionStore>> {
    Ok(match kind {
        "memory" => Arc::new(InMemorySessionStore::new()),
        "files" => Arc::new(FileSessionStore::open(path).await?),
        _ => Arc::new(SqliteSessionStore::open(path).await?),
    })
}

/// Grows a session.
async fn grow(kind: &str, path: &Path, turns: usize) -> Outcome {
    let agent = agent(open(kind, path).await?);
    let cx = InvocationContext::new();
    let said = "x".repeat(SAID);
    let mut init = AgentInit::session(SESSION);
    let mut costs = Vec::with_capacity(turns);
    for _ in 0..turns {
        let before = Cost::now();
        let output = agent.run_text(&cx, said.as_str(), init).await.map_err(|e| e.to_string())?;
        costs.push(Cost::now().since(&before));
        let id = output.snapshot_id.ok_or("a turn was not written")?;
        init = AgentInit::snapshot(id);
    }
    let at = |mark: usize| {
        let from = mark.saturating_sub(WINDOW / 2).min(costs.len().saturating_sub(WINDOW));
        Cost::median(&costs[from..(from + WINDOW).min(costs.len())])
    };
    for mark in MARKS.into_iter().filter(|mark| *mark <= turns) {
        let Cost { bytes, cpu, wall } = at(mark);
        let (cpu, wall) = (cpu.as_micros(), wall.as_micros());
        println!("{kind:<8} {mark:>5} {bytes:>9} {cpu:>7} {wall:>8}");
    }
    let (early, late) = (at(100), at(turns));
    let ratio = |late: f64, early: f64| if early > 0.0 { late / early } else { 1.0 };
    println!(
        "{kind:<8} turn {turns} : turn 100  bytes {:.2}, CPU {:.2}; RSS {} MB",
        ratio(late.bytes as f64, early.bytes as f64),
        ratio(late.cpu.as_secs_f64(), early.cpu.as_secs_f64()),
        resident()? / 1_000_000,
    );
    Ok(())
}

/// What a process that starts takes to go on.
async fn resume(kind: &str, path: &Path) -> Outcome {
    let cx = InvocationContext::new();
    let started = Instant::now();
    let store = open(kind, path).await?;
    let opened = started.elapsed();
    let metadata = store.read_latest_metadata(&cx, SESSION).await?.ok_or("the session is gone")?;
    let read = started.elapsed() - opened;
    let agent = agent(store);
    let started = Instant::now();
    let output = agent.run_text(&cx, "Go on.", AgentInit::snapshot(metadata.snapshot_id)).await;
    output.map_err(|error| error.to_string())?;
    println!(
        "{kind:<8} opened in {:.1} ms, latest metadata in {:.2} ms, first turn after {:.1} ms",
        opened.as_secs_f64() * 1e3,
        read.as_secs_f64() * 1e3,
        started.elapsed().as_secs_f64() * 1e3,
    );
    Ok(())
}

/// How fast sessions commit that do so at the same time.
async fn together(kind: &str, path: &Path) -> Outcome {
    let store = open(kind, path).await?;
    let started = Instant::now();
    let mut sessions = tokio::task::JoinSet::new();
    for number in 0..SESSIONS {
        let store = store.clone();
        sessions.spawn(async move {
            let (cx, session) = (InvocationContext::new(), format!("session-{number}"));
            let (mut state, mut parent) = (SessionState::default(), None);
            for _ in 0..COMMITS {
                state.messages.push(Message::user("x".repeat(SAID)));
                state.messages.push(Message::model("x".repeat(SAID)));
                let mut row = SessionSnapshot::new("", session.as_str(), jiff::Timestamp::now());
                row.status = Some(SnapshotStatus::Completed);
                row.parent_id = parent;
                row.state = Some(state.clone());
                let written = store.save_snapshot(&cx, None, &|_| Ok(Some(row.clone()))).await?;
                parent = written.map(|row| row.snapshot_id);
            }
            Outcome::Ok(())
        });
    }
    while let Some(done) = sessions.join_next().await {
        done??;
    }
    let rate = (SESSIONS * COMMITS) as f64 / started.elapsed().as_secs_f64();
    println!("{kind:<8} {SESSIONS} sessions at once: {rate:.0} commits/s");
    Ok(())
}

/// The file store of Genkit, whose turns write the whole conversation.
fn genkit(turns: usize) -> Outcome {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/genkit-store");
    if !directory.join("node_modules/genkit").is_dir() {
        println!("genkit   not installed: npm install in {}", directory.display());
        return Ok(());
    }
    // More take minutes.
    let turns = turns.min(2_000).to_string();
    let node = env::var_os("NODE").unwrap_or_else(|| "node".into());
    let output = Command::new(node)
        .args(["growth.mjs", "file", &turns])
        .current_dir(&directory)
        .stderr(Stdio::inherit())
        .output()?;
    for line in String::from_utf8(output.stdout)?.lines() {
        let told: serde_json::Value = serde_json::from_str(line)?;
        match told["turn"].as_u64() {
            Some(turn) => println!(
                "genkit   {turn:>5} {:>9} {:>7} {:>8}",
                told["bytes"], told["cpu_us"], told["wall_us"]
            ),
            None => println!(
                "genkit   {turns} turns: RSS {} MB; files {:.0} times the text",
                told["rss"].as_u64().unwrap_or(0) / 1_000_000,
                told["size"].as_f64().unwrap_or(0.0)
                    / (2.0 * SAID as f64 * turns.parse::<f64>()?),
            ),
        }
    }
    Ok(())
}

fn agent(store: Arc<dyn SessionStore>) -> Agent {
    let agent = Agent::custom("bench", |_cx, _responder, runner| async move {
        let session = &runner;
        runner
            .run(|_cx, _input| async move {
                session.add_messages([Message::model("x".repeat(SAID))]);
                Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
            })
            .await?;
        Ok(runner.result())
    });
    agent.shared_store(store).build()
}

/// What the process has used so far, or what a turn cost.
#[derive(Clone, Copy)]
struct Cost {
    bytes: u64,
    cpu: Duration,
    wall: Duration,
}

impl Cost {
    fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let wall = clock_gettime(ClockId::Monotonic);
        let duration = |time: rustix::time::Timespec| {
            Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
        };
        Self {
            bytes: number("/proc/self/io", "write_bytes:").unwrap_or(0),
            cpu: duration(cpu),
            wall: duration(wall),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            cpu: self.cpu - before.cpu,
            wall: self.wall - before.wall,
        }
    }

    fn median(costs: &[Self]) -> Self {
        fn middle<T: Ord + Copy>(costs: &[Cost], of: fn(&Cost) -> T) -> T {
            let mut values: Vec<T> = costs.iter().map(of).collect();
            values.sort_unstable();
            values[values.len() / 2]
        }
        Self {
            bytes: middle(costs, |cost| cost.bytes),
            cpu: middle(costs, |cost| cost.cpu),
            wall: middle(costs, |cost| cost.wall),
        }
    }
}

/// Memory of this process that is in use, in bytes.
fn resident() -> Outcome<u64> {
    Ok(number("/proc/self/status", "VmRSS:").ok_or("there is no /proc")? * 1024)
}

/// The number behind `name` in a file of the system.
fn number(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How long a file is, or all in a directory, in bytes.
fn size(path: &Path) -> Outcome<u64> {
    if path.is_file() {
        return Ok(path.metadata()?.len());
    }
    fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}
