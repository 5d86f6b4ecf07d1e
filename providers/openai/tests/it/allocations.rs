//! What a frame of audio costs in allocations.

use std::time::Instant;

use antiphon_live::{Frame, LiveCommand, LiveConfig, Outbox, WireProtocol};
use antiphon_openai::Client;
use antiphon_types::AudioFrame;
use base64_simd::STANDARD;
use serde_json::json;

const FRAMES: u64 = 500;

fn ready(out: &mut Outbox) -> Client {
    let mut client = Client::new(&LiveConfig::new(), None).unwrap();
    let now = Instant::now();
    client.opened(now, out).unwrap();
    for kind in ["session.created", "session.updated"] {
        let text = json!({"type": kind, "session": {"type": "realtime"}}).to_string();
        client.frame(Frame::Text(text.into()), now, out).unwrap();
    }
    out.frames.clear();
    out.events.clear();
    client
}

#[test]
fn a_frame_of_the_agents_voice_takes_two_allocations_or_fewer() {
    for bytes in [960_usize, 4_800, 48_000] {
        let mut out = Outbox::default();
        let mut client = ready(&mut out);
        let text = json!({
            "type": "response.output_audio.delta", "event_id": "event_abcdefghijklmnop",
            "response_id": "resp_abcdefghijklmnop", "item_id": "item_abcdefghijklmnop",
            "output_index": 0, "content_index": 0,
            "delta": STANDARD.encode_to_string(vec![7_u8; bytes]),
        });
        let frame = Frame::Text(text.to_string().into());
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
        assert!(count <= 2 * FRAMES, "{count} allocations for {FRAMES} frames of {bytes} bytes");
    }
}

#[test]
fn a_frame_of_the_users_voice_takes_two_allocations_or_fewer() {
    let mut out = Outbox::default();
    let mut client = ready(&mut out);
    let frame = AudioFrame::from_pcm16(24_000, &[7; 480]);
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

#[test]
fn quirk_38_what_was_said_is_not_kept() {
    let mut out = Outbox::default();
    let mut client = ready(&mut out);
    let frame = AudioFrame::from_pcm16(24_000, &[7; 2_400]);
    let kept = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            client
                .command(LiveCommand::AppendAudio(frame.clone()), Instant::now(), &mut out)
                .unwrap();
            out.frames.clear();
        }
    });
    assert!(kept.bytes_current < 64 * 1024, "{} bytes after 100 s of speech", kept.bytes_current);
}
