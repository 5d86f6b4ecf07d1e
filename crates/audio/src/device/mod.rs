//! Microphones and loudspeakers of this machine (feature `devices`).
//!
//! A device runs at its own rate and in its own format; [`Microphone`] and [`Loudspeaker`] convert,
//! so that a session sees one rate and frames of 20 ms. The device's callback touches nothing but a
//! lock-free ring and a few atomics; a thread of its own holds each stream, does the converting and
//! wakes the session.
//!
//! Opening blocks for a moment (a few tens of milliseconds with a sound server, at most
//! [`OPEN_TIMEOUT`]): from async code open devices before the session starts, or on a blocking
//! thread.

mod capture;
mod host;
mod loudspeaker;
mod microphone;
mod queue;
mod render;
mod report;
mod worker;

pub use host::OPEN_TIMEOUT;
pub use loudspeaker::{Loudspeaker, LoudspeakerOptions};
pub use microphone::{Microphone, MicrophoneOptions, MicrophoneStats};
pub use render::PlaybackStats;
pub use report::{DeviceInfo, DeviceReport, devices};
