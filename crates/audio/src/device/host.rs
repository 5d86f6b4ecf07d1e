//! Finding a device and a configuration that it and we can both do.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread::{self, Thread},
    time::Duration,
};

use cpal::{
    BufferSize, ErrorKind, SampleFormat, StreamConfig, SupportedBufferSize, SupportedStreamConfig,
    traits::{DeviceTrait, HostTrait},
};

use super::{DeviceInfo, worker::Health};
use crate::AudioError;

/// Longest time that looking for or opening a device may take, whatever the sound system does.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Rates that the resampler takes; a device that starts outside is asked for one inside.
const RATES_HZ: std::ops::RangeInclusive<u32> = 8_000..=48_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Input,
    Output,
}

impl Direction {
    fn device(self) -> &'static str {
        match self {
            Self::Input => "microphone",
            Self::Output => "loudspeaker",
        }
    }
}

/// Runs `work` on a thread and waits for it at most [`OPEN_TIMEOUT`]: some sound systems never
/// answer, and then only that thread is lost.
pub(super) fn within_timeout<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, AudioError> + Send + 'static,
) -> Result<T, AudioError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let late = || AudioError::NoDevice(format!("could not {what} within {OPEN_TIMEOUT:?}"));
    thread::Builder::new()
        .name("audio-probe".into())
        .spawn(move || {
            // The receiver may have given up; then nobody wants the answer.
            let _ = sender.send(work());
        })
        .map_err(|error| AudioError::Device(format!("no thread: {error}")))?;
    receiver.recv_timeout(OPEN_TIMEOUT).map_err(|_| late())?
}

/// The sound system to use.
pub(super) fn open() -> Result<cpal::Host, AudioError> {
    let host = cpal::default_host();
    // ALSA complains at length on standard error when it has nothing to open. Where it cannot have
    // anything, say so in one line instead.
    if host.id().name() == "ALSA" && !alsa_can_have_devices() {
        return Err(AudioError::NoDevice(
            "no sound server answers (PulseAudio or PipeWire) and there is no sound card \
             (/dev/snd does not exist)"
                .into(),
        ));
    }
    Ok(host)
}

fn alsa_can_have_devices() -> bool {
    let home_config = std::env::home_dir().is_some_and(|home| home.join(".asoundrc").exists());
    Path::new("/dev/snd").exists()
        || Path::new("/etc/asound.conf").exists()
        || std::env::var_os("ALSA_CONFIG_PATH").is_some()
        || home_config
}

pub(super) fn list(
    host: &cpal::Host,
    direction: Direction,
) -> Result<impl Iterator<Item = cpal::Device>, AudioError> {
    let listed = host.devices().map_err(|error| AudioError::NoDevice(error.to_string()))?;
    Ok(listed.filter(move |device| match direction {
        Direction::Input => device.supports_input(),
        Direction::Output => device.supports_output(),
    }))
}

/// The device called `name`, or the default one.
pub(super) fn find(
    host: &cpal::Host,
    direction: Direction,
    name: Option<&str>,
) -> Result<cpal::Device, AudioError> {
    let kind = direction.device();
    let Some(name) = name else {
        let default = match direction {
            Direction::Input => host.default_input_device(),
            Direction::Output => host.default_output_device(),
        };
        return default.ok_or_else(|| {
            AudioError::NoDevice(format!("{} has no default {kind}", host.id().name()))
        });
    };
    list(host, direction)?
        .find(|device| {
            device.to_string() == name || device.id().is_ok_and(|device| device.id() == name)
        })
        .ok_or_else(|| AudioError::NoDevice(format!("there is no {kind} called {name:?}")))
}

/// The device's own format where we can do it, else the nearest that both can do.
pub(super) fn choose(
    device: &cpal::Device,
    direction: Direction,
) -> Result<SupportedStreamConfig, AudioError> {
    let default = match direction {
        Direction::Input => device.default_input_config(),
        Direction::Output => device.default_output_config(),
    }
    .map_err(device_error)?;
    if usable(default.sample_rate(), default.sample_format()) {
        return Ok(default);
    }
    let offered: Vec<_> = match direction {
        Direction::Input => device.supported_input_configs().map_err(device_error)?.collect(),
        Direction::Output => device.supported_output_configs().map_err(device_error)?.collect(),
    };
    let matching = |rate: u32| {
        offered
            .iter()
            .filter(|range| usable(rate, range.sample_format()))
            .filter_map(|range| range.try_with_sample_rate(rate))
            .min_by_key(|config| config.channels().abs_diff(default.channels()))
    };
    [48_000, 44_100, 32_000, 24_000, 16_000, 8_000].into_iter().find_map(matching).ok_or_else(
        || {
            AudioError::Unsupported(format!(
                "{device} runs at {} Hz in {} and offers nothing between 8 and 48 kHz",
                default.sample_rate(),
                default.sample_format()
            ))
        },
    )
}

