//! Concurrent calls through the bridge: `cargo bench --features telephony --bench telephony`.
//!
//! The bridge, with a scripted provider behind it, is a process of its own, pinned to one core where
//! `taskset` is there; the callers are this process, pinned to another one. Each call sends and hears 20 ms
//! of mu-law at a time, at the rate of the clock, as Twilio's stream. Printed for each number of calls:
//!
//! - the processor time of the bridge's process (session, bridge and scripted provider) for a second of a
//!   call;
//! - the median and the 99th percentile of the delay that is added in each direction: from the caller's
//!   write to the provider's command, and from the provider's event to the caller's read;
//! - the memory that a call adds to the process;
//! - the time from the provider's word that the caller speaks to the `clear` at the caller, who interrupts
//!   several times;
//! - how busy the callers' own core was: near 100 % the delays are theirs.
//!
//! Then one AudioSocket call is timed, which the bridge paces: how far each packet is from its slot, how
//! far the clock drifts, and for comparison how late this process's own timer is.
//!
//! `CALLS=1,10,50` asks for other numbers of calls, `SECONDS` for another length (default: 20).

use std::{
    collections::VecDeque,
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use antiphon::{
    audio::{AudioFormat, AudioFrame},
    live::{Capabilities, LiveCommand, LiveConfig, LiveEvent, ReplyOutcome},
    session::{AgentSession, IdleConfig},
    telephony::{Answer, AnswerError, Bridge, BridgeConfig, CallAgent, IncomingCall},
};
use antiphon_testkit::{FarEnd, ScriptedProvider};
use async_trait::async_trait;
use futures_util::{SinkExt, StreamExt};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep_until},
};
use tokio_tungstenite::{
    client_async,
    tungstenite::{Message, Utf8Bytes},
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TICK: Duration = Duration::from_millis(20);
/// Of each call so much at its beginning and at its end is not counted, in ticks.
const WARM: usize = 50;
/// Calls are opened so long after one another: a burst of handshakes is another measurement.
const APART: Duration = Duration::from_millis(5);
/// And when all are open, so long passes before they speak.
const SETTLE: Duration = Duration::from_millis(500);
/// What is interrupted lasts so long, in ms.
const STORY: usize = 3_500;
/// How often each caller interrupts: a percentile wants more than a handful.
const INTERRUPTIONS: usize = 4;
/// Callers do not interrupt in the same instant: all of them within so long.
const SPREAD: Duration = Duration::from_secs(2);

fn main() -> Outcome {
    match env::args().nth(1).as_deref() {
        Some("bridge") => bridge(),
        Some("callers") => callers(),
        _ => {
            // Anew, to be pinned.
            let status = pinned(1)?.arg("callers").status()?;
            if status.success() { Ok(()) } else { Err(status.to_string().into()) }
        }
    }
}

/// This program, on one core where that can be had.
fn pinned(core: usize) -> Outcome<Command> {
    let program = env::current_exe()?;
    let core = core.to_string();
    let can = Command::new("taskset").args(["-c", &core, "true"]).status();
    if can.is_ok_and(|status| status.success()) {
        let mut command = Command::new("taskset");
        command.args(["-c", &core]).arg(program);
        return Ok(command);
    }
    eprintln!("not pinned to core {core}: the numbers are of a machine that is shared");
    Ok(Command::new(program))
}

/// Nanoseconds of a clock that all processes share.
fn clock() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

// ---- the bridge's process

/// What it says of itself, as a line of JSON.
#[derive(Serialize, Deserialize)]
struct Address {
    web: String,
    audiosocket: String,
}

#[derive(Serialize, Deserialize, Default)]
struct Measured {
    /// For each call when audio came up to the provider, and when it was sent down, in ticks.
    calls: Vec<Times>,
    cpu_ns: u64,
    wall_ns: u64,
    memory_before: u64,
    memory_after: u64,
}

#[derive(Serialize, Deserialize, Default, Clone)]
struct Times {
    up: Vec<u64>,
    down: Vec<u64>,
    interrupted: Vec<u64>,
}

struct Scripted(ScriptedProvider);

#[async_trait]
impl CallAgent for Scripted {
    async fn answer(&self, _call: &IncomingCall) -> Result<Answer, AnswerError> {
        let mut answer =
            Answer::new(AgentSession::builder(Arc::new(self.0.clone())), LiveConfig::new());
        answer.idle = IdleConfig::OFF;
        Ok(answer)
    }
}

fn bridge() -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(serve())
}

