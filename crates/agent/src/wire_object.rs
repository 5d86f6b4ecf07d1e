//! Objects of the wire that keep the members they do not know.

use std::{fmt, marker::PhantomData};

use serde::de::{Deserialize, MapAccess, Visitor};

/// Implements `Serialize` and `Deserialize` for a struct whose field `extra` keeps unknown members.
///
/// Unlike `#[serde(flatten)]` nothing is buffered. Each field has a mode: `required`; `optional`, an
/// `Option` that is absent where it is `None` and takes `null` for absent; `nullable`, an
/// `Option<Value>` in which `null` is a value; `list`, a collection that may be absent and is
/// written where it holds something.
macro_rules! wire_object {
    ($name:ident $(<$generic:ident>)? { $($field:ident: $mode:ident $key:literal),+ $(,)? }) => {
        impl $(<$generic: ::serde::Serialize>)? ::serde::Serialize for $name $(<$generic>)? {
            fn serialize<Ser: ::serde::Serializer>(
                &self,
                serializer: Ser,
            ) -> Result<Ser::Ok, Ser::Error> {
                use ::serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                $($crate::wire_object::wire_object!(@write $mode map, $key, self.$field);)+
                for (key, value) in &self.extra {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }

        impl<'de $(, $generic: ::serde::Deserialize<'de>)?> $crate::wire_object::ReadObject<'de>
            for $name $(<$generic>)?
        {
            const EXPECTED: &'static str = concat!("an object for ", stringify!($name));

            fn read<A: ::serde::de::MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
                $(let mut $field = None;)+
                let mut extra = ::antiphon_types::JsonObject::new();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        $($key => {
                            if $field.is_some() {
                                return Err(::serde::de::Error::duplicate_field($key));
                            }
                            $field = Some(map.next_value()?);
                        })+
                        _ => {
                            extra.insert(key, map.next_value()?);
                        }
                    }
                }
                Ok(Self {
                    $($field: $crate::wire_object::wire_object!(@take $mode $field, $key),)+
                    extra,
                })
            }
        }

        impl<'de $(, $generic: ::serde::Deserialize<'de>)?> ::serde::Deserialize<'de>
            for $name $(<$generic>)?
        {
            fn deserialize<De: ::serde::Deserializer<'de>>(
                deserializer: De,
            ) -> Result<Self, De::Error> {
                deserializer.deserialize_map($crate::wire_object::Object::new())
            }
        }
    };

    (@write required $map:ident, $key:literal, $value:expr) => {
        $map.serialize_entry($key, &$value)?
    };
    (@write list $map:ident, $key:literal, $value:expr) => {
        if !$value.is_empty() {
            $map.serialize_entry($key, &$value)?
        }
    };
    (@write $mode:ident $map:ident, $key:literal, $value:expr) => {
        if let Some(value) = &$value {
            $map.serialize_entry($key, value)?
        }
    };
    (@take required $field:ident, $key:literal) => {
        match $field {
            Some(value) => value,
            None => return Err(::serde::de::Error::missing_field($key)),
        }
    };
    (@take optional $field:ident, $key:literal) => {
        $field.unwrap_or(None)
    };
    (@take nullable $field:ident, $key:literal) => {
        $field
    };
    (@take list $field:ident, $key:literal) => {
        $field.unwrap_or(None).unwrap_or_default()
    };
}
pub(crate) use wire_object;

/// What [`wire_object`] implements: reading from the members of an object.
pub(crate) trait ReadObject<'de>: Sized {
    /// What a reader hoped for, in words for an error.
    const EXPECTED: &'static str;

    /// Reads all members.
    fn read<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error>;
}

/// The visitor over a [`ReadObject`].
pub(crate) struct Object<T>(PhantomData<T>);

impl<T> Object<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: ReadObject<'de>> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::read(map)
    }
}

/// `deserialize_with` for members in which `null` is a value and not an absence.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
