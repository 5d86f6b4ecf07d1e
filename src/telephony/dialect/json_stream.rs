//! What the JSON dialects share: numbers that are strings, media before the start, envelopes.

use std::{collections::BTreeMap, time::Duration};

use antiphon_audio::AudioFormat;
use antiphon_live::Frame;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::{ByteOrder, CarrierEvent, DialectError, Heard, Media, payload, whole_samples};

/// The longest message of a JSON carrier. Twilio and Telnyx send some hundred bytes; 64 KiB are four
/// seconds of 16-bit audio at the lowest rate.
pub(super) const LARGEST: usize = 64 * 1024;

/// A number that some carriers write as a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Number(pub u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Number;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, or a string that holds one")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(u64::try_from(number).map_err(E::custom)?))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Number, E> {
                if (0.0..9e15).contains(&number) {
                    return Ok(Number(number as u64));
                }
                Err(E::custom("a number that does not count anything"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.trim().parse().map(Number).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A number that may be missing; one that cannot be read counts as missing, for the caller can do
/// nothing about it.
pub(super) fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Number>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Number(number) => number.as_u64().map(Number),
        Value::String(text) => text.trim().parse().ok().map(Number),
        _ => None,
    })
}

/// Texts by name; other scalars become texts, and what is nested is left out.
pub(super) fn texts<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let all = Option::<BTreeMap<String, Value>>::deserialize(deserializer)?.unwrap_or_default();
    let texts = all.into_iter().filter_map(|(name, value)| match value {
        Value::String(text) => Some((name, text)),
        Value::Number(number) => Some((name, number.to_string())),
        Value::Bool(flag) => Some((name, flag.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    });
    Ok(texts.collect())
}

/// The text of a frame; everything else that can come is dealt with.
pub(super) fn text<'a>(
    frame: &'a Frame,
    heard: &mut Heard,
) -> Result<Option<&'a str>, DialectError> {
    match frame {
        Frame::Text(text) if text.len() > LARGEST => {
            Err(DialectError::TooLarge { size: text.len(), limit: LARGEST })
        }
        Frame::Text(text) => Ok(Some(text.as_str())),
        Frame::Binary(_) => Err(DialectError::Malformed("a binary message".into())),
        Frame::Ping(_) | Frame::Pong(_) => Ok(None),
        Frame::Close(_) => {
            heard.events.push(CarrierEvent::Stopped { reason: None });
            Ok(None)
        }
    }
}

/// Reads an envelope.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, DialectError> {
    // The message is not quoted: it may hold digits, numbers and tokens.
    serde_json::from_str(text).map_err(|error| {
        DialectError::Malformed(format!("line {}, column {}", error.line(), error.column()))
    })
}

/// A media event from its parts.
pub(super) fn media(
    format: AudioFormat,
    order: ByteOrder,
    payload: &str,
    sequence: Option<Number>,
    timestamp_ms: Option<Number>,
) -> Result<CarrierEvent, DialectError> {
    let bytes = payload::decode(payload)?;
    let audio = whole_samples(format, payload::received(format, order, bytes))?;
    Ok(CarrierEvent::Media(Media {
        sequence: sequence.map(|number| number.0),
        timestamp: timestamp_ms.map(|ms| Duration::from_millis(ms.0)),
        audio,
    }))
}

/// A JSON text as a frame.
pub(super) fn frame(text: String) -> Frame {
    Frame::Text(text.into())
}

/// `text` as a JSON string, quotes included.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
