//! One connection under test, and the promises that hold for all of its events.

use std::{
    collections::{HashSet, VecDeque},
    future::Future,
    sync::Arc,
    time::Duration,
};

use antiphon_types::{AudioFrame, ToolCallRequest};
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    Capabilities, ConnectRequest, LiveCommand, LiveConfig, LiveConnection, LiveError, LiveEvent,
    LiveProvider, ReplyId, ReplyOutcome, TextUpdate,
};

/// Audio is sent in pieces of this length, at the pace of speech.
const PIECE: Duration = Duration::from_millis(20);
/// So much silence follows a spoken question.
const SILENCE: Duration = Duration::from_secs(2);
/// How long stragglers are waited for.
const SETTLE: Duration = Duration::from_millis(300);
/// A reply of more events than this does not end.
const MAX_EVENTS: usize = 100_000;

/// One connection under test.
pub(super) struct Probe {
    connection: Box<dyn LiveConnection>,
    promises: Promises,
    /// Events that came while something was sent.
    early: VecDeque<LiveEvent>,
    deadline: Duration,
}

/// A reply from its beginning to its end.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) reply: ReplyId,
    pub(super) request: Option<u64>,
    pub(super) outcome: ReplyOutcome,
    pub(super) calls: Vec<ToolCallRequest>,
    /// There was voice or text.
    pub(super) said: bool,
    /// The user's words, if they came as final before the reply was done.
    pub(super) heard: Option<String>,
}

impl Probe {
    /// Connects; the first event must be [`LiveEvent::Ready`].
    pub(super) async fn open(
        provider: &dyn LiveProvider,
        config: Arc<LiveConfig>,
        deadline: Duration,
    ) -> Result<Self, String> {
        let connect = provider.connect(ConnectRequest::new(config));
        let connection = within(deadline, "connection", connect).await?;
        let connection = connection.map_err(|error| format!("connecting failed: {error}"))?;
        let promises = Promises::default();
        let mut probe = Self { connection, promises, early: VecDeque::new(), deadline };
        match probe.next().await? {
            LiveEvent::Ready { capabilities } if capabilities == *probe.capabilities() => Ok(probe),
            LiveEvent::Ready { .. } => {
                Err("Ready tells other capabilities than the connection".into())
            }
            event => Err(format!("the first event is {} instead of ready", event.name())),
        }
    }

    pub(super) fn capabilities(&self) -> &Arc<Capabilities> {
        self.connection.capabilities()
    }

    /// Sends a command that must be taken.
    pub(super) async fn send(&mut self, command: LiveCommand) -> Result<(), String> {
        let name = command.name();
        let sent = self.try_send(command).await?;
        sent.map_err(|error| format!("{name} was refused: {error}"))
    }

    /// Sends a command that must be refused.
    pub(super) async fn send_refused(&mut self, command: LiveCommand) -> Result<LiveError, String> {
        let name = command.name();
        match self.try_send(command).await? {
            Ok(()) => Err(format!("{name} was not refused")),
            Err(error) => Ok(error),
        }
    }

    async fn try_send(&mut self, command: LiveCommand) -> Result<Result<(), LiveError>, String> {
        let what = format!("room for {}", command.name());
        within(self.deadline, &what, self.connection.send(command)).await
    }

    /// Says `speech` at the pace of speech, then silence, and ends the user's audio.
    pub(super) async fn speak(&mut self, speech: &AudioFrame) -> Result<(), String> {
        let piece = speech.format.samples_in(PIECE).max(1) as usize;
        let silence = vec![0; piece * speech.format.bytes_per_sample()];
        let silence = AudioFrame::new(speech.format, silence);
        let pieces = (0..speech.samples()).step_by(piece).map(|at| speech.slice(at, at + piece));
        let rest = SILENCE.as_millis() / PIECE.as_millis();
        let pieces: Vec<AudioFrame> = pieces.chain((0..rest).map(|_| silence.clone())).collect();
        for piece in pieces {
            self.send(LiveCommand::AppendAudio(piece)).await?;
            self.take_what_came()?;
            sleep(PIECE).await;
        }
        self.send(LiveCommand::EndAudio).await
    }

    fn take_what_came(&mut self) -> Result<(), String> {
        while let Some(item) = self.connection.next().now_or_never() {
            let event = self.promises.check(item, self.connection.capabilities())?;
            self.early.push_back(event);
        }
        Ok(())
    }

    /// The next event, which must come.
    pub(super) async fn next(&mut self) -> Result<LiveEvent, String> {
        if let Some(event) = self.early.pop_front() {
            return Ok(event);
        }
        let item = within(self.deadline, "event", self.connection.next()).await?;
        self.promises.check(item, self.connection.capabilities())
    }

    /// Drops a wait for an event half-way, before each event that comes.
    pub(super) async fn next_after_cancelled_wait(&mut self) -> Result<LiveEvent, String> {
        if let Some(item) = self.connection.next().now_or_never() {
            return self.promises.check(item, self.connection.capabilities());
        }
        self.next().await
    }

    /// The next reply as a whole. Replies that end without having been asked for come too.
    pub(super) async fn reply(&mut self) -> Result<Seen, String> {
        let mut collected = Collected::default();
        for _ in 0..MAX_EVENTS {
            let event = self.next().await?;
            if let Some(seen) = collected.take(event)? {
                return Ok(seen);
            }
        }
        Err(format!("the reply has more than {MAX_EVENTS} events"))
    }

