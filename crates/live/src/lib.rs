//! The contract between a voice session and a live provider.
//!
//! Whoever writes a provider depends on this crate alone, implements [`LiveProvider`], and runs
//! the suite in `conformance` (feature `conformance`) against it.
//!
//! A **provider** offers **connections**; a session uses one connection at a time. A
//! [`LiveConnection`] is a [`Stream`](futures_core::Stream) of [`LiveEvent`]s and a
//! [`Sink`](futures_sink::Sink) of [`LiveCommand`]s, both polled by the session's one task, so that
//! nothing is cancelled half-way and audio makes no task hop.
//!
//! # What a connection promises
//!
//! 1. The first event is [`LiveEvent::Ready`], with the connection's real capabilities.
//! 2. Everything between [`LiveEvent::ReplyStarted`] and [`LiveEvent::ReplyDone`] of one reply
//!    carries that reply's id; at most one reply is active at a time; each started reply is done
//!    exactly once unless the connection ends before.
//! 3. A command that the capabilities exclude is a typed error from `start_send`, before anything
//!    is sent, and does not end the connection.
//! 4. The stream ends with exactly one `Err` (fatal, see [`LiveError::is_recoverable`]) or `None`;
//!    after that it yields `None` for ever. Recoverable provider errors are [`LiveEvent::Error`].
//! 5. Dropping the connection closes it. Closing twice is fine.
//!
//! # WebSockets
//!
//! A provider behind a WebSocket implements [`WireProtocol`], a pure state machine, and leaves the
//! rest to the driver in `websocket` (feature `websocket`). Servers, such as a gateway or a test's
//! far end, take connections with `acceptor` (feature `acceptor`).

#[cfg(feature = "acceptor")]
pub mod acceptor;
mod command;
mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod event;
mod protocol;
mod provider;
#[cfg(feature = "socket")]
mod socket;
#[cfg(feature = "websocket")]
pub mod websocket;

pub use antiphon_types as types;
pub use antiphon_types::Sensitivity;
pub use command::LiveCommand;
pub use config::{
    ActivityDetection, ActivityHandling, BearerSource, ContextCompression, LiveConfig,
    LivePolicies, SpeakerOptions, Thinking, ThinkingLevel, TokenSource, TurnCoverage,
    VoiceActivity, WorkflowConfig, WorkflowStep,
};
pub use error::LiveError;
pub use event::{
    ErrorInfo, LiveEvent, RateLimit, ReplyId, ReplyOutcome, SpeakerInfo, TextUpdate, WordTime,
};
pub use protocol::{
    Connector, Frame, Handshake, Outbox, Refusal, Secrets, Transport, WireProtocol,
};
pub use provider::{
    Capabilities, ConnectRequest, HistoryItem, HistoryRole, LiveConnection, LiveProvider,
    OutputWords, Resumption,
};
#[cfg(feature = "socket")]
pub use socket::SocketError;
pub use tungstenite::Utf8Bytes;
