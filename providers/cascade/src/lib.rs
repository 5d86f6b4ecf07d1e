//! Ears, a language model and a mouth, composed into a live provider.

#[cfg(feature = "offline")]
pub mod offline;
mod speech;

pub use speech::{
    Recognizer, SpeechError, SpeechRequest, SpeechStream, Synthesizer, Transcript, Utterance,
};
