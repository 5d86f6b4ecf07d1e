//! A whole session against a scripted provider, speaker and tools, on paused time.

// Helpers fail the test by unwrapping, too.
#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod allocations;
mod arrows;
mod barge_in;
mod bounds;
mod compatible;
mod conversation;
mod fixed;
mod framing;
mod guards;
mod lifetime;
mod link;
mod memory;
#[cfg(feature = "openai")]
mod openai;
mod overlaps;
#[cfg(feature = "openai")]
mod peer;
mod policy_host;
mod quirks;
mod recording;
mod rig;
mod robust;
mod statistics;
mod trials;
mod voice_tools;
#[cfg(feature = "openai")]
mod wire;
