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

/// A frame of the agent's voice off the wire: parsed, its reply looked up, decoded, told. To be
/// compared with [`bare_audio_delta`].
#[cfg(feature = "openai")]
#[divan::bench(args = [960, 4_800])]
fn openai_audio_delta(bencher: Bencher, bytes: usize) {
    use antiphon::live::{Frame, Outbox, WireProtocol};

    let mut client = wire::talking_client();
    let mut out = Outbox::default();
    let text = Frame::Text(wire::audio_delta(bytes).into());
    let now = Instant::now();
    bencher.bench_local(|| {
        client.frame(black_box(text.clone()), now, &mut out).expect("a good frame");
        out.events.pop_front()
    });
}

/// The least that a client could do with the same frame: a borrowed parse, and base64 decoded into
/// one buffer.
#[cfg(feature = "openai")]
#[divan::bench(args = [960, 4_800])]
fn bare_audio_delta(bencher: Bencher, bytes: usize) {
    let text = wire::audio_delta(bytes);
    let mut pcm = vec![0; bytes];
    bencher.bench_local(|| wire::bare_decode(black_box(&text), &mut pcm));
}

/// A frame of the user's voice to the wire. To be compared with [`bare_append`].
#[cfg(feature = "openai")]
#[divan::bench(args = [960, 4_800])]
fn openai_append(bencher: Bencher, bytes: usize) {
    use antiphon::live::{LiveCommand, Outbox, WireProtocol};

    let mut client = wire::talking_client();
    let mut out = Outbox::default();
    let frame = AudioFrame::new(AudioFormat::pcm16(24_000), vec![7; bytes]);
    let now = Instant::now();
    bencher.bench_local(|| {
        let command = LiveCommand::AppendAudio(black_box(&frame).clone());
        client.command(command, now, &mut out).expect("a good command");
        out.frames.pop_front()
    });
}

/// The least that a client could do: base64 into a new string.
#[cfg(feature = "openai")]
#[divan::bench(args = [960, 4_800])]
fn bare_append(bencher: Bencher, bytes: usize) {
    let pcm = vec![7; bytes];
    bencher.bench_local(|| wire::bare_encode(black_box(&pcm)));
}

#[cfg(feature = "openai")]
mod wire {
    use std::{borrow::Cow, time::Instant};

    use antiphon::{
        live::{Frame, LiveConfig, Outbox, WireProtocol},
        providers::openai::Client,
    };
    use base64_simd::{AsOut, STANDARD};
    use serde::Deserialize;

    /// A client in the middle of a reply.
    pub fn talking_client() -> Client {
        let mut client = Client::new(&LiveConfig::new(), None).expect("a good configuration");
        let (mut out, now) = (Outbox::default(), Instant::now());
        client.opened(now, &mut out).expect("opens");
        for text in [
            r#"{"type":"session.created","event_id":"e1","session":{"type":"realtime"}}"#,
            r#"{"type":"session.updated","event_id":"e2","session":{"type":"realtime"}}"#,
            r#"{"type":"response.created","event_id":"e3","response":{"id":"resp_1"}}"#,
        ] {
            client.frame(Frame::Text(text.into()), now, &mut out).expect("a good frame");
        }
        client
    }

    pub fn audio_delta(bytes: usize) -> String {
        let delta = STANDARD.encode_to_string(vec![7; bytes]);
        format!(
            r#"{{"type":"response.output_audio.delta","event_id":"event_000001_00000042","response_id":"resp_1","item_id":"item_1","output_index":0,"content_index":0,"delta":"{delta}"}}"#
        )
    }

    #[derive(Deserialize)]
    struct Bare<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        item_id: Cow<'a, str>,
        #[serde(borrow)]
        delta: Cow<'a, str>,
    }

    pub fn bare_decode(text: &str, pcm: &mut [u8]) -> usize {
        let event: Bare<'_> = serde_json::from_str(text).expect("a good frame");
        let decoded = STANDARD.decode(event.delta.as_bytes(), pcm.as_out()).expect("base64");
        decoded.len() + event.kind.len() + event.item_id.len()
    }

    pub fn bare_encode(pcm: &[u8]) -> String {
        let head = "{\"type\":\"input_audio_buffer.append\",\"audio\":\"";
        let mut text = String::with_capacity(head.len() + STANDARD.encoded_length(pcm.len()) + 2);
        text.push_str(head);
        STANDARD.encode_append(pcm, &mut text);
        text.push_str("\"}");
        text
    }
}
