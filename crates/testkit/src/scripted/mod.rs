//! What the scripted servers have in common.

pub(crate) mod codec;
mod connection;
mod front;
pub(crate) mod listening;
mod player;
mod script;
pub(crate) mod voice;

pub(crate) use connection::{Book, Frames, converse, lock, now, unix_now};
pub use connection::{Record, Serving, Side};
pub(crate) use front::{Service, listen, of_clients, pipe, serve};
pub(crate) use player::{Behaviour, Player, Saying};
pub use script::{Call, Failure, Fault, Pace, Refusal, Reply, Rule, Step, Transcript, When};
