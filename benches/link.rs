//! What the link adds to a voice turn: `cargo bench --features sqlite --bench link`.
//!
//! A session talks with a provider in this process, in virtual time, without an agent and with one
//! over each store. Printed is the processor time of a turn at turn 10 and at turn 10,000: of the
//! thread that the session's task is on, which the provider and this program share, and of the whole
//! process with the store's threads. The difference to the session without an agent is what the link
//! adds; it fails where that is more than 1 ms on the session's thread (`BAR_US` sets another bar, in
//! microseconds). `TURNS` asks for another number of turns, `DIR` for another directory.
//!
//! Where `strace` is there, a short conversation over the SQLite store is run under it, and what the
//! session's thread did with files is counted apart from what others did: it must neither sync nor
//! read nor write nor lock one.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use antiphon::{
    agent::{
        Agent, FileSessionStore, InMemorySessionStore, SessionStore, SqliteSessionStore, Voice,
    },
    audio::AudioFrame,
    live::{LiveConfig, LiveEvent, ReplyOutcome, TextUpdate},
    session::{AgentSession, EventKind, EventStream, IdleConfig},
};
use antiphon_testkit::{FarEnd, ScriptedProvider};
use rustix::time::{ClockId, clock_gettime};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Bytes that user and agent say in a turn, each.
const SAID: usize = 300;
/// Turns whose median is reported.
const WINDOW: usize = 20;
/// Turns of the conversation that is traced.
const TRACED: usize = 50;
/// What a thread may do with a file that takes its time.
const CALLS: &str = "fsync,fdatasync,sync_file_range,open,openat,read,pread64,readv,write,pwrite64,\
                     writev,ftruncate,fcntl,flock,unlink,rename";

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).filter(|text| text != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["talk", store, path, turns] => talk_and_tell(store, Path::new(path), turns.parse()?),
        ["traced", path] => talk("sqlite", Path::new(path), TRACED).map(drop),
        _ => all(),
    }
}

/// Each conversation in a process of its own, so that none has the memory of another.
fn all() -> Outcome {
    let turns: usize = env::var("TURNS").map_or(Ok(10_000), |text| text.parse())?;
    // Where the disk is one, which a temporary directory need not be.
    let base = env::var_os("DIR").map_or_else(env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(base)?;
    let bar: i64 = env::var("BAR_US").map_or(Ok(1_000), |text| text.parse())?;
    println!("CPU us of a turn     turn   session's thread   process");
    let mut alone = Vec::new();
    let mut above = Vec::new();
    for store in ["none", "memory", "files", "sqlite"] {
        let path = directory.path().join(store);
        let path = path.to_string_lossy();
        let output = Command::new(env::current_exe()?)
            .args(["talk", store, &*path, &turns.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        let told = String::from_utf8(output.stdout)?;
        print!("{told}");
        if !output.status.success() {
            return Err(format!("{store}: {}", output.status).into());
        }
        let thread = |line: &str| line.split_whitespace().nth(2)?.parse::<i64>().ok();
        let costs: Vec<i64> = told.lines().filter_map(thread).collect();
        if store == "none" {
            alone = costs;
            continue;
        }
        let adds: Vec<_> = costs.iter().zip(&alone).map(|(cost, alone)| cost - alone).collect();
        if adds.len() != 2 || adds.iter().any(|adds| *adds > bar) {
            above.push(format!("{store} adds {adds:?} us"));
        }
    }
    trace(directory.path())?;
    match above.is_empty() {
        true => Ok(()),
        false => Err(format!("above {bar} us: {}", above.join(", ")).into()),
    }
}

/// What a turn costs.
#[derive(Clone, Copy)]
struct Cost {
    thread: Duration,
    process: Duration,
}

impl Cost {
    fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
        };
        Self { thread: read(ClockId::ThreadCPUTime), process: read(ClockId::ProcessCPUTime) }
    }
}

fn talk_and_tell(store: &str, path: &Path, turns: usize) -> Outcome {
    let costs = talk(store, path, turns + WINDOW / 2)?;
    for mark in [10, turns] {
        let from = mark.saturating_sub(WINDOW / 2).min(costs.len().saturating_sub(WINDOW));
        let around = &costs[from..(from + WINDOW).min(costs.len())];
        let median = |of: fn(&Cost) -> Duration| {
            let mut all: Vec<_> = around.iter().map(of).collect();
            all.sort_unstable();
            all[all.len() / 2].as_micros()
        };
        let (thread, process) = (median(|cost| cost.thread), median(|cost| cost.process));
        println!("{store:<16} {mark:>8} {thread:>18} {process:>9}");
    }
    Ok(())
}

/// A conversation of so many turns; what each cost. This thread is the session's.
fn talk(store: &str, path: &Path, turns: usize) -> Outcome<Vec<Cost>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let store: Option<Arc<dyn SessionStore>> = match store {
            "none" => None,
            "memory" => Some(Arc::new(InMemorySessionStore::new())),
            "files" => Some(Arc::new(FileSessionStore::open(path).await?)),
            _ => Some(Arc::new(SqliteSessionStore::open(path).await?)),
        };
        let provider = ScriptedProvider::default();
        let mut builder = AgentSession::builder(Arc::new(provider.clone()));
        let linked = store.is_some();
        if let Some(store) = store {
            let agent: Agent =
                Agent::custom(
                    "bench",
                    |_cx, _responder, runner| async move { Ok(runner.result()) },
                )
                .voice(Voice::new("You are a clerk."))
                .shared_store(store)
                .build();
            builder = builder.agent(&agent);
        }
        let session = builder.build()?;
        let mut events = session.events();
        session.start(LiveConfig::new(), IdleConfig::OFF).await?;
        let mut far = provider.far_end().await;
        let mut costs = Vec::with_capacity(turns);
        for turn in 0..turns {
            let before = Cost::now();
            say(&far, turn);
            over(&mut events, linked).await?;
            far.drain();
            let now = Cost::now();
            costs.push(Cost {
                thread: now.thread - before.thread,
                process: now.process - before.process,
            });
        }
        session.shutdown(Duration::from_secs(10)).await?;
        Ok(costs)
    })
}

