//! `talk` over a store, killed again and again while it talks and while its tool runs, and what is
//! left of the conversation.
//!
//! `KILLS` says how often (30), `SEED` with which numbers (1); when the kill comes within a turn or a
//! write is up to the machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use antiphon::agent::{
    InvocationContext, Part, Role, SessionSnapshot, SnapshotReader, SqliteSessionStore,
    ledger::LEDGER, message::ToolResponse,
};
use antiphon_testkit::openai::{Pace, Reply, Rule, Script, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How many turns the conversation has, at the least.
const TURNS: usize = 50;
/// How long the program may take for what it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The tool: it sleeps up to 300 ms and then writes down its call.
const TOOL: &str = r#"sleep 0.$(($(od -An -N1 -tu1 /dev/urandom) % 3))$(($(od -An -N1 -tu1 /dev/urandom) % 10))
echo "$ANTIPHON_CALL_ID" >> calls.txt
echo '{"filed": true}'"#;

#[test]
fn nothing_announced_is_lost_and_no_call_is_made_twice() {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let (kills, seed) = (number("KILLS", 30), number("SEED", 1));
    println!("seed {seed}, {kills} kills");
    let mut random = Random(seed);
    let mut talk = Talk::new();
    for kill in 0..kills {
        let told = talk.turns();
        // As many turns as are left for each kill, and sometimes none: it is killed while it starts.
        let share = TURNS.saturating_sub(told) as u64 / (kills - kill);
        let last = TURNS.max(told + 5);
        let wanted = random.below(2 * share + 1).min((last - told) as u64);
        let process = talk.spawn(last);
        for _ in 0..wanted {
            talk.announced.push(process.next_commit().expect("it ended by itself"));
        }
        thread::sleep(Duration::from_millis(random.below(700)));
        talk.announced.extend(process.kill());
    }
    let process = talk.spawn(TURNS.max(talk.turns() + 1));
    talk.announced.extend(process.end());
    // What a tool that outlived its caller is still to write.
    thread::sleep(Duration::from_millis(500));
    talk.verify();
}

/// The conversation: its folder, and the server that it is held with.
struct Talk {
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
    url: String,
    /// The snapshots that the program told of.
    announced: Vec<String>,
}

impl Talk {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let call = Rule::on_text("file", Reply::call("file", json!({ "what": "it" })));
        let script = Script::auto()
            .reply(Rule::on_tool_output("file", Reply::spoken("It is filed.", 60)))
            .reply(call)
            .reply(Rule::always(Reply::spoken("I see.", 60)))
            .pace(fast());
        let server = Server::without_records(script);
        let serving = runtime.block_on(server.listen(None)).unwrap();
        let url = serving.url().to_owned();
        // It serves until the runtime ends.
        runtime.spawn(async move {
            let _serving = serving;
            std::future::pending::<()>().await;
        });
        let folder = tempfile::tempdir().unwrap();
        let tools = json!([{
            "name": "file",
            "description": "Files something.",
            "parameters": { "type": "object" },
            "command": ["sh", "-c", TOOL],
        }]);
        fs::write(folder.path().join("tools.json"), tools.to_string()).unwrap();
        fs::write(folder.path().join("calls.txt"), "").unwrap();
        Self { folder, runtime, url, announced: Vec::new() }
    }

    /// Starts the program, which goes on with the turn after the last one in the store, up to the
    /// turn of this number.
    fn spawn(&self, last: usize) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
        command
            .args(["talk", "--provider", "openai", "--url", &self.url, "--output", "none"])
            .args(["--events", "json", "--tools", "tools.json", "--store", "talk.db"]);
        if let Some(latest) = self.latest() {
            command.args(["--resume", latest.session_id.as_deref().unwrap()]);
        }
        for turn in self.turns() + 1..=last {
            command.args(["--text", &words(turn)]);
        }
        Process::spawn(command.current_dir(self.folder.path()))
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("talk.db")
    }

    fn latest(&self) -> Option<SessionSnapshot> {
        self.read(async |store, cx| {
            let session = only_session(&store, &cx).await?;
            store.get_latest_snapshot(&cx, &session).await.unwrap()
        })
    }

    /// The number of the last turn in the store.
    fn turns(&self) -> usize {
        let latest = self.latest();
        latest.as_ref().map_or(0, |row| turns_of(row).into_iter().max().unwrap_or(0))
    }

    fn read<T>(
        &self,
        work: impl AsyncFnOnce(SqliteSessionStore, InvocationContext) -> Option<T>,
    ) -> Option<T> {
        let path: &Path = &self.path();
        if !path.exists() {
            return None;
        }
        self.runtime.block_on(async {
            let store = SqliteSessionStore::open(path).await.unwrap();
            work(store, InvocationContext::new()).await
        })
    }

    fn verify(&self) {
        let rows = self
            .read(async |store, cx| {
                let session = only_session(&store, &cx).await?;
                let listed = store.snapshots(&cx, &session, None, usize::MAX).await.unwrap();
                let mut rows = Vec::new();
                for summary in listed {
                    let id = summary.snapshot.snapshot_id;
                    rows.push(store.get_snapshot(&cx, &id).await.unwrap().unwrap());
                }
                Some(rows)
            })
            .unwrap();
        let mut times = BTreeMap::new();
        for row in &rows {
            *times.entry(row.snapshot_id.to_string()).or_insert(0) += 1;
        }
        for id in &self.announced {
            assert_eq!(times.get(id), Some(&1), "snapshot {id}");
        }
        let mut parent = None;
        for row in &rows {
            assert_eq!(row.parent_id, parent, "the lineage is no chain");
            parent = Some(row.snapshot_id.clone());
        }
        let last = rows.last().unwrap();
        let turns = turns_of(last);
        println!(
            "{} snapshots of {} turns, {} announced",
            rows.len(),
            turns.len(),
            self.announced.len()
        );
        assert!(turns.len() >= TURNS);
        assert!(turns.is_sorted() && turns.iter().collect::<BTreeSet<_>>().len() == turns.len());
        self.verify_calls(last);
    }

    fn verify_calls(&self, last: &SessionSnapshot) {
        let file = fs::read_to_string(self.folder.path().join("calls.txt")).unwrap();
        let made: Vec<&str> = file.lines().collect();
        let all: BTreeSet<&str> = made.iter().copied().collect();
        assert_eq!(all.len(), made.len(), "a call was made twice: {file}");
        let messages = &last.state.as_ref().unwrap().messages;
        let told: BTreeMap<&str, (&Part, &ToolResponse)> = messages
            .iter()
            .flat_map(|message| message.tool_responses())
            .map(|told| (told.1.id.as_deref().unwrap(), told))
            .collect();
        let well = |response: &ToolResponse| response.output == Some(json!({ "filed": true }));
        for (id, (_, response)) in &told {
            let made = all.contains(id) || !well(response);
            assert!(made, "a call that was not made is told as {response:?}");
        }
        let mut unknown = 0;
        for id in &all {
            let (part, response) = told.get(id).unwrap_or_else(|| panic!("nobody tells of {id}"));
            if !well(response) {
                let note = part.metadata_entry(LEDGER).unwrap_or(&Value::Null);
                assert_eq!(note["outcome"], "unknown", "{response:?}");
                unknown += 1;
            }
        }
        println!("{} calls made, {} told, {unknown} of them as unknown", made.len(), told.len());
        assert!(told.values().any(|(_, response)| well(response)));
    }
}

