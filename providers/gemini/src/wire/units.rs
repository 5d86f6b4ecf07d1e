//! Numbers and times as proto JSON writes them.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

/// A whole number. Proto JSON writes 64-bit ones as strings, and any as a fraction that is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whole(pub i64);

impl Whole {
    /// As a count: negative is 0.
    pub fn count(self) -> u64 {
        u64::try_from(self.0).unwrap_or_default()
    }
}

impl From<u32> for Whole {
    fn from(number: u32) -> Self {
        Self(number.into())
    }
}

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
                Ok(Whole(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
                // The cast saturates.
                Ok(Whole(number as i64))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Whole, E> {
                text.trim().parse().map(Whole).map_err(E::custom)
            }
        }
        from.deserialize_any(Number)
    }
}

/// A time in proto JSON: `"50s"`, `"1.200s"`. At rest it is what was written, so that it comes out
/// again as it came in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub String);

impl Seconds {
    /// The time; `None`: it is not one, or negative.
    pub fn duration(&self) -> Option<Duration> {
        let text = self.0.trim();
        let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl From<Duration> for Seconds {
    fn from(time: Duration) -> Self {
        match time.subsec_millis() {
            0 => Self(format!("{}s", time.as_secs())),
            ms => Self(format!("{}.{ms:03}s", time.as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_every_form() {
        for (text, number) in [("7", 7), ("\"7\"", 7), ("7.0", 7), ("-1", -1), ("1e3", 1_000)] {
            assert_eq!(serde_json::from_str::<Whole>(text).unwrap(), Whole(number), "{text}");
        }
        assert!(serde_json::from_str::<Whole>("\"seven\"").is_err());
        assert_eq!(Whole(-3).count(), 0);
    }

    #[test]
    fn times_are_seconds_with_a_letter() {
        let time = |text: &str| Seconds(text.into()).duration();
        assert_eq!(time("50s"), Some(Duration::from_secs(50)));
        assert_eq!(time("1.200s"), Some(Duration::from_millis(1_200)));
        assert_eq!(time("3"), Some(Duration::from_secs(3)));
        for bad in ["", "s", "-1s", "soon", "1e400s"] {
            assert_eq!(time(bad), None, "{bad}");
        }
        assert_eq!(Seconds::from(Duration::from_millis(1_200)).0, "1.200s");
        assert_eq!(Seconds::from(Duration::from_secs(50)).0, "50s");
    }
}
