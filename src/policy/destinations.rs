//! Which numbers may be called.

use antiphon_agent::{Denial, Verdict};
use antiphon_types::ToolCall;
use serde_json::Value;

use super::{Policy, PolicyContext, PolicyError, money::Field, pattern::ToolPattern};

/// Denies calls of some tools to telephone numbers that no prefix allows.
///
/// A number is written by [E.164](https://www.itu.int/rec/T-REC-E.164): a plus and 7 to 15 digits,
/// nothing between them. Of all prefixes that fit it the longest decides; without one it is denied.
///
/// ```
/// use antiphon::policy::Destinations;
///
/// # fn main() -> Result<(), antiphon::policy::PolicyError> {
/// let germany_but_no_premium_numbers =
///     Destinations::new("numbers", "dial", "to")?.allow("+49")?.deny("+49900")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Destinations {
    id: String,
    tools: ToolPattern,
    field: Field,
    prefixes: Vec<(String, bool)>,
}

impl Destinations {
    /// The numbers that these tools have in the argument `field`: its name, or a JSON pointer. It may
    /// be a list of numbers.
    pub fn new(id: &str, tools: &str, field: &str) -> Result<Self, PolicyError> {
        let tools = super::pattern_of(id, tools)?;
        Ok(Self { id: id.to_owned(), tools, field: Field::new(field), prefixes: Vec::new() })
    }

    /// Numbers that begin so may be called.
    pub fn allow(self, prefix: &str) -> Result<Self, PolicyError> {
        self.with(prefix, true)
    }

    /// Numbers that begin so may not be called.
    pub fn deny(self, prefix: &str) -> Result<Self, PolicyError> {
        self.with(prefix, false)
    }

    fn with(mut self, prefix: &str, allowed: bool) -> Result<Self, PolicyError> {
        let digits = prefix.strip_prefix('+').unwrap_or_default();
        let whole = !digits.starts_with('0') && digits.len() <= MAX_DIGITS;
        if digits.is_empty() || !whole || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let reason = format!("{prefix:?} is no beginning of a number such as \"+49\"");
            return Err(PolicyError::of(&self.id, reason));
        }
        if self.prefixes.iter().any(|(known, was)| known == prefix && *was != allowed) {
            let reason = format!("{prefix:?} is both allowed and denied");
            return Err(PolicyError::of(&self.id, reason));
        }
        self.prefixes.push((prefix.to_owned(), allowed));
        Ok(self)
    }

    fn refusal(&self, value: &Value) -> Option<&'static str> {
        let Some(number) = value.as_str().filter(|text| is_e164(text)) else {
            return Some("the destination is no number in the form +4930123456");
        };
        let fitting = self.prefixes.iter().filter(|(prefix, _)| number.starts_with(prefix));
        match fitting.max_by_key(|(prefix, _)| prefix.len()) {
            Some((_, true)) => None,
            Some((_, false)) => Some("the destination is forbidden"),
            None => Some("the destination is not allowed"),
        }
    }
}

impl Policy for Destinations {
    fn id(&self) -> &str {
        &self.id
    }

    fn reads_spent(&self) -> bool {
        false
    }

    fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
        if !self.tools.fits(&call.name) {
            return Verdict::Allow;
        }
        let refusal = match self.field.of(&call.args) {
            Some(Value::Array(numbers)) if !numbers.is_empty() => {
                numbers.iter().find_map(|number| self.refusal(number))
            }
            Some(number) => self.refusal(number),
            None => Some("the call has no destination"),
        };
        match refusal {
            Some(reason) => Verdict::Deny(Denial::told(reason)),
            None => Verdict::Allow,
        }
    }
}

const MIN_DIGITS: usize = 7;
const MAX_DIGITS: usize = 15;

fn is_e164(text: &str) -> bool {
    let Some(digits) = text.strip_prefix('+') else { return false };
    (MIN_DIGITS..=MAX_DIGITS).contains(&digits.len())
        && !digits.starts_with('0')
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn allowed(to: Value) -> bool {
        let policy = Destinations::new("numbers", "dial", "to").unwrap();
        let policy =
            policy.allow("+49").unwrap().deny("+49900").unwrap().allow("+4990055").unwrap();
        let args = [("to".to_owned(), to)].into_iter().collect();
        let call = ToolCall { id: "1".into(), name: "dial".into(), args };
        policy.decide(&PolicyContext::new("s", Timestamp::UNIX_EPOCH), &call) == Verdict::Allow
    }

    #[test]
    fn the_longest_prefix_decides() {
        assert!(allowed(json!("+4930123456")));
        assert!(!allowed(json!("+49900123456")));
        assert!(allowed(json!("+49900551234")));
        assert!(!allowed(json!("+33123456789")));
        assert!(allowed(json!(["+4930123456", "+4989123456"])));
        assert!(!allowed(json!(["+4930123456", "+33123456789"])));
    }

    #[test]
    fn whatever_is_no_number_is_denied() {
        for to in [
            json!("004930123456"),
            json!("+49 30 123456"),
            json!("+49(0)30123456"),
            json!("4930123456"),
            json!("+0930123456"),
            json!("+4930123456;ext=1"),
            json!("+493012345678901234"),
            json!("+49301"),
            json!("+49３0123456"),
            json!(" +4930123456"),
            json!("sip:+4930123456@example.com"),
            json!(4_930_123_456_u64),
            json!(null),
            json!([]),
            json!([["+4930123456"]]),
            json!({"number": "+4930123456"}),
        ] {
            assert!(!allowed(to.clone()), "{to}");
        }
    }

    #[test]
    fn odd_prefixes_are_refused() {
        for prefix in ["49", "+", "+0", "+49 30", "", "+4a", "+1234567890123456"] {
            assert!(Destinations::new("n", "dial", "to").unwrap().allow(prefix).is_err());
        }
        let both = Destinations::new("n", "dial", "to").unwrap().allow("+49").unwrap();
        assert!(both.deny("+49").is_err());
    }
}
