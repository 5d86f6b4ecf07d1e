//! Telephone calls: the dialects of carriers, and the bridge that answers calls with an agent.
//!
//! - A [`dialect`] is how a carrier speaks over its socket: a pure codec with a record of what it
//!   can do. Twilio, SignalWire, Telnyx, Asterisk's AudioSocket and its `chan_websocket`.
//! - [`media`] keeps time: what comes in becomes a gapless stream, what goes out is sent as far ahead
//!   as the carrier likes, and what the caller heard is known from marks and the clock.
//! - [`signature`] checks that a request comes from the carrier, [`token`] that a stream belongs to a
//!   call that was announced.
//! - [`outbound`] makes calls, to [`numbers`] that a list allows, within limits.
//! - A [`Bridge`] listens, and makes an [`AgentSession`](crate::session::AgentSession) of each call.

pub mod answer;
mod bridge;
pub mod config;
pub mod dialect;
pub mod media;
pub mod numbers;
pub mod outbound;
pub mod rest;
pub mod signature;
pub mod token;

pub use self::{
    bridge::{
        Answer, AnswerError, AnsweredBy, BoundBridge, Bridge, BridgeError, BridgeHandle,
        BridgeStats, CallAgent, CallControl, CallEnd, CallRecord, Carriers, ControlError, HandedOn,
        IncomingCall, call_tools,
    },
    config::BridgeConfig,
};
