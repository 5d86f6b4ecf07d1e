//! Tests of the audio crate through its public interface, and against tools that are not ours.

// Helpers of tests are tests too; clippy's exception knows only `#[test]`.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "devices")]
mod devices;
#[cfg(feature = "opus")]
mod opus_tools;
mod playout;
mod turns;
