//! The whole behaviour of a voice session, no I/O.
use super::EndReason;
use antiphon_agent::{Committed, FinishReason};
use antiphon_audio::{Generation, Played};
use antiphon_live::{LiveCommand, LiveEvent};
use antiphon_types::{ToolCall, ToolResponse};
use bytes::Bytes;
use std::{collections::VecDeque, time::Instant};

#[non_exhaustive]
pub enum Input {
    Connected { epoch: u32, capabilities: antiphon_live::Capabilities },
    Provider { epoch: u32, event: LiveEvent },
    Disconnected { epoch: u32, reason: EndReason },
    WriteReady { epoch: u32, buffered: usize },
    Host(HostCommand),
    Admission { ticket: Ticket, runs: bool },
    ToolDone { ticket: Ticket, result: Result<ToolResponse, ToolFailure> },
    Played(Played),
    Cleared { generation: Generation, played: Played },
    Committed { turn: u64, result: Result<Committed, String> },
    Stop(EndReason),
}
pub enum HostCommand {
    Audio(Bytes),
    Text(String),
    Interrupt,
    EndAudio,
    ToolResponse(ToolResponse),
}
pub enum ToolFailure {
    Panicked,
    TimedOut,
    Cancelled,
    Error(String),
}
/// Names one tool call; carries its fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub epoch: u32,
    pub reply: u32,
    pub call: u32,
}

#[non_exhaustive]
pub enum Output {
    Connect {
        epoch: u32,
    },
    Close {
        epoch: u32,
    },
    Send {
        epoch: u32,
        command: LiveCommand,
    },
    Play {
        generation: Generation,
        audio: Bytes,
    },
    FinishPlayback {
        generation: Generation,
    },
    ClearPlayback {
        next: Generation,
    },
    /// The call's start and all later events wait for `Input::Admission` of this ticket; playback, wire commands, uplink and timers go on.
    Admit {
        ticket: Ticket,
        call: ToolCall,
    },
    Invoke {
        ticket: Ticket,
        call: ToolCall,
        deadline: Instant,
    },
    CancelTool {
        ticket: Ticket,
    },
    Seal {
        turn: u64,
        reason: FinishReason,
        record: TurnRecord,
    },
    Emit(Event),
    Ended(EndReason),
}
pub struct TurnRecord {
    pub heard_ms: u64,
}
pub enum Event {
    TurnCommitted { turn: u64 },
    StateChanged,
}

pub struct Engine {
    pending: VecDeque<Input>,
    out: VecDeque<Output>,
    awaiting: Option<Ticket>,
}
impl Engine {
    pub fn new(_config: (), _seed: u64, _now: Instant) -> Self {
        Self { pending: VecDeque::new(), out: VecDeque::new(), awaiting: None }
    }
    /// Bounded: the driver polls to `None` after each input, so at most one message is queued.
    pub fn handle(&mut self, input: Input, _now: Instant) {
        if let (Input::Admission { ticket, .. }, Some(t)) = (&input, self.awaiting)
            && *ticket == t
        {
            self.awaiting = None;
        }
        self.pending.push_back(input);
    }
    pub fn handle_timeout(&mut self, _now: Instant) {}
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.awaiting.is_some() {
            return None;
        }
        let out = self.out.pop_front()?;
        if let Output::Admit { ticket, .. } = &out {
            self.awaiting = Some(*ticket);
        }
        Some(out)
    }
    /// Audio for the wire, pulled only when the wire is ready; a ring by duration that drops its oldest and counts.
    pub fn poll_uplink(&mut self) -> Option<LiveCommand> {
        None
    }
    pub fn has_uplink(&self) -> bool {
        false
    }
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
