//! Synthetic signals.

use antiphon_types::AudioFrame;

/// A sine of `hz` and `ms` at half scale.
pub fn tone(sample_rate_hz: u32, hz: f32, ms: u32) -> AudioFrame {
    let count = sample_rate_hz as u64 * u64::from(ms) / 1_000;
    let step = hz * std::f32::consts::TAU / sample_rate_hz as f32;
    let samples: Vec<i16> =
        (0..count).map(|n| ((n as f32 * step).sin() * 16_384.0) as i16).collect();
    AudioFrame::from_pcm16(sample_rate_hz, &samples)
}

/// A buzz with the pitch and rhythm of a voice: harmonics of 120 Hz under a 4 Hz envelope.
pub fn voice_like(sample_rate_hz: u32, ms: u32) -> AudioFrame {
    let count = sample_rate_hz as u64 * u64::from(ms) / 1_000;
    let rate = sample_rate_hz as f32;
    let samples: Vec<i16> = (0..count)
        .map(|n| {
            let t = n as f32 / rate;
            let buzz: f32 = (1..20)
                .map(|k| (t * 120.0 * k as f32 * std::f32::consts::TAU).sin() / k as f32)
                .sum();
            let envelope = 0.55 + 0.45 * (t * 4.0 * std::f32::consts::TAU).sin();
            (buzz * envelope * 8_000.0) as i16
        })
        .collect();
    AudioFrame::from_pcm16(sample_rate_hz, &samples)
}
