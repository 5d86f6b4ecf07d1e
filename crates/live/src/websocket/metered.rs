//! A byte stream that counts.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Frame, Transport, socket::MAX_HEADER};

/// A transport that counts its bytes, so that the driver knows what the peer took and that it is
/// alive.
pub(super) struct Metered {
    inner: Box<dyn Transport>,
    read: u64,
    written: u64,
}

impl Metered {
    pub(super) fn new(inner: Box<dyn Transport>) -> Self {
        Self { inner, read: 0, written: 0 }
    }

    /// Bytes read so far.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Bytes that the transport took so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(&mut this.inner).poll_read(cx, buf);
        this.read += (buf.filled().len() - before) as u64;
        result
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &result {
            this.written += *count as u64;
        }
        result
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// The bytes of a frame's payload.
pub(super) fn payload_len(frame: &Frame) -> usize {
    match frame {
        Frame::Text(text) => text.len(),
        Frame::Binary(bytes) | Frame::Ping(bytes) | Frame::Pong(bytes) => bytes.len(),
        Frame::Close(close) => close.as_ref().map_or(0, |(_, reason)| reason.len() + 2),
    }
}

/// The bytes of a masked frame on the wire.
pub(super) fn wire_len(payload: usize) -> usize {
    payload
        + match payload {
            0..=125 => 6,
            126..=65_535 => 8,
            _ => MAX_HEADER,
        }
}
