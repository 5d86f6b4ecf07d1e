//! What is played where audio was lost.

use std::time::Duration;

use antiphon_audio::{AudioFormat, AudioFrame, g711::Law, pcm};

/// A repetition fades to nothing over so long (ITU-T G.711 appendix I).
const FADE: Duration = Duration::from_millis(60);

/// Audio of `samples` samples to follow `last`: its end again and again, fading, then silence. Whole
/// silence where nothing came before.
pub(super) fn continuation(format: AudioFormat, last: &[i16], samples: usize) -> AudioFrame {
    let fade = format.samples_in(FADE).max(1) as usize;
    let mut out = Vec::with_capacity(samples);
    for at in 0..samples {
        let sample = match last.len() {
            0 => 0,
            _ if at >= fade => 0,
            length => i32::from(last[at % length]) * (fade - at) as i32 / fade as i32,
        };
        out.push(sample as i16);
    }
    encode(format, &out)
}

/// Silence of so many samples.
pub(super) fn silence(format: AudioFormat, samples: usize) -> AudioFrame {
    AudioFrame::new(format, vec![0; samples * format.bytes_per_sample()]).silenced()
}

/// The samples of a frame.
pub(super) fn decode(audio: &AudioFrame, out: &mut Vec<i16>) {
    match audio.format {
        AudioFormat::Mulaw8k => Law::Mu.decode_into(&audio.data, out),
        AudioFormat::Alaw8k => Law::A.decode_into(&audio.data, out),
        _ => pcm::bytes_to_samples(&audio.data, out),
    }
}

fn encode(format: AudioFormat, samples: &[i16]) -> AudioFrame {
    let mut bytes = Vec::with_capacity(samples.len() * format.bytes_per_sample());
    match format {
        AudioFormat::Mulaw8k => Law::Mu.encode_into(samples, &mut bytes),
        AudioFormat::Alaw8k => Law::A.encode_into(samples, &mut bytes),
        _ => pcm::samples_to_bytes(samples, &mut bytes),
    }
    AudioFrame::new(format, bytes)
}
