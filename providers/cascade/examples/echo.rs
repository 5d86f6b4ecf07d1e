//! Speaks a text, listens to it, and says what was heard, how long it took, and how much memory
//! the process holds.
//!
//! ```sh
//! cargo run --release -p antiphon-cascade --features offline --example echo -- "It is 7:30." out.wav
//! cargo run --release -p antiphon-cascade --features offline --example echo -- heard.wav
//! ```

use std::{env, error::Error, time::Instant};

use antiphon_audio::{Resampler, WavAudio};
use antiphon_cascade::{
    Recognizer, SpeechRequest, Synthesizer, Utterance,
    offline::{OfflineOptions, OfflineSpeech},
};
use antiphon_types::AudioFrame;
use futures_util::StreamExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let text = arguments.next().unwrap_or_else(|| "Hello! How may I help you?".to_owned());
    let output = arguments.next();

    let start = Instant::now();
    let speech = OfflineSpeech::load(OfflineOptions::default()).await?;
    println!("loaded in {} ms; {}", start.elapsed().as_millis(), memory());

    for round in 1..=3 {
        let audio = match text.ends_with(".wav") {
            true => WavAudio::open(&text)?,
            false => speak(&speech, &text).await?,
        };
        if let (1, Some(path)) = (round, &output) {
            audio.save(path)?;
        }
        let mut resampler = Resampler::new(audio.sample_rate_hz, 16_000)?;
        let mut samples = Vec::new();
        resampler.process(&audio.samples, &mut samples);
        resampler.flush(&mut samples);

        let start = Instant::now();
        let mut detector = speech.detector();
        let frames: Vec<f32> =
            samples.chunks_exact(detector.frame_samples()).map(|f| detector.score(f)).collect();
        let judged = start.elapsed().as_micros() as usize / frames.len().max(1);
        let voiced = frames.iter().filter(|score| **score > 0.5).count() * 100;
        println!("speech in {} % of frames, {judged} us each", voiced / frames.len().max(1));

        let start = Instant::now();
        let heard = Utterance::new(AudioFrame::from_pcm16(16_000, &samples));
        let heard = speech.recognizer.recognize(heard).await?.text;
        println!("heard {heard:?} in {} ms; {}", start.elapsed().as_millis(), memory());
    }
    Ok(())
}

async fn speak(speech: &OfflineSpeech, text: &str) -> Result<WavAudio, Box<dyn Error>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    let mut first = None;
    let mut frames = speech.synthesizer.synthesize(SpeechRequest::new(text)).await?;
    while let Some(frame) = frames.next().await {
        first.get_or_insert_with(|| start.elapsed());
        samples.extend(frame?.data.as_chunks::<2>().0.iter().map(|s| i16::from_le_bytes(*s)));
    }
    let sample_rate_hz = speech.synthesizer.sample_rate_hz();
    println!(
        "spoke {} ms of audio in {} ms, the first after {} ms",
        samples.len() * 1000 / sample_rate_hz as usize,
        start.elapsed().as_millis(),
        first.unwrap_or_default().as_millis(),
    );
    Ok(WavAudio { sample_rate_hz, samples })
}

/// Resident memory, where the system tells.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines =
        status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join(", ")
}
