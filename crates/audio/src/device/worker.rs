//! The thread that owns a stream.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use cpal::traits::StreamTrait;

use super::host::{self, OPEN_TIMEOUT};
use crate::AudioError;

/// A running device calls back every few tens of milliseconds. One that has not for this long is
/// gone, even if its driver says nothing.
const STALLED_AFTER: Duration = Duration::from_secs(3);

/// How often the thread looks for a stall when nobody wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What a stream's callbacks tell its worker, without locks.
#[derive(Debug, Default)]
pub(super) struct Health {
    callbacks: AtomicU64,
    faults: AtomicU64,
    lost: OnceLock<String>,
}

impl Health {
    /// The device called back.
    pub(super) fn alive(&self) {
        self.callbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// The stream reported an error; true if it is the end.
    pub(super) fn fault(&self, error: &cpal::Error) -> bool {
        if host::is_fatal(error) {
            self.lose(error.to_string());
            return true;
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Errors that the stream survived, such as underruns in the driver.
    pub(super) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Why the device is gone, if it is.
    pub(super) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// The device is over, for `reason`.
    pub(super) fn lose(&self, reason: String) {
        // The first reason is the cause; later ones follow from it.
        let _ = self.lost.set(reason);
    }
}

/// A stream that was opened on its worker's thread.
pub(super) struct Opened<Info, Tick> {
    pub(super) stream: cpal::Stream,
    /// What the opener wants to know.
    pub(super) info: Info,
    /// Called whenever the worker was unparked, and when the device is lost.
    pub(super) tick: Tick,
}

/// Ends its thread, and with it the stream, when dropped.
#[derive(Debug)]
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl Worker {
    /// Starts a thread that opens a stream with `open` (which is given the thread, for callbacks to
    /// unpark), lets it play and keeps it. Returns what `open` says once the stream runs.
    pub(super) fn start<Info: Send + 'static, Tick: FnMut() + 'static>(
        name: &str,
        health: Arc<Health>,
        open: impl FnOnce(Thread) -> Result<Opened<Info, Tick>, AudioError> + Send + 'static,
    ) -> Result<(Self, Info), AudioError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (sender, receiver) = mpsc::sync_channel(1);
        let spawned = thread::Builder::new().name(format!("audio-{name}")).spawn(move || {
            let opened = open(thread::current()).and_then(|opened| {
                opened.stream.play().map_err(host::device_error)?;
                Ok(opened)
            });
            let Opened { stream, info, mut tick } = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    // Whoever waited may have given up.
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            if sender.send(Ok(info)).is_ok() {
                watch(&stopped, &health, &mut tick);
            }
            drop(stream);
        });
        let handle =
            spawned.map_err(|error| AudioError::Device(format!("no thread for it: {error}")))?;
        let worker = Self { stop, thread: handle.thread().clone() };
        match receiver.recv_timeout(OPEN_TIMEOUT) {
            Ok(opened) => opened.map(|info| (worker, info)),
            Err(_) => Err(AudioError::NoDevice(format!(
                "the {name} did not open within {OPEN_TIMEOUT:?}"
            ))),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Not joined: closing a stream may wait for a sound server that does not answer.
        self.thread.unpark();
    }
}

fn watch(stopped: &AtomicBool, health: &Health, tick: &mut impl FnMut()) {
    let mut seen = 0;
    let mut seen_at = Instant::now();
    while !stopped.load(Ordering::Acquire) {
        thread::park_timeout(LOOK_EVERY);
        let callbacks = health.callbacks.load(Ordering::Relaxed);
        if callbacks != seen {
            seen = callbacks;
            seen_at = Instant::now();
        } else if seen_at.elapsed() >= STALLED_AFTER {
            health.lose(format!("it has not called back for {STALLED_AFTER:?}"));
        }
        tick();
        if health.lost().is_some() {
            return;
        }
    }
}
