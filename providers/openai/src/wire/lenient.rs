//! How decoding forgives what servers do differently.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Text that is borrowed from the frame where it holds no escape.
#[derive(Debug, Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// `null` is the default.
pub(super) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What does not have the expected shape is absent: for fields that nothing depends on.
pub(super) fn malformed_is_absent<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: for<'a> Deserialize<'a>,
{
    let value = Value::deserialize(deserializer)?;
    Ok(T::deserialize(value).ok())
}

/// A number may come as a fraction that is whole, such as `1300.0`.
pub(super) fn whole_number<'de, D>(deserializer: D) -> Result<u64, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Number {
        Whole(u64),
        Fraction(f64),
        Null(()),
    }
    Ok(match Number::deserialize(deserializer)? {
        Number::Whole(number) => number,
        // The cast saturates: negative and not-a-number become 0.
        Number::Fraction(number) => number as u64,
        Number::Null(()) => 0,
    })
}
