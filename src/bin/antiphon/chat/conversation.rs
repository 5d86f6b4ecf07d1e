//! The conversation itself.

use std::{
    io::{self, BufRead, Stdout},
    pin::Pin,
    sync::Arc,
};

use antiphon::{
    agent::{
        AgentInit, AgentInput, InMemorySessionStore, Memory, Part, Role, SessionStore,
        SnapshotLookup, ToolResume,
        chat::{AgentChat, AgentInterrupt, AgentResponse},
        memory::{FileMemory, InMemory},
    },
    tools::Rings,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{agents, console::Console};
use crate::{
    args::ChatArguments,
    failure::Failure,
    store::Store,
    toolbox::{Equipment, Toolbox},
};

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 1024 * 1024;

/// Chats until the input ends.
pub async fn chat(arguments: ChatArguments) -> Result<(), Failure> {
    let equipment =
        Equipment::read(arguments.tools.as_deref(), arguments.policy.as_deref(), &arguments.books)?;
    let memory: Arc<dyn Memory> = match &arguments.memory {
        Some(path) => Arc::new(FileMemory::open(path).await.map_err(Failure::usage)?),
        None => Arc::new(InMemory::new()),
    };
    let (toolbox, policy) = Toolbox::new(equipment, memory.clone())?;
    let Toolbox { registry, timers: _timers, rings } = toolbox;
    let store = match &arguments.store {
        Some(path) => Some(Store::open(path).await?),
        None => None,
    };
    let from = match &store {
        Some(store) => resumed_from(&arguments, store).await?,
        None => None,
    };
    let kept: Arc<dyn SessionStore> = match &store {
        Some(store) => store.shared(),
        None => Arc::new(InMemorySessionStore::new()),
    };
    let opened = agents::open(&arguments, registry, policy, memory, kept)?;
    let mut console = Console::new(arguments.events, io::stdout());
    if store.is_some() {
        console.tell_of_snapshots();
    }
    let mut printed = console.started(&opened.agent.name(), opened.model.as_deref());
    let api = opened.agent.api().with_context(arguments.who.context());
    let chat = match from {
        Some(id) => {
            let chat =
                api.load_chat(SnapshotLookup::Snapshot(id)).await.map_err(Failure::failed)?;
            let (session, snapshot) = (chat.session_id(), chat.snapshot_id());
            printed = printed.and_then(|()| {
                console.resumed(session.as_deref(), snapshot.as_deref(), chat.messages().len())
            });
            chat
        }
        None => api.chat(AgentInit::default()),
    };
    let mut conversation =
        Conversation { chat, console, lines: lines(), rings, stop: Interrupts::new() };
    let printed = match printed {
        Ok(()) => conversation.run().await,
        Err(error) => Err(error),
    };
    match printed {
        // Who closes the pipe has read enough; a full disk is another matter.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard input or output: {error}")))
        }
        _ => Ok(()),
    }
}

/// The snapshot that the command line says to go on from.
async fn resumed_from(
    arguments: &ChatArguments,
    store: &Store,
) -> Result<Option<Arc<str>>, Failure> {
    let cx = arguments.who.context();
    let snapshot = match (&arguments.resume, arguments.resume_latest) {
        (Some(id), _) => store.find(&cx, id).await?,
        (None, true) => store.latest(&cx).await?,
        (None, false) => return Ok(None),
    };
    Ok(Some(snapshot.snapshot_id))
}

struct Conversation {
    chat: AgentChat,
    console: Console<Stdout>,
    lines: mpsc::Receiver<io::Result<String>>,
    rings: Rings,
    stop: Interrupts,
}

