//! Between a session and its call: the agent's voice.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use antiphon_audio::{AudioFormat, AudioFrame, AudioSink, Generation, Played, SinkError};
use tokio::sync::Notify;

use crate::telephony::media::{Playout, PlayoutStats, Send};

/// A session's sink whose other end is a telephone call: audio, marks and clears are fetched from it
/// by the call's task, and what the caller has heard is told by the carrier's marks.
#[derive(Debug)]
pub(super) struct CallSink(Arc<Shared>);

/// The call's end of a [`CallSink`].
#[derive(Clone, Debug)]
pub(super) struct Voice(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There may be something to send, or it is due at another time.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    playout: Playout,
    session: Option<Waker>,
}

/// A sink and the call's end of it.
pub(super) fn voice(playout: Playout) -> (CallSink, Voice) {
    let state = State { playout, session: None };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() });
    (CallSink(shared.clone()), Voice(shared))
}

impl Voice {
    /// Everything that is due, in order, and when more will be.
    pub(super) fn due(&self, now: Instant, out: &mut Vec<Send>) -> Option<Instant> {
        self.with(|playout| {
            while let Some(send) = playout.poll_send(now) {
                out.push(send);
            }
            playout.next_send()
        })
    }

    /// Returns when something may be due that was not.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// The carrier answers a mark.
    pub(super) fn marked(&self, name: &str, now: Instant) {
        self.with(|playout| playout.marked(name, now));
    }

    /// The carrier takes audio, or for now it does not.
    pub(super) fn set_open(&self, open: bool) {
        self.with(|playout| playout.set_open(open));
    }

    /// The caller is to hear nothing, or again what comes.
    pub(super) fn hold(&self, on: bool, now: Instant) {
        self.with(|playout| playout.hold(on, now));
    }

    /// When all that was sent will have been heard.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.0.lock().playout.ends_at()
    }

    /// Whether the caller has heard everything.
    pub(super) fn is_idle(&self) -> bool {
        self.0.lock().playout.is_idle()
    }

    /// What went by so far.
    pub(super) fn stats(&self) -> PlayoutStats {
        self.0.lock().playout.stats()
    }

    /// Changes the playout, and wakes the session where that made news.
    fn with<T>(&self, change: impl FnOnce(&mut Playout) -> T) -> T {
        let (result, waker) = {
            let mut state = self.0.lock();
            let before = state.playout.next_news();
            let result = change(&mut state.playout);
            let news = state.playout.has_news() || state.playout.next_news() != before;
            (result, if news { state.session.take() } else { None })
        };
        wake(waker);
        result
    }
}

impl CallSink {
    /// Changes the playout, and wakes the call, which may have something to send.
    fn with<T>(&self, change: impl FnOnce(&mut Playout) -> T) -> T {
        let result = change(&mut self.0.lock().playout);
        self.0.changed.notify_one();
        result
    }
}

impl AudioSink for CallSink {
    fn format(&self) -> AudioFormat {
        self.0.lock().playout.format()
    }

    fn room(&self, _now: Instant) -> usize {
        self.0.lock().playout.room()
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError> {
        self.with(|playout| playout.write(generation, frame, now))
    }

    fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        self.with(|playout| playout.finish(generation, now))
    }

    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError> {
        Ok(self.with(|playout| playout.clear(next, now)))
    }

    fn pause(&mut self, now: Instant) -> Result<(), SinkError> {
        self.with(|playout| playout.pause(now));
        Ok(())
    }

    fn resume(&mut self, now: Instant) -> Result<(), SinkError> {
        self.with(|playout| playout.resume(now));
        Ok(())
    }

    fn position(&self, now: Instant) -> Option<Played> {
        self.0.lock().playout.position(now)
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        let mut state = self.0.lock();
        if let Some(played) = state.playout.news(now) {
            return Poll::Ready(Ok(played));
        }
        match &mut state.session {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.0.lock().playout.next_news()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves whole values behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
