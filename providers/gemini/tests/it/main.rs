//! The provider's tests.

#![allow(clippy::unwrap_used)]

mod allocations;
mod client;
mod contract;
mod provider;
mod wire;