    /// Like [`Probe::reply`], dropping waits half-way.
    pub(super) async fn reply_with_cancelled_waits(&mut self) -> Result<Seen, String> {
        let mut collected = Collected::default();
        for _ in 0..MAX_EVENTS {
            let event = self.next_after_cancelled_wait().await?;
            if let Some(seen) = collected.take(event)? {
                return Ok(seen);
            }
        }
        Err(format!("the reply has more than {MAX_EVENTS} events"))
    }

    /// Takes what comes unasked for a while; it must keep the promises too.
    pub(super) async fn settle(&mut self) -> Result<(), String> {
        let until = Instant::now() + SETTLE;
        while let Ok(item) = timeout_at(until, self.connection.next()).await {
            self.promises.check(item, self.connection.capabilities())?;
        }
        Ok(())
    }

    /// Closes twice; the stream must end, once and for ever.
    pub(super) async fn close(mut self) -> Result<(), String> {
        for what in ["close", "second close"] {
            let closed = within(self.deadline, what, self.connection.close()).await?;
            closed.map_err(|error| format!("the {what} failed: {error}"))?;
        }
        let mut last = None;
        for _ in 0..MAX_EVENTS {
            match within(self.deadline, "end of the stream", self.connection.next()).await? {
                None => break,
                Some(item) if matches!(last, Some(Err(_))) => {
                    return Err(format!("after its error the stream yields {item:?}"));
                }
                item => last = item,
            }
        }
        for _ in 0..3 {
            let item = within(self.deadline, "end of the stream", self.connection.next()).await?;
            if item.is_some() {
                return Err("the stream goes on after its end".into());
            }
        }
        match self.try_send(LiveCommand::EndAudio).await? {
            Ok(()) => Err("a closed connection takes a command".into()),
            Err(_) => Ok(()),
        }
    }
}

/// What came of a reply so far.
#[derive(Default)]
struct Collected {
    started: Option<(ReplyId, Option<u64>)>,
    calls: Vec<ToolCallRequest>,
    said: bool,
    heard: Option<String>,
}

impl Collected {
    fn take(&mut self, event: LiveEvent) -> Result<Option<Seen>, String> {
        match event {
            LiveEvent::ReplyStarted { reply, request } => self.started = Some((reply, request)),
            LiveEvent::InputTranscript { text: TextUpdate::Final(Some(text)), .. } => {
                self.heard = Some(text);
            }
            LiveEvent::Audio { .. }
            | LiveEvent::OutputText { .. }
            | LiveEvent::OutputTranscript { .. } => self.said = true,
            LiveEvent::ToolCalls { calls, .. } => self.calls.extend(calls),
            LiveEvent::Error(error) => {
                return Err(format!("error {}: {}", error.code, error.message));
            }
            LiveEvent::ReplyDone { reply, outcome, .. } => {
                let request = self.started.take().and_then(|(_, request)| request);
                return Ok(Some(Seen {
                    reply,
                    request,
                    outcome,
                    calls: std::mem::take(&mut self.calls),
                    said: self.said,
                    heard: self.heard.take(),
                }));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// What holds for the events of every connection.
#[derive(Default)]
struct Promises {
    ready: bool,
    active: Option<ReplyId>,
    ended: HashSet<ReplyId>,
    speaking: bool,
}

impl Promises {
    fn check(
        &mut self,
        item: Option<Result<LiveEvent, LiveError>>,
        capabilities: &Capabilities,
    ) -> Result<LiveEvent, String> {
        let event = match item {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Err(format!("the connection failed: {error}")),
            None => return Err("the connection ended".into()),
        };
        let is_ready = matches!(event, LiveEvent::Ready { .. });
        if is_ready == self.ready {
            return Err(format!("{} where it must not be", event.name()));
        }
        self.ready = true;
        match &event {
            LiveEvent::ReplyStarted { reply, .. } => {
                if let Some(active) = &self.active {
                    return Err(format!("{reply} started while {active} was active"));
                }
                if self.ended.contains(reply) {
                    return Err(format!("{reply} started again after it was done"));
                }
                self.active = Some(reply.clone());
            }
            LiveEvent::ReplyDone { reply, .. } => {
                self.belongs(&event, reply)?;
                self.active = None;
                self.ended.insert(reply.clone());
            }
            LiveEvent::Audio { reply, frame, .. } => {
                self.belongs(&event, reply)?;
                if frame.format != capabilities.output {
                    let expected = capabilities.output;
                    return Err(format!("audio is {:?} instead of {expected:?}", frame.format));
                }
            }
            LiveEvent::OutputTranscript { reply, .. }
            | LiveEvent::OutputText { reply, .. }
            | LiveEvent::WordTimes { reply, .. } => {
                self.belongs(&event, reply)?;
            }
            LiveEvent::ToolCalls { reply: Some(reply), .. } => self.belongs(&event, reply)?,
            LiveEvent::SpeechStarted { .. } if self.speaking => {
                return Err("speech started twice".into());
            }
            LiveEvent::SpeechStopped { .. } if !self.speaking => {
                return Err("speech stopped that had not started".into());
            }
            LiveEvent::SpeechStarted { .. } => self.speaking = true,
            LiveEvent::SpeechStopped { .. } => self.speaking = false,
            _ => {}
        }
        Ok(event)
    }

    fn belongs(&self, event: &LiveEvent, reply: &ReplyId) -> Result<(), String> {
        if self.active.as_ref() == Some(reply) {
            return Ok(());
        }
        let active = self.active.as_ref().map_or_else(|| "none".into(), ToString::to_string);
        Err(format!("{} of reply {reply} while the active reply is {active}", event.name()))
    }
}

async fn within<F: Future>(deadline: Duration, what: &str, wait: F) -> Result<F::Output, String> {
    timeout(deadline, wait).await.map_err(|_| format!("no {what} within {deadline:?}"))
}
