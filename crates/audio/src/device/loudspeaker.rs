//! A loudspeaker as an [`AudioSink`].

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    thread::Thread,
    time::{Duration, Instant},
};

use cpal::{FromSample, SampleFormat, SizedSample, StreamConfig, traits::DeviceTrait};
use futures_util::task::AtomicWaker;

use super::{
    DeviceInfo,
    host::{self, Direction, OPEN_TIMEOUT},
    queue::{PlaybackQueue, ring_capacity},
    render::{self, Feed, PlaybackStats, Renderer},
    worker::{Health, Opened, Worker},
};
use crate::{AudioError, AudioFormat, AudioFrame, AudioSink, Generation, Played, SinkError};

/// No sound system plays later than this; a greater latency is a fault of its clock.
const MAX_LATENCY: Duration = Duration::from_secs(2);

/// Which loudspeaker, and what it is given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoudspeakerOptions {
    /// Name of the device, as [`devices`](super::devices) lists it; the default one if none.
    pub device: Option<String>,
    /// Samples per second of what is written, 8,000 to 48,000. Default 24,000.
    pub sample_rate_hz: u32,
    /// How much audio is kept ready, 40 ms to 10 s. Default 400 ms. More rides out a busier
    /// machine; silencing it is immediate at any size.
    pub buffer: Duration,
}

impl Default for LoudspeakerOptions {
    fn default() -> Self {
        Self { device: None, sample_rate_hz: 24_000, buffer: Duration::from_millis(400) }
    }
}

impl LoudspeakerOptions {
    /// The device called `name`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Audio is written at `hz` samples per second.
    pub fn sample_rate_hz(mut self, hz: u32) -> Self {
        self.sample_rate_hz = hz;
        self
    }

    /// Keeps this much audio ready.
    pub fn buffer(mut self, buffer: Duration) -> Self {
        self.buffer = buffer;
        self
    }
}

/// An open loudspeaker. Takes 16-bit PCM, one channel; dropping it closes the device.
///
/// Positions come from the device's clock. What the device itself has buffered (some 20 to 40 ms)
/// cannot be taken back: after [`AudioSink::clear`] or [`AudioSink::pause`] it still sounds, and is
/// not counted as heard.
pub struct Loudspeaker {
    queue: PlaybackQueue,
    shared: Arc<Shared>,
    info: DeviceInfo,
    loss_told: bool,
    _worker: Worker,
}

#[derive(Debug, Default)]
struct Shared {
    health: Arc<Health>,
    waker: AtomicWaker,
}

impl Loudspeaker {
    /// Opens a loudspeaker and starts it. Blocks for at most
    /// [`OPEN_TIMEOUT`](super::OPEN_TIMEOUT).
    ///
    /// # Errors
    /// [`AudioError::NoDevice`] if there is none or it does not answer,
    /// [`AudioError::Unsupported`] if it has no format between 8 and 48 kHz or `options` asks for
    /// a rate or buffer out of range, [`AudioError::Device`] if the system refuses it.
    pub fn open(options: LoudspeakerOptions) -> Result<Self, AudioError> {
        if !(8_000..=48_000).contains(&options.sample_rate_hz) {
            return Err(AudioError::Unsupported(format!(
                "a loudspeaker at {} Hz: 8,000 to 48,000 are possible",
                options.sample_rate_hz
            )));
        }
        if !(Duration::from_millis(40)..=Duration::from_secs(10)).contains(&options.buffer) {
            return Err(AudioError::Unsupported(format!(
                "a loudspeaker buffer of {:?}: 40 ms to 10 s are possible",
                options.buffer
            )));
        }
        let format = AudioFormat::pcm16(options.sample_rate_hz);
        let shared = Arc::new(Shared::default());
        let worker_shared = Arc::clone(&shared);
        let health = Arc::clone(&shared.health);
        let (worker, (info, feed)) = Worker::start("loudspeaker", health, move |worker| {
            open(&options, worker_shared, worker)
        })?;
        let queue = PlaybackQueue::new(format, info.sample_rate_hz, feed)?;
        Ok(Self { queue, shared, info, loss_told: false, _worker: worker })
    }

    /// The device behind it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What went wrong so far without ending it.
    pub fn stats(&self) -> PlaybackStats {
        PlaybackStats { underruns: self.queue.underruns(), faults: self.shared.health.faults() }
    }

