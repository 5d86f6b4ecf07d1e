//! The agent's voice for a host without a sink: [`Callbacks::on_audio`], on a task of its own so
//! that neither side waits for the other.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use antiphon_audio::{AudioFrame, Generation};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::session::{Callbacks, inside};

/// Frames that may wait for the callback; at 20 ms each, almost three minutes.
const MAX_FRAMES: usize = 8_192;

/// The near end of the task that calls the host.
pub(crate) struct AudioTap {
    sender: mpsc::Sender<Tapped>,
    task: JoinHandle<()>,
    /// Audio of generations below this is void.
    first_valid: Arc<AtomicU64>,
    /// An interruption found no room among the frames.
    interrupted: Arc<AtomicBool>,
    dropped: u64,
}

enum Tapped {
    Frame(Generation, AudioFrame),
    Interrupted,
}

impl AudioTap {
    pub(crate) fn spawn(callbacks: Arc<dyn Callbacks>, mark: usize) -> Self {
        let (sender, mut receiver) = mpsc::channel(MAX_FRAMES);
        let first_valid = Arc::new(AtomicU64::new(0));
        let valid = first_valid.clone();
        let interrupted = Arc::new(AtomicBool::new(false));
        let missed = interrupted.clone();
        let task = tokio::spawn(inside::run(mark, async move {
            while let Some(tapped) = receiver.recv().await {
                let call = || {
                    if missed.swap(false, Ordering::AcqRel) {
                        callbacks.on_interrupted();
                    }
                    match &tapped {
                        Tapped::Frame(generation, frame) => {
                            if generation.0 >= valid.load(Ordering::Acquire) {
                                callbacks.on_audio(frame);
                            }
                        }
                        Tapped::Interrupted => callbacks.on_interrupted(),
                    }
                };
                if catch_unwind(AssertUnwindSafe(call)).is_err() {
                    tracing::warn!("on_audio panicked");
                }
            }
        }));
        Self { sender, task, first_valid, interrupted, dropped: 0 }
    }

    /// Hands a frame on; dropped when the host does not keep up by far. `false`: it was.
    pub(crate) fn frame(&mut self, generation: Generation, frame: AudioFrame) -> bool {
        let taken = self.sender.try_send(Tapped::Frame(generation, frame)).is_ok();
        self.dropped += u64::from(!taken);
        taken || self.dropped > 1
    }

    /// The reply was cut off: the host must forget what it has not played. In order with the audio.
    pub(crate) fn interrupted(&self) {
        if self.sender.try_send(Tapped::Interrupted).is_err() {
            // The host is far behind; it hears of it before the next frame, which is void anyway.
            self.interrupted.store(true, Ordering::Release);
        }
    }

    /// Nothing below `next` is to be heard any more.
    pub(crate) fn clear(&self, next: Generation) {
        self.first_valid.store(next.0, Ordering::Release);
    }

    /// Ends the task after what it still has.
    pub(crate) fn finish(self) -> JoinHandle<()> {
        self.task
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counting {
        frames: AtomicU64,
        interruptions: AtomicU64,
    }

    impl Callbacks for Counting {
        fn on_audio(&self, _: &AudioFrame) {
            self.frames.fetch_add(1, Ordering::Relaxed);
        }
        fn on_interrupted(&self) {
            self.interruptions.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_host_that_is_far_behind_hears_of_an_interruption_all_the_same() {
        let host = Arc::new(Counting::default());
        let mut tap = AudioTap::spawn(host.clone(), 0);
        let frame = AudioFrame::from_pcm16(24_000, &[0; 480]);
        for _ in 0..MAX_FRAMES {
            assert!(tap.frame(Generation(1), frame.clone()));
        }
        tap.interrupted();
        tap.clear(Generation(2));
        let task = tap.finish();
        task.await.unwrap();
        assert_eq!(host.interruptions.load(Ordering::Relaxed), 1);
        assert_eq!(host.frames.load(Ordering::Relaxed), 0);
    }
}
