//! Tests of the live contract from outside.

// A test that fails by a panic is what we want.
#![allow(clippy::unwrap_used)]

mod acceptor;
mod conformance;
mod tcp;
mod websocket;
