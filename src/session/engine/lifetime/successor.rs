//! The next connection is made beside the one that is used.
//!
//! Nobody waits for a handshake where a change is planned: the present connection goes on until the next
//! one stands and has been told the conversation. If the moment is then as quiet as when that was asked
//! for, the conversation goes over to it; if something was said meanwhile that it was not told of, it is
//! closed, and another one is made at the next quiet moment. If it cannot be made, the present one is
//! still there. By force, and where a handle may not be used before its connection is closed, that one
//! is closed first.
//!
//! So a session that fell back finds out, too, whether its own provider is back: that may be dead still,
//! and finding out may take as long as connecting may.

use std::sync::Arc;

use antiphon_live::{Capabilities, LiveError};

use super::{Engine, LOOK_AGAIN, Told};
use crate::session::{
    EventKind, SessionState,
    engine::{io::Output, timers::Timer},
};

/// From the third on that could not be made, the wait for the next doubles; so often.
const DOUBLINGS: u32 = 4;

/// A connection that is being made beside the present one, to take its place.
#[derive(Debug)]
pub(crate) struct Successor {
    epoch: u32,
    candidate: usize,
    /// It continues the present one by its handle.
    resumes: bool,
    told: Told,
    /// When it was told: the number of the turn, and how much was written down.
    as_of: (u64, u64),
}

impl Engine {
    /// Begins to connect with this candidate, beside the present connection.
    pub(super) fn connect_beside(&mut self, candidate: usize) {
        self.reconnect.attempts.look_for(candidate);
        let (request, told) = self.introduction(candidate);
        let (epoch, resumes) = (request.epoch, request.resume.is_some());
        let as_of = self.said_so_far();
        let successor = Successor { epoch, candidate, resumes, told, as_of };
        self.reconnect.successor = Some(successor);
        self.prompt_outputs.push_back(Output::Connect { request, provider: candidate });
    }

    /// The connection that is being made beside the present one is not wanted any more.
    pub(in crate::session::engine) fn forget_successor(&mut self) {
        if let Some(Successor { epoch, .. }) = self.reconnect.successor.take() {
            self.prompt_outputs.push_back(Output::Close { epoch });
        }
    }

    /// Whether a connection that stands is the one beside the present one; if so it is used, or closed.
    pub(in crate::session::engine) fn successor_stands(
        &mut self,
        epoch: u32,
        capabilities: &Arc<Capabilities>,
    ) -> bool {
        let made = |successor: &mut Successor| successor.epoch == epoch;
        let Some(successor) = self.reconnect.successor.take_if(made) else { return false };
        self.reconnect.attempts.looked_for(successor.candidate, None, self.now);
        let paused = self.reconnect.silence.until().is_none_or(|from| from <= self.now);
        let knows_all =
            successor.as_of == self.said_so_far() && Arc::ptr_eq(&successor.told.live, &self.live);
        if !knows_all || !self.is_quiet(!successor.resumes) || !paused {
            // At the next quiet moment another one is told all.
            self.prompt_outputs.push_back(Output::Close { epoch });
            return true;
        }
        let (before, left) = (self.reconnect.attempts.provider(), self.epoch);
        let cause = match successor.candidate == before {
            true => "the provider goes away",
            false => "a provider that was gone is back",
        };
        let attempt = self.reconnect.attempts.go_over(successor.candidate, self.now);
        self.lose_connection(before);
        self.prompt_outputs.push_back(Output::Close { epoch: left });
        if successor.candidate == before {
            // Hosts know a change by this state, however short it is.
            self.set_state(SessionState::Recovering);
        }
        self.emit(EventKind::Reconnecting { attempt, cause: cause.into() });
        self.epoch = epoch;
        self.reconnect.resuming = successor.resumes;
        self.introduced(successor.told);
        self.on_connected(epoch, capabilities.clone());
        true
    }

    /// Whether the connection that was not made is the one beside the present one, which goes on.
    pub(in crate::session::engine) fn successor_failed(
        &mut self,
        epoch: u32,
        error: &LiveError,
    ) -> bool {
        let made = |successor: &mut Successor| successor.epoch == epoch;
        let Some(successor) = self.reconnect.successor.take_if(made) else { return false };
        tracing::debug!(%error, "the next connection was not made; the present one is kept");
        let candidate = successor.candidate;
        self.reconnect.attempts.looked_for(candidate, Some(error), self.now);
        if successor.resumes && self.is_handle_refused(error) {
            // Another one is told the conversation.
            self.forget_handle();
        } else if candidate == self.reconnect.attempts.provider() {
            // Who refuses for good is not asked again before there is no time left.
            let last = self.timers.due(Timer::GoingAway).filter(|_| !error.is_recoverable());
            let wait =
                LOOK_AGAIN * 2u32.pow(self.reconnect.missed.saturating_sub(1).min(DOUBLINGS));
            self.reconnect.missed += 1;
            self.reconnect.leave_from = last.or(Some(self.now + wait));
        }
        true
    }

    fn said_so_far(&self) -> (u64, u64) {
        (self.turn.number, self.reconnect.remembered())
    }
}