async fn serve() -> Outcome {
    let text = "listen = \"127.0.0.1:0\"\naudiosocket = \"127.0.0.1:0\"\n[limits]\ncalls = 2000\n\
                [carriers.twilio]\nverify = \"none\"\n";
    let config = BridgeConfig::from_toml(text, |_| None)?;
    let mulaw = provider(AudioFormat::Mulaw8k);
    let bound = Bridge::new(config, Scripted(mulaw.clone())).bind().await?;
    let address = Address {
        web: bound.local_addr()?.to_string(),
        audiosocket: bound.audiosocket_addr().ok_or("no AudioSocket")?.to_string(),
    };
    let running = tokio::spawn(bound.run(std::future::pending()));
    tell(&address)?;
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    while tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut line).await? > 0 {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["calls", count, ticks] => tell(&hold(&mulaw, count.parse()?, ticks.parse()?).await?)?,
            ["paced", ticks] => {
                let far = mulaw.far_end().await;
                talk(&far, "paced", ticks.parse()?, AudioFormat::Mulaw8k).await;
                tell(&Measured::default())?;
            }
            _ => return Err(format!("what is {line:?}").into()),
        }
        line.clear();
    }
    running.abort();
    Ok(())
}

fn provider(format: AudioFormat) -> ScriptedProvider {
    let mut capabilities = Capabilities::conversation(format, format);
    capabilities.interrupts = true;
    ScriptedProvider::new(capabilities)
}

fn tell(what: &impl Serialize) -> Outcome {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// So many calls for so many ticks.
async fn hold(provider: &ScriptedProvider, count: usize, ticks: usize) -> Outcome<Measured> {
    let memory_before = memory()?;
    let mut ends = Vec::new();
    for _ in 0..count {
        ends.push(provider.far_end().await);
    }
    let mut calls = Vec::new();
    for (index, far) in ends.into_iter().enumerate() {
        // Calls are not in step.
        let part = index as f64 / count as f64;
        calls.push(tokio::spawn(far_end(far, ticks, TICK.mul_f64(part), SPREAD.mul_f64(part))));
    }
    // The callers speak by then.
    tokio::time::sleep(SETTLE + TICK * WARM as u32).await;
    let (cpu, wall) = (nanoseconds(ClockId::ProcessCPUTime), clock());
    let counted = ticks.saturating_sub(2 * WARM).max(1);
    tokio::time::sleep((TICK * counted as u32).saturating_sub(SETTLE)).await;
    let mut measured = Measured {
        cpu_ns: nanoseconds(ClockId::ProcessCPUTime) - cpu,
        wall_ns: clock() - wall,
        memory_before,
        memory_after: memory()?,
        ..Measured::default()
    };
    for call in calls {
        measured.calls.push(call.await?);
    }
    Ok(measured)
}

/// The provider's end of a call: hears, speaks at the rate of the clock, and is interrupted at the end.
async fn far_end(mut own: FarEnd, ticks: usize, stagger: Duration, later: Duration) -> Times {
    let mut times = Times::default();
    let began = Instant::now() + stagger;
    own.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: None });
    let (mut sent, mut heard) = (0, 0);
    while sent < ticks {
        tokio::select! {
            biased;
            () = sleep_until(began + TICK * sent as u32) => {
                times.down.push(clock());
                audio(&own, "r1", 20, AudioFormat::Mulaw8k);
                sent += 1;
            }
            command = own.command() => match command {
                Some(LiveCommand::AppendAudio(frame)) => {
                    heard += frame.samples();
                    while times.up.len() < heard / 160 {
                        let now = clock();
                        times.up.push(now);
                    }
                }
                Some(_) => {}
                None => break,
            },
        }
    }
    let done = |reply: &str| {
        let (reply, outcome) = (reply.into(), ReplyOutcome::Completed);
        own.emit(LiveEvent::ReplyDone { reply, outcome, usage: None });
    };
    done("r1");
    for round in 0..INTERRUPTIONS {
        // All of a story is sent before it is heard; then the caller speaks.
        let began = Instant::now();
        let story = format!("s{round}");
        own.emit(LiveEvent::ReplyStarted { reply: story.as_str().into(), request: None });
        audio(&own, &story, STORY, AudioFormat::Mulaw8k);
        done(&story);
        tokio::time::sleep(Duration::from_millis(800) + later).await;
        times.interrupted.push(clock());
        own.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
            .emit(LiveEvent::Interrupted { reply: None });
        tokio::time::sleep(Duration::from_millis(300)).await;
        own.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
        sleep_until(began + Duration::from_millis(STORY as u64) + later).await;
    }
    times
}

