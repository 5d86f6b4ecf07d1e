//! A link as the session sees it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_sink::Sink;

use super::link::Link;
use crate::{Capabilities, LiveCommand, LiveConnection, LiveError, LiveEvent, WireProtocol};

/// A link whose provider is ready.
pub(super) struct Connection<P> {
    link: Link<P>,
    capabilities: Arc<Capabilities>,
}

impl<P: WireProtocol> Connection<P> {
    pub(super) fn new(link: Link<P>, capabilities: Arc<Capabilities>) -> Self {
        Self { link, capabilities }
    }

    /// Refuses what cannot or must not be sent.
    fn check(&self, command: &LiveCommand) -> Result<(), LiveError> {
        self.capabilities
            .check(command)
            .map_err(|what| LiveError::unsupported(self.link.protocol().provider(), what))?;
        let invalid = |message: String| Err(LiveError::InvalidCommand(message));
        match command {
            LiveCommand::AppendAudio(frame) if frame.format != self.capabilities.input => {
                let expected = self.capabilities.input;
                invalid(format!("audio is {:?} where {expected:?} is expected", frame.format))
            }
            LiveCommand::Text { text, .. } | LiveCommand::Say { text, .. }
                if text.trim().is_empty() =>
            {
                invalid("the text is blank".into())
            }
            _ => Ok(()),
        }
    }
}

// Nothing in it is pinned.
impl<P> Unpin for Connection<P> {}

impl<P: WireProtocol> LiveConnection for Connection<P> {
    fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    fn unsent_bytes(&self) -> usize {
        self.link.unsent_bytes()
    }

    fn sent_bytes(&self) -> u64 {
        self.link.sent_bytes()
    }

    fn acknowledged_bytes(&self) -> u64 {
        self.link.acknowledged_bytes()
    }

    fn reached_bytes(&self) -> u64 {
        self.link.reached_bytes()
    }
}

impl<P: WireProtocol> Stream for Connection<P> {
    type Item = Result<LiveEvent, LiveError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().link.poll_event(cx)
    }
}

impl<P: WireProtocol> Sink<LiveCommand> for Connection<P> {
    type Error = LiveError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.get_mut().link.poll_room(cx)
    }

    fn start_send(self: Pin<&mut Self>, command: LiveCommand) -> Result<(), LiveError> {
        let this = self.get_mut();
        this.check(&command)?;
        this.link.command(command)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.get_mut().link.poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.get_mut().link.poll_close(cx).map(Ok)
    }
}
