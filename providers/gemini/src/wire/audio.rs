//! Bytes on the wire: voice from a frame straight into shared bytes, and the user's audio straight
//! into a frame.

use base64_simd::STANDARD;
use bytes::Bytes;

use super::MediaType;

/// Audio of one frame at most, in bytes: more does not fit into a message of 16 MiB.
pub const MAX_APPEND_BYTES: usize = 12 * 1024 * 1024 - 4 * 1024;

/// Text that is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not base64")]
pub struct AudioDecodeError;

/// Decodes base64 into memory of exactly its size, which goes back as soon as it was played.
///
/// Takes the standard alphabet, which the service and the JavaScript SDK write; where that fails,
/// also the URL-safe one of the Python SDK, and text without padding or with spaces.
pub fn decode_base64(base64: &str) -> Result<Bytes, AudioDecodeError> {
    match STANDARD.decode_to_vec(base64) {
        Ok(bytes) => Ok(bytes.into()),
        Err(_) => decode_forgiving(base64),
    }
}

#[cold]
fn decode_forgiving(base64: &str) -> Result<Bytes, AudioDecodeError> {
    let standard: Vec<u8> = base64
        .bytes()
        .map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        })
        .collect();
    let decoded = base64_simd::forgiving_decode_to_vec(&standard).map_err(|_| AudioDecodeError)?;
    Ok(decoded.into())
}

/// The frame of `realtimeInput.audio` with `audio`, which holds at most [`MAX_APPEND_BYTES`].
///
/// A fresh text of exactly its length: it becomes a frame without another copy, check or
/// allocation.
pub fn append_frame(rate_hz: u32, audio: &[u8]) -> String {
    const HEAD: &str = r#"{"realtimeInput":{"audio":{"mimeType":""#;
    const MIDDLE: &str = r#"","data":""#;
    const TAIL: &str = r#""}}}"#;
    let mut digits = Digits::default();
    let rate = digits.write(rate_hz);
    let length = HEAD.len()
        + MediaType::PCM_RATE.len()
        + rate.len()
        + MIDDLE.len()
        + STANDARD.encoded_length(audio.len())
        + TAIL.len();
    let mut text = String::with_capacity(length);
    for part in [HEAD, MediaType::PCM_RATE, rate, MIDDLE] {
        text.push_str(part);
    }
    STANDARD.encode_append(audio, &mut text);
    text.push_str(TAIL);
    text
}

/// A number in decimal without an allocation.
#[derive(Default)]
struct Digits([u8; 10]);

impl Digits {
    fn write(&mut self, mut number: u32) -> &str {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        std::str::from_utf8(&self.0[at..]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn quirk_72_both_alphabets_decode_and_other_texts_do_not() {
        assert_eq!(decode_base64("+/8=").unwrap(), [0xfb, 0xff].as_slice());
        assert_eq!(decode_base64("-_8=").unwrap(), [0xfb, 0xff].as_slice());
        assert_eq!(decode_base64("-_8").unwrap(), [0xfb, 0xff].as_slice());
        assert_eq!(decode_base64("AQ ID").unwrap(), [1, 2, 3].as_slice());
        for text in ["A", "AQI=D", "äöü", "AQ*D"] {
            assert_eq!(decode_base64(text), Err(AudioDecodeError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn audio_round_trips(rate: u32, audio in prop::collection::vec(any::<u8>(), 0..12_000)) {
            let text = append_frame(rate, &audio);
            prop_assert_eq!(text.capacity(), text.len());
            let frame: Value = serde_json::from_str(&text).unwrap();
            let blob = &frame["realtimeInput"]["audio"];
            prop_assert_eq!(&blob["mimeType"], &json!(format!("audio/pcm;rate={rate}")));
            let decoded = decode_base64(blob["data"].as_str().unwrap()).unwrap();
            prop_assert_eq!(&decoded[..], &audio[..]);
        }

        #[test]
        fn any_text_is_survived(text in ".{0,200}", base64 in "[A-Za-z0-9+/=_-]{0,64}") {
            let _ = decode_base64(&text);
            let _ = decode_base64(&base64);
        }
    }
}
