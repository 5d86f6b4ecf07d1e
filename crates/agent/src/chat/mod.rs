//! Conversations from the client's side: the same in the agent's process and over a wire.
//!
//! An [`AgentApi`] stands for one agent behind an [`AgentTransport`]. Its [`AgentChat`]s keep what
//! has to travel from turn to turn (a snapshot's id, or the whole state where the agent keeps none),
//! and what was said, streamed and produced so far.
//!
//! A turn that fails leaves the chat as it was before: the next one goes on from the last good
//! state.

mod api;
mod chunk;
mod conversation;
mod driver;
mod in_process;
mod interrupt;
mod local;
mod response;
mod transport;
mod turn;

pub use self::{
    api::{AgentApi, SnapshotLookup},
    chunk::AgentChunk,
    conversation::AgentChat,
    interrupt::AgentInterrupt,
    response::{AgentError, AgentResponse},
    transport::{AgentTransport, TurnRun},
    turn::AgentTurn,
};
