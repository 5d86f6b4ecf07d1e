//! What goes into the engine and what comes out.

use std::sync::Arc;

use antiphon_agent::{Executed, ModelResponseChunk, Outcome, Refused};
use antiphon_audio::{Generation, Played};
use antiphon_live::{Capabilities, ConnectRequest, LiveCommand, LiveError, LiveEvent};
use antiphon_types::{AudioFrame, ToolCall, ToolCallRequest, ToolDefinition, ToolResponse};
use serde::{Deserialize, Serialize};

use super::hand_off::HandOff;
use crate::session::{
    EndReason, GuardVerdict, HostPrompt, IdleConfig, SayOptions, SessionEvent, SessionState,
    approvals::Settled,
    journal::{Committed, Note},
    recording::form,
};

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Input {
    /// [`Output::Connect`] succeeded.
    Connected { epoch: u32, capabilities: Arc<Capabilities> },
    /// [`Output::Connect`] failed.
    ConnectFailed { epoch: u32, error: LiveError },
    /// The connection has an event.
    Provider { epoch: u32, event: LiveEvent },
    /// The connection refused a command and stays usable.
    Refused {
        epoch: u32,
        #[serde(deserialize_with = "form::name")]
        command: form::Name,
        origin: Origin,
        error: LiveError,
    },
    /// The connection took the command of a prompt.
    PromptSent { id: u64 },
    /// What was handed to a connection that is over, and did not reach its peer: the user's audio and
    /// what stands between, and the outputs of calls. In order, and before its end is told. `lost`: so
    /// much of the audio before it did not either, and was not kept. `unheld`: what came before all that
    /// and did reach the peer, and is in no handle.
    Returned {
        epoch: u32,
        commands: Vec<HostCommand>,
        #[serde(default)]
        lost: std::time::Duration,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unheld: Vec<HostCommand>,
    },
    /// The connection is over; `None` is an end without a word.
    Disconnected { epoch: u32, error: Option<LiveError> },
    /// The host wants something.
    Host(HostCommand),
    /// The start hook returned, or was given up.
    StartHookDone,
    /// The policy has judged a call.
    Admission { ticket: Ticket, decision: Decision },
    /// A call has its output.
    ToolDone {
        ticket: Ticket,
        executed: Box<Executed>,
        /// The size of an output that was cut, and is kept whole for the host.
        whole_bytes: Option<u64>,
    },
    /// A running tool tells how far it is.
    ToolProgress { ticket: Ticket, progress: Box<ModelResponseChunk> },
    /// The host has judged a prompt of the session's own.
    PromptVerdict { id: u64, allowed: bool },
    /// Playout went on.
    Played(#[serde(with = "form::played")] Played),
    /// [`Output::ClearPlayback`] was done.
    Cleared {
        next: Generation,
        #[serde(with = "form::maybe_played")]
        played: Option<Played>,
    },
    /// The sink failed and was replaced by silence.
    SinkFailed { message: String },
    /// A hook panicked, failed or hangs.
    HookTrouble { trouble: HookTrouble },
    /// The guard has judged the first `bytes` of the words of a reply: see [`Output::Guard`].
    Guarded { reply: u64, check: u64, bytes: usize, verdict: GuardVerdict },
    /// The guard has judged what the user said: see [`Output::Screen`].
    Screened { turn: u64, verdict: GuardVerdict },
    /// A turn of the linked agent was committed, or could not be.
    Committed(Box<Committed>),
    /// Work that a caller left behind goes on under this pending snapshot.
    Detached { snapshot_id: Arc<str> },
    /// It cannot go on, for this reason.
    NotDetached { why: String },
    /// Somebody aborted it.
    WorkAborted,
    /// The invocation of the agent that is linked cannot go on.
    AgentFailed,
    /// So many calls that a person approved are at work, with their outcomes yet to be told.
    ApprovedAtWork { calls: u32 },
    /// The session is to end. Tools get until `within` from now.
    Stop { reason: EndReason, within: Option<std::time::Duration> },
}

/// What the host can ask for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostCommand {
    Audio(AudioFrame),
    EndAudio,
    ClearAudio,
    Text(String),
    Image {
        media_type: Arc<str>,
        #[serde(with = "form::size")]
        data: bytes::Bytes,
    },
    ActivityStart,
    ActivityEnd,
    Interrupt,
    /// As the user's voice does: what is protected goes on.
    CutIn,
    Say {
        text: String,
        options: SayOptions,
        request: Option<u64>,
    },
    Play {
        frame: AudioFrame,
        options: SayOptions,
        request: Option<u64>,
    },
    EchoCancelled(bool),
    ToolResponse(ToolResponse),
    CancelTool {
        id: Arc<str>,
    },
    UpdateInstructions(String),
    UpdateTools {
        all: Arc<[ToolDefinition]>,
        hosts: Vec<ToolDefinition>,
    },
    AdvanceWorkflow,
    Reconnect,
    HandOff(HandOff),
    SetIdle(IdleConfig),
    /// A call that waited for a person has its outcome.
    Settled(Settled),
    Progress {
        token: u64,
        text: String,
    },
    ToolOutput {
        token: u64,
        text: String,
    },
}

/// What a command was sent for, so that its refusal finds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// Nothing waits for it.
    None,
    /// A reply is waited for.
    Asked,
    /// A prompt of the session's own, and its reply.
    Prompt(u64),
    /// The output of a call.
    ToolOutput,
}

