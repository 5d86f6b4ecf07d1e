//! Audio as carriers put it into messages.

use std::borrow::Cow;

use antiphon_audio::AudioFormat;
use base64_simd::STANDARD;
use bytes::Bytes;

use super::DialectError;

/// A coding of telephone audio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Coding {
    /// G.711 mu-law, 8,000 Hz.
    Pcmu,
    /// G.711 A-law, 8,000 Hz.
    Pcma,
    /// Signed 16-bit samples.
    L16,
}

impl Coding {
    /// The format at this sample rate; G.711 has only one.
    pub fn at(self, sample_rate_hz: u32) -> Result<AudioFormat, DialectError> {
        match (self, sample_rate_hz) {
            (Self::Pcmu, 8_000) => Ok(AudioFormat::Mulaw8k),
            (Self::Pcma, 8_000) => Ok(AudioFormat::Alaw8k),
            (Self::L16, 8_000..=48_000) => Ok(AudioFormat::pcm16(sample_rate_hz)),
            _ => Err(DialectError::Format(format!("{self:?} at {sample_rate_hz} Hz"))),
        }
    }

    /// The coding that a carrier names so. Opus, G.722 and AMR are known names that cannot be taken.
    pub fn named(name: &str) -> Result<Self, DialectError> {
        let bare = name.trim();
        let bare = bare.strip_prefix("audio/").unwrap_or(bare);
        match bare.to_ascii_lowercase().as_str() {
            "x-mulaw" | "mulaw" | "pcmu" | "ulaw" => Ok(Self::Pcmu),
            "x-alaw" | "alaw" | "pcma" => Ok(Self::Pcma),
            "x-l16" | "l16" | "x-raw" | "linear16" | "slin" => Ok(Self::L16),
            _ => Err(DialectError::Format(name.chars().take(32).collect())),
        }
    }
}

/// The order of the two bytes of a 16-bit sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// Low byte first.
    LittleEndian,
    /// High byte first, as in RTP (RFC 3551, section 4.5.11).
    #[default]
    BigEndian,
}

/// The bytes that a base64 text stands for.
pub(super) fn decode(base64: &str) -> Result<Vec<u8>, DialectError> {
    STANDARD
        .decode_to_vec(base64)
        .map_err(|_| DialectError::Malformed("a payload that is not base64".into()))
}

/// Base64 of `bytes`, appended.
pub(super) fn encode_into(bytes: &[u8], out: &mut String) {
    STANDARD.encode_append(bytes, out);
}

/// The same samples in the other byte order, where `order` is not ours.
pub(super) fn ordered(format: AudioFormat, order: ByteOrder, bytes: &[u8]) -> Cow<'_, [u8]> {
    match (format, order) {
        (AudioFormat::Pcm16 { .. }, ByteOrder::BigEndian) => {
            Cow::Owned(bytes.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect())
        }
        _ => Cow::Borrowed(bytes),
    }
}

/// What [`ordered`] makes of a payload that came.
pub(super) fn received(format: AudioFormat, order: ByteOrder, bytes: Vec<u8>) -> Bytes {
    match ordered(format, order, &bytes) {
        Cow::Owned(swapped) => swapped.into(),
        Cow::Borrowed(_) => bytes.into(),
    }
}