/// A reply of so many ticks, in pieces of a second, each of which is there a second before it is due: models
/// speak faster than they are heard.
async fn talk(far: &FarEnd, reply: &str, ticks: usize, format: AudioFormat) {
    far.emit(LiveEvent::ReplyStarted { reply: reply.into(), request: None });
    let began = Instant::now();
    for second in 0..ticks / 50 {
        sleep_until(began + Duration::from_secs(second.saturating_sub(1) as u64)).await;
        audio(far, reply, 1_000, format);
    }
    let (reply, outcome) = (reply.into(), ReplyOutcome::Completed);
    far.emit(LiveEvent::ReplyDone { reply, outcome, usage: None });
    tokio::time::sleep(Duration::from_secs(3)).await;
}

fn audio(far: &FarEnd, reply: &str, ms: usize, format: AudioFormat) {
    far.emit(LiveEvent::Audio {
        reply: reply.into(),
        item: "i1".into(),
        content_index: 0,
        frame: AudioFrame::new(format, vec![0x20; ms * 8]),
    });
}

/// Bytes of this process that are in memory.
fn memory() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).ok_or("no resident size")?.parse()?;
    Ok(pages * 4_096)
}

// ---- the callers' process

struct Server {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    address: Address,
}

impl Server {
    fn start() -> Outcome<Self> {
        let mut child =
            pinned(0)?.arg("bridge").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        Ok(Self { child, out, address: serde_json::from_str(&line)? })
    }

    fn order(&mut self, order: &str) -> Outcome {
        let input = self.child.stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{order}")?;
        Ok(input.flush()?)
    }

    fn measured(mut self) -> Outcome<Measured> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(serde_json::from_str(&line)?)
    }
}

fn callers() -> Outcome {
    let seconds: usize = env::var("SECONDS").map_or(Ok(20), |text| text.parse())?;
    let counts = env::var("CALLS").unwrap_or_else(|_| "1,10,50,100,200,400".into());
    let counts: Result<Vec<usize>, _> = counts.split(',').map(str::parse).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "calls   CPU ms per call-second   up ms p50 / p99   down ms p50 / p99   clear ms p50 / p99   \
         kB per call   callers' core"
    );
    for count in counts? {
        runtime.block_on(curve(count, seconds * 50))?;
    }
    runtime.block_on(paced(seconds.max(5) * 50))
}

/// What one caller saw, in nanoseconds of the shared clock.
#[derive(Default)]
struct Seen {
    sent: Vec<u64>,
    heard: Vec<u64>,
    cleared: Vec<u64>,
}

