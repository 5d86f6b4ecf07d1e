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
    Capabilities, ConnectRequest, LiveCommand, LiveConnection, LiveError, LiveProvider,
};
use futures_util::{SinkExt, StreamExt};
use tokio::time::Sleep;

use crate::session::{
    engine::{Engine, Input, Origin},
    recording::RecordedEngine,
};

/// Events taken from a connection in one wake-up; then the others get their turn.
pub(super) const EVENTS_PER_WAKE_UP: usize = 32;
/// Above this many unsent bytes no more of the user's audio is handed over.
const HIGH_WATER: usize = 32 * 1024;
/// Commands that may wait for a connection that takes none; beyond that it is given up.
const MAX_OUTGOING: usize = 1_024;
/// How long connecting may take where the configuration does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection that was replaced may take to close before it is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

type Connecting = Pin<Box<dyn Future<Output = Result<Box<dyn LiveConnection>, LiveError>> + Send>>;

/// The connection, or the making of one.
pub(super) struct Wire {
    provider: Arc<dyn LiveProvider>,
    connecting: Option<(u32, Connecting)>,
    connection: Option<(u32, Box<dyn LiveConnection>)>,
    closing: Option<Closing>,
    capabilities: Arc<Capabilities>,
    outgoing: VecDeque<(LiveCommand, Origin)>,
    converter: Option<Converter>,
    unflushed: bool,
    undelivered: u64,
}

/// A connection that is not used any more.
struct Closing {
    connection: Box<dyn LiveConnection>,
    give_up: Pin<Box<Sleep>>,
}

impl Wire {
    pub(super) fn new(provider: Arc<dyn LiveProvider>, capabilities: Arc<Capabilities>) -> Self {
        Self {
            provider,
            connecting: None,
            connection: None,
            closing: None,
            capabilities,
            outgoing: VecDeque::new(),
            converter: None,
            unflushed: false,
            undelivered: 0,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, request: ConnectRequest, within: Option<Duration>) {
        let provider = self.provider.clone();
        let epoch = request.epoch;
        let within = within.unwrap_or(CONNECT_TIMEOUT);
        let connecting = Box::pin(async move {
            match tokio::time::timeout(within, provider.connect(request)).await {
                Ok(result) => result,
                Err(_) => Err(LiveError::Timeout { what: "connection".into(), after: within }),
            }
        });
        self.connecting = Some((epoch, connecting));
    }

    /// Closes the connection of `epoch`, or stops making it.
    pub(super) fn close(&mut self, epoch: u32) {
        self.connecting.take_if(|(connecting, _)| *connecting == epoch);
        if let Some((_, connection)) = self.connection.take_if(|(open, _)| *open == epoch) {
            self.forget_stream();
            let give_up = Box::pin(tokio::time::sleep(CLOSE_TIMEOUT));
            self.closing = Some(Closing { connection, give_up });
        }
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
        if let Some((epoch, connecting)) = &mut self.connecting {
            let epoch = *epoch;
            let Poll::Ready(result) = connecting.as_mut().poll(cx) else { return Poll::Pending };
            self.connecting = None;
            return Poll::Ready(match result {
                Ok(connection) => {
                    let capabilities = connection.capabilities().clone();
                    self.capabilities = capabilities.clone();
                    self.connection = Some((epoch, connection));
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
                if let antiphon_live::LiveEvent::Ready { capabilities } = &event {
                    self.capabilities = capabilities.clone();
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
            let command = match command {
                LiveCommand::AppendAudio(frame) => match self.convert(frame) {
                    Ok(Some(frame)) => LiveCommand::AppendAudio(frame),
                    Ok(None) => continue,
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
                    if let Origin::Prompt(id) = origin {
                        return Some(Input::PromptSent { id });
                    }
                }
                Err(error) if error.is_recoverable() => return Some(self.lost(Some(error))),
                Err(error) => {
                    return Some(Input::Refused { epoch, command: name, origin, error });
                }
            }
        }
    }

    /// Closes whatever is open. `false`: it did not close in time and was dropped.
    pub(super) async fn finish(&mut self, within: Duration) -> bool {
        self.connecting = None;
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
        if let Some(Closing { connection, give_up }) = &mut self.closing
            && (connection.poll_close_unpin(cx).is_ready() || give_up.as_mut().poll(cx).is_ready())
        {
            self.closing = None;
        }
    }

    fn lost(&mut self, error: Option<LiveError>) -> Input {
        let epoch = self.connection.take().map_or(0, |(epoch, _)| epoch);
        self.forget_stream();
        Input::Disconnected { epoch, error }
    }

    fn forget_stream(&mut self) {
        self.undelivered += self.outgoing.len() as u64;
        self.outgoing.clear();
        self.converter = None;
        self.unflushed = false;
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
