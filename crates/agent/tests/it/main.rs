//! The behaviour of tools, policy, memory and messages, from outside.
#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod agent;
mod approval;
mod chat;
#[cfg(feature = "chat-models")]
mod chat_model;
mod crash;
mod executor;
mod generate;
mod genkit;
mod ledger;
mod memory;
mod message;
mod model;
mod names;
mod patch;
mod prompt;
mod registry;
mod state;
mod store;
mod support;
mod tool;
mod witness;
