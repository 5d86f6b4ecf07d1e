//! Handles by which conversations go on, for all connections of a server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Conversations that are kept at most; those that ended first are forgotten first.
const MAX_CHAINS: usize = 100_000;

/// The conversations of a server that can be resumed. Clones share them.
#[derive(Debug)]
pub struct Handles<M> {
    table: Arc<Mutex<Table<M>>>,
    valid: Duration,
}

impl<M> Clone for Handles<M> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), valid: self.valid }
    }
}

#[derive(Debug)]
struct Table<M> {
    chains: HashMap<u64, Chain<M>>,
    by_handle: HashMap<String, u64>,
    last: u64,
}

/// One conversation over its connections. Only its newest handle is good.
#[derive(Debug)]
struct Chain<M> {
    newest: Option<String>,
    /// When its socket was closed; `None`: it is open.
    closed_at: Option<Instant>,
    memory: Option<M>,
}

/// Why a handle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleRefused {
    /// It is unknown, not the newest of its conversation, or too old.
    Stale,
    /// The socket that it came by is still open.
    StillOpen,
}

impl<M: Clone> Handles<M> {
    /// None yet. A handle is good for so long after its connection ended.
    pub fn new(valid: Duration) -> Self {
        let table = Table { chains: HashMap::new(), by_handle: HashMap::new(), last: 0 };
        Self { table: Arc::new(Mutex::new(table)), valid }
    }

    /// How many conversations are kept.
    pub fn len(&self) -> usize {
        self.lock().chains.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins a conversation.
    pub(super) fn begin(&self, now: Instant) -> u64 {
        let mut table = self.lock();
        if table.chains.len() >= MAX_CHAINS {
            table.forget(self.valid, now);
        }
        table.last += 1;
        let number = table.last;
        table.chains.insert(number, Chain { newest: None, closed_at: None, memory: None });
        number
    }

    /// Goes on with one; gives what was remembered.
    pub(super) fn resume(
        &self,
        handle: &str,
        now: Instant,
    ) -> Result<(u64, Option<M>), HandleRefused> {
        let mut table = self.lock();
        let number = *table.by_handle.get(handle).ok_or(HandleRefused::Stale)?;
        let chain = table.chains.get_mut(&number).ok_or(HandleRefused::Stale)?;
        let closed_at = chain.closed_at.ok_or(HandleRefused::StillOpen)?;
        if now.saturating_duration_since(closed_at) > self.valid {
            table.remove(number);
            return Err(HandleRefused::Stale);
        }
        chain.closed_at = None;
        Ok((number, chain.memory.clone()))
    }

    /// A new handle; the ones before are stale.
    pub(super) fn renew(&self, number: u64, handle: String, memory: M) {
        let mut table = self.lock();
        let Some(chain) = table.chains.get_mut(&number) else { return };
        chain.memory = Some(memory);
        let before = chain.newest.replace(handle.clone());
        if let Some(before) = before {
            table.by_handle.remove(&before);
        }
        table.by_handle.insert(handle, number);
    }

    /// The socket is closed.
    pub(super) fn close(&self, number: u64, now: Instant) {
        let mut table = self.lock();
        match table.chains.get_mut(&number) {
            Some(chain) if chain.newest.is_some() => chain.closed_at = Some(now),
            // Nobody can come back to it.
            _ => table.remove(number),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<M>> {
        // Nothing here can fail half-way.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Table<M> {
    fn remove(&mut self, number: u64) {
        let chain = self.chains.remove(&number);
        if let Some(handle) = chain.and_then(|chain| chain.newest) {
            self.by_handle.remove(&handle);
        }
    }

    /// Forgets what is too old, and if that is not enough, what ended first.
    fn forget(&mut self, valid: Duration, now: Instant) {
        let closed = self.chains.iter().filter_map(|(number, c)| Some((c.closed_at?, *number)));
        let mut closed: Vec<(Instant, u64)> = closed.collect();
        closed.sort_unstable();
        let old = |at: Instant| now.saturating_duration_since(at) > valid;
        let aged = closed.iter().take_while(|(at, _)| old(*at)).count();
        for (_, number) in closed.into_iter().take(aged.max(MAX_CHAINS / 10)) {
            self.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_handle_is_good_and_only_once_its_socket_is_closed() {
        let (handles, now) = (Handles::new(Duration::from_secs(60)), Instant::now());
        let first = handles.begin(now);
        handles.renew(first, "a".into(), 1);
        handles.renew(first, "b".into(), 2);
        assert_eq!(handles.resume("a", now), Err(HandleRefused::Stale));
        assert_eq!(handles.resume("b", now), Err(HandleRefused::StillOpen));
        handles.close(first, now);
        assert_eq!(handles.resume("b", now), Ok((first, Some(2))));
        assert_eq!(handles.resume("b", now), Err(HandleRefused::StillOpen));
        handles.close(first, now);
        let late = now + Duration::from_secs(61);
        assert_eq!(handles.resume("b", late), Err(HandleRefused::Stale));
        assert!(handles.is_empty(), "what nobody can come back to is forgotten");
        let second = handles.begin(now);
        handles.close(second, now);
        assert!(handles.is_empty());
    }

    #[test]
    fn conversations_are_not_kept_without_end() {
        let (handles, now) = (Handles::new(Duration::from_secs(60)), Instant::now());
        for number in 0..MAX_CHAINS + 10 {
            let chain = handles.begin(now);
            handles.renew(chain, number.to_string(), ());
            handles.close(chain, now);
        }
        assert!(handles.len() <= MAX_CHAINS);
        let newest = (MAX_CHAINS + 9).to_string();
        assert!(handles.resume(&newest, now).is_ok());
    }
}
