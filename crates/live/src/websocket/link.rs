//! A protocol joined to a socket: carries frames, commands and time to it, and out of its outbox.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::time::Sleep;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message},
};

use super::{
    WebSocketOptions,
    metered::{Metered, payload_len, wire_len},
};
use crate::{
    Capabilities, Frame, LiveCommand, LiveError, LiveEvent, Outbox, WireProtocol,
    socket::{SocketError, close_frame, to_frame, to_message},
};

/// Messages that are taken in one poll before other work gets its turn.
const MESSAGES_PER_POLL: u32 = 64;
/// Frames wait for at most so many messages before they are written.
const MESSAGES_PER_WRITE: u32 = 32;
/// Above this many unsent bytes no command is taken.
const HIGH_WATER: usize = 64 * 1024;
/// Frames that may wait for the socket before the peer is given up: it makes us answer and does not
/// read.
const MAX_WAITING_FRAMES: usize = 4_096;
/// Events that may come before the protocol is ready.
const MAX_EARLY_EVENTS: usize = 1_024;
/// A deadline that is still over after it was told is not told again before.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// A peer of which nothing came for so long before its connection ended was out of reach already.
const DEAF_AFTER: Duration = Duration::from_secs(10);
/// As long after a ping that nothing came for, at least; where pongs are slow, so many of their times.
const LATE: Duration = Duration::from_secs(1);
const LATE_PONGS: u32 = 4;
/// Pings without an answer that are remembered.
const MAX_PINGS: usize = 256;
/// The close code where the peer's close frame has none.
const NO_CODE: u16 = 1005;
/// The payload of a ping.
const COUNT_BYTES: usize = 8;
/// The close code where there was no close frame.
const LOST: u16 = 1006;

/// A protocol and its socket.
pub(super) struct Link<P> {
    socket: WebSocketStream<Metered>,
    protocol: P,
    outbox: Outbox,
    options: WebSocketOptions,
    state: State,
    /// Why the connection ends; told after the events that came before.
    failure: Option<LiveError>,
    /// A write failed. What can still be read may say why, such as a close frame.
    write_error: Option<SocketError>,
    /// Something is in the socket's buffer.
    unflushed: bool,
    /// The socket holds no whole frame: it has to be asked only after new bytes came.
    drained: bool,
    /// Who flushes was woken to poll the stream, and has not since.
    nudged: bool,
    /// Bytes handed to the socket.
    handed: u64,
    /// Of these, those before a ping that the peer has answered.
    acknowledged: u64,
    /// Pings that wait for their pongs: what was handed before each, and when it was sent.
    pings: VecDeque<(u64, Instant)>,
    /// How long the last pong took.
    round_trip: Duration,
    /// The connection ended after the peer had been out of reach.
    deaf: bool,
    liveness: Liveness,
    /// When the protocol was last told that its deadline is over.
    told_at: Option<Instant>,
    /// Messages taken since frames were last written.
    unanswered: u32,
    timer: Pin<Box<Sleep>>,
    timer_at: Instant,
}

enum State {
    Open,
    /// We close.
    Closing(Pin<Box<Sleep>>),
    Over,
}

/// When the peer was last seen to read and write, and last pinged.
struct Liveness {
    read: u64,
    read_at: Instant,
    written: u64,
    written_at: Instant,
    pinged_at: Instant,
    /// Bytes handed to the socket by then, the ping among them.
    pinged: u64,
}

impl<P: WireProtocol> Link<P> {
    /// After the upgrade.
    pub(super) fn open(
        socket: WebSocketStream<Metered>,
        protocol: P,
        options: WebSocketOptions,
    ) -> Self {
        let now = now();
        // What the upgrade took is behind us.
        let (read, written) = (socket.get_ref().read(), socket.get_ref().written());
        let mut link = Self {
            socket,
            protocol,
            outbox: Outbox::default(),
            options,
            state: State::Open,
            failure: None,
            write_error: None,
            unflushed: false,
            drained: false,
            nudged: false,
            handed: written,
            acknowledged: written,
            pings: VecDeque::new(),
            round_trip: Duration::ZERO,
            deaf: false,
            liveness: Liveness {
                read,
                read_at: now,
                written,
                written_at: now,
                pinged_at: now,
                pinged: written,
            },
            told_at: None,
            unanswered: 0,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            timer_at: now,
        };
        if let Err(error) = link.protocol.opened(now, &mut link.outbox) {
            link.failure = Some(error);
        }
        link
    }

    pub(super) fn protocol(&self) -> &P {
        &self.protocol
    }

