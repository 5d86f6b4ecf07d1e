//! The agent's voice for a host without a sink: [`Callbacks::on_audio`], on a task of its own so
//! that neither side waits for the other.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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
        let task = tokio::spawn(inside::run(mark, async move {
            while let Some(tapped) = receiver.recv().await {
                let call = || match &tapped {
                    Tapped::Frame(generation, frame) => {
                        if generation.0 >= valid.load(Ordering::Acquire) {
                            callbacks.on_audio(frame);
                        }
                    }
                    Tapped::Interrupted => callbacks.on_interrupted(),
                };
                if catch_unwind(AssertUnwindSafe(call)).is_err() {
                    tracing::warn!("on_audio panicked");
                }
            }
        }));
        Self { sender, task, first_valid, dropped: 0 }
    }

    /// Hands a frame on; dropped when the host does not keep up by far. `false`: it was.
    pub(crate) fn frame(&mut self, generation: Generation, frame: AudioFrame) -> bool {
        let taken = self.sender.try_send(Tapped::Frame(generation, frame)).is_ok();
        self.dropped += u64::from(!taken);
        taken || self.dropped > 1
    }

    /// The reply was cut off: the host must forget what it has not played. In order with the audio.
    pub(crate) fn interrupted(&self) {
        let _ = self.sender.try_send(Tapped::Interrupted);
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
