//! Requests for replies: one at a time, and never beside a reply (quirks 7 to 14).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::wire::ResponseParams;

/// How long a request may go without an answer of any kind.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// A request that lost against a reply nobody told us of is made again after this.
const PAUSE: Duration = Duration::from_millis(250);
/// How often a request is made before it is given up.
const MAX_TRIES: u8 = 3;
/// Requests that may wait.
const MAX_WAITING: usize = 64;
/// What the ids of our requests begin with.
const PREFIX: &str = "reply-";

/// A request for a reply.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// The session's number for it.
    pub(super) request: Option<u64>,
    /// How the server is asked.
    pub(super) ask: Ask,
    tries: u8,
}

/// How the server is asked for a reply.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// By `response.create`: how the reply is to differ from the session.
    Response(Box<ResponseParams>),
    /// By an item that is spoken as it is.
    Forced(Value),
}

impl Default for Ask {
    fn default() -> Self {
        Self::Response(Box::default())
    }
}

impl Wanted {
    pub(super) fn new(request: Option<u64>, params: ResponseParams) -> Self {
        Self { request, ask: Ask::Response(Box::new(params)), tries: 0 }
    }

    /// A text that is spoken as it is.
    pub(super) fn forced(request: u64, text: &str) -> Self {
        let content = json!([{"type": "output_text", "text": text}]);
        let item = json!({"type": "force_message", "role": "assistant", "content": content});
        Self { request: Some(request), ask: Ask::Forced(item), tries: 0 }
    }

    /// Whether the server keeps a mark of the request on its answer.
    pub(super) fn is_marked(&self) -> bool {
        matches!(self.ask, Ask::Response(_))
    }
}

/// A request that was sent and not answered.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) wanted: Wanted,
    /// Our number for it, on the wire as event id and metadata.
    pub(super) number: u64,
    /// The session does not want it any more: stop it when it begins (quirk 13).
    pub(super) cancelled: bool,
    until: Instant,
}

/// All requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: VecDeque<Wanted>,
    pub(super) in_flight: Option<InFlight>,
    not_before: Option<Instant>,
    last: u64,
    /// The server has been seen to return metadata.
    pub(super) metadata_returns: bool,
}

impl Requests {
    /// Queues a request. `false`: too many wait.
    pub(super) fn want(&mut self, wanted: Wanted) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.waiting.push_back(wanted);
        true
    }

    /// The request to send now, if its time has come; there must be no reply.
    pub(super) fn next(&mut self, now: Instant) -> Option<&InFlight> {
        if self.in_flight.is_some() || self.not_before.is_some_and(|at| at > now) {
            return None;
        }
        let mut wanted = self.waiting.pop_front()?;
        self.not_before = None;
        wanted.tries += 1;
        self.last += 1;
        let until = now + ANSWER_WITHIN;
        Some(self.in_flight.insert(InFlight { wanted, number: self.last, cancelled: false, until }))
    }

    /// The server refused because there is a reply: the request waits for its end. `Some`: it has
    /// been tried often enough.
    pub(super) fn put_back(&mut self, now: Instant, reply_is_known: bool) -> Option<Wanted> {
        let in_flight = self.in_flight.take()?;
        if in_flight.cancelled {
            return None;
        }
        if in_flight.wanted.tries >= MAX_TRIES {
            return Some(in_flight.wanted);
        }
        self.waiting.push_front(in_flight.wanted);
        self.not_before = (!reply_is_known).then(|| now + PAUSE);
        None
    }

    /// Takes back what was not sent.
    pub(super) fn take_waiting(&mut self) -> Vec<Wanted> {
        self.waiting.drain(..).collect()
    }

    /// Takes the request that was never answered, if its time is over.
    pub(super) fn take_late(&mut self, now: Instant) -> Option<Wanted> {
        let late = self.in_flight.take_if(|sent| sent.until <= now)?;
        (!late.cancelled).then_some(late.wanted)
    }

    pub(super) fn deadline(&self, reply_is_active: bool) -> Option<Instant> {
        let late = self.in_flight.as_ref().map(|sent| sent.until);
        let waits = self.in_flight.is_none() && !self.waiting.is_empty() && !reply_is_active;
        late.or(self.not_before.filter(|_| waits))
    }
}

/// The id of a request on the wire.
pub(super) fn event_id(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// The number of a request from its id.
pub(super) fn number_of(event_id: &str) -> Option<u64> {
    event_id.strip_prefix(PREFIX)?.parse().ok()
}