    fn alive(&self) -> Result<(), SinkError> {
        match self.shared.health.lost() {
            Some(reason) => Err(SinkError::Lost(reason.to_owned())),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Loudspeaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loudspeaker").field("info", &self.info).finish_non_exhaustive()
    }
}

impl AudioSink for Loudspeaker {
    fn format(&self) -> AudioFormat {
        self.queue.format()
    }

    fn room(&self, _now: Instant) -> usize {
        self.queue.room()
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        _now: Instant,
    ) -> Result<(), SinkError> {
        self.alive()?;
        self.queue.write(generation, frame)
    }

    fn finish(&mut self, generation: Generation, _now: Instant) -> Result<(), SinkError> {
        self.alive()?;
        self.queue.finish(generation)
    }

    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError> {
        self.alive()?;
        Ok(self.queue.clear(next, now))
    }

    fn pause(&mut self, _now: Instant) -> Result<(), SinkError> {
        self.alive()?;
        self.queue.pause(true);
        Ok(())
    }

    fn resume(&mut self, _now: Instant) -> Result<(), SinkError> {
        self.alive()?;
        self.queue.pause(false);
        Ok(())
    }

    fn position(&self, now: Instant) -> Option<Played> {
        self.queue.position(now)
    }

    /// As the trait says; a lost device is reported once.
    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        // Registered first: news between the look and the registration wakes.
        self.shared.waker.register(cx.waker());
        if let Some(played) = self.queue.progress(now) {
            return Poll::Ready(Ok(played));
        }
        match self.alive() {
            Err(lost) if !std::mem::replace(&mut self.loss_told, true) => Poll::Ready(Err(lost)),
            _ => Poll::Pending,
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        // A lost device's clock stands still.
        self.alive().is_ok().then(|| self.queue.next_deadline()).flatten()
    }
}

/// On the worker's thread: finds the device and opens it.
fn open(
    options: &LoudspeakerOptions,
    shared: Arc<Shared>,
    worker: Thread,
) -> Result<Opened<(DeviceInfo, Feed), impl FnMut() + use<>>, AudioError> {
    let host = host::open()?;
    let device = host::find(&host, Direction::Output, options.device.as_deref())?;
    let supported = host::choose(&device, Direction::Output)?;
    let rate_hz = supported.sample_rate();
    let mut refused = None;
    for config in host::stream_configs(&supported, Direction::Output) {
        let (feed, renderer) = render::ring(rate_hz, ring_capacity(rate_hz, options.buffer));
        let health = Arc::clone(&shared.health);
        let stream = Callback { renderer, health, worker: worker.clone() }.build(
            &device,
            config,
            supported.sample_format(),
        );
        match stream {
            Ok(stream) => {
                let info = (host::info(&device, &supported), feed);
                return Ok(Opened { stream, info, tick: move || shared.waker.wake() });
            }
            Err(error) => refused = Some(host::device_error(error)),
        }
    }
    Err(refused.unwrap_or_else(|| AudioError::Unsupported(format!("{device} has no format"))))
}

/// What the device calls.
struct Callback {
    renderer: Renderer,
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

    fn build_as<T: SizedSample + FromSample<i16>>(
        self,
        device: &cpal::Device,
        config: StreamConfig,
    ) -> Result<cpal::Stream, cpal::Error> {
        let Self { mut renderer, health, worker } = self;
        let channels = usize::from(config.channels);
        let on_error = host::on_error(&health, &worker);
        device.build_output_stream(
            config,
            move |out: &mut [T], info: &cpal::OutputCallbackInfo| {
                let timestamp = info.timestamp();
                let latency = timestamp.playback.saturating_duration_since(timestamp.callback);
                let heard_at = Instant::now() + latency.min(MAX_LATENCY);
                let news = renderer.render(out, channels, heard_at);
                health.alive();
                if news {
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
    fn options_out_of_range_are_refused_before_any_device_is_touched() {
        for options in [
            LoudspeakerOptions::default().sample_rate_hz(4_000),
            LoudspeakerOptions::default().buffer(Duration::from_secs(60)),
            LoudspeakerOptions::default().buffer(Duration::ZERO),
        ] {
            assert!(matches!(Loudspeaker::open(options), Err(AudioError::Unsupported(_))));
        }
    }
}
