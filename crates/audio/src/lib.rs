//! PCM, resampling, codecs, voice activity, playout and devices.
//!
//! Nothing here knows of sessions or providers. [`AudioFrame`]s carry their format, so rates cannot
//! be mixed up; what converts ([`Resampler`], [`Converter`]) keeps its state from chunk to chunk,
//! so that chunks of any size give the audio that one big chunk would have given.

mod convert;
#[cfg(feature = "devices")]
pub mod device;
mod error;
pub mod g711;
mod level;
#[cfg(feature = "opus")]
pub mod opus;
pub mod pcm;
mod playout;
mod resample;
mod sink;
mod vad;
mod wav;

pub use antiphon_types::{AudioFormat, AudioFrame, Sensitivity};
pub use convert::Converter;
pub use error::AudioError;
pub use level::{Level, LevelMeter};
pub use pcm::Framer;
pub use playout::{ClockedSink, PlayoutClock, PlayoutStats, Span, TimelineSink};
pub use resample::Resampler;
pub use sink::{AudioSink, Generation, Played, PositionSource, SinkError};
pub use vad::{
    EarshotDetector, EnergyDetector, SpeechDetector, TurnConfig, TurnDetector, TurnEvent,
};
pub use wav::{WavAudio, WavWriter};
