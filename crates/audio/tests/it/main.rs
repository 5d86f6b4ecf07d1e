//! Tests of the audio crate through its public interface, and against tools that are not ours.

#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

#[cfg(feature = "devices")]
mod devices;
#[cfg(feature = "opus")]
mod opus_tools;
mod playout;
mod turns;
