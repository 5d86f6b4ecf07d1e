//! What is left of a call.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use super::{AnsweredBy, office::Office};
use crate::{
    session::{EndReason, EventKind, SessionEvent, SessionStats},
    telephony::{
        dialect::{CallStart, Carrier, DialectError},
        media::{IntakeStats, PlayoutStats},
    },
};

/// The record of a call. It holds no words, no keys and no whole numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CallRecord {
    /// The carrier.
    pub carrier: &'static str,
    /// The carrier's name of the call; empty where that was never told.
    pub call_id: String,
    /// The session, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The tenant, where the call had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The last four figures of who called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The last four figures of who was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// When the stream was opened, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// How long it stood.
    pub duration_ms: u64,
    /// Why it ended.
    #[serde(flatten)]
    pub end: CallEnd,
    /// Milliseconds of the agent's voice that were heard.
    pub heard_ms: u64,
    /// Milliseconds of it that came from the provider, of replies of which anything was heard.
    pub generated_ms: u64,
    /// Keys that were pressed.
    pub keys: u64,
    /// Who answered a call that was made, where that was found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<AnsweredBy>,
    /// How often the call went on with another stream.
    pub returns: u64,
    /// Messages of the carrier without a meaning.
    pub ignored: u64,
    /// Errors that the carrier told.
    pub carrier_errors: u64,
    /// From the caller.
    pub intake: IntakeStats,
    /// To the caller.
    pub playout: PlayoutStats,
    /// The session's counters, the usage among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionStats>,
    /// Somebody has shown that there is such a call.
    #[serde(skip)]
    pub(super) authorised: bool,
}

/// Why a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallEnd {
    /// The caller, or the carrier, hung up.
    CallerHungUp,
    /// The agent did, by its tool.
    AgentHungUp,
    /// The call was handed on.
    Transferred,
    /// The session ended: by its limits, or because it could not go on.
    SessionEnded {
        /// The session's reason.
        #[serde(rename = "session_reason")]
        reason: EndReason,
    },
    /// The carrier sent what it must not.
    Malformed {
        /// The code that the socket was closed with.
        close_code: u16,
        /// What it was.
        detail: String,
    },
    /// The socket was lost.
    Lost {
        /// How.
        detail: String,
    },
    /// The line carried no audio.
    NoMedia,
    /// The stream did not tell its call in time.
    NeverStarted,
    /// The stream had no right to the call.
    Unauthorized {
        /// What was wrong.
        detail: String,
    },
    /// The call has a stream already.
    SecondStream,
    /// As many calls as may be.
    Busy,
    /// The bridge itself failed.
    Failed {
        /// How.
        detail: String,
    },
    /// Nobody answered.
    NoAnswer {
        /// Why.
        detail: String,
    },
    /// The call was as long as it may be.
    TooLong,
    /// A machine answered a call that was made, and nothing was to be said to it.
    Machine,
    /// Nobody was reached by a call that was made.
    NotReached {
        /// The carrier's word for it.
        why: String,
    },
    /// The bridge was stopped.
    Drained,
}

impl CallEnd {
    /// The code that a WebSocket is closed with (RFC 6455, section 7.4.1).
    pub fn close_code(&self) -> u16 {
        match self {
            Self::CallerHungUp
            | Self::AgentHungUp
            | Self::Transferred
            | Self::SessionEnded { .. }
            | Self::Machine
            | Self::NotReached { .. }
            | Self::TooLong => 1000,
            Self::Drained => 1001,
            Self::Malformed { close_code, .. } => *close_code,
            Self::Unauthorized { .. } | Self::SecondStream | Self::NeverStarted | Self::NoMedia => {
                1008
            }
            Self::Lost { .. } | Self::NoAnswer { .. } | Self::Failed { .. } => 1011,
            Self::Busy => 1013,
        }
    }

    /// Whether somebody may still be on the line when the stream is over, who has to be hung up on.
    /// A stream that had no right to its call leaves the call alone.
    pub(super) fn leaves_line(&self) -> bool {
        !matches!(
            self,
            Self::CallerHungUp
                | Self::Transferred
                | Self::NotReached { .. }
                | Self::SecondStream
                | Self::Unauthorized { .. }
                | Self::NeverStarted
        )
    }

