//! The session's half of a connection.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use antiphon_live::{Capabilities, LiveCommand, LiveConnection, LiveError, LiveEvent};
use antiphon_types::Status;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::PollSender;

use crate::{core::Core, driver::Driver, jobs::Parts};

/// Commands on their way to the connection's task.
const MAX_COMMANDS: usize = 64;
/// Events on their way to the session.
const MAX_EVENTS: usize = 64;
/// Longer texts are refused.
const MAX_TEXT_BYTES: usize = 256 * 1024;

/// The session's half of a connection. The other half is a task that ends with it.
pub(crate) struct Connection {
    provider: Arc<str>,
    capabilities: Arc<Capabilities>,
    commands: PollSender<LiveCommand>,
    /// `poll_ready` said yes and nothing was sent since.
    reserved: bool,
    events: mpsc::Receiver<LiveEvent>,
    unsent: Arc<AtomicUsize>,
    task: JoinHandle<()>,
    /// The session closed the connection, or the stream has said how it ended.
    over: bool,
}

impl Connection {
    /// Starts the task. Must be called within a tokio runtime.
    pub(crate) fn open(
        provider: Arc<str>,
        capabilities: Arc<Capabilities>,
        core: Core,
        parts: Arc<Parts>,
    ) -> Self {
        let (commands, for_driver) = mpsc::channel(MAX_COMMANDS);
        let (to_session, events) = mpsc::channel(MAX_EVENTS);
        // The channel is empty, so this cannot fail.
        let _ = to_session.try_send(LiveEvent::Ready { capabilities: capabilities.clone() });
        let unsent = Arc::new(AtomicUsize::new(0));
        let driver = Driver {
            core,
            parts,
            commands: for_driver,
            events: to_session,
            unsent: unsent.clone(),
        };
        Self {
            provider,
            capabilities,
            commands: PollSender::new(commands),
            reserved: false,
            events,
            unsent,
            task: tokio::spawn(driver.run()),
            over: false,
        }
    }

    /// Refuses what cannot or must not be sent.
    fn check(&self, command: &LiveCommand) -> Result<(), LiveError> {
        self.capabilities
            .check(command)
            .map_err(|what| LiveError::unsupported(self.provider.clone(), what))?;
        let invalid = |message: String| Err(LiveError::InvalidCommand(message));
        match command {
            LiveCommand::AppendAudio(frame) if frame.format != self.capabilities.input => {
                let expected = self.capabilities.input;
                invalid(format!("audio is {:?} where {expected:?} is expected", frame.format))
            }
            LiveCommand::Text { text, .. } | LiveCommand::Say { text, .. } => {
                if text.trim().is_empty() {
                    return invalid("the text is blank".into());
                }
                if text.len() > MAX_TEXT_BYTES {
                    return invalid(format!("the text is longer than {MAX_TEXT_BYTES} bytes"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn close(&mut self) {
        self.over = true;
        self.commands.close();
        self.events.close();
        self.task.abort();
    }
}

impl LiveConnection for Connection {
    fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    fn unsent_bytes(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }
}

impl Stream for Connection {
    type Item = Result<LiveEvent, LiveError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        let event = ready!(this.events.poll_recv(cx));
        if event.is_none() {
            // The task never ends by itself: something in it panicked, such as a detector.
            this.close();
            return Poll::Ready(Some(Err(LiveError::Failed {
                provider: this.provider.clone(),
                message: "the connection's task ended unexpectedly".into(),
                status: Status::Internal,
            })));
        }
        Poll::Ready(event.map(Ok))
    }
}

impl Sink<LiveCommand> for Connection {
    type Error = LiveError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(Err(LiveError::NotConnected));
        }
        if !this.reserved {
            let room = ready!(this.commands.poll_reserve(cx));
            room.map_err(|_| LiveError::NotConnected)?;
            this.reserved = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, command: LiveCommand) -> Result<(), LiveError> {
        let this = self.get_mut();
        if this.over {
            return Err(LiveError::NotConnected);
        }
        this.check(&command)?;
        if !std::mem::take(&mut this.reserved) {
            return Err(LiveError::InvalidCommand("sent before the connection was ready".into()));
        }
        let bytes = match &command {
            LiveCommand::AppendAudio(frame) => frame.data.len(),
            _ => 0,
        };
        this.unsent.fetch_add(bytes, Ordering::Relaxed);
        this.commands.send_item(command).map_err(|_| {
            this.unsent.fetch_sub(bytes, Ordering::Relaxed);
            LiveError::NotConnected
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        // What the task was given is on its way; `unsent_bytes` tells how much waits.
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.get_mut().close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}
