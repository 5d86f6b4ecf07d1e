//! A byte stream that counts, and reads ahead.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Frame, Transport, socket::MAX_HEADER};

/// Read from the transport at once, in bytes: several of the usual frames. Taken from the stack, so
/// that a connection at rest holds no buffer, and what is read is warm.
const READ_AT_ONCE: usize = 16 * 1024;

/// A transport that counts its bytes, so that the driver knows what the peer took and that it is
/// alive. It can be asked whether there is anything to read.
pub(super) struct Metered {
    inner: Box<dyn Transport>,
    /// Read from the transport, and not yet taken.
    ahead: Bytes,
    /// How reading ended; told once what was read is taken.
    end: Option<io::Result<()>>,
    read: u64,
    written: u64,
}

impl Metered {
    pub(super) fn new(inner: Box<dyn Transport>) -> Self {
        Self { inner, ahead: Bytes::new(), end: None, read: 0, written: 0 }
    }

    /// Bytes read so far.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Bytes that the transport took so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Ready when a read gives something: bytes, the end or an error.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.ahead.is_empty() || self.end.is_some() {
            return Poll::Ready(());
        }
        let mut space = [const { MaybeUninit::uninit() }; READ_AT_ONCE];
        let mut space = ReadBuf::uninit(&mut space);
        let result = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut space));
        let bytes = space.filled();
        if result.is_err() || bytes.is_empty() {
            self.end = Some(result);
        } else {
            self.read += bytes.len() as u64;
            self.ahead = Bytes::copy_from_slice(bytes);
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_readable(cx));
        if this.ahead.is_empty() {
            // What is read after the end is the transport's to say.
            return Poll::Ready(this.end.take().unwrap_or(Ok(())));
        }
        let count = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead[..count]);
        this.ahead.advance(count);
        if this.ahead.is_empty() {
            this.ahead = Bytes::new();
        }
        Poll::Ready(Ok(()))
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