    /// Encoded bytes that the transport did not take yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        let waiting = self.outbox.frames.iter().map(payload_len).map(wire_len).sum::<usize>();
        let buffered = self.handed.saturating_sub(self.socket.get_ref().written());
        waiting + usize::try_from(buffered).unwrap_or(usize::MAX)
    }

    /// Encoded bytes that the transport took.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.socket.get_ref().written()
    }

    /// Of these, those that the peer has read for certain.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged
    }

    /// Of all, those that are taken to have reached a peer that is gone.
    pub(super) fn reached_bytes(&self) -> u64 {
        if self.deaf { self.acknowledged } else { self.sent_bytes() }
    }

    /// Ready once the protocol is, which its first event says, or when it failed.
    pub(super) fn poll_opened(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arc<Capabilities>, LiveError>> {
        for _ in 0..MESSAGES_PER_POLL {
            if let Some(capabilities) = self.take_ready() {
                // What was said to open the session goes out though nobody polls for a while.
                if let Poll::Ready(Err(error)) = self.poll_write(cx) {
                    self.write_error = Some(error);
                }
                return Poll::Ready(Ok(capabilities));
            }
            if self.outbox.events.len() > MAX_EARLY_EVENTS {
                let message = "the server talks without accepting the session";
                self.failure = Some(LiveError::Protocol(message.into()));
            }
            if let Some(error) = self.poll_failure(cx) {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_step(cx));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The next event; once the reason of the end, then `None`.
    pub(super) fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<LiveEvent, LiveError>>> {
        self.nudged = false;
        for _ in 0..MESSAGES_PER_POLL {
            if !matches!(self.state, State::Open) {
                return Poll::Ready(None);
            }
            if let Some(event) = self.outbox.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = self.poll_failure(cx) {
                return Poll::Ready(Some(Err(error)));
            }
            ready!(self.poll_step(cx));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when another command may come.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        if !matches!(self.state, State::Open) || self.failure.is_some() {
            return Poll::Ready(Err(LiveError::NotConnected));
        }
        if self.unsent_bytes() > HIGH_WATER {
            ready!(self.poll_flush(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the protocol a command.
    pub(super) fn command(&mut self, command: LiveCommand) -> Result<(), LiveError> {
        if !matches!(self.state, State::Open) || self.failure.is_some() {
            return Err(LiveError::NotConnected);
        }
        let now = now();
        let waiting = self.outbox.frames.len();
        if waiting == 0 && !self.unflushed {
            // Nothing waited so far, so the peer has not been slow.
            self.liveness.written_at = now;
        }
        self.protocol.command(command, now, &mut self.outbox)?;
        let limit = self.options.max_message;
        let sizes = self.outbox.frames.iter().skip(waiting).map(payload_len);
        if let Some(size) = sizes.filter(|size| *size > limit).max() {
            self.outbox.frames.truncate(waiting);
            let message = format!("a message of {size} bytes where at most {limit} can be sent");
            return Err(LiveError::InvalidCommand(message));
        }
        Ok(())
    }

    /// Ready when the transport has taken everything.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        if matches!(self.state, State::Over) {
            return Poll::Ready(Err(LiveError::NotConnected));
        }
        if let Some(error) = &self.write_error {
            return Poll::Ready(Err(live_error(error.clone())));
        }
        match self.poll_write(cx) {
            Poll::Ready(Err(error)) => {
                // The stream is given the first chance to say why; a caller that does not read is
                // told on its next poll.
                self.write_error = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            written => {
                // Commands may have made events, and brought deadlines forward. Said once: a caller
                // that only flushes is not kept busy.
                if !self.nudged && self.has_news() {
                    self.nudged = true;
                    cx.waker().wake_by_ref();
                }
                written.map_err(live_error)
            }
        }
    }

    /// Whether the stream has something to do that nothing else wakes it for.
    fn has_news(&mut self) -> bool {
        if !self.outbox.events.is_empty() || self.failure.is_some() {
            return true;
        }
        if !matches!(self.state, State::Open) {
            return false;
        }
        let due = if self.unflushed { self.due(now()) } else { self.ping_due() };
        self.protocol_due().map_or(due, |deadline| due.min(deadline)) < self.timer_at
    }

    /// Ready when the close frame was answered, or need not be waited for any longer.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.state, State::Over) || self.failure.is_some() || self.write_error.is_some()
        {
            self.state = State::Over;
            return Poll::Ready(());
        }
        if let State::Open = self.state {
            self.state = State::Closing(Box::pin(tokio::time::sleep(self.options.close_timeout)));
            self.outbox.events.clear();
            self.outbox.frames.push_back(Frame::Close(Some((1000, String::new()))));
        }
        let closed = self.poll_closed(cx);
        if closed.is_ready() {
            self.state = State::Over;
        }
        closed
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Closing(give_up) = &mut self.state
            && give_up.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(());
        }
        if let Poll::Ready(Err(_)) = self.poll_write(cx) {
            return Poll::Ready(());
        }
        for _ in 0..MESSAGES_PER_POLL {
            match ready!(self.socket.poll_next_unpin(cx)) {
                Some(Ok(Message::Close(_))) | Some(Err(_)) | None => return Poll::Ready(()),
                Some(Ok(_)) => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes the ready event to the front of the events, where the session expects it.
    fn take_ready(&mut self) -> Option<Arc<Capabilities>> {
        let events = &mut self.outbox.events;
        let at = events.iter().position(|event| matches!(event, LiveEvent::Ready { .. }))?;
        let event = events.remove(at)?;
        let LiveEvent::Ready { capabilities } = &event else { return None };
        let capabilities = capabilities.clone();
        events.push_front(event);
        Some(capabilities)
    }

    /// Ends the connection if there is a reason to, with a last word to the peer.
    fn poll_failure(&mut self, cx: &mut Context<'_>) -> Option<LiveError> {
        let error = self.failure.take()?;
        self.state = State::Over;
        self.outbox.frames.clear();
        // One try: a peer that does not take it now learns of the end by that of the socket.
        let _ = self.socket.poll_flush_unpin(cx);
        Some(error)
    }

    /// Takes one message, or lets time pass. Ready when something may have come of it.
    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.poll_message(cx) {
            Poll::Ready(Some(Ok(message))) => {
                self.take(message);
                self.answer(cx);
            }
            Poll::Ready(Some(Err(error))) => self.fail(error.into()),
            Poll::Ready(None) => self.fail(SocketError::Lost("end of the stream".into())),
            Poll::Pending => return self.poll_idle(cx),
        }
        Poll::Ready(())
    }

    /// The next message. A socket without news, which is most of the times that this is asked, is
    /// not made to clear its buffer for it.
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Message, tungstenite::Error>>> {
        // The pong to a ping is written when the socket is asked for messages.
        let settled = self.handed <= self.socket.get_ref().written();
        if self.drained && settled {
            ready!(self.socket.get_mut().poll_readable(cx));
        }
        let message = self.socket.poll_next_unpin(cx);
        self.drained = message.is_pending();
        message
    }

    /// A server that never pauses must not keep our answers back.
    fn answer(&mut self, cx: &mut Context<'_>) {
        self.unanswered += 1;
        if self.unanswered < MESSAGES_PER_WRITE || self.outbox.frames.is_empty() {
            return;
        }
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            self.write_error = Some(error);
        }
    }

    /// Nothing can be read now.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(error) = self.write_error.take() {
            self.fail(error);
            return Poll::Ready(());
        }
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            self.fail(error);
            return Poll::Ready(());
        }
        loop {
            let now = now();
            let due = self.due(now);
            if due <= now {
                self.handle_time(now);
                return Poll::Ready(());
            }
            // A timer that rings too early costs less than moving it with every frame.
            if due < self.timer_at || self.timer_at <= now {
                self.timer_at = due;
                self.timer.as_mut().reset(due.into());
            }
            ready!(self.timer.as_mut().poll(cx));
            // It rang: from now on it has to be set again.
            self.timer_at = now;
        }
    }

    /// Gives a message to the protocol.
    fn take(&mut self, message: Message) {
        let now = now();
        match to_frame(message) {
            Some(Frame::Ping(payload)) => self.handed += wire_len(payload.len()) as u64, // its pong
            Some(Frame::Pong(payload)) => {
                // Each ping holds the count of what was handed before it.
                let count = payload.as_ref().try_into().map(u64::from_be_bytes);
                if let Some(count) = count.ok().filter(|count| *count <= self.handed) {
                    self.acknowledged = self.acknowledged.max(count);
                    while let Some((_, at)) = self.pings.pop_front_if(|(of, _)| *of <= count) {
                        self.round_trip = now.duration_since(at);
                    }
                }
            }
            None => {}
            Some(Frame::Close(close)) => {
                let said = self.protocol.frame(Frame::Close(close.clone()), now, &mut self.outbox);
                let (code, reason) = close.unwrap_or((NO_CODE, String::new()));
                self.failure = Some(said.err().unwrap_or(LiveError::Closed { code, reason }));
            }
            Some(frame) => {
                if let Err(error) = self.protocol.frame(frame, now, &mut self.outbox) {
                    let code = if matches!(error, LiveError::Protocol(_)) { 1002 } else { 1000 };
                    self.give_up(error, Some(code));
                } else if self.outbox.frames.len() > MAX_WAITING_FRAMES {
                    let message = "the server does not read the answers that it asks for";
                    self.give_up(LiveError::Protocol(message.into()), None);
                }
            }
        }
        // A server that never pauses must not stop the clock.
        if self.failure.is_none() && self.due(now) <= now {
            self.handle_time(now);
        }
    }

    /// When time matters next.
    fn due(&mut self, now: Instant) -> Instant {
        let transport = self.socket.get_ref();
        let (read, written) = (transport.read(), transport.written());
        let unsent = self.unflushed || !self.outbox.frames.is_empty();
        let live = &mut self.liveness;
        if read != live.read {
            live.read = read;
            live.read_at = now;
        }
        if written != live.written || !unsent {
            live.written = written;
            live.written_at = now;
        }
        let mut due = self.ping_due();
        let (live, options) = (&self.liveness, &self.options);
        due = due.min(live.read_at + options.silence_limit);
        if unsent {
            due = due.min(live.written_at + options.write_limit);
        }
        self.protocol_due().map_or(due, |deadline| due.min(deadline))
    }

    /// When the next ping is sent: sooner where something was sent since the last.
    fn ping_due(&self) -> Instant {
        let sends = self.handed > self.liveness.pinged;
        let Self { options, liveness, .. } = self;
        let every = if sends { options.acknowledge_interval } else { options.ping_interval };
        liveness.pinged_at + every.min(options.ping_interval)
    }

    /// When the protocol is to be told of its deadline.
    fn protocol_due(&self) -> Option<Instant> {
        let deadline = self.protocol.deadline()?;
        match self.told_at {
            Some(told) if deadline <= told => Some(told + SHORTEST_WAIT),
            _ => Some(deadline),
        }
    }

    fn handle_time(&mut self, now: Instant) {
        let options = &self.options;
        let over = |since: Instant, limit: Duration| now >= since + limit;
        let timeout = |what: &str, after| Some(LiveError::Timeout { what: what.into(), after });
        if over(self.liveness.read_at, options.silence_limit) {
            self.deaf = true;
            self.failure = timeout("sign of life from the server", options.silence_limit);
            return;
        }
        let unsent = self.unflushed || !self.outbox.frames.is_empty();
        if unsent && over(self.liveness.written_at, options.write_limit) {
            self.deaf = true;
            self.failure = timeout("room on the wire", options.write_limit);
            return;
        }
        if self.ping_due() <= now {
            self.liveness.pinged_at = now;
            self.outbox.frames.push_back(Frame::Ping(Bytes::from_static(&[0; COUNT_BYTES])));
        }
        if self.protocol_due().is_some_and(|deadline| deadline <= now) {
            self.told_at = Some(now);
            if let Err(error) = self.protocol.timeout(now, &mut self.outbox) {
                self.give_up(error, Some(1000));
            }
        }
    }

    /// Hands waiting frames to the socket, and flushes.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SocketError>> {
        self.unanswered = 0;
        while !self.outbox.frames.is_empty() {
            ready!(self.socket.poll_ready_unpin(cx))?;
            let Some(mut frame) = self.outbox.frames.pop_front() else { break };
            let before = self.handed;
            self.handed += wire_len(payload_len(&frame)) as u64;
            if let Frame::Ping(payload) = &mut frame {
                *payload = Bytes::copy_from_slice(&before.to_be_bytes());
                self.liveness.pinged = self.handed;
                if self.pings.len() < MAX_PINGS {
                    self.pings.push_back((before, now()));
                }
            }
            self.unflushed = true;
            self.socket.start_send_unpin(to_message(frame))?;
        }
        if self.unflushed {
            ready!(self.socket.poll_flush_unpin(cx))?;
            self.unflushed = false;
            self.handed = self.socket.get_ref().written();
        }
        Poll::Ready(Ok(()))
    }

    /// The socket failed. What the peer had not read by then it may never have: a network that was gone
    /// for a while took it, which pings without an answer show.
    fn fail(&mut self, error: SocketError) {
        let (now, read_at) = (now(), self.liveness.read_at);
        let heard = self.socket.get_ref().read() != self.liveness.read;
        let late = LATE.max(LATE_PONGS * self.round_trip);
        let unanswered = self
            .pings
            .front()
            .is_some_and(|(_, sent)| read_at <= *sent && now.duration_since(*sent) >= late);
        self.deaf = !heard && (unanswered || now.duration_since(read_at) >= DEAF_AFTER);
        let code = error.close_code();
        self.give_up(live_error(error), code);
    }

    fn give_up(&mut self, error: LiveError, code: Option<u16>) {
        self.failure = Some(error);
        if let Some(code) = code {
            let _ = self.socket.start_send_unpin(Message::Close(Some(close_frame(code, ""))));
        }
    }
}

fn live_error(error: SocketError) -> LiveError {
    match error {
        SocketError::Lost(reason) => LiveError::Closed { code: LOST, reason },
        SocketError::Io(reason) => LiveError::Transport(reason),
        SocketError::Timeout { what, after } => LiveError::Timeout { what: what.into(), after },
        other => LiveError::Protocol(other.to_string()),
    }
}

/// Tokio's clock, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
