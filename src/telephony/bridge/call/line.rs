//! The line of a call: its stream may end and come back, it is handed on, and the carrier is asked for
//! things, all while the call goes on.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    task::Poll,
    time::{Duration, Instant},
};

use antiphon_audio::AudioFrame;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::{CallEnd, Conversation};
use crate::{
    session::SessionState,
    telephony::{
        bridge::{
            ControlError, HandedOn,
            link::Link,
            news::{Back, Line as Where, News},
            transfer::{Done, Due, Transfer},
        },
        dialect::{Carrier, ControlBy, Dialect, DialectError, Pacing},
        media::Intake,
    },
};

/// A stream that was lost comes back within this time, or the call is over.
const RETURN: Duration = Duration::from_secs(2);
/// A stream that is to come back, because keys were pressed or nobody was reached, does so within this time.
const AWAITED: Duration = Duration::from_secs(16);
/// Where we pace, silence is sent when nothing else was for so long.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Requests that wait for the carrier.
const MAX_REQUESTS: usize = 16;

/// What a call has besides its stream.
pub(super) struct Line {
    pub(super) news: mpsc::Receiver<News>,
    /// To the carrier, one after another.
    pub(super) requests: VecDeque<BoxFuture<'static, Outcome>>,
    transfer: Option<Transfer>,
    /// The carrier is asked to press keys, by which the stream ends and comes back.
    pressing: bool,
    /// The call has no stream, and ends so at this time.
    away: Option<(Instant, CallEnd)>,
    /// The caller hears nothing until then, and is not heard.
    held_until: Option<Instant>,
    /// The caller is not heard.
    muted: bool,
    /// When something was sent last.
    sent_at: Instant,
}

/// What came of a request.
pub(super) enum Outcome {
    Transfer(Result<HandedOn, ControlError>),
    /// Whoever asked has been told; the stream was ended by it, and comes back.
    Told {
        returns: bool,
    },
}

/// The outcome of the first request.
pub(super) fn requested(
    requests: &mut VecDeque<BoxFuture<'static, Outcome>>,
) -> impl Future<Output = Outcome> {
    poll_fn(|cx| {
        let Some(first) = requests.front_mut() else { return Poll::Pending };
        let Poll::Ready(outcome) = first.as_mut().poll(cx) else { return Poll::Pending };
        requests.pop_front();
        Poll::Ready(outcome)
    })
}

impl Line {
    pub(super) fn new(news: mpsc::Receiver<News>, now: Instant) -> Self {
        Self {
            news,
            requests: VecDeque::new(),
            transfer: None,
            pressing: false,
            away: None,
            held_until: None,
            muted: false,
            sent_at: now,
        }
    }

    /// Whether the session is to hear the caller.
    pub(super) fn is_heard(&self) -> bool {
        !self.muted && self.held_until.is_none()
    }

    /// Whether a number rings to which the call is handed on.
    pub(super) fn is_handed_on(&self) -> bool {
        self.transfer.as_ref().is_some_and(Transfer::is_under_way)
    }

    /// Whether the call has a stream.
    pub(super) fn is_here(&self) -> bool {
        self.away.is_none()
    }
}

