//! The connection's side of the driver: connecting, events in, commands out, closing.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use antiphon_audio::{AudioFrame, Converter};
use antiphon_live::{
    Capabilities, ConnectRequest, LiveCommand, LiveConnection, LiveError, LiveEvent,
};
use futures_util::{SinkExt, StreamExt};
use tokio::time::Sleep;

use crate::session::{
    engine::{Engine, HostCommand, Input, Origin},
    fallback::Candidate,
    recording::RecordedEngine,
};

/// Events taken from a connection in one wake-up; then the others get their turn.
pub(super) const EVENTS_PER_WAKE_UP: usize = 32;
/// Above this many unsent bytes no more of the user's audio is handed over.
const HIGH_WATER: usize = 32 * 1024;
/// Commands that may wait for a connection that takes none; beyond that it is given up.
const MAX_OUTGOING: usize = 1_024;
/// Commands, and bytes of them, that are kept until the peer has read them. Some never say so.
const MAX_KEPT: usize = 4_096;
const MAX_KEPT_BYTES: usize = 16 * 1024 * 1024;
/// How long connecting may take where the configuration does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// By no count of bytes has it left: the connection was not handed it.
const NOT_HANDED: u64 = u64::MAX;
/// How long a connection that was replaced may take to close before it is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

type Connecting = Pin<Box<dyn Future<Output = Result<Box<dyn LiveConnection>, LiveError>> + Send>>;

/// The connection, or the making of one.
pub(super) struct Wire {
    /// The session's own provider, and those that it falls back on.
    candidates: Vec<Candidate>,
    connecting: Option<(u32, Connecting)>,
    connection: Option<(u32, Box<dyn LiveConnection>)>,
    /// A connection that was made while the other one is used: either takes its place or is closed.
    beside: Option<(u32, Box<dyn LiveConnection>)>,
    /// The connection that was asked for last continues the one before by its handle.
    resumes: bool,
    closing: Option<Closing>,
    capabilities: Arc<Capabilities>,
    outgoing: VecDeque<(LiveCommand, Origin)>,
    /// What the connection was handed and its peer may not have read, or no handle holds.
    in_flight: VecDeque<Handed>,
    /// Commands that the connection took.
    taken: u64,
    /// Of these, those that its newest handle holds, where it counts them.
    held: Option<u64>,
    /// So much of the user's audio among it is kept.
    keeps: Duration,
    kept: Duration,
    kept_bytes: usize,
    /// What was not kept any more, up to this count of bytes.
    not_kept: (u64, Duration),
    /// What the engine has to know before anything else that comes from here.
    news: VecDeque<Input>,
    converter: Option<Converter>,
    unflushed: bool,
    undelivered: u64,
}

/// A command that a connection was handed.
struct Handed {
    /// The count of bytes that have left when it has.
    by: u64,
    /// Its number among the connection's commands.
    number: u64,
    command: LiveCommand,
}

/// A connection that took the place of another one.
pub(super) struct InPlace {
    pub(super) capabilities: Arc<Capabilities>,
    /// It continues that by its handle.
    pub(super) resumes: bool,
}

/// A connection that is not used any more.
struct Closing {
    connection: Box<dyn LiveConnection>,
    give_up: Pin<Box<Sleep>>,
}

impl Closing {
    /// Waits until it is closed, or need not be waited for any longer.
    async fn done(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.connection.poll_close_unpin(cx).is_ready() {
            return Poll::Ready(());
        }
        self.give_up.as_mut().poll(cx)
    }
}

impl Wire {
    /// `keeps`: so much of the user's audio is kept until the peer is known to have read it.
    pub(super) fn new(
        candidates: Vec<Candidate>,
        capabilities: Arc<Capabilities>,
        keeps: Duration,
    ) -> Self {
        Self {
            candidates,
            connecting: None,
            connection: None,
            beside: None,
            resumes: false,
            closing: None,
            capabilities,
            outgoing: VecDeque::new(),
            in_flight: VecDeque::new(),
            taken: 0,
            held: None,
            keeps,
            kept: Duration::ZERO,
            kept_bytes: 0,
            not_kept: (0, Duration::ZERO),
            news: VecDeque::new(),
            converter: None,
            unflushed: false,
            undelivered: 0,
        }
    }

