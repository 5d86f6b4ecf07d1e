//! Whether somebody still works on a call that is recorded as running.
//!
//! The record holds until when its process says that it is at work, said again while the tool runs,
//! and which process that is. One that is on this machine is looked for, so that after a crash nobody
//! has to wait until that time is over.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::later;

/// For how long a process says that it is at work on a call; said again after a third of it.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// That a process works on a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Lease {
    /// Until then, where it is not said again.
    pub until: Timestamp,
    /// The process, for others on its machine; `None` where it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Arc<str>>,
}

impl Lease {
    /// This process works on it from `now` on.
    pub(crate) fn new(now: Timestamp) -> Self {
        let until = later(now, LEASE).unwrap_or(Timestamp::MAX);
        Self { until, process: this_process().cloned() }
    }

    /// Whether somebody works on the call of this key, as far as that can be seen from here.
    pub(super) fn stands(&self, key: &str, now: Timestamp) -> bool {
        let Some(process) = &self.process else { return self.until > now };
        match look(process) {
            Seen::This => held().contains_key(key),
            Seen::Gone => false,
            Seen::There | Seen::Elsewhere => self.until > now,
        }
    }
}

/// This process works on the call of this key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold(Arc<str>);

impl Hold {
    pub(crate) fn new(key: Arc<str>) -> Self {
        *held().entry(key.clone()).or_default() += 1;
        Self(key)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = held();
        let Some(holds) = held.get_mut(&self.0) else { return };
        *holds -= 1;
        if *holds == 0 {
            held.remove(&self.0);
        }
    }
}

/// The calls that this process works on. Keys are unlike any other. Counted: who wanted to take a call
/// and came too late gives back their own hold, and not that of who works on it.
fn held() -> MutexGuard<'static, BTreeMap<Arc<str>, usize>> {
    static HELD: Mutex<BTreeMap<Arc<str>, usize>> = Mutex::new(BTreeMap::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a process was seen.
enum Seen {
    This,
    There,
    Gone,
    /// Not where it could be looked for.
    Elsewhere,
}

/// The name of this process: the boot of the machine, the name space of its ids, the id, and when it
/// started. Only Linux tells all of them.
fn this_process() -> Option<&'static Arc<str>> {
    static NAME: OnceLock<Option<Arc<str>>> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        // Where processes of others are hidden, one that is not seen may be there.
        Path::new("/proc/1/stat").exists().then_some(())?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let id = std::process::id();
        let began = began(id)??;
        Some(format!("{}/{}/{id}/{began}", boot.trim(), space.display()).into())
    });
    name.as_ref()
}

fn look(process: &str) -> Seen {
    let Some(this) = this_process() else { return Seen::Elsewhere };
    if **this == *process {
        return Seen::This;
    }
    let parts = |name: &str| -> Option<(String, u32, u64)> {
        let mut parts = name.rsplitn(3, '/');
        let (began, id) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((parts.next()?.to_owned(), id, began))
    };
    let (Some((here, ..)), Some((there, id, then))) = (parts(this), parts(process)) else {
        return Seen::Elsewhere;
    };
    if here != there {
        return Seen::Elsewhere;
    }
    match began(id) {
        Some(Some(began)) if began == then => Seen::There,
        // Its id may be another's by now.
        Some(_) => Seen::Gone,
        None => Seen::Elsewhere,
    }
}

/// When a process started, in ticks since the machine did. `Some(None)`: there is none that runs;
/// `None`: that is not known.
fn began(id: u32) -> Option<Option<u64>> {
    let text = match std::fs::read_to_string(format!("/proc/{id}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(None),
        Err(_) => return None,
    };
    // The name in brackets may hold anything; fields 3 and 22 are the state and the start.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        // It was killed, and nobody has taken notice yet.
        return Some(None);
    }
    Some(Some(fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_works_on_what_it_holds() {
        let now = Timestamp::constant(1_700_000_000, 0);
        let lease = Lease::new(now);
        let hold = Hold::new("lease-test".into());
        assert!(lease.stands("lease-test", now));
        drop(hold);
        // Where processes cannot be told apart it is the time that counts.
        assert_eq!(lease.stands("lease-test", now), lease.process.is_none());
    }

    #[test]
    fn who_came_too_late_gives_back_their_own_hold_alone() {
        let now = Timestamp::constant(1_700_000_000, 0);
        let lease = Lease::new(now);
        let works = Hold::new("taken-test".into());
        drop(Hold::new("taken-test".into()));
        assert!(lease.stands("taken-test", now));
        drop(works);
        assert!(!held().contains_key("taken-test"));
    }

    #[test]
    fn another_process_is_looked_for() {
        let now = Timestamp::constant(1_700_000_000, 0);
        let Some(this) = this_process() else { return };
        let (place, _) = this.rsplit_once('/').unwrap();
        let (place, _) = place.rsplit_once('/').unwrap();
        let until = later(now, LEASE).unwrap();
        let of = |process: String| Lease { until, process: Some(process.into()) };
        let first = began(1).unwrap().unwrap();
        assert!(of(format!("{place}/1/{first}")).stands("k", now));
        assert!(!of(format!("{place}/1/{}", first + 1)).stands("k", now), "another with its id");
        assert!(!of(format!("{place}/4194999/7")).stands("k", now), "there is none");
        let elsewhere = of("other/pid:[1]/1/7".to_owned());
        assert!(elsewhere.stands("k", now));
        assert!(!elsewhere.stands("k", until), "nobody said it again");
    }
}
