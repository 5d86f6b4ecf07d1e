//! Arguments as JSON text: one object, unique keys, nothing after it.

use std::{fmt, io};

use antiphon_types::JsonObject;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// Parses `text` as exactly one JSON object in which no object has a key twice.
pub(crate) fn parse_object(text: &str) -> Result<JsonObject, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = UniqueKeys.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    match value {
        Value::Object(object) => Ok(object),
        other => Err(format!("expected a JSON object, found {}", kind(&other))),
    }
}

/// How many bytes of JSON text `value` is.
pub(crate) fn serialized_len(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        // A JSON value always serialises; were it not so, it is too large to pass.
        Err(_) => usize::MAX,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Builds a [`Value`] and refuses repeated keys: of two values of one key, policy and tool must not
/// be able to see different ones.
struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = access.next_element_seed(UniqueKeys)? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = access.next_key_seed(Key)? {
            if object.contains_key(&key) {
                let key = crate::text::shorten(&key, 128);
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            let value = access.next_value_seed(UniqueKeys)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        String::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn takes_one_object_only() {
        assert_eq!(parse_object(r#" {"a": [1, -2, 2.5, null, true, "x"]} "#).unwrap(), {
            let Value::Object(object) = json!({"a": [1, -2, 2.5, null, true, "x"]}) else {
                panic!()
            };
            object
        });
        for bad in
            ["", " ", "{", "[]", "null", "1", "\"a\"", "{} {}", "{}x", "{\"a\":}", "{\"a\":1e400}"]
        {
            assert!(parse_object(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_repeated_keys_at_any_depth() {
        for bad in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":{"b":1,"b":2}}"#,
            r#"{"a":[{"b":1,"b":2}]}"#,
            r#"{"a":1,"\u0061":2}"#,
        ] {
            let error = parse_object(bad).unwrap_err();
            assert!(error.contains("duplicate key"), "{bad}: {error}");
        }
    }

    #[test]
    fn refuses_broken_text_and_endless_nesting() {
        assert!(parse_object(r#"{"a":"\ud800"}"#).is_err());
        assert!(parse_object(r#"{"a":"\x"}"#).is_err());
        assert!(parse_object("{\"a\":\"\n\"}").is_err());
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse_object(&deep).is_err());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reads_back_what_was_written(object in prop::collection::btree_map(".*", any_value(), 0..6)) {
            let object: JsonObject = object.into_iter().collect();
            let text = serde_json::to_string(&object).unwrap();
            prop_assert_eq!(serialized_len(&object), text.len());
            prop_assert_eq!(parse_object(&text).unwrap(), object);
        }

        #[test]
        fn agrees_with_serde_json_on_any_text(text in r#"[{}\[\]":,a0 \\u-]{0,24}"#) {
            // Stricter, never laxer, and equal where both accept.
            if let Ok(object) = parse_object(&text) {
                prop_assert_eq!(serde_json::from_str::<JsonObject>(&text).unwrap(), object);
            }
        }
    }
}
