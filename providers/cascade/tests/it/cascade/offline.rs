//! The offline preset, whole: its own voice asks, its own ears hear, the matcher answers.

use std::{path::Path, sync::Arc};

use antiphon_audio::{AudioFormat, AudioFrame, Converter};
use antiphon_cascade::{
    CascadeProvider, SpeechRequest, Synthesizer,
    offline::{OfflineOptions, OfflineSpeech, PhraseMatcher},
};
use antiphon_live::{
    LiveCommand, LiveConfig, LiveEvent,
    conformance::{self, Options, ToolProbe},
};
use antiphon_types::{JsonObject, ToolDefinition, ToolResponse, ToolSpeech};
use futures_util::TryStreamExt;
use serde_json::json;

use super::parts::*;

async fn preset() -> (CascadeProvider, OfflineSpeech) {
    let mut options = OfflineOptions::default();
    options.models = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models"));
    let speech = OfflineSpeech::load(options).await.unwrap();
    let provider = speech.clone().provider(Arc::new(PhraseMatcher::new()));
    (provider, speech)
}

/// What the preset's voice says, as its ears take it.
async fn question(speech: &OfflineSpeech, text: &str) -> AudioFrame {
    let stream = speech.synthesizer.synthesize(SpeechRequest::new(text)).await.unwrap();
    let frames: Vec<AudioFrame> = stream.try_collect().await.unwrap();
    let input = AudioFormat::pcm16(16_000);
    let mut converter = Converter::new(frames[0].format, input).unwrap();
    let mut data = Vec::new();
    for frame in &frames {
        data.extend_from_slice(&converter.convert(frame).unwrap().data);
    }
    data.extend(converter.flush().iter().flat_map(|rest| rest.data.to_vec()));
    AudioFrame::new(input, data)
}

fn clock() -> ToolDefinition {
    let mut clock = ToolDefinition::new("clock", "Tells the time.");
    let phrases = ["what time is it", "tell me the time"];
    clock.speech = Some(Arc::new(ToolSpeech::phrases(phrases).answer("It is {time}.")));
    clock
}

fn noon() -> JsonObject {
    json!({"time": "twelve o'clock"}).as_object().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn c18_the_offline_preset_keeps_the_contract() {
    let (provider, speech) = preset().await;
    let options = Options::new()
        .speech(question(&speech, "What time is it?").await)
        .tool(ToolProbe::new(clock(), "what time is it", noon()));
    conformance::run(&provider, options).await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn a_spoken_question_reaches_its_tool_and_is_answered_aloud() {
    let (provider, speech) = preset().await;
    let question = question(&speech, "What time is it?").await;
    let mut talk = Talk::new(&provider, LiveConfig::new().host_tool(clock())).await;
    for at in (0..question.samples()).step_by(320) {
        talk.send(LiveCommand::AppendAudio(question.slice(at, at + 320))).await;
        talk.rest(20).await;
    }
    talk.sound(0, 1_000).await;
    let events = talk.until_done().await;
    let call = events.iter().find_map(|event| match event {
        LiveEvent::ToolCalls { calls, .. } => Some(calls[0].clone()),
        _ => None,
    });
    let call = call.unwrap_or_else(|| panic!("no call: {:?}", heard(&events)));
    let output = ToolResponse::new(call.id, call.name, noon());
    talk.send(LiveCommand::ToolResponse(output)).await;
    let answer = talk.until_done().await;
    assert_eq!(said(&answer), "It is twelve o'clock.");
    assert!(audio_ms(&answer) > 500);
}
