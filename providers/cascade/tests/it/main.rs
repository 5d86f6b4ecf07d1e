//! The cascade from outside.
#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod cascade;
#[cfg(feature = "offline")]
mod matcher;
#[cfg(feature = "offline")]
mod speech;