/// What went wrong with a hook.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HookTrouble {
    /// It panicked.
    Panicked {
        #[serde(deserialize_with = "form::name")]
        hook: form::Name,
    },
    /// It still runs.
    Stalled {
        #[serde(deserialize_with = "form::name")]
        hook: form::Name,
        ms: u64,
    },
    /// It was given up.
    GivenUp {
        #[serde(deserialize_with = "form::name")]
        hook: form::Name,
    },
    /// So many events wait for it that the session cannot go on.
    Flooded,
}

/// Names one tool call; carries its fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) epoch: u32,
    /// The number of the reply that holds the call; 0 where the wire does not say.
    pub(crate) reply: u64,
    pub(crate) call: u64,
}

/// The policy's judgement, without the admitted call itself: that stays with the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    /// It may run.
    Run { call: ToolCall, manner: Manner },
    /// The host answers it.
    Host { call: ToolCall },
    /// It does not run.
    Refused(Refused),
    /// The user is to be asked.
    Confirm { read_back: String },
    /// The id was used before.
    Duplicate,
    /// The policy was late or panicked.
    NoVerdict {
        #[serde(deserialize_with = "form::name")]
        reason: form::Name,
    },
}

/// How a tool wants its calls to be treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manner {
    /// The model does not wait for the output.
    pub(crate) non_blocking: bool,
    /// The user's interruption cancels it.
    pub(crate) ends_on_interruption: bool,
}

/// Why no call of a turn runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Barred {
    /// For the host's records.
    pub(crate) reason: String,
    /// What the model is told.
    pub(crate) notice: String,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Output {
    /// Open a connection with this candidate; the session's own provider is 0, those that it falls back
    /// on follow. Answered by [`Input::Connected`] or [`Input::ConnectFailed`].
    Connect { request: ConnectRequest, provider: usize },
    /// Drop the connection.
    Close { epoch: u32 },
    /// Hand this to the connection.
    Send { epoch: u32, command: LiveCommand, origin: Origin },
    /// Append audio to the playout.
    Play { generation: Generation, frame: AudioFrame },
    /// No more audio of this generation comes.
    FinishPlayback { generation: Generation },
    /// Stop playing at the present sample, and keep what is queued.
    PausePlayback,
    /// Go on at the sample where playing stopped.
    ResumePlayback,
    /// Silence at once, and no pause any more. Answered by [`Input::Cleared`].
    ClearPlayback { next: Generation },
    /// Run the start hook. Answered by [`Input::StartHookDone`]; events wait for it.
    StartHook,
    /// The session runs: whoever waits for the start goes on.
    Started,
    /// Judge a call. Answered by [`Input::Admission`]. The call's start and all later events wait;
    /// playback, wire commands, uplink and timers go on.
    Admit {
        ticket: Ticket,
        request: ToolCallRequest,
        confirmed: bool,
        turn: u64,
        /// It is refused already, for what the user said.
        barred: Option<Barred>,
        /// The provider runs it itself.
        by_provider: bool,
    },
    /// Judge the words of this reply, as they are at this check. Answered by [`Input::Guarded`]; where a
    /// later check of the reply comes before that, only the later one needs to be.
    Guard { reply: u64, check: u64, text: String, complete: bool },
    /// Judge what the user said. Answered by [`Input::Screened`].
    Screen { turn: u64, text: String },
    /// The admitted call is not going to run.
    Discard { ticket: Ticket },
    /// A call that nobody allowed has its output: the user said no, or it was given up before.
    Unapproved { request: ToolCallRequest, outcome: Outcome, turn: u64 },
    /// Run the admitted call. Answered by [`Input::ToolDone`].
    /// `again`: the policy judges it once more before.
    Invoke { ticket: Ticket, turn: u64, again: bool },
    /// Tell the observers of a call that the host answers itself.
    ObserveHostCall { call: ToolCall },
    /// An authorised call has its output without having run: tell its observers. Answered by
    /// [`Input::ToolDone`].
    Observe { ticket: Ticket, call: ToolCall, executed: Box<Executed> },
    /// Cancel a running call. It still yields [`Input::ToolDone`].
    CancelTool { ticket: Ticket },
    /// Tell the host.
    Emit(SessionEvent),
    /// Tell the agent that is linked, whose record of the turn has more than what hosts are told.
    Note { turn: u64, note: Box<Note> },
    /// Tell only the callbacks of a state that comes before the first or after no event.
    StateOnly(SessionState),
    /// Ask the host whether a prompt may be sent. Answered by [`Input::PromptVerdict`].
    AskPrompt { event: SessionEvent, prompt: HostPrompt },
    /// The caller is gone and the work goes on: have a snapshot stand for it. Answered by
    /// [`Input::Detached`] or [`Input::NotDetached`].
    HungUp { turn: u64 },
    /// Whether the prompt that the host asked for was sent.
    PromptAnswer { token: u64, sent: bool },
    /// The tools that the host answers itself are these now.
    HostTools { definitions: Vec<ToolDefinition> },
    /// From now on another agent's tools run: those that were left under this number.
    HandOver { number: u64 },
    /// The session is over; the last output.
    Ended { end: End },
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct End {
    /// Why connecting failed, where the session never began.
    pub(crate) never_began: Option<NeverBegan>,
    pub(crate) reason: EndReason,
    pub(crate) detached: Vec<Arc<str>>,
}

/// Why a session did not begin.
#[derive(Debug)]
pub(crate) enum NeverBegan {
    Connect(LiveError),
    Stopped,
}

/// An output for a call that did not run.
pub(crate) fn not_run(response: ToolResponse, outcome: Outcome) -> Executed {
    Executed::new(response, outcome)
}