async fn curve(count: usize, ticks: usize) -> Outcome {
    let mut server = Server::start()?;
    server.order(&format!("calls {count} {ticks}"))?;
    let mut calls = Vec::new();
    // Nobody speaks before all calls stand, so that each word is taken when it comes.
    let all_stand = Instant::now() + APART * count as u32 + SETTLE;
    for index in 0..count {
        let speaks_at = all_stand + TICK.mul_f64(index as f64 / count as f64);
        calls.push(tokio::spawn(caller(server.address.web.clone(), index, speaks_at, ticks)));
        tokio::time::sleep(APART).await;
    }
    sleep_until(all_stand + TICK * WARM as u32).await;
    let (cpu, wall) = (nanoseconds(ClockId::ProcessCPUTime), clock());
    sleep_until(all_stand + TICK * ticks.saturating_sub(WARM) as u32).await;
    let busy = nanoseconds(ClockId::ProcessCPUTime) - cpu;
    let busy = busy as f64 / (clock() - wall).max(1) as f64;
    let mut seen = Vec::new();
    for call in calls {
        seen.push(call.await??);
    }
    let measured = tokio::task::spawn_blocking(|| server.measured()).await??;
    // Calls come to the provider in the order in which they were opened.
    let (mut up, mut down, mut clear) = (Vec::new(), Vec::new(), Vec::new());
    for (seen, there) in seen.iter().zip(&measured.calls) {
        let after_warm = |all: &[u64], other: &[u64], into: &mut Vec<u64>| {
            let pairs = all.iter().zip(other).skip(WARM).take(ticks.saturating_sub(2 * WARM));
            into.extend(pairs.map(|(from, to)| to.saturating_sub(*from)));
        };
        after_warm(&seen.sent, &there.up, &mut up);
        after_warm(&there.down, &seen.heard, &mut down);
        let pairs = seen.cleared.iter().zip(&there.interrupted);
        clear.extend(pairs.map(|(at, from)| at.saturating_sub(*from)));
    }
    let wanted = count * INTERRUPTIONS;
    if clear.len() < wanted {
        return Err(format!("{} of {wanted} interruptions were cleared", clear.len()).into());
    }
    let expected = count * ticks.saturating_sub(2 * WARM);
    if up.len() < expected || down.len() < expected {
        let lost = (expected - up.len().min(expected), expected - down.len().min(expected));
        return Err(
            format!("of {expected} pieces {} up and {} down are lost", lost.0, lost.1).into()
        );
    }
    let call_seconds = measured.wall_ns as f64 / 1e9 * count as f64;
    let memory = measured.memory_after.saturating_sub(measured.memory_before) / count as u64;
    println!(
        "{count:5}   {:22.3}   {:6.2} / {:6.2}   {:8.2} / {:6.2}   {:9.2} / {:6.2}   {:11}   {:11.0} %",
        measured.cpu_ns as f64 / 1e6 / call_seconds,
        percentile(&mut up, 50),
        percentile(&mut up, 99),
        percentile(&mut down, 50),
        percentile(&mut down, 99),
        percentile(&mut clear, 50),
        percentile(&mut clear, 99),
        memory / 1_000,
        100.0 * busy,
    );
    Ok(())
}

/// In milliseconds.
fn percentile(all: &mut [u64], percent: usize) -> f64 {
    all.sort_unstable();
    let index = (all.len() * percent / 100).min(all.len().saturating_sub(1));
    all.get(index).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
}

