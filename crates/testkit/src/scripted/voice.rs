//! The tone that stands for the model's voice.

use std::{
    collections::HashMap,
    f32::consts::TAU,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use antiphon_audio::g711::Law;

use super::codec::Codec;

/// The tone where the script does not say.
pub(crate) const DEFAULT_HZ: f32 = 440.0;
/// At an eighth of full scale.
const AMPLITUDE: f32 = 4_096.0;
/// Pieces that are kept: replies of many sessions are made of the same few.
const MAX_KEPT: usize = 1_024;

type Key = (Codec, u32, u64, u64);

static PIECES: LazyLock<Mutex<HashMap<Key, Arc<str>>>> = LazyLock::new(Mutex::default);

/// The voice from one millisecond to another, as base64.
pub(crate) fn base64(codec: Codec, hz: f32, from_ms: u64, to_ms: u64) -> Arc<str> {
    // Whole periods come round every second for whole frequencies.
    let key = (codec, hz as u32, from_ms % 1_000, to_ms.saturating_sub(from_ms));
    let mut pieces = PIECES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(piece) = pieces.get(&key) {
        return piece.clone();
    }
    let (from, length) = (key.2, key.3);
    let bytes = bytes(codec, hz, from, from + length);
    let piece: Arc<str> = base64_simd::STANDARD.encode_to_string(&bytes).into();
    if pieces.len() >= MAX_KEPT {
        pieces.clear();
    }
    pieces.insert(key, piece.clone());
    piece
}

/// The voice from one millisecond to another.
pub(crate) fn bytes(codec: Codec, hz: f32, from_ms: u64, to_ms: u64) -> Vec<u8> {
    let rate = codec.samples(1_000) as f32;
    let samples: Vec<i16> = (codec.samples(from_ms)..codec.samples(to_ms))
        .map(|n| ((n as f32 * hz * TAU / rate).sin() * AMPLITUDE) as i16)
        .collect();
    match codec {
        Codec::Pcm(_) => samples.iter().flat_map(|sample| sample.to_le_bytes()).collect(),
        Codec::Ulaw => encoded(Law::Mu, &samples),
        Codec::Alaw => encoded(Law::A, &samples),
    }
}

fn encoded(law: Law, samples: &[i16]) -> Vec<u8> {
    let mut out = Vec::with_capacity(samples.len());
    law.encode_into(samples, &mut out);
    out
}
