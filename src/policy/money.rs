//! Amounts of money in arguments. Never a float: what is not exact is refused.

use std::fmt;

use antiphon_types::JsonObject;
use serde_json::Value;

/// The largest amount, in minor units.
pub const MAX_AMOUNT: u64 = i64::MAX as u64;

/// Where a call says an amount, and how.
///
/// In minor units (cents) it is a JSON integer: `1250`. In major units it is a text, `"12.50"`, or a
/// JSON integer: `12`. A JSON number with a fraction or an exponent, a sign, spaces, separators of
/// thousands and more decimals than the currency has are refused: none of them is one exact amount to
/// everybody who reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmountField {
    field: Field,
    /// Decimals of the major unit; `None`: minor units.
    decimals: Option<u8>,
    currency: Option<(Field, String)>,
}

impl AmountField {
    /// An argument in minor units: its name, or a JSON pointer (`/payment/cents`).
    pub fn minor(field: &str) -> Self {
        Self { field: Field::new(field), decimals: None, currency: None }
    }

    /// An argument in major units that have so many decimals (at most 18): 2 for euros.
    pub fn major(field: &str, decimals: u8) -> Self {
        Self { field: Field::new(field), decimals: Some(decimals.min(18)), currency: None }
    }

    /// The argument that says the currency has to have this value.
    pub fn in_currency(mut self, field: &str, code: &str) -> Self {
        self.currency = Some((Field::new(field), code.to_owned()));
        self
    }

    /// The amount in minor units.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(&self, args: &JsonObject) -> Result<u64, AmountError> {
        if let Some((field, code)) = &self.currency
            && field.of(args).and_then(Value::as_str) != Some(code)
        {
            let field = field.to_string();
            return Err(AmountError::Currency { field, expected: code.clone() });
        }
        let error = |wrong| AmountError::Wrong { field: self.field.to_string(), wrong };
        let value = self.field.of(args).ok_or(error(Wrong::Missing))?;
        let amount = match (value, self.decimals) {
            (Value::Number(number), decimals) => {
                let units = match (number.as_u64(), number.as_i64()) {
                    (Some(units), _) => Ok(units),
                    (None, Some(_)) => Err(Wrong::Negative),
                    (None, None) => Err(Wrong::Inexact),
                };
                units.and_then(|units| scaled(units, decimals.unwrap_or(0)))
            }
            (Value::String(text), Some(decimals)) => parse_decimal(text, decimals),
            _ => Err(Wrong::Type),
        };
        amount.map_err(error)
    }

    /// An amount as people write it, in minor units: for limits in files.
    pub(crate) fn parse(&self, text: &str) -> Result<u64, Wrong> {
        parse_decimal(text, self.decimals.unwrap_or(0))
    }
}

/// Why an amount is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// It is in another currency, or in none.
    #[error("the argument {field:?} has to be {expected:?}")]
    Currency {
        /// The argument.
        field: String,
        /// What it has to be.
        expected: String,
    },
    /// It is no exact amount.
    #[error("the amount {field:?} {wrong}")]
    Wrong {
        /// The argument.
        field: String,
        /// What is wrong.
        wrong: Wrong,
    },
}

/// What is wrong with an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// There is none.
    #[error("is missing")]
    Missing,
    /// It is below zero.
    #[error("is negative")]
    Negative,
    /// It is a JSON number with a fraction or an exponent.
    #[error("is no exact number: integers, or a text such as \"12.50\"")]
    Inexact,
    /// It is neither a number nor a text that is taken here.
    #[error("is no amount")]
    Type,
    /// The text is no decimal number.
    #[error("is no decimal number such as \"12.50\"")]
    Text,
    /// It has more decimals than the currency.
    #[error("has more decimals than the currency")]
    Decimals,
    /// It is larger than any.
    #[error("is too large")]
    TooLarge,
}

/// Parses `"12.50"` as 1250 for two decimals: digits without leading zeros, at most one point, and
/// digits on both of its sides.
pub(crate) fn parse_decimal(text: &str, decimals: u8) -> Result<u64, Wrong> {
    if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(Wrong::Negative);
    }
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return Err(Wrong::Text),
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let padded = whole.len() > 1 && whole.starts_with('0');
    if whole.is_empty() || padded || !digits(whole) || !digits(fraction) {
        return Err(Wrong::Text);
    }
    if fraction.len() > usize::from(decimals) {
        return Err(Wrong::Decimals);
    }
    let units = whole.parse().map_err(|_| Wrong::TooLarge)?;
    let whole = scaled(units, decimals)?;
    let missing = u32::from(decimals) - fraction.len() as u32; // at most 18
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().unwrap_or(u64::MAX) };
    let sum = 10_u64.checked_pow(missing).and_then(|scale| fraction.checked_mul(scale));
    bounded(sum.and_then(|fraction| whole.checked_add(fraction)))
}

fn scaled(units: u64, decimals: u8) -> Result<u64, Wrong> {
    bounded(10_u64.checked_pow(decimals.into()).and_then(|scale| units.checked_mul(scale)))
}

