//! The fast path: voice from a frame straight into shared bytes, and the user's audio straight
//! into a frame.

use std::borrow::Cow;

use base64_simd::STANDARD;
use bytes::Bytes;
use serde::Deserialize;

use super::DecodeError;

/// Audio of an append at most: 15 MiB of base64.
pub const MAX_APPEND_BYTES: usize = 15 * 1024 * 1024 / 4 * 3;
/// `response.output_audio.delta`, borrowed from its frame.
#[derive(Debug, Deserialize)]
pub struct AudioDelta<'a> {
    /// The response.
    #[serde(borrow, default)]
    pub response_id: Cow<'a, str>,
    /// The item.
    #[serde(borrow, default)]
    pub item_id: Cow<'a, str>,
    /// The part's place in the item.
    #[serde(default)]
    pub content_index: Option<u32>,
    /// The audio as base64.
    #[serde(borrow, default)]
    pub delta: Cow<'a, str>,
}

impl<'a> AudioDelta<'a> {
    /// Whether events of this kind are decoded here. The second is the beta's name.
    pub fn is_kind(kind: &str) -> bool {
        matches!(kind, "response.output_audio.delta" | "response.audio.delta")
    }

    /// Decodes a frame of a kind that [`AudioDelta::is_kind`] named.
    pub fn decode(text: &'a str) -> Result<Self, DecodeError> {
        serde_json::from_str(text).map_err(|error| DecodeError::Shape {
            kind: "response.output_audio.delta".into(),
            message: error.to_string(),
        })
    }
}

/// Audio that is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audio is not base64")]
pub struct AudioDecodeError;

/// Decodes base64 into memory of exactly its size, which goes back as soon as it was played: a
/// session at rest holds none. `carry`, if there is one, comes before it.
///
/// Takes the standard alphabet; where that fails, also the URL-safe one and text without padding or
/// with spaces.
pub fn decode_audio(base64: &str, carry: Option<u8>) -> Result<Bytes, AudioDecodeError> {
    let text = base64.as_bytes();
    let Ok(length) = STANDARD.decoded_length(text) else {
        return decode_forgiving(base64, carry);
    };
    let mut audio = Vec::with_capacity(length + usize::from(carry.is_some()));
    audio.extend(carry);
    match STANDARD.decode_append(text, &mut audio) {
        Ok(()) => Ok(audio.into()),
        Err(_) => decode_forgiving(base64, carry),
    }
}

#[cold]
fn decode_forgiving(base64: &str, carry: Option<u8>) -> Result<Bytes, AudioDecodeError> {
    let standard: Vec<u8> = base64
        .bytes()
        .map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        })
        .collect();
    let decoded = base64_simd::forgiving_decode_to_vec(&standard).map_err(|_| AudioDecodeError)?;
    Ok(match carry {
        None => decoded.into(),
        Some(carry) => std::iter::once(carry).chain(decoded).collect(),
    })
}

/// The frame of `input_audio_buffer.append` with `audio`, which holds at most [`MAX_APPEND_BYTES`].
///
/// A fresh text of exactly its length: it becomes a frame without another copy, check or
/// allocation, which is cheaper than a buffer that is used again.
pub fn append_frame(audio: &[u8]) -> String {
    const HEAD: &str = r#"{"type":"input_audio_buffer.append","audio":""#;
    const TAIL: &str = r#""}"#;
    let length = HEAD.len() + STANDARD.encoded_length(audio.len()) + TAIL.len();
    let mut text = String::with_capacity(length);
    text.push_str(HEAD);
    STANDARD.encode_append(audio, &mut text);
    text.push_str(TAIL);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn frame(delta: &str) -> String {
        json!({
            "type": "response.output_audio.delta", "event_id": "e", "response_id": "r",
            "item_id": "i", "output_index": 0, "content_index": 1, "delta": delta,
        })
        .to_string()
    }

    #[test]
    fn a_delta_is_borrowed_and_decoded() {
        let text = frame("AQIDBA==");
        let delta = AudioDelta::decode(&text).unwrap();
        assert!(matches!(delta.delta, Cow::Borrowed(_)));
        assert_eq!(
            (&*delta.response_id, &*delta.item_id, delta.content_index),
            ("r", "i", Some(1))
        );
        assert_eq!(decode_audio(&delta.delta, None).unwrap(), [1, 2, 3, 4].as_slice());
        assert_eq!(decode_audio(&delta.delta, Some(9)).unwrap(), [9, 1, 2, 3, 4].as_slice());
    }

    #[test]
    fn escapes_and_missing_fields_are_no_trouble() {
        let delta = AudioDelta::decode(r#"{"type":"x","delta":"AQ\u0049D"}"#).unwrap();
        assert_eq!(decode_audio(&delta.delta, None).unwrap(), [1, 2, 3].as_slice());
        assert_eq!(delta.response_id, "");
    }

    #[test]
    fn other_alphabets_decode_and_other_texts_do_not() {
        assert_eq!(decode_audio("-_8", None).unwrap(), [0xfb, 0xff].as_slice());
        assert_eq!(decode_audio("-_8", Some(7)).unwrap(), [7, 0xfb, 0xff].as_slice());
        assert_eq!(decode_audio("AQ ID", None).unwrap(), [1, 2, 3].as_slice());
        for text in ["A", "AQI=D", "äöü", "AQ*D"] {
            assert_eq!(decode_audio(text, None), Err(AudioDecodeError), "{text}");
        }
        assert_eq!(decode_audio("AQID", None).unwrap(), [1, 2, 3].as_slice());
    }

    proptest! {
        #[test]
        fn audio_round_trips(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12_000), 1..4),
            carry: Option<u8>,
        ) {
            let mut kept = Vec::new();
            for audio in &frames {
                let text = append_frame(audio);
                let event: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(&event["type"], "input_audio_buffer.append");
                let base64 = event["audio"].as_str().unwrap();
                let expected: Vec<u8> = carry.into_iter().chain(audio.iter().copied()).collect();
                let decoded = decode_audio(base64, carry).unwrap();
                prop_assert_eq!(&decoded, &expected);
                kept.push((decoded, expected));
            }
            for (decoded, expected) in kept {
                prop_assert_eq!(decoded, expected);
            }
        }

        #[test]
        fn any_text_is_survived(text in ".{0,200}", base64 in "[A-Za-z0-9+/=_-]{0,64}") {
            let _ = AudioDelta::decode(&text);
            let _ = decode_audio(&text, None);
            let _ = decode_audio(&base64, Some(1));
            prop_assert_eq!(decode_audio("AQID", None).unwrap(), [1, 2, 3].as_slice());
        }
    }
}