    /// In a few words, for the close frame.
    pub fn words(&self) -> &'static str {
        match self {
            Self::CallerHungUp => "the caller hung up",
            Self::AgentHungUp => "the agent hung up",
            Self::Failed { .. } => "the bridge failed",
            Self::Transferred => "handed on",
            Self::SessionEnded { .. } => "the session ended",
            Self::Malformed { .. } => "a malformed message",
            Self::Lost { .. } => "the socket was lost",
            Self::NoMedia => "no media",
            Self::NeverStarted => "the stream did not start",
            Self::Unauthorized { .. } => "not authorised",
            Self::SecondStream => "the call has a stream already",
            Self::Busy => "too many calls",
            Self::NoAnswer { .. } => "nobody answered",
            Self::TooLong => "the call is too long",
            Self::Machine => "a machine answered",
            Self::NotReached { .. } => "nobody was reached",
            Self::Drained => "the bridge is stopped",
        }
    }
}

impl From<DialectError> for CallEnd {
    fn from(error: DialectError) -> Self {
        Self::Malformed { close_code: error.close_code(), detail: error.to_string() }
    }
}

impl CallRecord {
    pub(super) fn new(carrier: Carrier) -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            carrier: carrier.name(),
            call_id: String::new(),
            session_id: None,
            tenant: None,
            from: None,
            to: None,
            began_unix_ms: since_1970.unwrap_or_default().as_millis() as u64,
            duration_ms: 0,
            end: CallEnd::NeverStarted,
            heard_ms: 0,
            generated_ms: 0,
            keys: 0,
            answered_by: None,
            returns: 0,
            ignored: 0,
            carrier_errors: 0,
            intake: IntakeStats::default(),
            playout: PlayoutStats::default(),
            session: None,
            authorised: true,
        }
    }

    pub(super) fn started(&mut self, start: &CallStart) {
        self.named(&start.call_id, start.from.as_deref(), start.to.as_deref());
    }

    pub(super) fn named(&mut self, call_id: &str, from: Option<&str>, to: Option<&str>) {
        self.call_id = call_id.chars().take(128).collect();
        self.from = from.map(last_four);
        self.to = to.map(last_four);
    }

    pub(super) fn event(&mut self, event: &SessionEvent) {
        match &event.kind {
            EventKind::AgentMessage { heard: Some(heard), .. } => {
                self.heard_ms += u64::from(heard.heard_ms);
                self.generated_ms += u64::from(heard.generated_ms);
            }
            EventKind::SessionEnded { stats, .. } => self.session = Some((**stats).clone()),
            _ => {}
        }
    }

    pub(super) fn ended(&mut self, end: CallEnd, duration: Duration) {
        self.end = end;
        self.duration_ms = duration.as_millis() as u64;
    }
}

/// A record that is written in any case, by whoever ends the call or, where its task fails, by itself.
pub(super) struct Recorded {
    office: Arc<Office>,
    record: Option<CallRecord>,
    /// Stands in for a record that was taken.
    spare: CallRecord,
}

impl Recorded {
    pub(super) fn new(office: &Arc<Office>, carrier: Carrier) -> Self {
        let record = Some(CallRecord::new(carrier));
        Self { office: office.clone(), record, spare: CallRecord::new(carrier) }
    }

    /// The record, which is somebody else's to write.
    pub(super) fn taken(mut self) -> CallRecord {
        self.record.take().unwrap_or_else(|| self.spare.clone())
    }
}

impl Deref for Recorded {
    type Target = CallRecord;

    fn deref(&self) -> &CallRecord {
        self.record.as_ref().unwrap_or(&self.spare)
    }
}

impl DerefMut for Recorded {
    fn deref_mut(&mut self) -> &mut CallRecord {
        self.record.as_mut().unwrap_or(&mut self.spare)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            let detail = "the call's task did not come to its end".into();
            record.ended(CallEnd::Failed { detail }, Duration::ZERO);
            self.office.record(record);
        }
    }
}

fn last_four(number: &str) -> String {
    let figures: Vec<char> = number.chars().filter(char::is_ascii_digit).collect();
    figures[figures.len().saturating_sub(4)..].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_no_whole_number() {
        let mut record = CallRecord::new(Carrier::Twilio);
        let format = antiphon_audio::AudioFormat::Mulaw8k;
        let mut start = CallStart::new("CA1", format, format);
        start.from = Some("+1 (415) 867-5309".into());
        record.started(&start);
        record.ended(CallEnd::NoAnswer { detail: "late".into() }, Duration::from_secs(2));
        let line = serde_json::to_value(&record).unwrap();
        assert_eq!(line["from"], "5309");
        assert_eq!((&line["reason"], &line["duration_ms"]), (&"no_answer".into(), &2_000.into()));
    }
}
