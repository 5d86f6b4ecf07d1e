//! The inputs of an invocation on their way to its turns.

use std::collections::VecDeque;

use super::monitor::Monitor;
use crate::{RuntimeError, protocol::AgentInput};

/// The inputs that were sent and not yet taken. A detach is seen when it is sent, however many
/// inputs wait before it.
#[derive(Debug)]
pub(crate) struct Intake {
    state: Monitor<State>,
    bound: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<AgentInput>,
    /// Nothing more is taken in.
    closed: bool,
    /// The caller will not wait.
    detached: bool,
    /// Nothing is given out until the detach is arranged.
    held: bool,
}

impl Intake {
    pub(super) fn new(bound: usize) -> Self {
        Self { state: Monitor::new(State::default()), bound: bound.max(1) }
    }

    /// Takes an input in, once there is room.
    pub(super) async fn push(&self, input: AgentInput) -> Result<(), RuntimeError> {
        let mut input = Some(input);
        self.state
            .take(|state| {
                if state.closed {
                    return Some(Err(RuntimeError::Completed));
                }
                // One that detaches needs no room: its sender will not wait.
                let detach = input.as_ref().is_some_and(|input| input.detach);
                if state.queue.len() >= self.bound && !detach {
                    return None;
                }
                if detach {
                    (state.detached, state.held, state.closed) = (true, true, true);
                }
                // A detach alone is no turn.
                let input = input.take()?;
                if !detach || input.message.is_some() || input.resume.is_some() {
                    state.queue.push_back(input);
                }
                Some(Ok(()))
            })
            .await
    }

    /// The next input; `None` when there is none any more.
    pub(super) async fn next(&self) -> Option<AgentInput> {
        self.state
            .take(|state| {
                if state.held {
                    return None;
                }
                match state.queue.pop_front() {
                    None if !state.closed => None,
                    input => Some(input),
                }
            })
            .await
    }

    /// Waits until the caller detaches.
    pub(super) async fn detached(&self) {
        self.state.until(|state| state.detached).await;
    }

    /// Goes on giving out inputs after a detach.
    pub(super) fn release(&self) {
        self.state.change(|state| state.held = false);
    }

    /// Takes nothing more in; what waits is still given out.
    pub(super) fn close(&self) {
        self.state.change(|state| state.closed = true);
    }

    /// Takes nothing more in and gives nothing more out. Returns whether the caller has detached.
    pub(super) fn end(&self) -> bool {
        self.state.change(|state| {
            state.queue.clear();
            (state.closed, state.held) = (true, false);
            state.detached
        })
    }
}
