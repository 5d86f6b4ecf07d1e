//! JSON in one form, so that equal values have equal hashes.

use std::cmp::Ordering;

use antiphon_types::JsonObject;
use serde::Serialize;
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// JSON in its canonical form, by [RFC 8785](https://www.rfc-editor.org/rfc/rfc8785): members sorted
/// by name, no spaces, numbers as JavaScript writes them. `None` for what is no JSON, such as a number
/// that is none.
///
/// Numbers are doubles there: two integers beyond 2^53 may have one form.
pub fn canonical_json(value: &impl Serialize) -> Option<String> {
    serde_json_canonicalizer::to_string(value).ok()
}

/// [`canonical_json`] of an object, several times as fast: a receipt is written before a tool runs.
pub fn canonical_object(object: &JsonObject) -> Option<String> {
    let mut text = Vec::with_capacity(1_024);
    write_object(&mut text, object)?;
    String::from_utf8(text).ok()
}

/// The SHA-256 of the canonical form, as 64 hexadecimal digits.
pub fn canonical_hash(value: &impl Serialize) -> Option<String> {
    let text = canonical_json(value)?;
    let digest = Sha256::digest(text.as_bytes());
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write_value(text: &mut Vec<u8>, value: &Value) -> Option<()> {
    match value {
        Value::Null => text.extend_from_slice(b"null"),
        Value::Bool(true) => text.extend_from_slice(b"true"),
        Value::Bool(false) => text.extend_from_slice(b"false"),
        Value::Number(number) => write_number(text, number)?,
        Value::String(string) => write_string(text, string)?,
        Value::Array(items) => {
            text.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(b',');
                }
                write_value(text, item)?;
            }
            text.push(b']');
        }
        Value::Object(object) => write_object(text, object)?,
    }
    Some(())
}

fn write_object(text: &mut Vec<u8>, object: &JsonObject) -> Option<()> {
    let mut members: Vec<_> = object.iter().collect();
    // Mostly they are in order already, which sorting sees at once.
    members.sort_by(|(one, _), (other, _)| by_name(one, other));
    text.push(b'{');
    for (at, (name, value)) in members.into_iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        write_string(text, name)?;
        text.push(b':');
        write_value(text, value)?;
    }
    text.push(b'}');
    Some(())
}

/// Names are in the order of their UTF-16 code units, which for plain letters is that of their bytes.
fn by_name(one: &str, other: &str) -> Ordering {
    match one.is_ascii() && other.is_ascii() {
        true => one.cmp(other),
        false => one.encode_utf16().cmp(other.encode_utf16()),
    }
}

fn write_number(text: &mut Vec<u8>, number: &Number) -> Option<()> {
    const EXACT: i64 = (1 << 53) - 1;
    match number.as_i64() {
        Some(integer) if (-EXACT..=EXACT).contains(&integer) => {
            serde_json::to_writer(text, &integer).ok()
        }
        // As JavaScript writes doubles.
        _ => {
            text.extend_from_slice(canonical_json(number)?.as_bytes());
            Some(())
        }
    }
}

/// As `serde_json` writes strings, the RFC does.
fn write_string(text: &mut Vec<u8>, string: &str) -> Option<()> {
    serde_json::to_writer(text, string).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_sorted_and_numbers_have_one_form() {
        let one: Value = serde_json::from_str(r#"{"b": 1.0, "a": [1e2, "ä\n"], "c": {}}"#).unwrap();
        assert_eq!(canonical_json(&one).unwrap(), r#"{"a":[100,"ä\n"],"b":1,"c":{}}"#);
        let other = json!({ "c": {}, "a": [100, "ä\n"], "b": 1 });
        assert_eq!(canonical_hash(&one), canonical_hash(&other));
        assert_ne!(canonical_hash(&one), canonical_hash(&json!({ "b": 1 })));
        // By other people's reckoning: `printf '{}' | sha256sum`.
        let empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(canonical_hash(&json!({})).as_deref(), Some(empty));
    }

    #[test]
    fn names_are_in_the_order_of_utf_16() {
        // By bytes the second comes first.
        let object =
            json!({ "\u{fb33}": 1, "\u{1f600}": 2, "a": -0.0, "\u{7f}\u{1}": [null, true] });
        let text = canonical_object(object.as_object().unwrap()).unwrap();
        assert_eq!(text, "{\"a\":0,\"\u{7f}\\u0001\":[null,true],\"\u{1f600}\":2,\"\u{fb33}\":1}");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            (-5_i64..5).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_fast_way_is_the_same(value in any_value()) {
            let object = JsonObject::from_iter([("value".to_owned(), value)]);
            prop_assert_eq!(canonical_object(&object), canonical_json(&object));
        }
    }
}
