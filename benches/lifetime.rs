//! What a change of connections costs: `cargo bench --bench lifetime`.
//!
//! One session over loopback, whose user never stops talking, has its connection replaced two hundred
//! times: printed are the gaps between connections as the session tells them, the gap that the caller
//! hears, the user's audio that was lost, and how much memory it took. The caller's gap is taken at the
//! sink: a question is asked in the moment of the change, so that the answer is due from then on, and
//! until its first audio is written nothing is heard. Beside it stands the same without a change. Then
//! five hundred sessions have theirs replaced within one minute, each in a conversation that goes on.

mod shared;

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use antiphon::{
    audio::{AudioFormat, AudioFrame, AudioSink, ClockedSink, Generation, Played, SinkError},
    live::{Frame, LiveConfig, acceptor::ServerSocket},
    providers::openai::OpenAi,
    session::{AgentSession, EventKind, EventStream, IdleConfig},
};
use antiphon_testkit::openai::{Pace, Reply, Rule, Script, Server};
use serde_json::json;

use self::shared::{Error, at, serve};

const CHANGES: usize = 200;
const BETWEEN: Duration = Duration::from_millis(200);
const SESSIONS: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);
/// A frame of 20 ms at 24 kHz, in base64.
const FRAME_CHARS: u64 = 1_280;

fn main() -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(one_session())?;
    runtime.block_on(many_sessions())?;
    Ok(())
}

/// A talking user, and one change after another.
async fn one_session() -> Result<(), Error> {
    let heard = Arc::new(AtomicU64::new(0));
    let url = listen(heard.clone()).await?;
    let ear = Ear::default();
    let (session, mut events) = start(&url, ear.clone()).await?;
    let talking = session.clone();
    let talk = tokio::spawn(async move {
        let frame = antiphon_testkit::voice_like(24_000, 20);
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
    let mut gaps = Vec::with_capacity(CHANGES);
    let (mut lost, mut before) = (0, 0);
    for _ in 0..CHANGES {
        tokio::time::sleep(BETWEEN).await;
        ear.audio_is_due();
        ask(&session, &mut events).await?;
    }
    let usual = ear.take();
    for number in 0..CHANGES {
        tokio::time::sleep(BETWEEN).await;
        session.reconnect()?;
        ear.audio_is_due();
        session.send_text("Are you there?")?;
        let (gap_ms, audio_lost_ms) = restored(&mut events).await?;
        answered(&mut events).await?;
        gaps.push(gap_ms);
        lost += audio_lost_ms;
        if number == CHANGES / 4 {
            before = resident_kb();
        }
    }
    let grown = resident_kb().saturating_sub(before);
    tokio::time::sleep(BETWEEN).await;
    session.shutdown(Duration::from_secs(1)).await?;
    let sent = talk.await?;
    gaps.sort_unstable();
    println!(
        "{CHANGES} changes of one session: gap p50 {} ms, p99 {} ms, worst {} ms; {lost} ms of the \
         user's audio lost; {} of {sent} frames arrived; {grown} kB grown in the last three quarters",
        at(&gaps, 0.5),
        at(&gaps, 0.99),
        at(&gaps, 1.0),
        heard.load(Relaxed),
    );
    let silences = ear.take();
    for (what, silences) in [("over a change", silences), ("without one", usual)] {
        println!(
            "at the loudspeaker, {what}: {} answers; without audio where it was due p50 {:.1} ms, p99 \
             {:.1} ms, worst {:.1} ms",
            silences.len(),
            at(&silences, 0.5),
            at(&silences, 0.99),
            at(&silences, 1.0),
        );
    }
    Ok(())
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

/// A loudspeaker to which an ear listens.
struct Listened {
    sink: ClockedSink,
    ear: Ear,
}

impl AudioSink for Listened {
    fn format(&self) -> AudioFormat {
        self.sink.format()
    }

    fn room(&self, now: Instant) -> usize {
        self.sink.room(now)
    }

    fn write(
        &mut self,
        generation: Generation,
        frame: &AudioFrame,
        now: Instant,
    ) -> Result<(), SinkError> {
        self.ear.audio_came();
        self.sink.write(generation, frame, now)
    }

    fn finish(&mut self, generation: Generation, now: Instant) -> Result<(), SinkError> {
        self.sink.finish(generation, now)
    }

    fn clear(&mut self, next: Generation, now: Instant) -> Result<Option<Played>, SinkError> {
        self.sink.clear(next, now)
    }

    fn pause(&mut self, now: Instant) -> Result<(), SinkError> {
        self.sink.pause(now)
    }

    fn resume(&mut self, now: Instant) -> Result<(), SinkError> {
        self.sink.resume(now)
    }

    fn position(&self, now: Instant) -> Option<Played> {
        self.sink.position(now)
    }

    fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Result<Played, SinkError>> {
        self.sink.poll_progress(cx, now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.sink.next_deadline()
    }
}

/// Sessions that change in the same minute, each between two turns.
async fn many_sessions() -> Result<(), Error> {
    let mut pace = Pace::default();
    pace.think_ms = 5;
    let answer = Rule::always(Reply::spoken("Yes.", 200));
    let server = Server::without_records(Script::auto().pace(pace).reply(answer));
    let serving = server.listen(None).await?;
    let url = serving.url().to_owned();
    let began = Instant::now();
    let mut lives = Vec::new();
    for number in 0..SESSIONS {
        let url = url.clone();
        lives.push(tokio::spawn(async move {
            tokio::time::sleep(MINUTE / 6 * number / SESSIONS).await;
            let (session, mut events) = start(&url, Ear::default()).await?;
            ask(&session, &mut events).await?;
            tokio::time::sleep(MINUTE / 2).await;
            session.reconnect()?;
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
        "{SESSIONS} sessions that change within {:.0?}: {failed} failed; gap p50 {} ms, p99 {} ms; \
         {lost} ms of audio lost",
        began.elapsed(),
        at(&gaps, 0.5),
        at(&gaps, 0.99),
    );
    Ok(())
}

async fn start(url: &str, ear: Ear) -> Result<(AgentSession, EventStream), Error> {
    let sink = Listened { sink: ClockedSink::new(AudioFormat::pcm16(24_000)), ear };
    let session = AgentSession::builder(Arc::new(OpenAi::new())).sink(sink).build()?;
    let events = session.events();
    let mut config = LiveConfig::new().api_key("x");
    config.endpoint = Some(url.to_owned());
    session.start(config, IdleConfig::OFF).await?;
    Ok((session, events))
}

/// Waits for the answer to a text, heard to its end.
async fn ask(session: &AgentSession, events: &mut EventStream) -> Result<(), Error> {
    session.send_text("Are you there?")?;
    answered(events).await
}

async fn answered(events: &mut EventStream) -> Result<(), Error> {
    until(events, |kind| matches!(kind, EventKind::TurnFinished { .. }).then_some(())).await
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
