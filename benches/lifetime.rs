//! What a change of connections costs: `cargo bench --bench lifetime`.
//!
//! One session over loopback, whose user never stops talking, has its connection replaced two hundred
//! times by plan, and again two hundred times because the host wishes it, which closes the last one
//! first; then one of Gemini Live, where a handle demands that. Printed are the gaps between connections
//! as the session tells them, the gap that the caller hears, the user's audio that was lost, and how much
//! memory it took. The caller's gap is taken at the sink: a question is asked in the moment of the
//! change, so that the answer is due from then on, and until its first audio is written nothing is heard.
//! Beside it stands the same without a change. Then five hundred sessions have theirs replaced within one
//! minute, each in a conversation that goes on.
//!
//! It fails where audio is lost, where a change by plan is heard for longer than 150 ms, where memory
//! grows, and where a turn fails.

mod shared;
#[path = "shared/sink.rs"]
mod sink;

use std::{
    fs,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use antiphon::{
    audio::AudioFrame,
    live::{Frame, LiveConfig, LiveProvider, acceptor::ServerSocket},
    providers::{gemini::Gemini, openai::OpenAi},
    session::{AgentSession, EventKind, EventStream, IdleConfig, SessionLimits},
};
use antiphon_testkit::{
    gemini,
    openai::{Pace, Reply, Rule, Script, Server},
};
use serde_json::json;

use self::{
    shared::{Error, at, serve},
    sink::{Seen, Watched},
};

const CHANGES: usize = 200;
const BETWEEN: Duration = Duration::from_millis(200);
/// Where a change is by plan, a connection lives so long; the last tenth it looks for a quiet moment.
const LIFE: Duration = Duration::from_millis(600);
const SESSIONS: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);
/// A frame of 20 ms at 24 kHz, in base64.
const FRAME_CHARS: u64 = 1_280;
/// A change by plan is heard for no longer than this, in milliseconds.
const LONGEST_GAP: f64 = 150.0;
/// What 150 changes may leave behind, in kB.
const MOST_GROWTH: u64 = 4_096;

fn main() -> Result<ExitCode, Error> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let faults = runtime.block_on(async {
        let mut faults = Vec::new();
        let heard = Arc::new(AtomicU64::new(0));
        let openai = Peer { url: listen(heard.clone()).await?, gemini: false };
        faults.extend(one_session(&openai, "by plan", true, CHANGES, Some(&*heard)).await?);
        heard.store(0, Relaxed);
        faults.extend(one_session(&openai, "by wish", false, CHANGES, Some(&*heard)).await?);
        let mut pace = gemini::Pace::default();
        pace.think_ms = 5;
        let script = gemini::Script::auto().pace(pace);
        let server = gemini::Server::without_records(script);
        let serving = server.listen(None).await?;
        let peer = Peer { url: serving.url().to_owned(), gemini: true };
        faults.extend(one_session(&peer, "Gemini, by plan", true, CHANGES / 4, None).await?);
        faults.extend(many_sessions().await?);
        Ok::<_, Error>(faults)
    })?;
    faults.iter().for_each(|fault| eprintln!("not met: {fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whom a session talks to.
struct Peer {
    url: String,
    gemini: bool,
}

/// A talking user, and one change after another. Gives what is not as it should be.
async fn one_session(
    peer: &Peer,
    what: &str,
    planned: bool,
    changes: usize,
    arrived: Option<&AtomicU64>,
) -> Result<Vec<String>, Error> {
    let ear = Ear::default();
    let (session, mut events) = start(peer, ear.clone(), planned.then_some(LIFE)).await?;
    let talking = session.clone();
    // Whoever hears voices by itself would answer them.
    let rate = if peer.gemini { 16_000 } else { 24_000 };
    let voice = antiphon_testkit::voice_like(rate, 20);
    let frame: AudioFrame = if peer.gemini { voice.silenced() } else { voice };
    let talk = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        let mut sent = 0u64;
        loop {
            ticks.tick().await;
            match talking.send_audio(frame.clone()) {
                Ok(()) => sent += 1,
                Err(_) => return sent,
            }
        }
    });
    let mut gaps = Vec::with_capacity(changes);
    let (mut lost, mut before) = (0, 0);
    if !planned {
        for _ in 0..changes {
            tokio::time::sleep(BETWEEN).await;
            ear.audio_is_due();
            ask(&session, &mut events).await?;
        }
    }
    let usual = ear.take();
    for number in 0..changes {
        if planned {
            let (gap_ms, audio_lost_ms) = restored(&mut events).await?;
            ear.audio_is_due();
            session.send_text("Are you there?")?;
            gaps.push(gap_ms);
            lost += audio_lost_ms;
        } else {
            tokio::time::sleep(BETWEEN).await;
            session.reconnect()?;
            ear.audio_is_due();
            session.send_text("Are you there?")?;
            let (gap_ms, audio_lost_ms) = restored(&mut events).await?;
            gaps.push(gap_ms);
            lost += audio_lost_ms;
        }
        answered(&mut events).await?;
        if number == changes / 4 {
            before = resident_kb();
        }
    }
    let grown = resident_kb().saturating_sub(before);
    tokio::time::sleep(BETWEEN).await;
    session.shutdown(Duration::from_secs(1)).await?;
    let sent = talk.await?;
    gaps.sort_unstable();
    let arrived = arrived.map(|arrived| arrived.load(Relaxed));
    println!(
        "{changes} changes of one session, {what}: gap p50 {} ms, p99 {} ms, worst {} ms; {lost} ms of \
         the user's audio lost; {} of {sent} frames arrived; {grown} kB grown in the last three quarters",
        at(&gaps, 0.5),
        at(&gaps, 0.99),
        at(&gaps, 1.0),
        arrived.map_or("uncounted".into(), |arrived| arrived.to_string()),
    );
    let silences = ear.take();
    // Where nobody asks meanwhile, what is heard of a change is the gap and the answer after it.
    let longest = at(&silences, 1.0) + if planned { at(&gaps, 1.0) as f64 } else { 0.0 };
    for (what, silences) in [("over a change", silences), ("without one", usual)] {
        if silences.is_empty() {
            continue;
        }
        println!(
            "at the loudspeaker, {what}: {} answers; without audio where it was due p50 {:.1} ms, p99 \
             {:.1} ms, worst {:.1} ms",
            silences.len(),
            at(&silences, 0.5),
            at(&silences, 0.99),
            at(&silences, 1.0),
        );
    }
    let mut faults = Vec::new();
    if lost > 0 || arrived.is_some_and(|arrived| arrived < sent) {
        faults.push(format!("{what}: audio of the user's was lost"));
    }
    if longest >= LONGEST_GAP {
        faults.push(format!("{what}: nothing was heard for {longest:.1} ms"));
    }
    if grown > MOST_GROWTH {
        faults.push(format!("{what}: memory grew by {grown} kB"));
    }
    Ok(faults)
}