fn bounded(amount: Option<u64>) -> Result<u64, Wrong> {
    amount.filter(|amount| *amount <= MAX_AMOUNT).ok_or(Wrong::TooLarge)
}

/// An argument: its name, or a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field(String);

impl Field {
    pub(crate) fn new(field: &str) -> Self {
        Self(field.to_owned())
    }

    pub(crate) fn of<'a>(&self, args: &'a JsonObject) -> Option<&'a Value> {
        let Some(pointer) = self.0.strip_prefix('/') else { return args.get(&self.0) };
        let (first, rest) = match pointer.split_once('/') {
            Some((first, _)) => (first, &pointer[first.len()..]),
            None => (pointer, ""),
        };
        args.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(field: &AmountField, value: Value) -> Result<u64, Wrong> {
        let args = JsonObject::from_iter([("amount".to_owned(), value)]);
        field.read(&args).map_err(|error| match error {
            AmountError::Wrong { wrong, .. } => wrong,
            AmountError::Currency { .. } => panic!("no currency was asked for"),
        })
    }

    #[test]
    fn exact_amounts_are_read() {
        let (minor, euros) = (AmountField::minor("amount"), AmountField::major("amount", 2));
        assert_eq!(read(&minor, json!(1250)), Ok(1250));
        assert_eq!(read(&euros, json!("12.50")), Ok(1250));
        assert_eq!(read(&euros, json!("12.5")), Ok(1250));
        assert_eq!(read(&euros, json!("0.01")), Ok(1));
        assert_eq!(read(&euros, json!(12)), Ok(1200));
        assert_eq!(read(&AmountField::major("amount", 0), json!("500")), Ok(500));
    }

    #[test]
    fn whatever_is_not_one_exact_amount_is_refused() {
        let (minor, euros) = (AmountField::minor("amount"), AmountField::major("amount", 2));
        for text in [
            "5 000", "5,000", "5.000,00", "1e3", "", " 5", "5 ", ".5", "5.", "+5", "0x10", "NaN",
            "inf", "٥", "05", "00", "1_000", "5.0.0", "€5", "5 EUR", "--5", "- 5", "5\n", "1e400",
        ] {
            let wrong = read(&euros, json!(text)).unwrap_err();
            assert!(matches!(wrong, Wrong::Text | Wrong::Decimals), "{text:?}: {wrong}");
        }
        assert_eq!(read(&euros, json!("12.505")), Err(Wrong::Decimals));
        assert_eq!(read(&euros, json!("-5")), Err(Wrong::Negative));
        assert_eq!(read(&euros, json!(-5)), Err(Wrong::Negative));
        assert_eq!(read(&minor, json!(-1)), Err(Wrong::Negative));
        for number in [json!(12.5), json!(5.0), json!(-0.0), json!(1e3)] {
            assert_eq!(read(&euros, number.clone()), Err(Wrong::Inexact), "{number}");
            assert_eq!(read(&minor, number), Err(Wrong::Inexact));
        }
        assert_eq!(read(&minor, json!("5")), Err(Wrong::Type));
        for value in [json!(null), json!(true), json!([5]), json!({ "value": 5 })] {
            assert_eq!(read(&euros, value), Err(Wrong::Type));
        }
        assert_eq!(read(&euros, json!(u64::MAX)), Err(Wrong::TooLarge));
        assert_eq!(read(&minor, json!(u64::MAX)), Err(Wrong::TooLarge));
        assert_eq!(read(&euros, json!("99999999999999999999")), Err(Wrong::TooLarge));
        assert_eq!(read(&euros, json!("92233720368547758.08")), Err(Wrong::TooLarge));
        assert_eq!(read(&euros, json!("92233720368547758.07")), Ok(MAX_AMOUNT));
        assert!(AmountField::minor("sum").read(&JsonObject::new()).is_err());
    }

    #[test]
    fn another_currency_is_refused_and_pointers_lead_into_objects() {
        let field = AmountField::minor("/pay/cents").in_currency("/pay/currency", "EUR");
        let args = |currency: Value| {
            let Value::Object(args) = json!({ "pay": { "cents": 5, "currency": currency } }) else {
                panic!("an object")
            };
            args
        };
        assert_eq!(field.read(&args(json!("EUR"))), Ok(5));
        for other in [json!("USD"), json!("eur"), json!(null)] {
            assert!(matches!(field.read(&args(other)), Err(AmountError::Currency { .. })));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(minor in 0..=MAX_AMOUNT, decimals in 0_u8..=18) {
            let scale = 10_u64.pow(decimals.into());
            let text = match decimals {
                0 => minor.to_string(),
                _ => format!("{}.{:0width$}", minor / scale, minor % scale, width = decimals.into()),
            };
            prop_assert_eq!(parse_decimal(&text, decimals), Ok(minor));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}", decimals in 0_u8..=18) {
            let _ = parse_decimal(&text, decimals);
        }
    }
}