impl Conversation {
    /// Until the input ends or somebody stops it between two answers.
    async fn run(&mut self) -> io::Result<()> {
        // What was asked before the conversation was left.
        let waiting = self.waiting();
        if !waiting.is_empty() && !self.settle(waiting).await? {
            return Ok(());
        }
        while let Some(line) = self.line().await? {
            let text = line.trim();
            if text.is_empty() {
                continue;
            }
            self.console.user(text)?;
            let response = self.turn(text.into()).await?;
            let waiting = response.map(|response| response.interrupts()).unwrap_or_default();
            if !self.settle(waiting).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The calls that wait at the end of the conversation so far.
    fn waiting(&self) -> Vec<AgentInterrupt> {
        let messages = self.chat.messages();
        let last = messages.last().filter(|message| message.role == Role::Model);
        let parts = last.into_iter().flat_map(|message| &message.content);
        parts.filter_map(AgentInterrupt::new).collect()
    }

    /// Asks about calls that wait until none does any more. False where the input ends before.
    async fn settle(&mut self, mut waiting: Vec<AgentInterrupt>) -> io::Result<bool> {
        while !waiting.is_empty() {
            let Some(resume) = self.answers(&waiting).await? else { return Ok(false) };
            let response = self.turn(resume.into()).await?;
            waiting = response.map(|response| response.interrupts()).unwrap_or_default();
        }
        Ok(true)
    }

    /// One turn; `None` where it failed, which is printed.
    async fn turn(&mut self, input: AgentInput) -> io::Result<Option<AgentResponse>> {
        let mut turn = self.chat.send_stream(input);
        let stop = turn.aborter();
        loop {
            tokio::select! {
                chunk = turn.next_chunk() => match chunk {
                    Some(chunk) => self.console.chunk(&chunk)?,
                    None => break,
                },
                ring = self.rings.next() => self.console.ring(&ring)?,
                () = self.stop.next() => stop.cancel(),
            }
        }
        match turn.response().await {
            Ok(response) => {
                self.console.turn(&response)?;
                Ok(Some(response))
            }
            Err(error) => {
                self.console.failed(&error)?;
                Ok(None)
            }
        }
    }

    /// Asks somebody about each call that waits. `None` where the input ends before.
    async fn answers(&mut self, interrupts: &[AgentInterrupt]) -> io::Result<Option<ToolResume>> {
        let mut resume = ToolResume::default();
        for interrupt in interrupts {
            self.console.question(interrupt, &question(interrupt))?;
            let Some(answer) = self.line().await? else { return Ok(None) };
            self.console.user(answer.trim())?;
            match is_yes(&answer) {
                true => resume.restart.push(restart(interrupt)),
                false => resume.respond.push(
                    interrupt.respond(json!({ "error": "the user did not confirm the tool call" })),
                ),
            }
        }
        Ok(Some(resume))
    }

    /// The next line; `None` at the end of the input and where somebody stops the program.
    async fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            tokio::select! {
                line = self.lines.recv() => return line.transpose(),
                ring = self.rings.next() => self.console.ring(&ring)?,
                () = self.stop.next() => return Ok(None),
            }
        }
    }
}

/// Each Ctrl-C. What comes between two waits is not lost.
struct Interrupts(Pin<Box<dyn Future<Output = io::Result<()>>>>);

impl Interrupts {
    fn new() -> Self {
        Self(Box::pin(tokio::signal::ctrl_c()))
    }

    async fn next(&mut self) {
        if self.0.as_mut().await.is_err() {
            // There are none on this system.
            std::future::pending::<()>().await;
        }
        *self = Self::new();
    }
}

/// What somebody is asked about a call: the words of the policy or of the tool, where there are any.
fn question(interrupt: &AgentInterrupt) -> String {
    let reason = interrupt.reason();
    let words = ["confirm", "question"].iter().find_map(|key| reason.get(key)?.as_str());
    let why = ["reason", "ask"].iter().find_map(|key| reason.get(key)?.as_str());
    match (words, why) {
        (Some(words), _) => words.to_owned(),
        (None, Some(why)) => {
            format!("{} {} ({why}): go on?", interrupt.name(), interrupt.input())
        }
        (None, None) => format!("{} {}: go on?", interrupt.name(), interrupt.input()),
    }
}

fn restart(interrupt: &AgentInterrupt) -> Part {
    interrupt.restart_with(json!({ "confirmed": true }))
}

fn is_yes(answer: &str) -> bool {
    let answer = answer.trim().trim_end_matches(['.', '!']).to_lowercase();
    ["yes", "y", "ok", "okay", "sure", "go ahead", "yes please"].contains(&answer.as_str())
}

/// The lines of standard input, as they come.
fn lines() -> mpsc::Receiver<io::Result<String>> {
    let (sender, receiver) = mpsc::channel(1);
    // A thread of its own: a read of a terminal cannot be taken back.
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut bytes = Vec::new();
            let mut limited = io::Read::take(&mut input, MAX_LINE);
            let line = match limited.read_until(b'\n', &mut bytes) {
                Ok(0) => return,
                Ok(_) if bytes.len() as u64 == MAX_LINE => {
                    Err(io::Error::new(io::ErrorKind::InvalidData, "a line of more than 1 MiB"))
                }
                Ok(_) => String::from_utf8(bytes)
                    .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8")),
                Err(error) => Err(error),
            };
            let over = line.is_err();
            if sender.blocking_send(line).is_err() || over {
                return;
            }
        }
    });
    receiver
}
