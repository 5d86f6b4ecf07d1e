//! Runs the real program as a user would, in virtual time.
#![allow(clippy::unwrap_used, missing_docs)]

mod conversation;
mod files;
mod idle;
mod program;
mod sound;
mod usage;
