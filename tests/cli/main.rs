//! Runs the real program as a user would, in virtual time.
// In helpers too, which the lint does not take for tests; and nobody reads documentation of tests.
#![allow(clippy::unwrap_used, missing_docs)] // in helpers too, which the lints do not take for tests

mod approvals;
mod bridge;
mod conversation;
mod files;
mod http;
mod idle;
mod kept;
mod killed;
mod left;
mod policy;
mod program;
mod realtime;
mod recorded;
mod sound;
mod usage;
