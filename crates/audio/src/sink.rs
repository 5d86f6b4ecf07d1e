//! Where a session's audio goes.

use std::{
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon_types::{AudioFormat, AudioFrame};
use serde::{Deserialize, Serialize};

/// Names audio in a sink: what is cleared, played and acknowledged carries it. A session counts
/// generations up; each reply is one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

/// How far playout of one generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Whose audio.
    pub generation: Generation,
    /// Samples heard since the generation began, in the sink's format. Never more than written.
    pub samples: u64,
    /// The generation was finished and all of it was heard.
    pub complete: bool,
    /// When this was true.
    pub at: Instant,
    /// How it is known.
    pub source: PositionSource,
}

/// How a sink knows what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PositionSource {
    /// The device's own clock.
    DeviceClock,
    /// An acknowledgement from a carrier.
    CarrierMark,
    /// Reckoned from the time since it was handed over.
    Estimate {
        /// How wrong it may be.
        error: Duration,
    },
}

/// Where a session's audio goes. Synchronous and non-blocking: the session's task calls it inline.
///
/// `now` is the time of the session's wake-up (virtual in tests). A sink that plays by time says
/// with [`AudioSink::next_deadline`] when to poll it next, so it needs no timer of its own.
pub trait AudioSink: Send {
    /// The format that [`AudioSink::write`] takes.
    fn format(&self) -> AudioFormat;

    /// Samples that the sink takes now without growing beyond its bound; the session keeps the
    /// rest.
    fn room(&self, now: Instant) -> usize;

    /// Appends audio. Audio of a generation older than the newest seen, cleared or finished is
    /// refused as stale. A newer generation is played after the older one, which is finished by it.
    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError>;

    /// No more audio of this generation comes.
    fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError>;

    /// Silence at once. Returns what had been heard of the generation that was playing or was last
    /// (those before it were heard whole); audio and acknowledgements of generations before `next`
    /// are void from here on. Ends a pause.
    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError>;

    /// Stops playing at the current sample and keeps what is queued.
    fn pause(&mut self, now: Instant) -> Result<(), SinkError>;

    /// Goes on at the sample where [`AudioSink::pause`] stopped.
    fn resume(&mut self, now: Instant) -> Result<(), SinkError>;

    /// How far playout is right now, of the generation that is playing or was last.
    fn position(&self, now: Instant) -> Option<Played>;

    /// Ready when there is news: room again (the queue fell to half of its bound), a generation
    /// complete (each is told once), an underrun. Not per frame. A sink that failed says so once.
    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>>;

    /// When [`AudioSink::poll_progress`] will have news by the passing of time alone.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Why a sink does not take audio.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The device is gone; nothing more will be heard.
    #[error("audio device lost: {0}")]
    Lost(String),
    /// The frame is in another format than the sink's.
    #[error("audio is {got:?} where {expected:?} is expected")]
    FormatMismatch {
        /// The sink's format.
        expected: AudioFormat,
        /// The frame's.
        got: AudioFormat,
    },
    /// The audio belongs to a generation that was cleared.
    #[error("audio of a cleared generation")]
    Stale,
    /// More than [`AudioSink::room`].
    #[error("the sink is full")]
    Full,
    /// Writing a file failed.
    #[error("{0}")]
    Io(String),
}