async fn caller(address: String, index: usize, speaks_at: Instant, ticks: usize) -> Outcome<Seen> {
    let stream = TcpStream::connect(&address).await?;
    stream.set_nodelay(true)?;
    let (mut socket, _) = client_async(format!("ws://{address}/telephony/twilio"), stream).await?;
    let start = format!(
        r#"{{"event":"start","sequenceNumber":"1","streamSid":"MZ{index}","start":{{"accountSid":"AC1",
        "streamSid":"MZ{index}","callSid":"CA{index}","tracks":["inbound"],"customParameters":{{}},
        "mediaFormat":{{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1}}}}}}"#
    );
    socket.send(Message::Text(start.into())).await?;
    let payload = base64_simd::STANDARD.encode_to_string([0x20; 160]);
    let mut seen = Seen::default();
    // Long enough for the end of the measurement at the other end.
    let last = speaks_at + TICK * ticks as u32 + Duration::from_secs(60);
    let mut heard = 0;
    // As at a carrier: what came is played in order, and marks come back when they are reached.
    let mut plays_until = Instant::now();
    let mut marks: VecDeque<(Instant, Utf8Bytes)> = VecDeque::new();
    while seen.cleared.len() < INTERRUPTIONS && Instant::now() < last {
        tokio::select! {
            biased;
            message = socket.next() => {
                let Some(Ok(message)) = message else { break };
                let Message::Text(text) = message else { continue };
                if let Some(at) = text.find(r#""payload":""#) {
                    let payload = &text[at + 11..];
                    let characters = payload.find('"').unwrap_or(0);
                    let bytes = characters / 4 * 3 - payload[..characters].matches('=').count();
                    heard += bytes;
                    let length = Duration::from_micros(bytes as u64 * 125);
                    plays_until = plays_until.max(Instant::now()) + length;
                    let now = clock();
                    while seen.heard.len() < heard / 160 {
                        seen.heard.push(now);
                    }
                } else if text.contains(r#""event":"clear""#) {
                    seen.cleared.push(clock());
                    plays_until = Instant::now();
                    for (_, mark) in marks.drain(..) {
                        socket.feed(Message::Text(mark)).await?;
                    }
                    socket.flush().await?;
                } else if text.contains(r#""event":"mark""#) {
                    marks.push_back((plays_until, text));
                }
            }
            () = played(marks.front().map(|(at, _)| *at)) => {
                let Some((_, mark)) = marks.pop_front() else { continue };
                socket.send(Message::Text(mark)).await?;
            }
            () = sleep_until(speaks_at + TICK * seen.sent.len() as u32) => {
                let number = seen.sent.len();
                let media = format!(
                    r#"{{"event":"media","streamSid":"MZ{index}","media":{{"track":"inbound","chunk":"{}","timestamp":"{}","payload":"{payload}"}}}}"#,
                    number + 1,
                    number * 20,
                );
                seen.sent.push(clock());
                socket.send(Message::Text(media.into())).await?;
            }
        }
    }
    let stop = format!(r#"{{"event":"stop","streamSid":"MZ{index}","stop":{{}}}}"#);
    let _ = socket.send(Message::Text(stop.into())).await;
    Ok(seen)
}

/// Returns at this time; never, where there is none.
async fn played(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// One call that the bridge paces.
async fn paced(ticks: usize) -> Outcome {
    let mut server = Server::start()?;
    server.order(&format!("paced {ticks}"))?;
    let mut socket = TcpStream::connect(&server.address.audiosocket).await?;
    socket.set_nodelay(true)?;
    let mut opening = vec![0x01, 0, 16];
    opening.extend([7; 16]);
    opening.extend([0x10, 1, 64]);
    opening.extend([0; 320]);
    socket.write_all(&opening).await?;
    let slips = tokio::spawn(slips(ticks));
    let mut came = Vec::new();
    let mut packet = [0; 323];
    while came.len() < ticks {
        socket.read_exact(&mut packet).await?;
        came.push(clock());
    }
    let slips = slips.await?;
    drop(socket);
    tokio::task::spawn_blocking(|| server.measured()).await??;
    // From the slot that the earliest packet gives: lateness is never negative.
    let tick = TICK.as_nanos() as i64;
    let slot = |(index, at): (usize, &u64)| *at as i64 - came[0] as i64 - tick * index as i64;
    // The first ones fill the lead.
    let warm = came.len() / 10;
    let late: Vec<i64> = came.iter().enumerate().map(slot).skip(warm).collect();
    let least = late.iter().min().copied().unwrap_or_default();
    let mut all: Vec<u64> = late.iter().map(|late| (late - least).unsigned_abs()).collect();
    let half = late.len() / 2;
    let middle = |part: &[i64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let drift = middle(&late[half..]) - middle(&late[..half]);
    let mut slips = slips;
    println!(
        "\npaced by us, {} packets: late p50 {:.2} ms, p99 {:.2} ms; drift {:.3} ms in {:.0} s; a \
         timer here is late p99 {:.2} ms",
        all.len(),
        percentile(&mut all, 50),
        percentile(&mut all, 99),
        drift as f64 / 1e6,
        (ticks / 2) as f64 / 50.0,
        percentile(&mut slips, 99),
    );
    Ok(())
}

/// How late a timer of this process is.
async fn slips(ticks: usize) -> Vec<u64> {
    let began = Instant::now();
    let mut slips = Vec::new();
    for tick in 0..ticks {
        let at = began + TICK * tick as u32;
        sleep_until(at).await;
        slips.push(at.elapsed().as_nanos() as u64);
    }
    slips
}
