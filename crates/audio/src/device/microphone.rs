//! What a microphone hears, as frames for a session.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread::Thread,
    time::Duration,
};

use cpal::{FromSample, SampleFormat, SizedSample, StreamConfig, traits::DeviceTrait};
use futures_util::task::AtomicWaker;

use super::{
    DeviceInfo,
    capture::{self, Assembler, Backlog, Counters, Tap},
    host::{self, Direction, OPEN_TIMEOUT},
    worker::{Health, Opened, Worker},
};
use crate::{AudioError, AudioFormat, AudioFrame};

/// Length of a frame.
const FRAME: Duration = Duration::from_millis(20);

/// Frames kept for a session that does not come to take them: one second.
const BACKLOG_FRAMES: usize = 50;

/// Digital silence this long is worth a line in the log.
const SUSPICIOUS_SILENCE: Duration = Duration::from_secs(3);

/// Which microphone, and what to make of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MicrophoneOptions {
    /// Name of the device, as [`devices`](super::devices) lists it; the default one if none.
    pub device: Option<String>,
    /// Samples per second of the frames, 8,000 to 48,000. Default 16,000.
    pub sample_rate_hz: u32,
}

impl Default for MicrophoneOptions {
    fn default() -> Self {
        Self { device: None, sample_rate_hz: 16_000 }
    }
}

impl MicrophoneOptions {
    /// The device called `name`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Frames at `hz` samples per second.
    pub fn sample_rate_hz(mut self, hz: u32) -> Self {
        self.sample_rate_hz = hz;
        self
    }
}

/// An open microphone. Delivers frames of 20 ms in 16-bit PCM, one channel, as long as it lives;
/// dropping it closes the device.
///
/// One that is not read keeps the newest second and counts what it drops.
#[derive(Debug)]
pub struct Microphone {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    info: DeviceInfo,
    format: AudioFormat,
    loss_told: bool,
    _worker: Worker,
}

/// What a microphone went through so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MicrophoneStats {
    /// Audio that was captured but dropped, because nobody took it in time.
    pub dropped: Duration,
    /// How long every sample up to now has been exactly zero. More than a second or two means that
    /// the device is muted or that the system keeps it from this program; real silence has noise.
    pub silent_for: Duration,
    /// Errors that the driver reported and survived.
    pub faults: u64,
}

#[derive(Debug)]
struct Shared {
    backlog: Backlog,
    health: Arc<Health>,
    waker: AtomicWaker,
}

impl Microphone {
    /// Opens a microphone and starts it. Blocks for at most
    /// [`OPEN_TIMEOUT`](super::OPEN_TIMEOUT).
    ///
    /// # Errors
    /// [`AudioError::NoDevice`] if there is none or it does not answer,
    /// [`AudioError::Unsupported`] if it has no format between 8 and 48 kHz or `options` asks for
    /// another rate, [`AudioError::Device`] if the system refuses it.
    pub fn open(options: MicrophoneOptions) -> Result<Self, AudioError> {
        let format = AudioFormat::pcm16(options.sample_rate_hz);
        if !(8_000..=48_000).contains(&options.sample_rate_hz) {
            return Err(AudioError::Unsupported(format!(
                "a microphone at {} Hz: 8,000 to 48,000 are possible",
                options.sample_rate_hz
            )));
        }
        let health = Arc::new(Health::default());
        let shared = Arc::new(Shared {
            backlog: Backlog::new(BACKLOG_FRAMES),
            health: Arc::clone(&health),
            waker: AtomicWaker::new(),
        });
        let worker_shared = Arc::clone(&shared);
        let (worker, Ready { info, counters }) =
            Worker::start("microphone", health, move |worker| {
                open(&options, worker_shared, worker)
            })?;
        Ok(Self { shared, counters, info, format, loss_told: false, _worker: worker })
    }

