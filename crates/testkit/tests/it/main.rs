//! What the kit's parts promise, and what tokio's paused clock does beside sockets and threads.

// Helpers fail the test by unwrapping, too.
#![allow(clippy::unwrap_used)] // in helpers too, which the lint does not take for tests

mod gemini;
mod openai;
mod paused_time;
mod provider;
mod speaker;
