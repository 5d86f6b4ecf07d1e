//! The server's end of a WebSocket.

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message},
};

use super::AcceptorOptions;
use crate::{
    Frame, SocketError, Transport,
    socket::{close_frame, to_frame, to_message},
};

/// How long a peer that broke the protocol may take to read why it is left.
const LAST_WORD: Duration = Duration::from_millis(200);

/// The server's end of a WebSocket. Dropping it closes the connection without a close frame.
pub struct ServerSocket {
    socket: WebSocketStream<Box<dyn Transport>>,
    options: AcceptorOptions,
    heard_at: Instant,
    pinged_at: Instant,
    over: bool,
}

impl ServerSocket {
    pub(super) fn new(
        socket: WebSocketStream<Box<dyn Transport>>,
        options: AcceptorOptions,
    ) -> Self {
        let now = Instant::now();
        Self { socket, options, heard_at: now, pinged_at: now, over: false }
    }

    /// The next frame; once an error if the socket fails; then `None`. [`Frame::Close`] is the last
    /// frame of a peer that closes in order. Pings are answered here, and sent when the peer is
    /// silent. Cancel safe.
    pub async fn recv(&mut self) -> Option<Result<Frame, SocketError>> {
        while !self.over {
            let ping_at = self.heard_at.max(self.pinged_at) + self.options.ping_interval;
            let give_up_at = self.heard_at + self.options.silence_limit;
            tokio::select! {
                biased;
                message = self.socket.next() => {
                    self.heard_at = Instant::now();
                    match message {
                        Some(Ok(message)) => {
                            if let Some(frame) = self.take(message).await {
                                return Some(Ok(frame));
                            }
                        }
                        Some(Err(error)) => return Some(Err(self.fail(error.into()).await)),
                        None => {
                            let error = SocketError::Lost("end of the stream".into());
                            return Some(Err(self.fail(error).await));
                        }
                    }
                }
                () = sleep_until(give_up_at) => {
                    let after = self.options.silence_limit;
                    let error = SocketError::Timeout { what: "sign of life", after };
                    return Some(Err(self.fail(error).await));
                }
                () = sleep_until(ping_at) => {
                    self.pinged_at = Instant::now();
                    if let Err(error) = self.send(Frame::Ping(Bytes::new())).await {
                        return Some(Err(self.fail(error).await));
                    }
                }
            }
        }
        None
    }

    /// Sends a frame and flushes. When the future is dropped the frame may be sent or not, but
    /// never in part.
    pub async fn send(&mut self, frame: Frame) -> Result<(), SocketError> {
        let message = to_message(frame);
        self.check()?;
        bounded(self.options.write_timeout, self.socket.send(message)).await
    }

    /// Sends a frame with the next flush, or when enough has gathered.
    pub async fn feed(&mut self, frame: Frame) -> Result<(), SocketError> {
        let message = to_message(frame);
        self.check()?;
        bounded(self.options.write_timeout, self.socket.feed(message)).await
    }

    /// Waits until the transport has taken everything.
    pub async fn flush(&mut self) -> Result<(), SocketError> {
        self.check()?;
        bounded(self.options.write_timeout, self.socket.flush()).await
    }

    /// Closes in order: sends a close frame and waits, for a limited time, for the peer's. A reason
    /// of more than 123 bytes is cut.
    pub async fn close(mut self, code: u16, reason: &str) {
        if self.over {
            return;
        }
        let close = Message::Close(Some(close_frame(code, reason)));
        let socket = &mut self.socket;
        let goodbye = async {
            if socket.send(close).await.is_err() {
                return;
            }
            while let Some(Ok(message)) = socket.next().await {
                if message.is_close() {
                    break;
                }
            }
            // The server ends the stream first (RFC 6455, section 7.1.1).
            let _ = tokio::io::AsyncWriteExt::shutdown(socket.get_mut()).await;
        };
        let _ = timeout(self.options.close_timeout, goodbye).await;
    }

    /// Ends the byte stream without a close frame, as a crash or a lost network would.
    pub fn abort(self) {}

    async fn take(&mut self, message: Message) -> Option<Frame> {
        let frame = to_frame(message)?;
        if let Frame::Close(_) = frame {
            self.over = true;
            // Tungstenite answers with a close frame of its own once flushed. The peer may be gone.
            let _ = timeout(self.options.close_timeout, self.socket.flush()).await;
        }
        Some(frame)
    }

    /// Ends the socket, with a last word to the peer where there may still be one.
    async fn fail(&mut self, error: SocketError) -> SocketError {
        self.over = true;
        if let Some(code) = error.close_code() {
            let close = Message::Close(Some(close_frame(code, "")));
            let _ = timeout(LAST_WORD, self.socket.send(close)).await;
        }
        error
    }

    fn check(&self) -> Result<(), SocketError> {
        if self.over { Err(SocketError::Lost("closed".into())) } else { Ok(()) }
    }
}

async fn bounded(
    after: Duration,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), SocketError> {
    match timeout(after, work).await {
        Ok(result) => result.map_err(SocketError::from),
        Err(_) => Err(SocketError::Timeout { what: "room on the wire", after }),
    }
}

impl fmt::Debug for ServerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSocket").field("over", &self.over).finish_non_exhaustive()
    }
}
