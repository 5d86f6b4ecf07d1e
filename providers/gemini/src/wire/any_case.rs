//! Decoding that takes the names of fields in any case.
//!
//! Only the names of *fields* are changed on their way in, at every depth. Keys of maps and of free
//! JSON (the arguments of a tool, schemas) are data and stay as they are.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Decodes JSON; borrows from it within the decoding.
pub(super) fn from_slice<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let value = T::deserialize(AnyCase(&mut json))?;
    json.end()?;
    Ok(value)
}

/// A name in camelCase; `None`: it is already.
pub(super) fn camel_case(name: &str) -> Option<String> {
    if !name.contains('_') {
        return None;
    }
    let mut camel = String::with_capacity(name.len());
    for word in name.split('_').filter(|word| !word.is_empty()) {
        match word.chars().next() {
            Some(first) if !camel.is_empty() => {
                camel.extend(first.to_uppercase());
                camel.push_str(&word[first.len_utf8()..]);
            }
            _ => camel.push_str(word),
        }
    }
    Some(camel)
}

/// Wraps every part of a decoding, so that the names of fields pass through [`Name`].
struct AnyCase<T>(T);

/// Takes the name of a field.
struct Name<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Name<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        match camel_case(name) {
            Some(camel) => self.0.visit_str(&camel),
            None => self.0.visit_str(name),
        }
    }

    fn visit_u64<E: Error>(self, index: u64) -> Result<Self::Value, E> {
        self.0.visit_u64(index)
    }
}

macro_rules! forward_plain {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
                self.0.$method(AnyCase(visitor))
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AnyCase<D> {
    type Error = D::Error;

    forward_plain! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32
        deserialize_i64 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_option deserialize_unit
        deserialize_seq deserialize_map deserialize_ignored_any
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_identifier(Name(visitor))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, AnyCase(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, AnyCase(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(length, AnyCase(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, length, AnyCase(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, AnyCase(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, AnyCase(visitor))
    }
}

macro_rules! visit_plain {
    ($($method:ident($type:ty))*) => {
        $(
            fn $method<E: Error>(self, value: $type) -> Result<Self::Value, E> {
                self.0.$method(value)
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for AnyCase<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit_plain! {
        visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64) visit_str(&str)
        visit_borrowed_str(&'de str) visit_string(String) visit_bytes(&[u8])
        visit_borrowed_bytes(&'de [u8])
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        self.0.visit_unit()
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        self.0.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<Self::Value, D::Error> {
        self.0.visit_some(AnyCase(some))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
        self.0.visit_newtype_struct(AnyCase(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        self.0.visit_seq(AnyCase(seq))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        self.0.visit_map(AnyCase(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Self::Value, A::Error> {
        self.0.visit_enum(AnyCase(data))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for AnyCase<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(AnyCase(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for AnyCase<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(AnyCase(seed))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for AnyCase<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(AnyCase(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(AnyCase(seed))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for AnyCase<A> {
    type Error = A::Error;
    type Variant = AnyCase<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(AnyCase(seed))?;
        Ok((value, AnyCase(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for AnyCase<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(AnyCase(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, AnyCase(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, AnyCase(visitor))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    enum Message {
        OneThing(Thing),
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Thing {
        inner_things: Vec<Thing>,
        free_json: Option<Value>,
        some_text: Option<String>,
    }

    #[test]
    fn fields_are_taken_in_any_case_and_data_is_left_alone() {
        let expected = Message::OneThing(Thing {
            inner_things: vec![Thing { some_text: Some("a_b".into()), ..Thing::default() }],
            free_json: Some(json!({"a_key": {"another_key": 1}, "aKey": 2})),
            some_text: None,
        });
        for text in [
            r#"{"oneThing":{"innerThings":[{"someText":"a_b"}],
                "freeJson":{"a_key":{"another_key":1},"aKey":2},"newField":[{"x_y":null}]}}"#,
            r#"{"one_thing":{"inner_things":[{"some_text":"a_b"}],
                "free_json":{"a_key":{"another_key":1},"aKey":2},"new_field":{}}}"#,
            r#"{"one_thing":{"innerThings":[{"some\u005ftext":"a_b"}],"someText":null,
                "free_json":{"a_key":{"another_key":1},"aKey":2}}}"#,
        ] {
            assert_eq!(from_slice::<Message>(text.as_bytes()).unwrap(), expected, "{text}");
        }
        assert!(from_slice::<Message>(br#"{"oneThing":{}} x"#).is_err());
        assert!(from_slice::<Message>(br#"{"oneThing":{},"one_thing":{}}"#).is_err());
    }

    #[test]
    fn names_become_camel_case() {
        assert_eq!(camel_case("silence_duration_ms").as_deref(), Some("silenceDurationMs"));
        assert_eq!(camel_case("turnComplete"), None);
        assert_eq!(camel_case("_a__b_").as_deref(), Some("aB"));
        assert_eq!(camel_case("é_é").as_deref(), Some("éÉ"));
    }
}
