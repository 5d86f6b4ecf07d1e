//! Tests of the OpenAI provider.
#![allow(missing_docs, clippy::unwrap_used)]

mod allocations;
mod client;
mod provider;
mod wire;
