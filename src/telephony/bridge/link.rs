//! The socket of a call: a WebSocket, or a plain byte stream.

use std::{fmt, time::Duration};

use antiphon_live::{Frame, SocketError, Transport, acceptor::ServerSocket};
use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

/// A carrier that does not take what is written for so long is given up.
pub(super) const WRITE: Duration = Duration::from_secs(5);
/// It is waited for so long, before the call goes on without it for a moment.
const AT_ONCE: Duration = Duration::from_millis(5);
/// Read from a byte stream at once, in bytes: a tenth of a second of wide-band audio.
const READ: usize = 8 * 1024;

/// The socket of a call.
pub(super) enum Link {
    /// A WebSocket.
    WebSocket(Box<ServerSocket>),
    /// A byte stream; its frames are pieces of any size.
    Stream {
        /// The stream.
        stream: Box<dyn Transport>,
        /// Kept for its memory.
        buffer: BytesMut,
        /// What the peer has not taken yet.
        unsent: BytesMut,
        /// Nothing more can be read.
        over: bool,
    },
    /// None: nothing comes, and what is sent is for nobody.
    Gone,
}

impl Link {
    pub(super) fn stream(stream: Box<dyn Transport>) -> Self {
        Self::Stream { stream, buffer: BytesMut::new(), unsent: BytesMut::new(), over: false }
    }

    /// The next frame; an error once; then `None`. Cancel safe.
    pub(super) async fn recv(&mut self) -> Option<Result<Frame, SocketError>> {
        match self {
            Self::WebSocket(socket) => socket.recv().await,
            Self::Gone => std::future::pending().await,
            Self::Stream { over: true, .. } => None,
            Self::Stream { stream, buffer, over, .. } => {
                buffer.reserve(READ);
                match stream.read_buf(buffer).await {
                    Ok(0) => {
                        *over = true;
                        Some(Ok(Frame::Close(None)))
                    }
                    Ok(_) => Some(Ok(Frame::Binary(buffer.split().freeze()))),
                    Err(error) => {
                        *over = true;
                        Some(Err(SocketError::Lost(error.to_string())))
                    }
                }
            }
        }
    }

    /// Sends what the carrier takes at once, and leaves the rest in `frames`; whether that was all.
    pub(super) async fn offer(&mut self, frames: &mut Vec<Frame>) -> Result<bool, SocketError> {
        match self {
            Self::Gone => {
                frames.clear();
                Ok(true)
            }
            Self::WebSocket(socket) => {
                let write = async {
                    // Only what was flushed makes room, and a frame that found none would be lost.
                    loop {
                        socket.flush().await?;
                        if frames.is_empty() {
                            return Ok(());
                        }
                        socket.feed(frames.remove(0)).await?;
                    }
                };
                timeout(AT_ONCE, write).await.map_or(Ok(false), |sent| sent.map(|()| true))
            }
            Self::Stream { stream, unsent, .. } => {
                for frame in frames.drain(..) {
                    if let Frame::Binary(bytes) = frame {
                        unsent.extend_from_slice(&bytes);
                    }
                }
                let write = async {
                    while !unsent.is_empty() {
                        stream.write_buf(unsent).await?;
                    }
                    stream.flush().await
                };
                match timeout(AT_ONCE, write).await {
                    Ok(sent) => {
                        sent.map(|()| true).map_err(|error| SocketError::Lost(error.to_string()))
                    }
                    Err(_) => Ok(false),
                }
            }
        }
    }

    /// Sends all of `frames`, which are then gone.
    pub(super) async fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), SocketError> {
        if frames.is_empty() {
            return Ok(());
        }
        let after = WRITE;
        let late = || Err(SocketError::Timeout { what: "room on the wire", after });
        match self {
            Self::Gone => {
                frames.clear();
                Ok(())
            }
            Self::WebSocket(socket) => {
                let write = async {
                    for frame in frames.drain(..) {
                        socket.feed(frame).await?;
                    }
                    socket.flush().await
                };
                timeout(after, write).await.unwrap_or_else(|_| late())
            }
            Self::Stream { stream, unsent, .. } => {
                let write = async {
                    stream.write_all_buf(unsent).await?;
                    for frame in frames.drain(..) {
                        if let Frame::Binary(bytes) = frame {
                            stream.write_all(&bytes).await?;
                        }
                    }
                    stream.flush().await
                };
                match timeout(after, write).await {
                    Ok(result) => result.map_err(|error| SocketError::Lost(error.to_string())),
                    Err(_) => late(),
                }
            }
        }
    }

    /// Closes in order, within a limited time.
    pub(super) async fn close(self, code: u16, reason: &str) {
        match self {
            Self::Gone => {}
            Self::WebSocket(socket) => socket.close(code, reason).await,
            // The peer may be gone.
            Self::Stream { mut stream, .. } => {
                let _ = timeout(WRITE, stream.shutdown()).await;
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WebSocket(_) => "Link::WebSocket",
            Self::Stream { .. } => "Link::Stream",
            Self::Gone => "Link::Gone",
        })
    }
}