    /// The next 20 ms. After the device was lost: once the error, then nothing more.
    pub async fn next(&mut self) -> Option<Result<AudioFrame, AudioError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Microphone::next`], for a task that polls.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<AudioFrame, AudioError>>> {
        // Registered first: a frame that comes between the look and the registration wakes.
        self.shared.waker.register(cx.waker());
        if let Some(frame) = self.shared.backlog.pop() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(reason) = self.shared.health.lost() else { return Poll::Pending };
        if std::mem::replace(&mut self.loss_told, true) {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Err(AudioError::Device(format!("the microphone is gone: {reason}")))))
    }

    /// The format of the frames.
    pub fn format(&self) -> AudioFormat {
        self.format
    }

    /// The device behind it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What was dropped, and whether it hears anything at all.
    pub fn stats(&self) -> MicrophoneStats {
        let device = AudioFormat::pcm16(self.info.sample_rate_hz);
        let ring = device.duration_of(self.counters.dropped.load(Ordering::Relaxed));
        let late = FRAME * u32::try_from(self.shared.backlog.dropped()).unwrap_or(u32::MAX);
        MicrophoneStats {
            dropped: ring + late,
            silent_for: device.duration_of(self.counters.silent.load(Ordering::Relaxed)),
            faults: self.shared.health.faults(),
        }
    }
}

/// What is known of a microphone once it is open.
struct Ready {
    info: DeviceInfo,
    counters: Arc<Counters>,
}

/// On the worker's thread: finds the device, opens it and prepares its frames.
fn open(
    options: &MicrophoneOptions,
    shared: Arc<Shared>,
    worker: Thread,
) -> Result<Opened<Ready, impl FnMut() + use<>>, AudioError> {
    let host = host::open()?;
    let device = host::find(&host, Direction::Input, options.device.as_deref())?;
    let supported = host::choose(&device, Direction::Input)?;
    let rate_hz = supported.sample_rate();
    let frame_samples = AudioFormat::pcm16(options.sample_rate_hz).samples_in(FRAME) as usize;
    let mut refused = None;
    for config in host::stream_configs(&supported, Direction::Input) {
        let (tap, mut assembler) =
            capture::ring(rate_hz, rate_hz as usize, options.sample_rate_hz, frame_samples)?;
        let stream = Callback { tap, health: Arc::clone(&shared.health), worker: worker.clone() }
            .build(&device, config, supported.sample_format());
        match stream {
            Ok(stream) => {
                let info =
                    Ready { info: host::info(&device, &supported), counters: assembler.counters() };
                let mut silence_told = false;
                let tick = move || deliver(&mut assembler, &shared, rate_hz, &mut silence_told);
                return Ok(Opened { stream, info, tick });
            }
            Err(error) => refused = Some(host::device_error(error)),
        }
    }
    Err(refused.unwrap_or_else(|| AudioError::Unsupported(format!("{device} has no format"))))
}

/// Moves what was captured to the session and wakes it.
fn deliver(assembler: &mut Assembler, shared: &Shared, rate_hz: u32, silence_told: &mut bool) {
    if let Err(error) = assembler.drain(|frame| shared.backlog.push(frame)) {
        shared.health.lose(error.to_string());
    }
    let silent = assembler.counters().silent.load(Ordering::Relaxed);
    let suspicious = AudioFormat::pcm16(rate_hz).duration_of(silent) >= SUSPICIOUS_SILENCE;
    if suspicious && !*silence_told {
        tracing::warn!("the microphone delivers digital silence: is it muted, or not permitted?");
    }
    *silence_told = suspicious;
    shared.waker.wake();
}

/// What the device calls.
struct Callback {
    tap: Tap,
    health: Arc<Health>,
    worker: Thread,
}

impl Callback {
    fn build(
        self,
        device: &cpal::Device,
        config: StreamConfig,
        format: SampleFormat,
    ) -> Result<cpal::Stream, cpal::Error> {
        host::with_sample_type!(format, T => self.build_as::<T>(device, config))
    }

    fn build_as<T>(
        self,
        device: &cpal::Device,
        config: StreamConfig,
    ) -> Result<cpal::Stream, cpal::Error>
    where
        T: SizedSample,
        i16: FromSample<T>,
    {
        let Self { mut tap, health, worker } = self;
        let channels = usize::from(config.channels);
        // Some sound servers call back 2,000 times a second; twice per frame is often enough.
        let wake_every = config.sample_rate as usize / 100;
        let mut since_wake = 0;
        let on_error = host::on_error(&health, &worker);
        device.build_input_stream(
            config,
            move |samples: &[T], _: &cpal::InputCallbackInfo| {
                tap.capture(samples, channels);
                health.alive();
                since_wake += samples.len() / channels.max(1);
                if since_wake >= wake_every {
                    since_wake = 0;
                    worker.unpark();
                }
            },
            on_error,
            Some(OPEN_TIMEOUT),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_rates_are_refused_before_any_device_is_touched() {
        let error = Microphone::open(MicrophoneOptions::default().sample_rate_hz(96_000));
        assert!(matches!(error, Err(AudioError::Unsupported(_))));
    }
}
