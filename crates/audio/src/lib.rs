//! PCM, resampling, codecs, voice activity, playout and devices.

mod error;
mod sink;

pub use antiphon_types::{AudioFormat, AudioFrame};
pub use error::AudioError;
pub use sink::{AudioSink, Generation, Played, PositionSource, SinkError};
