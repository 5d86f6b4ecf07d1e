//! What the session's engine costs: `cargo bench --bench engine`.
//!
//! The engine alone, in events per second; then a whole session on a real clock against a server in
//! this process, over TCP: how long it takes from the server's word that the user speaks until the
//! sink is cleared, and what a policy and a hook add to the start of a tool.

mod shared;
#[path = "shared/sink.rs"]
mod sink;

use std::{
    hint::black_box,
    sync::mpsc,
    time::{Duration, Instant},
};

use antiphon::{
    agent::FuncTool,
    live::{Frame, LiveConfig, acceptor::ServerSocket},
    policy::RulePolicy,
    providers::openai::OpenAi,
    session::{
        AgentSession, DeniedCall, EngineProbe, IdleConfig, LifecycleHooks, ReconnectPolicy,
        SessionBuilder, SessionContext,
    },
    types::{JsonObject, ToolCall},
};
use base64_simd::STANDARD;

use self::{
    shared::{Error, at, serve},
    sink::{Seen, Watched},
};

/// Interruptions, and tool calls of each kind.
const ROUNDS: usize = 500;
/// Between two of them, so that each meets a session at rest.
const PAUSE: Duration = Duration::from_millis(4);

fn main() -> Result<(), Error> {
    engine();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(barge_in())?;
    runtime.block_on(policy())?;
    Ok(())
}

/// The engine alone.
fn engine() {
    let frame = antiphon_testkit::voice_like(24_000, 20);
    let mut probe = EngineProbe::new(Instant::now());
    report("audio delta, played and heard", || probe.audio(black_box(&frame)) / frame.samples());
    let mut probe = EngineProbe::new(Instant::now());
    report("user's frame to the wire", || probe.uplink(black_box(&frame)));
    let mut probe = EngineProbe::new(Instant::now());
    report("whole turns, all their events", || probe.turn(black_box(&frame)));
}

/// Runs `work`, which says how many events it was, for a second.
fn report(what: &str, mut work: impl FnMut() -> usize) {
    const WARM_UP: u32 = 2_000;
    for _ in 0..WARM_UP {
        work();
    }
    let (began, mut events) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        for _ in 0..100 {
            events += work();
        }
    }
    let each = began.elapsed().as_nanos() as f64 / events as f64;
    println!("engine, {what:32} {:>12.0} events/s  {each:>7.0} ns each", 1e9 / each);
}

/// From the server's `speech_started` to the cleared sink.
async fn barge_in() -> Result<(), Error> {
    let (spoke, spoken) = mpsc::channel();
    let (cleared, clears) = mpsc::channel();
    let url = serve(move |socket| interrupt_often(socket, spoke.clone())).await?;
    let sink = Watched::new(move |seen| {
        if seen == Seen::Cleared {
            let _ = cleared.send(Instant::now());
        }
    });
    let session = start(&url, |builder| builder.sink(sink)).await?;
    session.ended().await;
    let times = spoken.try_iter().zip(clears.try_iter()).map(|(spoke, clear)| clear - spoke);
    print("speech_started to cleared sink", &mut times.collect::<Vec<_>>());
    Ok(())
}

/// From the server's end of a reply with a call to the first line of the tool.
async fn policy() -> Result<(), Error> {
    let rules = r#"{"default": "deny", "rules": [
        {"tool": "other*", "action": "deny"}, {"tool": "tool", "action": "allow"}]}"#;
    let rules = RulePolicy::parse("rules", rules)?;
    let bare = calls(|builder| builder).await?;
    let ruled = calls(|builder| builder.authorize(rules)).await?;
    let hooked = calls(|builder| builder.hooks(Approves)).await?;
    for (what, mut times) in [
        ("reply done to tool, no policy", bare),
        ("reply done to tool, two rules", ruled),
        ("reply done to tool, a hook", hooked),
    ] {
        print(what, &mut times);
    }
    Ok(())
}

async fn calls(
    equip: impl FnOnce(SessionBuilder) -> SessionBuilder,
) -> Result<Vec<Duration>, Error> {
    let (asked, asks) = mpsc::channel();
    let (began, begins) = mpsc::channel();
    let url = serve(move |socket| call_often(socket, asked.clone())).await?;
    let tool = FuncTool::new("tool", "A tool", None, move |_, _| {
        let _ = began.send(Instant::now());
        async { Ok(JsonObject::new()) }
    });
    let session = start(&url, |builder| equip(builder.tool(tool))).await?;
    session.ended().await;
    drop(session);
    Ok(asks.try_iter().zip(begins.try_iter()).map(|(ask, begin)| begin - ask).collect())
}

