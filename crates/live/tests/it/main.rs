//! Tests of the live contract from outside.

// A test that fails by a panic is what we want.
#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod acceptor;
mod conformance;
mod tcp;
mod websocket;
