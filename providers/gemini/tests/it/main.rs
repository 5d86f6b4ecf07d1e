//! The provider's tests.

#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod allocations;
mod client;
mod contract;
mod fuzz;
mod provider;
mod server;
mod wire;