async fn only_session(store: &SqliteSessionStore, cx: &InvocationContext) -> Option<String> {
    let sessions = store.sessions(cx, None, 2).await.unwrap();
    assert!(sessions.len() < 2, "a second session began");
    Some(sessions.first()?.session_id.to_string())
}

/// What the user says in a turn. In each third the tool is needed.
fn words(turn: usize) -> String {
    match turn % 3 {
        0 => format!("Now file number {turn}"),
        _ => format!("Now hear number {turn}"),
    }
}

/// The numbers of the turns in a snapshot.
fn turns_of(row: &SessionSnapshot) -> Vec<usize> {
    let messages = row.state.as_ref().unwrap().messages.iter();
    let said = messages.filter(|message| message.role == Role::User);
    said.filter_map(|message| message.joined_text().rsplit(' ').next()?.parse().ok()).collect()
}

fn fast() -> Pace {
    let mut pace = Pace::default();
    (pace.think_ms, pace.interval_ms) = (5, 1);
    pace
}

/// The program while it talks.
struct Process {
    child: Child,
    commits: mpsc::Receiver<String>,
}

impl Process {
    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .env("OPENAI_API_KEY", "sk-test")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commits = commits(child.stdout.take().unwrap());
        Self { child, commits }
    }

    /// The next snapshot that it tells of; `None` at its end.
    fn next_commit(&self) -> Option<String> {
        match self.commits.recv_timeout(PATIENCE) {
            Ok(id) => Some(id),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(error) => panic!("no commit: {error}"),
        }
    }

    /// Kills it; gives what it had told of that was not asked for.
    fn kill(mut self) -> Vec<String> {
        // SIGKILL, where there is such a thing.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.commits.iter().collect()
    }

    /// Waits for its end.
    fn end(mut self) -> Vec<String> {
        let all = std::iter::from_fn(|| self.next_commit()).collect();
        assert!(self.child.wait().unwrap().success());
        all
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The snapshots that a program tells of.
fn commits(output: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, commits) = mpsc::channel();
    let mut output = BufReader::new(output);
    thread::spawn(move || {
        let mut line = String::new();
        // A line without its end was cut off.
        while output.read_line(&mut line).is_ok_and(|read| read > 0) && line.ends_with('\n') {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["type"] == "turn_committed" {
                let id = event["snapshot_id"].as_str().expect("a turn was not written");
                let _ = sender.send(id.to_owned());
            }
            line.clear();
        }
    });
    commits
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
