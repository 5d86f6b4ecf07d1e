//! Calls through a whole bridge on loopback sockets, with a scripted provider behind it. Nothing here
//! depends on how long something takes: what is waited for is an event, and a generous deadline fails.

// Helpers fail the test by unwrapping, too.
#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod api;
mod calls;
mod control;
mod flood;
mod guard;
mod lines;
mod outbound;
mod rig;
mod telnyx;
mod webhooks;
