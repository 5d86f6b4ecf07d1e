//! The conversation itself.

use std::{
    io::{self, BufRead, Stdout},
    pin::Pin,
    sync::Arc,
};

use antiphon::{
    agent::{
        AgentInit, AgentInput, Memory, Part, ToolResume,
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
    toolbox::{Equipment, Toolbox},
};

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 1024 * 1024;

/// Chats until the input ends.
pub async fn chat(arguments: ChatArguments) -> Result<(), Failure> {
    let equipment = Equipment::read(arguments.tools.as_deref(), arguments.policy.as_deref())?;
    let memory: Arc<dyn Memory> = match &arguments.memory {
        Some(path) => Arc::new(FileMemory::open(path).await.map_err(Failure::usage)?),
        None => Arc::new(InMemory::new()),
    };
    let (toolbox, policy) = Toolbox::new(equipment, memory.clone())?;
    let Toolbox { registry, timers: _timers, rings } = toolbox;
    let opened = agents::open(&arguments, registry, policy, memory)?;
    let mut console = Console::new(arguments.events, io::stdout());
    let printed = console.started(&opened.agent.name(), opened.model.as_deref());
    let mut conversation = Conversation {
        chat: opened.agent.api().chat(AgentInit::default()),
        console,
        lines: lines(),
        rings,
        stop: Interrupts::new(),
    };
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
        while let Some(line) = self.line().await? {
            let text = line.trim();
            if text.is_empty() {
                continue;
            }
            self.console.user(text)?;
            let mut response = self.turn(text.into()).await?;
            while let Some(paused) = response.take_if(|response| !response.interrupts().is_empty())
            {
                let Some(resume) = self.answers(&paused.interrupts()).await? else {
                    return Ok(());
                };
                response = self.turn(resume.into()).await?;
            }
        }
        Ok(())
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
    match words {
        Some(words) => words.to_owned(),
        None => format!("{} {}: go on?", interrupt.name(), interrupt.input()),
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
