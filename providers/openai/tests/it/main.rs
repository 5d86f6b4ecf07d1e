//! Tests of the OpenAI provider.
#![allow(missing_docs, clippy::unwrap_used)]

mod allocations;
mod client;
mod contract;
mod dialects;
mod provider;
mod wire;
