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

/// `json` with each escape that is half of a surrogate pair, and has not its other half beside it,
/// replaced by U+FFFD. `None`: there is none.
pub(crate) fn without_lone_surrogates(json: &str) -> Option<String> {
    let bytes = json.as_bytes();
    let mut mended = None;
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        let escape = at + found;
        if bytes.get(escape + 1) != Some(&b'u') {
            at = escape + 2;
            continue;
        }
        at = escape + 6;
        let Some(unit) = unit(json, escape) else { continue };
        match unit {
            0xd800..0xdc00 if unit_is_low(json, at) => at += 6,
            0xd800..0xe000 => {
                let text: &mut String = mended.get_or_insert_with(|| json.to_owned());
                text.replace_range(escape + 2..escape + 6, "fffd");
            }
            _ => {}
        }
    }
    mended
}

/// The UTF-16 unit of the escape at `at`.
fn unit(json: &str, at: usize) -> Option<u16> {
    let digits = json.get(at..)?.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

fn unit_is_low(json: &str, at: usize) -> bool {
    unit(json, at).is_some_and(|unit| (0xdc00..0xe000).contains(&unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_pairs_are_replaced_and_nothing_else() {
        for whole in
            [r#""\ud83d\ude00""#, r#""\\ud83d""#, r#""plain \n \u00e4""#, r#""\u12"#, r#""\"#]
        {
            assert_eq!(without_lone_surrogates(whole), None, "{whole}");
        }
        for (broken, mended) in [
            (r#""a\ud83d""#, r#""a\ufffd""#),
            (r#""\ude00b""#, r#""\ufffdb""#),
            (r#""\ud83d\ud83d\ude00\n""#, r#""\ufffd\ud83d\ude00\n""#),
            (r#""\\\ud83d\u0041""#, r#""\\\ufffd\u0041""#),
        ] {
            assert_eq!(without_lone_surrogates(broken).as_deref(), Some(mended));
            assert!(serde_json::from_str::<String>(mended).is_ok());
        }
    }
}
