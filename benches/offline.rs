//! How long the offline agent takes to answer, what it weighs, and how long it takes to start:
//! `cargo bench --bench offline --features offline`.
//!
//! A whole session in real time: a question is spoken frame by frame, and the time is taken from
//! its last voiced sample to the first voiced sample of the answer at the loudspeaker. The silence
//! after which the user has finished is a setting and is subtracted.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use antiphon::{
    agent::FuncTool,
    audio::{AudioFormat, AudioFrame, ClockedSink},
    live::LiveConfig,
    providers::cascade::{
        SpeechRequest, Synthesizer,
        offline::{OfflineOptions, OfflineSpeech, matcher::PhraseMatcher},
    },
    session::{AgentSession, EventKind, IdleConfig},
    types::{JsonObject, ToolSpeech},
};
use futures_util::StreamExt;
use serde_json::json;

/// About -40 dBFS: above the noise of the synthesiser, below any speech.
const VOICED: u16 = 327;
const SILENCE: Duration = Duration::from_millis(600);
const FRAME: Duration = Duration::from_millis(20);
const ROUNDS: usize = 8;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let speech = OfflineSpeech::load(OfflineOptions::default()).await?;
    let mouth = speech.synthesizer.clone();
    let provider = Arc::new(speech.provider(Arc::new(PhraseMatcher::new())));

    let first_voice = FirstVoice::default();
    let session = AgentSession::builder(provider)
        .tool(
            FuncTool::new("door_state", "Tells whether a door is open.", None, |_, _| async {
                Ok(JsonObject::from_iter([("state".to_owned(), json!("open"))]))
            })
            .speech(ToolSpeech::phrases(["is the door open"]).answer("The door is {state}.")),
        )
        .sink(listening_sink(mouth.sample_rate_hz(), first_voice.clone()))
        .build()?;
    let mut events = session.events();
    let mut config = LiveConfig::new();
    config.policies.activity.silence = Some(SILENCE);
    session.start(config, IdleConfig::OFF).await?;
    let started = begun.elapsed();

    let question = speak(&*mouth, "Is the door open?").await?;
    let last_voiced = last_voiced(&question);
    let mut delays = Vec::new();
    for _ in 0..ROUNDS {
        first_voice.forget();
        let spoken = Instant::now();
        let silence = AudioFrame::new(
            question.format,
            vec![0; question.format.samples_in(FRAME) as usize * 2],
        );
        let length = question.format.samples_in(FRAME) as usize;
        let mut ticks = tokio::time::interval(FRAME);
        let mut position = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let frame = question.slice(position, position + length);
                    position += length;
                    session.send_audio(if frame.samples() == length { frame } else { silence.clone() })?;
                }
                event = events.next() => match event.map(|event| event.kind) {
                    Some(EventKind::TurnFinished { .. }) => break,
                    Some(_) => {}
                    None => return Err("the session ended".into()),
                }
            }
        }
        // A frame is sent when its time begins, so its samples lie in the 20 ms after that.
        let end_of_speech = spoken + last_voiced;
        let heard = first_voice.at().ok_or("the agent said nothing")?;
        delays.push(heard.saturating_duration_since(end_of_speech).saturating_sub(SILENCE));
    }
    delays.sort_unstable();
    println!("start, models loaded and session running   {:>6} ms", started.as_millis());
    println!("resident memory                            {:>6} MB", resident_mb());
    println!("end of question to answer, beyond silence");
    println!(
        "  median of {ROUNDS}                              {:>6} ms",
        delays[ROUNDS / 2].as_millis()
    );
    println!("  worst                                    {:>6} ms", delays[ROUNDS - 1].as_millis());
    session.shutdown(Duration::from_secs(3)).await?;
    Ok(())
}

async fn speak(
    mouth: &dyn Synthesizer,
    text: &str,
) -> Result<AudioFrame, Box<dyn std::error::Error>> {
    let mut stream = mouth.synthesize(SpeechRequest::new(text)).await?;
    let mut data = Vec::new();
    while let Some(frame) = stream.next().await {
        data.extend_from_slice(&frame?.data);
    }
    Ok(AudioFrame::new(AudioFormat::pcm16(mouth.sample_rate_hz()), data))
}

fn last_voiced(frame: &AudioFrame) -> Duration {
    let samples: Vec<i16> = samples(frame).collect();
    let last = samples.iter().rposition(|sample| sample.unsigned_abs() > VOICED).unwrap_or(0);
    frame.format.duration_of(last as u64)
}

fn samples(frame: &AudioFrame) -> impl Iterator<Item = i16> {
    frame.data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
}

fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1_024
}

/// When the first voiced sample was to be heard.
#[derive(Clone, Default)]
struct FirstVoice(Arc<Mutex<Option<Instant>>>);

impl FirstVoice {
    fn forget(&self) {
        *self.0.lock().expect("nothing panics under it") = None;
    }

    fn at(&self) -> Option<Instant> {
        *self.0.lock().expect("nothing panics under it")
    }
}

/// Plays into nothing, and notes when the first voiced sample would be heard.
fn listening_sink(sample_rate_hz: u32, first_voice: FirstVoice) -> ClockedSink {
    ClockedSink::new(AudioFormat::pcm16(sample_rate_hz)).observed_by(move |frame, heard_at| {
        let mut first_voice = first_voice.0.lock().expect("nothing panics under it");
        if first_voice.is_none() {
            let voiced = samples(frame).position(|sample| sample.unsigned_abs() > VOICED);
            *first_voice = voiced.map(|at| heard_at + frame.format.duration_of(at as u64));
        }
    })
}
