//! What is told to a call from elsewhere than its stream: by webhooks, and by another stream of it.

use antiphon_audio::AudioFormat;
use tokio::sync::mpsc;

use super::link::Link;
use crate::telephony::dialect::{CallStart, CarrierEvent, Dialect};

/// News that wait for a call.
const QUEUE: usize = 8;

/// What is told to a call.
pub(super) enum News {
    /// Its caller is on another stream now.
    Back(Box<Back>),
    /// The dialplan has taken the number that the call is handed on to, and lets it ring.
    Ringing,
    /// The number that it was handed on to has answered, or why it has not.
    Dialled(Result<(), String>),
    /// The carrier has found out who answered; `waits`: a machine's greeting is over.
    AnsweredBy { who: AnsweredBy, waits: bool },
    /// The call itself is over.
    Over,
}

/// Who has answered a call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AnsweredBy {
    /// A person.
    Person,
    /// Voicemail, or a menu.
    Machine,
    /// A fax machine.
    Fax,
    /// Nobody can tell.
    Unknown,
}

/// A stream that goes on with a call.
pub(super) struct Back {
    pub(super) link: Link,
    pub(super) dialect: Box<dyn Dialect>,
    pub(super) start: CallStart,
    /// What came with its start.
    pub(super) early: Vec<CarrierEvent>,
}

/// What the office knows of a call that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) news: mpsc::Sender<News>,
    /// Formats of both directions: another stream must have the same.
    formats: (AudioFormat, AudioFormat),
    pub(super) line: Line,
}

/// Whether a call has a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It has.
    Here,
    /// It was lost, or ended for a while; it may come back.
    Away,
    /// The carrier was told that the caller is to be handed on, and asks to whom.
    Offered {
        /// The number.
        to: String,
    },
    /// The number rings.
    HandedOn,
}

impl Held {
    pub(super) fn new(start: &CallStart) -> (Self, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel(QUEUE);
        (Self { news, formats: (start.input, start.output), line: Line::Here }, receiver)
    }

    /// Whether another stream may go on with the call. `named`: it has shown a token that was made for
    /// this very call.
    pub(super) fn takes(&self, start: &CallStart, named: bool) -> bool {
        (named || self.line != Line::Here) && self.formats == (start.input, start.output)
    }
}
