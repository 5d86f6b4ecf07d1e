//! What is printed.

use std::io::{self, Write};

use antiphon::{
    agent::{
        AgentFinishReason, AgentStreamChunk, Part, TurnEnd,
        chat::{AgentChunk, AgentError, AgentInterrupt, AgentResponse},
    },
    tools::Ring,
};
use serde_json::{Value, json};

use crate::args::EventFormat;

/// Prints for people or for programs.
pub struct Console<W> {
    out: W,
    format: EventFormat,
    /// People: the line is not over.
    open: bool,
    /// Whether turns are kept.
    kept: bool,
    /// The end of the turn that is to be told.
    turn_end: Option<TurnEnd>,
}

impl<W: Write> Console<W> {
    pub fn new(format: EventFormat, out: W) -> Self {
        Self { out, format, open: false, kept: false, turn_end: None }
    }

    /// Tells of each turn in which snapshot it is kept.
    pub fn tell_of_snapshots(&mut self) {
        self.kept = true;
    }

    /// The conversation can begin.
    pub fn started(&mut self, agent: &str, model: Option<&str>) -> io::Result<()> {
        match self.format {
            EventFormat::Json => {
                self.json(json!({ "type": "chat_started", "agent": agent, "model": model }))
            }
            EventFormat::Pretty => {
                let with = model.map(|model| format!(" ({model})")).unwrap_or_default();
                self.line(&format!("-- writing with {agent}{with}"))
            }
        }
    }

    /// The conversation goes on from a snapshot.
    pub fn resumed(
        &mut self,
        session: Option<&str>,
        snapshot: Option<&str>,
        messages: usize,
    ) -> io::Result<()> {
        match self.format {
            EventFormat::Json => self.json(json!({
                "type": "resumed",
                "session_id": session,
                "snapshot_id": snapshot,
                "messages": messages,
            })),
            EventFormat::Pretty => {
                let from = snapshot.unwrap_or("nothing");
                self.line(&format!("-- going on from {from}, after {messages} messages"))
            }
        }
    }

    /// What somebody wrote, where it does not stand on the screen already.
    pub fn user(&mut self, text: &str) -> io::Result<()> {
        match self.format {
            EventFormat::Json => self.json(json!({ "type": "user_message", "text": text })),
            EventFormat::Pretty => Ok(()),
        }
    }

    /// A piece of an answer.
    pub fn chunk(&mut self, chunk: &AgentChunk) -> io::Result<()> {
        let AgentStreamChunk { model_chunk, turn_end, .. } = chunk.raw();
        if let Some(end) = turn_end {
            self.turn_end = Some(end.clone());
        }
        let Some(piece) = model_chunk else { return Ok(()) };
        let text = chunk.text();
        if !text.is_empty() {
            match self.format {
                EventFormat::Json => {
                    self.json(json!({ "type": "chunk", "index": piece.index, "text": text }))?;
                }
                EventFormat::Pretty => {
                    self.open = true;
                    write!(self.out, "{text}")?;
                    self.out.flush()?;
                }
            }
        }
        for response in piece.tool_responses() {
            self.tool_response(response)?;
        }
        Ok(())
    }

    fn tool_response(&mut self, part: &Part) -> io::Result<()> {
        let Some(response) = part.as_tool_response() else { return Ok(()) };
        let output = response.output.as_ref().unwrap_or(&Value::Null);
        let kind = if part.is_partial() { "tool_progress" } else { "tool_result" };
        match self.format {
            EventFormat::Json => self.json(json!({
                "type": kind, "id": response.id, "name": response.name, "output": output,
            })),
            EventFormat::Pretty => {
                let mark = if part.is_partial() { '.' } else { '<' };
                self.line(&format!("   {mark} {} {output}", response.name))
            }
        }
    }

    /// A turn ended.
    pub fn turn(&mut self, response: &AgentResponse) -> io::Result<()> {
        self.answer(response)?;
        self.committed()
    }

    fn answer(&mut self, response: &AgentResponse) -> io::Result<()> {
        let reason = response.finish_reason();
        match self.format {
            EventFormat::Json => self.json(json!({
                "type": "agent_message",
                "text": response.text(),
                "finish_reason": reason,
                "snapshot_id": response.snapshot_id(),
            })),
            EventFormat::Pretty => {
                self.end_line()?;
                match reason {
                    AgentFinishReason::Length => self.line("-- (cut off: too long)"),
                    AgentFinishReason::Blocked => self.line("-- (blocked by a filter)"),
                    AgentFinishReason::Aborted => self.line("-- (stopped)"),
                    _ => Ok(()),
                }
            }
        }
    }

    /// In which snapshot the turn is kept, now that it is. One that failed may not have come so far.
    fn committed(&mut self) -> io::Result<()> {
        let Some(end) = self.turn_end.take().filter(|_| self.kept) else { return Ok(()) };
        match (&end.snapshot_id, self.format) {
            (Some(id), EventFormat::Json) => {
                self.json(json!({ "type": "committed", "snapshot_id": id }))
            }
            (Some(id), EventFormat::Pretty) => self.line(&format!("committed {id}")),
            (None, EventFormat::Json) => self.json(json!({ "type": "not_committed" })),
            (None, EventFormat::Pretty) => self.line("!! the turn could not be kept"),
        }
    }

    /// A call waits for an answer.
    pub fn question(&mut self, interrupt: &AgentInterrupt, question: &str) -> io::Result<()> {
        match self.format {
            EventFormat::Json => self.json(json!({
                "type": "question",
                "id": interrupt.id(),
                "name": interrupt.name(),
                "args": interrupt.input(),
                "question": question,
            })),
            EventFormat::Pretty => self.line(&format!("   ? {question} (yes or no)")),
        }
    }

    /// A turn failed; the conversation goes on from the one before.
    pub fn failed(&mut self, error: &AgentError) -> io::Result<()> {
        let (status, message) = (error.status(), error.message());
        match self.format {
            EventFormat::Json => {
                self.json(json!({ "type": "error", "status": status, "message": message }))
            }
            EventFormat::Pretty => self.line(&format!("!! {message}")),
        }?;
        self.committed()
    }

    /// A timer rings.
    pub fn ring(&mut self, ring: &Ring) -> io::Result<()> {
        match self.format {
            EventFormat::Json => {
                self.json(json!({ "type": "timer", "announcement": ring.announcement() }))
            }
            EventFormat::Pretty => self.line(&format!("   * {}", ring.announcement())),
        }
    }

    fn json(&mut self, event: Value) -> io::Result<()> {
        writeln!(self.out, "{event}")?;
        self.out.flush()
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        self.end_line()?;
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.open) {
            writeln!(self.out)?;
            self.out.flush()?;
        }
        Ok(())
    }
}