    /// Begins to connect with a candidate.
    pub(super) fn connect(
        &mut self,
        request: ConnectRequest,
        candidate: usize,
        within: Option<Duration>,
    ) {
        let epoch = request.epoch;
        self.resumes = request.resume.is_some();
        let within = within.unwrap_or(CONNECT_TIMEOUT);
        // Who refuses to continue a conversation while its last connection is open has to see that
        // closed; others are not waited for.
        let waits = self.resumes && self.capabilities.close_before_resume;
        let last = if waits { self.closing.take() } else { None };
        let connecting = self.candidates.get(candidate).map(|with| with.connect(request));
        let connecting = Box::pin(async move {
            if let Some(last) = last {
                last.done().await;
            }
            let Some(connecting) = connecting else { return Err(LiveError::NotConnected) };
            match tokio::time::timeout(within, connecting).await {
                Ok(result) => result,
                Err(_) => Err(LiveError::Timeout { what: "connection".into(), after: within }),
            }
        });
        self.connecting = Some((epoch, connecting));
    }

    /// Whether the connection of `epoch` is the one that is used.
    pub(super) fn uses(&self, epoch: u32) -> bool {
        self.connection.as_ref().is_some_and(|(open, _)| *open == epoch)
    }

    /// Whether there is a connection that is used.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Closes the connection of `epoch`, or stops making it. `Some`: another one is in its place now.
    pub(super) fn close(&mut self, epoch: u32) -> Option<InPlace> {
        self.connecting.take_if(|(connecting, _)| *connecting == epoch);
        if let Some((_, connection)) = self.beside.take_if(|(beside, _)| *beside == epoch) {
            self.let_close(connection);
        }
        self.close_used(epoch);
        let (epoch, next) = self.beside.take_if(|_| self.connection.is_none())?;
        self.capabilities = next.capabilities().clone();
        self.connection = Some((epoch, next));
        Some(InPlace { capabilities: self.capabilities.clone(), resumes: self.resumes })
    }

    fn close_used(&mut self, epoch: u32) {
        if let Some((_, connection)) = self.connection.take_if(|(open, _)| *open == epoch) {
            let sent = connection.sent_bytes();
            let mut handed = self.in_flight.iter().filter(|handed| handed.by != NOT_HANDED);
            if handed.any(|handed| handed.by > sent) {
                // It takes nothing. What did not leave is said again elsewhere, and only there: the
                // connection is dropped before it can.
                drop(connection);
                self.forget_stream(epoch, sent);
                return;
            }
            self.forget_stream(epoch, NOT_HANDED - 1);
            self.let_close(connection);
        }
    }

    fn let_close(&mut self, connection: Box<dyn LiveConnection>) {
        let give_up = Box::pin(tokio::time::sleep(CLOSE_TIMEOUT));
        self.closing = Some(Closing { connection, give_up });
    }

    /// Queues a command.
    pub(super) fn send(&mut self, epoch: u32, command: LiveCommand, origin: Origin) {
        if self.connection.as_ref().is_some_and(|(open, _)| *open == epoch) {
            self.outgoing.push_back((command, origin));
        } else {
            self.undelivered += 1;
        }
    }

    /// Commands that were lost with the connection they were meant for.
    pub(super) fn undelivered(&self) -> u64 {
        self.undelivered
    }

