//! What an audio frame costs in allocations, through a whole session on one thread.

use std::time::Duration;

use antiphon::{
    audio::{AudioFormat, AudioFrame, ClockedSink},
    live::{LiveConfig, LiveEvent, ReplyId},
    session::{AgentSession, EngineProbe, IdleConfig},
};
use antiphon_testkit::{FarEnd, ScriptedProvider};
use tokio::runtime::Runtime;

const FRAMES: u64 = 400;

struct Talk {
    runtime: Runtime,
    session: AgentSession,
    far: FarEnd,
}

fn talk() -> Talk {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let provider = ScriptedProvider::default();
    let (session, far) = runtime.block_on(async {
        let session = AgentSession::builder(std::sync::Arc::new(provider.clone()))
            .sink(ClockedSink::new(AudioFormat::pcm16(24_000)))
            .build()
            .unwrap();
        session.start(LiveConfig::new(), IdleConfig::OFF).await.unwrap();
        (session, provider.far_end().await)
    });
    Talk { runtime, session, far }
}

fn allocations_of(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

#[test]
fn a_frame_of_the_agents_voice_takes_two_allocations_or_fewer() {
    let talk = talk();
    let reply = ReplyId::from("r");
    talk.far.emit(LiveEvent::ReplyStarted { reply: reply.clone(), request: None });
    let item: std::sync::Arc<str> = "i".into();
    let frame = AudioFrame::from_pcm16(24_000, &[100; 480]);
    let event = || LiveEvent::Audio {
        reply: reply.clone(),
        item: item.clone(),
        content_index: 0,
        frame: frame.clone(),
    };
    // The first second fills queues and buffers that stay.
    for _ in 0..50 {
        talk.far.emit(event());
    }
    talk.runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    let mut allocations = 0;
    for _ in 0..FRAMES / 50 {
        for _ in 0..50 {
            talk.far.emit(event());
        }
        allocations += allocations_of(|| {
            talk.runtime.block_on(async { tokio::time::sleep(Duration::from_secs(1)).await });
        });
    }
    assert!(allocations <= 2 * FRAMES, "{allocations} allocations for {FRAMES} frames");
    assert_eq!(talk.session.stats().stale_audio_frames, 0);
}

#[test]
fn a_frame_of_the_users_voice_takes_two_allocations_or_fewer() {
    let mut talk = talk();
    let frame = AudioFrame::from_pcm16(16_000, &[100; 320]);
    let round = |talk: &mut Talk| {
        let Talk { runtime, session, far } = talk;
        runtime.block_on(async {
            for _ in 0..50 {
                session.send_audio(frame.clone()).unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        far.drain().len() as u64
    };
    round(&mut talk);
    let mut frames = 0;
    let allocations = allocations_of(|| {
        for _ in 0..FRAMES / 50 {
            frames += round(&mut talk);
        }
    });
    assert_eq!(frames, FRAMES);
    assert!(allocations <= 2 * FRAMES, "{allocations} allocations for {FRAMES} frames");
}

#[test]
fn trial_f07_an_hour_of_talk_takes_no_more_memory_than_a_minute() {
    const A_MINUTE: usize = 60 * 50;
    let mut probe = EngineProbe::new(std::time::Instant::now());
    let up = AudioFrame::from_pcm16(16_000, &[100; 320]);
    let down = AudioFrame::from_pcm16(24_000, &[100; 480]);
    let mut minute = || {
        for _ in 0..A_MINUTE {
            assert_eq!((probe.uplink(&up), probe.audio(&down)), (1, 480));
        }
    };
    minute();
    let hour = allocation_counter::measure(|| (0..60).for_each(|_| minute()));
    assert!(hour.bytes_current < 1_024, "{} bytes are kept", hour.bytes_current);
    assert!(hour.bytes_max < 64 * 1_024, "{} bytes at a time", hour.bytes_max);
}
