//! The conversation, with scripted parts on paused time.

mod contract;
mod failures;
mod listening;
#[cfg(feature = "offline")]
mod offline;
mod parts;
mod replies;
mod tools;
