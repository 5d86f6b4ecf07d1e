//! The client half, without a socket.

mod random;
mod replies;
mod setup;
mod talk;
mod tools;
mod user;
