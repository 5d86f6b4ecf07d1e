//! Whether a better provider is back is found out beside the connection that is used.
//!
//! A session that fell back goes back to its own provider when its connection is next changed by plan.
//! That provider may be dead still, and finding that out may take as long as connecting may. So it is
//! asked while the present connection goes on. If it is back at a moment that is as quiet as when it was
//! asked, the conversation goes over to the new connection; if something was said meanwhile that it was
//! not told of, it is asked once more at the next quiet moment.

use std::sync::Arc;

use antiphon_live::{Capabilities, LiveConfig, LiveError};

use super::{Engine, Told};
use crate::session::{EventKind, engine::io::Output};

/// A connection with a better candidate that is being made.
#[derive(Debug)]
pub(crate) struct Scout {
    epoch: u32,
    candidate: usize,
    told: Told,
    /// The configuration that it was asked for with.
    live: Arc<LiveConfig>,
    /// When it was told: the number of the turn, and how much was written down.
    as_of: (u64, u64),
}

impl Engine {
    /// Begins to connect with this candidate, beside the present connection.
    pub(super) fn look_for(&mut self, candidate: usize) {
        self.reconnect.attempts.look_for(candidate);
        let (request, told) = self.introduction(candidate);
        let (epoch, live, as_of) = (request.epoch, self.live.clone(), self.said_so_far());
        self.reconnect.scout = Some(Scout { epoch, candidate, told, live, as_of });
        self.prompt_outputs.push_back(Output::Connect { request, provider: candidate });
    }

    /// The connection that is being made beside the present one is not wanted any more.
    pub(in crate::session::engine) fn stop_looking(&mut self) {
        if let Some(Scout { epoch, .. }) = self.reconnect.scout.take() {
            self.prompt_outputs.push_back(Output::Close { epoch });
        }
    }

    /// Whether a connection that stands is the one beside the present one; if so it is used, or closed.
    pub(in crate::session::engine) fn is_found(
        &mut self,
        epoch: u32,
        capabilities: &Arc<Capabilities>,
    ) -> bool {
        let Some(scout) = self.reconnect.scout.take_if(|scout| scout.epoch == epoch) else {
            return false;
        };
        self.reconnect.attempts.looked_for(scout.candidate, None, self.now);
        let paused = self.reconnect.silence.until().is_none_or(|from| from <= self.now);
        let knows_all =
            scout.as_of == self.said_so_far() && Arc::ptr_eq(&scout.live, &self.live);
        if !knows_all || !self.is_quiet(true) || !paused {
            // It is back. At the next quiet moment it is told all.
            self.prompt_outputs.push_back(Output::Close { epoch });
            return true;
        }
        let before = self.reconnect.attempts.provider();
        let left = self.epoch;
        let attempt = self.reconnect.attempts.go_over(scout.candidate, self.now);
        self.lose_connection(before);
        self.prompt_outputs.push_back(Output::Close { epoch: left });
        let cause = "a provider that was gone is back".into();
        self.emit(EventKind::Reconnecting { attempt, cause });
        self.epoch = epoch;
        self.reconnect.resuming = false;
        self.introduced(scout.told);
        self.on_connected(epoch, capabilities.clone());
        true
    }

    /// Whether the connection that was not made is the one beside the present one, which goes on.
    pub(in crate::session::engine) fn is_missed(&mut self, epoch: u32, error: &LiveError) -> bool {
        let Some(scout) = self.reconnect.scout.take_if(|scout| scout.epoch == epoch) else {
            return false;
        };
        tracing::debug!(%error, "the provider that the session would go back to is not back");
        self.reconnect.attempts.looked_for(scout.candidate, Some(error), self.now);
        true
    }

    fn said_so_far(&self) -> (u64, u64) {
        (self.turn.number, self.reconnect.remembered())
    }
}
