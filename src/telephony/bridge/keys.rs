//! The keys that a caller presses: to whom they go.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::ControlError;
use crate::telephony::{
    config::Keys,
    media::{Collected, DigitCollector, DigitRules},
};

/// A field's outcome, for the tool that waits for it.
pub(super) type FieldDone = oneshot::Sender<Result<Collected, ControlError>>;

/// What becomes of keys: a tool waits for a field of them, or the model is told, or nobody is.
pub(super) struct KeyPad {
    settings: KeySettings,
    field: Option<(DigitCollector, FieldDone)>,
    /// Keys that the model will be told of, or that belong to the next field.
    told: Option<DigitCollector>,
    /// After a secret field its late keys are swallowed for a while.
    swallow_until: Option<Instant>,
}

/// How a call treats its keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySettings {
    pub(super) keys: Keys,
    pub(super) interrupt: bool,
    /// All fields are secret, whatever the model says, and keys are told to nobody.
    pub(super) secret: bool,
    /// For how long a further key is waited for before the model is told.
    pub(super) between: Duration,
}

impl KeyPad {
    pub(super) fn new(settings: KeySettings) -> Self {
        Self { settings, field: None, told: None, swallow_until: None }
    }

    /// A key was pressed; whether the agent is to stop for it.
    pub(super) fn press(&mut self, digit: char, now: Instant) -> bool {
        if self.swallow_until.is_some_and(|until| now < until) && self.field.is_none() {
            return false;
        }
        if let Some((field, _)) = &mut self.field {
            let first = field.digits().is_empty();
            let is_key = field.rules().terminator != Some(digit);
            let interrupts = field.rules().interrupts.unwrap_or(self.settings.interrupt);
            field.press(digit, now);
            return first && is_key && interrupts;
        }
        match self.settings.keys {
            // They are kept all the same, for a field that a tool is about to wait for.
            Keys::Tell => {
                let rules = DigitRules {
                    terminator: None,
                    between: self.settings.between,
                    ..DigitRules::default()
                };
                let first = self.told.is_none();
                let told = self.told.get_or_insert_with(|| DigitCollector::new(rules, now));
                told.press(digit, now);
                if digit == '#' {
                    told.finish();
                }
                first && digit != '#' && self.settings.interrupt
            }
            Keys::Ignore => self.settings.interrupt,
        }
    }

    /// A tool waits for a field. Keys that were pressed ahead of it belong to it.
    pub(super) fn collect(&mut self, mut rules: DigitRules, done: FieldDone, now: Instant) {
        rules.secret |= self.settings.secret;
        let mut field = DigitCollector::new(rules, now);
        if let Some(told) = self.told.take() {
            told.digits().chars().for_each(|digit| field.press(digit, now));
        }
        if let Some((_, before)) = self.field.replace((field, done)) {
            // The tool may have been cancelled.
            let _ = before.send(Err(ControlError::Replaced));
        }
    }

    /// Hands over a field that is complete; returns what the model is to be told. `asking`: the caller
    /// still hears the question, so nothing can be late.
    pub(super) fn settle(&mut self, asking: bool, now: Instant) -> Option<String> {
        if self.field.as_ref().is_some_and(|(_, done)| done.is_closed()) {
            // The tool was cancelled: what was pressed is nobody's.
            self.field = None;
        }
        if let Some((field, _)) = &mut self.field {
            if asking {
                field.wait_from(now);
            }
            field.handle_timeout(now);
        }
        if let Some(collected) = self.field.as_ref().and_then(|(field, _)| field.collected())
            && let Some((field, done)) = self.field.take()
        {
            if field.rules().secret {
                self.swallow_until = Some(now + field.rules().between);
            }
            let _ = done.send(Ok(collected));
        }
        let told = self.told.as_mut()?;
        told.handle_timeout(now);
        let keys = told.collected()?.digits;
        self.told = None;
        if keys.is_empty() || self.settings.secret {
            return None;
        }
        let keys: Vec<String> = keys.chars().map(String::from).collect();
        Some(format!("I pressed the keys {}.", keys.join(" ")))
    }

