//! Handles by which conversations go on, for all connections of a server.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::scripted::lock;

/// Conversations that can be resumed.
#[derive(Default)]
pub(super) struct Handles(Mutex<Table>);

#[derive(Default)]
struct Table {
    chains: HashMap<u64, Chain>,
    last: u64,
}

/// One conversation over its connections. Only its newest handle is good.
struct Chain {
    handles: u64,
    newest: Option<String>,
    /// A socket of it is open.
    open: bool,
    closed_at: Option<Instant>,
    /// What was said last.
    words: String,
}

/// Why a handle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is unknown, not the newest, or too old.
    Stale,
    /// The socket that it came by is still open.
    StillOpen,
}

impl Handles {
    /// Begins a conversation.
    pub(super) fn begin(&self) -> u64 {
        let mut table = lock(&self.0);
        table.last += 1;
        let number = table.last;
        let chain =
            Chain { handles: 0, newest: None, open: true, closed_at: None, words: String::new() };
        table.chains.insert(number, chain);
        number
    }

    /// Goes on with one; gives what was said last.
    pub(super) fn resume(
        &self,
        handle: &str,
        valid: Duration,
        now: Instant,
    ) -> Result<(u64, String), Refused> {
        let mut table = lock(&self.0);
        let mut chains = table.chains.iter_mut();
        let (number, chain) = chains
            .find(|(_, chain)| chain.newest.as_deref() == Some(handle))
            .ok_or(Refused::Stale)?;
        if chain.open {
            return Err(Refused::StillOpen);
        }
        if chain.closed_at.is_some_and(|at| now.saturating_duration_since(at) > valid) {
            return Err(Refused::Stale);
        }
        chain.open = true;
        Ok((*number, chain.words.clone()))
    }

    /// A new handle; the ones before are stale.
    pub(super) fn renew(&self, number: u64, words: &str) -> String {
        let mut table = lock(&self.0);
        let Some(chain) = table.chains.get_mut(&number) else { return String::new() };
        chain.handles += 1;
        let handle = format!("handle-{number}-{}", chain.handles);
        chain.newest = Some(handle.clone());
        chain.words = words.to_owned();
        handle
    }

    /// The socket is closed.
    pub(super) fn close(&self, number: u64, now: Instant) {
        if let Some(chain) = lock(&self.0).chains.get_mut(&number) {
            chain.open = false;
            chain.closed_at = Some(now);
        }
    }
}
