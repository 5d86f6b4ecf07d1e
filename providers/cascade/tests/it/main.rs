//! The cascade from outside.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "offline")]
mod speech;