    /// What comes from the connection.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        self.poll_closing(cx);
        if let Some(news) = self.news.pop_front() {
            return Poll::Ready(news);
        }
        if let Some((epoch, connecting)) = &mut self.connecting
            && let Poll::Ready(result) = connecting.as_mut().poll(cx)
        {
            let epoch = *epoch;
            self.connecting = None;
            return Poll::Ready(match result {
                Ok(connection) => {
                    let capabilities = connection.capabilities().clone();
                    let connected = Some((epoch, connection));
                    if self.connection.is_some() {
                        self.beside = connected;
                    } else {
                        self.capabilities = capabilities.clone();
                        self.connection = connected;
                    }
                    Input::Connected { epoch, capabilities }
                }
                Err(error) => Input::ConnectFailed { epoch, error },
            });
        }
        let Some((epoch, connection)) = &mut self.connection else { return Poll::Pending };
        let epoch = *epoch;
        match connection.poll_next_unpin(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(event))) => {
                match &event {
                    LiveEvent::Ready { capabilities } => self.capabilities = capabilities.clone(),
                    LiveEvent::HandleHolds { commands } => self.held = Some(*commands),
                    _ => {}
                }
                Poll::Ready(Input::Provider { epoch, event })
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(self.lost(Some(error))),
            Poll::Ready(None) => Poll::Ready(self.lost(None)),
        }
    }

    /// Hands over what the connection takes. Ready when the engine has to know something of it.
    pub(super) fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        engine: &mut RecordedEngine,
    ) -> Poll<Input> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Poll::Ready(news);
            }
            if let Some(input) = self.fill(cx, engine) {
                return Poll::Ready(input);
            }
            if self.outgoing.len() > MAX_OUTGOING {
                let error =
                    LiveError::Timeout { what: "room on the wire".into(), after: Duration::ZERO };
                return Poll::Ready(self.lost(Some(error)));
            }
            let wrote = self.unflushed;
            let flushed = self.poll_flush(cx);
            // What was flushed makes room, and nobody calls again to say so.
            let goes_on = flushed.is_pending() && wrote && !self.unflushed;
            if !goes_on || !self.takes_audio(engine) {
                return flushed;
            }
        }
    }

    fn takes_audio(&self, engine: &Engine) -> bool {
        let room = |(_, open): &(u32, Box<dyn LiveConnection>)| open.unsent_bytes() < HIGH_WATER;
        engine.has_uplink() && self.connection.as_ref().is_some_and(room)
    }

    /// Gives the connection as much as it takes now. `Some`: the engine has to know something.
    fn fill(&mut self, cx: &mut Context<'_>, engine: &mut RecordedEngine) -> Option<Input> {
        loop {
            let takes_audio = self.takes_audio(engine);
            let (epoch, connection) = self.connection.as_mut()?;
            let epoch = *epoch;
            if self.outgoing.is_empty() && !takes_audio {
                return None;
            }
            match connection.poll_ready_unpin(cx) {
                Poll::Pending => return None,
                Poll::Ready(Err(error)) => return Some(self.lost(Some(error))),
                Poll::Ready(Ok(())) => {}
            }
            let next = self.outgoing.pop_front();
            let (command, origin) =
                next.or_else(|| engine.poll_uplink().map(|command| (command, Origin::None)))?;
            let name = command.name();
            let kept = is_said_again(&command).then(|| command.clone());
            let is_audio = matches!(command, LiveCommand::AppendAudio(_));
            let command = match command {
                LiveCommand::AppendAudio(frame) => match self.convert(frame) {
                    Ok(Some(frame)) => LiveCommand::AppendAudio(frame),
                    Ok(None) => {
                        // It leaves with what comes next.
                        self.keep(NOT_HANDED, kept);
                        continue;
                    }
                    Err(error) => {
                        return Some(Input::Refused { epoch, command: name, origin, error });
                    }
                },
                other => other,
            };
            let (_, connection) = self.connection.as_mut()?;
            match connection.start_send_unpin(command) {
                Ok(()) => {
                    self.unflushed = true;
                    self.taken += 1;
                    let read = connection.acknowledged_bytes();
                    let by = connection.sent_bytes() + connection.unsent_bytes() as u64;
                    self.forget_read(read);
                    if is_audio {
                        let number = self.taken;
                        let held_back = self.in_flight.iter_mut();
                        held_back
                            .filter(|held| held.by == NOT_HANDED)
                            .for_each(|held| (held.by, held.number) = (by, number));
                    }
                    self.keep(by, kept);
                    if let Origin::Prompt(id) = origin {
                        return Some(Input::PromptSent { id });
                    }
                }
                Err(error) if error.is_recoverable() => {
                    self.keep(NOT_HANDED, kept);
                    return Some(self.lost(Some(error)));
                }
                Err(error) => {
                    return Some(Input::Refused { epoch, command: name, origin, error });
                }
            }
        }
    }

    /// Closes whatever is open. `false`: it did not close in time and was dropped.
    pub(super) async fn finish(&mut self, within: Duration) -> bool {
        (self.connecting, self.beside) = (None, None);
        let closing = self.closing.take().map(|closing| closing.connection);
        let Some(mut connection) = closing.or_else(|| self.connection.take().map(|(_, open)| open))
        else {
            return true;
        };
        let close = std::future::poll_fn(|cx| connection.poll_close_unpin(cx));
        tokio::time::timeout(within, close).await.is_ok()
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        let Some((_, connection)) = &mut self.connection else { return Poll::Pending };
        if !self.unflushed {
            return Poll::Pending;
        }
        match connection.poll_flush_unpin(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                self.unflushed = false;
                Poll::Pending
            }
            Poll::Ready(Err(error)) => Poll::Ready(self.lost(Some(error))),
        }
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) {
        if self.closing.as_mut().is_some_and(|closing| closing.poll(cx).is_ready()) {
            self.closing = None;
        }
    }

    fn lost(&mut self, error: Option<LiveError>) -> Input {
        let (epoch, reached) = match self.connection.take() {
            Some((epoch, connection)) => (epoch, connection.reached_bytes()),
            None => (0, u64::MAX),
        };
        self.forget_stream(epoch, reached);
        let lost = Input::Disconnected { epoch, error };
        match self.news.pop_front() {
            Some(first) => {
                self.news.push_back(lost);
                first
            }
            None => lost,
        }
    }

    /// Remembers what was handed over until the peer has read it.
    fn keep(&mut self, by: u64, command: Option<LiveCommand>) {
        let Some(command) = command else { return };
        self.kept += audio_of(&command);
        self.kept_bytes += bytes_of(&command);
        self.in_flight.push_back(Handed { by, number: self.taken, command });
        while self.kept > self.keeps
            || self.kept_bytes > MAX_KEPT_BYTES
            || self.in_flight.len() > MAX_KEPT
        {
            let Some((by, lost)) = self.forget_oldest() else { break };
            self.not_kept = (by, self.not_kept.1 + lost);
        }
    }

    /// Gives what the oldest of what is kept needed to be read, and how much audio it was.
    fn forget_oldest(&mut self) -> Option<(u64, Duration)> {
        let Handed { by, command, .. } = self.in_flight.pop_front()?;
        self.kept_bytes -= bytes_of(&command);
        let audio = audio_of(&command);
        self.kept -= audio;
        Some((by, audio))
    }

    /// The peer has read so many bytes. Where it counts what its handles hold, the rest is kept.
    fn forget_read(&mut self, read: u64) {
        let held =
            if self.capabilities.handles_count_commands { self.held } else { Some(u64::MAX) };
        let held = held.unwrap_or_default();
        let done = |handed: &Handed| handed.by <= read && handed.number <= held;
        while self.in_flight.front().is_some_and(done) {
            self.forget_oldest();
        }
        if self.not_kept.0 <= read {
            self.not_kept = (0, Duration::ZERO);
        }
    }

    /// The connection is over, of which so many bytes reached the peer. The engine is told what did
    /// not and is to be said again.
    fn forget_stream(&mut self, epoch: u32, reached: u64) {
        self.forget_read(reached);
        let (_, lost) = std::mem::take(&mut self.not_kept);
        (self.kept, self.kept_bytes) = (Duration::ZERO, 0);
        let (unheld, handed): (Vec<_>, Vec<_>) =
            self.in_flight.drain(..).partition(|handed| handed.by <= reached);
        let again = |handed: Vec<Handed>| {
            handed.into_iter().filter_map(|handed| said_again(handed.command)).collect::<Vec<_>>()
        };
        // Without a handle there is nothing to continue by.
        let unheld = if self.held.is_some() { again(unheld) } else { Vec::new() };
        let handed = again(handed);
        (self.taken, self.held) = (0, None);
        let outgoing = self.outgoing.len() as u64;
        let waiting = self.outgoing.drain(..).filter_map(|(command, _)| said_again(command));
        let waiting: Vec<_> = waiting.collect();
        self.undelivered += outgoing - waiting.len() as u64;
        self.unflushed = false;
        let commands: Vec<_> = handed.into_iter().chain(waiting).collect();
        let audio = |command: &HostCommand| matches!(command, HostCommand::Audio(_));
        if commands.iter().chain(&unheld).any(audio) {
            // What it holds of them comes once more.
            self.converter = None;
        }
        if !commands.is_empty() || !lost.is_zero() || !unheld.is_empty() {
            self.news.push_back(Input::Returned { epoch, commands, lost, unheld });
        }
    }

    /// The user's audio as the provider takes it. `None`: the converter holds it back.
    fn convert(&mut self, frame: AudioFrame) -> Result<Option<AudioFrame>, LiveError> {
        let wanted = self.capabilities.input;
        if frame.format == wanted {
            return Ok(Some(frame));
        }
        let invalid =
            |error: antiphon_audio::AudioError| LiveError::InvalidCommand(error.to_string());
        let fits = self.converter.as_ref().is_some_and(|converter| {
            converter.input() == frame.format && converter.output() == wanted
        });
        if !fits {
            self.converter = Some(Converter::new(frame.format, wanted).map_err(invalid)?);
        }
        let Some(converter) = &mut self.converter else { return Ok(None) };
        let converted = converter.convert(&frame).map_err(invalid)?;
        Ok((!converted.is_empty()).then_some(converted))
    }
}

