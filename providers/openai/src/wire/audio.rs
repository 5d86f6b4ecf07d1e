//! The fast path: voice from a frame straight into shared bytes, and the user's audio straight
//! into a frame.

use std::borrow::Cow;

use base64_simd::{AsOut, STANDARD};
use bytes::{Bytes, BytesMut};
use serde::Deserialize;

use super::DecodeError;

/// Audio of an append at most: 15 MiB of base64.
pub const MAX_APPEND_BYTES: usize = 15 * 1024 * 1024 / 4 * 3;
/// Voice is decoded into pieces of this size, which several frames share.
const CHUNK_BYTES: usize = 16 * 1024;
/// Longer frames get memory of their own.
const MAX_SHARED_BYTES: usize = CHUNK_BYTES / 2;

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

/// Where voice is decoded to: memory that is used again once all frames in it are gone.
#[derive(Debug)]
pub struct AudioPool {
    chunk: BytesMut,
}

impl Default for AudioPool {
    fn default() -> Self {
        Self { chunk: BytesMut::new() }
    }
}

impl AudioPool {
    /// Decodes base64. `carry`, if there is one, comes before it.
    ///
    /// Takes the standard alphabet; where that fails, also the URL-safe one and text without
    /// padding or with spaces.
    pub fn decode(&mut self, base64: &str, carry: Option<u8>) -> Result<Bytes, AudioDecodeError> {
        let text = base64.as_bytes();
        let Ok(length) = STANDARD.decoded_length(text) else {
            return decode_forgiving(base64, carry);
        };
        let from = usize::from(carry.is_some());
        let whole = from + length;
        if whole > MAX_SHARED_BYTES {
            let mut own = vec![0; whole];
            return match decode_into(text, carry, &mut own) {
                Ok(()) => Ok(own.into()),
                Err(AudioDecodeError) => decode_forgiving(base64, carry),
            };
        }
        if self.chunk.capacity() < whole {
            // Takes the old chunk again if nothing refers to it any more.
            self.chunk.reserve(CHUNK_BYTES);
        }
        self.chunk.resize(whole, 0);
        match decode_into(text, carry, &mut self.chunk) {
            Ok(()) => Ok(self.chunk.split().freeze()),
            Err(AudioDecodeError) => {
                self.chunk.clear();
                decode_forgiving(base64, carry)
            }
        }
    }
}

fn decode_into(text: &[u8], carry: Option<u8>, out: &mut [u8]) -> Result<(), AudioDecodeError> {
    let from = usize::from(carry.is_some());
    if let Some(carry) = carry {
        out[0] = carry;
    }
    STANDARD.decode(text, out[from..].as_out()).map(drop).map_err(|_| AudioDecodeError)
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
        let mut pool = AudioPool::default();
        assert_eq!(pool.decode(&delta.delta, None).unwrap(), [1, 2, 3, 4].as_slice());
        assert_eq!(pool.decode(&delta.delta, Some(9)).unwrap(), [9, 1, 2, 3, 4].as_slice());
    }

    #[test]
    fn escapes_and_missing_fields_are_no_trouble() {
        let delta = AudioDelta::decode(r#"{"type":"x","delta":"AQ\u0049D"}"#).unwrap();
        assert_eq!(AudioPool::default().decode(&delta.delta, None).unwrap(), [1, 2, 3].as_slice());
        assert_eq!(delta.response_id, "");
    }

    #[test]
    fn other_alphabets_decode_and_other_texts_do_not() {
        let mut pool = AudioPool::default();
        assert_eq!(pool.decode("-_8", None).unwrap(), [0xfb, 0xff].as_slice());
        assert_eq!(pool.decode("-_8", Some(7)).unwrap(), [7, 0xfb, 0xff].as_slice());
        assert_eq!(pool.decode("AQ ID", None).unwrap(), [1, 2, 3].as_slice());
        for text in ["A", "AQI=D", "äöü", "AQ*D"] {
            assert_eq!(pool.decode(text, None), Err(AudioDecodeError), "{text}");
        }
        assert_eq!(pool.decode("AQID", None).unwrap(), [1, 2, 3].as_slice());
    }

    #[test]
    fn a_released_chunk_is_used_again() {
        let mut pool = AudioPool::default();
        let text = STANDARD.encode_to_string(vec![7_u8; 960]);
        let first = pool.decode(&text, None).unwrap();
        let address = first.as_ptr();
        drop(first);
        let found = (0..200).any(|_| pool.decode(&text, None).unwrap().as_ptr() == address);
        assert!(found);
    }

    proptest! {
        #[test]
        fn audio_round_trips(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12_000), 1..4),
            carry: Option<u8>,
        ) {
            let mut pool = AudioPool::default();
            let mut kept = Vec::new();
            for audio in &frames {
                let text = append_frame(audio);
                let event: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(&event["type"], "input_audio_buffer.append");
                let base64 = event["audio"].as_str().unwrap();
                let expected: Vec<u8> = carry.into_iter().chain(audio.iter().copied()).collect();
                let decoded = pool.decode(base64, carry).unwrap();
                prop_assert_eq!(&decoded, &expected);
                kept.push((decoded, expected));
            }
            for (decoded, expected) in kept {
                prop_assert_eq!(decoded, expected);
            }
        }

        #[test]
        fn any_text_is_survived(text in ".{0,200}", base64 in "[A-Za-z0-9+/=_-]{0,64}") {
            let mut pool = AudioPool::default();
            let _ = AudioDelta::decode(&text);
            let _ = pool.decode(&text, None);
            let _ = pool.decode(&base64, Some(1));
            prop_assert_eq!(pool.decode("AQID", None).unwrap(), [1, 2, 3].as_slice());
        }
    }
}
