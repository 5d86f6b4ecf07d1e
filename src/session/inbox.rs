//! What the host's handles leave for the session's task: bounded, in order, never waiting.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;

use super::{EndReason, SendError, engine::HostCommand};

/// The commands of the host, and its wish to end.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    waker: AtomicWaker,
    max_commands: usize,
    max_audio: Duration,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<HostCommand>,
    commands: usize,
    audio: Duration,
    dropped: Duration,
    stop: Option<Stop>,
    /// Calls that a person approved and that are at work, where that changed.
    at_work: Option<u32>,
    /// The host has nothing to say any more.
    closed: bool,
    /// Nobody takes anything any more.
    over: bool,
}

/// The session is to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) reason: EndReason,
    pub(crate) within: Option<Duration>,
}

/// What the session's task finds.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) commands: VecDeque<HostCommand>,
    pub(crate) stop: Option<Stop>,
    /// Calls that a person approved and that are at work, where that changed.
    pub(crate) at_work: Option<u32>,
    /// Audio that was dropped here so far.
    pub(crate) dropped: Duration,
}

impl Inbox {
    /// At most this many commands, and this much audio, of which the oldest is dropped.
    pub(crate) fn new(max_commands: usize, max_audio: Duration) -> Self {
        Self { state: Mutex::default(), waker: AtomicWaker::new(), max_commands, max_audio }
    }

    /// Leaves a command.
    pub(crate) fn push(&self, command: HostCommand) -> Result<(), SendError> {
        let mut state = self.lock();
        if state.closed || state.stop.is_some() {
            return Err(SendError::NotActive);
        }
        match &command {
            HostCommand::Audio(frame) => {
                state.audio += frame.duration();
                while state.audio > self.max_audio && state.drop_oldest_audio() {}
            }
            _ if state.commands >= self.max_commands => return Err(SendError::QueueFull),
            _ => state.commands += 1,
        }
        state.queue.push_back(command);
        drop(state);
        self.waker.wake();
        Ok(())
    }

    /// Leaves a command of the session's own, which may also come after its end was asked for.
    pub(crate) fn push_own(&self, command: HostCommand) -> Result<(), SendError> {
        let mut state = self.lock();
        if state.over {
            return Err(SendError::NotActive);
        }
        if state.commands >= self.max_commands {
            return Err(SendError::QueueFull);
        }
        state.commands += 1;
        state.queue.push_back(command);
        drop(state);
        self.waker.wake();
        Ok(())
    }

    /// Says how many calls that a person approved are at work. The last word counts.
    pub(crate) fn at_work(&self, calls: u32) {
        self.lock().at_work = Some(calls);
        self.waker.wake();
    }

    /// Asks for the end; the first one says why.
    pub(crate) fn stop(&self, stop: Stop) {
        let mut state = self.lock();
        match &mut state.stop {
            Some(first) => {
                first.within = [first.within, stop.within].into_iter().flatten().min();
            }
            none => *none = Some(stop),
        }
        drop(state);
        self.waker.wake();
    }

    /// Takes no more.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        (state.closed, state.over) = (true, true);
        state.queue.clear();
    }

    /// Takes what there is.
    pub(crate) fn poll(&self, cx: &mut Context<'_>, into: &mut Delivery) -> Poll<()> {
        self.waker.register(cx.waker());
        let mut state = self.lock();
        if state.queue.is_empty() && state.stop.is_none() && state.at_work.is_none() {
            return Poll::Pending;
        }
        mem::swap(&mut state.queue, &mut into.commands);
        into.stop = state.stop.take();
        into.at_work = state.at_work.take();
        into.dropped = state.dropped;
        // What comes after a stop is refused.
        state.closed |= into.stop.is_some();
        state.commands = 0;
        state.audio = Duration::ZERO;
        Poll::Ready(())
    }

    /// Milliseconds of audio dropped here.
    pub(crate) fn dropped_ms(&self) -> u64 {
        self.lock().dropped.as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn drop_oldest_audio(&mut self) -> bool {
        let oldest = self.queue.iter().position(|item| matches!(item, HostCommand::Audio(_)));
        let Some(HostCommand::Audio(frame)) = oldest.and_then(|at| self.queue.remove(at)) else {
            return false;
        };
        self.audio -= frame.duration();
        self.dropped += frame.duration();
        true
    }
}