impl Conversation<'_> {
    /// Hands the call on, once what is said with it was heard.
    pub(super) fn hand_on(&mut self, to: String, done: Done, now: Instant) {
        let refused = match &self.line.transfer {
            Some(_) => Some(ControlError::Refused("the call is being handed on already".into())),
            None => self.office.may_hand_on(self.call.carrier, &self.able, &to).err(),
        };
        if let Some(error) = refused {
            let _ = done.send(Err(error));
            return;
        }
        self.line.transfer = Some(Transfer::new(to, done, now));
    }

    /// Has the carrier press keys.
    pub(super) fn press_keys(&mut self, digits: &str, done: Done, dialect: &mut dyn Dialect) {
        let unsupported = || ControlError::Unsupported(DialectError::Unsupported("keys"));
        match self.able.digits_out {
            ControlBy::Message => {
                let sent = dialect.send_digits(digits, &mut self.out);
                let _ = done.send(sent.map_err(ControlError::Unsupported));
            }
            ControlBy::Rest if self.line.requests.len() < MAX_REQUESTS => {
                let (office, digits) = (self.office.clone(), digits.to_owned());
                let (carrier, start) = (self.call.carrier, self.call.start.clone());
                if carrier != Carrier::Telnyx {
                    // The stream may end, and come back, before the carrier has answered.
                    self.line.pressing = true;
                    self.office.set_line(&self.key(), Where::Away);
                }
                self.line.requests.push_back(Box::pin(async move {
                    if done.is_closed() {
                        return Outcome::Told { returns: false };
                    }
                    let result = office.send_digits(carrier, &start, &digits).await;
                    let returns = result.is_ok() && carrier != Carrier::Telnyx;
                    let _ = done.send(result);
                    Outcome::Told { returns }
                }));
            }
            _ => drop(done.send(Err(unsupported()))),
        }
    }

    /// The caller hears nothing and is not heard for so long at most; zero: no longer.
    pub(super) fn hold(&mut self, time: Duration, now: Instant) {
        self.line.held_until = (!time.is_zero()).then(|| now + time);
        self.settle_voice(now);
    }

    pub(super) fn mute(&mut self, on: bool) {
        self.line.muted = on;
    }

    /// Asterisk gives up an AudioSocket on which nothing has moved for two seconds (22.10: "Reached timeout
    /// after 2000 ms of no activity"), and a caller who is silent may send nothing: silence goes out in
    /// place of nothing. Returns when it is due.
    pub(super) fn keep_alive(
        &mut self,
        dialect: &mut dyn Dialect,
        now: Instant,
    ) -> Result<Option<Instant>, CallEnd> {
        let paced_by_us = matches!(self.able.pacing, Pacing::Us { .. });
        if !paced_by_us || !self.line.is_here() || self.line.is_handed_on() {
            return Ok(None);
        }
        if self.out.is_empty() && now >= self.line.sent_at + KEEP_ALIVE {
            let format = self.call.start.output;
            let samples = format.samples_in(self.able.quantum) as usize;
            let piece = AudioFrame::new(format, vec![0; samples * format.bytes_per_sample()]);
            dialect.audio(&piece.silenced(), &mut self.out)?;
        }
        if !self.out.is_empty() {
            self.line.sent_at = now;
        }
        Ok(Some(self.line.sent_at + KEEP_ALIVE))
    }

    /// What is due of all that; returns when more is.
    pub(super) async fn step_line(
        &mut self,
        link: &mut Link,
        dialect: &mut dyn Dialect,
        now: Instant,
    ) -> Result<Option<Instant>, CallEnd> {
        if self.line.held_until.is_some_and(|until| now >= until) {
            self.hold(Duration::ZERO, now);
        }
        let screening = self.step_screening(now)?;
        let quiet = self.voice.is_idle() && self.session.state() != SessionState::Speaking;
        let transfer = match self.line.transfer.as_mut().map(|transfer| transfer.due(quiet, now)) {
            Some(Due::At(at)) => Some(at),
            Some(Due::Ask) => {
                self.ask(link, dialect, now).await?;
                None
            }
            Some(Due::Dropped) => {
                self.line.transfer = None;
                None
            }
            Some(Due::Unknown) => return Err(self.unknown(link)),
            Some(Due::Nothing) | None => None,
        };
        let away = match &self.line.away {
            // The number that rings has its own time.
            Some(_) if self.line.is_handed_on() => None,
            Some((until, end)) if now >= *until => return Err(end.clone()),
            Some((until, _)) => Some(*until),
            None => None,
        };
        Ok([self.line.held_until, transfer, away, screening].into_iter().flatten().min())
    }

    /// The call was handed on, and nobody has told what became of it.
    fn unknown(&mut self, link: &mut Link) -> CallEnd {
        let offered = self.office.is_offered(&self.key());
        let Some(transfer) = self.line.transfer.take() else { return CallEnd::Transferred };
        if offered {
            let what = "the dialplan did not ask for the number";
            *link = Link::Gone;
            transfer.tell(Err(ControlError::Refused(what.into())));
            return CallEnd::Lost { detail: what.into() };
        }
        transfer.tell(Ok(()));
        CallEnd::Transferred
    }

    /// Asks the carrier to hand the call on.
    async fn ask(
        &mut self,
        link: &mut Link,
        dialect: &mut dyn Dialect,
        now: Instant,
    ) -> Result<(), CallEnd> {
        let Some(transfer) = &mut self.line.transfer else { return Ok(()) };
        transfer.asked();
        let to = transfer.to.clone();
        if self.able.transfer == ControlBy::Closing {
            // The dialplan goes on, and asks for the number: see `Office::next`.
            transfer.offered(now);
            self.office.set_line(&self.key(), Where::Offered { to });
            if dialect.hang_up(&mut self.out).is_ok() {
                let _ = link.send(&mut self.out).await;
            }
            return Ok(());
        }
        let (office, carrier) = (self.office.clone(), self.call.carrier);
        let start = self.call.start.clone();
        self.line.requests.push_back(Box::pin(async move {
            Outcome::Transfer(office.transfer(carrier, &start, &to).await)
        }));
        Ok(())
    }

    /// The carrier has answered a request.
    pub(super) fn answered(&mut self, outcome: Outcome, now: Instant) -> Option<CallEnd> {
        match outcome {
            Outcome::Told { returns } => {
                let pressing = std::mem::take(&mut self.line.pressing);
                match (&mut self.line.away, pressing, returns) {
                    // It has come back by now, or it never was to end.
                    (_, false, _) => {}
                    // The stream ends now, and comes back once the keys were pressed.
                    (away, true, true) => {
                        away.get_or_insert((now + AWAITED, CallEnd::CallerHungUp));
                    }
                    // They were not pressed: nobody has told the stream to end.
                    (None, true, false) => self.office.set_line(&self.key(), Where::Here),
                    (Some((until, _)), true, false) => *until = (*until).min(now + RETURN),
                }
                None
            }
            Outcome::Transfer(Ok(HandedOn::Gone)) => {
                if let Some(transfer) = self.line.transfer.take() {
                    transfer.tell(Ok(()));
                }
                Some(CallEnd::Transferred)
            }
            Outcome::Transfer(Ok(HandedOn::Ringing)) => {
                if let Some(transfer) = &mut self.line.transfer {
                    transfer.rings(now);
                    self.office.set_line(&self.key(), Where::HandedOn);
                }
                None
            }
            Outcome::Transfer(Err(error)) => {
                if let Some(transfer) = self.line.transfer.take() {
                    transfer.tell(Err(error));
                }
                // The stream may have ended for another reason meanwhile.
                None
            }
        }
    }

    /// Something is told from elsewhere.
    pub(super) fn told(
        &mut self,
        news: News,
        link: &mut Link,
        dialect: &mut Box<dyn Dialect>,
        now: Instant,
    ) -> Option<CallEnd> {
        match news {
            News::Over => Some(CallEnd::CallerHungUp),
            News::AnsweredBy { who, waits } => self.answered_by(who, waits, now).err(),
            News::Ringing => {
                if let Some(transfer) = &mut self.line.transfer {
                    transfer.rings(now);
                }
                None
            }
            News::Dialled(Ok(())) => {
                let transfer = self.line.transfer.take()?;
                transfer.tell(Ok(()));
                Some(CallEnd::Transferred)
            }
            News::Dialled(Err(why)) => {
                self.refused(why, now);
                None
            }
            News::Back(back) => self.back(*back, link, dialect, now).err(),
        }
    }

    /// Nobody answers where the call was handed on to: the agent has it again.
    fn refused(&mut self, why: String, now: Instant) {
        if let Some(transfer) = self.line.transfer.take() {
            transfer.tell(Err(ControlError::NotReached(why)));
        }
        if let Some((until, _)) = &mut self.line.away {
            *until = now + AWAITED;
            self.office.set_line(&self.key(), Where::Away);
        }
    }

    /// The caller is on another stream now.
    fn back(
        &mut self,
        back: Back,
        link: &mut Link,
        dialect: &mut Box<dyn Dialect>,
        now: Instant,
    ) -> Result<(), CallEnd> {
        let Back { link: new, dialect: its, start, early } = back;
        let old = std::mem::replace(link, new);
        if !matches!(old, Link::Gone) {
            // The old stream has nothing to say any more. Closing takes a bounded time.
            tokio::spawn(old.close(1000, "on another stream"));
        }
        *dialect = its;
        self.record.returns += 1;
        self.record.intake += self.intake.stats();
        self.intake = Intake::new(start.input, &self.able);
        self.media_at = now;
        self.line.away = None;
        self.line.pressing = false;
        self.voice.set_open(true);
        self.out.clear();
        self.stalled_since = None;
        self.office.set_line(&self.key(), Where::Here);
        if self.line.is_handed_on() {
            let why = start.parameters.get("transfer").cloned();
            self.refused(why.unwrap_or_else(|| "the call came back".into()), now);
        }
        self.call.start.stream_id = start.stream_id;
        // What the carrier had of the old stream is gone.
        self.voice.hold(true, now);
        self.settle_voice(now);
        for event in early {
            self.carrier(event, now)?;
        }
        Ok(())
    }

    /// The stream is over. `None`: the call goes on without one for a while.
    pub(super) fn stream_ended(
        &mut self,
        end: CallEnd,
        link: &mut Link,
        now: Instant,
    ) -> Option<CallEnd> {
        if matches!(link, Link::Gone) {
            // It is the time to come back that is over.
            return Some(end);
        }
        let handed_on = self.line.is_handed_on();
        let lost = matches!(end, CallEnd::Lost { .. });
        let over = matches!(end, CallEnd::CallerHungUp);
        // Telnyx keeps the stream while the other number rings: its end is the caller's.
        let by_transfer = handed_on && self.call.carrier != Carrier::Telnyx;
        let returns = match &self.line.away {
            // Keys are being pressed: the stream's end was told before.
            Some(_) => lost || over,
            None if by_transfer || self.line.pressing => lost || over,
            // Asterisk does not open an AudioSocket again.
            None => lost && self.call.carrier != Carrier::AudioSocket && self.ending.is_none(),
        };
        if !returns {
            return Some(end);
        }
        *link = Link::Gone;
        if self.line.away.is_none() {
            let within = if self.line.pressing { AWAITED } else { RETURN };
            self.line.away = Some((now + within, end));
            if !handed_on {
                self.office.set_line(&self.key(), Where::Away);
            }
        }
        self.settle_voice(now);
        None
    }

    /// The caller speaks while he is told that he will be handed on: he is not.
    pub(super) fn interrupted(&mut self) {
        if self.line.transfer.as_ref().is_some_and(|transfer| !transfer.is_under_way())
            && let Some(transfer) = self.line.transfer.take()
        {
            transfer.tell(Err(ControlError::Interrupted));
        }
    }

    /// The agent is heard by a caller who has a stream and is not on hold.
    pub(super) fn settle_voice(&mut self, now: Instant) {
        let held =
            !self.line.is_here() || self.line.held_until.is_some() || self.screening.is_some();
        self.voice.hold(held, now);
    }

    pub(super) fn key(&self) -> (Carrier, String) {
        (self.call.carrier, self.call.start.call_id.clone())
    }
}
