//! What the kit's parts promise, and what tokio's paused clock does beside sockets and threads.

mod paused_time;
mod provider;
mod speaker;
