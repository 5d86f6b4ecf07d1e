//! What is told of replies: how they were asked for, and how much of them was heard.

use serde::Serialize;

/// How much of a reply's audio was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Heard {
    /// When its first audio was handed to the sink, in milliseconds since the session started: the
    /// words are told once they were heard, and may have been spoken before what was told first.
    pub began_ms: u64,
    /// Milliseconds that were heard.
    pub heard_ms: u32,
    /// Milliseconds that came from the provider.
    pub generated_ms: u32,
    /// How that is known.
    pub confidence: Confidence,
    /// How wrong `heard_ms` may be; 0 where a device or carrier told it.
    pub error_ms: u32,
}

/// How it is known what was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Confidence {
    /// By the device's own clock.
    DeviceClock,
    /// By a carrier's acknowledgement.
    CarrierMark,
    /// Reckoned from the time since the audio was handed over.
    Estimate,
}

/// Why the agent's voice goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResumeCause {
    /// There were no words.
    Noise,
    /// The words only said that the user listens.
    Backchannel,
    /// There were fewer words than an interruption needs; they are answered afterwards.
    TooFewWords,
}

/// On whose behalf the agent is to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestOrigin {
    /// The user's words.
    User,
    /// The host: `say` and `play`.
    Host,
    /// The outputs of tools.
    Tools,
    /// A call is read back.
    ReadBack,
    /// The session itself: reminder, goodbye, wrap-up.
    Prompt,
    /// A tool tells how far it is.
    Progress,
    /// The guard: in the place of words that it denied.
    Guard,
}

/// How a request for a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestEnd {
    /// The reply began.
    Started,
    /// Something else came in its place, or the session ended.
    Superseded,
    /// The provider refused it, was lost, or too much waited.
    Refused,
    /// The reply did not begin in its time.
    TimedOut,
}
