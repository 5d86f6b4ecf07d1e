//! The conversation, with scripted parts on paused time.

mod contract;
mod failures;
mod listening;
mod parts;
mod replies;
mod tools;
