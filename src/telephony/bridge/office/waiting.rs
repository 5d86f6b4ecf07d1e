//! Streams that have not told their call yet: they have a bound of their own.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use super::{Office, lock};

/// Streams that have not started.
#[derive(Default)]
pub(super) struct Crowd {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place among the streams that have not started.
pub(in crate::telephony::bridge) struct Waiting {
    office: Arc<Office>,
    address: Option<IpAddr>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut crowd = lock(&self.office.waiting);
        crowd.all = crowd.all.saturating_sub(1);
        let Some(address) = self.address else { return };
        if let Some(here) = crowd.by_address.get_mut(&address) {
            *here = here.saturating_sub(1);
            if *here == 0 {
                crowd.by_address.remove(&address);
            }
        }
    }
}

impl Office {
    /// Whether no more streams can wait for their start.
    pub(super) fn is_crowded(&self) -> bool {
        lock(&self.waiting).all >= self.config.limits.waiting
    }

    /// A place for a stream that has not started, if there is one.
    pub(in crate::telephony::bridge) fn wait(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> Option<Waiting> {
        // A proxy's address, or this machine's, is everybody's.
        let address = address.filter(|address| !address.is_loopback());
        let mut crowd = lock(&self.waiting);
        let here = address.and_then(|address| crowd.by_address.get(&address)).copied();
        let limits = &self.config.limits;
        if crowd.all >= limits.waiting || here.unwrap_or(0) >= limits.waiting_per_address {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        crowd.all += 1;
        if let Some(address) = address {
            *crowd.by_address.entry(address).or_default() += 1;
        }
        Some(Waiting { office: self.clone(), address })
    }
}
