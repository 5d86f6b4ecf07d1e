//! What a frame of audio costs in allocations.

use std::time::Instant;

use antiphon_gemini::Client;
use antiphon_live::{Frame, LiveCommand, LiveConfig, Outbox, WireProtocol};
use antiphon_types::AudioFrame;
use base64_simd::STANDARD;
use serde_json::json;

const FRAMES: u64 = 500;

fn ready(out: &mut Outbox) -> Client {
    let mut client = Client::new(&LiveConfig::new(), None).unwrap();
    let now = Instant::now();
    client.opened(now, out).unwrap();
    client.frame(Frame::Text(r#"{"setupComplete":{}}"#.into()), now, out).unwrap();
    out.frames.clear();
    out.events.clear();
    client
}

#[test]
fn a_frame_of_the_agents_voice_takes_two_allocations_or_fewer() {
    for bytes in [960_usize, 4_800, 48_000] {
        let mut out = Outbox::default();
        let mut client = ready(&mut out);
        let text = json!({"serverContent": {"modelTurn": {"role": "model", "parts": [{"inlineData": {
            "mimeType": "audio/pcm;rate=24000",
            "data": STANDARD.encode_to_string(vec![7_u8; bytes])}}]}}});
        let frame = Frame::Binary(text.to_string().into_bytes().into());
        let now = Instant::now();
        client.frame(frame.clone(), now, &mut out).unwrap();
        let mut kept = Vec::with_capacity(FRAMES as usize);
        let count = allocation_counter::measure(|| {
            for _ in 0..FRAMES {
                client.frame(frame.clone(), now, &mut out).unwrap();
                kept.extend(out.events.pop_back());
            }
        });
        let count = count.count_total;
        // The voice, and the list of parts, in which it is the only one.
        assert!(count <= 2 * FRAMES, "{count} allocations for {FRAMES} frames of {bytes} bytes");
        assert_eq!(kept.len() as u64, FRAMES);
    }
}

#[test]
fn a_frame_of_the_users_voice_takes_two_allocations_or_fewer() {
    let mut out = Outbox::default();
    let mut client = ready(&mut out);
    let frame = AudioFrame::from_pcm16(16_000, &[7; 320]);
    let now = Instant::now();
    let mut sent = 0;
    let count = allocation_counter::measure(|| {
        for _ in 0..FRAMES {
            client.command(LiveCommand::AppendAudio(frame.clone()), now, &mut out).unwrap();
            sent += out.frames.drain(..).count();
        }
    });
    assert_eq!(sent as u64, FRAMES);
    assert!(count.count_total <= 2 * FRAMES, "{} allocations", count.count_total);
}
