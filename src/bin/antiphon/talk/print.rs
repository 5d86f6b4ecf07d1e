//! Events on standard output.

use std::io::{self, Write};

use antiphon::session::{
    Continuity, EndReason, EventKind, HostPromptKind, HostPromptStage, SessionEvent, SessionState,
};
use serde::Serialize;

use crate::args::EventFormat;

/// Prints events, each line at once.
#[derive(Debug)]
pub struct Printer<W: Write> {
    format: EventFormat,
    out: W,
}

/// A timer rang. Beside the session's own events, with the same fields.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename = "timer")]
pub struct TimerEvent {
    /// Milliseconds since the session started.
    pub t_ms: u64,
    /// The number of the connection.
    pub epoch: u32,
    /// The number of the turn.
    pub turn: u64,
    /// The timer.
    pub name: String,
}

impl<W: Write> Printer<W> {
    /// Prints to `out`.
    pub fn new(format: EventFormat, out: W) -> Self {
        Self { format, out }
    }

    /// Prints an event of the session.
    pub fn event(&mut self, event: &SessionEvent) -> io::Result<()> {
        match self.format {
            EventFormat::Json => self.json(event),
            EventFormat::Pretty => match describe(&event.kind) {
                Some(line) => self.line(event.t_ms, &line),
                None => Ok(()),
            },
        }
    }

    /// Prints that a timer rang.
    pub fn timer(&mut self, event: &TimerEvent) -> io::Result<()> {
        match self.format {
            EventFormat::Json => self.json(event),
            EventFormat::Pretty => self.line(event.t_ms, &format!("   * timer: {}", event.name)),
        }
    }

    fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.out.write_all(&line)?;
        self.out.flush()
    }

    fn line(&mut self, t_ms: u64, text: &str) -> io::Result<()> {
        writeln!(self.out, "{:>7.1}s  {text}", t_ms as f64 / 1_000.0)?;
        self.out.flush()
    }
}

/// A line for people; `None` for what they need not see.
fn describe(event: &EventKind) -> Option<String> {
    let line = match event {
        EventKind::SessionStarted { provider, model, .. } => {
            format!("-- talking with {provider} ({model})")
        }
        EventKind::SessionResumed(from) if from.by_handle => {
            "-- going on from before: the provider knows the conversation".to_owned()
        }
        EventKind::SessionResumed(from) => {
            format!(
                "-- going on from before: {} of {} messages",
                from.items,
                from.items + from.left_out
            )
        }
        EventKind::TurnCommitted { snapshot_id: Some(id), .. } => format!("     committed {id}"),
        EventKind::Detached { snapshot_id } => {
            format!("-- hung up: the turn goes on as {snapshot_id}")
        }
        EventKind::TurnCommitted { error: Some(error), .. } => {
            format!("  !! the turn could not be kept: {error}")
        }
        EventKind::TurnCommitted { .. } => return None,
        EventKind::State { state: SessionState::Recovering } => {
            "-- connection lost, reconnecting".to_owned()
        }
        EventKind::UserMessage { text } => format!(" you: {text}"),
        EventKind::AgentMessage { text, interrupted: false, .. } => format!("  it: {text}"),
        EventKind::AgentMessage { text, interrupted: true, .. } => {
            format!("  it: {text} -- (interrupted)")
        }
        EventKind::TurnFinished { latency_ms: Some(latency_ms) } => {
            format!("     (answered after {latency_ms} ms)")
        }
        EventKind::ToolCall { name, args, .. } => format!("   > {name} {}", json(args)),
        EventKind::HostToolCall { name, args, .. } => {
            format!("   > {name} {} (for the host)", json(args))
        }
        EventKind::ToolDenied { name, reason, .. } => format!("   ! {name} denied: {reason}"),
        EventKind::ReplyDenied { reason, .. } => format!("   ! what it was about to say: {reason}"),
        EventKind::WordsDenied { reason } => format!("   ! no tool acts on that: {reason}"),
        EventKind::ToolConfirm { name, .. } => format!("   ? {name} waits for your yes"),
        EventKind::ToolResult { name, response, .. } => format!("   < {name} {}", json(response)),
        EventKind::ToolProgress { name, text: Some(text), .. } => format!("   . {name} {text}"),
        EventKind::HostPrompt(prompt) if prompt.stage == HostPromptStage::Sent => {
            match prompt.prompt {
                HostPromptKind::IdleReminder => "-- silence: asking whether you are there",
                HostPromptKind::IdleDeactivate => "-- silence: saying goodbye",
                _ => return None,
            }
            .to_owned()
        }
        EventKind::StateRestored { restored: Continuity::None, .. } => {
            "-- connected again; what was said so far is forgotten".to_owned()
        }
        EventKind::ProviderChanged { provider, model } => {
            format!("-- the conversation goes on with {provider} ({model})")
        }
        EventKind::HandedOff { to, .. } => {
            let to = to.as_deref().unwrap_or("the first agent");
            format!("-- the conversation is {to}'s now")
        }
        EventKind::Stalled { what, ms, .. } => format!("-- {what} takes long: {ms} ms"),
        EventKind::Error { kind, message } => format!("-- error ({kind}): {message}"),
        EventKind::SessionEnded { reason, .. } => format!("-- {}", in_words(reason)),
        _ => return None,
    };
    Some(line)
}

/// Why the session ended.
pub fn in_words(reason: &EndReason) -> String {
    match reason {
        EndReason::Stopped => "the conversation is over".to_owned(),
        EndReason::Idle => "ended after silence".to_owned(),
        EndReason::Limit { limit } => format!("ended by a limit: {limit}"),
        EndReason::ProviderClosed { code, reason } => {
            format!("the provider closed the connection: {code} {reason}")
        }
        EndReason::Failed { message } => format!("failed: {message}"),
        EndReason::StoreFailed { message } => {
            format!("failed: a turn could not be kept: {message}")
        }
        EndReason::Cancelled => "cancelled".to_owned(),
        other => format!("ended: {other:?}"),
    }
}

fn json(object: &antiphon::types::JsonObject) -> String {
    const MAX_CHARS: usize = 160;
    let text = serde_json::to_string(object).unwrap_or_default();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use antiphon::types::JsonObject;

    use super::*;

    #[test]
    fn a_timer_has_the_fields_of_every_event() {
        let mut out = Vec::new();
        let event = TimerEvent { t_ms: 5, epoch: 1, turn: 2, name: "egg".into() };
        Printer::new(EventFormat::Json, &mut out).timer(&event).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"type\":\"timer\",\"t_ms\":5,\"epoch\":1,\"turn\":2,\"name\":\"egg\"}\n"
        );
    }

    #[test]
    fn long_outputs_are_cut_for_people() {
        let object = JsonObject::from_iter([("x".to_owned(), "ä".repeat(1_000).into())]);
        let line = json(&object);
        assert_eq!(line.chars().count(), 163);
        assert!(line.ends_with("..."));
    }
}
