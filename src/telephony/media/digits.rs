//! Keys that a caller presses, gathered into a field.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::telephony::dialect::is_digit;

/// What a field of keys is like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DigitRules {
    /// So many keys at most; with the last one the field is complete. 1 to 64. Default: 16.
    pub most: usize,
    /// So many at least, for the field to be complete by its terminator. Default: 1.
    pub least: usize,
    /// The key that ends the field and is no part of it. Default: `#`.
    pub terminator: Option<char>,
    /// How long the first key is waited for. Default: 10 s.
    pub first: Duration,
    /// How long each further key is waited for. Default: 4 s.
    pub between: Duration,
    /// The keys are nobody's business: while they are waited for, and for `between` after that, the
    /// agent hears silence, and keys that come too late are swallowed. Default: false.
    pub secret: bool,
    /// The first key stops the agent's speech. `None`: as the call has it for all keys.
    pub interrupts: Option<bool>,
}

impl Default for DigitRules {
    fn default() -> Self {
        Self {
            most: 16,
            least: 1,
            terminator: Some('#'),
            first: Duration::from_secs(10),
            between: Duration::from_secs(4),
            secret: false,
            interrupts: None,
        }
    }
}

/// Gathers keys into a field.
pub struct DigitCollector {
    rules: DigitRules,
    digits: String,
    due: Instant,
    end: Option<CollectEnd>,
}

/// A field.
#[derive(Clone, PartialEq, Eq)]
pub struct Collected {
    /// The keys, without the terminator.
    pub digits: String,
    /// How it ended.
    pub end: CollectEnd,
    /// They are nobody's business ([`DigitRules::secret`]).
    pub secret: bool,
}

/// How a field ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CollectEnd {
    /// The terminator was pressed.
    Terminator,
    /// It is full.
    Full,
    /// No further key came in time.
    TimedOut,
    /// The terminator came before enough keys, or no key came at all.
    TooShort,
}

/// No key is waited for longer.
const LONGEST: Duration = Duration::from_secs(86_400);

impl DigitCollector {
    /// Waits for the first key from `now`.
    pub fn new(mut rules: DigitRules, now: Instant) -> Self {
        rules.first = rules.first.min(LONGEST);
        rules.between = rules.between.min(LONGEST);
        let due = now + rules.first;
        Self { rules, digits: String::new(), due, end: None }
    }

    /// A key was pressed. Keys that telephones do not have, and keys after the end, are left out.
    pub fn press(&mut self, digit: char, now: Instant) {
        if self.end.is_some() || !is_digit(digit) {
            return;
        }
        if self.rules.terminator == Some(digit) {
            let enough = self.digits.len() >= self.rules.least;
            self.end = Some(if enough { CollectEnd::Terminator } else { CollectEnd::TooShort });
            return;
        }
        self.digits.push(digit);
        self.due = now + self.rules.between;
        if self.digits.len() >= self.rules.most.clamp(1, 64) {
            self.end = Some(CollectEnd::Full);
        }
    }

    /// Time went on.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.end.is_none() && now >= self.due {
            let enough = self.digits.len() >= self.rules.least && !self.digits.is_empty();
            self.end = Some(if enough { CollectEnd::TimedOut } else { CollectEnd::TooShort });
        }
    }

    /// The question is still being asked: the first key is waited for from `now`.
    pub fn wait_from(&mut self, now: Instant) {
        if self.digits.is_empty() && self.end.is_none() {
            self.due = now + self.rules.first;
        }
    }

    /// The field ends here, with what there is.
    pub fn finish(&mut self) {
        if self.end.is_none() {
            let enough = self.digits.len() >= self.rules.least && !self.digits.is_empty();
            self.end = Some(if enough { CollectEnd::TimedOut } else { CollectEnd::TooShort });
        }
    }

    /// What was pressed so far.
    pub fn digits(&self) -> &str {
        &self.digits
    }

    /// The rules of the field.
    pub fn rules(&self) -> &DigitRules {
        &self.rules
    }

    /// When to call [`DigitCollector::handle_timeout`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.end.is_none().then_some(self.due)
    }

    /// The field, once it has ended.
    pub fn collected(&self) -> Option<Collected> {
        let secret = self.rules.secret;
        self.end.map(|end| Collected { digits: self.digits.clone(), end, secret })
    }
}

/// The keys may be a secret number: only their count is shown.
impl fmt::Debug for DigitCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format_args!("{} keys", self.digits.len());
        f.debug_struct("DigitCollector").field("digits", &digits).finish_non_exhaustive()
    }
}

/// As above.
impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected")
            .field("digits", &format_args!("{} keys", self.digits.len()))
            .field("end", &self.end)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(keys: &str, rules: DigitRules) -> Option<Collected> {
        let now = Instant::now();
        let mut collector = DigitCollector::new(rules, now);
        keys.chars().for_each(|key| collector.press(key, now));
        collector.collected()
    }

    #[test]
    fn a_field_ends_by_its_terminator_by_its_length_or_by_time() {
        let ended = |keys, rules| after(keys, rules).map(|field| (field.digits, field.end));
        let terminator = Some(("1234".to_owned(), CollectEnd::Terminator));
        assert_eq!(ended("1234#9", DigitRules::default()), terminator);
        let four = DigitRules { most: 4, ..DigitRules::default() };
        assert_eq!(ended("12345", four), Some(("1234".to_owned(), CollectEnd::Full)));
        let none = DigitRules { terminator: None, ..DigitRules::default() };
        assert_eq!(ended("12#", none.clone()), None);
        assert_eq!(ended("#", DigitRules::default()), Some((String::new(), CollectEnd::TooShort)));

        let now = Instant::now();
        let mut collector = DigitCollector::new(none, now);
        collector.press('7', now + Duration::from_secs(9));
        assert_eq!(collector.next_deadline(), Some(now + Duration::from_secs(13)));
        collector.handle_timeout(now + Duration::from_secs(12));
        assert_eq!(collector.collected(), None);
        collector.handle_timeout(now + Duration::from_secs(13));
        assert_eq!(collector.collected().unwrap().end, CollectEnd::TimedOut);
    }

    #[test]
    fn what_a_caller_pressed_is_in_no_log() {
        let field = after("4711#", DigitRules::default()).unwrap();
        assert!(!format!("{field:?}").contains("4711"));
    }
}
