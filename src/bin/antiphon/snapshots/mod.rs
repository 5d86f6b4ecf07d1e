//! `antiphon snapshots`.

mod print;
mod tree;

use std::{
    fmt::Display,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use antiphon::agent::{
    Agent, AgentResult, Caller, InvocationContext, RuntimeError, RuntimeLimits, SessionSnapshot,
    SnapshotStatus, SnapshotSummary,
};
use serde::Serialize;
use serde_json::json;

use self::print::Printer;
use crate::{
    args::{SnapshotsArguments, SnapshotsCommand, StoreArguments},
    failure::Failure,
    store::Store,
};

/// Does what the command line says.
pub fn run(arguments: SnapshotsArguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let SnapshotsArguments { command, stale_after } = arguments;
    runtime.block_on(async {
        let open = async |common: &StoreArguments| Desk::open(common, stale_after).await;
        match command {
            SnapshotsCommand::List { common } => {
                let desk = open(&common).await?;
                let mut sessions = desk.store.sessions(&desk.cx).await?;
                sessions.iter_mut().for_each(|session| desk.look(&mut session.latest));
                print(|out| Printer::new(out, common.json).sessions(&sessions))
            }
            SnapshotsCommand::History { id, common } => {
                open(&common).await?.history(id.as_deref(), common.json).await
            }
            SnapshotsCommand::Show { id, common } => {
                let snapshot = open(&common).await?.read(&id).await?;
                print(|out| Printer::new(out, common.json).snapshot(&snapshot))
            }
            SnapshotsCommand::Diff { from, to, common } => {
                let desk = open(&common).await?;
                let (from, to) = (desk.read(&from).await?, desk.read(&to).await?);
                print(|out| Printer::new(out, common.json).difference(&from, &to))
            }
            SnapshotsCommand::Export { id, output, common } => {
                open(&common).await?.export(&id, output.as_deref()).await
            }
            SnapshotsCommand::Wait { id, within, common } => {
                open(&common).await?.wait(&id, within, common.json).await
            }
            SnapshotsCommand::Abort { id, common } => {
                open(&common).await?.abort(&id, common.json).await
            }
        }
    })
}

/// A store and in whose name it is looked through.
struct Desk {
    store: Store,
    cx: InvocationContext,
    /// Work in the background that has not said for so long that it is alive is dead.
    stale_after: Duration,
}

impl Desk {
    async fn open(common: &StoreArguments, stale_after: Duration) -> Result<Self, Failure> {
        let mut cx = InvocationContext::new();
        if let Some(scope) = &common.scope {
            cx = cx.with_caller(Caller::new("command line").scope(scope.as_str()));
        }
        Ok(Self { store: Store::open_existing(&common.store).await?, cx, stale_after })
    }

    /// A row as its work is now.
    fn look(&self, row: &mut SessionSnapshot) {
        if row.is_stale(jiff::Timestamp::now(), self.stale_after) {
            row.status = Some(SnapshotStatus::Expired);
        }
    }

    /// A snapshot with its state.
    async fn read(&self, id: &str) -> Result<SessionSnapshot, Failure> {
        let found = self.store.find(&self.cx, id).await?;
        let snapshot = self.store.snapshot(&self.cx, &found.snapshot_id).await?;
        let gone = || Failure::failed(format!("snapshot {id:?} is gone"));
        let mut snapshot = snapshot.ok_or_else(gone)?;
        self.look(&mut snapshot);
        Ok(snapshot)
    }

    async fn history(&self, id: Option<&str>, json: bool) -> Result<(), Failure> {
        let snapshot = match id {
            Some(id) => self.store.find(&self.cx, id).await?,
            None => self.store.latest(&self.cx).await?,
        };
        let session = snapshot.session_id.unwrap_or_default();
        let mut rows = self.store.snapshots(&self.cx, &session).await?;
        rows.iter_mut().for_each(|row| self.look(&mut row.snapshot));
        let mut said = Vec::with_capacity(rows.len());
        for row in &rows {
            said.push(if json { None } else { self.last_said(row).await? });
        }
        print(|out| Printer::new(out, json).history(&session, &rows, &said))
    }

    /// What the user said last.
    async fn last_said(&self, row: &SnapshotSummary) -> Result<Option<String>, Failure> {
        if row.messages.unwrap_or(0) == 0 {
            return Ok(None);
        }
        let snapshot = self.store.snapshot(&self.cx, &row.snapshot.snapshot_id).await?;
        let state = snapshot.and_then(|snapshot| snapshot.state);
        Ok(state.and_then(|state| print::last_said(&state)))
    }

    /// A session has more than one snapshot, so it becomes a line for each.
    async fn export(&self, id: &str, output: Option<&Path>) -> Result<(), Failure> {
        let found = self.store.find(&self.cx, id).await?;
        let mut text = Vec::new();
        if *found.snapshot_id == *id {
            let snapshot = self.read(id).await?;
            serde_json::to_writer_pretty(&mut text, &snapshot).map_err(Failure::failed)?;
            text.push(b'\n');
            return write(output, &text);
        }
        let mut out: Box<dyn Write> = match output {
            Some(path) => Box::new(create(path)?),
            None => Box::new(io::stdout().lock()),
        };
        for row in self.store.snapshots(&self.cx, id).await? {
            let snapshot = self.read(&row.snapshot.snapshot_id).await?;
            text.clear();
            serde_json::to_writer(&mut text, &snapshot).map_err(Failure::failed)?;
            text.push(b'\n');
            if told(out.write_all(&text))?.is_none() {
                return Ok(());
            }
        }
        told(out.flush()).map(drop)
    }

    async fn abort(&self, id: &str, json: bool) -> Result<(), Failure> {
        let id = self.work(id).await?;
        let status = self.agent().handle().abort(&self.cx, &id).await.map_err(unreadable)?;
        print_status(&id, status, json)
    }

    async fn wait(&self, id: &str, within: Option<Duration>, json: bool) -> Result<(), Failure> {
        let id = self.work(id).await?;
        let task = self.agent().task(&self.cx, id.clone());
        let row = match within {
            None => task.wait().await,
            Some(within) => {
                let late = |_| Failure::failed(format!("{id} is not over after {within:?}"));
                tokio::time::timeout(within, task.wait()).await.map_err(late)?
            }
        };
        let status = row.map_err(unreadable)?.status();
        print_status(&id, status, json)?;
        match status {
            SnapshotStatus::Completed => Ok(()),
            _ => Err(Failure::Told),
        }
    }

    /// The snapshot that stands for work.
    async fn work(&self, id: &str) -> Result<Arc<str>, Failure> {
        let found = self.store.find(&self.cx, id).await?;
        Ok(if *found.snapshot_id == *id { found.snapshot_id } else { Arc::from(id) })
    }

    /// The agent of the work may be any; this one looks at the row.
    fn agent(&self) -> Agent {
        let mut limits = RuntimeLimits::default();
        limits.stale_after = self.stale_after;
        Agent::custom("snapshots", |_cx, _responder, _runner| async { Ok(AgentResult::default()) })
            .shared_store(self.store.shared())
            .limits(limits)
            .build()
    }
}

fn unreadable(error: RuntimeError) -> Failure {
    match error.status() {
        antiphon::types::Status::NotFound => Failure::usage(error),
        _ => Failure::failed(error),
    }
}

fn print_status(id: &str, status: impl Display + Serialize, json: bool) -> Result<(), Failure> {
    print(|out| match json {
        true => writeln!(out, "{}", json!({ "snapshotId": id, "status": status })),
        false => writeln!(out, "{id} {status}"),
    })
}

/// Prints to standard output.
fn print(printed: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    told(printed(&mut out).and_then(|()| out.flush())).map(drop)
}

/// Who closes the pipe has read enough, which is `None`; a full disk is another matter.
fn told(printed: io::Result<()>) -> Result<Option<()>, Failure> {
    match printed {
        Ok(()) => Ok(Some(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(error) => Err(Failure::failed(format!("output: {error}"))),
    }
}

fn write(output: Option<&Path>, text: &[u8]) -> Result<(), Failure> {
    match output {
        Some(path) => told(create(path)?.write_all(text)).map(drop),
        None => print(|out| out.write_all(text)),
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create_new(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}
