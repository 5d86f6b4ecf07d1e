//! Who answers a call that was made: until that is known the agent is silent, and hears nothing.

use std::time::{Duration, Instant};

use antiphon_audio::{AudioFormat, AudioFrame};

use super::{CallEnd, Conversation, ending::Ending};
use crate::{
    session::SayOptions,
    telephony::{
        bridge::AnsweredBy,
        media::{AnsweringEar, Greeted},
        outbound::{Detect, OnMachine},
    },
};

/// Whoever has not been told from a person within this time is one.
const UNDECIDED: Duration = Duration::from_secs(8);
/// A carrier's own detection has told by then: Twilio's gives up after 30 s, and says so.
const TELLS: Duration = Duration::from_secs(35);
/// A machine's greeting is over by then.
const GREETING: Duration = Duration::from_secs(60);
/// A message begins within this time.
const BEGINS: Duration = Duration::from_secs(15);
/// What a model without a greeting is told: it has not heard who answered.
const ANSWERED: &str = "(Somebody has answered the call. Speak first.)";
/// What a model is told that is to speak with a machine.
const TOLD: &str = "(A machine has answered the call: voicemail or a menu. Its greeting is over.)";

/// A call of which it is not known yet who has answered.
pub(super) struct Screening {
    ear: Option<AnsweringEar>,
    until: Instant,
    /// It is a machine, and this is done once its greeting is over.
    machine: Option<OnMachine>,
}

impl Screening {
    pub(super) fn new(detect: Detect, format: AudioFormat, now: Instant) -> Self {
        let ear = (detect == Detect::Listen).then(|| AnsweringEar::new(format));
        let until = now + if ear.is_some() { UNDECIDED } else { TELLS };
        Self { ear, until, machine: None }
    }
}

impl Conversation<'_> {
    /// A call that was made begins with somebody who may be a machine.
    pub(super) fn begin_screening(&mut self, now: Instant) {
        if let Some(detect) = self.office.detects(&self.call.start, self.call.carrier) {
            self.screening = Some(Screening::new(detect, self.call.start.input, now));
            self.settle_voice(now);
            let told = self.office.told_early(&self.key());
            self.told_early = told.filter(|_| detect == Detect::Carrier);
        }
    }

    /// Listens to who has answered; whether the session is not to hear it.
    pub(super) fn screen(&mut self, audio: &AudioFrame) -> bool {
        let Some(screening) = &mut self.screening else { return false };
        if let Some(told) = screening.ear.as_mut().and_then(|ear| ear.hear(audio)) {
            self.greeted = Some(told);
        }
        true
    }

    pub(super) fn step_screening(&mut self, now: Instant) -> Result<Option<Instant>, CallEnd> {
        // The agent is asked once there is a session that can speak.
        if self.running
            && let Some((who, waits)) = self.told_early.take()
        {
            self.answered_by(who, waits, now)?;
        }
        match self.greeted.take() {
            Some(Greeted::Person) => self.answered_by(AnsweredBy::Person, false, now)?,
            Some(Greeted::Machine) => self.answered_by(AnsweredBy::Machine, false, now)?,
            Some(Greeted::MachineWaits) => self.answered_by(AnsweredBy::Machine, true, now)?,
            None => {}
        }
        let Some(screening) = &self.screening else { return Ok(None) };
        if now < screening.until {
            return Ok(Some(screening.until));
        }
        match screening.machine {
            Some(_) => self.answered_by(AnsweredBy::Machine, true, now)?,
            // Once there is a session.
            None if !self.running => return Ok(None),
            None => self.answered_by(AnsweredBy::Unknown, false, now)?,
        }
        Ok(self.screening.as_ref().map(|screening| screening.until))
    }

    /// It is known who has answered. `waits`: a machine's greeting is over.
    pub(super) fn answered_by(
        &mut self,
        who: AnsweredBy,
        waits: bool,
        now: Instant,
    ) -> Result<(), CallEnd> {
        let Some(screening) = &mut self.screening else { return Ok(()) };
        if !self.running && matches!(who, AnsweredBy::Person | AnsweredBy::Unknown) {
            // There is nobody yet who could speak with a person.
            self.told_early = Some((who, waits));
            return Ok(());
        }
        if screening.machine.is_none() {
            self.record.answered_by = Some(who);
            let wished = self.office.agent().answered_by(&self.call, who);
            if !matches!(who, AnsweredBy::Machine | AnsweredBy::Fax) {
                self.screening = None;
                self.settle_voice(now);
                let silent = self.greeting.is_none();
                self.greet();
                if silent {
                    // Whoever has answered has said so already, and was not heard.
                    let _ = self.session.send_text(ANSWERED);
                }
                return Ok(());
            }
            let what = wished.unwrap_or_else(|| self.office.on_machine());
            if who == AnsweredBy::Fax || what == OnMachine::HangUp {
                return Err(CallEnd::Machine);
            }
            screening.machine = Some(what);
            screening.until = now + GREETING;
        }
        if !waits {
            return Ok(());
        }
        let what = screening.machine.take();
        self.screening = None;
        self.greeting = None;
        self.settle_voice(now);
        match what {
            Some(OnMachine::Message(message)) => {
                // Nobody is there whom it could hear.
                self.mute(true);
                let mut options = SayOptions::new();
                options.protected = Some(crate::session::UserAudio::Drop);
                if self.session.say_with(message.as_str(), options).is_err() {
                    return Err(CallEnd::Machine);
                }
                self.ending = Some(Ending::new(Some(BEGINS), now));
            }
            _ => {
                let _ = self.session.send_text(TOLD);
            }
        }
        Ok(())
    }

    /// Says the greeting, once.
    pub(super) fn greet(&mut self) {
        if self.screening.is_some() {
            return;
        }
        if let Some((text, options)) = self.greeting.take()
            && let Err(error) = self.session.say_with(text.as_str(), options)
        {
            tracing::warn!(%error, "no greeting");
        }
    }
}
