//! What a host offers over HTTP.

pub mod approvals;
mod tokens;
