//! The behaviour of tools, policy, memory and messages, from outside.

mod executor;
mod registry;
mod support;
