//! The client half, frame by frame.

mod audio;
mod errors;
mod random;
mod replies;
mod setup;
pub mod talk;
mod tools;
mod user;
