//! Numbers in words.

use super::super::numbers::UNITS;
pub(super) use super::super::numbers::cardinal;

/// "twenty-first".
pub(super) fn ordinal(number: u64) -> String {
    let words = cardinal(number);
    let (head, last) = match words.rfind([' ', '-']) {
        Some(at) => words.split_at(at + 1),
        None => ("", words.as_str()),
    };
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        other => match other.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{other}th"),
        },
    };
    format!("{head}{last}")
}

/// "nineteen eighty-four", "two thousand seven", "twenty twenty-six".
pub(super) fn year(number: u64) -> String {
    let (century, rest) = (number / 100, number % 100);
    match (century, rest) {
        (century, 0) if century % 10 != 0 => format!("{} hundred", cardinal(century)),
        (century, rest) if century % 10 == 0 && rest < 10 => cardinal(number),
        (century, rest) if rest < 10 => {
            format!("{} oh {}", cardinal(century), cardinal(rest))
        }
        _ => format!("{} {}", cardinal(century), cardinal(rest)),
    }
}

/// Digit by digit; other characters are a short pause.
pub(super) fn digits(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.to_digit(10) {
            Some(digit) => {
                if !out.is_empty() {
                    out.push(' ');
                }
                out.push_str(UNITS[digit as usize]);
            }
            None if out.is_empty() || out.ends_with(',') => {}
            None => out.push(','),
        }
    }
    out
}

/// A number as written: digits, perhaps with a sign, commas between thousands, a decimal part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    pub(super) negative: bool,
    /// The digits before the point, without commas.
    pub(super) whole: String,
    /// The digits after it; empty when there is no point.
    pub(super) part: String,
}

impl Number {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, part) = match text.split_once('.') {
            Some((_, "")) => return None,
            Some((whole, part)) => (whole, part),
            None => (text, ""),
        };
        let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let mut groups = whole.split(',');
        let first = groups.next()?;
        let grouped = groups.clone().all(|group| group.len() == 3 && all_digits(group));
        let fits = whole == first || (grouped && (1..=3).contains(&first.len()));
        if !(all_digits(first) && fits && all_digits(part)) || (whole.is_empty() && part.is_empty())
        {
            return None;
        }
        Some(Self { negative, whole: whole.replace(',', ""), part: part.to_owned() })
    }

    /// The value, if it is a whole number that fits.
    pub(super) fn integer(&self) -> Option<u64> {
        match self.part.is_empty() && !self.negative {
            true => self.whole.parse().ok(),
            false => None,
        }
    }

    pub(super) fn is_one(&self) -> bool {
        self.whole == "1" && self.part.is_empty()
    }

    pub(super) fn words(&self) -> String {
        let mut out = String::new();
        if self.negative {
            out.push_str("minus ");
        }
        let led_by_zero = self.whole.len() > 1 && self.whole.starts_with('0');
        match self.whole.parse::<u64>() {
            Ok(number) if !led_by_zero && self.whole.len() <= 15 => out.push_str(&cardinal(number)),
            _ if self.whole.is_empty() => out.push_str("zero"),
            _ => out.push_str(&digits(&self.whole)),
        }
        if !self.part.is_empty() {
            out.push_str(" point ");
            out.push_str(&digits(&self.part));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_read_them() {
        assert_eq!(cardinal(0), "zero");
        assert_eq!(cardinal(1_000_000), "one million");
        assert_eq!(cardinal(905), "nine hundred five");
        assert_eq!(ordinal(30), "thirtieth");
        assert_eq!(ordinal(112), "one hundred twelfth");
        assert_eq!(year(1905), "nineteen oh five");
        assert_eq!(year(2000), "two thousand");
        assert_eq!(year(2010), "twenty ten");
        assert_eq!(digits("12-3"), "one two, three");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "-", ".", "1,23", "1.", "1..2", "12a", ",123", "1234,567"] {
            assert_eq!(Number::parse(text), None, "{text}");
        }
        assert_eq!(Number::parse(".5").unwrap().words(), "zero point five");
    }
}