async fn start(
    url: &str,
    equip: impl FnOnce(SessionBuilder) -> SessionBuilder,
) -> Result<AgentSession, Error> {
    let builder = AgentSession::builder(std::sync::Arc::new(OpenAi::new()));
    // The server hangs up when it has asked often enough.
    let mut once = ReconnectPolicy::default();
    once.max_attempts = 0;
    let session = equip(builder).reconnect(once).build()?;
    let mut config = LiveConfig::new().api_key("x");
    config.endpoint = Some(url.to_owned());
    session.start(config, IdleConfig::OFF).await?;
    Ok(session)
}

fn print(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| at(times, share).as_secs_f64() * 1e6;
    println!(
        "session, {what:31} p50 {:>7.1} us  p99 {:>7.1} us  worst {:>7.1} us  ({} times)",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}

/// Speaks a second of voice, and is interrupted in the middle, again and again.
async fn interrupt_often(
    mut socket: ServerSocket,
    spoke: mpsc::Sender<Instant>,
) -> Result<(), Error> {
    let voice = STANDARD.encode_to_string(vec![7u8; 48_000]);
    for round in 0..ROUNDS {
        let reply = format!("resp_{round}");
        let response = format!(r#""response":{{"id":"{reply}""#);
        send(&mut socket, format!(r#"{{"type":"response.created","event_id":"a",{response}}}}}"#))
            .await?;
        send(
            &mut socket,
            format!(
                r#"{{"type":"response.output_audio.delta","event_id":"b","response_id":"{reply}","item_id":"item_{round}","output_index":0,"content_index":0,"delta":"{voice}"}}"#
            ),
        )
        .await?;
        tokio::time::sleep(PAUSE).await;
        let _ = spoke.send(Instant::now());
        send(
            &mut socket,
            r#"{"type":"input_audio_buffer.speech_started","event_id":"c","audio_start_ms":0,"item_id":"u"}"#.into(),
        )
        .await?;
        let reason = r#""status":"cancelled","status_details":{"type":"cancelled","reason":"turn_detected"}"#;
        send(
            &mut socket,
            format!(r#"{{"type":"response.done","event_id":"d",{response},{reason}}}}}"#),
        )
        .await?;
        until(&mut socket, "conversation.item.truncate").await?;
        send(
            &mut socket,
            r#"{"type":"input_audio_buffer.speech_stopped","event_id":"e","audio_end_ms":0,"item_id":"u"}"#.into(),
        )
        .await?;
    }
    Ok(())
}

/// Calls a tool, again and again.
async fn call_often(mut socket: ServerSocket, asked: mpsc::Sender<Instant>) -> Result<(), Error> {
    for round in 0..ROUNDS {
        let reply = format!("resp_{round}");
        send(
            &mut socket,
            format!(
                r#"{{"type":"response.created","event_id":"a","response":{{"id":"{reply}"}}}}"#
            ),
        )
        .await?;
        send(
            &mut socket,
            format!(
                r#"{{"type":"response.output_item.done","event_id":"b","response_id":"{reply}","output_index":0,"item":{{"type":"function_call","id":"f{round}","call_id":"c{round}","name":"tool","arguments":"{{}}","status":"completed"}}}}"#
            ),
        )
        .await?;
        tokio::time::sleep(PAUSE).await;
        let _ = asked.send(Instant::now());
        send(
            &mut socket,
            format!(
                r#"{{"type":"response.done","event_id":"c","response":{{"id":"{reply}","status":"completed"}}}}"#
            ),
        )
        .await?;
        until(&mut socket, "response.create").await?;
    }
    Ok(())
}

async fn send(socket: &mut ServerSocket, text: String) -> Result<(), Error> {
    Ok(socket.send(Frame::Text(text.into())).await?)
}

/// Reads until the client sends an event of this kind.
async fn until(socket: &mut ServerSocket, kind: &str) -> Result<(), Error> {
    let kind = format!("\"type\":\"{kind}\"");
    let wanted = async {
        loop {
            match socket.recv().await {
                Some(Ok(Frame::Text(text))) if text.contains(&kind) => return Ok(()),
                Some(Ok(_)) => {}
                _ => return Err(Error::from("the client is gone")),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), wanted).await?
}

/// A hook that looks at a call and lets it pass.
struct Approves;

impl LifecycleHooks for Approves {
    fn authorize_tool_call(
        &self,
        _: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        Ok(call.args.clone())
    }
}
