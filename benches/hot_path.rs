//! What every 20 ms of a talking session costs: `cargo bench --bench hot_path`.
//!
//! Allocations are counted beside the times.

use std::{hint::black_box, time::Instant};

use antiphon::{
    audio::{
        AudioFormat, AudioFrame, AudioSink, ClockedSink, Converter, Generation, Resampler,
        SpeechDetector,
    },
    session::EngineProbe,
};
use divan::{AllocProfiler, Bencher};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

fn frame(sample_rate_hz: u32) -> AudioFrame {
    antiphon_testkit::voice_like(sample_rate_hz, 20)
}

/// An audio event through the engine: from the provider's event to the order to play it, and the
/// news that it was heard.
#[divan::bench]
fn engine_audio_event(bencher: Bencher) {
    let mut probe = EngineProbe::new(Instant::now());
    let frame = frame(24_000);
    bencher.bench_local(|| probe.audio(black_box(&frame)));
}

/// A frame of the user's voice through the engine.
#[divan::bench]
fn engine_uplink_frame(bencher: Bencher) {
    let mut probe = EngineProbe::new(Instant::now());
    let frame = frame(24_000);
    bencher.bench_local(|| probe.uplink(black_box(&frame)));
}

#[divan::bench(args = [(24_000, 48_000), (48_000, 24_000), (8_000, 24_000), (48_000, 16_000), (44_100, 16_000)])]
fn resample_20_ms(bencher: Bencher, (from, to): (u32, u32)) {
    let mut resampler = Resampler::new(from, to).expect("both rates are supported");
    let mut samples = Vec::new();
    antiphon::audio::pcm::bytes_to_samples(&frame(from).data, &mut samples);
    let mut out = Vec::with_capacity(2 * samples.len() * to as usize / from as usize);
    bencher.bench_local(|| {
        out.clear();
        resampler.process(black_box(&samples), &mut out);
        out.len()
    });
}

/// Bytes in, bytes out: what the session does where its sink has another rate.
#[divan::bench]
fn convert_24k_to_48k(bencher: Bencher) {
    let mut converter =
        Converter::new(AudioFormat::pcm16(24_000), AudioFormat::pcm16(48_000)).expect("supported");
    let frame = frame(24_000);
    bencher.bench_local(|| converter.convert(black_box(&frame)));
}

#[divan::bench]
fn convert_pcm_to_mulaw(bencher: Bencher) {
    let mut converter =
        Converter::new(AudioFormat::pcm16(8_000), AudioFormat::Mulaw8k).expect("supported");
    let frame = frame(8_000);
    bencher.bench_local(|| converter.convert(black_box(&frame)));
}

#[divan::bench]
fn sink_write_20_ms(bencher: Bencher) {
    let mut sink = ClockedSink::new(AudioFormat::pcm16(24_000));
    let frame = frame(24_000);
    let mut now = Instant::now();
    bencher.bench_local(|| {
        now += frame.duration();
        sink.write(Generation(1), black_box(&frame), now)
    });
}

#[divan::bench]
fn speech_detection_16_ms(bencher: Bencher) {
    let mut detector = antiphon::audio::EarshotDetector::new();
    let mut samples = Vec::new();
    antiphon::audio::pcm::bytes_to_samples(&frame(16_000).data, &mut samples);
    let length = detector.frame_samples();
    bencher.bench_local(|| detector.score(black_box(&samples[..length])));
}
