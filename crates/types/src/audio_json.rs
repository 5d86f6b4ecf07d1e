//! Audio as JSON: silence by its length, sound as base64.

use std::borrow::Cow;

use base64_simd::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{AudioFormat, AudioFrame};

/// Bytes that a frame of silence may have when it is read: six minutes at 48 kHz.
const MAX_SILENCE: usize = 36 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct Form<'a> {
    format: AudioFormat,
    /// So many bytes that are all zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zeros: Option<usize>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    base64: Option<Cow<'a, str>>,
}

impl Serialize for AudioFrame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let silent = self.data.iter().all(|byte| *byte == 0);
        let form = Form {
            format: self.format,
            zeros: silent.then_some(self.data.len()),
            base64: (!silent).then(|| STANDARD.encode_to_string(&self.data).into()),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AudioFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = Form::deserialize(deserializer)?;
        let data = match (form.zeros, form.base64) {
            (Some(bytes), None) if bytes <= MAX_SILENCE => Bytes::from(vec![0; bytes]),
            (Some(_), None) => return Err(D::Error::custom("too much silence in one frame")),
            (None, Some(text)) => STANDARD
                .decode_to_vec(text.as_bytes())
                .map_err(|_| D::Error::custom("the audio is not base64"))?
                .into(),
            _ => return Err(D::Error::custom("a frame has either zeros or base64")),
        };
        Ok(Self::new(form.format, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(frame: &AudioFrame) -> String {
        let text = serde_json::to_string(frame).unwrap();
        assert_eq!(&serde_json::from_str::<AudioFrame>(&text).unwrap(), frame, "{text}");
        text
    }

    #[test]
    fn silence_is_written_by_its_length_and_sound_as_it_is() {
        let silence = round_trip(&AudioFrame::from_pcm16(16_000, &[0; 320]));
        assert!(silence.contains(r#""zeros":640"#), "{silence}");
        round_trip(&AudioFrame::from_pcm16(16_000, &[1, -2, 3]));
        round_trip(&AudioFrame::new(AudioFormat::Mulaw8k, vec![0xff; 160]));
        round_trip(&AudioFrame::from_pcm16(8_000, &[]));
    }

    #[test]
    fn nonsense_is_refused() {
        let format = r#""format":{"encoding":"mulaw8k"}"#;
        for rest in
            ["", r#","zeros":99999999999"#, r#","base64":"?""#, r#","zeros":1,"base64":"AA==""#]
        {
            let text = format!("{{{format}{rest}}}");
            assert!(serde_json::from_str::<AudioFrame>(&text).is_err(), "{text}");
        }
    }
}
