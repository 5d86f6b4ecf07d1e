//! The cascade from outside.
#![allow(clippy::unwrap_used)]

mod cascade;
#[cfg(feature = "offline")]
mod matcher;
#[cfg(feature = "offline")]
mod speech;