/// The time that the user's audio of a command takes.
fn audio_of(command: &LiveCommand) -> Duration {
    match command {
        LiveCommand::AppendAudio(frame) => frame.duration(),
        _ => Duration::ZERO,
    }
}

/// What a command takes while it is kept.
fn bytes_of(command: &LiveCommand) -> usize {
    match command {
        LiveCommand::AppendAudio(frame) => frame.data.len(),
        LiveCommand::Image { data, .. } => data.len(),
        LiveCommand::ToolResponse(response) => {
            response.response.values().map(|value| value.as_str().map_or(64, str::len)).sum()
        }
        _ => 0,
    }
}

/// Whether a command that did not leave its connection belongs to the next one: the user's audio,
/// what stands between, and the outputs of calls.
fn is_said_again(command: &LiveCommand) -> bool {
    matches!(
        command,
        LiveCommand::AppendAudio(_)
            | LiveCommand::EndAudio
            | LiveCommand::ActivityStart
            | LiveCommand::ActivityEnd
            | LiveCommand::Image { .. }
            | LiveCommand::ToolResponse(_)
    )
}

/// The same as the host asked for it.
fn said_again(command: LiveCommand) -> Option<HostCommand> {
    Some(match command {
        LiveCommand::AppendAudio(frame) => HostCommand::Audio(frame),
        LiveCommand::EndAudio => HostCommand::EndAudio,
        LiveCommand::ActivityStart => HostCommand::ActivityStart,
        LiveCommand::ActivityEnd => HostCommand::ActivityEnd,
        LiveCommand::Image { media_type, data } => HostCommand::Image { media_type, data },
        LiveCommand::ToolResponse(response) => HostCommand::ToolResponse(response),
        _ => return None,
    })
}
