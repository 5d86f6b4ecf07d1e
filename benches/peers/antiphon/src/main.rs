//! Whole sessions of Antiphon against the load server, measured like the raw client: one
//! current-thread runtime; hooks, timers and memory are on, as a host has them.

#[path = "../../floor/src/bench.rs"]
mod bench;

use std::{rc::Rc, sync::Arc, time::Duration};

use antiphon::{
    agent::FuncTool,
    audio::{AudioFormat, ClockedSink},
    live::LiveConfig,
    providers::openai::OpenAi,
    session::{AgentSession, EventKind, IdleConfig, LifecycleHooks},
    types::{AudioFrame, JsonObject},
};
use bench::*;
use tokio::time::Instant;

thread_local! { static BENCH: Rc<Bench> = Rc::new(Bench::default()); }

struct Hooks;
impl LifecycleHooks for Hooks {}

fn main() {
    let arguments = args();
    let base = rss_kb();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async move {
        let provider = Arc::new(OpenAi::new());
        for sid in 1..=arguments.sessions {
            if let Err(error) = session(sid, arguments.port, provider.clone()).await {
                BENCH.with(|bench| bench.err(error.to_string()));
            }
        }
        let bench = BENCH.with(Rc::clone);
        measure(&arguments, &bench, base).await;
    });
}

async fn session(
    sid: u32,
    port: u16,
    provider: Arc<OpenAi>,
) -> Result<(), Box<dyn std::error::Error>> {
    let sink = ClockedSink::new(AudioFormat::pcm16(24_000)).observed_by(|frame, _| {
        BENCH.with(|bench| bench.on_audio(&frame.data));
    });
    let weather = FuncTool::new("get_weather", "The weather.", None, |_, _| async {
        BENCH.with(|bench| bench.tools.set(bench.tools.get() + 1));
        Ok(JsonObject::from_iter([("temp".to_owned(), 21.into())]))
    });
    let session = AgentSession::builder(provider).tool(weather).hooks(Hooks).sink(sink).build()?;
    let mut events = session.events();
    let mut config = LiveConfig::new().api_key("x").model(format!("bench-{sid}")).instructions("x");
    config.endpoint = Some(format!("ws://127.0.0.1:{port}/v1/realtime"));
    session.start(config, IdleConfig::default()).await?;

    tokio::task::spawn_local(async move {
        while let Some(event) = events.next().await {
            match event.kind {
                EventKind::Interrupted => BENCH.with(|bench| bench.on_interrupt(sid)),
                EventKind::Error { message, .. } => BENCH.with(|bench| bench.err(message)),
                _ => {}
            }
        }
    });
    tokio::task::spawn_local(async move {
        let mut samples = vec![7u8; FRAME];
        let mut next = Instant::now() + Duration::from_millis((u64::from(sid) * 7) % 20);
        loop {
            tokio::time::sleep_until(next).await;
            stamp(&mut samples, sid);
            let frame = AudioFrame::new(AudioFormat::pcm16(24_000), samples.clone());
            if let Err(error) = session.send_audio(frame) {
                return BENCH.with(|bench| bench.err(error.to_string()));
            }
            BENCH.with(|bench| bench.frames.set(bench.frames.get() + 1));
            next += Duration::from_millis(20);
        }
    });
    Ok(())
}
