//! The calls that webhooks have announced: each is answered once.

use std::{collections::HashMap, time::Duration};

use crate::telephony::dialect::Carrier;

/// A carrier that was not answered asks again within this time, and is answered as before.
const AGAIN: Duration = Duration::from_secs(15);
/// That a call was answered is known for so long: its webhook opens nothing a second time.
const KNOWN: Duration = Duration::from_secs(86_400);
/// Signed messages are known for so long; older ones are refused by their time.
const SEEN: Duration = Duration::from_secs(660);
/// Calls and messages that are known, at most.
const MAX_KNOWN: usize = 100_000;

/// The calls that were answered by a webhook, and the messages that were seen.
#[derive(Default)]
pub(super) struct Announced {
    calls: HashMap<(Carrier, String), (Duration, String)>,
    seen: HashMap<String, Duration>,
}

/// Whether a webhook is a call's first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    /// It is.
    Yes,
    /// It was asked a moment ago, and answered so.
    Again(String),
    /// It is not.
    No,
}

impl Announced {
    /// Looks whether a call was announced before. Times are since 1970.
    pub(super) fn look(&mut self, carrier: Carrier, call: &str, now: Duration) -> First {
        if self.calls.len() >= MAX_KNOWN {
            self.calls.retain(|_, (at, _)| *at + KNOWN > now);
        }
        match self.calls.get(&(carrier, call.to_owned())) {
            None => First::Yes,
            Some((at, answer)) if *at + AGAIN > now => First::Again(answer.clone()),
            Some(_) => First::No,
        }
    }

    /// Notes how a call was answered; whether there was room for it.
    pub(super) fn answered(
        &mut self,
        carrier: Carrier,
        call: &str,
        answer: &str,
        now: Duration,
    ) -> bool {
        if self.calls.len() >= MAX_KNOWN {
            return false;
        }
        self.calls.insert((carrier, call.to_owned()), (now, answer.to_owned()));
        true
    }

    /// Whether a message is new.
    pub(super) fn is_new(&mut self, id: &str, now: Duration) -> bool {
        if self.seen.len() >= MAX_KNOWN {
            self.seen.retain(|_, at| *at + SEEN > now);
        }
        let id = id.chars().take(128).collect();
        self.seen.len() < MAX_KNOWN && self.seen.insert(id, now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_announced_once_and_an_impatient_carrier_is_answered_as_before() {
        let (mut announced, now) = (Announced::default(), Duration::from_secs(1_700_000_000));
        assert_eq!(announced.look(Carrier::Twilio, "CA1", now), First::Yes);
        assert!(announced.answered(Carrier::Twilio, "CA1", "<x/>", now));
        let soon = now + Duration::from_secs(3);
        assert_eq!(announced.look(Carrier::Twilio, "CA1", soon), First::Again("<x/>".into()));
        assert_eq!(announced.look(Carrier::SignalWire, "CA1", soon), First::Yes);
        assert_eq!(announced.look(Carrier::Twilio, "CA1", now + AGAIN), First::No);
        assert!(announced.is_new("e1", now));
        assert!(!announced.is_new("e1", now + Duration::from_secs(299)));
    }
}
