//! What audio devices this machine has, for people to read.

use std::fmt;

use super::host::{self, Direction};
use crate::AudioError;

/// The audio devices that would be used now, or why there is none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The sound system that answers, for example `PulseAudio` or `ALSA`; empty when none does.
    pub host: String,
    /// The default microphone, or why there is none.
    pub input: Result<DeviceInfo, String>,
    /// The default loudspeaker, or why there is none.
    pub output: Result<DeviceInfo, String>,
    /// Names of all microphones, as [`MicrophoneOptions`](super::MicrophoneOptions) takes them.
    pub inputs: Vec<String>,
    /// Names of all loudspeakers, as [`LoudspeakerOptions`](super::LoudspeakerOptions) takes them.
    pub outputs: Vec<String>,
}

impl DeviceReport {
    /// Whether a conversation through the default devices is possible.
    pub fn usable(&self) -> bool {
        self.input.is_ok() && self.output.is_ok()
    }
}

/// A device and the format it runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name people know it by.
    pub name: String,
    /// Samples per second of the device itself; sessions may ask for another rate.
    pub sample_rate_hz: u32,
    /// Channels of the device; a session sees one.
    pub channels: u16,
    /// The sample format, for example `i16` or `f32`.
    pub sample_format: String,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, sample_rate_hz, channels, sample_format } = self;
        write!(f, "{name} ({sample_rate_hz} Hz, {channels} ch, {sample_format})")
    }
}

/// Looks for audio devices. Blocks for at most [`OPEN_TIMEOUT`](super::OPEN_TIMEOUT).
pub fn devices() -> DeviceReport {
    host::within_timeout("look for audio devices", || Ok(look())).unwrap_or_else(unusable)
}

fn look() -> DeviceReport {
    let host = match host::open() {
        Ok(host) => host,
        Err(error) => return unusable(error),
    };
    let names = |direction| {
        host::list(&host, direction)
            .map(|devices| devices.map(|device| device.to_string()).collect())
            .unwrap_or_default()
    };
    DeviceReport {
        host: host.id().name().to_owned(),
        input: default_device(&host, Direction::Input),
        output: default_device(&host, Direction::Output),
        inputs: names(Direction::Input),
        outputs: names(Direction::Output),
    }
}

fn default_device(host: &cpal::Host, direction: Direction) -> Result<DeviceInfo, String> {
    let device = host::find(host, direction, None).map_err(reason)?;
    let config = host::choose(&device, direction).map_err(reason)?;
    Ok(host::info(&device, &config))
}

fn unusable(error: AudioError) -> DeviceReport {
    let reason = reason(error);
    DeviceReport {
        host: String::new(),
        input: Err(reason.clone()),
        output: Err(reason),
        inputs: Vec::new(),
        outputs: Vec::new(),
    }
}

fn reason(error: AudioError) -> String {
    match error {
        AudioError::NoDevice(reason) | AudioError::Device(reason) => reason,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_a_host_says_why() {
        let report = unusable(AudioError::NoDevice("no sound server".into()));
        assert!(!report.usable());
        assert_eq!(report.input.unwrap_err(), "no sound server");
    }
}
