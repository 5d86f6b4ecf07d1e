//! What is said: contents of parts.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};
use serde_json::Value;

use super::{
    FunctionCall, FunctionResponse, Transcription, decode_base64, messages, open_enum::open_enums,
};

messages! {
    /// A turn, or a piece of one.
    Content {
        /// Its parts, in order.
        parts: Vec<Part>,
        /// Whose.
        role: Role,
    }

    /// One part of a content. Holds one kind of data.
    Part {
        /// Words. With [`Part::thought`] they are not for the user.
        text: String,
        /// Whether this is a thought.
        thought: bool,
        /// Names a thought in later requests, as base64.
        thought_signature: String,
        /// Bytes: voice, an image.
        inline_data: Blob,
        /// A file.
        file_data: Value,
        /// A call within a content.
        function_call: FunctionCall,
        /// An output within a content.
        function_response: FunctionResponse,
        /// Code that the service ran.
        executable_code: Value,
        /// What came of it.
        code_execution_result: Value,
        /// The call of a tool that the service runs.
        tool_call: Value,
        /// What that gave.
        tool_response: Value,
        /// Of a video.
        video_metadata: Value,
        /// How finely an image is looked at.
        media_resolution: Value,
        /// How the media is read.
        media_processing: Value,
        /// Of the part as a whole.
        part_metadata: Value,
        /// The words of audio.
        audio_transcription: Transcription,
        /// Of speech.
        speech_metadata: Value,
        /// Of a document.
        document_metadata: Value,
        /// Of a spreadsheet.
        spreadsheet_metadata: Value,
        /// Of audio.
        audio_metadata: Value,
    }

    /// Bytes and what they are.
    Blob {
        /// What they are.
        mime_type: MediaType,
        /// The bytes; base64 on the wire.
        #[serde(with = "base64_bytes")]
        data: Bytes,
        /// A name to show.
        display_name: String,
    }
}

open_enums! {
    /// Who speaks in a content.
    Role {
        /// The person.
        User = "user",
        /// The model.
        Model = "model",
        /// What stands above the conversation (Vertex AI).
        System = "system",
    }
}

impl Content {
    /// A content of words.
    pub fn text(role: Option<Role>, text: impl Into<String>) -> Self {
        Self { parts: Some(vec![Part::text(text)]), role }
    }
}

impl Part {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// Bytes.
    pub fn inline(blob: Blob) -> Self {
        Self { inline_data: Some(blob), ..Self::default() }
    }
}

impl Blob {
    /// Bytes of a kind.
    pub fn new(mime_type: impl Into<MediaType>, data: impl Into<Bytes>) -> Self {
        Self { mime_type: Some(mime_type.into()), data: Some(data.into()), display_name: None }
    }
}

/// A media type. Voice is told apart, since it comes fifty times a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `audio/pcm`: signed 16-bit little-endian samples, one channel.
    Pcm {
        /// Samples per second, where told.
        rate_hz: Option<u32>,
    },
    /// Any other, as it is written.
    Other(Box<str>),
}

impl MediaType {
    pub(super) const PCM_RATE: &str = "audio/pcm;rate=";

    /// Voice of this rate.
    pub const fn pcm(rate_hz: u32) -> Self {
        Self::Pcm { rate_hz: Some(rate_hz) }
    }

    /// The text on the wire.
    pub fn as_str(&self) -> Cow<'_, str> {
        match self {
            Self::Pcm { rate_hz: Some(rate) } => format!("{}{rate}", Self::PCM_RATE).into(),
            Self::Pcm { rate_hz: None } => "audio/pcm".into(),
            Self::Other(text) => (&**text).into(),
        }
    }

    /// The samples per second, also of a type that is written unusually, such as
    /// `audio/l16; rate=24000`. `None`: not told, or no audio.
    pub fn rate_hz(&self) -> Option<u32> {
        match self {
            Self::Pcm { rate_hz } => *rate_hz,
            Self::Other(text) => text.split(';').skip(1).find_map(|parameter| {
                let (name, value) = parameter.split_once('=')?;
                name.trim().eq_ignore_ascii_case("rate").then(|| value.trim().parse().ok())?
            }),
        }
    }

    /// Whether it is audio.
    pub fn is_audio(&self) -> bool {
        match self {
            Self::Pcm { .. } => true,
            Self::Other(text) => {
                text.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("audio/"))
            }
        }
    }
}

impl From<&str> for MediaType {
    fn from(text: &str) -> Self {
        if text == "audio/pcm" {
            return Self::Pcm { rate_hz: None };
        }
        let rate = text.strip_prefix(Self::PCM_RATE);
        // Only what is written as we would write it, so that it comes out as it came in.
        let plain = rate.filter(|rate| {
            !rate.starts_with(['0', '+']) && rate.bytes().all(|byte| byte.is_ascii_digit())
        });
        match plain.and_then(|rate| rate.parse().ok()) {
            Some(rate) => Self::pcm(rate),
            None => Self::Other(text.into()),
        }
    }
}

impl Serialize for MediaType {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.as_str())
    }
}

impl<'de> Deserialize<'de> for MediaType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = MediaType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a media type")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MediaType, E> {
                Ok(MediaType::from(text))
            }
        }
        from.deserialize_str(Text)
    }
}

/// Bytes that are base64 on the wire.
mod base64_bytes {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => to.serialize_str(&base64_simd::STANDARD.encode_to_string(bytes)),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Option<Bytes>, D::Error>
    where
        D: Deserializer<'de>,
    {
        struct Base64;
        impl<'de> Visitor<'de> for Base64 {
            type Value = Option<Bytes>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Option<Bytes>, E> {
                decode_base64(text).map(Some).map_err(E::custom)
            }

            fn visit_none<E: Error>(self) -> Result<Option<Bytes>, E> {
                Ok(None)
            }

            fn visit_unit<E: Error>(self) -> Result<Option<Bytes>, E> {
                Ok(None)
            }

            fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Option<Bytes>, D::Error> {
                from.deserialize_str(self)
            }
        }
        from.deserialize_option(Base64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_come_out_as_they_came_in() {
        for text in [
            "audio/pcm",
            "audio/pcm;rate=24000",
            "audio/pcm;rate=024000",
            "audio/pcm; rate=16000",
            "audio/pcm;rate=99999999999",
            "audio/pcm;rate=",
            "Audio/L16;Rate=8000",
            "image/jpeg",
            "é",
            "",
        ] {
            let media = MediaType::from(text);
            assert_eq!(media.as_str(), text);
        }
        assert_eq!(MediaType::from("audio/pcm;rate=24000").rate_hz(), Some(24_000));
        assert_eq!(MediaType::from("audio/pcm; rate=16000").rate_hz(), Some(16_000));
        assert_eq!(MediaType::from("Audio/L16;Rate=8000").rate_hz(), Some(8_000));
        assert!(
            MediaType::from("Audio/L16").is_audio() && !MediaType::from("image/png").is_audio()
        );
    }
}
