//! The handle by which a provider continues the conversation.

use std::time::{Duration, Instant};

use antiphon_live::{LiveError, Resumption};

use crate::session::{engine::timers::at, journal::SeedHandle};

/// How often a provider may hang up on it. More than once: a server may take the connection before for
/// open still, and then refuses who comes by its handle.
const REFUSALS: u32 = 4;

/// The newest handle, and whether it holds all of the conversation.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    /// With the candidate that gave it.
    newest: Option<(usize, Resumption)>,
    /// Something happened that is not in it.
    outdated: bool,
    /// Words of what happened since were written down.
    written: bool,
    /// From when on it is of no use any more.
    until: Option<Instant>,
    /// How often the provider hung up on it.
    refused: u32,
}

impl Handle {
    /// One of an earlier run, that holds all of the conversation.
    pub(crate) fn kept(of: &SeedHandle, now: Instant) -> Self {
        Self {
            newest: Some((of.candidate, of.handle.clone())),
            until: of.good_for.map(|good_for| at(now, good_for)),
            ..Self::default()
        }
    }

    /// The provider gave a newer one. `whole`: nothing is under way that it cannot hold.
    pub(crate) fn renew(&mut self, provider: usize, handle: Resumption, whole: bool) {
        let newest = Some((provider, handle));
        *self = Self { newest, outdated: !whole, ..Self::default() };
    }

    /// Something began that is not in it. Whether nothing had before.
    pub(crate) fn outdate(&mut self) -> bool {
        !std::mem::replace(&mut self.outdated, true) && self.newest.is_some()
    }

    /// Something was written down that a connection without it is told.
    pub(crate) fn words_are_written(&mut self) {
        self.written = true;
    }

    /// Whether who is told what was written down knows more than who resumes by it.
    pub(crate) fn knows_less(&self) -> bool {
        self.is_outdated() && self.written
    }

    /// Whether there is one at all.
    pub(crate) fn has_one(&self) -> bool {
        self.newest.is_some()
    }

    /// Whether who resumes by it now loses something; not where there is none.
    pub(crate) fn is_outdated(&self) -> bool {
        self.newest.is_some() && self.outdated
    }

    /// The connection that gave it is over; it is good for so long.
    pub(crate) fn connection_ended(&mut self, now: Instant, valid: Option<Duration>) {
        if self.until.is_none() {
            self.until = valid.map(|valid| at(now, valid));
        }
    }

    /// The handle for a connection with this candidate, where there is one that is good.
    pub(crate) fn usable(&mut self, provider: usize, now: Instant) -> Option<Resumption> {
        if self.until.is_some_and(|until| until <= now) {
            self.forget();
        }
        self.newest.as_ref().filter(|(of, _)| *of == provider).map(|(_, handle)| handle.clone())
    }

    /// Connecting by it failed, perhaps for the `last` time. Whether it is at fault: a provider may hang
    /// up on what it cannot restore without saying so.
    pub(crate) fn is_refused(&mut self, error: &LiveError, last: bool) -> bool {
        match error {
            LiveError::Unauthorized(_) | LiveError::MissingApiKey { .. } => false,
            LiveError::Closed { .. } if error.is_recoverable() => {
                self.refused += 1;
                last || self.refused >= REFUSALS
            }
            _ => !error.is_recoverable(),
        }
    }

    /// The first connection of a run could not be made by it: whether another may be, without it.
    pub(crate) fn is_worth_another(error: &LiveError) -> bool {
        !matches!(
            error,
            LiveError::Unauthorized(_)
                | LiveError::MissingApiKey { .. }
                | LiveError::MissingEndpoint { .. }
                | LiveError::Unsupported { .. }
                | LiveError::RateLimited { .. }
                | LiveError::Transport(_)
        )
    }

    /// It is of no use. Whether there was one.
    pub(crate) fn forget(&mut self) -> bool {
        std::mem::take(self).newest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::journal::Knows;

    fn resumption() -> Resumption {
        Resumption { handle: "h".to_owned().into() }
    }

    #[test]
    fn a_handle_is_its_providers_and_expires() {
        let now = Instant::now();
        let hour = Duration::from_secs(3_600);
        let mut handle = Handle::default();
        assert!(!handle.is_outdated());
        handle.renew(1, resumption(), true);
        assert!(handle.usable(0, now).is_none());
        assert!(handle.usable(1, now).is_some());
        handle.outdate();
        assert!(handle.is_outdated());
        handle.renew(1, resumption(), false);
        assert!(handle.is_outdated(), "a call is open");
        assert!(!handle.knows_less(), "there are no words of it");
        handle.words_are_written();
        assert!(handle.knows_less());
        handle.renew(1, resumption(), true);
        handle.words_are_written();
        assert!(!handle.is_outdated() && !handle.knows_less(), "words may come late");
        handle.connection_ended(now, Some(2 * hour));
        handle.connection_ended(now + hour, Some(2 * hour));
        assert!(handle.usable(1, now + hour).is_some());
        assert!(handle.usable(1, now + 2 * hour).is_none());
        assert!(!handle.forget());
    }

    #[test]
    fn a_handle_of_an_earlier_run_is_good_for_the_rest_of_its_time() {
        let now = Instant::now();
        let hour = Duration::from_secs(3_600);
        let knows = Knows::ALL;
        let kept = SeedHandle { candidate: 1, handle: resumption(), good_for: Some(hour), knows };
        let mut handle = Handle::kept(&kept, now);
        assert!(handle.usable(0, now).is_none() && handle.usable(1, now).is_some());
        assert!(!handle.is_outdated());
        // Whatever its connection may add, nobody knows when that one ended.
        handle.connection_ended(now, Some(2 * hour));
        assert!(handle.usable(1, now + hour).is_none());
    }

    #[test]
    fn a_handle_is_given_up_at_once_where_it_is_refused_and_later_where_the_line_may_be_at_fault() {
        let closed = |code| LiveError::Closed { code, reason: String::new() };
        for (error, refused_at) in [
            (closed(1008), Some(1)),
            (closed(1011), Some(REFUSALS)),
            // Another key may be the right one for it.
            (LiveError::Unauthorized("no".into()), None),
            (LiveError::Transport("reset".into()), None),
        ] {
            let mut handle = Handle::default();
            handle.renew(0, resumption(), true);
            let given_up = (1..=2 * REFUSALS).find(|_| handle.is_refused(&error, false));
            assert_eq!(given_up, refused_at, "{error}");
        }
    }
}
