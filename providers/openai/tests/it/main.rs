//! Tests of the OpenAI provider.
#![allow(missing_docs, clippy::unwrap_used)]

mod allocations;
mod client;
mod contract;
mod provider;
mod wire;
