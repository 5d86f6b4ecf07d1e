//! What both ends of a WebSocket share: limits, frames, and how it fails.

use std::{io, time::Duration};

use antiphon_types::Status;
use tokio_tungstenite::tungstenite::{
    Error, Message,
    error::{CapacityError, ProtocolError},
    protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode},
};

use crate::Frame;

/// Default limit of a message, and of a frame, in either direction.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// Frames are gathered up to this many bytes before they are written.
const WRITE_BUFFER: usize = 16 * 1024;
/// The longest frame header, that of a masked frame of more than 64 KiB.
pub(crate) const MAX_HEADER: usize = 14;
/// The longest reason that a close frame takes.
const MAX_REASON: usize = 123;

/// The limits of a socket that takes `read_buffer` bytes at once, and clears as many before it asks
/// for them: a large buffer costs time as well as memory.
pub(crate) fn limits(max_message: usize, read_buffer: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(read_buffer)
        .write_buffer_size(WRITE_BUFFER)
        // What is gathered, and one message on top of it.
        .max_write_buffer_size(WRITE_BUFFER + max_message + MAX_HEADER)
        .max_message_size(Some(max_message))
        .max_frame_size(Some(max_message))
}

/// How a socket failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The socket ended without a close frame. Close code 1006 stands for it.
    #[error("the socket ended without a close frame: {0}")]
    Lost(String),
    /// The peer sent a message that is too large. Close code 1009.
    #[error("a message of {size} bytes where at most {limit} are taken")]
    TooLarge {
        /// What was announced, in bytes.
        size: usize,
        /// What is taken, in bytes.
        limit: usize,
    },
    /// The peer sent text that is not UTF-8. Close code 1007.
    #[error("text that is not UTF-8")]
    NotText,
    /// The peer broke the framing. Close code 1002.
    #[error("bad framing: {0}")]
    Framing(String),
    /// The transport failed.
    #[error("{0}")]
    Io(String),
    /// Something did not happen in time.
    #[error("no {what} within {after:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
}

impl SocketError {
    /// The canonical status code.
    pub fn status(&self) -> Status {
        match self {
            Self::Lost(_) | Self::Io(_) => Status::Unavailable,
            Self::TooLarge { .. } => Status::ResourceExhausted,
            Self::NotText | Self::Framing(_) => Status::InvalidArgument,
            Self::Timeout { .. } => Status::DeadlineExceeded,
        }
    }

    /// The close code to tell the peer, if there is still somebody to tell.
    pub(crate) const fn close_code(&self) -> Option<u16> {
        match self {
            Self::TooLarge { .. } => Some(1009),
            Self::NotText => Some(1007),
            Self::Framing(_) => Some(1002),
            Self::Lost(_) | Self::Io(_) | Self::Timeout { .. } => None,
        }
    }
}

impl From<Error> for SocketError {
    fn from(error: Error) -> Self {
        match error {
            Error::ConnectionClosed | Error::AlreadyClosed => Self::Lost("closed".into()),
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                Self::Lost("end of the stream".into())
            }
            Error::Io(error) if is_end(error.kind()) => Self::Lost(error.to_string()),
            Error::Io(error) => Self::Io(error.to_string()),
            Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
                Self::TooLarge { size, limit: max_size }
            }
            Error::Utf8(_) => Self::NotText,
            Error::Protocol(error) => Self::Framing(error.to_string()),
            other => Self::Io(other.to_string()),
        }
    }
}

fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::UnexpectedEof
            | Kind::NotConnected
    )
}

/// A frame as tungstenite takes it.
pub(crate) fn to_message(frame: Frame) -> Message {
    match frame {
        Frame::Text(text) => Message::Text(text),
        Frame::Binary(bytes) => Message::Binary(bytes),
        Frame::Ping(bytes) => Message::Ping(bytes),
        Frame::Pong(bytes) => Message::Pong(bytes),
        Frame::Close(close) => {
            Message::Close(close.map(|(code, reason)| close_frame(code, &reason)))
        }
    }
}

/// A close frame; a long reason is cut where a character ends.
pub(crate) fn close_frame(code: u16, reason: &str) -> CloseFrame {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    CloseFrame { code: CloseCode::from(code), reason: reason[..end].into() }
}

/// A message as protocols take it. `None`: a raw frame, which reading never gives.
pub(crate) fn to_frame(message: Message) -> Option<Frame> {
    Some(match message {
        Message::Text(text) => Frame::Text(text),
        Message::Binary(bytes) => Frame::Binary(bytes),
        Message::Ping(bytes) => Frame::Ping(bytes),
        Message::Pong(bytes) => Frame::Pong(bytes),
        Message::Close(close) => Frame::Close(
            close.map(|close| (u16::from(close.code), close.reason.as_str().to_owned())),
        ),
        Message::Frame(_) => return None,
    })
}