    /// When to call [`KeyPad::settle`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let field = self.field.as_ref().and_then(|(field, _)| field.next_deadline());
        let told = self.told.as_ref().and_then(DigitCollector::next_deadline);
        [field, told].into_iter().flatten().min()
    }

    /// Whether what the caller sends now may hold a secret: tones, or figures that are spoken.
    pub(super) fn is_secret(&self, now: Instant) -> bool {
        self.field.as_ref().is_some_and(|(field, _)| field.rules().secret)
            || self.swallow_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telephony::media::CollectEnd;

    const SETTINGS: KeySettings = KeySettings {
        keys: Keys::Tell,
        interrupt: true,
        secret: false,
        between: Duration::from_millis(1_500),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn field(rules: DigitRules, pad: &mut KeyPad, now: Instant) -> FieldReceiver {
        let (done, outcome) = oneshot::channel();
        pad.collect(rules, done, now);
        outcome
    }

    type FieldReceiver = oneshot::Receiver<Result<Collected, ControlError>>;

    fn got(outcome: &mut FieldReceiver) -> Option<(String, CollectEnd)> {
        outcome.try_recv().ok().map(|field| field.map(|field| (field.digits, field.end)).unwrap())
    }

    #[test]
    fn trial_g08_keys_pressed_ahead_of_the_question_belong_to_its_field() {
        let (mut pad, now) = (KeyPad::new(SETTINGS), Instant::now());
        assert!(pad.press('1', now), "the first key stops the agent");
        assert!(!pad.press('2', now));
        let mut outcome = field(DigitRules::default(), &mut pad, now);
        for digit in "34#".chars() {
            pad.press(digit, now);
        }
        assert_eq!(pad.settle(false, now), None);
        assert_eq!(got(&mut outcome), Some(("1234".into(), CollectEnd::Terminator)));
        assert_eq!(pad.next_deadline(), None);
    }

    #[test]
    fn trial_g08_the_first_key_is_waited_for_from_the_end_of_the_question() {
        let (mut pad, now) = (KeyPad::new(SETTINGS), Instant::now());
        let mut outcome = field(DigitRules::default(), &mut pad, now);
        assert_eq!(pad.settle(true, now + seconds(20)), None);
        assert_eq!(got(&mut outcome), None, "the question is twenty seconds long");
        pad.settle(false, now + seconds(29));
        assert_eq!(got(&mut outcome), None);
        pad.press('5', now + seconds(29));
        pad.settle(false, now + seconds(33));
        assert_eq!(got(&mut outcome), Some(("5".into(), CollectEnd::TimedOut)));
    }

    #[test]
    fn trial_g08_a_single_key_is_told_soon_and_the_hash_key_at_once() {
        let (mut pad, now) = (KeyPad::new(SETTINGS), Instant::now());
        pad.press('1', now);
        assert_eq!(pad.next_deadline(), Some(now + SETTINGS.between));
        let told = pad.settle(false, now + SETTINGS.between);
        assert_eq!(told.as_deref(), Some("I pressed the keys 1."));
        pad.press('#', now);
        assert_eq!(pad.settle(false, now).as_deref(), Some("I pressed the keys #."));
        let quiet = KeySettings { interrupt: false, ..SETTINGS };
        assert!(!KeyPad::new(quiet).press('1', now), "the flag is off");
    }

    #[test]
    fn secret_keys_are_told_to_nobody_before_nor_after_their_field() {
        let (mut pad, now) = (KeyPad::new(SETTINGS), Instant::now());
        let rules = DigitRules { most: 4, secret: true, ..DigitRules::default() };
        let mut outcome = field(rules, &mut pad, now);
        for digit in "123456#".chars() {
            pad.press(digit, now);
            assert!(pad.is_secret(now), "the agent hears silence");
            assert_eq!(pad.settle(false, now), None);
        }
        assert_eq!(got(&mut outcome), Some(("1234".into(), CollectEnd::Full)));
        assert_eq!(pad.settle(false, now + seconds(9)), None, "what came late is swallowed");
        assert!(!pad.is_secret(now + seconds(9)));

        let mut pad = KeyPad::new(KeySettings { secret: true, ..SETTINGS });
        pad.press('7', now);
        assert_eq!(
            pad.settle(false, now + seconds(9)),
            None,
            "no key is told where all are secret"
        );
        let _outcome = field(DigitRules::default(), &mut pad, now);
        assert!(pad.is_secret(now), "whatever the model asked for");
    }

    #[test]
    fn a_field_whose_tool_is_gone_or_replaced_is_over() {
        let (mut pad, now) = (KeyPad::new(SETTINGS), Instant::now());
        let mut first = field(DigitRules::default(), &mut pad, now);
        let second = field(DigitRules::default(), &mut pad, now);
        assert_eq!(first.try_recv().unwrap(), Err(ControlError::Replaced));
        drop(second);
        pad.settle(false, now);
        assert_eq!(pad.next_deadline(), None);
    }
}
