//! Ears, a language model and a mouth, composed into a live provider.
//!
//! [`CascadeProvider`] takes any [`Recognizer`], any [`Model`](antiphon_agent::Model) and any
//! [`Synthesizer`]. The conversation (who speaks, what is said next, what was heard) is a pure
//! state machine in `core`; one task per connection moves audio, results and time in and out of
//! it, and each recognition, generation and synthesis runs on a task of its own.

mod connection;
mod core;
mod driver;
mod jobs;
#[cfg(feature = "offline")]
pub mod offline;
mod provider;
mod speech;

pub use provider::{CascadeProvider, CascadeProviderBuilder};
pub use speech::{
    Alternative, Recognizer, SpeechError, SpeechRequest, SpeechStream, Synthesizer, Transcript,
    Utterance,
};