/// A turn: the user speaks, and is answered with 100 ms of sound.
fn say(far: &FarEnd, turn: usize) {
    let (said, reply) = (format!("u{turn}"), format!("r{turn}"));
    let item = format!("i{turn}");
    let text = TextUpdate::Final(Some("x".repeat(SAID)));
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::SpeechStopped { audio_end_ms: None })
        .emit(LiveEvent::InputTranscript { item: said.as_str().into(), text, speaker: None })
        .emit(LiveEvent::ReplyStarted { reply: reply.as_str().into(), request: None })
        .emit(LiveEvent::OutputTranscript {
            reply: reply.as_str().into(),
            item: item.as_str().into(),
            text: TextUpdate::Delta("y".repeat(SAID)),
        })
        .emit(LiveEvent::Audio {
            reply: reply.as_str().into(),
            item: item.as_str().into(),
            content_index: 0,
            frame: AudioFrame::from_pcm16(24_000, &[7; 2_400]),
        })
        .emit(LiveEvent::ReplyDone {
            reply: reply.as_str().into(),
            outcome: ReplyOutcome::Completed,
            usage: None,
        });
}

/// Waits for the end of the turn, and until it is on disk where it is to be.
async fn over(events: &mut EventStream, linked: bool) -> Outcome {
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::TurnFinished { .. } if !linked => return Ok(()),
            EventKind::TurnCommitted { snapshot_id: Some(_), .. } => return Ok(()),
            EventKind::TurnCommitted { error, .. } => return Err(format!("{error:?}").into()),
            _ => {}
        }
    }
    Err("the session is over".into())
}

/// Counts what the session's thread and the others do with files.
fn trace(directory: &Path) -> Outcome {
    let log = directory.join("strace.log");
    let status = Command::new("strace")
        .args(["-f", "-qq", "-y", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(&log)
        .arg(env::current_exe()?)
        .arg("traced")
        .arg(directory.join("traced.db"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("strace: {status}").into()),
        Err(error) => {
            println!("not traced: strace: {error}");
            return Ok(());
        }
    }
    let log = fs::read_to_string(log)?;
    // The first line is of the first thread: the session's.
    let session = log.split_whitespace().next().ok_or("strace says nothing")?.to_owned();
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("traced.db")) {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(call)) = (words.next(), words.next()) else { continue };
        let call = call.split('(').next().unwrap_or(call);
        counts.entry(call).or_default()[usize::from(thread != session)] += 1;
    }
    println!("{TRACED} turns over SQLite: calls on its files");
    for (call, [own, others]) in &counts {
        println!("{call:<12} session's thread {own:>5}, others {others:>5}");
    }
    match counts.values().map(|[own, _]| own).sum() {
        0 => Ok(()),
        own => Err(format!("the session's thread touched the store's files {own} times").into()),
    }
}