fn usable(rate: u32, format: SampleFormat) -> bool {
    use SampleFormat::{F32, F64, I8, I16, I24, I32, U8, U16, U32};
    RATES_HZ.contains(&rate) && matches!(format, I8 | I16 | I24 | I32 | U8 | U16 | U32 | F32 | F64)
}

/// Buffer sizes to try, best first.
///
/// The default size of some sound servers is two seconds, in which an interrupted agent would go on
/// talking; so a size is always asked for. A server drops what a microphone's buffer cannot take, so
/// that one is twice as long: the end of speech is waited for longer than that anyway.
pub(super) fn stream_configs(
    config: &SupportedStreamConfig,
    direction: Direction,
) -> Vec<StreamConfig> {
    let twenty_ms = config.sample_rate() / 50;
    let wanted = match direction {
        Direction::Output => [twenty_ms, 1_024, 2_048, twenty_ms * 2],
        Direction::Input => [twenty_ms * 2, 2_048, 1_024, twenty_ms],
    };
    let mut sizes: Vec<u32> = wanted
        .into_iter()
        .map(|frames| match config.buffer_size() {
            SupportedBufferSize::Range { min, max } => frames.clamp(*min, (*max).max(*min)),
            SupportedBufferSize::Unknown => frames,
        })
        .collect();
    sizes.dedup();
    sizes
        .into_iter()
        .map(|frames| StreamConfig { buffer_size: BufferSize::Fixed(frames), ..config.config() })
        .collect()
}

pub(super) fn info(device: &cpal::Device, config: &SupportedStreamConfig) -> DeviceInfo {
    DeviceInfo {
        name: device.to_string(),
        sample_rate_hz: config.sample_rate(),
        channels: config.channels(),
        sample_format: config.sample_format().to_string(),
    }
}

pub(super) fn device_error(error: cpal::Error) -> AudioError {
    match error.kind() {
        ErrorKind::DeviceNotAvailable | ErrorKind::HostUnavailable => {
            AudioError::NoDevice(error.to_string())
        }
        ErrorKind::UnsupportedConfig | ErrorKind::UnsupportedOperation => {
            AudioError::Unsupported(error.to_string())
        }
        _ => AudioError::Device(error.to_string()),
    }
}

/// Whether an error that a running stream reports means that it is over. Other errors (an underrun,
/// a refused priority, a hiccup of the driver) are counted and the stream goes on.
pub(super) fn is_fatal(error: &cpal::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DeviceNotAvailable
            | ErrorKind::HostUnavailable
            | ErrorKind::StreamInvalidated
            | ErrorKind::PermissionDenied
    )
}

/// What a stream's error callback does.
pub(super) fn on_error(health: &Arc<Health>, worker: &Thread) -> impl FnMut(cpal::Error) + use<> {
    let (health, worker) = (Arc::clone(health), worker.clone());
    move |error| {
        if health.fault(&error) {
            worker.unpark();
        }
    }
}

/// Builds a stream of samples of the type that a [`SampleFormat`] names.
macro_rules! with_sample_type {
    (@each $format:expr, $sample:ident => $build:expr, $($name:ident: $type:ty),*) => {
        match $format {
            $(cpal::SampleFormat::$name => {
                type $sample = $type;
                $build
            })*
            _ => Err(cpal::ErrorKind::UnsupportedConfig.into()),
        }
    };
    ($format:expr, $sample:ident => $build:expr) => {
        host::with_sample_type!(@each $format, $sample => $build,
            I8: i8, I16: i16, I24: cpal::I24, I32: i32,
            U8: u8, U16: u16, U32: u32, F32: f32, F64: f64)
    };
}
pub(super) use with_sample_type;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playout_never_uses_the_default_buffer_size() {
        let any = SupportedBufferSize::Range { min: 1, max: 1 << 20 };
        let config = SupportedStreamConfig::new(2, 48_000, any, SampleFormat::F32);
        let configs = stream_configs(&config, Direction::Output);
        assert_eq!(configs[0].buffer_size, BufferSize::Fixed(960));
        assert!(configs.iter().all(|config| config.buffer_size != BufferSize::Default));
    }

    #[test]
    fn buffer_sizes_stay_in_the_devices_range() {
        let fixed = SupportedBufferSize::Range { min: 256, max: 512 };
        let config = SupportedStreamConfig::new(1, 44_100, fixed, SampleFormat::I16);
        let configs = stream_configs(&config, Direction::Input);
        assert_eq!(configs.len(), 1);
        assert_eq!(configs[0].buffer_size, BufferSize::Fixed(512));
    }

    #[test]
    fn an_underrun_does_not_end_a_stream() {
        assert!(!is_fatal(&ErrorKind::Xrun.into()));
        assert!(is_fatal(&ErrorKind::DeviceNotAvailable.into()));
    }

    #[test]
    fn waiting_for_a_sound_system_is_bounded() {
        let failed = within_timeout("try", || -> Result<(), _> { panic!("driver bug") });
        assert!(matches!(failed, Err(AudioError::NoDevice(_))));
    }
}
