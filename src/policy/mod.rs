//! Ready-made policies over tool calls.
//!
//! A policy is whatever implements [`Authorizer`](antiphon_agent::Authorizer); a session asks it
//! before any tool runs. [`RulePolicy`] is one that is written as a JSON file: an ordered list of
//! rules, the first that fits decides.

mod rules;

pub use crate::json_file::FileError;
pub use rules::RulePolicy;
