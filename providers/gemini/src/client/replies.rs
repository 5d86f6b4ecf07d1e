//! The reply that is being made. The wire has none: it is what the model says from its first sign
//! to the end of its turn.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{ReplyId, ReplyOutcome};
use antiphon_types::AudioFormat;

/// The end of a turn is waited for this long after its voice would have been heard.
const AFTER_VOICE: Duration = Duration::from_secs(3);
/// Once the server has said that a turn is interrupted, what still comes of it comes within this
/// time (quirk 54), and so does its end. An answer to whatever interrupted it comes later: that takes
/// speech and thought. So if the end is lost (quirk 51), nothing of the answer is.
pub(super) const AFTER_INTERRUPTION: Duration = Duration::from_millis(500);
/// Where only this side knows yet that the user interrupts, the server's word is waited for this long.
pub(super) const BEFORE_INTERRUPTION: Duration = Duration::from_secs(2);
/// A request stops what is being said. If the server does not say so, that is believed after this
/// time.
pub(super) const AFTER_REQUEST: Duration = Duration::from_secs(2);
/// A model that waits for a tool says nothing more; words on their way get this long. Some end the
/// turn before (quirk 66).
pub(super) const AFTER_CALL: Duration = Duration::from_millis(200);
/// A model that need not wait for a tool may go on; nothing for this long says that it does not.
pub(super) const AFTER_QUIET_CALL: Duration = Duration::from_secs(2);
/// The next piece of a call's arguments is waited for this long.
pub(super) const AFTER_PIECE: Duration = Duration::from_secs(10);
/// What still comes of a turn that was given up is dropped for so long after its voice would have
/// been heard.
const REMAINS: Duration = Duration::from_secs(5);

/// A reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: ReplyId,
    pub(super) item: Arc<str>,
    began: Instant,
    /// Voice that came, in bytes.
    bytes: u64,
    /// Half a sample that came at the end of a frame.
    pub(super) carry: Option<u8>,
    /// Words of the voice, for telling what comes twice.
    pub(super) spoken: String,
    /// Words of the voice were told, and not that they are complete.
    pub(super) speaks: bool,
    /// Likewise of what is written.
    pub(super) writes: bool,
    /// The model has said all.
    pub(super) generated: bool,
    /// The user spoke: no more of it passes.
    pub(super) interrupted: bool,
    /// It holds a call that the model waits for.
    pub(super) waits_for_tool: bool,
    /// When it is ended here, if the server does not.
    pub(super) end_by: Option<Instant>,
}

/// What still comes of a reply that was given up here.
#[derive(Debug)]
pub(super) struct Remains {
    /// Nothing of it comes any more.
    pub(super) until: Instant,
    /// The model has said all of it: what it says now is something else.
    pub(super) generated: bool,
    /// Something was asked for since, which stops it.
    pub(super) stopped: bool,
}

impl Remains {
    /// So much more of its voice came: the wire knows no cancelling, and the server may go on for long.
    pub(super) fn go_on(&mut self, voice: Duration, now: Instant) {
        if !self.stopped {
            self.until = self.until.max(now + REMAINS) + voice;
        }
    }
}

impl Reply {
    pub(super) fn new(id: ReplyId, now: Instant) -> Self {
        Self {
            item: id.0.clone(),
            id,
            began: now,
            bytes: 0,
            carry: None,
            spoken: String::new(),
            speaks: false,
            writes: false,
            generated: false,
            interrupted: false,
            waits_for_tool: false,
            end_by: None,
        }
    }

    /// How it ends, if nothing else is said of that.
    pub(super) fn outcome(&self) -> ReplyOutcome {
        if self.interrupted { ReplyOutcome::Interrupted } else { ReplyOutcome::Completed }
    }

    /// Voice came.
    pub(super) fn voice(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// The model has said all. The server tells the end when the voice would have been heard.
    pub(super) fn all_said(&mut self, format: AudioFormat, now: Instant) {
        self.generated = true;
        if !self.waits_for_tool {
            self.end_by = Some(self.heard_at(format).max(now) + AFTER_VOICE);
        }
    }

    /// Until when something of it may still come after it was given up.
    pub(super) fn remains_until(&self, format: AudioFormat, now: Instant) -> Instant {
        self.heard_at(format).max(now) + REMAINS
    }

    /// When its voice would have been heard, had it been played from the first piece on.
    fn heard_at(&self, format: AudioFormat) -> Instant {
        let samples = self.bytes / format.bytes_per_sample() as u64;
        self.began + format.duration_of(samples)
    }
}
