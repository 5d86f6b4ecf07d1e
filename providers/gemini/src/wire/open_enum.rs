//! Enums over words that stay open for what a later version adds.

/// An enum over the wire's words, with a variant for every other one. Words are taken in any case,
/// as the vendor's own types do.
macro_rules! open_enums {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            #[non_exhaustive]
            pub enum $name {
                $($(#[$variant_doc])* $variant,)*
                /// A word that is not known here.
                Other(Box<str>),
            }

            impl $name {
                /// The word on the wire.
                pub fn as_str(&self) -> &str {
                    match self {
                        $(Self::$variant => $text,)*
                        Self::Other(text) => text,
                    }
                }
            }

            impl From<&str> for $name {
                fn from(text: &str) -> Self {
                    $(
                        if text.eq_ignore_ascii_case($text) {
                            return Self::$variant;
                        }
                    )*
                    Self::Other(text.into())
                }
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    to.serialize_str(self.as_str())
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    struct Word;
                    impl serde::de::Visitor<'_> for Word {
                        type Value = $name;

                        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                            f.write_str(concat!("a word for ", stringify!($name)))
                        }

                        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                            Ok($name::from(text))
                        }
                    }
                    from.deserialize_str(Word)
                }
            }
        )*
    };
}
pub(crate) use open_enums;