/// Measures for how long nothing is heard where audio is due. Clones share it.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Silence>>);

#[derive(Default)]
struct Silence {
    due: Option<Instant>,
    /// In milliseconds.
    lasted: Vec<f64>,
}

impl Ear {
    /// From now on something should be heard.
    fn audio_is_due(&self) {
        self.silence().due = Some(Instant::now());
    }

    fn audio_came(&self) {
        let mut silence = self.silence();
        if let Some(due) = silence.due.take() {
            silence.lasted.push(due.elapsed().as_secs_f64() * 1_000.0);
        }
    }

    /// How long each of them lasted, the shortest first.
    fn take(&self) -> Vec<f64> {
        let mut lasted = std::mem::take(&mut self.silence().lasted);
        lasted.sort_unstable_by(f64::total_cmp);
        lasted
    }

    fn silence(&self) -> std::sync::MutexGuard<'_, Silence> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Sessions that change in the same minute, each between two turns.
async fn many_sessions() -> Result<Vec<String>, Error> {
    let mut pace = Pace::default();
    pace.think_ms = 5;
    let answer = Rule::always(Reply::spoken("Yes.", 200));
    let server = Server::without_records(Script::auto().pace(pace).reply(answer));
    let serving = server.listen(None).await?;
    let peer = Arc::new(Peer { url: serving.url().to_owned(), gemini: false });
    let began = Instant::now();
    let mut lives = Vec::new();
    for number in 0..SESSIONS {
        let peer = peer.clone();
        lives.push(tokio::spawn(async move {
            tokio::time::sleep(MINUTE / 6 * number / SESSIONS).await;
            let (session, mut events) = start(&peer, Ear::default(), Some(MINUTE / 2)).await?;
            ask(&session, &mut events).await?;
            let (gap_ms, lost_ms) = restored(&mut events).await?;
            ask(&session, &mut events).await?;
            session.shutdown(Duration::from_secs(3)).await?;
            Ok::<_, Error>((gap_ms, lost_ms))
        }));
    }
    let (mut gaps, mut failed, mut lost) = (Vec::new(), 0, 0);
    for life in lives {
        match life.await? {
            Ok((gap_ms, lost_ms)) => {
                gaps.push(gap_ms);
                lost += lost_ms;
            }
            Err(error) => {
                failed += 1;
                eprintln!("a session failed: {error}");
            }
        }
    }
    gaps.sort_unstable();
    println!(
        "{SESSIONS} sessions that change by plan within {:.0?}: {failed} failed; gap p50 {} ms, p99 {} \
         ms; {lost} ms of audio lost",
        began.elapsed(),
        at(&gaps, 0.5),
        at(&gaps, 0.99),
    );
    let bad = failed > 0 || lost > 0 || began.elapsed() > MINUTE;
    Ok(bad
        .then(|| format!("{failed} of {SESSIONS} sessions failed, {lost} ms lost"))
        .into_iter()
        .collect())
}

/// A session whose connections are left after so long.
async fn start(
    peer: &Peer,
    ear: Ear,
    life: Option<Duration>,
) -> Result<(AgentSession, EventStream), Error> {
    let provider: Arc<dyn LiveProvider> =
        if peer.gemini { Arc::new(Gemini::new()) } else { Arc::new(OpenAi::new()) };
    let sink = Watched::new(move |seen| {
        if seen == Seen::Written {
            ear.audio_came();
        }
    });
    let mut limits = SessionLimits::default();
    limits.connection = life;
    let session = AgentSession::builder(provider).sink(sink).limits(limits).build()?;
    let events = session.events();
    let mut config = LiveConfig::new().api_key("x");
    config.endpoint = Some(peer.url.clone());
    session.start(config, IdleConfig::OFF).await?;
    Ok((session, events))
}

/// Waits for the answer to a text, heard to its end.
async fn ask(session: &AgentSession, events: &mut EventStream) -> Result<(), Error> {
    session.send_text("Are you there?")?;
    answered(events).await
}

/// A turn that ends without audio has failed.
async fn answered(events: &mut EventStream) -> Result<(), Error> {
    let mut heard = false;
    let answered = until(events, |kind| match kind {
        EventKind::PlaybackStarted => {
            heard = true;
            None
        }
        EventKind::TurnFinished { .. } => Some(heard),
        _ => None,
    });
    if answered.await? { Ok(()) } else { Err("a turn without an answer".into()) }
}

/// Waits for the next connection: its gap, and the audio lost in it.
async fn restored(events: &mut EventStream) -> Result<(u64, u64), Error> {
    until(events, |kind| match kind {
        EventKind::StateRestored { gap_ms, audio_lost_ms, .. } => Some((*gap_ms, *audio_lost_ms)),
        _ => None,
    })
    .await
}

async fn until<T>(
    events: &mut EventStream,
    mut is: impl FnMut(&EventKind) -> Option<T>,
) -> Result<T, Error> {
    let found = async {
        while let Some(event) = events.next().await {
            if let Some(found) = is(&event.kind) {
                return Ok(found);
            }
        }
        Err("the session ended".into())
    };
    tokio::time::timeout(MINUTE, found).await?
}

/// A server that counts the frames of the user's audio, and answers texts at once with a tenth of a
/// second of its voice.
async fn listen(heard: Arc<AtomicU64>) -> Result<String, Error> {
    let voice = base64_simd::STANDARD.encode_to_string(vec![7; 4_800]);
    serve(move |mut socket: ServerSocket| {
        let (heard, voice) = (heard.clone(), voice.clone());
        async move {
            let mut replies = 0;
            while let Some(frame) = socket.recv().await {
                let Frame::Text(frame) = frame? else { continue };
                if frame.contains(r#""type":"response.create""#) {
                    replies += 1;
                    for frame in answer(replies, &voice) {
                        socket.send(Frame::Text(frame.into())).await?;
                    }
                }
                if frame.contains("input_audio_buffer.append") {
                    // Frames may come in one append, or several.
                    let audio = frame.len() as u64;
                    heard.fetch_add((audio + FRAME_CHARS / 2) / FRAME_CHARS, Relaxed);
                }
            }
            Ok(())
        }
    })
    .await
}

/// A whole reply.
fn answer(number: u32, voice: &str) -> [String; 3] {
    let id = format!("resp_{number}");
    let response =
        |status: &str| json!({"id": id, "object": "realtime.response", "status": status});
    [
        json!({"type": "response.created", "event_id": "e3", "response": response("in_progress")}),
        json!({"type": "response.output_audio.delta", "event_id": "e4", "response_id": id,
            "item_id": format!("item_{number}"), "output_index": 0, "content_index": 0,
            "delta": voice}),
        json!({"type": "response.done", "event_id": "e5", "response": response("completed")}),
    ]
    .map(|event| event.to_string())
}

/// What the process holds, in kB; 0 where that cannot be known.
fn resident_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or_default()
}
